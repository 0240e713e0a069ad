"""The run of the references check: find ledgers without a reference in Pulsar, and references to nonexistent ledgers.

It marks nothing, and deletes nothing. It reads every reference, then every ledger, and compares the two in Spark.
Before the report, it checks every possible finding again (``spark_jobs.checks.references``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)

from bookie.metadata.access import ZooKeeperAccessError, current_access
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.port import AccessDeniedError, StoreUnavailableError
from bookie.metadata.pulsar.referrers import Referrer
from bookie.metadata.pulsar.tree import NodeKind
from bookie.model.ownership import OWNER_COLUMNS
from bookie.model.severity import Severity
from spark_jobs.checks.findings import FINDING_DDL, FindingKind
from spark_jobs.checks.metadata_check import unreadable_metadata
from spark_jobs.checks.references.comparison import (
    HAS_UNKNOWN_REFERENCE,
    NotJudged,
    ReferenceVerdict,
    compared,
    suspects,
    unread,
    without_doubtful_topics,
)
from spark_jobs.checks.references.second_look import SECOND_LOOK_DDL, SecondLookSettings, checking
from spark_jobs.checks.sql_text import literal
from spark_jobs.datasource import options, references
from spark_jobs.datasource.register import register
from spark_jobs.datasource.task_rows import READING
from spark_jobs.report.counts import (
    FindingSums,
    NamespaceCount,
    PublishOutcome,
    PublishResult,
    ReferenceCounts,
    UndecodableNode,
)
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.findings import finding_sums, ledgers_found, worst_ledgers
from spark_jobs.runs.outcome import CheckResult, Outcome, ScanResult
from spark_jobs.runs.port import Phase
from spark_jobs.runs.prerequisites import ExportError, require_export, require_pulsar, roots_in
from spark_jobs.runs.reading.completeness import problems
from spark_jobs.runs.reading.ledger_scan import LedgerScan, restricted_to_readings, scan_ledgers, store_error
from spark_jobs.runs.reading.one_reading import retry_until_one_reading
from spark_jobs.runs.releasing import unpersist
from spark_jobs.runs.slots import session_slots
from spark_jobs.runs.spark_failures import spark_failure

NAMESPACES_MAX: Final = 100
UNDECODABLE_MAX: Final = 1_000
"""Largest numbers of namespaces and of undecodable nodes that the summary names. The others are only counted."""
_NAMED_MAX: Final = 3
# The sum of damaged lengths may exceed a bigint.
_SUMS: Final = ("count(*) AS ledgers", "coalesce(sum(CAST(stored_bytes AS decimal(20, 0))), 0) AS stored_bytes")
_COLUMNS: Final = [column.split() for column in FINDING_DDL.split(",")]


@dataclass(frozen=True, slots=True)
class _UnknownReferences:
    """Nodes with unknown references."""

    nodes: tuple[UndecodableNode, ...]
    """The first undecodable nodes."""
    undecodable: int
    """The number of undecodable nodes."""
    has_any: bool
    """Whether there are undecodable nodes, or references that are stored in a ledger."""
    is_unsure: bool
    """Whether one of the nodes belongs to an unknown topic. Then no ledger counts as unreferenced."""


_VerdictCounts = Counter[tuple[str, str | None]]
"""Number of rows by verdict and reason."""


class ReferenceRun:
    """One run of the references check."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._settings = context.settings
        self._cluster = context.cluster
        self._roots = roots_in(self._settings.pulsar_roots, self._cluster.cluster.root)

    def execute(self, cookies: AbstractSet[object]) -> Outcome:
        """Do the whole run except the summary.

        Raises:
            NoPulsarError: there are no managed ledgers to compare with.
            ExportError: the ids cannot be written.
        """
        self._context.begin(Phase.PLAN)
        require_pulsar(self._cluster.roots_without_pulsar(self._roots))
        if self._settings.export is not None:
            require_export(self._settings.export)
        created_before_ms = self._context.clock.epoch_ms() - round(1000 * self._settings.reference_grace_s)
        return retry_until_one_reading(lambda: self._attempt(created_before_ms))

    def _attempt(self, created_before_ms: int) -> Outcome:
        with ExitStack() as kept:
            found = self._read_references(kept)
            doubts = self._doubts(found)
            plan = self._cluster.leaf_parents()
            with self._context.tasks(Phase.SCAN):
                scan = scan_ledgers(
                    self._context.spark, self._settings, plan, None, budget=self._context.budget, is_brief=True
                )
            kept.callback(scan.release)
            settled, seen = self._judge(scan, found, created_before_ms, doubts, kept)
            counts = self._counts(settled, seen, doubts)
            if self._settings.export is not None:
                with self._context.tasks(Phase.CHECK, is_reported=False):
                    export(_with_verdict(seen, ReferenceVerdict.UNREFERENCED), self._settings.export)
            recount = self._cluster.count_planned(plan, scan.totals)
            bookies = self._cluster.bookies()
            incomplete = problems(plan, scan.totals, recount) + _undecodable_problems(counts)
            checked = self._report(scan, seen, unread(found) if doubts.has_any else None, bookies, counts)
        return Outcome(ScanResult(scan.totals, bookies, incomplete), checked)

    def _read_references(self, kept: ExitStack) -> DataFrame:
        """Return the references. If Spark loses some of them and reads them again, an action on them fails (R2).

        After that, a node of unknown content could be taken for one without references.
        """
        settings, budget = self._settings, self._context.budget
        register(self._context.spark)
        read = (
            self._context.spark.read.format(references.NAME)
            .option(options.METADATA_URI, settings.metadata_uri)
            .option(options.ACCESS, current_access().to_text())
            .option(options.CONNECT_TIMEOUT_S, settings.connect_timeout_s)
            .option(references.PULSAR_ROOTS, ",".join(self._roots))
            .option(options.BUDGET, budget.whole.to_text())
        )
        if budget.connections:
            read = read.option(references.PARTITIONS_MAX, budget.tasks(budget.connections))
        slots_max = session_slots(self._context.spark).most
        if slots_max is not None:
            read = read.option(references.SLOTS_MAX, slots_max)
        with self._context.tasks(Phase.SCAN, is_reported=False), _reading():
            found = read.load().persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(unpersist, found)
            readings = [row[READING] for row in found.select(READING).distinct().collect()]
        return restricted_to_readings(found, readings)

    def _doubts(self, found: DataFrame) -> _UnknownReferences:
        doubts = found.where(HAS_UNKNOWN_REFERENCE)
        is_bad = F.col("error").isNotNull()
        with self._context.tasks(Phase.CHECK, is_reported=False):
            (sums,) = doubts.select(F.count("*"), F.count_if(is_bad), F.count_if(F.col("topic").isNull())).collect()
            order = doubts.where(is_bad).orderBy("root", "kind", "name", "cursor")
            rows = order.limit(UNDECODABLE_MAX).collect() if sums[1] else []
        named = (Referrer(row["root"], NodeKind(row["kind"]), row["name"], row["cursor"]) for row in rows)
        nodes = tuple(UndecodableNode(each.path, row["error"]) for each, row in zip(named, rows, strict=True))
        return _UnknownReferences(nodes, undecodable=sums[1], has_any=sums[0] > 0, is_unsure=sums[2] > 0)

    def _judge(
        self, scan: LedgerScan, found: DataFrame, created_before_ms: int, doubts: _UnknownReferences, kept: ExitStack
    ) -> tuple[_VerdictCounts, DataFrame]:
        """Return the numbers of rows that the first look settled, and the others with verdicts, kept by Spark."""
        settings = self._settings
        first = compared(scan.suspects, found).persist(StorageLevel.MEMORY_AND_DISK)
        kept.callback(unpersist, first)
        with self._context.tasks(Phase.CHECK, is_reported=False), _reading():
            rows = first.groupBy("verdict", "reason").agg(F.count("*").alias("ledgers")).collect()
        settled = Counter({(row["verdict"], row["reason"]): int(row["ledgers"]) for row in rows})
        lost = settled.pop((ReferenceVerdict.LOST.value, None), 0)
        settled.pop((ReferenceVerdict.UNREFERENCED.value, None), 0)
        slots = session_slots(self._context.spark)
        budget = self._context.budget
        tasks = budget.tasks(max(1, slots.now - 1))
        second_look = SecondLookSettings(
            settings.metadata_uri,
            settings.connect_timeout_s,
            self._roots,
            created_before_ms,
            current_access(),
            is_unsure=doubts.is_unsure,
            budget=budget.share(tasks, slots.most),
        )
        # By topic, because one node names all ledgers of a topic.
        again = suspects(first, found, lost).repartition(tasks, F.expr("coalesce(topic_hash, hash(by[0].name))"))
        seen = again.mapInArrow(checking(second_look), SECOND_LOOK_DDL)
        if doubts.has_any:
            seen = without_doubtful_topics(seen, found)
        seen = seen.persist(StorageLevel.MEMORY_AND_DISK)
        kept.callback(unpersist, seen)
        with self._context.tasks(Phase.CHECK), _reading():
            seen.count()
        return settled, seen

    def _counts(self, settled: _VerdictCounts, seen: DataFrame, doubts: _UnknownReferences) -> ReferenceCounts:
        with self._context.tasks(Phase.CHECK, is_reported=False):
            rows = seen.groupBy("verdict", "reason").agg(*map(F.expr, _SUMS)).collect()
            counted = settled + Counter({(row["verdict"], row["reason"]): row["ledgers"] for row in rows})
            stored_bytes = sum(
                int(row["stored_bytes"]) for row in rows if row["verdict"] == ReferenceVerdict.UNREFERENCED.value
            )
            largest = []
            if (ReferenceVerdict.UNREFERENCED.value, None) in counted:
                sums = _with_verdict(seen, ReferenceVerdict.UNREFERENCED).groupBy("namespace").agg(*map(F.expr, _SUMS))
                order = sums.orderBy(F.desc("stored_bytes"), F.desc("ledgers"), "namespace").limit(NAMESPACES_MAX)
                largest = order.collect()

        def number(verdict: ReferenceVerdict) -> int:
            return counted[verdict.value, None]

        also_elsewhere = number(ReferenceVerdict.ALSO_ELSEWHERE)
        return ReferenceCounts(
            roots=tuple(root or "/" for root in self._roots),
            grace_s=self._settings.reference_grace_s,
            referenced=number(ReferenceVerdict.REFERENCED) + also_elsewhere,
            offloaded_and_here=also_elsewhere,
            offloaded=number(ReferenceVerdict.OFFLOADED),
            unreferenced=number(ReferenceVerdict.UNREFERENCED),
            unreferenced_stored_bytes=stored_bytes,
            namespaces=tuple(
                NamespaceCount(row["namespace"], row["ledgers"], int(row["stored_bytes"])) for row in largest
            ),
            lost=number(ReferenceVerdict.LOST),
            not_judged={
                reason.value: count
                for reason in NotJudged
                if (count := counted[ReferenceVerdict.NOT_JUDGED.value, reason.value])
            },
            undecodable=doubts.undecodable,
            undecodable_nodes=doubts.nodes,
        )

    def _report(
        self, scan: LedgerScan, seen: DataFrame, unread: DataFrame | None, bookies: Bookies, counts: ReferenceCounts
    ) -> CheckResult:
        lost = ledgers_found(_findings(_with_verdict(seen, ReferenceVerdict.LOST), _LOST))
        lost = lost.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with self._context.tasks(Phase.REPORT, is_reported=False), _reading():
                sums = finding_sums(lost) if counts.lost else FindingSums((), {})
                limit = self._settings.worst_ledgers_max if sums.severities else 0
                worst = worst_ledgers(lost, limit) if limit else ()
            others = _findings(_with_verdict(seen, ReferenceVerdict.UNREFERENCED), _UNREFERENCED)
            undecodable = seen.where(F.col("reason") == NotJudged.UNDECODABLE.value)
            others = others.unionByName(_findings(undecodable, _UNDECODABLE))
            if unread is not None:
                others = others.unionByName(_findings(unread, _UNREAD_REFERENCE_COLUMNS))
            with self._context.report.tolerated(), self._context.tasks(Phase.REPORT, is_reported=False):
                self._context.report.write_findings(lost, others.unionByName(unreadable_metadata(scan.suspects)))
        finally:
            unpersist(lost)
        published = PublishResult(PublishOutcome.NOTHING_TO_PUBLISH)
        return CheckResult(bookies, sums, worst, published, references=counts)


def _with_verdict(seen: DataFrame, verdict: ReferenceVerdict) -> DataFrame:
    return seen.where(F.col("verdict") == verdict.value)


@contextmanager
def _reading() -> Iterator[None]:
    """Wrap the first action on rows that tasks read from ZooKeeper.

    Raises:
        StoreUnavailableError, AccessDeniedError, ZooKeeperAccessError, ScanFailedError: see ``scan_ledgers``.
    """
    try:
        yield
    except PySparkException as error:
        refused = store_error(error)
        if isinstance(refused, AccessDeniedError | ZooKeeperAccessError):
            raise type(refused)(f"nodes of Pulsar could not be read: {refused}") from error
        if refused is not None:
            raise StoreUnavailableError(
                "the metadata store did not answer while nodes of Pulsar were read. Run the audit again once it answers"
            ) from error
        raise spark_failure(error, "reading the nodes of Pulsar") from error


def export(unreferenced: DataFrame, file: Path) -> None:
    """Write the ids in ascending order, one per line; the file appears only when complete.

    Raises:
        ExportError: the file cannot be written.
    """
    with _writing(file):
        with _temporary(file).open("w", encoding="ascii") as out:
            for row in unreferenced.select("ledger_id").orderBy("ledger_id").toLocalIterator():
                out.write(f"{row['ledger_id']}\n")
        _temporary(file).replace(file)


def _temporary(file: Path) -> Path:
    return file.with_name(f".{file.name}.tmp")


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportError(f"cannot write the ids of unreferenced ledgers to {file}: {error.strerror}") from error
    finally:
        with suppress(OSError):  # it could not be made, for example
            _temporary(file).unlink(missing_ok=True)


_OWNER: Final = {name: name for name in OWNER_COLUMNS}
_LOST: Final = _OWNER | {
    "kind": literal(FindingKind.DANGLING_REFERENCE.value),
    "ledger_id": "ledger_id",
    "severity": literal(Severity.LOST.label),
    "severity_rank": str(Severity.LOST.value),
    "missing": "array()",
    "missing_positions": "array()",
    "detail": "concat('named by ', path)",
}
_UNREFERENCED: Final = _OWNER | {
    "kind": literal(FindingKind.UNREFERENCED_LEDGER.value),
    "ledger_id": "ledger_id",
    "state": "'CLOSED'",
    "bytes_estimate": "stored_bytes",
}
_UNDECODABLE: Final = _OWNER | {
    "kind": literal(FindingKind.UNDECODABLE_REFERENCES.value),
    "ledger_id": "ledger_id",
    "detail": "reason",
}
_UNREAD_REFERENCE_COLUMNS: Final = _OWNER | {
    "kind": literal(FindingKind.UNREAD_REFERENCE.value),
    "ledger_id": "ledger_id",
    "detail": "concat('cursor state of ', topic, ' is in ledger ', ledger_id, ': compacted ledger not checked')",
}


def _findings(rows: DataFrame, values: dict[str, str]) -> DataFrame:
    return rows.selectExpr(*(f"CAST({values.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in _COLUMNS))


def _undecodable_problems(counts: ReferenceCounts) -> tuple[str, ...]:
    if not counts.undecodable:
        return ()
    some = ", ".join(f"{each.path} ({each.reason})" for each in counts.undecodable_nodes[:_NAMED_MAX])
    more = f" and {counts.undecodable - _NAMED_MAX} more" if counts.undecodable > _NAMED_MAX else ""
    return (f"nodes of Pulsar cannot be decoded, so ledgers of their topics were not judged: {some}{more}",)
