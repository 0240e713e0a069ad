"""Names of what is in a report directory, and writing a file whole."""

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
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class ReportDirError(PermanentError):
    """The report directory cannot be read or written."""


def is_run_id(name: str) -> bool:
    """Whether a directory of this name can be a report: no dots, no separators, nothing that a URL must quote."""
    return _RUN_ID.fullmatch(name) is not None


def write_file(path: Path, data: bytes, *, temporary: Path | None = None) -> None:
    """Write a file whole: a reader finds it complete, or not at all, also after a crash.

    Args:
        path: of the file; an older one is replaced.
        data: its content.
        temporary: the file to write first, on the same file system; by default a hidden neighbour. Files written by two
            processes at a time need one each.

    Raises:
        OSError: it cannot be written.
    """
    # A leading dot or underscore hides a file from Spark's table readers.
    temporary = temporary or path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
