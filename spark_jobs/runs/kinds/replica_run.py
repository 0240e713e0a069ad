"""The run of the replicas check: ask every registered bookie for the entries that the metadata assigns to it.

It needs one request per ledger and bookie, so it works chunk by chunk: read metadata, list the registered bookies, ask,
mark, report. It may be paused between chunks. A stop takes effect within seconds, and existing marks stay. The run
leaves one core free, so that a run after the loss of a bookie can start immediately. A run with limits makes its new
marks after the last chunk, because only then the worst ledgers of the cluster are known; it marks ledgers with one copy
left at once (``worst_first``).

A bookie that lacks entries is marked as missing, like a lost one: a worker asks the registered bookies in a task for
their entries, and copies the missing ones to them. Only an explicit denial by a healthy bookie causes a mark (S6).

Source: docs/formats.md#auditor-checks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)
from pyspark.sql.types import BooleanType

from bookie.metadata.access import ZooKeeperAccessError, current_access
from bookie.metadata.bookies.marking_times import HoldReason
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.port import AccessDeniedError, StoreUnavailableError
from bookie.metadata.tasks.decisions import Decision
from bookie.model.ids import BookieId, LedgerId
from bookie.model.ownership import OWNER_COLUMNS
from bookie.runtime.human import counted
from spark_jobs.checks.findings import FINDING_DDL, FindingKind
from spark_jobs.checks.metadata_check import unreadable_metadata
from spark_jobs.checks.replicas.task import COUNTS_DDL, TaskSettings, asking
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.options.marking import RunLimits
from spark_jobs.report.counts import (
    AcceptedCounts,
    FindingSums,
    PublishOutcome,
    PublishResult,
    ReplicaCounts,
    SampledBookie,
    UnknownAnswers,
)
from spark_jobs.runs.chunks import chunks, is_sampled, nodes_in_range
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.findings import accepted_counts, finding_sums, ledgers_found, to_mark, worst_ledgers
from spark_jobs.runs.marking.brake import held_because
from spark_jobs.runs.marking.held_back import LedgerWithFindings, held_back
from spark_jobs.runs.marking.limits import DueLedger, MarkLimiter
from spark_jobs.runs.marking.publish import BATCH, Marking, publish
from spark_jobs.runs.marking.repaired_since import unrepaired
from spark_jobs.runs.marking.worst_first import WaitingLedgers
from spark_jobs.runs.outcome import CheckResult, FindingTotals, Outcome, ScanResult, combine_published
from spark_jobs.runs.port import Phase, ProgressEvent
from spark_jobs.runs.reading.completeness import problems
from spark_jobs.runs.reading.ledger_scan import LedgerScan, scan_ledgers, store_error
from spark_jobs.runs.reading.one_reading import retry_until_one_reading
from spark_jobs.runs.releasing import unpersist
from spark_jobs.runs.slots import session_slots
from spark_jobs.runs.spark_failures import spark_failure

CHUNK_LEDGERS: Final = 10_000
"""Number of ledgers in a chunk: about ten seconds of asking on two cores."""
LEDGERS_PER_TASK: Final = 500
"""Size of a task if the number of executors has no limit: half a second of asking, so that new executors find work."""
_COLUMNS: Final = (
    *("ledger_id", "state", "write_quorum", "ack_quorum", "last_entry_id", "length", "fragments"),
    *OWNER_COLUMNS,
)
_NAMED_MAX: Final = 5
_IS_ACCEPTED: Final = f"kind = {FindingKind.LOSS_ACCEPTED.value!r}"


@dataclass(slots=True)
class _AnswerCounts:
    """The counts of all tasks together."""

    counts: Counter[str] = field(default_factory=Counter)
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)
    details: dict[tuple[str, str], str] = field(default_factory=dict)
    sampled: Counter[str] = field(default_factory=Counter)

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            for name in ("ledgers", "requests", "expected", "absent", "vanished"):
                self.counts[name] += row[name]
            for each in row["unknown"]:
                answer = (each["bookie_id"], each["status"])
                self.unknown[answer] += each["ledgers"]
                if each["detail"]:
                    self.details.setdefault(answer, each["detail"])
            for each in row["sampled"]:
                self.sampled[each["bookie_id"]] += each["ledgers"]


class ReplicaRun:
    """One run of the replicas check."""

    def __init__(self, context: RunContext, rng: random.Random) -> None:
        self._context = context
        self._settings = context.settings
        self._cluster = context.cluster
        seed = self._settings.sample_seed
        self._seed = rng.getrandbits(32) if seed is None else seed
        self._limiter = MarkLimiter(self._settings.run_limits, self._cluster)
        self._waiting = None if self._settings.run_limits == RunLimits() else WaitingLedgers()
        """The ledgers that wait for the end of a run with limits."""
        self._asked = _AnswerCounts()
        self._accepted: dict[LedgerId, Decision] = {}
        self._accepted_found = (0, 0)

    def execute(self, cookies: AbstractSet[BookieId]) -> Outcome:
        """Do the whole run except the summary."""
        self._context.begin(Phase.PLAN)
        started_s = self._context.clock.monotonic_s()
        bookies = self._cluster.bookies()
        limit = self._settings.missing_share_max
        held = held_because(cookies | bookies.registered, bookies.registered, 0, None, limit)
        if held is not None:
            return Outcome(None, CheckResult(bookies), held)
        self._accepted = {decision.ledger_id: decision for decision in self._cluster.accepted_losses()}
        every = self._cluster.leaf_parents()
        plan = nodes_in_range(every, self._cluster.cluster, self._settings.ledger_min, self._settings.ledger_max)
        found = FindingTotals(self._settings.worst_ledgers_max)
        total, done = sum(parent.planned for parent in plan), 0
        for parents in chunks(plan, CHUNK_LEDGERS):
            self._context.progress(ProgressEvent(Phase.ASK, done, total))
            bookies = retry_until_one_reading(partial(self._chunk, parents, found))
            done += sum(parent.planned for parent in parents)
        found.published = combine_published(found.published, self._publish_waiting())
        recount = self._cluster.count_planned(plan, found.totals)
        took_s = self._context.clock.monotonic_s() - started_s
        counts = self._counts(took_s, sum(parent.planned for parent in every))
        scanned = ScanResult(
            found.totals, bookies, problems(plan, found.totals, recount) + _unknown_answer_problems(counts)
        )
        accepted = AcceptedCounts(*self._accepted_found)
        checked = CheckResult(bookies, found.sums, found.worst, found.published, replicas=counts, accepted=accepted)
        return Outcome(scanned, checked)

    def _chunk(self, parents: Sequence[LeafParent], found: FindingTotals) -> Bookies:
        context = self._context
        ids = (self._settings.ledger_min, self._settings.ledger_max)
        with context.tasks(Phase.SCAN, is_reported=False):
            scan = scan_ledgers(context.spark, self._settings, parents, None, ids, budget=context.budget)
        with ExitStack() as kept:
            kept.callback(scan.release)
            bookies = self._cluster.bookies()
            answers = self._ask(scan, bookies).persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(unpersist, answers)
            findings = answers.where("counts IS NULL").drop("counts").coalesce(1)
            accepted = findings.where(_IS_ACCEPTED)
            ledgers = ledgers_found(findings.where(f"NOT {_IS_ACCEPTED}"))
            ledgers = ledgers.persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(unpersist, ledgers)
            with context.tasks(Phase.ASK, is_reported=False):
                counted = _collected(answers)
                sums = finding_sums(ledgers)
                limit = self._settings.worst_ledgers_max if sums.severities else 0
                worst = worst_ledgers(ledgers, limit) if limit else ()
                others = unreadable_metadata(scan.suspects)
                ledger_count, fragments = 0, 0
                if self._accepted:
                    others = others.unionByName(accepted)
                    ledger_count, fragments = accepted_counts(accepted)
            found.add(scan.totals, sums, worst, self._publish(ledgers, sums))
            self._asked.add(counted)
            self._accepted_found = (self._accepted_found[0] + ledger_count, self._accepted_found[1] + fragments)
            with context.report.tolerated(), context.tasks(Phase.REPORT, is_reported=False):
                context.report.write_findings(ledgers, others)
        return bookies

    def _ask(self, scan: LedgerScan, bookies: Bookies) -> DataFrame:
        settings = self._settings
        rows = scan.suspects.where("error IS NULL").select(*_COLUMNS)
        if settings.sample < 1:
            seed, share = self._seed, settings.sample
            rows = rows.where(F.udf(lambda ledger_id: is_sampled(ledger_id, seed, share), BooleanType())("ledger_id"))
        slots, budget = session_slots(self._context.spark), self._context.budget
        tasks = budget.tasks(slots.tasks(scan.totals.ledgers, LEDGERS_PER_TASK, spare=1))
        task = TaskSettings(
            metadata_uri=settings.metadata_uri,
            connect_timeout_s=settings.connect_timeout_s,
            registered=bookies.registered,
            security=settings.security,
            uses_apache_lists=settings.apache_lists,
            access=current_access(),
            accepted=self._accepted,
            budget=budget.share(tasks, slots.most),
        )
        return rows.repartition(tasks, "ledger_id").mapInArrow(asking(task), f"{FINDING_DDL}, {COUNTS_DDL}")

    def _publish(self, ledgers: DataFrame, sums: FindingSums) -> PublishResult:
        if not sums.severities:
            return PublishResult(PublishOutcome.NOTHING_TO_PUBLISH)
        if self._settings.is_dry_run:
            return PublishResult(PublishOutcome.DRY_RUN)
        with self._context.tasks(Phase.PUBLISH, is_reported=False):
            if self._waiting is None:
                return self._mark(_due(to_mark(ledgers)))
            now = _due(self._marked_now(to_mark(ledgers), self._waiting))
            published = self._mark(now, note_marked=self._waiting.note_marked)
            return replace(published, held_back={})  # the ledgers that the limit held back still wait

    def _marked_now(
        self, ledgers: Iterable[LedgerWithFindings], waiting: WaitingLedgers
    ) -> Iterator[LedgerWithFindings]:
        """Yield the ledgers that are already marked or are urgent. All that are not marked wait until they are."""
        remaining = iter(ledgers)
        while batch := tuple(islice(remaining, BATCH)):
            are_marked = self._cluster.are_marked([(each.ledger_id, each.missing) for each in batch])
            found = tuple(zip(batch, are_marked, strict=True))
            waiting.add(each for each, is_marked in found if not is_marked)
            yield from (each for each, is_marked in found if is_marked or waiting.is_urgent(each))

    def _publish_waiting(self) -> PublishResult:
        """Mark the waiting ledgers, the worst first, and note in the findings which ones were not marked."""
        waiting = self._waiting
        if waiting is None or not (waiting or waiting.left):
            return PublishResult(PublishOutcome.NOTHING_TO_PUBLISH)
        with self._context.tasks(Phase.PUBLISH, is_reported=False):
            published = self._mark(unrepaired(waiting.in_order(), self._cluster))
        if (first := waiting.first_not_marked(self._limiter.first_held)) is not None:
            self._context.report.note_limit(*first, marked=waiting.marked)
        left = Counter({HoldReason.LIMIT.value: waiting.left}) + Counter(published.held_back)
        return replace(published, held_back=dict(left))

    def _mark(
        self, ledgers: Iterable[DueLedger], note_marked: Callable[[Sequence[Marking]], None] | None = None
    ) -> PublishResult:
        def count(batch: Sequence[Marking]) -> None:
            self._limiter.count(batch)
            if note_marked is not None:
                note_marked(batch)

        admitted = self._limiter.admitted(ledgers)
        context = self._context
        published = publish(admitted, self._cluster, gate=context.gate, note=context.note_marks, count=count)
        return replace(published, held_back=held_back(self._limiter))

    def _counts(self, took_s: float, every: int) -> ReplicaCounts:
        counts, settings = self._asked.counts, self._settings
        asked = counts["ledgers"]
        return ReplicaCounts(
            ledgers=asked,
            requests=counts["requests"],
            expected=counts["expected"],
            absent=counts["absent"],
            unknown=tuple(
                UnknownAnswers(bookie, status, ledgers, self._asked.details.get((bookie, status), ""))
                for (bookie, status), ledgers in sorted(self._asked.unknown.items())
            ),
            sample=settings.sample,
            sample_seed=self._seed,
            ledger_min=settings.ledger_min,
            ledger_max=settings.ledger_max,
            full_run_estimate_s=round(took_s * every / asked if asked else 0.0, 1),
            sampled=tuple(SampledBookie(bookie, ledgers) for bookie, ledgers in sorted(self._asked.sampled.items())),
        )


def _due(ledgers: Iterable[LedgerWithFindings]) -> Iterator[DueLedger]:
    return (((each.ledger_id, each.missing), each.bytes_estimate) for each in ledgers)


def _collected(answers: DataFrame) -> Sequence[Row]:
    """Return the counts of all tasks. This is the first action on the rows, so it asks the bookies.

    Raises:
        StoreUnavailableError, AccessDeniedError, ZooKeeperAccessError: see ``scan_ledgers``.
        MetadataReadAgainError, ExecutorEnvironmentError, ScanFailedError: see ``spark_failure``.
    """
    try:
        return answers.where("counts IS NOT NULL").select("counts.*").collect()
    except PySparkException as error:
        refused = store_error(error)
        if isinstance(refused, AccessDeniedError | ZooKeeperAccessError):
            raise type(refused)(f"bookies could not be asked: {refused}; what was marked stays") from error
        if refused is not None:
            raise StoreUnavailableError(
                f"the metadata store did not answer while bookies were asked; what was marked stays: {refused}"
            ) from error
        raise spark_failure(error, Phase.ASK.value) from error


def _unknown_answer_problems(counts: ReplicaCounts) -> tuple[str, ...]:
    named = [
        f"{each.bookie_id} for {counted(each.ledgers, 'ledger')} ({each.reason})"
        for each in counts.unknown[:_NAMED_MAX]
    ]
    more = f" and {len(counts.unknown) - _NAMED_MAX} more" if len(counts.unknown) > _NAMED_MAX else ""
    return (f"bookies could not list their entries: {', '.join(named)}{more}",) if named else ()
