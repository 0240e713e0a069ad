"""Add the rows of a run to the tables of all runs.

Each run adds its own complete files and changes no others, so runs may end at the same time. The row in ``runs`` is
written last. Without it, the other rows of the run do not count (``sql``).
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.report.files import FINDINGS, HISTORY, TASKS, ReportDirError, write_file
from spark_jobs.report.summary import RunSummary
from spark_jobs.report.tables.files import NewerTablesError, check_version, day_dir, day_of, write_version
from spark_jobs.report.tables.merging import merge
from spark_jobs.report.tables.run_tables import bookies_table, runs_table
from spark_jobs.report.tables.unhealthy import write_next_state

_log = logging.getLogger(__name__)

MERGED_BYTES_MAX: Final = 32 << 20
"""If the findings of a run have at most this size, they are merged into one file. Larger ones are linked and need no
additional space."""


def add_run(report_dir: Path, summary: RunSummary) -> None:
    """Add a run: its findings, its marks, its bookies, and the run itself last.

    If a newer release wrote the tables, or their version is unknown, they stay unchanged, and this is logged. The
    report of the run does not depend on them.

    Raises:
        OSError: a file cannot be written.
        pa.ArrowException: the findings of the run cannot be read.
    """
    (report_dir / HISTORY).mkdir(parents=True, exist_ok=True)
    try:
        check_version(report_dir)
    except (NewerTablesError, ReportDirError) as error:
        _log.warning("the run is not added to the tables", extra={"run_id": summary.run_id, "reason": str(error)})
        return
    write_version(report_dir, summary.run_id)
    day = day_of(summary.finished_ms)
    findings = _add_findings(report_dir, summary.run_id, day)
    write_next_state(report_dir, summary, findings)
    tasks = report_dir / summary.run_id / TASKS
    if tasks.is_file():
        _link(tasks, _made(report_dir, "tasks", day) / f"{summary.run_id}.parquet")
    for name, table in (("bookies", bookies_table(summary)), ("runs", runs_table(summary))):
        write_table(_made(report_dir, name, day) / f"{summary.run_id}.parquet", table)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a small table as one file.

    Raises:
        OSError: the file cannot be written.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_file(path, sink.getvalue().to_pybytes())


def _add_findings(report_dir: Path, run_id: str, day: str) -> list[Path]:
    """Add the findings of a run, and return the files of findings that have rows."""
    source = report_dir / run_id / FINDINGS
    parts = sorted(path for path in source.glob("*.parquet") if not path.name.startswith((".", "_")))
    parts = [path for path in parts if pq.read_metadata(path).num_rows]
    if not parts:
        return []
    directory = _made(report_dir, "findings", day)
    if len(parts) > 1 and sum(path.stat().st_size for path in parts) <= MERGED_BYTES_MAX:
        merge(parts, directory / f"{run_id}.parquet")
        return parts
    for number, path in enumerate(parts):
        name = f"{run_id}.parquet" if len(parts) == 1 else f"{run_id}-{number:04}.parquet"
        _link(path, directory / name)
    return parts


def _made(report_dir: Path, table: str, day: str) -> Path:
    directory = day_dir(report_dir, table, day)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _link(source: Path, target: Path) -> None:
    """Link a file under a second name, or copy it if the file system has no links."""
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
    temporary.replace(target)
