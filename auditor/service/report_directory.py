"""Checks the report directory when a service starts: without this check, a fault of it would appear only in a run."""

from __future__ import annotations

import logging
from pathlib import Path

from auditor.service.runs.spark_holder import run_in_daemon_thread
from spark_jobs.report.files import ReportDirError, require_writable

_log = logging.getLogger(__name__)


async def warn_if_unusable(report_dir: Path) -> None:
    """Create the directory if needed and write to it; log an error if this is impossible."""
    try:
        await run_in_daemon_thread("report directory", lambda: require_writable(report_dir))
    except ReportDirError as error:
        _log.error(
            "no report can be written, audits only mark ledgers",
            extra={"path": str(report_dir.absolute()), "reason": str(error)},
        )
