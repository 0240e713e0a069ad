"""The report directory of a service at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.service.report_directory import warn_if_unusable


async def test_a_usable_directory_is_created_and_stays_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reports = tmp_path / "new" / "reports"
    await warn_if_unusable(reports)
    assert list(reports.iterdir()) == []
    assert caplog.records == []


async def test_an_unusable_directory_is_logged_as_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    await warn_if_unusable(tmp_path / "file" / "reports")
    (record,) = caplog.records
    assert (record.levelname, record.__dict__["path"]) == ("ERROR", str(tmp_path / "file" / "reports"))
