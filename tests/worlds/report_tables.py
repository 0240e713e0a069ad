"""Reports like those of audits with findings: a bookie is lost, repair makes progress, metadata is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bookie.metadata.bookies.registration import BookieState
from bookie.model.ids import BookieId, LedgerId
from bookie.model.severity import Severity
from spark_jobs.checks.findings import FINDING_DDL
from spark_jobs.kept import EVERYTHING, Kept
from spark_jobs.report import writing
from spark_jobs.report.counts import BookieCount, PublishOutcome, PublishResult, SeverityCount
from spark_jobs.report.summary import RunSummary
from spark_jobs.runs.mark_log import MarkLog
from tests.worlds import report as world

_TYPES: Final = {
    "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "boolean": pa.bool_(),
    "array<int>": pa.list_(pa.int32()), "array<string>": pa.list_(pa.string()),
}  # fmt: skip
FINDING_COLUMNS: Final = tuple((name, kind) for name, kind in (item.split() for item in FINDING_DDL.split(",")))
SCHEMA: Final = pa.schema([("run_id", pa.string()), *((name, _TYPES[kind]) for name, kind in FINDING_COLUMNS)])

Row = dict[str, Any]


def finding(
    ledger: int, *missing: str, severity: Severity = Severity.CRITICAL, fragment: int = 0, topic: str = ""
) -> Row:
    """Return a finding of a missing bookie."""
    owner = dict.fromkeys(("tenant", "namespace", "topic", "component", "subscription"))
    if topic:
        owner |= {"tenant": "public", "namespace": "public/default", "topic": topic, "component": "messages"}
    return {
        "kind": "MISSING_BOOKIE", "ledger_id": ledger, "fragment_index": fragment,
        "fragment_first_entry_id": 10 * fragment, "fragment_last_entry_id": 10 * fragment + 9,
        "is_last_fragment": True, "state": "CLOSED", "missing_positions": [0], "missing": list(missing),
        "copies_min": 1, "severity": severity.label, "severity_rank": severity.value, "entries": 10,
        "bytes_estimate": 1 << 20, "detail": None, "write_quorum": 2, "ack_quorum": 2, **owner,
    }  # fmt: skip


def unreadable(ledger: int) -> Row:
    """Return the finding of a ledger with unreadable metadata."""
    return {**dict.fromkeys(SCHEMA.names), "kind": "UNREADABLE_METADATA", "ledger_id": ledger, "missing": []}


def dangling(bookie: str) -> Row:
    """Return the finding of a leftover cookie, without a ledger."""
    return {**dict.fromkeys(SCHEMA.names), "kind": "DANGLING_COOKIE", "missing": [bookie]}


def run(day: int, rows: Sequence[Row] = (), *, lost: Sequence[str] = (), of: RunSummary = world.CLEAN) -> RunSummary:
    """Return the summary of a run on a day with the findings ``rows``."""
    worst: dict[int, Severity] = {}
    for row in rows:
        if row["severity_rank"] is not None:
            level = Severity(row["severity_rank"])
            worst[row["ledger_id"]] = min(level, worst.get(row["ledger_id"], level))
    severities = tuple(
        SeverityCount(
            level,
            sum(each is level for each in worst.values()),
            sum(row["severity_rank"] == level.value for row in rows),
            sum(row["bytes_estimate"] for row in rows if row["severity_rank"] == level.value),
        )
        for level in sorted({Severity(row["severity_rank"]) for row in rows if row["severity_rank"] is not None})
    )
    bookies = tuple(
        BookieCount(
            name,
            BookieState.UNREGISTERED if name in lost else BookieState.WRITABLE,
            True,
            100,
            120,
            len({row["ledger_id"] for row in rows if name in row["missing"]}),
            sum(name in row["missing"] for row in rows),
        )
        for name in ("a:3181", "b:3181", "c:3181")
    )
    damaged = sum(row["kind"] == "UNREADABLE_METADATA" for row in rows)
    published = PublishResult(PublishOutcome.PUBLISHED if worst else PublishOutcome.NOTHING_TO_PUBLISH, len(worst))
    return world.at(
        replace(
            of,
            severities=severities,
            bookies=bookies,
            worst_ledgers=(),
            counts=replace(of.counts, unreadable=damaged),
            published=published,
        ),
        day,
    )


def write(
    report_dir: Path, summary: RunSummary, rows: Sequence[Row] = (), *, kept: Kept = EVERYTHING, parts: int = 2
) -> None:
    """Write the report of a run that marked its findings, in several files as Spark does."""
    directory = writing.prepare(report_dir, summary.run_id)
    write_findings(directory, rows, parts=parts)
    marks = MarkLog(directory / "tasks.parquet", summary.run_id)
    for ledger in sorted({row["ledger_id"] for row in rows if row["severity"]}):
        missing = {name for row in rows if row["ledger_id"] == ledger for name in row["missing"]}
        marks.add([(LedgerId(ledger), tuple(BookieId(name) for name in sorted(missing)))], summary.finished_ms - 100)
    marks.finish()
    writing.finish(report_dir, summary, kept=kept)


def write_findings(directory: Path, rows: Sequence[Row], *, parts: int = 2) -> None:
    """Write the table of findings to the directory of a run. With few rows, one of the files is empty."""
    table = directory / "findings.parquet"
    table.mkdir(parents=True)
    (table / "_SUCCESS").touch()
    named = [{**row, "run_id": directory.name} for row in rows]
    for number in range(parts):
        part = pa.Table.from_pylist(named[number::parts], SCHEMA)
        pq.write_table(part, table / f"part-{number:05}-4f.snappy.parquet")


HISTORY: Final[tuple[tuple[RunSummary, tuple[Row, ...]], ...]] = tuple(
    (run(day, rows, lost=lost), rows)
    for day, lost, rows in (
        (0, (), ()),
        (
            1,
            ("b:3181",),
            (
                finding(1, "b:3181", topic="persistent://public/default/orders"),
                finding(2, "b:3181", severity=Severity.BELOW_WRITE_QUORUM),
                finding(3, "b:3181", severity=Severity.BELOW_WRITE_QUORUM, topic="persistent://public/default/bills"),
                finding(3, "b:3181", fragment=1, topic="persistent://public/default/bills"),
            ),
        ),
        (
            2,
            ("b:3181", "c:3181"),
            (
                finding(
                    1, "b:3181", "c:3181", severity=Severity.NO_LIVE_COPY, topic="persistent://public/default/orders"
                ),
                finding(3, "b:3181", fragment=1, topic="persistent://public/default/bills"),
                finding(4, "c:3181", severity=Severity.BELOW_WRITE_QUORUM),
                unreadable(9),
            ),
        ),
    )
)
"""Three days: no finding; a lost bookie; ledger 2 repaired, another bookie lost, and damaged metadata."""


def write_history(report_dir: Path) -> None:
    """Write the reports of ``HISTORY``."""
    for summary, rows in HISTORY:
        write(report_dir, summary, rows)
