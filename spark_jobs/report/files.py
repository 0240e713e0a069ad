"""Names of the files in a report directory, and atomic writing of a file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from bookie.model.errors import PermanentError

SUMMARY: Final = "summary.json"
PAGE: Final = "report.html"
INDEX: Final = "index.html"
FINDINGS: Final = "findings.parquet"
BOOKIES: Final = "bookies.parquet"
RUNS: Final = "runs.parquet"
TASKS: Final = "tasks.parquet"
SHADOW: Final = "shadow.parquet"
HISTORY: Final = "history"
_PROBE: Final = ".bkheal-probe"
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class ReportDirError(PermanentError):
    """The report directory cannot be read or written."""


def is_run_id(name: str) -> bool:
    """Return whether a directory name can be that of a report: without dots, separators, and quoting in a URL."""
    return _RUN_ID.fullmatch(name) is not None


def require_writable(report_dir: Path) -> None:
    """Create the report directory if it is missing, and write to it.

    Raises:
        ReportDirError: this is impossible.
    """
    probe = report_dir / _PROBE
    try:
        report_dir.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise ReportDirError(
            f"cannot write to the report directory {report_dir.absolute()}: {error.strerror}; name another with "
            "--report-dir"
        ) from error


def write_file(path: Path, data: bytes, *, temporary: Path | None = None) -> None:
    """Write a file atomically. A reader finds it complete or not at all, even after a crash.

    Args:
        path: path of the file; an older file is replaced.
        data: its content.
        temporary: the file to write first, on the same file system; by default a hidden file in the same directory. Two
            processes that write the same file at the same time need different ones.

    Raises:
        OSError: the file cannot be written.
    """
    # A leading dot or underscore hides a file from Spark's table readers.
    temporary = temporary or path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
