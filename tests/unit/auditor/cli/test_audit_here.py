"""``bkheal audit run`` in its own process: the phases on standard error, and the page of the report at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.cli.main import app
from spark_jobs.one_shot import run
from spark_jobs.runs.port import Phase, ProgressEvent
from spark_jobs.runs.run import AuditResult
from tests.worlds import report


def test_an_audit_names_each_phase_once_and_then_the_page_of_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def finished(shot: Any, progress: Any, ended: Any = None) -> AuditResult:
        for phase in (Phase.PLAN, Phase.SCAN, Phase.SCAN, Phase.DONE):
            progress(ProgressEvent(phase, 1, 2))
        return AuditResult("run", report.NO_LIVE_COPY, Path("reports/run/summary.json"))

    monkeypatch.setattr(run, "run_one_shot", finished)
    result = CliRunner().invoke(app, ["audit", "run", "--metadata-uri", "zk://h:1/ledgers"])
    said = ["planning ...", "reading ledger metadata ...", "report: reports/run/report.html"]
    assert result.stderr.splitlines() == said, result.exception
