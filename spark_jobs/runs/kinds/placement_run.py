"""The run of the placement check: find ensembles that violate the policy, or leave the bookie groups of their ledger.

It judges only by the topology and marks nothing, as Apache's check does (docs/formats.md#auditor-checks): a misplaced
ledger has every copy that it needs, and moving copies is expensive. With ``mark_misplaced`` it marks each closed ledger
if a replacement would bring an ensemble nearer to the policy; such a mark has an empty list of replicas. bkheal's
workers move these ledgers if they have a topology, and Apache's if they are configured for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final

from bookie.model.ids import BookieId
from spark_jobs.checks.metadata_check import unreadable_metadata
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.runs.chunks import chunks
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.kinds.placement_part import (
    PlacementPart,
    PlacementTally,
    not_judged,
    placement_part,
)
from spark_jobs.runs.marking.brake import held_because
from spark_jobs.runs.marking.limits import MarkLimiter
from spark_jobs.runs.outcome import CheckResult, FindingTotals, Outcome, ScanResult
from spark_jobs.runs.port import Phase, ProgressEvent
from spark_jobs.runs.reading.completeness import problems
from spark_jobs.runs.reading.ledger_scan import scan_ledgers
from spark_jobs.runs.reading.one_reading import retry_until_one_reading

CHUNK_LEDGERS: Final = 250_000
"""Number of ledgers kept at a time: about 50 MB, and seconds of work between two gates."""


class PlacementRun:
    """One run of the placement check."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._settings = context.settings
        self._cluster = context.cluster
        self._limiter = MarkLimiter(self._settings.run_limits, self._cluster)

    def execute(self, cookies: AbstractSet[BookieId]) -> Outcome:
        """Do the whole run except the summary.

        Raises:
            NoTopologyError: there is no topology.
        """
        self._context.begin(Phase.PLAN)
        bookies = self._cluster.bookies()
        known = cookies | bookies.registered
        part = placement_part(self._context, known, bookies)
        if self._settings.mark_misplaced:
            held = held_because(known, bookies.registered, 0, None, self._settings.missing_share_max)
            if held is not None:
                return Outcome(None, CheckResult(bookies), held)
        plan = self._cluster.leaf_parents()
        found, tally = self._chunks(plan, part)
        recount = self._cluster.count_planned(plan, found.totals)
        counts = part.counts(tally, found.sums, found.totals)
        scanned = ScanResult(found.totals, bookies, problems(plan, found.totals, recount) + not_judged(counts))
        return Outcome(scanned, CheckResult(bookies, found.sums, found.worst, found.published, placement=counts))

    def _chunks(self, plan: Sequence[LeafParent], part: PlacementPart) -> tuple[FindingTotals, PlacementTally]:
        """Judge all ledgers, chunk by chunk."""
        gathering, tally = FindingTotals(self._settings.worst_ledgers_max), PlacementTally()
        total, done = sum(parent.planned for parent in plan), 0
        for parents in chunks(plan, CHUNK_LEDGERS):
            self._context.progress(ProgressEvent(Phase.CHECK, done, total))
            retry_until_one_reading(partial(self._judge, parents, part, gathering, tally))
            done += sum(parent.planned for parent in parents)
        return gathering, tally

    def _judge(
        self, parents: Sequence[LeafParent], part: PlacementPart, gathering: FindingTotals, tally: PlacementTally
    ) -> None:
        """Judge one chunk."""
        with self._context.tasks(Phase.SCAN, is_reported=False):
            scan = scan_ledgers(self._context.spark, self._settings, parents, None, budget=self._context.budget)
        try:
            counted = PlacementTally()
            with part.judged(scan.suspects, counted, is_reported=False) as judged:
                gathering.add(scan.totals, judged.sums, judged.worst, part.publish(judged, self._limiter))
                tally.plus(counted)  # counts once, even if the chunk is read again
                others = judged.unknown.unionByName(unreadable_metadata(scan.suspects))
                with self._context.report.tolerated(), self._context.tasks(Phase.REPORT, is_reported=False):
                    self._context.report.write_findings(judged.ledgers, others)
        finally:
            scan.release()
