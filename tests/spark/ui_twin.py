"""A small auditor for tests of the tab. Its runs are real Spark jobs in threads, and change no cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession

from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from spark_jobs.ui.port import ActionOutcome, ActionResult, BacklogRow, Fact, KindRow, RunView, TabState

STEPS = 5
ENDLESS_STEPS = 400
ENDLESS = RunKind.REPLICAS
"""The kind of runs that continue until they are cancelled."""


def _slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(0.1)
    yield from batches


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class AuditorTwin:
    """Implements ``TabActions``. Finished runs link to ``report_url``."""

    def __init__(self, spark: SparkSession, report_url: str = "") -> None:
        self._spark = spark
        self._report_url = report_url
        self._lock = threading.Lock()
        self._records: dict[str, RunRecord] = {}
        self.threads: list[threading.Thread] = []
        self.may_end = threading.Event()
        """Cleared by tests whose checks need a run that does not end."""
        self.may_end.set()

    def snapshot(self) -> TabState:
        with self._lock:
            records = sorted(self._records.values(), key=lambda record: record.started_ms, reverse=True)
        facts = (
            Fact("Cluster", "zk+hierarchical://zk-0:2181,zk-1:2181/ledgers"),
            Fact("Leader", "auditor-0 (this auditor)"),
            Fact("Recovery", "enabled"),
            Fact("Bookies", "5 writable, 0 read-only, 1 lost"),
            Fact("Lost bookie", "bookie-3:3181 (missing for 4 min)", is_bad=True),
        )
        backlog = (
            BacklogRow("critical", 12, 3_400_000_000, now_ms() - 250_000),
            BacklogRow("below_write_quorum", 140, 51_000_000_000, now_ms() - 244_000),
        )
        runs = [self._view(record) for record in records]
        return TabState(
            now_ms(), facts, self._kinds(records), backlog, runs, in_progress=8, parked={"no_candidate_bookie": 2}
        )

    def run(self, kind: str, user: str, address: str) -> ActionResult:
        with self._lock:
            for record in self._records.values():
                if record.kind.value == kind and not record.state.is_final:
                    return ActionResult(ActionOutcome.BUSY, f"a {kind} run is already under way: {record.run_id}")
            run_id = f"20261120T1015{len(self._records):02d}Z-0a1b2c"
            owner = user or "anonymous"
            self._records[run_id] = RunRecord(
                run_id, RunKind(kind), RunCause.SPARK_UI, owner, "twin", RunState.RUNNING, started_ms=now_ms()
            )
        thread = threading.Thread(target=self._work, args=(run_id,), daemon=True)
        self.threads.append(thread)
        thread.start()
        return ActionResult(ActionOutcome.ACCEPTED, f"run {run_id} began", run_id)

    def cancel(self, run_id: str, user: str, address: str) -> ActionResult:
        return self._move(run_id, RunState.CANCELLED, f"cancelled by {user or 'anonymous'}")

    def pause(self, run_id: str, user: str, address: str) -> ActionResult:
        return self._move(run_id, RunState.PAUSED, "")

    def resume(self, run_id: str, user: str, address: str) -> ActionResult:
        return self._move(run_id, RunState.RUNNING, "")

    def _kinds(self, records: list[RunRecord]) -> list[KindRow]:
        busy = {record.kind for record in records if not record.state.is_final}
        ends = {record.kind: record.finished_ms for record in reversed(records) if record.state is RunState.DONE}
        return [
            KindRow(
                kind.value,
                kind not in busy,
                "running" if kind in busy else "",
                now_ms() + 3_600_000 if kind is RunKind.BOOKIES else 0,
                ends.get(kind, 0),
            )
            for kind in RunKind
        ]

    def _view(self, record: RunRecord) -> RunView:
        return RunView(record, self._report_url if record.state is RunState.DONE else "")

    def _move(self, run_id: str, state: RunState, detail: str) -> ActionResult:
        with self._lock:
            record = self._records.get(run_id)
            if record is None:
                return ActionResult(ActionOutcome.UNKNOWN, f"there is no run {run_id}")
            if record.state.is_final:
                return ActionResult(ActionOutcome.REFUSED, f"run {run_id} has already ended")
            finished_ms = now_ms() if state.is_final else 0
            self._records[run_id] = replace(record, state=state, detail=detail, finished_ms=finished_ms)
        return ActionResult(ActionOutcome.ACCEPTED, f"run {run_id}: {state.value}", run_id)

    def _work(self, run_id: str) -> None:
        while (record := self._records[run_id]).done < STEPS or record.kind is ENDLESS or not self.may_end.is_set():
            if record.state is RunState.CANCELLED:
                return
            # The job returns no results: PySpark 4.1 leaves the sockets that receive results to the garbage collector.
            rows = self._spark.range(0, 2, 1, 2).mapInArrow(_slowly, "id long")
            rows.write.format("noop").mode("overwrite").save()
            with self._lock:
                record = self._records[run_id]
                if record.state is RunState.RUNNING:
                    total = ENDLESS_STEPS if record.kind is ENDLESS else STEPS
                    self._records[run_id] = replace(
                        record, phase="checking", done=min(record.done + 1, total), total=total, updated_ms=now_ms()
                    )
        with self._lock:
            done_record = replace(self._records[run_id], state=RunState.DONE, verdict="clean", finished_ms=now_ms())
            self._records[run_id] = done_record
