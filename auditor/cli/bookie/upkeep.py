"""``bkheal bookie gc``, ``readonly`` and ``force``: operators' requests; and the group of all commands."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from auditor.cli.bookie.lines import collection_lines, read_only_lines
from auditor.cli.bookie.place import (
    OptionalJournalDirOption,
    OptionalLedgerDirOption,
    bookie_from_options,
    print_document,
)
from auditor.cli.bookie.running import AtOption, RunningBookie, TokenFileOption
from auditor.cli.changing import whoami
from auditor.cli.output import OutputFormat, StreamFormat, print_error, print_json, print_line, print_note
from auditor.cli.running import OutputOption, StreamOutputOption, run
from auditor.cli.watching import IntervalOption, check_timeout
from bookie.model.exit_codes import ExitCode

COLLECTED_WITHIN_S: Final = 3600.0
"""Longest wait for a collection. In this time, compaction reads up to 180 GB of entry logs."""


def collect(
    at: AtOption = None,
    token_file: TokenFileOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    is_minor: Annotated[
        bool,
        typer.Option("--minor", help="Start: deleted and moved ledgers, then logs of which less than half is live."),
    ] = False,
    is_major: Annotated[
        bool, typer.Option("--major", help="Start: the same, and logs of which less than four fifths are live.")
    ] = False,
    is_waiting: Annotated[bool, typer.Option("--wait", help="Wait for the end of the collection.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0,
            metavar="SECONDS",
            help=f"With --wait: wait no longer than this. Default: {COLLECTED_WITHIN_S:g}.",
            show_default=False,
        ),
    ] = None,
    interval: IntervalOption = 2.0,
) -> None:
    """Start a garbage collection of a running bookie, or show the last one.

    A collection deletes the entries of ledgers that were deleted or moved to other bookies, after the same checks as in
    the hourly one, and then compacts entry logs. A major one frees more space, and copies up to four bytes for each
    byte that it frees. A stopped bookie cannot collect, because a collection needs ZooKeeper.

    Exit codes: 0 shown, started, or completed; 1 refused (one runs already, or a token is missing), or with --wait: it
    ended early, for the reason in the output, or because the bookie's process ended; 2 wrong usage; 69 the bookie did
    not answer; 75 with --wait: the collection did not end in time, and continues.

    Example: `bkheal bookie gc --at bk1:3181 --major --wait`
    """
    if at is None:
        raise typer.BadParameter("is needed: a collection needs ZooKeeper and a running bookie", param_hint="--at")
    if is_minor and is_major:
        raise typer.BadParameter("give one of --minor and --major", param_hint="--minor / --major")
    check_timeout(timeout, is_waiting=is_waiting)
    timeout_s = COLLECTED_WITHIN_S if timeout is None else timeout
    bookie = RunningBookie.at(at, token_file)
    document = run(bookie.collect("MAJOR" if is_major else "MINOR" if is_minor else "SHOW"))
    first = document
    if is_waiting:
        document = collected(first, lambda: run(bookie.collect()), interval, timeout_s)
    if output is not StreamFormat.TABLE:
        print_document(output, "BookieCollection", document)
    else:
        for line in collection_lines(document):
            print_line(line)
    is_lost = document["finished_at"] is None and not document["running"]  # an older bookie does not report its start
    if first["running"] and (is_lost or document["process_begun_at"] != first["process_begun_at"]):
        print_error("the bookie was started again, and the collection ended with its former process")
        raise typer.Exit(ExitCode.FAILED)
    if is_waiting and document["running"]:
        print_error(f"the collection did not end within {timeout_s:g} s; it continues")
        raise typer.Exit(ExitCode.BUSY)
    if is_waiting and document["stopped"]:
        raise typer.Exit(ExitCode.FAILED)


def collected(
    document: dict[str, Any],
    query: Callable[[], dict[str, Any]],
    interval_s: float,
    timeout_s: float,
    *,
    monotonic_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Query the bookie until no collection runs, or until the deadline, and return the last document.

    A restart of the bookie ends the wait as well, because the new process does not continue the collection.

    Args:
        document: the first answer.
        query: queries the bookie, with a deadline of its own.
        interval_s: the pause between two queries.
        timeout_s: how long to wait; after that the bookie is queried once more.
        monotonic_s: the clock.
        sleep: waits.

    Raises:
        BkhealError: a query failed; the collection is not affected.
    """
    end_s, process = monotonic_s() + timeout_s, document["process_begun_at"]
    while document["running"] and document["process_begun_at"] == process and (left_s := end_s - monotonic_s()) > 0:
        print_note(collection_lines(document)[0])
        sleep(min(interval_s, left_s))
        document = query()
    return document


class ReadOnlyAction(enum.StrEnum):
    """What to do with the read-only mode."""

    SHOW = "show"
    SET = "set"
    CLEAR = "clear"


def readonly(
    action: Annotated[ReadOnlyAction, typer.Argument(help="Show, set or end it.")] = ReadOnlyAction.SHOW,
    journal_dir: OptionalJournalDirOption = None,
    ledger_dir: OptionalLedgerDirOption = None,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make a bookie read-only, so that it refuses new data, end this mode, or show the mode and its reason.

    A read-only bookie still serves reads, and accepts the copies of recoveries and repairs. The request is recorded in
    the ledger directory, so it remains after a restart; for a stopped bookie it counts from the next start. `clear`
    ends only the request of an operator: a full disk or a drain keeps the bookie read-only.

    Example: `bkheal bookie readonly set --at bk1:3181`
    """
    place = bookie_from_options(at, token_file, journal_dir, ledger_dir)
    if isinstance(place, RunningBookie):
        document = run(place.read_only(action.name))
    else:
        document = run(_stopped_read_only(*place, action))
    if output is OutputFormat.JSON:
        print_json("BookieReadOnly", **document)
        return
    for line in read_only_lines(document):
        print_line(line)


def force(at: AtOption = None, token_file: TokenFileOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Let a running bookie move everything from its journal to its entry logs and its index, and sync both.

    Even without this command, every acknowledged entry is on the journal's disk. After it, all entries that were
    acknowledged before the call are in the ledger directory: use it before you copy this directory or replace the
    journal's disk.

    Exit codes: 0 done, 1 refused, 2 wrong usage, 69 the bookie did not answer, or not in time.
    """
    if at is None:
        raise typer.BadParameter("is needed: a stopped bookie has done this already", param_hint="--at")
    document = run(RunningBookie.at(at, token_file).force())
    if output is OutputFormat.JSON:
        print_json("BookieForced", **document)
    else:
        print_line(f"everything is in the entry logs, after {document['took_ms']} ms")


async def _stopped_read_only(
    journal_dirs: Sequence[Path], ledger_dirs: Sequence[Path], action: ReadOnlyAction
) -> dict[str, Any]:
    from bookie.model.times import rfc3339_if_known
    from bookie.server.joining.stopped import stopped_disks
    from bookie.server.upkeep.operator_read_only import ReadOnlyRequest, read_recorded_request, write_recorded_request

    async with stopped_disks(journal_dirs, ledger_dirs) as disks:
        if action is not ReadOnlyAction.SHOW:
            wish = ReadOnlyRequest(whoami(), time.time_ns() // 1_000_000) if action is ReadOnlyAction.SET else None
            await write_recorded_request(disks.ledgers, wish)
        found = await read_recorded_request(disks.ledgers)
    return {
        "read_only": found is not None,
        "read_only_reasons": [] if found is None else ["operator"],
        "read_only_asked_by": (found.asked_by if found else "") or None,
        "read_only_asked_at": rfc3339_if_known(found.asked_ms, "seconds") if found else None,
    }
