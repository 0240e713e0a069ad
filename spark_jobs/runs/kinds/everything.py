"""The other checks of a run of everything, besides the bookie check: metadata lint, inventory, and placement.

All of them use one reading of the metadata (R2, record 76). Each may be incomplete by itself: without a topology no
placement can be judged, but the losses of bookies are still handled. The summary names the reason for each incomplete
check, and a time of success is recorded for complete checks only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from bookie.metadata.bookies.topology import InvalidTopologyError
from bookie.metadata.port import AccessDeniedError
from bookie.model.ids import BookieId, LedgerId, is_bookie_id
from bookie.model.metadata import LedgerState
from bookie.model.metadata_faults import MetadataFault, is_stuck
from bookie.model.run import RunKind
from bookie.runtime.human import agreeing, counted
from spark_jobs.checks.metadata_check import dangling_cookie_findings, metadata_faults, stuck_recoveries
from spark_jobs.report.counts import CheckPart, LintCounts
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.kinds.confirmed_rows import confirmed_rows
from spark_jobs.runs.kinds.further_checks import FurtherChecks, FurtherFindings
from spark_jobs.runs.kinds.inventory_part import INVENTORY, inventory_part
from spark_jobs.runs.kinds.placement_part import (
    PlacementPart,
    PlacementTally,
    not_judged,
    placement_part,
)
from spark_jobs.runs.marking.limits import MarkLimiter
from spark_jobs.runs.outcome import ScanResult
from spark_jobs.runs.port import Phase
from spark_jobs.runs.prerequisites import NoTopologyError
from spark_jobs.runs.reading.ledger_scan import LedgerScan
from spark_jobs.runs.releasing import unpersist

METADATA: Final = "metadata"
"""Name of the lint in the list of checks of a run."""
RECOVERIES_MAX: Final = 10_000
"""Largest number of ledgers in recovery whose age is looked up; the age of all others is unknown."""
COOKIES_MAX: Final = 1_000
"""Largest number of dangling cookies named in the summary and the findings of a run."""


class AllFurtherChecks(FurtherChecks):
    """All further checks of one run."""

    needs_all = True

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._settings = context.settings
        self._cluster = context.cluster

    @contextmanager
    def judged(
        self, scan: LedgerScan, scanned: ScanResult, cookies: AbstractSet[BookieId], limiter: MarkLimiter
    ) -> Iterator[FurtherFindings]:
        """Judge placement and metadata, and compare the metadata with the inventory of the bookies."""
        with ExitStack() as stack:
            known = cookies | scanned.bookies.registered
            ledgers = scan.suspects
            if scan.settled is not None:
                ledgers = ledgers.unionByName(
                    confirmed_rows(self._context, stack, scan.settled, known, scanned.bookies)
                )
            faults, lint, lint_problem = self._lint(stack, ledgers, scanned, cookies)
            parts = (CheckPart(RunKind.BOOKIES.value), CheckPart(METADATA, lint_problem))
            found = FurtherFindings(faults, lint=lint, parts=parts)
            if self._settings.with_inventory:
                found = self._with_inventory(found, stack, ledgers, scanned)
            try:
                part = placement_part(self._context, known, scanned.bookies)
            except (NoTopologyError, InvalidTopologyError, AccessDeniedError) as error:
                yield replace(found, parts=(*found.parts, CheckPart(RunKind.PLACEMENT.value, str(error))))
                return
            yield self._placed(part, stack, ledgers, scanned, limiter, found)

    def _with_inventory(
        self, found: FurtherFindings, stack: ExitStack, ledgers: DataFrame, scanned: ScanResult
    ) -> FurtherFindings:
        inventory = inventory_part(self._context, stack, ledgers, sorted(scanned.bookies.registered))
        return replace(
            found,
            findings=(*found.findings, *inventory.findings),
            inventory=inventory.counts,
            parts=(*found.parts, CheckPart(INVENTORY, inventory.problem)),
        )

    def _placed(
        self,
        part: PlacementPart,
        stack: ExitStack,
        ledgers: DataFrame,
        scanned: ScanResult,
        limiter: MarkLimiter,
        found: FurtherFindings,
    ) -> FurtherFindings:
        """Return ``found`` with the results of the placement check."""
        tally = PlacementTally()
        judged = stack.enter_context(part.judged(ledgers, tally, is_reported=True))
        counts = part.counts(tally, judged.sums, scanned.totals)
        problem = "; ".join(not_judged(counts))
        return replace(
            found,
            findings=(judged.ledgers.selectExpr("inline(found)"), judged.unknown, *found.findings),
            sums=judged.sums,
            worst=judged.worst,
            published=part.publish(judged, limiter),
            placement=counts,
            parts=(*found.parts, CheckPart(RunKind.PLACEMENT.value, problem)),
        )

    def _lint(
        self, stack: ExitStack, ledgers: DataFrame, scanned: ScanResult, cookies: AbstractSet[BookieId]
    ) -> tuple[tuple[DataFrame, ...], LintCounts, str]:
        """Return the findings, their counts, and the reason why the lint is not complete."""
        stuck, problem = self._find_stuck_recoveries(ledgers, scanned)
        found = metadata_faults(ledgers)
        if stuck:
            found = found.unionByName(stuck_recoveries(ledgers, stuck))
        found = found.persist(StorageLevel.MEMORY_AND_DISK)  # few rows, which cost a pass over all ledgers
        stack.callback(unpersist, found)
        with self._context.tasks(Phase.CHECK):
            rows = found.select("kind", "ledger_id").distinct().groupBy("kind").count().collect()
            numbers = {row["kind"]: row["count"] for row in rows}
        faults = {fault.label: numbers[fault.label] for fault in MetadataFault if fault.label in numbers}
        dangling, why_not = dangling_cookies(cookies, scanned)
        counts = LintCounts(faults, self._settings.recovery_age_max_s, tuple(dangling[:COOKIES_MAX]), why_not)
        findings = [found] if faults else []
        if named := [bookie for bookie in dangling[:COOKIES_MAX] if is_bookie_id(bookie)]:
            findings.append(dangling_cookie_findings(self._context.spark, named))
        return tuple(findings), counts, problem

    def _find_stuck_recoveries(self, ledgers: DataFrame, scanned: ScanResult) -> tuple[dict[int, int], str]:
        """Return ledgers in recovery for too long with the time of their last change, and why some are unknown."""
        if not scanned.totals.in_recovery:
            return {}, ""
        with self._context.tasks(Phase.CHECK):
            is_recovering = f"state = '{LedgerState.IN_RECOVERY.name}'"
            rows = ledgers.where(is_recovering).select("ledger_id").orderBy("ledger_id").limit(RECOVERIES_MAX)
            ids = [LedgerId(row["ledger_id"]) for row in rows.collect()]
        times, now_ms = self._cluster.changed_ms(ids), self._context.clock.epoch_ms()
        limit_s = self._settings.recovery_age_max_s
        problem = ""
        if (more := scanned.totals.in_recovery - len(ids)) > 0:
            unseen = f"{counted(more, 'ledger')} in recovery {agreeing(more, 'was', 'were')} not examined"
            problem = f"{unseen}: at most {RECOVERIES_MAX} are in one run"
        return {each: at_ms for each, at_ms in times.items() if is_stuck(at_ms, now_ms, limit_s)}, problem


def dangling_cookies(cookies: AbstractSet[BookieId], scanned: ScanResult) -> tuple[Sequence[BookieId], str]:
    """Return the unregistered bookies with a cookie that no ledger names, or why they are unknown. Pure.

    A ledger that was not read, or cannot be read, may name any bookie. So may a ledger that was read only from a
    snapshot, because its copy may have been moved since then to a bookie that no longer exists (R111).
    """
    if scanned.problems:
        return (), "not every ledger was read"
    if scanned.totals.unreadable:
        return (), f"{counted(scanned.totals.unreadable, 'ledger')} cannot be read, and may name any bookie"
    if scanned.snapshot is not None:
        return (), "a snapshot was read, and a ledger may have been moved to any bookie since"
    return sorted(cookies - scanned.bookies.registered - scanned.totals.ledgers_by_bookie.keys()), ""
