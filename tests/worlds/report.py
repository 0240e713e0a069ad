"""Runs for reports: a healthy cluster, several unhealthy ones, and a hostile one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from bookie.metadata.bookies.registration import BookieState
from bookie.model.ids import BookieId
from bookie.model.run import RunKind
from bookie.model.severity import Severity
from bookie.model.topology import Topology, location
from spark_jobs.report import writing as report
from spark_jobs.report.counts import (
    BookieCount,
    CheckPart,
    InventoryBookie,
    InventoryCounts,
    LedgerCounts,
    LintCounts,
    NamespaceCount,
    PlacementCounts,
    PublishOutcome,
    PublishResult,
    RackNumber,
    RackPair,
    ReferenceCounts,
    ReplicaCounts,
    SampledBookie,
    SeverityCount,
    SnapshotCounts,
    UndecodableNode,
    UnknownAnswers,
    WaitingBookie,
    WorstLedger,
)
from spark_jobs.report.summary import ClusterName, RunSummary

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
START_MS = 1_767_323_045_000

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e\x1b[2J\n&amp;{{7*7}}"
"""Markup, quotes, a reversal of the line, a terminal's escape, a line feed, an entity and a template."""


def bookie_name(number: int) -> str:
    return f"bookie-{number:02}.storage.example:3181"


def bookies(count: int, lost: int = 0, read_only: int = 0, ledgers: int = 400) -> tuple[BookieCount, ...]:
    """Return bookies: the first ones are lost, the next ones read-only."""
    rng = random.Random(count)
    made = []
    for number in range(count):
        is_lost = number < lost
        state = BookieState.READ_ONLY if number < lost + read_only else BookieState.WRITABLE
        held = ledgers + rng.randrange(ledgers // 4)
        found = held - rng.randrange(ledgers // 10) if is_lost else 0
        made.append(
            BookieCount(
                bookie_name(number),
                BookieState.UNREGISTERED if is_lost else state,
                True,
                held,
                held + 40,
                found,
                found + 20 if found else 0,
            )
        )
    return tuple(made)


def topology(count: int, racks: int, zones: int = 1) -> Topology:
    """Return a topology with bookies spread over racks. The place of the last bookie is unknown."""
    return Topology(
        {
            BookieId(bookie_name(number)): location(
                f"/rack-{number % racks:02}" if zones == 1 else f"/zone-{number % zones}/rack-{number % racks:02}"
            )
            for number in range(count - 1)
        }
    )


CLEAN = RunSummary(
    run_id="20260102T030405Z-00000a",
    cluster=ClusterName("zk+hierarchical://zk1:2181;zk2:2181;zk3:2181/ledgers", "8f6d2c1e-instance"),
    started_ms=START_MS,
    finished_ms=START_MS + 42_700,
    counts=LedgerCounts(1284, 1406, 0, 2, 37, 1, 1246),
    severities=(),
    bookies=bookies(9),
    worst_ledgers=(),
    published=PublishResult(PublishOutcome.NOTHING_TO_PUBLISH),
)

UNDER_REPLICATED = replace(
    CLEAN,
    severities=(
        SeverityCount(Severity.CRITICAL, 12, 14, 96 << 20),
        SeverityCount(Severity.BELOW_ACK_QUORUM, 0, 3, 5 << 20),
        SeverityCount(Severity.BELOW_WRITE_QUORUM, 431, 466, 187 << 30),
        SeverityCount(Severity.METADATA_ONLY, 9, 9, 0),
    ),
    bookies=bookies(9, lost=1, read_only=1),
    worst_ledgers=tuple(
        WorstLedger(
            7_302 + 11 * number,
            Severity.CRITICAL if number < 12 else Severity.BELOW_WRITE_QUORUM,
            1 + number % 3,
            (40 - number) << 20,
            (bookie_name(0),),
        )
        for number in range(20)
    ),
    published=PublishResult(PublishOutcome.PUBLISHED, 452, 448),
)

NO_LIVE_COPY = replace(
    UNDER_REPLICATED,
    severities=(SeverityCount(Severity.NO_LIVE_COPY, 3, 4, 3 << 20), *UNDER_REPLICATED.severities),
    bookies=bookies(9, lost=3),
    worst_ledgers=(
        WorstLedger(42, Severity.NO_LIVE_COPY, 2, 2 << 20, (bookie_name(0), bookie_name(1), bookie_name(2))),
        WorstLedger(99, Severity.NO_LIVE_COPY, 1, 1 << 20, (bookie_name(0), bookie_name(2))),
        *UNDER_REPLICATED.worst_ledgers,
    ),
)

HELD = replace(
    CLEAN,
    counts=LedgerCounts(0, 0, 0, 0, 0, 0, 0),
    bookies=tuple(replace(bookie, ledgers=0, fragments=0, ledgers_found=0) for bookie in bookies(9, lost=7)),
    published=PublishResult(PublishOutcome.HELD),
    problems=("no ledger was read, because the brake holds",),
    held_because="7 of 9 known bookies are not registered, more than the limit of 50%; bring them back, or raise the "
    "limit if they are gone for good",
)

INCOMPLETE = replace(
    UNDER_REPLICATED,
    problems=("318 ledgers exist and were not listed, under /ledgers/00/0000, /ledgers/00/0001 and 2 more",),
    published=PublishResult(PublishOutcome.INTERRUPTED, 100, 100),
)

WAITING = replace(
    UNDER_REPLICATED,
    published=PublishResult(PublishOutcome.NOTHING_TO_PUBLISH, 0, 0, {"delay": 452}),
    waiting=(
        WaitingBookie(bookie_name(0), START_MS - 4 * MINUTE_MS, START_MS + 6 * MINUTE_MS, 452, START_MS + MINUTE_MS),
    ),
)

PLACEMENT = replace(
    CLEAN,
    kind=RunKind.PLACEMENT,
    severities=(SeverityCount(Severity.MISPLACED, 81, 90, 0),),
    worst_ledgers=(WorstLedger(8, Severity.MISPLACED, 1, 0, ()),),
    placement=PlacementCounts(2, 1, 1, False, "/ledgers/../bookies", 1300, 84, 81, 90, 4, 7, (bookie_name(8),)),
)

EVERYTHING = replace(
    CLEAN,
    kind=RunKind.EVERYTHING,
    severities=(
        SeverityCount(Severity.BELOW_WRITE_QUORUM, 5, 6, 9 << 20),
        SeverityCount(Severity.MISPLACED, 81, 90, 0),
    ),
    worst_ledgers=(WorstLedger(11, Severity.BELOW_WRITE_QUORUM, 1, 1 << 20, (bookie_name(1),)),),
    placement=PlacementCounts(
        2,
        1,
        1,
        False,
        "/ledgers/../bookies",
        1300,
        84,
        81,
        90,
        4,
        7,
        (bookie_name(8),),
        (RackNumber(1, 81, 90, 1 << 30), RackNumber(2, 1119, 1210, 5 << 30)),
        tuple(RackPair(f"/r{one}", f"/r{two}", 30, 31, 1 << 28) for one in range(10) for two in range(one, 10)),
        racks_cut=True,
    ),
    parts=(
        CheckPart("bookies"),
        CheckPart("metadata"),
        CheckPart("inventory"),
        CheckPart("placement", "7 fragments were not judged: their bookies have no location"),
    ),
    lint=LintCounts({"DUPLICATE_MEMBER": 3, "LENGTH_MISMATCH": 2}, 3600.0, (bookie_name(9),)),
    inventory=InventoryCounts(
        7200.0,
        (
            InventoryBookie(
                bookie_name(1), "listed", "", 900, 4, 2, 3, "waiting", "2026-11-19T00:00:00Z", "2026-11-20T09:00:00Z"
            ),
            InventoryBookie(bookie_name(2), "not offered", "it speaks only the protocol of Apache's bookies"),
            InventoryBookie(bookie_name(3), "listed", "", 800),
        ),
        4,
        2,
        1,
        {"the ledger is not closed, so its writer may still count on the copy": 5},
    ),
)

ASKED = ReplicaCounts(
    1200,
    5400,
    88_000,
    17,
    (UnknownAnswers(bookie_name(3), "UNREACHABLE", 40, "it asks for a login"),),
    1.0,
    7,
    0,
    (1 << 63) - 1,
    42.0,
    (SampledBookie(bookie_name(2), 310),),
)
REPLICAS = replace(
    CLEAN,
    kind=RunKind.REPLICAS,
    is_dry_run=True,
    severities=(SeverityCount(Severity.LOST, 1, 1, 1 << 20), SeverityCount(Severity.BELOW_WRITE_QUORUM, 5, 6, 9 << 20)),
    worst_ledgers=(WorstLedger(11, Severity.LOST, 1, 1 << 20, (bookie_name(1),)),),
    published=PublishResult(PublishOutcome.DRY_RUN),
    replicas=ASKED,
)

REFERENCES = replace(
    CLEAN,
    kind=RunKind.REFERENCES,
    references=ReferenceCounts(
        roots=("/",),
        grace_s=259_200.0,
        referenced=900,
        offloaded_and_here=12,
        offloaded=7,
        unreferenced=80,
        unreferenced_stored_bytes=5 << 30,
        namespaces=(NamespaceCount("public/default", 70, 4 << 30), NamespaceCount("t/n", 10, 1 << 30)),
        not_judged={"not closed": 9, "a node of its topic cannot be decoded": 2},
        undecodable=1,
        undecodable_nodes=(UndecodableNode("/managed-ledgers/t/n/persistent/a", "3 bytes are not a node"),),
    ),
)

MANY = replace(UNDER_REPLICATED, bookies=bookies(200, lost=4, read_only=3))

ATTACK = replace(
    NO_LIVE_COPY,
    cluster=ClusterName(f"zk://{HOSTILE}/ledgers", HOSTILE),
    snapshot=SnapshotCounts(HOSTILE, 1, 2, 3, 4),
    bookies=(
        BookieCount(HOSTILE, BookieState.UNREGISTERED, False, 5, 5, 5, 5),
        BookieCount("long-" * 60 + "x:3181", BookieState.WRITABLE, True, 9, 9, 0, 0),
        BookieCount("javascript:alert(3)", BookieState.READ_ONLY, True, 9, 9, 0, 0),
    ),
    worst_ledgers=(WorstLedger((1 << 63) - 1, Severity.NO_LIVE_COPY, 1, 1 << 50, (HOSTILE, "long-" * 60)),),
    replicas=replace(ASKED, unknown=(UnknownAnswers(HOSTILE, "UNREACHABLE", 40, HOSTILE),)),
    problems=(HOSTILE, "y" * 5_000),
    waiting=(WaitingBookie(HOSTILE, START_MS, START_MS + DAY_MS, 1),),
    placement=PlacementCounts(2, 1, 1, False, HOSTILE, unknown_bookies=(HOSTILE,)),
    references=ReferenceCounts(
        roots=(HOSTILE,),
        grace_s=0.0,
        namespaces=(NamespaceCount(HOSTILE, 1, 1),),
        undecodable=1,
        undecodable_nodes=(UndecodableNode("/long" * 60, HOSTILE),),
    ),
)


def at(summary: RunSummary, day: int) -> RunSummary:
    """Return the run, some days later."""
    return replace(
        summary,
        run_id=f"20260{1 + day // 28}{1 + day % 28:02}T030405Z-00000a",
        started_ms=summary.started_ms + day * DAY_MS,
        finished_ms=summary.finished_ms + day * DAY_MS,
    )


def write(
    report_dir: Path, *summaries: RunSummary, places: Topology | None = None, kept_max: int | None = None
) -> Path:
    """Write the reports of runs, and return the directory of the last one."""
    directory = report_dir
    for summary in summaries:
        directory = report.prepare(report_dir, summary.run_id)
        report.finish(report_dir, summary, topology=places, kept=report.Kept(reports_max=kept_max))
    return directory
