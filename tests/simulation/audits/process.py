"""The process of an audit run in a simulated history: real code on a store in memory, and plain functions for Spark.

A run is ``run_check`` as in production, with its reading, marking, images and snapshots. Only Spark is replaced: its
tasks run in this process, one after the other, and a plain reference (``judging``) judges the rows. At each request to
the store, the cluster may change, the request may fail, or the process may be killed.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, cast
from unittest.mock import patch

import pyarrow as pa
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from bookie.metadata.cluster import open_cluster
from bookie.metadata.store.memory import Fault, MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.tasks.decisions import Decision
from bookie.metadata.uri import MetadataUri
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunKind, new_run_id
from bookie.model.severity import Severity
from bookie.runtime.clock import Clock
from spark_jobs.connect import PacedConnection
from spark_jobs.datasource.incremental import IncrementalTasks, incremental, work_of
from spark_jobs.datasource.ledgers import LedgerTasks
from spark_jobs.datasource.partitions import parents_of
from spark_jobs.datasource.scan import reread, scan
from spark_jobs.datasource.snapshot_ledgers import SnapshotTasks, divide_parts
from spark_jobs.image.folder import LocalImageFolder
from spark_jobs.pacing.budget import Budget
from spark_jobs.pacing.pace import Pace
from spark_jobs.pacing.paced_store import PacedStore
from spark_jobs.report import writing
from spark_jobs.report.counts import AcceptedCounts, FindingSums, SeverityCount
from spark_jobs.report.files import write_file
from spark_jobs.report.summary import RunSummary
from spark_jobs.runs import run
from spark_jobs.runs.cluster_view import ClusterView
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.kinds import bookie_run
from spark_jobs.runs.kinds.bookie_run import BookieRun
from spark_jobs.runs.marking.accepted import accepted_losses
from spark_jobs.runs.marking.held_back import LedgerWithFindings
from spark_jobs.runs.marking.publish import Marking
from spark_jobs.runs.port import Gate, RunStoppedError
from spark_jobs.runs.reading import incremental_reading, ledger_scan, snapshot_reading
from spark_jobs.runs.reading.completeness import ScanTotals
from spark_jobs.runs.reading.ledger_scan import LedgerScan, task_options
from spark_jobs.runs.run import AuditResult, run_check
from spark_jobs.runs.slots import Slots
from spark_jobs.runs.spark_failures import MetadataReadAgainError
from spark_jobs.settings import AuditSettings
from spark_jobs.snapshot.index import SnapshotIndex, SnapshotPart
from tests.simulation.audits.holding import HeldEntries
from tests.simulation.audits.judging import Lacking, in_order, judged
from tests.worlds.cluster import ROOT

_TASKS = Slots(2, 2)
_STATEMENT_OF_EMPTY = "ledger_id IS NOT NULL"


class ProcessKilledError(BaseException):
    """The process was killed at a request; it does nothing more."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """How likely something happens at each request of a run."""

    change: float = 0.0
    """The cluster changes before the request."""
    kill: float = 0.0
    """The process is killed."""
    fault: float = 0.0
    """The request fails, or its answer is lost."""
    stop: float = 0.0
    """The run must end at its next gate, because its process no longer leads."""


QUIET = Disturbance()


class AuditProcess:
    """A process that runs one audit, with sessions of its own in the store.

    Attributes:
        rng: decides what happens to the process.
        found: the ledgers of the last findings, with what they lack.
        waiting: the lost bookies that are not due when the run publishes.
        readings_lost: how often Spark will lose the metadata after the marks, so that the run reads again.
        changes: what happened during the run, for the log of the history.
        held: the entries of the bookies.
        registered: returns the bookies that run.
        entry_findings: the last findings of a replicas check.
        placement_findings: the last findings of a placement check.
        marked: the marks that the run made.
    """

    def __init__(
        self,
        cell: MemoryCell,
        clock: Clock,
        rng: random.Random,
        disturbance: Disturbance = QUIET,
        change: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.cell = cell
        self.clock = clock
        self.found: Mapping[LedgerId, Lacking] = {}
        self.waiting: AbstractSet[BookieId] = frozenset()
        self.readings_lost = 0
        self.changes: list[str] = []
        self.rng = rng
        self._disturbance = disturbance
        self._change = change
        self._is_changing = False
        self.is_dead = False
        self.is_deposed = False
        self.held = HeldEntries()
        self.registered: Callable[[], AbstractSet[BookieId]] = frozenset
        self.entry_findings: Sequence[Mapping[str, Any]] = ()
        self.placement_findings: Sequence[Mapping[str, Any]] = ()
        self.marked: list[Marking] = []

    def lose_reading(self) -> None:
        """Let Spark lose the metadata, if that is to happen again.

        Raises:
            MetadataReadAgainError: Spark lost it.
        """
        if self.readings_lost:
            self.readings_lost -= 1
            raise MetadataReadAgainError("an executor was lost after the marks")

    def store(self) -> MemoryStore:
        """Return a session of this process."""
        return MemoryStore(self.cell, fault_hook=self._before)

    def audit(self, kind: RunKind, settings: AuditSettings) -> AuditResult | None:
        """Run an audit to its end; None: it failed, was stopped, or was killed."""
        run_id = new_run_id(self.clock.epoch_ms(), self.rng)
        try:
            with _in_this_process(self):
                session = cast(SparkSession, self)
                spark = (lambda: session) if self.rng.random() < 0.5 else session
                return run_check(spark, kind, settings, gate=_Gate(self), run_id=run_id, clock=self.clock, rng=self.rng)
        except ProcessKilledError:
            return None
        except (BkhealError, RunStoppedError) as error:
            self.changes.append(f"the run ended: {type(error).__name__}: {error}")
            return None

    async def _before(self, operation: str, path: str) -> Fault | None:
        if self.is_dead:
            raise ProcessKilledError
        if self._is_changing:
            return None
        rng, disturbance = self.rng, self._disturbance
        if self._change is not None and rng.random() < disturbance.change:
            self._is_changing = True
            try:
                await self._change()
            finally:
                self._is_changing = False
        if rng.random() < disturbance.kill:
            self.changes.append(f"the process was killed at {operation} {path}")
            self.is_dead = True
            raise ProcessKilledError
        if rng.random() < disturbance.stop:
            self.changes.append(f"another auditor leads from {operation} {path} on")
            self.is_deposed = True
        if rng.random() < disturbance.fault:
            fault = rng.choice([Fault.FAIL_BEFORE, Fault.LOSE_ANSWER, Fault.LOSE_ANSWER])
            self.changes.append(f"{fault.value} at {operation} {path}")
            return fault
        return None


@dataclass(frozen=True, slots=True)
class _Gate(Gate):
    process: AuditProcess

    @override
    def pass_through(self) -> None:
        if self.process.is_deposed:
            raise RunStoppedError("another auditor leads")

    @override
    def stop_reason(self) -> str | None:
        return None


class Rows:
    """The parts of a ``DataFrame`` that a reading uses, on plain rows."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = rows

    def where(self, condition: str) -> Self:
        assert condition == _STATEMENT_OF_EMPTY, condition
        return type(self)([row for row in self.rows if row["ledger_id"] is not None])

    def unionByName(self, other: Rows) -> Rows:  # noqa: N802 (Spark's name)
        return Rows([*self.rows, *other.rows])

    def unpersist(self) -> None:
        pass


class PlainBookieRun(BookieRun):
    """A run whose rows are judged by the plain reference, and whose report has no table of findings."""

    def _process(self) -> AuditProcess:
        return cast(AuditProcess, self._context.spark)

    @override
    def _judge(
        self,
        suspects: DataFrame,
        live: AbstractSet[BookieId],
        draining: AbstractSet[str],
        decisions: Sequence[Decision],
    ) -> bookie_run._LedgerFindings:
        losses = accepted_losses(decisions, live)
        found = dict(judged(cast(Rows, suspects).rows, live, draining, losses.standing))
        self._process().found = found
        rows = [{"ledger_id": ledger_id, "lacking": each} for ledger_id, each in found.items()]
        return bookie_run._LedgerFindings(
            cast(DataFrame, Rows(rows)),
            _sums(found),
            losses,
            counts=AcceptedCounts(ledgers_returned=len(losses.returned)),
        )

    @override
    def _report(self, *_: object) -> tuple[Any, ...]:
        process = self._process()
        process.waiting = self.lost.waiting.keys()
        process.lose_reading()
        return ()


def _sums(found: Mapping[LedgerId, Lacking]) -> FindingSums:
    by_bookie: dict[str, tuple[int, int]] = {}
    for each in found.values():
        for bookie in each.missing:
            by_bookie[bookie] = (by_bookie.get(bookie, (0, 0))[0] + 1, 0)
    ranks = sorted({each.severity for each in found.values()})
    counts = [sum(each.severity is rank for each in found.values()) for rank in ranks]
    severities = (SeverityCount(Severity(rank), count, count, 0) for rank, count in zip(ranks, counts, strict=True))
    return FindingSums(tuple(severities), by_bookie)


def _to_mark(ledgers: DataFrame) -> Iterator[LedgerWithFindings]:
    return iter(in_order({row["ledger_id"]: row["lacking"] for row in cast(Rows, ledgers).rows}))


class _Summary(dict[str, Any]):
    """A struct of a Spark row."""

    def asDict(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        return dict(self)


def _scan_groups(
    spark: SparkSession,
    settings: AuditSettings,
    groups: Sequence[str],
    tasks: Callable[[Broadcast[Sequence[str]]], LedgerTasks | IncrementalTasks],
    *,
    is_brief: bool = False,
) -> LedgerScan:
    """Run the tasks of a scan, as ``ledger_scan.scan_groups`` does with Spark."""
    process = cast(AuditProcess, spark)
    made = tasks(cast("Broadcast[Sequence[str]]", _Sent(groups)))

    async def read(paced: PacedStore, text: str) -> list[dict[str, Any]]:
        cluster = await open_cluster(paced, ROOT)
        if isinstance(made, IncrementalTasks):
            return await _rows(incremental(paced, cluster, work_of(text), made.source, made.options))
        return await _rows(scan(paced, cluster, parents_of(text), made.options))

    with asyncio.Runner() as runner:
        parts = [runner.run(_with_store(process, partial(read, text=text))) for text in groups]
    return _scan_of([row for part in parts for row in part])


@dataclass(frozen=True, slots=True)
class _Sent:
    value: Sequence[str]


async def _with_store(
    process: AuditProcess, read: Callable[[PacedStore], Awaitable[list[dict[str, Any]]]]
) -> list[dict[str, Any]]:
    store = process.store()
    try:
        return await read(PacedStore(store, Pace(process.clock), ROOT))
    finally:
        await store.close()


async def _rows(batches: AsyncIterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row async for batch in batches for row in batch.to_pylist()]


def _scan_of(rows: Sequence[dict[str, Any]]) -> LedgerScan:
    summaries = [row["summary"] for row in rows if row["summary"] is not None]
    for summary in summaries:
        if summary["image"] is not None:
            summary["image"]["files"] = [_Summary(file) for file in summary["image"]["files"]]
    suspects = Rows([row for row in rows if row["summary"] is None])
    return LedgerScan(cast(DataFrame, suspects), ledger_scan._totals(summaries), (), ledger_scan._image(summaries))


def _reread_rows(context: RunContext, ids: DataFrame, count: int, live: AbstractSet[str] | None) -> LedgerScan:
    """Read ledgers again, as ``reread_rows`` does with Spark."""
    process = cast(AuditProcess, context.spark)
    options = task_options(context.settings, live, context.budget.share(1, 1))
    wanted = sorted(LedgerId(row["ledger_id"]) for row in cast(Rows, ids).rows)

    async def read(paced: PacedStore) -> list[dict[str, Any]]:
        cluster = await open_cluster(paced, ROOT)
        return await _rows(reread(paced, cluster, [wanted], options))

    with asyncio.Runner() as runner:
        return _scan_of(runner.run(_with_store(process, read)))


def _read_from_snapshot(
    self: snapshot_reading.SnapshotReading,
    index: SnapshotIndex,
    parts: Sequence[SnapshotPart],
    live: AbstractSet[str],
) -> tuple[DataFrame, ScanTotals]:
    """Run the tasks that read a snapshot, as ``SnapshotReading`` does with Spark."""
    cluster = self._context.cluster.cluster
    tasks = SnapshotTasks(index.file, cluster.kind, cluster.root, frozenset(live), divide_parts(parts, 2))
    numbers = pa.record_batch([pa.array(range(len(tasks.groups)), pa.int64())], names=["id"])
    rows = [row for batch in tasks(iter([numbers])) for row in batch.to_pylist()]
    totals = ledger_scan._totals([row["summary"] for row in rows if row["summary"] is not None])
    return cast(DataFrame, Rows([row for row in rows if row["summary"] is None])), totals


@contextmanager
def _in_this_process(process: AuditProcess) -> Iterator[None]:
    """Let the run of the current thread use the store of this process, and no Spark."""
    before, _current.process = _current.process, process
    try:
        yield
    finally:
        _current.process = before


class _Current(threading.local):
    process: AuditProcess | None = None


_current = _Current()
"""A run blocks its thread, so two runs at the same time are in two threads."""


def current_process() -> AuditProcess:
    """Return the process of the current thread."""
    assert _current.process is not None
    return _current.process


@contextmanager
def _opened_cluster(
    uri: MetadataUri, clock: Clock, budget: Budget, connect_timeout_s: float = 0.0
) -> Iterator[ClusterView]:
    process = _current.process
    assert process is not None
    with asyncio.Runner() as runner:
        store = process.store()
        try:
            paced = PacedStore(store, Pace(clock), ROOT)
            connection = PacedConnection(paced, runner.run(open_cluster(paced, ROOT)))
            yield ClusterView(runner, connection, clock, budget)
        finally:
            runner.run(store.close())


def _remove(self: LocalImageFolder, first: Sequence[str] = ()) -> None:
    if _current.process is None or not _current.process.is_dead:
        _really_remove(self, first)


_really_remove = LocalImageFolder.remove


def _write_summary(report_dir: Path, summary: RunSummary, **_: object) -> tuple[Path, list[str]]:
    """Write only the part of a report that later runs read."""
    path = report_dir / summary.run_id / writing.SUMMARY
    write_file(path, json.dumps(summary.to_json()).encode())
    return path, []


@contextmanager
def _no_tasks(self: RunContext, phase: object, *, is_reported: bool = True) -> Iterator[None]:
    yield


@contextmanager
def without_spark(others: Iterable[tuple[object, str, object]] = ()) -> Iterator[None]:
    """Run audits without Spark in this block; ``others`` are further replacements."""
    with ExitStack() as stack:
        for target, name, value in (
            *others,
            (run, "opened_cluster", _opened_cluster),
            (run, "BookieRun", PlainBookieRun),
            (bookie_run, "to_mark", _to_mark),
            (ledger_scan, "scan_groups", _scan_groups),
            (ledger_scan, "session_slots", lambda spark: _TASKS),
            (incremental_reading, "scan_groups", _scan_groups),
            (incremental_reading, "session_slots", lambda spark: _TASKS),
            (snapshot_reading, "reread_rows", _reread_rows),
            (snapshot_reading, "DataFrame", Rows),
            (snapshot_reading.SnapshotReading, "_read_from_snapshot", _read_from_snapshot),
            (RunContext, "tasks", _no_tasks),
            (writing, "finish", _write_summary),
            (LocalImageFolder, "remove", _remove),
        ):
            stack.enter_context(patch.object(target, name, value))
        yield


def settings_of(report_dir: Any, **changed: Any) -> AuditSettings:
    """Return the settings of the runs: nothing is delayed, and the brake nearly never holds."""
    settings = AuditSettings(
        "zk://memory/ledgers",
        report_dir,
        critical_delay_s=0,
        rack_outage_delay_s=0,
        flapping_delay_s=0,
        missing_share_max=0.95,
        reports_kept=2,
    )
    return replace(settings, **changed)
