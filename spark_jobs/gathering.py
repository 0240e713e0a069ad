"""Sums over the chunks of a long run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from bookie.model.severity import Severity
from spark_jobs.report.summary import FindingSums, SeverityCount, WorstLedger
from spark_jobs.runs.completeness import ScanTotals
from spark_jobs.runs.publish import Published, PublishOutcome

_OUTCOMES: Final = (
    PublishOutcome.INTERRUPTED,
    PublishOutcome.DISABLED,
    PublishOutcome.DRY_RUN,
    PublishOutcome.PUBLISHED,
    PublishOutcome.NOTHING_TO_PUBLISH,
)
"""What the whole says is what the first of these says that some chunk says."""


@dataclass(slots=True)
class Gathering:
    """What the chunks of a run found, summed up as they end."""

    worst_max: int
    totals: ScanTotals = field(default_factory=lambda: ScanTotals(0, 0, 0, 0, 0, 0, 0, 0, 0, {}, {}, {}))
    sums: FindingSums = field(default_factory=FindingSums)
    worst: tuple[WorstLedger, ...] = ()
    published: Published = field(default_factory=lambda: Published(PublishOutcome.NOTHING_TO_PUBLISH))

    def add(self, totals: ScanTotals, sums: FindingSums, worst: Iterable[WorstLedger], published: Published) -> None:
        """Add a chunk. A ledger is in one chunk only."""
        self.totals = _totals(self.totals, totals)
        self.sums = _sums(self.sums, sums)
        order = sorted((*self.worst, *worst), key=lambda each: (each.severity, -each.bytes_estimate, each.ledger_id))
        self.worst = tuple(order[: self.worst_max])
        self.published = _published(self.published, published)


def _totals(one: ScanTotals, other: ScanTotals) -> ScanTotals:
    listed = dict(one.listed)
    for path, counts in other.listed.items():
        listed[path] = (*listed.get(path, ()), *counts)
    return ScanTotals(
        one.ledgers + other.ledgers,
        one.fragments + other.fragments,
        one.unreadable + other.unreadable,
        one.vanished + other.vanished,
        one.skipped + other.skipped,
        one.returned + other.returned,
        one.open + other.open,
        one.in_recovery + other.in_recovery,
        one.closed + other.closed,
        listed,
        Counter(one.ledgers_by_bookie) + Counter(other.ledgers_by_bookie),
        Counter(one.fragments_by_bookie) + Counter(other.fragments_by_bookie),
    )


def _sums(one: FindingSums, other: FindingSums) -> FindingSums:
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


def _published(one: Published, other: Published) -> Published:
    outcome = next(each for each in _OUTCOMES if each in (one.outcome, other.outcome))
    return Published(outcome, one.ledgers + other.ledgers, one.tasks_changed + other.tasks_changed)
