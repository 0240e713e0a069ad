"""Make the summary of a run from its outcome. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.bookies.registration import Bookies, state_of
from bookie.model.ids import BookieId
from bookie.model.run import RunKind
from bookie.model.severity import Severity
from spark_jobs.report.counts import (
    AcceptedCounts,
    BookieCount,
    CheckPart,
    DriverMarksCounts,
    FindingSums,
    ImageCounts,
    InventoryCounts,
    LedgerCounts,
    LintCounts,
    PlacementCounts,
    PublishOutcome,
    PublishResult,
    ReferenceCounts,
    ReplicaCounts,
    SeverityCount,
    SnapshotCounts,
    WaitingBookie,
    WorstLedger,
)
from spark_jobs.report.summary import ClusterName, RunSummary
from spark_jobs.runs.reading.completeness import NO_TOTALS, ScanTotals

_HELD = PublishResult(PublishOutcome.HELD)
_NOT_SCANNED = "no ledger was read, because the brake holds"


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of reading the metadata."""

    totals: ScanTotals
    bookies: Bookies
    """The bookies, listed after the last metadata was read."""
    problems: tuple[str, ...]
    snapshot: SnapshotCounts | None = None
    """The counts of a snapshot, if one was the source."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings of a check, and the result of publishing them."""

    bookies: Bookies
    """The bookies according to the latest listing."""
    sums: FindingSums = field(default_factory=FindingSums)
    worst: tuple[WorstLedger, ...] = ()
    published: PublishResult = _HELD
    waiting: tuple[WaitingBookie, ...] = ()
    placement: PlacementCounts | None = None
    replicas: ReplicaCounts | None = None
    references: ReferenceCounts | None = None
    accepted: AcceptedCounts = field(default_factory=AcceptedCounts)
    parts: tuple[CheckPart, ...] = ()
    lint: LintCounts | None = None
    inventory: InventoryCounts | None = None


@dataclass(frozen=True, slots=True)
class RunName:
    """Identifies a run and its cluster, with the times of the run in epoch milliseconds."""

    run_id: str
    cluster: ClusterName
    started_ms: int
    finished_ms: int
    kind: RunKind = RunKind.BOOKIES
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a run."""

    scanned: ScanResult | None
    """None: the brake held before the metadata was read."""
    checked: CheckResult
    held_because: str | None = None
    """Why the brake holds."""
    image: ImageCounts = field(default_factory=ImageCounts)
    driver_marks: DriverMarksCounts = field(default_factory=DriverMarksCounts)


def is_for_report(kind: RunKind, *, is_dry_run: bool) -> bool:
    """Return whether the report is the purpose of a run."""
    return is_dry_run or kind in (RunKind.PLACEMENT, RunKind.REFERENCES)


def assemble(run: RunName, cookies: AbstractSet[BookieId], outcome: Outcome) -> RunSummary:
    """Return the summary of a run."""
    scanned, checked = outcome.scanned, outcome.checked
    return RunSummary(
        run_id=run.run_id,
        cluster=run.cluster,
        started_ms=run.started_ms,
        finished_ms=run.finished_ms,
        counts=_counts(scanned),
        severities=checked.sums.severities,
        bookies=_bookies(cookies, scanned, checked),
        worst_ledgers=checked.worst,
        published=checked.published,
        problems=(_NOT_SCANNED,) if scanned is None else scanned.problems,
        held_because=outcome.held_because,
        kind=run.kind,
        is_dry_run=run.is_dry_run,
        waiting=checked.waiting,
        placement=checked.placement,
        replicas=checked.replicas,
        references=checked.references,
        accepted=checked.accepted,
        snapshot=None if scanned is None else scanned.snapshot,
        image=outcome.image,
        driver_marks=outcome.driver_marks,
        parts=checked.parts,
        lint=checked.lint,
        inventory=checked.inventory,
    )


def _counts(scanned: ScanResult | None) -> LedgerCounts:
    if scanned is None:
        return LedgerCounts(0, 0, 0, 0, 0, 0, 0)
    totals = scanned.totals
    return LedgerCounts(
        ledgers=totals.ledgers + totals.unreadable,
        fragments=totals.fragments,
        unreadable=totals.unreadable,
        vanished=totals.vanished,
        open=totals.open,
        in_recovery=totals.in_recovery,
        closed=totals.closed,
    )


def _bookies(
    cookies: AbstractSet[BookieId], scanned: ScanResult | None, checked: CheckResult
) -> tuple[BookieCount, ...]:
    ledgers = {} if scanned is None else scanned.totals.ledgers_by_bookie
    fragments = {} if scanned is None else scanned.totals.fragments_by_bookie
    known = cookies | checked.bookies.registered | {BookieId(bookie) for bookie in ledgers}
    return tuple(
        BookieCount(
            bookie,
            state_of(bookie, checked.bookies),
            bookie in cookies,
            ledgers.get(bookie, 0),
            fragments.get(bookie, 0),
            *checked.sums.by_bookie.get(bookie, (0, 0)),
        )
        for bookie in sorted(known)
    )


_OUTCOMES_BY_PRECEDENCE: Final = (
    PublishOutcome.INTERRUPTED,
    PublishOutcome.DISABLED,
    PublishOutcome.DRY_RUN,
    PublishOutcome.PUBLISHED,
    PublishOutcome.NOTHING_TO_PUBLISH,
)
"""The outcome of a run is the first of these that occurred in any chunk."""


@dataclass(slots=True)
class FindingTotals:
    """The sums of the findings of a run, to which chunks are added."""

    worst_max: int
    totals: ScanTotals = NO_TOTALS
    sums: FindingSums = field(default_factory=FindingSums)
    worst: tuple[WorstLedger, ...] = ()
    published: PublishResult = field(default_factory=lambda: PublishResult(PublishOutcome.NOTHING_TO_PUBLISH))

    def add(
        self, totals: ScanTotals, sums: FindingSums, worst: Iterable[WorstLedger], published: PublishResult
    ) -> None:
        """Add a chunk. Each ledger must be in only one chunk."""
        self.totals = self.totals.plus(totals)
        self.sums = add_sums(self.sums, sums)
        self.worst = worst_of((*self.worst, *worst), self.worst_max)
        self.published = combine_published(self.published, published)


def worst_of(ledgers: Iterable[WorstLedger], count_max: int) -> tuple[WorstLedger, ...]:
    """Return the worst of some ledgers, at most ``count_max``."""
    return tuple(sorted(ledgers, key=lambda each: (each.severity, -each.bytes_estimate, each.ledger_id))[:count_max])


def add_sums(one: FindingSums, other: FindingSums) -> FindingSums:
    """Add two sums. A ledger in both of them counts twice."""
    counts: dict[Severity, SeverityCount] = {}
    for count in (*one.severities, *other.severities):
        known = counts.get(count.severity, SeverityCount(count.severity, 0, 0, 0))
        counts[count.severity] = SeverityCount(
            count.severity,
            known.ledgers + count.ledgers,
            known.fragments + count.fragments,
            known.bytes_estimate + count.bytes_estimate,
        )
    by_bookie = dict(one.by_bookie)
    for bookie, (ledgers, fragments) in other.by_bookie.items():
        known_ledgers, known_fragments = by_bookie.get(bookie, (0, 0))
        by_bookie[bookie] = (known_ledgers + ledgers, known_fragments + fragments)
    return FindingSums(tuple(counts[severity] for severity in sorted(counts)), by_bookie)


def combine_published(one: PublishResult, other: PublishResult) -> PublishResult:
    """Combine two results of publishing."""
    outcome = next(each for each in _OUTCOMES_BY_PRECEDENCE if each in (one.outcome, other.outcome))
    held_back = dict(Counter(one.held_back) + Counter(other.held_back))
    withdrawn = dict(Counter(one.withdrawn) + Counter(other.withdrawn))
    ledgers, tasks_changed = one.ledgers + other.ledgers, one.tasks_changed + other.tasks_changed
    damage_marked = one.damage_marked + other.damage_marked
    repaired_early = one.repaired_early + other.repaired_early
    return PublishResult(outcome, ledgers, tasks_changed, held_back, withdrawn, damage_marked, repaired_early)
