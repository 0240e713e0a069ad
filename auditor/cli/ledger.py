"""``bkheal ledger``: look at ledgers, and write and read them by hand."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer

from auditor.cli.output import OutputFormat, print_json, print_line, print_table, size
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.ids import EntryId, ledger_id
from bookie.model.metadata import DigestType, LedgerMetadata

app = typer.Typer(help="Ledgers: list, show, read, write, delete.", no_args_is_help=True)

LedgerArgument = Annotated[int, typer.Argument(min=0, help="Ledger id.")]
PasswordOption = Annotated[
    str, typer.Option(envvar="BKHEAL_PASSWORD", help="Ledger password; better in the environment.", show_envvar=True)
]


@app.command("list")
def list_ledgers(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    limit: Annotated[int, typer.Option(min=0, help="Stop after this many; 0 for all.")] = 0,
) -> None:
    """List ledgers with their shape, state and size."""
    rows = run(_list(metadata_uri(uri, config), limit))
    if output is OutputFormat.JSON:
        print_json("LedgerList", items=rows)
        return
    print_table(
        ("LEDGER", "STATE", "E/Qw/Qa", "DIGEST", "FRAGMENTS", "LAST ENTRY", "LENGTH"),
        [
            (
                row["ledger_id"],
                row["state"],
                "{ensemble_size}/{write_quorum}/{ack_quorum}".format(**row) if "ensemble_size" in row else "-",
                row.get("digest_type", "-"),
                len(row["fragments"]) if "fragments" in row else "-",
                _or_dash(row.get("last_entry_id")),
                "-" if row.get("length") is None else size(row["length"]),
            )
            for row in rows
        ],
        right=(0, 4, 5, 6),
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
            for fragment in value:
                print_line(f"  from entry {fragment['first_entry_id']}: {', '.join(fragment['members'])}")
        else:
            print_line(f"{name.replace('_', ' ')}: {_or_dash(value)}")
            continue
    print_line()


@app.command("read")
def read(
    ledger: LedgerArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    first: Annotated[int, typer.Option(min=0, help="First entry.")] = 0,
    last: Annotated[int | None, typer.Option(min=0, help="Last entry, inclusive; default: the end.")] = None,
    to: Annotated[Path | None, typer.Option(help="Write payloads to this file instead of the terminal.")] = None,
) -> None:
    """Print entry payloads, one line each; or write them, unseparated, to a file."""
    count = run(_read(metadata_uri(uri, config), ledger, first, last, to))
    if to is not None:
        print_line(f"{count} entries of ledger {ledger} written to {to}")


@app.command("write")
def write(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    ensemble_size: Annotated[int, typer.Option("--ensemble-size", "-e", min=1, help="Bookies per fragment.")] = 3,
    write_quorum: Annotated[int, typer.Option("--write-quorum", "-w", min=1, help="Copies of each entry.")] = 2,
    ack_quorum: Annotated[int, typer.Option("--ack-quorum", "-a", min=1, help="Copies before the ack.")] = 2,
    digest: Annotated[str, typer.Option(help="CRC32C, CRC32, HMAC or DUMMY.")] = "CRC32C",
    password: PasswordOption = "",
    entries: Annotated[int, typer.Option("--entries", "-n", min=0, help="Write this many random entries.")] = 0,
    entry_bytes: Annotated[int, typer.Option(min=0, max=1 << 20, help="Size of a random entry.")] = 1024,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a ledger, write one entry per line of standard input (or --entries random ones), and close it."""
    if digest.upper() not in DigestType.__members__:
        raise typer.BadParameter(f"{digest!r} is no digest type; use one of {', '.join(DigestType.__members__)}")
    if not ensemble_size >= write_quorum >= ack_quorum:
        raise typer.BadParameter("need ensemble size >= write quorum >= ack quorum")
    if not entries and sys.stdin.isatty():
        print_line("Type entries, one a line; end with Ctrl-D.")
    shape = (ensemble_size, write_quorum, ack_quorum)
    payloads = _random_payloads(entries, entry_bytes) if entries else _lines()
    row = run(_write(metadata_uri(uri, config), shape, DigestType[digest.upper()], password.encode(), payloads))
    if output is OutputFormat.JSON:
        print_json("Ledger", **row)
    else:
        print_line(f"ledger {row['ledger_id']}: {row['last_entry_id'] + 1} entries, {size(row['length'])}, closed")


@app.command("delete")
def delete(
    ledger: LedgerArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a ledger's metadata. Its entries stay on the bookies' disks until garbage collection exists."""
    target = metadata_uri(uri, config)
    run(_show(target, ledger))
    if not yes:
        typer.confirm(f"Delete ledger {ledger} for good?", abort=True)
    run(_delete(target, ledger))
    print_line(f"ledger {ledger} deleted")


def describe(ledger: int, metadata: LedgerMetadata) -> dict[str, Any]:
    """Metadata as JSON-ready fields, without the password."""
    return {
        "ledger_id": ledger,
        "state": metadata.state.name,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest_type": metadata.digest_type.name if metadata.digest_type else None,
        "last_entry_id": metadata.last_entry_id,
        "length": metadata.length,
        "ctime_ms": metadata.ctime_ms,
        "format_version": metadata.format_version,
        "custom_metadata": {key: value.decode(errors="backslashreplace") for key, value in metadata.custom},
        "fragments": [
            {"first_entry_id": fragment.first_entry_id, "members": list(fragment.members)}
            for fragment in metadata.fragments
        ],
    }


async def _list(uri: str, limit: int) -> list[dict[str, Any]]:
    from bookie.client.connect import connect
    from bookie.metadata.ledgers import Unreadable

    rows: list[dict[str, Any]] = []
    async with await connect(uri) as client:
        ids = []
        async for found in client.ledgers():
            ids.append(found)
            if limit and len(ids) >= limit:
                break
        for item in await client.ports.ledgers.read_many(ids):
            if isinstance(item, Unreadable):
                rows.append({"ledger_id": item.ledger_id, "state": "UNREADABLE", "reason": item.reason})
            elif item is not None:
                rows.append(describe(item.ledger_id, item.metadata))
    return rows


async def _show(uri: str, ledger: int) -> dict[str, Any]:
    from bookie.client.connect import connect

    async with await connect(uri) as client:
        found = await client.ports.ledgers.read(ledger_id(ledger))
        return describe(ledger, found.metadata)


async def _read(uri: str, ledger: int, first: int, last: int | None, to: Path | None) -> int:
    from bookie.client.connect import connect

    count = 0
    async with await connect(uri) as client:
        reader = await client.open_ledger(ledger_id(ledger))
        end = await reader.last_entry_id() if last is None else EntryId(last)
        if end < first and last is None:
            return 0
        with to.open("wb") if to else contextlib.nullcontext(sys.stdout.buffer) as target:
            async for entry in reader.read_range(EntryId(first), end):
                target.write(entry.payload if to else entry.payload + b"\n")
                count += 1
            target.flush()
    return count


async def _write(
    uri: str, shape: tuple[int, int, int], digest: DigestType, password: bytes, payloads: AsyncIterator[bytes]
) -> dict[str, Any]:
    from bookie.client.bookkeeper import LedgerOptions
    from bookie.client.connect import connect

    async with await connect(uri) as client:
        options = LedgerOptions(*shape, digest_type=digest)
        async with await client.create_ledger(options, password=password) as writer:
            async for payload in payloads:
                await writer.submit(payload)
            metadata = await writer.close()
        return describe(writer.ledger_id, metadata)


async def _delete(uri: str, ledger: int) -> None:
    from bookie.client.connect import connect

    async with await connect(uri) as client:
        await client.delete_ledger(ledger_id(ledger))


async def _lines() -> AsyncIterator[bytes]:
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        yield line.rstrip(b"\n")


async def _random_payloads(count: int, entry_bytes: int) -> AsyncIterator[bytes]:
    import random

    rng = random.Random()
    for _ in range(count):
        yield rng.randbytes(entry_bytes)


def _or_dash(value: object) -> object:
    return "-" if value is None else value
