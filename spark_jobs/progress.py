"""Progress of an audit, for a progress bar or a log."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S: Final = 0.5
_STOP_DEADLINE_S: Final = 5.0


class Phase(enum.Enum):
    """Phases of an audit, in their order; a scan is repeated when a bookie leaves meanwhile."""

    PLAN = "planning"
    SCAN = "reading ledger metadata"
    CHECK = "checking"
    REPORT = "writing the report"
    PUBLISH = "marking ledgers"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """A phase began, or moved on."""

    phase: Phase
    done: int = 0
    total: int | None = None
    """Of the same unit as ``done``: Spark tasks in SCAN and CHECK, ledgers in PUBLISH; None: not known."""


Progress = Callable[[ProgressEvent], None]
"""Called in the audit's own thread and, during Spark jobs, in a helper thread; never in two at once."""


@contextmanager
def spark_tasks(spark: SparkSession, phase: Phase, group: str, progress: Progress) -> Iterator[None]:
    """Name the Spark jobs started inside after ``phase``, and report their tasks as they end.

    Jobs appear under ``group`` and with the phase as description in the Spark UI. A callback that raises ends the
    reporting, not the work.
    """
    context = spark.sparkContext
    context.setJobGroup(group, f"audit {group}: {phase.value}", interruptOnCancel=True)
    progress(ProgressEvent(phase))
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, phase, group, progress, stop), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join(_STOP_DEADLINE_S)


def _watch(spark: SparkSession, phase: Phase, group: str, progress: Progress, stop: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not stop.wait(_POLL_S):
        done = total = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in () if info is None else info.stageIds:
                if (counts := tracker.getStageInfo(int(stage))) is not None:
                    done += counts.numCompletedTasks
                    total += counts.numTasks
        if total:
            progress(ProgressEvent(phase, done, total))
