"""Our side of the comparison of audits: a separate process that audits once for each line ``audit`` on its input.

The Spark session exists before ``ready``, as Apache's Java process does. The first audit is like a one-shot run, whose
driver marks a small cluster first. In a run from the command line, it does so even before the session exists.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bookie.runtime.clock import SystemClock
from spark_jobs.report.summary import RunSummary
from spark_jobs.runs.port import Phase, ProgressEvent
from spark_jobs.session import SessionSettings, starting_session
from spark_jobs.settings import AuditSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Marks:
    """The start of each phase. The marks of a phase count as complete only when the next phase begins."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._started_s = self._clock.monotonic_s()
        self._started_ms = self._clock.epoch_ms()
        self._begun: list[tuple[Phase, float]] = []

    def note(self, event: ProgressEvent) -> None:
        if not self._begun or self._begun[-1][0] is not event.phase:
            self._begun.append((event.phase, self._clock.monotonic_s() - self._started_s))

    def published_s(self, summary: RunSummary, ended_s: float) -> float:
        """Return the seconds to the last published task.

        This is the driver's last mark, if the pass over all ledgers changed no task after it. Otherwise it is the time
        when writing the report begins.
        """
        early = summary.driver_marks
        if early.marked and early.marked == summary.published.tasks_changed:
            return (early.last_mark_ms - self._started_ms) / 1000
        return next((at for phase, at in self._begun if phase is Phase.REPORT), ended_s)

    def phases(self, ended_s: float) -> dict[str, float]:
        ends = [*(at for _, at in self._begun[1:]), ended_s]
        return {phase.value: round(end - at, 3) for (phase, at), end in zip(self._begun, ends, strict=True)}

    def now_s(self) -> float:
        return self._clock.monotonic_s() - self._started_s


def main() -> int:
    """Arguments: metadata URI, directory for reports."""
    settings = AuditSettings(sys.argv[1], Path(sys.argv[2]))
    with starting_session(SessionSettings()) as started:
        from spark_jobs.runs.run import AuditResult, run_audit

        started()
        _say({"event": "ready"})
        session: SparkSession | Callable[[], SparkSession] = started  # the first audit is that of a one-shot run
        for line in sys.stdin:
            if line.strip() != "audit":
                continue
            marks = _Marks()
            result: AuditResult = run_audit(session, settings, marks.note)
            session = started()
            ended_s = marks.now_s()
            _say(
                {
                    "event": "audited",
                    "seconds": marks.published_s(result.summary, ended_s),
                    "finished_s": ended_s,
                    "phases_s": marks.phases(ended_s),
                    "published": result.summary.published.outcome.value,
                }
            )
    return 0


def _say(event: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
