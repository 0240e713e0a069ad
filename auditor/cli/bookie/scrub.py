"""``bkheal bookie scrub``: the scrub of a running bookie, or a scrub of the directories of a stopped one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from auditor.cli.bookie.lines import scrub_lines
from auditor.cli.bookie.place import (
    OptionalJournalDirOption,
    OptionalLedgerDirOption,
    bookie_from_options,
    print_document,
    refuse_watch,
    replay_first,
    show_once_or_repeatedly,
)
from auditor.cli.bookie.running import AtOption, RunningBookie, TokenFileOption
from auditor.cli.output import StreamFormat, print_line
from auditor.cli.running import StreamOutputOption, run
from auditor.cli.watching import IntervalOption, WatchOption
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LEDGER_ID_MAX, EntryId, LedgerId
from bookie.runtime.human import counted

if TYPE_CHECKING:
    from bookie.storage.scrubbing import DamagedCopy

_ID_DIGITS_MAX: Final = 19
_DAMAGED_MAX: Final = 1000
"""Largest number of damaged entries in a list; further ones are only counted."""


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


def _position(text: str | None) -> tuple[LedgerId, EntryId] | None:
    if text is None:
        return None
    ledger, _, entry = text.partition(":")
    if not (ledger.isascii() and ledger.isdigit() and entry.isascii() and entry.isdigit()):
        raise typer.BadParameter(f"{text!r} is not a position: write LEDGER:ENTRY", param_hint="--after")
    if max(len(ledger), len(entry)) > _ID_DIGITS_MAX or max(int(ledger), int(entry)) > LEDGER_ID_MAX:
        raise typer.BadParameter(f"{text!r} has an id that is too large", param_hint="--after")
    return LedgerId(int(ledger)), EntryId(int(entry))


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


def _damaged_row(found: DamagedCopy) -> dict[str, Any]:
    return {
        "ledger_id": found.ledger_id,
        "entry_id": found.entry_id,
        "path": found.path,
        "offset": found.offset,
        "what": found.what,
    }
