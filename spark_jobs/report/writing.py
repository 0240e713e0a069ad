"""Reports on disk: one directory per run, and tables of all runs. Importable without Spark.

<report_dir>/index.html                   all runs, for people
<report_dir>/<run_id>/findings.parquet/   written by Spark, see ``run_report``; absent if the brake held
<report_dir>/<run_id>/bookies.parquet     one row per bookie
<report_dir>/<run_id>/runs.parquet        one row: this run
<report_dir>/<run_id>/tasks.parquet       what the run marked, see ``mark_log``; absent if it marked nothing
<report_dir>/<run_id>/report.html         the run, for people
<report_dir>/<run_id>/shadow.parquet      only of `bkheal audit shadow`, after the summary, see ``spark_jobs.shadow``
<report_dir>/<run_id>/summary.json        written last: a directory without it is not a report
<report_dir>/history/                     the same rows of all runs as tables, see ``tables.files``
"""

from __future__ import annotations

import contextlib
import json
import logging
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa

from bookie.model.run import RunKind
from bookie.model.topology import Topology
from spark_jobs.kept import EVERYTHING, Kept
from spark_jobs.report.files import (
    BOOKIES,
    FINDINGS,
    HISTORY,
    INDEX,
    PAGE,
    RUNS,
    SUMMARY,
    ReportDirError,
    write_file,
)
from spark_jobs.report.history import earlier_run_to_compare, is_whole, prune, remove_left, reports, summaries
from spark_jobs.report.page.render import render_index, render_report
from spark_jobs.report.summary import RunSummary
from spark_jobs.report.tables.run_tables import bookies_table, runs_table, trend
from spark_jobs.report.tables.upkeep import compact_and_prune
from spark_jobs.report.tables.writing import add_run, write_table

__all__ = [
    "BOOKIES",
    "FINDINGS",
    "HISTORY",
    "INDEX",
    "PAGE",
    "RUNS",
    "SUMMARY",
    "Kept",
    "ReportDirError",
    "abandon",
    "bookies_table",
    "earlier_ledgers",
    "finish",
    "keep",
    "prepare",
    "renew_index",
    "runs_table",
    "summaries",
]

_log = logging.getLogger(__name__)

TREND_RUNS: Final = 30
"""Number of runs in the line chart of a page: a month of daily runs."""
INDEX_RUNS: Final = 300
"""Largest number of runs in the index."""
_INDEX_ROUNDS: Final = 5
"""Largest number of rounds. A round is repeated if another run ended during it. More repetitions are rare, and the next
run renews the index anyway."""


def prepare(report_dir: Path, run_id: str) -> Path:
    """Make the directory of a run and return it.

    Raises:
        ReportDirError: the directory exists, or cannot be made.
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
    """Remove the directory of a run that failed before the first write. Findings that were written stay."""
    with contextlib.suppress(OSError):
        directory.rmdir()


def finish(
    report_dir: Path, summary: RunSummary, *, topology: Topology | None = None, kept: Kept = EVERYTHING
) -> tuple[Path, list[str]]:
    """Write everything except the findings, the summary last.

    The run counts as soon as the summary is written. Compaction, removal of old data and renewal of the index are best
    effort: failures are logged.

    Args:
        report_dir: the report directory of all runs.
        summary: the summary of this run, whose directory is prepared.
        topology: the locations of bookies, for the page; None: unknown.
        kept: how much to keep.

    Returns:
        The path of the summary, and the ids of the runs whose reports were removed.

    Raises:
        ReportDirError: a file cannot be written, or cannot hold a value of the run.
    """
    directory = report_dir / summary.run_id
    try:
        page = _page(report_dir, summary, topology)
        for name, table in ((BOOKIES, bookies_table(summary)), (RUNS, runs_table(summary))):
            write_table(directory / name, table)
        add_run(report_dir, summary)
        write_file(directory / PAGE, page)
        write_file(directory / SUMMARY, json.dumps(summary.to_json(), indent=2).encode() + b"\n")
    except OSError as error:
        raise ReportDirError(f"cannot write the report in {directory}: {error.strerror}") from error
    except pa.ArrowException as error:
        raise ReportDirError(f"cannot read the findings in {directory}: {error}") from error
    except (ValueError, ArithmeticError) as error:
        # Numbers and times in the summary come from metadata and from bookies, so they may be damaged (R52).
        raise ReportDirError(f"cannot write the report in {directory}: {error}") from error
    pruned = keep(report_dir, summary.finished_ms, kept)
    renew_index(report_dir, directory)
    return directory / SUMMARY, pruned


def keep(report_dir: Path, now_ms: int, kept: Kept) -> list[str]:
    """Remove data beyond the limits of ``kept`` and what killed runs left, and compact the tables. Failures are logged.

    Args:
        report_dir: the report directory of all runs.
        now_ms: the current time, epoch milliseconds.
        kept: how much to keep.

    Returns:
        Ids of the runs whose reports were removed.
    """
    pruned = [] if kept.reports_max is None else prune(report_dir, kept.reports_max)
    remove_left(report_dir, now_ms)
    compact_and_prune(report_dir, now_ms, kept)
    return pruned


def earlier_ledgers(report_dir: Path, instance_id: str) -> int | None:
    """Return the number of ledgers in the newest complete report of the cluster; None: there is none.

    Reports of replicas checks are ignored, because such a check may leave ledgers out.
    """
    for summary in reports(report_dir):
        is_of_all = summary.kind is not RunKind.REPLICAS and is_whole(summary)
        if is_of_all and summary.cluster.instance_id == instance_id:
            return summary.counts.ledgers
    return None


def _page(report_dir: Path, summary: RunSummary, topology: Topology | None) -> bytes:
    previous = earlier_run_to_compare(reports(report_dir), summary)
    return render_report(summary, previous, trend(report_dir, summary, TREND_RUNS), topology)


def renew_index(report_dir: Path, directory: Path) -> None:
    """Write the index until it lists all runs, because another run may end and write the index at the same time."""
    try:
        listed = None
        for _ in range(_INDEX_ROUNDS):
            runs = tuple(islice(reports(report_dir), INDEX_RUNS))
            if listed == (listed := [run.run_id for run in runs]):
                break
            write_file(report_dir / INDEX, render_index(runs), temporary=directory / f".{INDEX}.tmp")
    except OSError as error:
        _log.warning("the index of reports cannot be written", extra={"path": str(report_dir), "reason": str(error)})
