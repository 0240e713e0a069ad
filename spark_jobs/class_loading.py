"""``python -m spark_jobs.class_loading URI REPORTS``: run an audit to load Spark's classes, then end the JVM.

If this process was started with options to write an archive of classes, the JVM writes it when it exits.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext

from spark_jobs.runs.run import run_audit
from spark_jobs.session import SessionSettings, spark_session
from spark_jobs.settings import AuditSettings

_ARCHIVE_WAIT_S_MAX: Final = 120.0
"""Longest wait for the archive, which takes a few seconds on an idle machine."""


def load_classes(uri: str, report_dir: Path) -> None:
    """Audit the cluster at ``uri`` in a session with the Spark UI, as in the service, and wait until the JVM exits.

    Raises:
        BkhealError: see ``run_audit``.
        subprocess.TimeoutExpired: the JVM did not exit in time.
    """
    with spark_session(
        SessionSettings(master="local[2]", is_ui_enabled=True, extra=(("spark.ui.port", "0"),))
    ) as spark:
        run_audit(spark, AuditSettings(uri, report_dir))
    gateway: Any = SparkContext._gateway
    java = gateway.proc
    java.stdin.close()
    java.wait(_ARCHIVE_WAIT_S_MAX)


if __name__ == "__main__":
    load_classes(sys.argv[1], Path(sys.argv[2]))
