"""Name and watch the Spark jobs of one phase, and cancel them if the run has to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookie.model.errors import BkhealError
from spark_jobs.runs.port import Gate, Phase, Progress, ProgressEvent, RunStoppedError
from spark_jobs.runs.reading.ledger_scan import store_error
from spark_jobs.runs.spark_failures import spark_failure

_log = logging.getLogger(__name__)

_POOL: Final = "spark.scheduler.pool"
_POLL_S: Final = 0.5
_STOP_DEADLINE_S: Final = 5.0


@contextmanager
def spark_tasks(
    spark: SparkSession,
    phase: Phase,
    group: str,
    progress: Progress,
    gate: Gate,
    *,
    pool: str,
    is_reported: bool = True,
) -> Iterator[None]:
    """Name the Spark jobs started inside by ``phase``, report their tasks as they end, and cancel them on a stop.

    Jobs appear under ``group`` and with the phase as description in the Spark UI. Names and the scheduler's pool belong
    to the calling thread, so runs in several threads of one session do not mix: all of them get a fair share of the
    executors. If the callback raises an error, the reporting stops, and the work continues.

    Args:
        spark: the session.
        phase: the phase of the jobs.
        group: the run's unique id.
        progress: receives the phase and the progress of its tasks.
        gate: is passed first, and then checked twice a second for a reason to stop.
        pool: a pool of Spark's scheduler. The runs of one lane share it, and never run at the same time.
        is_reported: False if the caller reports the progress itself.

    Raises:
        RunStoppedError: from ``gate``; running jobs were cancelled.
        StoreUnavailableError, AccessDeniedError, ZooKeeperAccessError: the metadata store refused a task.
        MetadataReadAgainError, ExecutorEnvironmentError, ScanFailedError: Spark failed. In the phase REPORT, Spark's
            own error is raised instead (``RunReport.tolerated``).
    """
    gate.pass_through()
    context = spark.sparkContext
    context.setJobGroup(group, f"audit {group}: {phase.value}", interruptOnCancel=True)
    context.setLocalProperty(_POOL, pool)
    if is_reported:
        progress(ProgressEvent(phase))
    watch = _Watch(spark, phase, group, progress if is_reported else None, gate)
    watcher = threading.Thread(target=watch.run, name=f"watch {group}", daemon=True)
    watcher.start()
    try:
        yield
    except BkhealError as error:
        if watch.stopped_because is not None:
            raise RunStoppedError(watch.stopped_because) from error
        raise
    except (PySparkException, Py4JError, ConnectionError) as error:
        if watch.stopped_because is not None:
            raise RunStoppedError(watch.stopped_because) from error
        if phase is Phase.REPORT:
            raise
        refused = store_error(error)
        raise refused or spark_failure(error, phase.value) from error
    finally:
        watch.end.set()
        watcher.join(_STOP_DEADLINE_S)


class _Watch:
    """A helper thread that watches the Spark jobs of a phase."""

    def __init__(self, spark: SparkSession, phase: Phase, group: str, progress: Progress | None, gate: Gate) -> None:
        self._context = spark.sparkContext
        self._phase = phase
        self._group = group
        self._progress = progress
        self._gate = gate
        self.end = threading.Event()
        self.stopped_because: str | None = None
        """Why the run must stop. It is set before the jobs are cancelled."""

    def run(self) -> None:
        """Check twice a second until the end.

        After a stop, each check cancels jobs, because a job may start between two checks.
        """
        while not self.end.wait(_POLL_S):
            if (reason := self._gate.stop_reason()) is not None:
                self.stopped_because = reason
            with suppress(Py4JError, OSError):  # a driver that has ended has no jobs to cancel
                if reason is not None:
                    self._context.cancelJobGroup(self._group)
                elif self._progress is not None:
                    self._report_progress(self._progress)

    def _report_progress(self, progress: Progress) -> None:
        tracker = self._context.statusTracker()
        done = total = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in () if info is None else info.stageIds:
                if (counts := tracker.getStageInfo(int(stage))) is not None:
                    done += counts.numCompletedTasks
                    total += counts.numTasks
        if total:
            try:
                progress(ProgressEvent(self._phase, done, total))
            except Exception:  # noqa: BLE001 - a callback is not ours, and cancelling must continue
                _log.exception("progress callback failed; progress of this phase is no longer reported")
                self._progress = None
