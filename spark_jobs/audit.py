"""Run one audit: ``spark-submit spark_jobs/audit.py`` or ``python -m spark_jobs.audit``.

The audit itself is in ``spark_jobs.runs.run``, its command line in ``spark_jobs.one_shot``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from bookie.model.exit_codes import ExitCode
from bookie.runtime.closed_pipes import prepare_streams
from bookie.runtime.logs import setup_logging
from spark_jobs.one_shot.command import run_command
from spark_jobs.runs.run import AuditResult, run_audit, run_check
from spark_jobs.settings import AuditSettings, FailOn

__all__ = ["AuditResult", "AuditSettings", "ExitCode", "FailOn", "main", "run_audit", "run_check"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one audit from a command line; return its exit code."""
    prepare_streams()
    setup_logging(logging.WARNING)
    return run_command(argv)


if __name__ == "__main__":
    sys.exit(main())
