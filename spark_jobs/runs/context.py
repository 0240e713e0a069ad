"""What every kind of run needs: its session, settings and cluster, its gate, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from bookie.metadata.runs.locks import RunLane
from bookie.model.run import RunKind
from bookie.runtime.clock import Clock
from spark_jobs.pacing.budget import Budget
from spark_jobs.runs.cluster_view import ClusterView
from spark_jobs.runs.marking.publish import Marking
from spark_jobs.runs.port import Gate, Phase, Progress, ProgressEvent
from spark_jobs.runs.run_report import RunReport
from spark_jobs.runs.spark_tasks import spark_tasks
from spark_jobs.settings import AuditSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run on an open cluster. Belongs to one thread."""

    kind: RunKind
    run_id: str
    session: Callable[[], SparkSession]
    """Returns the session; waits if Spark is still starting."""
    is_spark_starting: bool
    """Whether Spark may still be starting. Work that needs no Spark is then done first."""
    settings: AuditSettings
    cluster: ClusterView
    report: RunReport
    clock: Clock
    gate: Gate
    progress: Progress

    @property
    def spark(self) -> SparkSession:
        """The session.

        Raises:
            SparkStartError: Spark did not start.
        """
        return self.session()

    @property
    def budget(self) -> Budget:
        """The ZooKeeper budget of the run's tasks, which it shares with the other current runs."""
        return self.cluster.budget

    @property
    def is_incremental(self) -> bool:
        """Whether the run takes unchanged metadata from the image. The setting applies only to the bookie check."""
        return self.settings.incremental and self.kind is RunKind.BOOKIES

    def tasks(self, phase: Phase, *, is_reported: bool = True) -> AbstractContextManager[None]:
        """Wrap the Spark jobs of a phase; see ``spark_tasks``.

        The jobs of one pool wait for each other, so dry runs and marking runs use different pools.
        """
        pool = RunLane(self.kind, self.settings.is_dry_run).name
        return spark_tasks(self.spark, phase, self.run_id, self.progress, self.gate, pool=pool, is_reported=is_reported)

    def begin(self, phase: Phase) -> None:
        """Pass the gate, and report the start of a phase without Spark jobs.

        Raises:
            RunStoppedError: from the gate.
        """
        self.gate.pass_through()
        self.progress(ProgressEvent(phase))

    def note_marks(self, marks: Sequence[Marking]) -> None:
        """Record marks confirmed by the metadata store, for the report."""
        self.report.note_marks(marks, self.clock.epoch_ms())
