"""``bkheal bookie status``, ``ledgers``, ``entries`` and ``read``: what a bookie contains."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from auditor.cli.bookie.lines import status_lines, stopped_lines
from auditor.cli.bookie.place import (
    OptionalJournalDirOption,
    OptionalLedgerDirOption,
    StoppedBookieDirs,
    bookie_from_options,
    print_document,
    refuse_watch,
    show_once_or_repeatedly,
)
from auditor.cli.bookie.running import AtOption, RunningBookie, TokenFileOption
from auditor.cli.output import (
    OutputFormat,
    StreamFormat,
    print_error,
    print_json,
    print_json_line,
    print_line,
    print_table,
)
from auditor.cli.running import OutputOption, StreamOutputOption, run
from auditor.cli.watching import IntervalOption, WatchOption
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LEDGER_ID_MAX, EntryId, LedgerId
from bookie.runtime.human import counted

if TYPE_CHECKING:
    from bookie.model.availability import EntryRuns
    from bookie.server.joining.directories import LocalDirectory
    from bookie.storage.inspection import LedgerStatus

_RUNS_MAX: Final = 100
"""Largest number of ranges of entries that one call lists."""

LedgerArgument = Annotated[int, typer.Argument(min=0, max=LEDGER_ID_MAX, metavar="LEDGER", help="A ledger id.")]


def status(
    journal_dir: OptionalJournalDirOption = None,
    ledger_dir: OptionalLedgerDirOption = None,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    is_watched: WatchOption = False,
    interval: IntervalOption = 2.0,
) -> None:
    """Show the state and the data of a bookie, or of the directories of a stopped one.

    For a running bookie, this includes queues, disks, why it is read-only, its scrub and its garbage collection.

    Example: `bkheal bookie status --at bk1:3181 --watch`
    """
    place = bookie_from_options(at, token_file, journal_dir, ledger_dir)
    if isinstance(place, RunningBookie):
        show_once_or_repeatedly(
            output, "RunningBookie", status_lines, lambda: run(place.status()), interval if is_watched else None
        )
        return
    refuse_watch(is_watched=is_watched)
    document = run(_status(*place))
    if output is not StreamFormat.TABLE:
        print_document(output, "StoppedBookie", document)
        return
    for line in stopped_lines(document):
        print_line(line)


def ledgers(
    journal_dir: OptionalJournalDirOption = None,
    ledger_dir: OptionalLedgerDirOption = None,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    after: Annotated[int, typer.Option(min=-1, max=LEDGER_ID_MAX, help="Only ledgers with a greater id.")] = -1,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most ledgers to list.")] = 1000,
    only_limbo: Annotated[bool, typer.Option("--limbo", help="Only ledgers in limbo.")] = False,
) -> None:
    """List the ledgers with entries on a bookie, or in limbo there.

    Example: `bkheal bookie ledgers --at bk1:3181 --output jsonl --limit 100000`
    """
    place = bookie_from_options(at, token_file, journal_dir, ledger_dir)
    rows = run(_all_ledgers(place, after, limit, only_limbo=only_limbo))
    next_after = rows[-1]["ledger_id"] if len(rows) == limit else None
    if output is StreamFormat.JSONL:
        for row in rows:
            print_json_line("BookieLedger", **row)
        return
    if output is StreamFormat.JSON:
        kind = "RunningBookieLedgers" if isinstance(place, RunningBookie) else "StoppedBookieLedgers"
        print_json(kind, items=rows, next_after=next_after)
        return
    print_table(
        ("LEDGER", "ENTRIES", "LAST", "FENCED", "LIMBO"),
        [
            (
                row["ledger_id"],
                row["entries"],
                "-" if row["last_entry_id"] is None else row["last_entry_id"],
                "yes" if row["fenced"] else "no",
                "yes" if row["limbo"] else "no",
            )
            for row in rows
        ],
        right=(0, 1, 2),
    )
    if next_after is not None:
        print_line(f"more may follow: --after {next_after}")


def entries(
    ledger: LedgerArgument,
    journal_dir: OptionalJournalDirOption = None,
    ledger_dir: OptionalLedgerDirOption = None,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    output: OutputOption = OutputFormat.TABLE,
    after: Annotated[int, typer.Option(min=-1, max=LEDGER_ID_MAX, help="Only entries with a greater id.")] = -1,
) -> None:
    """List the entries of a ledger on a bookie, as ranges: at most 100 in one call.

    Exit code 1: the bookie has nothing of this ledger.
    """
    place = bookie_from_options(at, token_file, journal_dir, ledger_dir)
    kind = "RunningBookieEntries" if isinstance(place, RunningBookie) else "StoppedBookieEntries"
    row, held = run(_one_ledger(place, LedgerId(ledger)))
    runs: list[tuple[int, int]] = []
    for first, last in held.within(after + 1, LEDGER_ID_MAX):
        if len(runs) == _RUNS_MAX:
            break
        runs.append((first, last))
    is_cut = bool(runs) and runs[-1][1] < held.groups[-1].last
    if output is OutputFormat.JSON:
        ranges = [{"first": first, "last": last} for first, last in runs]
        print_json(kind, **row, ranges=ranges, next_after=runs[-1][1] if is_cut else None)
    else:
        _print_entries(row, held, runs, is_cut=is_cut)
    if not any(row[name] for name in ("entries", "fenced", "limbo", "collected")):
        print_error(f"this bookie has nothing of ledger {ledger}; `bkheal bookie ledgers` lists what it has")
        raise typer.Exit(ExitCode.FAILED)


def _print_entries(row: dict[str, Any], held: EntryRuns, runs: Sequence[tuple[int, int]], *, is_cut: bool) -> None:
    state = [word for word, is_so in (("fenced", row["fenced"]), ("in limbo", row["limbo"])) if is_so]
    print_line(f"ledger {row['ledger_id']}: {counted(len(held), 'entry')}{''.join(f', {word}' for word in state)}")
    for first, last in runs:
        print_line(str(first) if first == last else f"{first}-{last}")
    if is_cut:
        print_line(f"more follow: --after {runs[-1][1]}")


def read(
    ledger: LedgerArgument,
    entry: Annotated[int, typer.Argument(min=0, max=LEDGER_ID_MAX, metavar="ENTRY", help="An entry id.")],
    journal_dir: OptionalJournalDirOption = None,
    ledger_dir: OptionalLedgerDirOption = None,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_raw: Annotated[bool, typer.Option("--raw", help="Write the stored bytes to standard output.")] = False,
) -> None:
    """Show an entry as a bookie stores it: its header, its size, and whether its checksum is correct.

    The stored bytes are a header of 32 bytes, the digest of the ledger, and the payload. Exit code 1: the entry cannot
    be served; the status is the reason.
    """
    place = bookie_from_options(at, token_file, journal_dir, ledger_dir)
    result = run(_read(place, LedgerId(ledger), EntryId(entry)))
    if is_raw and result["status"] == "ok":
        sys.stdout.buffer.write(result["packet"])
        sys.stdout.flush()
        return
    document = {name: value for name, value in result.items() if name != "packet"}
    if output is OutputFormat.JSON:
        print_json("StoredEntry", **document)
    else:
        for name, value in document.items():
            print_line(f"{name.replace('_', ' ')}: {'-' if value is None else value}")
    if result["status"] != "ok":
        raise typer.Exit(ExitCode.FAILED)


async def _all_ledgers(
    place: RunningBookie | StoppedBookieDirs, after: int, limit: int, *, only_limbo: bool
) -> list[dict[str, Any]]:
    if isinstance(place, RunningBookie):
        return [row async for row in place.ledgers(after, limit, only_limbo=only_limbo)]
    return await _ledgers(*place, after, limit, only_limbo=only_limbo)


async def _one_ledger(
    place: RunningBookie | StoppedBookieDirs, ledger_id: LedgerId
) -> tuple[dict[str, Any], EntryRuns]:
    if isinstance(place, RunningBookie):
        return await place.ledger(ledger_id)
    found = await _ledger(*place, ledger_id)
    return _row(found), found.entries


def _row(found: LedgerStatus) -> dict[str, Any]:
    return {
        "ledger_id": found.ledger_id,
        "entries": len(found.entries),
        "last_entry_id": found.entries.groups[-1].last if found.entries else None,
        "fenced": found.is_fenced,
        "limbo": found.is_limbo,
        "collected": found.is_collected,
    }


def _identity(directories: list[LocalDirectory]) -> dict[str, Any]:
    from bookie.metadata.bookies.cookies import InvalidCookieError, decode_cookie

    ids = set()
    for version in (directory.version for directory in directories if directory.version is not None):
        try:
            ids.add(str(decode_cookie(version).bookie_id))
        except InvalidCookieError:
            ids.add("unreadable")
    incarnations = {str(directory.incarnation) for directory in directories if directory.incarnation is not None}
    return {
        "bookie_id": ", ".join(sorted(ids)) or "none",
        "incarnation": ", ".join(sorted(incarnations)) or "none",
        "limbo_pending": any(directory.pending is not None for directory in directories),
    }


async def _status(journal_dirs: Sequence[Path], ledger_dirs: Sequence[Path]) -> dict[str, Any]:
    from bookie.server.joining.stopped import stopped_disks, stopped_storage

    async with stopped_disks(journal_dirs, ledger_dirs) as disks, stopped_storage(disks) as storage:
        found = await storage.status()
        total, free = await disks.ledgers.space()
        return {
            **_identity(list(disks.directories)),
            "journal_sequence": found.journal_sequence,
            "journal_records": found.journal_records,
            "ledgers": found.ledgers,
            "entry_logs": found.entry_logs,
            "entry_log_bytes": found.entry_log_bytes,
            "dead_bytes": found.dead_bytes,
            "ledger_disk_bytes": total,
            "ledger_disk_free_bytes": free,
        }


async def _ledgers(
    journal_dirs: Sequence[Path], ledger_dirs: Sequence[Path], after: int, limit: int, *, only_limbo: bool
) -> list[dict[str, Any]]:
    from bookie.server.joining.stopped import stopped_disks, stopped_storage

    async with stopped_disks(journal_dirs, ledger_dirs) as disks, stopped_storage(disks) as storage:
        ids = await storage.ledger_ids(after, limit, only_limbo=only_limbo)
        return [_row(await storage.ledger(ledger_id)) for ledger_id in ids]


async def _ledger(journal_dirs: Sequence[Path], ledger_dirs: Sequence[Path], ledger_id: LedgerId) -> LedgerStatus:
    from bookie.server.joining.stopped import stopped_disks, stopped_storage

    async with stopped_disks(journal_dirs, ledger_dirs) as disks, stopped_storage(disks) as storage:
        return await storage.ledger(ledger_id)


async def _read(place: RunningBookie | StoppedBookieDirs, ledger_id: LedgerId, entry_id: EntryId) -> dict[str, Any]:
    from bookie.model.packet import HEADER_SIZE, header_of

    if isinstance(place, RunningBookie):
        status, packet = await place.read(ledger_id, entry_id)
    else:
        status, packet = await _read_stopped(*place, ledger_id, entry_id)
    header = header_of(packet) if len(packet) >= HEADER_SIZE else None
    return {
        "ledger_id": ledger_id,
        "entry_id": entry_id,
        "status": status,
        "bytes": len(packet),
        "last_add_confirmed": None if header is None else header[0],
        "ledger_length": None if header is None else header[1],
        "packet": packet,
    }


async def _read_stopped(
    journal_dirs: Sequence[Path], ledger_dirs: Sequence[Path], ledger_id: LedgerId, entry_id: EntryId
) -> tuple[str, bytes]:
    from bookie.server.joining.stopped import stopped_disks, stopped_storage

    async with stopped_disks(journal_dirs, ledger_dirs) as disks, stopped_storage(disks) as storage:
        [result] = await storage.read(ledger_id, [entry_id])
    return result.status.name.lower(), result.packet
