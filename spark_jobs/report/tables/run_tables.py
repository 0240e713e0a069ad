"""Parquet tables of a report: one run as rows, and the earlier runs from the history."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bookie.model.run import RunKind
from bookie.model.severity import Severity
from spark_jobs.report.counts import SeverityCount
from spark_jobs.report.files import ReportDirError
from spark_jobs.report.summary import RunSummary, Verdict
from spark_jobs.report.tables.files import table_files
from spark_jobs.report.tables.schemas import RUNS, SCHEMA_VERSION

_log = logging.getLogger(__name__)

_TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
_FILES_READ_MAX: Final = 400
"""Largest number of files of the history that are read for one trend: more than a year of days, in well under a
second."""
_DAY_LENGTH: Final = 8
_BYTES_MAX: Final = (1 << 63) - 1
"""The largest number that a table can hold. With damaged lengths of ledgers, a size may exceed it or be negative."""


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """A run in the history."""

    run_id: str
    finished_ms: int
    ledgers: int
    """Number of ledgers checked."""
    ledgers_found: int
    """Number of ledgers with findings."""
    ledgers_serious: int
    """Number of ledgers with one copy left or none."""
    is_complete: bool
    is_held: bool


def runs_table(summary: RunSummary) -> pa.Table:
    """Return the run as one row: scalars of the summary, and columns of ledgers, fragments and bytes per severity."""
    found = {count.severity: count for count in summary.severities}
    severities = {
        f"{unit}_{severity.label}": value
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
        "run_kind": summary.kind.value,
        "dry_run": summary.is_dry_run,
        "ledgers_waiting": summary.published.ledgers_waiting,
        "tables_version": SCHEMA_VERSION,
    }
    return pa.table({name: pa.array([value], _type(name, value)) for name, value in row.items()})


def bookies_table(summary: RunSummary) -> pa.Table:
    """Return one row per bookie."""
    rows = [
        asdict(bookie) | {"state": bookie.state.label, "run_id": summary.run_id, "finished": summary.finished_ms}
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


def trend_point(summary: RunSummary) -> TrendPoint:
    """Return the point of a run in its trend."""
    return _point(runs_table(summary).to_pylist()[0])


def trend(report_dir: Path, summary: RunSummary, count_max: int) -> tuple[TrendPoint, ...]:
    """Return the last runs of the same check on the same cluster, up to and including this one; the oldest first."""
    points = [trend_point(summary)]
    try:
        found = table_files(report_dir, RUNS.name)
    except ReportDirError as error:
        _log.warning("the runs in the history are unreadable", extra={"reason": str(error)})
        return tuple(points)
    # The names of files of earlier releases are run ids, which begin with the day of the start.
    dated = [(path.parent.name.removeprefix("day=").replace("-", ""), path) for path in found.partitioned]
    dated += [(path.stem[:_DAY_LENGTH], path) for path in found.flat]
    last = ""
    for number, (day, path) in enumerate(sorted(dated, reverse=True)):
        if number >= _FILES_READ_MAX or (len(points) >= count_max and day != last):
            break
        last = day
        points += [
            _point(row)
            for row in _rows(path)
            if row["run_id"] < summary.run_id and _is_same_cluster_and_kind(row, summary)
        ]
    return tuple(sorted(points, key=lambda point: point.run_id)[-count_max:])


def _is_same_cluster_and_kind(row: Mapping[str, Any], summary: RunSummary) -> bool:
    kind = row.get("run_kind") or RunKind.BOOKIES.value  # older rows have no kind
    return bool(row["instance_id"] == summary.cluster.instance_id and kind == summary.kind.value)


def _rows(path: Path) -> list[Mapping[str, Any]]:
    try:
        rows: list[Mapping[str, Any]] = pq.ParquetFile(path).read().to_pylist()
        for row in rows:
            _point(row)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, pa.ArrowException) as error:
        _log.warning("runs in the history are unreadable", extra={"path": str(path), "reason": str(error)})
        return []
    return rows


def _point(row: Mapping[str, Any]) -> TrendPoint:
    by_severity = {severity: int(row[f"ledgers_{severity.label}"]) for severity in Severity}
    return TrendPoint(
        run_id=str(row["run_id"]),
        finished_ms=round(row["finished"].timestamp() * 1000),
        ledgers=int(row["ledgers"]),
        ledgers_found=sum(by_severity.values()),
        ledgers_serious=sum(count for severity, count in by_severity.items() if severity <= Severity.CRITICAL),
        is_complete=bool(row["complete"]),
        is_held=row["verdict"] == Verdict.HELD.value,
    )


def _sizes(count: SeverityCount) -> tuple[tuple[str, int], ...]:
    return (
        ("ledgers", count.ledgers),
        ("fragments", count.fragments),
        ("bytes", max(0, min(count.bytes_estimate, _BYTES_MAX))),
    )


def _type(name: str, value: object) -> pa.DataType:
    if name in ("started", "finished"):
        return _TIMESTAMP
    if isinstance(value, bool):
        return pa.bool_()
    return pa.int64() if isinstance(value, int) else pa.string()
