"""``bkheal ledger``: shows, closes and deletes ledgers. ``entries`` is about their entries, ``verify`` about copies."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from auditor.cli.changing import confirm, whoami
from auditor.cli.configuration.security_options import bookie_security
from auditor.cli.ledgers import entries as ledger_entries
from auditor.cli.ledgers.entries import describe
from auditor.cli.ledgers.entry_format import custom_conditions
from auditor.cli.ledgers.options import LedgerArgument, PasswordOption, YesOption
from auditor.cli.ledgers.verify import verify
from auditor.cli.output import OutputFormat, StreamFormat, print_json, print_json_line, print_line
from auditor.cli.paging import print_page
from auditor.cli.running import (
    ConfigOption,
    MetadataUriOption,
    OutputOption,
    StreamOutputOption,
    metadata_uri,
    run,
)
from auditor.cli.spans import moment_ms
from bookie.model.ids import bookie_id, ledger_id
from bookie.model.metadata import LedgerState
from bookie.runtime.clock import SystemClock
from bookie.runtime.human import agreeing, counted, printable, size

app = typer.Typer(
    help="Ledgers: list, show, write, read, follow, verify, recover, delete.",
    epilog="Try: `echo hello | bkheal ledger write -e 3 -w 2 -a 2`, then `bkheal ledger read ID`.",
    no_args_is_help=True,
)
app.command("write")(ledger_entries.write)
app.command("read")(ledger_entries.read)
app.command("tail")(ledger_entries.tail)
app.command("verify")(verify)


@app.command("list")
def list_ledgers(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    limit: Annotated[int, typer.Option(min=0, help="Stop after this many; 0 for all.")] = 0,
    state: Annotated[str | None, typer.Option(help="OPEN, IN_RECOVERY or CLOSED.", show_default=False)] = None,
    bookie: Annotated[str | None, typer.Option(help="Some fragment is on this bookie.", show_default=False)] = None,
    custom: Annotated[
        list[str] | None, typer.Option(help="Custom metadata KEY=VALUE, or KEY with any value; repeatable.")
    ] = None,
    created_after: Annotated[
        str | None, typer.Option(help="2026-01-31T12:00 (UTC), or 30m, 2h, 7d ago.", show_default=False)
    ] = None,
    created_before: Annotated[str | None, typer.Option(help="As --created-after.", show_default=False)] = None,
    prefix: Annotated[str, typer.Option(help="First digits of the id.", show_default=False)] = "",
) -> None:
    """List ledgers with their shape, state and size; all conditions must hold.

    With --output jsonl, each ledger is printed as soon as it is read.

    Example, open ones of an application, older than a day: `bkheal ledger list --state open --custom app=shop
    --created-before 1d`.
    """
    from bookie.client.ledger_filter import LedgerFilter

    if state is not None and state.upper() not in LedgerState.__members__:
        raise typer.BadParameter(f"{state!r} is not a state; use one of {', '.join(LedgerState.__members__)}")
    if prefix and not (prefix.isascii() and prefix.isdigit()):
        raise typer.BadParameter(f"no id begins with {prefix!r}: ids are numbers")
    where = LedgerFilter(
        states=None if state is None else frozenset({LedgerState[state.upper()]}),
        bookie=None if bookie is None else bookie_id(bookie),
        custom=custom_conditions(custom or []),
        created_after_ms=_time_ms(created_after),
        created_before_ms=_time_ms(created_before),
        id_prefix=prefix,
    )
    after_ms, before_ms = where.created_after_ms, where.created_before_ms
    if after_ms is not None and before_ms is not None and after_ms >= before_ms:
        raise typer.BadParameter(f"--created-after {created_after} is not before --created-before {created_before}")
    target = metadata_uri(uri, config)
    if output is StreamFormat.JSONL:  # printed one by one, because a cluster may have millions of ledgers
        run(_list(target, where, limit, lambda row: print_json_line("Ledger", **row)))
        return
    rows: list[dict[str, Any]] = []
    run(_list(target, where, limit, rows.append))
    print_page(
        output,
        "LedgerList",
        {"items": rows},
        ("LEDGER", "STATE", "E/Qw/Qa", "DIGEST", "FRAGMENTS", "LAST ENTRY", "LENGTH"),
        lambda row: (
            row["ledger_id"],
            row["state"],
            "{ensemble_size}/{write_quorum}/{ack_quorum}".format(**row) if "ensemble_size" in row else "-",
            row.get("digest_type", "-"),
            len(row["fragments"]) if "fragments" in row else "-",
            _or_dash(row.get("last_entry_id")),
            "-" if row.get("length") is None else size(row["length"]),
        ),
        right=(0, 4, 5, 6),
        nothing="no ledger was found",
    )


@app.command("show")
def show(
    ledger: LedgerArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a ledger's metadata; never its password."""
    row = run(_show(metadata_uri(uri, config), ledger))
    if output is OutputFormat.JSON:
        print_json("Ledger", **row)
        return
    for name, value in row.items():
        if name == "fragments":
            print_line("fragments:")
            for fragment in value:
                print_line(f"  from entry {fragment['first_entry_id']}: {', '.join(fragment['members'])}")
        elif name == "custom_metadata":
            print_line(
                f"custom metadata: {printable(', '.join(f'{key}={text}' for key, text in value.items())) or '-'}"
            )
        elif name == "created":
            print_line(f"created: {_time_text(value, row['ctime_ms'])}")
        elif name == "ctime_ms":
            continue
        elif name == "length" and value is not None:
            print_line(f"length: {counted(value, 'byte')}")
        else:
            print_line(f"{name.replace('_', ' ')}: {_or_dash(value)}")


@app.command("recover")
def recover(
    ledger: LedgerArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    password: PasswordOption = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Find the end of a ledger whose writer is dead, and close it.

    It is safe to repeat; a closed ledger is not changed.

    If the writer is still alive, it is fenced: it cannot add entries any more. All acknowledged entries are kept. The
    exit code is 69 while too few bookies answer to find the end; run it again after they return.
    """
    row = run(_recover(metadata_uri(uri, config), ledger, os.fsencode(password) or None))
    if output is OutputFormat.JSON:
        print_json("Ledger", **row)
    else:
        print_line(f"ledger {ledger} is closed: {counted(row['last_entry_id'] + 1, 'entry')}, {size(row['length'])}")


@app.command("close")
def close(
    ledger: LedgerArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    password: PasswordOption = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Close a ledger as `recover` does: fence it, find its end, close it. Only its writer can close it directly."""
    recover(ledger, uri, config, password, output)


@app.command("delete")
def delete(
    ledger: LedgerArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    yes: YesOption = False,
) -> None:
    """Delete a ledger permanently.

    Bookies free its entries with their next garbage collection.
    """
    target = metadata_uri(uri, config)
    row = run(_show(target, ledger))
    if not yes:
        length = f"{_or_dash(row['length'])} {agreeing(row['length'], 'byte', 'bytes')}"
        confirm(f"Delete ledger {ledger} ({row['state']}, {length}) permanently?", is_sure=False)
    run(_delete(target, ledger))
    print_line(f"ledger {ledger} deleted")


async def _list(uri: str, where: Any, limit: int, take: Callable[[dict[str, Any]], None]) -> None:
    """Pass each row to ``take`` as soon as it is read.

    Raises:
        NoSuchObjectError: there is no row, and no bookie has the requested name.
    """
    from auditor.operating.client import check_names
    from bookie.client.connect import connect
    from bookie.metadata.ledgers.ledgers import Unreadable

    is_found = False
    async with await connect(uri, security=bookie_security()) as client:
        async for item in client.scan_ledgers(where, limit=limit or None):
            is_found = True
            if isinstance(item, Unreadable):
                take({"ledger_id": item.ledger_id, "state": "UNREADABLE", "reason": item.reason})
            else:
                take(describe(item.ledger_id, item.metadata))
        if where.bookie is not None and not is_found:  # a ledger may name a bookie without a cookie
            await check_names(client, [where.bookie])


async def _show(uri: str, ledger: int) -> dict[str, Any]:
    from bookie.client.connect import connect

    async with await connect(uri, security=bookie_security()) as client:
        found = await client.ports.ledgers.read(ledger_id(ledger))
        return describe(ledger, found.metadata)


async def _recover(uri: str, ledger: int, password: bytes | None) -> dict[str, Any]:
    from auditor.operating.client import Actor
    from bookie.client.connect import connect

    async with await connect(uri, security=bookie_security()) as client:
        if not (await client.ports.ledgers.read(ledger_id(ledger))).metadata.is_closed:  # a closed one stays as it is
            await Actor(whoami(), "command").record(client, "ledger recover", f"ledger {ledger}")
        return describe(ledger, await client.recover_ledger(ledger_id(ledger), password=password))


async def _delete(uri: str, ledger: int) -> None:
    from auditor.operating.client import Actor
    from bookie.client.connect import connect

    async with await connect(uri, security=bookie_security()) as client:
        await Actor(whoami(), "command").record(client, "ledger delete", f"ledger {ledger}")
        await client.delete_ledger(ledger_id(ledger))


def _time_ms(text: str | None) -> int | None:
    return None if text is None else moment_ms(text, SystemClock().epoch_ms())


def _time_text(time: str | None, epoch_ms: int | None) -> str:
    if epoch_ms is None:  # Apache's client does not store it by default
        return "-"
    return time or f"{epoch_ms} ms"  # another client may have stored anything


def _or_dash(value: object) -> object:
    return "-" if value is None else value
