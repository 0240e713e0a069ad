"""``bkheal log``: endless logs, each a sequence of ledgers."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from auditor.cli.changing import confirm, require_utf8_text, whoami
from auditor.cli.configuration.security_options import bookie_security
from auditor.cli.ledgers.entries import FormatOption, describe
from auditor.cli.ledgers.entry_format import EntryFormat, formatted, payloads_from
from auditor.cli.ledgers.new_ledger import check_quorums, digest_type_from_name
from auditor.cli.ledgers.options import (
    AckQuorumOption,
    DigestOption,
    EnsembleOption,
    EntriesOption,
    EntryBytesOption,
    FileArgument,
    PasswordOption,
    WriteQuorumOption,
    YesOption,
)
from auditor.cli.output import OutputFormat, StreamFormat, counting, print_json, print_line, print_table
from auditor.cli.paging import print_page
from auditor.cli.running import (
    ConfigOption,
    MetadataUriOption,
    OutputOption,
    StreamOutputOption,
    metadata_uri,
    run,
)
from bookie.metadata.logs.log_store import LogExistsError, NoSuchLogError
from bookie.model.times import rfc3339_if_known
from bookie.runtime.human import counted, duration, printable, size

if TYPE_CHECKING:
    from bookie.client.log.values import LogEntry, LogOptions, LogPosition

app = typer.Typer(
    help="Logs: named, endless sequences of entries, stored in a series of ledgers.",
    epilog="Try: `echo one | bkheal log append orders --create`, then `bkheal log tail orders --from start`.",
    no_args_is_help=True,
)

_LAC_INTERVAL_S: Final = 0.2
"""Delay after which readers that follow the log learn of the newest entries, if no later entry announces them."""
NameArgument = Annotated[str, typer.Argument(callback=require_utf8_text, help="Name of the log.")]


@app.command("create")
def create(
    name: NameArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    ensemble_size: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 2,
    ack_quorum: AckQuorumOption = 2,
    digest: DigestOption = "CRC32C",
    ledger_bytes: Annotated[int, typer.Option(min=1, help="Payload bytes after which a new ledger begins.")] = 1 << 30,
    ledger_age: Annotated[float, typer.Option(min=1, help="Seconds after which a new ledger begins.")] = 3600.0,
) -> None:
    """Create an empty log. The options of its ledgers are stored with it, for every later writer."""
    from bookie.client.log.values import LogOptions
    from bookie.client.options import LedgerOptions

    shape = check_quorums(ensemble_size, write_quorum, ack_quorum)
    options = LogOptions(LedgerOptions(*shape, digest_type=digest_type_from_name(digest)), ledger_bytes, ledger_age)
    run(_create(metadata_uri(uri, config), name, options))
    print_line(f"log {printable(name)} created; write to it with `bkheal log append {printable(shlex.quote(name))}`")


@app.command("append")
def append(
    name: NameArgument,
    file: FileArgument = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    entries: EntriesOption = 0,
    entry_bytes: EntryBytesOption = 1024,
    password: PasswordOption = "",
    is_created: Annotated[bool, typer.Option("--create", help="Create the log if it does not exist.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Append one entry per line of a file or standard input (or --entries random ones).

    This takes over the log: any other writer of it is deposed. Example: `dmesg | bkheal log append kernel --create`.
    """
    payloads = payloads_from(file, entries, entry_bytes)
    work = _append(metadata_uri(uri, config), name, payloads, entries or None, os.fsencode(password), is_created)
    try:
        first, last, count = run(work)
    except NoSuchLogError as error:
        raise NoSuchLogError(f"{error}; append with --create, or create it with `bkheal log create`") from error
    if output is OutputFormat.JSON:
        print_json("LogAppend", log=name, entries=count, first=_text(first), last=_text(last))
    elif count:
        print_line(f"{counted(count, 'entry')} appended to log {name}, {first} to {last}")
    else:
        print_line(f"nothing appended to log {name}")


@app.command("read")
def read(
    name: NameArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    first: Annotated[
        str, typer.Option("--from", help="Position LEDGER:ENTRY to begin at; 'start' for the first existing entry.")
    ] = "start",
    limit: Annotated[int, typer.Option(min=0, help="Stop after this many; 0 for all.")] = 0,
    form: FormatOption = EntryFormat.TEXT,
    password: PasswordOption = "",
) -> None:
    """Print a log's entries up to its current end.

    A position is printed with --format json or hex. Example: `bkheal log read orders --from 17:0 --limit 10`.
    """
    begin = _first(first)
    run(_print(metadata_uri(uri, config), name, begin, limit, form, os.fsencode(password) or None, is_tailing=False))


@app.command("tail")
def tail(
    name: NameArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    first: Annotated[
        str, typer.Option("--from", help="Position LEDGER:ENTRY, 'start', or 'end' for what is appended from now on.")
    ] = "end",
    limit: Annotated[int, typer.Option(min=0, help="Stop after this many; 0 for never.")] = 0,
    form: FormatOption = EntryFormat.TEXT,
    password: PasswordOption = "",
) -> None:
    """Print entries as they are appended, across new ledgers and new writers, until Ctrl-C is pressed."""
    begin = _first(first)
    run(_print(metadata_uri(uri, config), name, begin, limit, form, os.fsencode(password) or None, is_tailing=True))


@app.command("list")
def list_logs(
    uri: MetadataUriOption = None, config: ConfigOption = None, output: StreamOutputOption = StreamFormat.TABLE
) -> None:
    """List logs."""
    rows = run(_list(metadata_uri(uri, config)))
    print_page(
        output,
        "LogList",
        {"items": rows},
        ("LOG", "LEDGERS", "ENTRIES", "LENGTH", "STARTS AT", "IS OPEN"),
        lambda row: (
            printable(row["log"]),
            len(row["ledgers"]),
            row["closed_entries"],
            size(row["closed_length"]),
            row["first"] or "-",
            "yes" if row["is_open"] else "no",
        ),
        right=(1, 2, 3),
        nothing="there is no log",
    )


@app.command("show")
def show(
    name: NameArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a log: the options of its ledgers, and each ledger."""
    row = run(_show(metadata_uri(uri, config), name))
    if output is OutputFormat.JSON:
        print_json("Log", **row)
        return
    for line in options_lines(row["options"]):
        print_line(line)
    print_line(f"created: {row['created'] or '-'}")
    print_line(f"starts at: {row['first'] or '-'}")
    print_line(f"waiting for deletion: {', '.join(map(str, row['waiting_for_deletion'])) or '-'}")
    print_line()
    print_table(
        ("LEDGER", "STATE", "ENTRIES", "LENGTH"),
        [
            (
                ledger["ledger_id"],
                ledger["state"],
                "-" if ledger.get("last_entry_id") is None else ledger["last_entry_id"] + 1,
                "-" if ledger.get("length") is None else size(ledger["length"]),
            )
            for ledger in row["ledgers"]
        ],
        right=(0, 2, 3),
    )


@app.command("truncate")
def truncate(
    name: NameArgument,
    before: Annotated[str, typer.Option(help="Position LEDGER:ENTRY; everything before it may be deleted.")],
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    yes: YesOption = False,
) -> None:
    """Free the entries before a position, in whole ledgers. The position's ledger and the log's last one are kept."""
    position = _position(before, "--before")
    dropped = run(_truncate(metadata_uri(uri, config), name, position, is_sure=yes))
    print_line(
        f"log {name}: {counted(len(dropped), 'ledger')} dropped{': ' if dropped else ''}{', '.join(map(str, dropped))}"
    )


@app.command("delete")
def delete(
    name: NameArgument, uri: MetadataUriOption = None, config: ConfigOption = None, yes: YesOption = False
) -> None:
    """Delete a log and all its ledgers permanently. Its writer gets an error."""
    target = metadata_uri(uri, config)
    if not yes:
        row = run(_show(target, name))
        confirm(f"Delete log {name} with its {counted(len(row['ledgers']), 'ledger')} permanently?", is_sure=False)
    run(_delete(target, name))
    print_line(f"log {name} deleted")


async def _create(uri: str, name: str, options: LogOptions) -> None:
    from auditor.operating.client import Actor
    from bookie.client.connect import connect

    async with await connect(uri, security=bookie_security()) as client:
        log = client.log(name)
        if await log.exists():
            raise LogExistsError(f"there is a log {name!r} already")
        await Actor(whoami(), "command").record(client, "log create", f"log {name}")
        await log.create(options)


async def _append(
    uri: str, name: str, payloads: AsyncIterator[bytes], count: int | None, password: bytes, is_created: bool
) -> tuple[LogPosition | None, LogPosition | None, int]:
    from bookie.client.connect import connect
    from bookie.client.options import WriterOptions

    appended, first, last = 0, None, None
    async with (
        await connect(uri, security=bookie_security()) as client,
        await client.log(name).write(
            password=password,
            is_created=is_created,
            writer_options=WriterOptions(explicit_lac_interval_s=_LAC_INTERVAL_S),
        ) as writer,
    ):
        with counting("appending", count) as advance:
            async for payload in payloads:
                last = await writer.submit(payload)
                first = first or last
                appended += 1
                advance(1)
            if first is not None and last is not None:
                return await first, await last, appended  # entries are acknowledged in order
    return None, None, 0


async def _print(
    uri: str,
    name: str,
    begin: LogPosition | Literal["start", "end"],
    limit: int,
    form: EntryFormat,
    password: bytes | None,
    *,
    is_tailing: bool,
) -> None:
    from bookie.client.connect import connect

    async with await connect(uri, security=bookie_security()) as client:
        log = client.log(name)
        first = await log.end() if begin == "end" else None if begin == "start" else begin
        entries = log.tail(first, password=password) if is_tailing else log.read(first, password=password)
        await _write_out(entries, limit, form, is_flushed=is_tailing)


async def _write_out(entries: AsyncIterator[LogEntry], limit: int, form: EntryFormat, *, is_flushed: bool) -> None:
    printed = 0
    async for entry in entries:
        place: dict[str, object] = {"position": str(entry.position)}
        sys.stdout.buffer.write(formatted(place, entry.payload, form))
        if is_flushed:
            sys.stdout.buffer.flush()
        printed += 1
        if printed == limit:
            break
    sys.stdout.buffer.flush()


async def _list(uri: str) -> list[dict[str, Any]]:
    from bookie.client.connect import connect

    async with await connect(uri, security=bookie_security()) as client:
        return [await _row(client, name) for name in await client.logs()]


async def _show(uri: str, name: str) -> dict[str, Any]:
    from bookie.client.connect import connect

    async with await connect(uri, security=bookie_security()) as client:
        return await _row(client, name)


async def _row(client: Any, name: str) -> dict[str, Any]:
    from bookie.metadata.ledgers.ledgers import Unreadable

    info = await client.log(name).info()
    ledgers: list[dict[str, Any]] = [
        {"ledger_id": ledger.ledger_id, "state": "UNREADABLE", "reason": ledger.reason}
        if isinstance(ledger, Unreadable)
        else describe(ledger.ledger_id, ledger.metadata)
        for ledger in info.ledgers
    ]
    closed = [ledger for ledger in ledgers if ledger.get("last_entry_id") is not None]
    return {
        "log": name,
        "created": rfc3339_if_known(info.ctime_ms),
        "ctime_ms": info.ctime_ms,
        "options": info.options.to_json(),
        "first": _text(info.first),
        "is_open": any(ledger["state"] in ("OPEN", "IN_RECOVERY") for ledger in ledgers),
        "closed_entries": sum(ledger["last_entry_id"] + 1 for ledger in closed),
        "closed_length": sum(ledger["length"] for ledger in closed),
        "waiting_for_deletion": list(info.waiting_for_deletion),
        "ledgers": ledgers,
    }


async def _truncate(uri: str, name: str, before: LogPosition, *, is_sure: bool) -> list[int]:
    """Ask about the ledgers, and remove them. A truncation that is refused, or removes nothing, is not recorded."""
    from auditor.operating.client import Actor
    from bookie.client.connect import connect

    async with await connect(uri, security=bookie_security()) as client:
        log = client.log(name)
        if going := await log.removable(before):
            what = f"the {counted(len(going), 'ledger')} of log {name} before ledger {before.ledger_id}"
            confirm(f"Delete {what} permanently?", is_sure=is_sure)
            await Actor(whoami(), "command").record(client, "log truncate", f"log {name} before {before}")
        return list(await log.truncate(before))  # without such ledgers, it completes an earlier truncation


async def _delete(uri: str, name: str) -> None:
    from auditor.operating.client import Actor
    from bookie.client.connect import connect

    async with await connect(uri, security=bookie_security()) as client:
        log, actor = client.log(name), Actor(whoami(), "command")
        is_first = await log.exists()  # a deletion that is refused is not recorded
        if is_first:
            await actor.record(client, "log delete", f"log {name}")
        await log.delete()
        if not is_first:  # the end of an interrupted deletion; without a log it would have been refused
            await actor.record(client, "log delete", f"log {name}")


def _first(text: str) -> LogPosition | Literal["start", "end"]:
    if text == "start":
        return "start"
    return "end" if text == "end" else _position(text, "--from")


def _position(text: str, option: str) -> LogPosition:
    from bookie.client.log.values import InvalidPositionError, LogPosition

    try:
        return LogPosition.parse(text)
    except InvalidPositionError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def options_lines(options: dict[str, Any]) -> list[str]:
    """The options of a log for people. Pure."""
    limits = ("ledger_bytes_max", "ledger_age_s_max")
    shape = [f"{name.replace('_', ' ')}: {value}" for name, value in options.items() if name not in limits]
    bytes_max, age_s_max = (options[name] for name in limits)
    return [*shape, f"a new ledger begins after: {size(bytes_max)} or {duration(age_s_max * 1000)}"]


def _text(position: LogPosition | None) -> str | None:
    return None if position is None else str(position)
