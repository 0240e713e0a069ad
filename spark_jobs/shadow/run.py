"""Shadow mode: a dry run of the bookies check, compared with the existing tasks.

It changes nothing in the cluster.

The directory of the run gets one more table, ``shadow.parquet``. It has one row per ledger on which the two sides still
differ at a second look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from bookie.metadata.access import current_access
from bookie.metadata.bookies.registration import BookieState
from bookie.metadata.uri import parse_uri
from bookie.model.ids import BookieId, LedgerId
from bookie.model.times import rfc3339
from bookie.runtime.clock import Clock
from spark_jobs.checks.findings import FINDING_DDL
from spark_jobs.datasource import options, tasks
from spark_jobs.datasource.register import register
from spark_jobs.report.files import FINDINGS, SHADOW, ReportDirError
from spark_jobs.report.history import reports
from spark_jobs.runs.port import Gate, Phase, Progress
from spark_jobs.runs.reading.ledger_scan import store_error
from spark_jobs.runs.releasing import unpersist
from spark_jobs.runs.run import AuditResult
from spark_jobs.runs.spark_failures import spark_failure
from spark_jobs.runs.spark_tasks import spark_tasks
from spark_jobs.settings import AuditSettings
from spark_jobs.shadow import compare as shadow
from spark_jobs.shadow.reasons import Agreement, Difference, Reason, present_difference
from spark_jobs.shadow.second_look import SecondLook, losses, opened_second_look

T = TypeVar("T")

SETTLE_S: Final = 300.0
"""Default time that the other auditor may need after a loss. It reads all metadata before it marks, which takes minutes
on a large cluster."""
_BATCH: Final = 5_000
"""Number of ledgers looked at together: a few bulk reads, and one row group of the table."""
_SCHEMA: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("ledger_id", pa.int64()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("explained", pa.bool_()),
        ("severity", pa.string()),
        ("found", pa.list_(pa.string())),
        ("marked", pa.list_(pa.string())),
        ("marked_at", pa.timestamp("ms", tz="UTC")),
    ]
)


@dataclass(frozen=True, slots=True)
class Shadow:
    """The result of a comparison."""

    run_id: str
    table: Path
    agree: int
    """Number of ledgers on which the two sides agreed at the first look."""
    resolved: int
    """Number of ledgers on which the two sides differed at the first look, but not at the second one."""
    differing: Mapping[tuple[Agreement, Reason], int]
    """Number of ledgers on which the two sides still differ, by outcome and reason."""
    leader: str
    """The leading auditor; empty: there is none."""
    is_disabled: bool
    delay_s: int
    rows: tuple[Difference, ...] = field(default=())
    """The first ledgers that still differ: those without an explained reason first, then by ledger id."""

    @property
    def unexplained(self) -> int:
        """Number of ledgers that differ without an explained reason."""
        return sum(count for (_, reason), count in self.differing.items() if not reason.is_explained)

    def total(self, outcome: Agreement) -> int:
        """Return the number of ledgers with this kind of difference."""
        return sum(count for (each, _), count in self.differing.items() if each is outcome)

    def to_json(self) -> Mapping[str, Any]:
        """Return the document of ``--output json``, without its head."""
        return {
            "run_id": self.run_id,
            "table": str(self.table),
            "auditor": self.leader or None,
            "recovery_enabled": not self.is_disabled,
            "lost_bookie_delay_s": self.delay_s,
            "agree": self.agree,
            "resolved": self.resolved,
            "only_here": self.total(Agreement.ONLY_HERE),
            "only_there": self.total(Agreement.ONLY_THERE),
            "differ": self.total(Agreement.DIFFER),
            "unexplained": self.unexplained,
            "reasons": [
                {
                    "outcome": outcome.value,
                    "reason": reason.word,
                    "explained": reason.is_explained,
                    "ledgers": count,
                    "text": reason.text,
                }
                for (outcome, reason), count in ordered(self.differing)
            ],
            "items": [_document(row) for row in self.rows],
        }


def ordered(differing: Mapping[tuple[Agreement, Reason], int]) -> list[tuple[tuple[Agreement, Reason], int]]:
    """Return the counts in the order for reading, with the unexplained ones first."""
    outcomes, reasons = list(Agreement), list(Reason)
    return sorted(
        differing.items(),
        key=lambda each: (each[0][1].is_explained, outcomes.index(each[0][0]), reasons.index(each[0][1])),
    )


def compare(
    spark: SparkSession,
    result: AuditResult,
    settings: AuditSettings,
    progress: Progress,
    gate: Gate,
    clock: Clock,
    *,
    rows_max: int,
    settle_s: float = SETTLE_S,
) -> Shadow:
    """Compare the findings of a run with the tasks of its cluster, and add the table to its report. Blocks.

    Args:
        spark: the session of the run.
        result: the result of the run, which the brake did not hold.
        settings: the settings of the run.
        progress: receives the phase.
        gate: passed before each batch.
        clock: measures delays.
        rows_max: largest number of differing ledgers to return.
        settle_s: how long after a loss the other auditor may need to mark, seconds.

    Raises:
        RunStoppedError: from ``gate``.
        StoreUnavailableError, AccessDeniedError: the metadata store did not answer, or does not allow to read.
        ReportDirError: the run has no report to compare, or the table cannot be written.
        ScanFailedError: Spark failed.
    """
    if result.report_problem:
        raise ReportDirError(result.report_problem)
    summary = result.summary
    directory = result.summary_path.parent
    known = losses(reports(settings.report_dir), summary.cluster.instance_id)
    gone = {BookieId(each.bookie_id) for each in summary.bookies if each.state is BookieState.UNREGISTERED}
    lost_in_run = frozenset(gone) if summary.is_complete else frozenset()
    with opened_second_look(
        parse_uri(settings.metadata_uri),
        clock,
        known,
        lost_in_run,
        settle_s=settle_s,
        connect_timeout_s=settings.connect_timeout_s,
        rules=settings.marking_rules,
    ) as second_look:
        second_look.check()
        cluster = second_look.cluster_state()
        table = _compared(spark, directory, settings, cluster.bookies.draining).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with spark_tasks(spark, Phase.COMPARE, result.run_id, progress, gate, pool=summary.kind.value):
                counts = _reading(lambda: shadow.outcomes(table), settings.metadata_uri)
                rows = shadow.differing(table).toLocalIterator()
                found = _Found(rows_max)
                _write(directory / SHADOW, _differences(rows, second_look, gate, found, summary.run_id))
        finally:
            unpersist(table)
        delay_s = second_look.delay_s()
    return Shadow(
        run_id=summary.run_id,
        table=directory / SHADOW,
        agree=counts[Agreement.AGREE],
        resolved=found.resolved,
        differing=dict(found.counts),
        leader=cluster.leader,
        is_disabled=cluster.is_disabled,
        delay_s=delay_s,
        rows=found.first(),
    )


class _Found:
    """The counts and the first rows of the differences that persist."""

    def __init__(self, rows_max: int) -> None:
        self.resolved = 0
        self.counts: Counter[tuple[Agreement, Reason]] = Counter()
        self._rows_max = rows_max
        self._explained: list[Difference] = []
        self._unexplained: list[Difference] = []

    def add(self, difference: Difference | None) -> None:
        if difference is None:
            self.resolved += 1
            return
        self.counts[difference.outcome, difference.reason] += 1
        rows = self._explained if difference.reason.is_explained else self._unexplained
        if len(rows) < self._rows_max:
            rows.append(difference)

    def first(self) -> tuple[Difference, ...]:
        return (*self._unexplained, *self._explained)[: self._rows_max]


def _compared(
    spark: SparkSession, directory: Path, settings: AuditSettings, draining: frozenset[BookieId]
) -> DataFrame:
    path = (directory / FINDINGS).resolve().as_uri()
    findings = spark.read.schema(f"run_id string, {FINDING_DDL}").parquet(path)
    register(spark)
    marked = spark.read.format(tasks.NAME).option(options.METADATA_URI, settings.metadata_uri)
    marked = marked.option(options.ACCESS, current_access().to_text())
    found = shadow.found_ledgers(findings, draining)
    return shadow.compared(found, marked.option(tasks.WITH_UNREADABLE, "true").load())


def _reading(read: Callable[[], T], uri: str) -> T:
    """Read tasks with Spark; errors of Spark are raised as errors of this project."""
    try:
        return read()
    except PySparkException as error:
        refused = store_error(error)
        if refused is not None:
            raise type(refused)(f"tasks could not be read from {uri}: {refused}") from error
        raise spark_failure(error, f"comparing with the tasks of {uri}") from error


def _differences(
    rows: Iterator[Row], second_look: SecondLook, gate: Gate, found: _Found, run_id: str
) -> Iterator[list[Mapping[str, Any]]]:
    """Yield batches of rows for the table, after a second look at each ledger."""
    while batch := list(islice(rows, _BATCH)):
        gate.pass_through()
        seconds, cluster = second_look.read_state([LedgerId(row["ledger_id"]) for row in batch])
        kept: list[Mapping[str, Any]] = []
        for row, second in zip(batch, seconds, strict=True):
            difference = present_difference(Agreement(row["outcome"]), second, cluster)
            found.add(difference)
            if difference is not None:
                kept.append(_item(difference) | {"run_id": run_id, "severity": row["severity"]})
        yield kept


def _write(path: Path, batches: Iterable[Sequence[Mapping[str, Any]]]) -> None:
    """Write the table, whole or not at all, with one batch in memory at a time."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with pq.ParquetWriter(temporary, _SCHEMA) as writer:
            for rows in batches:
                writer.write_table(pa.Table.from_pylist([*map(_columns, rows)], _SCHEMA))
        temporary.replace(path)
    except OSError as error:
        raise ReportDirError(f"cannot write {path}: {error.strerror or error}; the run's report was written") from error
    finally:
        with suppress(OSError):  # it could not be made, for example
            temporary.unlink(missing_ok=True)


def _document(row: Difference) -> dict[str, Any]:
    item = _item(row)
    marked_ms = item.pop("marked_ms")
    return item | {"marked_at": None if marked_ms is None else rfc3339(marked_ms)}


def _columns(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**item, "marked_at": item["marked_ms"]}


def _item(row: Difference) -> dict[str, Any]:
    return {
        "ledger_id": row.ledger_id,
        "outcome": row.outcome.value,
        "reason": row.reason.word,
        "explained": row.reason.is_explained,
        "found": list(row.found),
        "marked": None if row.marked is None else list(row.marked),
        "marked_ms": row.marked_ms,
    }
