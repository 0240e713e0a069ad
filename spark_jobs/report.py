"""Reports on disk: one directory per run, and tables of all runs. Importable without Spark.

<report_dir>/<run_id>/findings.parquet/   written by Spark, see ``report_sink``; absent when the brake held
<report_dir>/<run_id>/bookies.parquet     one row per bookie
<report_dir>/<run_id>/runs.parquet        one row: this run
<report_dir>/<run_id>/summary.json        written last: a directory without it is not a report
<report_dir>/history/{runs,bookies}/<run_id>.parquet    the same rows, to be read as one table of all runs
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bookie.model.errors import PermanentError
from bookie.model.severity import Severity
from spark_jobs.summary import API_VERSION, KIND, RunSummary, SeverityCount

_log = logging.getLogger(__name__)

SUMMARY: Final = "summary.json"
FINDINGS: Final = "findings.parquet"
BOOKIES: Final = "bookies.parquet"
RUNS: Final = "runs.parquet"
HISTORY: Final = "history"
_TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")


class ReportDirError(PermanentError):
    """The report directory cannot be written."""


def prepare(report_dir: Path, run_id: str) -> Path:
    """Make the directory of a run and return it.

    Raises:
        ReportDirError: it exists, or cannot be made.
    """
    directory = report_dir / run_id
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise ReportDirError(
            f"cannot make the report directory {directory}: {error.strerror}; choose another"
        ) from error
    return directory


def abandon(directory: Path) -> None:
    """Remove the directory of a run that failed before it wrote anything. Findings that were written stay."""
    with contextlib.suppress(OSError):
        directory.rmdir()


def finish(report_dir: Path, summary: RunSummary) -> Path:
    """Write everything but the findings, the summary last, and return the summary's path.

    Raises:
        ReportDirError: a file cannot be written.
    """
    directory = report_dir / summary.run_id
    try:
        for name, table in ((BOOKIES, bookies_table(summary)), (RUNS, runs_table(summary))):
            history = report_dir / HISTORY / name.removesuffix(".parquet")
            history.mkdir(parents=True, exist_ok=True)
            _write_table(directory / name, table)
            _write_table(history / f"{summary.run_id}.parquet", table)
        _write(directory / SUMMARY, json.dumps(summary.to_json(), indent=2).encode() + b"\n")
    except OSError as error:
        raise ReportDirError(f"cannot write the report in {directory}: {error.strerror}") from error
    return directory / SUMMARY


def summaries(report_dir: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the summaries of all finished runs, the newest first. Files that are no summary are logged and skipped."""
    # Run ids begin with their time.
    for path in sorted(report_dir.glob(f"*/{SUMMARY}"), reverse=True):
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            _log.warning("report summary is unreadable", extra={"path": str(path), "reason": str(error)})
            continue
        if isinstance(document, dict) and (document.get("apiVersion"), document.get("kind")) == (API_VERSION, KIND):
            yield document


def earlier_ledgers(report_dir: Path, instance_id: str) -> int | None:
    """Ledgers in the newest complete report of the cluster; None without one."""
    for document in summaries(report_dir):
        if document["cluster"]["instance_id"] == instance_id and document["complete"] and not document["held_because"]:
            return int(document["counts"]["ledgers"])
    return None


def runs_table(summary: RunSummary) -> pa.Table:
    """The run as one row: scalars of the summary, and ledgers, fragments and bytes of every severity as columns."""
    found = {count.severity: count for count in summary.severities}
    severities = {
        f"{unit}_{severity.name.lower()}": value
        for severity in Severity
        for unit, value in _sizes(found.get(severity, SeverityCount(severity, 0, 0, 0)))
    }
    row = {
        "run_id": summary.run_id,
        "instance_id": summary.cluster.instance_id,
        "started": summary.started_ms,
        "finished": summary.finished_ms,
        "verdict": summary.verdict.value,
        "complete": summary.is_complete,
        **asdict(summary.counts),
        **severities,
        "publish_outcome": summary.published.outcome.value,
        "ledgers_published": summary.published.ledgers,
        "tasks_changed": summary.published.tasks_changed,
    }
    return pa.table({name: pa.array([value], _type(name, value)) for name, value in row.items()})


def bookies_table(summary: RunSummary) -> pa.Table:
    """One row per bookie."""
    rows = [
        asdict(bookie) | {"state": bookie.state.value, "run_id": summary.run_id, "finished": summary.finished_ms}
        for bookie in summary.bookies
    ]
    schema = pa.schema(
        [
            ("run_id", pa.string()),
            ("finished", _TIMESTAMP),
            ("bookie_id", pa.string()),
            ("state", pa.string()),
            ("has_cookie", pa.bool_()),
            *[(name, pa.int64()) for name in ("ledgers", "fragments", "ledgers_found", "fragments_found")],
        ]
    )
    return pa.Table.from_pylist(rows, schema)


def _sizes(count: SeverityCount) -> tuple[tuple[str, int], ...]:
    return ("ledgers", count.ledgers), ("fragments", count.fragments), ("bytes", count.bytes_estimate)


def _type(name: str, value: object) -> pa.DataType:
    if name in ("started", "finished"):
        return _TIMESTAMP
    if isinstance(value, bool):
        return pa.bool_()
    return pa.int64() if isinstance(value, int) else pa.string()


def _write_table(path: Path, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    _write(path, sink.getvalue().to_pybytes())


def _write(path: Path, data: bytes) -> None:
    """Write a file whole: a reader finds it complete, or not at all, also after a crash."""
    # A leading dot or underscore hides a file from Spark's table readers.
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
