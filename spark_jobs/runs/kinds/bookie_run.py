"""The run of the bookie check: find each fragment with a lost bookie, and mark it after the delay.

A draining bookie is not lost. Ledgers on it are marked as well, after the ledgers on lost bookies. After a run has
marked all of its findings, it withdraws the marks whose reason has ended (``withdrawal``).

The order of the steps makes the run safe. It reads metadata first and the live bookies afterwards, so a bookie
registered during the scan does not count as lost. If a bookie leaves during the scan, the scan is repeated. Immediately
before reporting and publishing, the run compares the suspects with a fresh listing (R2).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from bookie.metadata.bookies.first_seen_down import Down
from bookie.metadata.bookies.rack_outage import Losses
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.port import AccessDeniedError
from bookie.metadata.tasks.decisions import Decision
from bookie.model.errors import ConflictError, OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId
from spark_jobs.checks.accepted_losses import without_accepted
from spark_jobs.checks.bookie_check import bookie_check_by_ledger
from spark_jobs.checks.metadata_check import unreadable_metadata
from spark_jobs.report import writing as report
from spark_jobs.report.counts import (
    AcceptedCounts,
    FindingSums,
    ImageCounts,
    PublishOutcome,
    PublishResult,
    WorstLedger,
)
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.findings import accepted_counts, finding_sums, ledgers_judged, to_mark, worst_ledgers
from spark_jobs.runs.kinds.further_checks import FurtherChecks, NoFurtherChecks
from spark_jobs.runs.marking.accepted import AcceptedLosses, accepted_losses, only_accepted
from spark_jobs.runs.marking.brake import held_because
from spark_jobs.runs.marking.driver_marks import DriverMarks
from spark_jobs.runs.marking.held_back import HeldBookieFilter, HeldBookies, held_back
from spark_jobs.runs.marking.image_marks import ImageMarks
from spark_jobs.runs.marking.limits import MarkLimiter
from spark_jobs.runs.marking.lost_bookies import LostBookies
from spark_jobs.runs.marking.publish import BATCH, Marking, publish
from spark_jobs.runs.marking.repaired_since import UnrepairedMarkings, with_early_marks
from spark_jobs.runs.marking.withdrawal import LedgerIdSet, withdraw_ended
from spark_jobs.runs.outcome import CheckResult, Outcome, ScanResult, add_sums, combine_published, worst_of
from spark_jobs.runs.port import Phase, ProgressEvent
from spark_jobs.runs.reading.image_upkeep import ImageUpkeep
from spark_jobs.runs.reading.incremental_reading import IncrementalReading
from spark_jobs.runs.reading.ledger_scan import LedgerScan
from spark_jobs.runs.reading.live_reading import LiveReading, Reading
from spark_jobs.runs.reading.one_reading import retry_until_one_reading
from spark_jobs.runs.reading.snapshot_reading import SnapshotReading
from spark_jobs.runs.reading.streamed_snapshot import StreamedSnapshot
from spark_jobs.runs.releasing import unpersist

_log = logging.getLogger(__name__)

SCANS_MAX: Final = 3
"""Number of scans in one run. If bookies leave during each of three, there is an outage, and a later run handles its
result."""


@dataclass(frozen=True, slots=True)
class _LedgerFindings:
    """The findings of the check."""

    ledgers: DataFrame
    """One row per ledger with findings, kept by Spark until released."""
    sums: FindingSums
    losses: AcceptedLosses
    accepted: DataFrame | None = None
    """Findings with an accepted loss, kept by Spark until released; None if no loss is accepted."""
    counts: AcceptedCounts = field(default_factory=AcceptedCounts)

    def release(self) -> None:
        unpersist(*filter(None, (self.ledgers, self.accepted)))


class BookieRun:
    """One run of the bookie check."""

    def __init__(self, context: RunContext, further_checks: FurtherChecks | None = None) -> None:
        """Prepare; ``further_checks`` judge the same ledgers, after this check has marked."""
        self._context = context
        self._further_checks = further_checks or NoFurtherChecks()
        self._settings = context.settings
        self._cluster = context.cluster
        self.lost = LostBookies()
        """The lost bookies when the marks were published."""
        self._live: AbstractSet[BookieId] = frozenset()
        """The bookies that count as live in the findings."""
        self._lost_before: Mapping[BookieId, Down] = {}
        """The records of lost bookies at the beginning of the last scan."""
        self._limiter = MarkLimiter(context.settings.run_limits, context.cluster)
        self._image_marks = ImageMarks(context)
        self._driver_marks = DriverMarks(context)
        self._is_marked_early = False
        self._image = ImageUpkeep(context)
        self._incremental: IncrementalReading | None = None
        self._carried = 0
        self._streamed = StreamedSnapshot(context) if context.settings.snapshot_url else None

    @property
    def critical_audited(self) -> Mapping[BookieId, Down]:
        """The same as ``audited``, for bookies that are due only for their critical ledgers."""
        return self._handled(self.lost.critical_due)

    @property
    def audited(self) -> Mapping[BookieId, Down]:
        """Lost bookies whose loss this run handled: due, recorded before the scan, and not registered after it.

        If a bookie left later, this run skipped its ledgers. If its loss began during the scan, the bookie may have
        been on ledgers created after their node was listed. Only another run finds these ledgers.
        """
        return self._handled(self.lost.due)

    def execute(self, cookies: AbstractSet[BookieId]) -> Outcome:
        """Do the whole run except the summary.

        Raises:
            MetadataReadAgainError: in each attempt, executors were lost together with the metadata that they had read.
        """
        try:
            outcome = retry_until_one_reading(lambda: self._attempt(cookies))
        except BaseException:
            self._image.leave()
            raise
        finally:
            if self._streamed is not None:
                self._streamed.remove()
        self._image.abandon()
        return replace(outcome, image=self._image_counts(), driver_marks=self._driver_marks.counts)

    def _attempt(self, cookies: AbstractSet[BookieId]) -> Outcome:
        self._context.begin(Phase.PLAN)
        bookies = self._cluster.bookies()
        limit = self._settings.missing_share_max
        held = held_because(cookies | bookies.registered, bookies.registered, 0, None, limit)
        if held is not None:
            return Outcome(None, CheckResult(bookies), held)
        self._mark_early(cookies, bookies)
        if self._is_marked_early:
            bookies = self._cluster.bookies()  # the early marks may have taken minutes
        scan, scanned = self._scan(bookies, cookies)
        try:
            totals = scanned.totals
            present = cookies | scanned.bookies.registered
            known = present | totals.ledgers_by_bookie.keys()
            earlier = report.earlier_ledgers(self._settings.report_dir, self._cluster.cluster.instance_id)
            listed = totals.ledgers + totals.unreadable
            held = held_because(known, scanned.bookies.registered, listed, earlier, limit)
            if held is not None and known != present:
                known -= self._given_up(frozenset(map(BookieId, known - present)), scanned)
                held = held_because(known, scanned.bookies.registered, listed, earlier, limit)
            checked = self._check(scan, scanned, cookies) if held is None else CheckResult(scanned.bookies)
            if held is None and not scanned.problems:
                self._image.commit(scan.image, totals)  # after the marks, so that it does not delay them
        finally:
            scan.release()
        return Outcome(scanned, checked, held)

    def _given_up(self, gone: AbstractSet[BookieId], scanned: ScanResult) -> AbstractSet[BookieId]:
        """Return those of ``gone`` that do not count for the brake: every copy on them was accepted as lost.

        These are bookies without a cookie, so they were decommissioned, and will not return. Otherwise they would count
        as missing for as long as their ledgers exist.
        """
        decisions = [
            decision
            for decision in self._cluster.accepted_losses()
            if decision.is_valid(scanned.bookies.registered) and not gone.isdisjoint(decision.bookies)
        ]
        found = self._cluster.ledger_data([decision.ledger_id for decision in decisions]) if decisions else ()
        return gone & only_accepted(decisions, found, scanned.totals.ledgers_by_bookie)

    def _mark_early(self, cookies: AbstractSet[BookieId], bookies: Bookies) -> None:
        """Mark the ledgers of new losses before Spark reads all ledgers.

        This is done once, and only in a run that marks and reads from ZooKeeper. The image names the ledgers. If no
        image is usable and Spark is still starting, the driver reads all ledgers.
        """
        settings = self._settings
        if self._is_marked_early or settings.is_dry_run or settings.is_from_snapshot:
            return
        is_for_driver = self._context.is_spark_starting and not cookies <= bookies.registered
        if not (settings.image_place or is_for_driver):
            return
        lost = self._lost_bookies(cookies, bookies.registered)
        if not lost.noted:
            return
        self._is_marked_early = True
        if settings.image_place:
            self._context.begin(Phase.IMAGE)
            self._image_marks.mark(cookies, bookies, lost)
        if is_for_driver and not self._image_marks.is_used:
            self._driver_marks.mark(cookies, bookies, lost)

    def _image_counts(self) -> ImageCounts:
        counts = replace(self._image_marks.counts, write_problem=self._image.problem)
        if (reading := self._incremental) is not None:
            counts = replace(
                counts,
                carried=self._carried,
                carried_from_ms=reading.carried_from_ms,
                carried_problem=reading.problem,
            )
        if (written := self._image.written) is None:
            return counts
        return replace(
            counts,
            written_from_ms=written.read_from_ms,
            written_ledgers=written.ledgers,
            written_bytes=written.bytes,
        )

    def _scan(self, before: Bookies, cookies: AbstractSet[BookieId]) -> tuple[LedgerScan, ScanResult]:
        """Repeat the scan while bookies leave during it, because the scan skips the ledgers of such a bookie."""
        reading = self._reading()
        for attempt in range(1, SCANS_MAX + 1):
            self._lost_before = self._lost_since(cookies, before.registered, self._context.clock.epoch_ms())
            if self._context.is_incremental:
                reading = self._incremental = self._make_incremental_reading()
            scan = reading.scan(before.staying)
            with ExitStack() as unused:
                unused.callback(scan.release)
                after = self._cluster.bookies()
                gone = before.registered - after.registered
                if not scan.totals.carried:  # a carried-over ledger may have been moved
                    gone &= scan.totals.ledgers_by_bookie.keys()
                if not gone or attempt == SCANS_MAX:
                    problems = reading.problems()
                    unused.pop_all()
                    break
            before = after
        self._carried = scan.totals.carried
        if gone:
            left = f"{', '.join(sorted(gone))} lost the registration while ledgers were read"
            problems += (f"{left}; a later audit finds all affected ledgers",)
        return scan, ScanResult(scan.totals, after, problems, reading.counts)

    def _make_incremental_reading(self) -> IncrementalReading:
        """Return a reading that carries over only metadata read after every loss that no audit has handled."""
        lost = {bookie: down.since_ms for bookie, down in self._lost_before.items() if not down.audited_ms}
        return IncrementalReading(self._context, self._image, lost)

    def _reading(self) -> Reading:
        snapshot = self._settings.snapshot or self._streamed
        if snapshot is not None:
            return SnapshotReading(self._context, snapshot, keeps_all=self._further_checks.needs_all)
        return LiveReading(self._context, self._image, keeps_all=self._further_checks.needs_all)

    def _check(self, scan: LedgerScan, scanned: ScanResult, cookies: AbstractSet[BookieId]) -> CheckResult:
        """Judge the ledgers, mark them, do the further checks, and write the findings, in this order.

        The report comes after the marks, because a full disk of the auditor must not prevent repair.
        """
        with ExitStack() as kept:
            judged, latest = self._judge_with_latest_bookies(scan, scanned, kept)
            # A bookie may have joined after the cookies were listed, and have left again. It has a delay as any other.
            self.lost = self._lost_bookies(cookies | self._cluster.bookies_with_cookies(), latest.registered)
            published = self._mark(judged, is_withdrawing=not scanned.problems)
            held = replace(self.lost.held, limit_from=self._limiter.first_held)
            # If the store does not answer, the marks made so far are reported, and no other check begins.
            others = NoFurtherChecks() if published.outcome is PublishOutcome.INTERRUPTED else self._further_checks
            with others.judged(scan, scanned, cookies, self._limiter) as further:
                worst = self._report(scan, judged, further.findings, held)
        return CheckResult(
            bookies=latest,
            sums=add_sums(judged.sums, further.sums),
            worst=worst_of((*worst, *further.worst), self._settings.worst_ledgers_max),
            published=combine_published(published, further.published),
            waiting=self.lost.waiting_bookies_by_id(judged.sums),
            placement=further.placement,
            accepted=judged.counts,
            parts=further.parts,
            lint=further.lint,
            inventory=further.inventory,
        )

    def _judge_with_latest_bookies(
        self, scan: LedgerScan, scanned: ScanResult, kept: ExitStack
    ) -> tuple[_LedgerFindings, Bookies]:
        """Return the findings, which ``kept`` releases, and the latest listing of the bookies."""
        bookies, decisions = scanned.bookies, self._cluster.accepted_losses()
        judged = self._judge(scan.suspects, bookies.registered, bookies.draining, decisions)
        kept.callback(judged.release)
        latest = self._cluster.bookies()
        self._live = bookies.registered | latest.registered
        if latest.staying & (judged.sums.by_bookie.keys() | judged.losses.bookies):
            # A bookie with findings has registered since the scan: judge again with both listings (R2).
            kept.close()
            judged = self._judge(scan.suspects, self._live, bookies.draining & latest.draining, decisions)
            kept.callback(judged.release)
        return judged, latest

    def _mark(self, judged: _LedgerFindings, *, is_withdrawing: bool) -> PublishResult:
        """Mark the ledgers with findings, then those with noted damage, and withdraw marks whose reason has ended.

        The second and the third step are omitted in a dry run, and if not all of these ledgers were marked.

        Args:
            judged: the findings.
            is_withdrawing: whether every ledger was read, so that marks may be withdrawn.
        """
        found = LedgerIdSet()
        published = self._publish(judged, self._limiter, found)
        is_done = not self._settings.is_dry_run and published.outcome.is_all
        if is_done:
            published = replace(published, damage_marked=self._mark_noted_damage())
        published = self._with_early_changes(published, found)
        if is_done and is_withdrawing:
            withdrawn = withdraw_ended(self._cluster, self._context.gate, found=found)
            published = replace(published, withdrawn=withdrawn)
        return published

    def _report(
        self, scan: LedgerScan, judged: _LedgerFindings, further: Sequence[DataFrame], held: HeldBookies
    ) -> tuple[WorstLedger, ...]:
        """Write the findings, and return the worst ledgers."""
        worst: tuple[WorstLedger, ...] = ()
        with self._context.report.tolerated(), self._context.tasks(Phase.REPORT):
            limit = self._settings.worst_ledgers_max if judged.sums.severities else 0
            worst = worst_ledgers(judged.ledgers, limit) if limit else ()
            others = unreadable_metadata(scan.suspects if scan.totals.unreadable else scan.suspects.limit(0))
            if judged.accepted is not None:
                others = others.unionByName(judged.accepted)
            for found in further:
                others = others.unionByName(found)
            self._context.report.write_findings(judged.ledgers, others, held)
        return worst

    def _judge(
        self,
        suspects: DataFrame,
        live: AbstractSet[BookieId],
        draining: AbstractSet[str],
        decisions: Sequence[Decision],
    ) -> _LedgerFindings:
        found = bookie_check_by_ledger(suspects, sorted(live), draining)
        losses = accepted_losses(decisions, live)
        accepted = None
        if losses.standing:
            found, accepted = without_accepted(self._context.spark, found, losses.standing)
            accepted = accepted.persist(StorageLevel.MEMORY_AND_DISK)
        ledgers = ledgers_judged(found).persist(StorageLevel.MEMORY_AND_DISK)
        judged = _LedgerFindings(ledgers, FindingSums(), losses, accepted)
        try:
            with self._context.tasks(Phase.CHECK):
                counted = (0, 0) if accepted is None else accepted_counts(accepted)
                counts = AcceptedCounts(*counted, len(losses.returned))
                return replace(judged, sums=finding_sums(ledgers), counts=counts)
        except BaseException:
            judged.release()
            raise

    def _lost_bookies(self, cookies: AbstractSet[BookieId], registered: AbstractSet[BookieId]) -> LostBookies:
        """Return the lost bookies. A dry run records nothing, so it assumes that a loss without a record begins now."""
        now_ms, is_noted = self._context.clock.epoch_ms(), not self._settings.is_dry_run
        noted = self._lost_since(cookies, registered, now_ms)
        losses = Losses(cookies, registered, noted)
        policy = self._cluster.marking_policy(self._settings.marking_rules, losses, now_ms, is_noted=is_noted)
        return LostBookies(noted, policy, now_ms)

    def _lost_since(
        self, cookies: AbstractSet[BookieId], registered: AbstractSet[BookieId], now_ms: int
    ) -> Mapping[BookieId, Down]:
        return self._cluster.lost_since(cookies, registered, now_ms, is_noted=not self._settings.is_dry_run)

    def _handled(self, lost: Mapping[BookieId, Down]) -> Mapping[BookieId, Down]:
        before = {(bookie, down.since_ms) for bookie, down in self._lost_before.items()}
        return {
            bookie: down
            for bookie, down in lost.items()
            if bookie not in self._live and (bookie, down.since_ms) in before
        }

    def _publish(self, judged: _LedgerFindings, limiter: MarkLimiter, found: LedgerIdSet) -> PublishResult:
        """Mark the ledgers with findings, and add all ledgers with findings to ``found``."""
        losses = judged.losses
        total = sum(count.ledgers for count in judged.sums.severities) + len(losses.returned)
        if total == 0:
            return PublishResult(PublishOutcome.NOTHING_TO_PUBLISH)
        if self._settings.is_dry_run:
            return PublishResult(PublishOutcome.DRY_RUN)
        due_only = HeldBookieFilter(self.lost.held)
        with self._context.tasks(Phase.PUBLISH, is_reported=False):
            returned = ((marking, 0) for marking in losses.markings())
            due = limiter.admitted(chain(returned, due_only.of(found.added(to_mark(judged.ledgers)))))
            early = self._image_marks if self._image_marks.is_used else self._driver_marks
            unrepaired = UnrepairedMarkings(early.marking.ledgers, self._cluster)
            markings = unrepaired.of(self._counted(due, total))
            published = publish(
                markings,
                self._cluster,
                gate=self._context.gate,
                note=self._context.note_marks,
                count=limiter.count,
            )
        published = with_early_marks(published, unrepaired.skipped)
        published = replace(published, held_back=held_back(limiter, due_only))
        if published.outcome is PublishOutcome.PUBLISHED and not published.is_limited:
            self._withdraw(losses.returned)
        return published

    def _with_early_changes(self, published: PublishResult, found: LedgerIdSet) -> PublishResult:
        """Add the changes of the early marks to the result of the marks after the pass over all ledgers.

        Args:
            published: that result.
            found: the ledgers with findings; complete if all of them were marked.
        """
        marks = (self._image_marks.marking, self._driver_marks.marking)
        changed = published.tasks_changed + sum(each.tasks_changed for each in marks)
        gone = sum(each.ledgers.count_outside(found) for each in marks) if published.outcome.is_all else 0
        return replace(published, tasks_changed=changed, repaired_early=gone)

    def _mark_noted_damage(self) -> int:
        """Mark ledgers with recorded damage, and return their number."""
        self._context.gate.pass_through()
        try:
            marked = self._cluster.mark_noted_damage()
        except (TransientError, ConflictError, OutcomeUnknownError, AccessDeniedError) as error:
            _log.warning("damage recorded by workers is not marked yet", extra={"reason": str(error)})
            return 0
        if marked:
            self._context.note_marks(marked)
        return len(marked)

    def _withdraw(self, returned: Sequence[Decision]) -> None:
        """Withdraw accepted losses that are no longer valid. Best effort."""
        try:
            self._cluster.withdraw_accepted(returned)
        except (TransientError, ConflictError, OutcomeUnknownError, AccessDeniedError) as error:
            # The ledgers are marked, and the next run will mark them again.
            _log.warning("accepted losses were not withdrawn", extra={"ledgers": len(returned), "reason": str(error)})

    def _counted(self, markings: Iterable[Marking], total: int) -> Iterator[Marking]:
        for done, marking in enumerate(markings):
            if done % BATCH == 0:
                self._context.progress(ProgressEvent(Phase.PUBLISH, done, total))
            yield marking
