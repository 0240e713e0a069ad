"""The commands below ``bkheal bookie`` that inspect a bookie: a running one, or the directories of a stopped one."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

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
from auditor.cli.services.bookie_lines import scrub_lines, status_lines, stopped_lines
from auditor.cli.services.bookie_place import (
    EXIT_CODES,
    OptionalJournalDirOption,
    OptionalLedgerDirOption,
    StoppedBookieDirs,
    bookie_from_options,
    journal_dirs_of,
    ledger_dirs_of,
    print_document,
    refuse_watch,
    replay_first,
    show_once_or_repeatedly,
)
from auditor.cli.services.processes import bookie_app
from auditor.cli.services.running_bookie import AtOption, RunningBookie, TokenFileOption
from auditor.cli.watching import IntervalOption, WatchOption
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LEDGER_ID_MAX, EntryId, LedgerId
from bookie.runtime.human import agreeing, counted

if TYPE_CHECKING:
    from bookie.model.availability import EntryRuns
    from bookie.server.joining.directories import LocalDirectory
    from bookie.storage.findings import Findings
    from bookie.storage.inspection import LedgerStatus
    from bookie.storage.rebuilding import RebuiltIndex
    from bookie.storage.salvaging import SalvagedJournal
    from bookie.storage.scrubbing import DamagedEntry

__all__ = ["bookie_app"]

_ID_DIGITS_MAX: Final = 19
_DAMAGED_MAX: Final = 1000
"""Largest number of damaged entries in a list; further ones are only counted."""
_RUNS_MAX: Final = 100
"""Largest number of ranges of entries that one call lists."""

JournalDirOption = Annotated[
    list[str],
    typer.Option(
        "--journal-dir",
        help="The bookie's journal directory; if it has several, repeat this in their order, or separate them by "
        "commas.",
        metavar="DIRECTORY",
        show_default=False,
    ),
]
LedgerDirOption = Annotated[
    list[str],
    typer.Option(
        "--ledger-dir",
        help="The bookie's ledger directory; if it has several, repeat this, or separate them by commas.",
        metavar="DIRECTORY",
        show_default=False,
    ),
]
LedgerArgument = Annotated[int, typer.Argument(min=0, max=LEDGER_ID_MAX, metavar="LEDGER", help="A ledger id.")]


@bookie_app.command("status", epilog=EXIT_CODES)
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


@bookie_app.command("ledgers", epilog=EXIT_CODES)
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


@bookie_app.command("entries", epilog=EXIT_CODES)
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


@bookie_app.command("read", epilog=EXIT_CODES)
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


@bookie_app.command("scrub")
def scrub(
    journal_dir: OptionalJournalDirOption = None,
    ledger_dir: OptionalLedgerDirOption = None,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    after: Annotated[
        str | None,
        typer.Option(metavar="LEDGER:ENTRY", help="Stopped: continue after this entry.", show_default=False),
    ] = None,
    bytes_max: Annotated[
        int | None, typer.Option(min=1, help="Stopped: end after this number of bytes.", show_default=False)
    ] = None,
    bytes_per_second: Annotated[
        int | None, typer.Option(min=1, help="Stopped: read no faster.", show_default=False)
    ] = None,
    start: Annotated[bool, typer.Option("--start", help="Running: continue or begin a scrub now.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Running: interrupt the scrub until --start.")] = False,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="With --start: begin a new pass.")] = False,
    is_watched: WatchOption = False,
    interval: IntervalOption = 2.0,
) -> None:
    """Show or control the scrub of a running bookie, or verify every entry of a stopped one against its checksum.

    A damaged entry is never served: readers, recoveries and repairs take other copies. A running bookie fetches it back
    from another bookie if the ledger is closed. Entries that it could not replace are listed here and left out of the
    lists of the bookie, so `bkheal audit run --kind replicas` marks the ledger, and replicators store a good copy in
    their place.

    The scrub of a stopped bookie changes nothing. With --bytes-max, it is done in parts: each prints where the next one
    begins.

    Exit codes: 0 nothing is damaged, or the scrub was started or interrupted as requested, 1 something is damaged, or
    the call is refused, 2 wrong usage, 69 the running bookie did not answer, 70 the storage cannot be opened.

    Example: `bkheal bookie scrub --at bk1:3181 --start --watch`
    """
    place = bookie_from_options(at, token_file, journal_dir, ledger_dir)
    if isinstance(place, RunningBookie):
        if after is not None or bytes_max is not None or bytes_per_second is not None:
            raise typer.BadParameter(
                "--after, --bytes-max and --bytes-per-second are for a stopped bookie", param_hint="--at"
            )
        if (start and stop) or (from_beginning and not start):
            raise typer.BadParameter("give --start, --start --from-beginning, or --stop", param_hint="--start")
        _running_scrub(
            place,
            output,
            interval if is_watched else None,
            start=start,
            stop=stop,
            from_beginning=from_beginning,
        )
        return
    if start or stop or from_beginning:
        raise typer.BadParameter("is for a running bookie: give --at", param_hint="--start / --stop")
    refuse_watch(is_watched=is_watched)
    document = run(_scrub(*place, _position(after), bytes_max, bytes_per_second))
    if output is not StreamFormat.TABLE:
        print_document(output, "Scrub", document)
    else:
        for row in document["damaged"]:
            where = f"{row['path']} offset {row['offset']}"
            print_line(f"damaged: ledger {row['ledger_id']} entry {row['entry_id']}, {where}: {row['what']}")
        verified = f"{counted(document['entries'], 'entry')}, {counted(document['bytes'], 'byte')} verified"
        print_line(f"{verified}; {document['damaged_count']} damaged")
        if document["next_after"] is not None:
            print_line(f"to continue: --after {document['next_after']}")
    if document["damaged_count"]:
        raise typer.Exit(ExitCode.FAILED)


def _running_scrub(
    bookie: RunningBookie,
    output: StreamFormat,
    interval_s: float | None,
    *,
    start: bool,
    stop: bool,
    from_beginning: bool,
) -> None:
    action = "START" if start else "STOP" if stop else "SHOW"
    first = run(bookie.scrub(action, from_beginning=from_beginning))
    show_once_or_repeatedly(
        output, "BookieScrub", scrub_lines, replay_first(first, lambda: run(bookie.scrub())), interval_s
    )
    if first["unrepaired_count"] and action == "SHOW":
        raise typer.Exit(ExitCode.FAILED)


@bookie_app.command("rebuild-index")
def rebuild_index(
    journal_dir: JournalDirOption,
    ledger_dir: LedgerDirOption,
    output: OutputOption = OutputFormat.TABLE,
    may_replace: Annotated[
        bool, typer.Option("--replace", help="Rebuild also an index that could be used.", show_default=False)
    ] = False,
) -> None:
    """Rebuild the lost index of a stopped bookie from its entry logs.

    The index also had the ledgers' keys, fences and the record of collected entries, which are not in the entry logs.
    So the disks become a new incarnation that keeps its entries: at its next start the bookie answers "unknown" for all
    other entries, and every ledger that names it is marked for repair, which copies only missing entries. Entries of
    deleted ledgers reappear until the next garbage collection.

    Damaged parts of the entry logs are listed and skipped. The directories need space for a second index. The old
    index is kept as `index.lost-…`; delete it when the bookie is complete again.

    Exit codes: 0 rebuilt, 1 refused, also while the bookie runs (nothing was changed), 2 wrong usage, 70 a disk failed;
    it is safe to try again.

    Example: `bkheal bookie rebuild-index --journal-dir /journal --ledger-dir /ledgers`
    """
    import random

    from bookie.runtime.clock import SystemClock
    from bookie.server.joining.rebuilt import rebuild_index as rebuilt

    found = run(
        rebuilt(
            journal_dirs_of(journal_dir),
            ledger_dirs_of(ledger_dir),
            SystemClock(),
            random.SystemRandom(),
            may_replace=may_replace,
        )
    )
    if output is OutputFormat.JSON:
        print_json("RebuiltIndex", **_rebuilt_document(found))
        return
    held = f"{counted(found.entries, 'entry')} of {counted(found.ledgers, 'ledger')}"
    print_line(f"the index has {held}, from {counted(found.logs, 'entry log')}")
    _print_findings(found)
    print_line("start the bookie: the ledgers that name it are marked for repair")


@bookie_app.command("salvage-journal")
def salvage_journal(
    journal_dir: JournalDirOption,
    ledger_dir: LedgerDirOption,
    output: OutputOption = OutputFormat.TABLE,
    is_lost: Annotated[
        bool,
        typer.Option("--lost", help="The journal's disk is lost, and this directory is empty.", show_default=False),
    ] = False,
) -> None:
    """Keep the readable part of a stopped bookie's damaged journal, so the bookie can start again.

    The readable entries are moved to the entry logs. The other contents of the journal are unknown: entries, keys and
    fences of any ledger. So the disks become a new incarnation that keeps its entries: at its next start the bookie
    answers "unknown" for all other entries, accepts no more adds from the writers of its ledgers, and every ledger that
    names it is marked for repair, which copies only missing entries.

    If there is a copy of the damaged files, or the right disk can be mounted, use it instead. The old journal is kept
    as `journal.damaged-…`; delete it when the bookie is complete again.

    Exit codes: 0 salvaged, 1 refused, also while the bookie runs (nothing was changed), 2 wrong usage, 70 a disk
    failed; it is safe to try again.

    Example: `bkheal bookie salvage-journal --journal-dir /journal --ledger-dir /ledgers`
    """
    import random

    from bookie.runtime.clock import SystemClock
    from bookie.server.joining.salvaged import salvage_journal as salvaged

    found = run(
        salvaged(
            journal_dirs_of(journal_dir, may_be_new=True),
            ledger_dirs_of(ledger_dir),
            SystemClock(),
            random.SystemRandom(),
            is_lost=is_lost,
        )
    )
    if output is OutputFormat.JSON:
        print_json("SalvagedJournal", **_salvaged_document(found))
        return
    kept = f"{counted(found.records, 'record')} of the journal {agreeing(found.records, 'is', 'are')} in the entry logs"
    limbo = f"{counted(found.ledgers, 'ledger')} {agreeing(found.ledgers, 'is', 'are')} in limbo"
    print_line(f"{kept}; {limbo}")
    _print_findings(found.findings)
    print_line("start the bookie: the ledgers that name it are marked for repair")


def _salvaged_document(found: SalvagedJournal) -> dict[str, Any]:
    return {"records": found.records, "ledgers": found.ledgers, **_findings_document(found.findings)}


def _print_findings(found: Findings) -> None:
    for finding in found.findings:
        print_line(f"damaged: {finding.path} offset {finding.offset}: {finding.what}")
    if found.finding_count > len(found.findings):
        print_line(f"damaged: {found.finding_count - len(found.findings)} more")


def _findings_document(found: Findings) -> dict[str, Any]:
    return {
        "finding_count": found.finding_count,
        "findings": [{"path": each.path, "offset": each.offset, "what": each.what} for each in found.findings],
    }


def _rebuilt_document(found: RebuiltIndex) -> dict[str, Any]:
    return {
        "entries": found.entries,
        "ledgers": found.ledgers,
        "entry_logs": found.logs,
        "superseded": found.superseded,
        **_findings_document(found),
    }


def _position(text: str | None) -> tuple[LedgerId, EntryId] | None:
    if text is None:
        return None
    ledger, _, entry = text.partition(":")
    if not (ledger.isascii() and ledger.isdigit() and entry.isascii() and entry.isdigit()):
        raise typer.BadParameter(f"{text!r} is not a position: write LEDGER:ENTRY", param_hint="--after")
    if max(len(ledger), len(entry)) > _ID_DIGITS_MAX or max(int(ledger), int(entry)) > LEDGER_ID_MAX:
        raise typer.BadParameter(f"{text!r} has an id that is too large", param_hint="--after")
    return LedgerId(int(ledger)), EntryId(int(entry))


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


async def _scrub(
    journal_dirs: Sequence[Path],
    ledger_dirs: Sequence[Path],
    after: tuple[LedgerId, EntryId] | None,
    bytes_max: int | None,
    bytes_per_second: int | None,
) -> dict[str, Any]:
    from contextlib import aclosing

    from bookie.server.joining.stopped import stopped_disks, stopped_storage

    done, size, count, damaged = 0, 0, 0, list[Any]()
    next_after: str | None = None
    begun_s = time.monotonic()
    async with (
        stopped_disks(journal_dirs, ledger_dirs) as disks,
        stopped_storage(disks) as storage,
        aclosing(storage.scrub(after)) as steps,
    ):
        async for step in steps:
            done, size, count = done + step.entries, size + step.bytes, count + len(step.damaged)
            damaged += [_damaged_row(each) for each in step.damaged[: _DAMAGED_MAX - len(damaged)]]
            if bytes_max is not None and size >= bytes_max:
                next_after = f"{step.last[0]}:{step.last[1]}"
                break
            if bytes_per_second is not None:
                await asyncio.sleep(max(begun_s + size / bytes_per_second - time.monotonic(), 0))
    return {"entries": done, "bytes": size, "damaged_count": count, "damaged": damaged, "next_after": next_after}


def _damaged_row(found: DamagedEntry) -> dict[str, Any]:
    return {
        "ledger_id": found.ledger_id,
        "entry_id": found.entry_id,
        "path": found.path,
        "offset": found.offset,
        "what": found.what,
    }
