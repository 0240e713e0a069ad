"""The report of a run. If it cannot be written, for example to a full disk, findings and marks must not be affected.

The invariant: a run that marks never ends because of its report. Marks are written first. If a part of the report
cannot be written, the run stores the reason, writes nothing more of the report, does the rest of its work, and ends as
complete. Its record has its verdict, its counts, and the reason (R52). So the run counts as done, and is not repeated.

If the report is the purpose of a run (``outcome.is_for_report``), the run does not start without a directory, and
without its report it is not a success.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from bookie.model.ids import LedgerId
from bookie.model.topology import Topology
from spark_jobs.kept import Kept
from spark_jobs.report import writing
from spark_jobs.report.files import FINDINGS, TASKS, ReportDirError
from spark_jobs.report.findings.limited import note_limit
from spark_jobs.report.history import NoSuchReportError
from spark_jobs.report.impact import Impact
from spark_jobs.report.impact_rows import read_impact
from spark_jobs.report.store import ReportStore
from spark_jobs.report.store_runs import note_removed, remove_runs, send_run
from spark_jobs.report.summary import RunSummary
from spark_jobs.runs.findings import write_findings
from spark_jobs.runs.hadoop_files import move_to_local_folder, remove_folder
from spark_jobs.runs.mark_log import MarkLog
from spark_jobs.runs.marking.held_back import HeldBookies
from spark_jobs.runs.marking.publish import Marking

_log = logging.getLogger(__name__)

_PROBE: Final = ".bkheal-probe"
"""Name of a file that is written and removed before the findings."""
_PROBE_BYTES: Final = 128 << 10
"""Its size. The page of a report needs about as much."""
_FULL: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
_REMEDY: Final = "; free space there, or lower --reports-kept and --history-mib"
_CAUSES_MAX: Final = 8
"""Largest number of causes of a Java error that are read to find its first cause."""


class RunReport:
    """The report of one run. Belongs to the run's thread."""

    def __init__(
        self,
        report_dir: Path,
        run_id: str,
        *,
        is_needed: bool,
        store: ReportStore | None = None,
        findings_dir: str = "",
    ) -> None:
        """Make the directory. If there is a store, the report is sent to it when the report is finished.

        ``findings_dir`` is the URI of the folder that executors write findings to; empty: executors share
        ``report_dir``.

        Raises:
            ReportDirError: the directory cannot be made, and the report is needed (``outcome.is_for_report``).
        """
        self._report_dir = report_dir
        self._store = store
        self.directory = report_dir / run_id
        self._findings_dir = findings_dir
        self._begun: tuple[SparkSession, str] | None = None
        """The folder that executors write findings to, until the driver has moved them or has named it as their place.
        """
        self.problem: ReportDirError | None = None
        """The reason why there is no report."""
        self._marks = MarkLog(self.directory / TASKS, run_id)
        try:
            writing.prepare(report_dir, run_id)
        except ReportDirError as error:
            if is_needed:
                raise
            self._set_problem(error)

    @contextlib.contextmanager
    def tolerated(self) -> Iterator[None]:
        """Wrap Spark jobs that only write the report: an error is stored in ``problem`` and not raised.

        ``RunStoppedError`` is still raised.
        """
        try:
            yield
        except (PySparkException, Py4JError) as error:
            where = self._findings_dir or self.directory
            self._set_problem(ReportDirError(f"cannot write the findings to {where}: {_cause(error)}"))
            self._remove_begun_findings()

    def write_findings(self, ledgers: DataFrame, others: DataFrame, held: HeldBookies | None = None) -> None:
        """Add findings (``findings.write_findings``), unless the report has already failed.

        Call it inside ``tolerated``.
        """
        if self.problem is not None:
            return
        run_id, here = self.directory.name, self.directory / FINDINGS
        if not self._findings_dir:
            if (refused := self._probe()) is not None:
                self._set_problem(refused)
                return
            write_findings(ledgers, others, here.resolve().as_uri(), run_id, held)
            return
        folder = f"{self._findings_dir.rstrip('/')}/{run_id}"
        self._begun = ledgers.sparkSession, folder
        write_findings(ledgers, others, folder, run_id, held)
        try:
            move_to_local_folder(ledgers.sparkSession, folder, here)
        except OSError as error:
            problem = f"cannot write the findings to {here}: {error.strerror}; they are in {folder}"
            self._set_problem(ReportDirError(problem))
        self._begun = None

    def _probe(self) -> ReportDirError | None:
        """Return why nothing can be written, such as a full disk; None: a small file was written.

        Otherwise Spark would try each task of the write four times, with a hundred lines of its log for each attempt.
        """
        path = self.directory / _PROBE
        try:
            try:
                path.write_bytes(bytes(_PROBE_BYTES))
            finally:
                path.unlink(missing_ok=True)
        except OSError as error:
            return ReportDirError(f"cannot write the findings to {self.directory}: {error.strerror}")
        return None

    def note_limit(self, rank: int, ledger_id: LedgerId, marked: AbstractSet[LedgerId]) -> None:
        """Note in the written findings that their ledgers were not marked from this one on (``limited.note_limit``).

        If that fails, the report fails.
        """
        if self.problem is None:
            try:
                note_limit(self.directory / FINDINGS, rank, ledger_id, marked)
            except (OSError, pa.ArrowException) as error:
                self._set_problem(ReportDirError(f"cannot write the findings to {self.directory}: {error}"))

    def note_marks(self, marks: Sequence[Marking], now_ms: int) -> None:
        """Add newly confirmed marks, unless the report has already failed.

        If they cannot be written, the report fails.
        """
        if self.problem is None:
            with self._marks_problem_on_error():
                self._marks.add(marks, now_ms)

    def impact(self) -> Impact:
        """Return the impact of the written findings on topics; empty: the report has failed."""
        if self.problem is not None:
            return Impact()
        try:
            return read_impact(self._report_dir, self.directory.name)
        except NoSuchReportError as error:
            run_id = self.directory.name
            _log.warning("the impact of the run is unknown", extra={"run_id": run_id, "reason": str(error)})
            return Impact()

    def finish(self, summary: RunSummary, topology: Topology | None, kept: Kept) -> Path:
        """Write all of the report except the findings, unless it has already failed; return the path of the summary.

        Old reports are removed from the directory, and the same ones from the store, even if this report fails, as it
        does on a full disk. If the store cannot be written, a later run removes them there.
        """
        path = self.directory / writing.SUMMARY
        if self.problem is None:
            with self._marks_problem_on_error():
                self._marks.finish()
        if self.problem is None:
            try:
                path, pruned = writing.finish(self._report_dir, summary, topology=topology, kept=kept)
            except ReportDirError as error:
                self._set_problem(error)
        if self.problem is not None:
            pruned = writing.keep(self._report_dir, summary.finished_ms, kept)
        if self._store is not None:
            note_removed(self._report_dir, pruned)
            if self.problem is not None or self._send(self._store):
                remove_runs(self._store, self._report_dir)
        return path

    def _send(self, store: ReportStore) -> bool:
        """Send the complete report to the store; return whether that succeeded."""
        run_id = self.directory.name
        try:
            send_run(store, self._report_dir, run_id)
        except ReportDirError as error:
            self.problem = error
            _log.error("the report is not in the store", extra={"run_id": run_id, "reason": str(error)})
        return self.problem is None

    def abandon(self) -> None:
        """Remove the directory of a failed run if nothing was written to it, and the findings that were not moved."""
        self._discard_marks()
        writing.abandon(self.directory)
        self._remove_begun_findings()

    def _remove_begun_findings(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            remove_folder(*begun)

    def _discard_marks(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            self._marks.discard()

    @contextlib.contextmanager
    def _marks_problem_on_error(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            self._set_problem(ReportDirError(f"cannot write the marks to {self.directory}: {error}"))

    def _set_problem(self, error: ReportDirError) -> None:
        self._discard_marks()
        left = self.directory / FINDINGS
        with contextlib.suppress(OSError):
            left.rmdir()  # empty if Spark could not write a row
        writing.abandon(self.directory)  # otherwise each run on a full disk would leave an empty directory
        kept = f"; the findings of this run that were written are in {left}" if os.path.isdir(left) else ""
        remedy = _REMEDY if any(reason in str(error) for reason in _FULL) else ""
        self.problem = ReportDirError(f"{error}{kept}{remedy}")
        _log.error("the report of the run is missing", extra={"run_id": self.directory.name, "reason": str(error)})


def _cause(error: Exception) -> str:
    """Return the first cause of a Java error (the file system's reason), or without causes its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")][:_CAUSES_MAX]
    return causes[-1].removeprefix("Caused by: ") if causes else (lines or [type(error).__name__])[0]
