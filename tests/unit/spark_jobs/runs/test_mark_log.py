"""The marks of a run in a file that appears only when it is complete; a failure to write it never stops the run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import SparkRuntimeException

from bookie.model.ids import BookieId, LedgerId
from spark_jobs.kept import Kept
from spark_jobs.report import writing
from spark_jobs.report.history import reports
from spark_jobs.runs import mark_log, run_report
from spark_jobs.runs.mark_log import MarkLog
from spark_jobs.runs.run_report import RunReport
from tests.worlds import report as world

A = BookieId("a:3181")


def marks(first: int, last: int) -> list[tuple[LedgerId, tuple[BookieId, ...]]]:
    return [(LedgerId(number), (A,)) for number in range(first, last + 1)]


def test_the_file_appears_complete_with_every_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark_log, "_ROWS", 3)
    path = tmp_path / "tasks.parquet"
    log = MarkLog(path, "run")
    for first in (1, 3, 5, 7):
        log.add(marks(first, first + 1), 1_000 * first)
        assert not path.exists()
    log.finish()
    rows = pq.read_table(path).to_pylist()
    assert [(row["run_id"], row["ledger_id"], row["missing"]) for row in rows] == [
        ("run", number, ["a:3181"]) for number in range(1, 9)
    ]
    assert rows[-1]["marked_at"] == datetime.fromtimestamp(7, UTC)
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_mark_there_is_no_file(tmp_path: Path) -> None:
    log = MarkLog(tmp_path / "tasks.parquet", "run")
    log.finish()
    log.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_stops_leaves_no_marks_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark_log, "_ROWS", 1)
    report = RunReport(tmp_path, "run", is_needed=True)
    report.note_marks(marks(1, 5), 1)
    report.abandon()
    assert list(tmp_path.iterdir()) == []


def test_marks_that_cannot_be_written_fail_only_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark_log, "_ROWS", 1)
    report = RunReport(tmp_path, "run", is_needed=True)
    report.directory.rmdir()
    report.note_marks(marks(1, 5), 1)
    report.note_marks(marks(6, 9), 1)
    assert isinstance(report.problem, writing.ReportDirError)
    assert "cannot write the marks" in str(report.problem)


def test_spark_is_not_asked_to_write_findings_to_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    rows: Any = object()
    monkeypatch.setattr(run_report, "write_findings", lambda *found: asked.append(found))
    report = RunReport(tmp_path, "run", is_needed=True)
    report.write_findings(rows, rows)
    assert (len(asked), report.problem, list(report.directory.iterdir())) == (1, None, [])
    (report.directory / ".bkheal-probe").symlink_to("/dev/full")
    report.write_findings(rows, rows)
    assert len(asked) == 1
    assert "cannot write the findings" in str(report.problem)
    assert "No space left on device; free space there, or lower --reports-kept" in str(report.problem)
    assert list(tmp_path.iterdir()) == [], "a run without a report leaves nothing"


def test_a_disk_that_fills_while_spark_writes_leaves_nothing_and_names_the_remedy(tmp_path: Path) -> None:
    report = RunReport(tmp_path, "run", is_needed=True)

    def write_on_a_full_disk() -> None:
        (report.directory / "findings.parquet").mkdir()
        reason = "java.io.IOException: No space left on device"
        raise SparkRuntimeException(f"[TASK_WRITE_FAILED] Task failed\n\tat org.apache.spark\nCaused by: {reason}")

    with report.tolerated():
        write_on_a_full_disk()
    assert str(report.problem) == (
        f"cannot write the findings to {report.directory}: java.io.IOException: No space left on device; free space "
        "there, or lower --reports-kept and --history-mib"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_report_fails_removes_old_reports(tmp_path: Path) -> None:
    world.write(tmp_path, *(world.at(world.CLEAN, day) for day in range(3)))
    summary = world.at(world.CLEAN, 3)
    report = RunReport(tmp_path, summary.run_id, is_needed=True)
    (report.directory / "summary.json").mkdir()  # the report fails at its last step, as with a full disk
    report.finish(summary, None, Kept(reports_max=1))
    assert report.problem is not None
    assert [each.run_id for each in reports(tmp_path)] == [world.at(world.CLEAN, 2).run_id]
