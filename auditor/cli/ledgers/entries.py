"""``bkheal ledger write``, ``read`` and ``tail``: write, print and follow the entries of a ledger."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from auditor.cli.configuration.security_options import bookie_security
from auditor.cli.ledgers.entry_format import EntryFormat, custom_pairs, formatted, payloads_from
from auditor.cli.ledgers.new_ledger import check_quorums, digest_type_from_name
from auditor.cli.ledgers.options import (
    AckQuorumOption,
    DigestOption,
    EnsembleOption,
    EntriesOption,
    EntryBytesOption,
    FileArgument,
    LedgerArgument,
    PasswordOption,
    WriteQuorumOption,
)
from auditor.cli.output import OutputFormat, counting, print_json, print_line, print_note
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.client.errors import NoSuchEntryError
from bookie.model.ids import EntryId, ledger_id
from bookie.model.metadata import DigestType, LedgerMetadata
from bookie.model.times import rfc3339_if_known
from bookie.runtime.human import counted, size

_LAC_INTERVAL_S: Final = 0.2
"""Delay after which readers that follow the ledger learn of the newest entries, if no later entry announces them."""
_ENTRY_ID_MAX: Final = (1 << 63) - 2
"""The last entry id whose successor still has 63 bits."""
FormatOption = Annotated[
    EntryFormat,
    typer.Option("--format", "-f", help="text: a line each; hex: a dump; json: an object a line; raw."),
]


def write(
    file: FileArgument = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    ensemble_size: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 2,
    ack_quorum: AckQuorumOption = 2,
    digest: DigestOption = "CRC32C",
    password: PasswordOption = "",
    custom: Annotated[list[str] | None, typer.Option(help="Custom metadata KEY=VALUE; repeatable.")] = None,
    entries: EntriesOption = 0,
    entry_bytes: EntryBytesOption = 1024,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a ledger, write one entry per line of a file or standard input (or --entries random ones), and close it.

    Examples: `bkheal ledger write lines.txt --custom app=shop`; `dmesg | bkheal ledger write -e 5 -w 3 -a 2`;
    `bkheal ledger write -n 10000 --size 1024`.
    """
    shape, kind = check_quorums(ensemble_size, write_quorum, ack_quorum), digest_type_from_name(digest)
    payloads, pairs = payloads_from(file, entries, entry_bytes), custom_pairs(custom or [])
    row = run(_write(metadata_uri(uri, config), shape, kind, os.fsencode(password), pairs, payloads, entries or None))
    if output is OutputFormat.JSON:
        print_json("Ledger", **row)
    else:
        entries_text = counted(row["last_entry_id"] + 1, "entry")
        print_line(f"ledger {row['ledger_id']}: {entries_text}, {size(row['length'])}, closed")


def read(
    ledger: LedgerArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    first: Annotated[int, typer.Option(min=0, max=_ENTRY_ID_MAX, help="First entry.")] = 0,
    last: Annotated[
        int | None, typer.Option(min=0, max=_ENTRY_ID_MAX, help="Last entry, inclusive; default: the end.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Write to this file, without separators unless --format is given.")
    ] = None,
    form: Annotated[
        EntryFormat | None,
        typer.Option(
            "--format",
            "-f",
            help="text: a line each; hex: a dump; json: an object a line; raw: nothing between them.",
            show_default="text; raw with --to",
        ),
    ] = None,
    password: PasswordOption = "",
) -> None:
    """Print a ledger's entries, or write them to a file.

    An open ledger is read up to its last confirmed entry; `bkheal ledger recover` finds the end if the writer is dead.
    Examples: `bkheal ledger read 17`; `bkheal ledger read 17 --first 10 --last 19 --format hex`.
    """
    if last is not None and last < first:
        raise typer.BadParameter(f"--first {first} is after --last {last}")
    chosen = form or (EntryFormat.RAW if to else EntryFormat.TEXT)
    work = _read(metadata_uri(uri, config), ledger, (first, last), to, chosen, os.fsencode(password) or None)
    count = run(work)
    if to is not None:
        print_line(f"{counted(count, 'entry')} of ledger {ledger} written to {to}")


def tail(
    ledger: LedgerArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    first: Annotated[
        int | None,
        typer.Option(
            min=0, max=_ENTRY_ID_MAX, help="First entry; default: what is written from now on.", show_default=False
        ),
    ] = None,
    form: FormatOption = EntryFormat.TEXT,
    password: PasswordOption = "",
) -> None:
    """Print entries as they are written, until the ledger is closed or Ctrl-C is pressed.

    Example: `bkheal ledger tail 17 --first 0 --format json`.
    """
    run(_tail(metadata_uri(uri, config), ledger, first, form, os.fsencode(password) or None))


def describe(ledger: int, metadata: LedgerMetadata) -> dict[str, Any]:
    """Return metadata as fields for JSON, without the password."""
    return {
        "ledger_id": ledger,
        "state": metadata.state.name,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest_type": metadata.digest_type.name if metadata.digest_type else None,
        "last_entry_id": metadata.last_entry_id,
        "length": metadata.length,
        "created": rfc3339_if_known(metadata.ctime_ms or 0),
        "ctime_ms": metadata.ctime_ms,
        "format_version": metadata.format_version,
        "custom_metadata": {key: value.decode(errors="backslashreplace") for key, value in metadata.custom},
        "fragments": [
            {"first_entry_id": fragment.first_entry_id, "members": list(fragment.members)}
            for fragment in metadata.fragments
        ],
    }


async def _write(
    uri: str,
    shape: tuple[int, int, int],
    digest: DigestType,
    password: bytes,
    custom: Mapping[str, bytes],
    payloads: AsyncIterator[bytes],
    count: int | None,
) -> dict[str, Any]:
    from bookie.client.connect import connect
    from bookie.client.options import LedgerOptions, WriterOptions

    async with await connect(uri, security=bookie_security()) as client:
        options = LedgerOptions(*shape, digest_type=digest)
        lac = WriterOptions(explicit_lac_interval_s=_LAC_INTERVAL_S)
        async with client.create_ledger(options, password=password, custom=custom, writer_options=lac) as writer:
            added = None
            with counting("writing", count) as advance:
                try:
                    async for payload in payloads:
                        added = await writer.submit(payload)
                        advance(1)
                    if added is not None:
                        await added  # entries are acknowledged in order, so after the last one all are
                except BaseException:
                    print_note(f"ledger {writer.ledger_id} was begun; `bkheal ledger show {writer.ledger_id}` shows it")
                    raise
            metadata = await writer.close()
        return describe(writer.ledger_id, metadata)


async def _read(
    uri: str,
    ledger: int,
    entries: tuple[int, int | None],
    to: Path | None,
    form: EntryFormat,
    password: bytes | None,
) -> int:
    from bookie.client.connect import connect

    (first, last), count = entries, 0
    async with await connect(uri, security=bookie_security()) as client:
        reader = await client.open_ledger(ledger_id(ledger), password=password)
        readable = await reader.last_entry_id()
        end = readable if last is None else EntryId(last)
        if end > readable or first > readable + 1:
            known = "holds no entry" if readable < 0 else f"ends with entry {readable}"
            until = "" if reader.metadata.is_closed else " so far (it is not closed)"
            raise NoSuchEntryError(f"ledger {ledger} {known}{until}; asked for entry {max(first, end)}")
        if not reader.metadata.is_closed:
            known = "none of its entries is confirmed yet" if readable < 0 else f"confirmed up to entry {readable}"
            print_note(f"ledger {ledger} is not closed, {known}; more may be on their way")
        if end < first:
            if to:
                to.touch()
            return 0
        with (
            to.open("wb") if to else contextlib.nullcontext(sys.stdout.buffer) as target,
            counting("reading", end - first + 1) if to else contextlib.nullcontext(lambda _: None) as advance,
        ):
            async for entry in reader.read_range(EntryId(first), end):
                target.write(formatted({"ledger_id": ledger, "entry_id": entry.entry_id}, entry.payload, form))
                count += 1
                advance(1)
            target.flush()
    return count


async def _tail(uri: str, ledger: int, first: int | None, form: EntryFormat, password: bytes | None) -> None:
    from bookie.client.connect import connect

    async with await connect(uri, security=bookie_security()) as client:
        reader = await client.open_ledger(ledger_id(ledger), password=password)
        end = await reader.last_entry_id()
        start = end + 1 if first is None else first
        if reader.metadata.is_closed and start > end:
            print_note(f"ledger {ledger} is closed with {counted(end + 1, 'entry')}; nothing follows")
            return
        async for entry in reader.tail(EntryId(start)):
            place: dict[str, object] = {"ledger_id": ledger, "entry_id": entry.entry_id}
            sys.stdout.buffer.write(formatted(place, entry.payload, form))
            sys.stdout.buffer.flush()
