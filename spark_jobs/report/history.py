"""Read the runs in a report directory, find a run, and remove the oldest runs and what killed runs left.

A run is a directory with a summary of an audit; its name is the run's id. A directory without a summary belongs to an
active run, or to one that ended before its report was complete; it is removed only after ``LEFT_MS`` without a change.
Nothing else in the report directory is touched.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bookie.model.errors import PermanentError
from bookie.model.run import PAUSE_S_MAX, RunKind, is_misdated, started_ms
from spark_jobs.report.decoding import DamagedReportError, decode_summary, is_report
from spark_jobs.report.files import SUMMARY, is_run_id
from spark_jobs.report.summary import RunSummary

_log = logging.getLogger(__name__)

LATEST: Final = "latest"
BRIEF: Final = (
    *("run_id", "run_kind", "dry_run", "cluster", "started", "finished", "verdict", "complete", "counts", "findings"),
    "published",
)
"""The fields of a summary's document that lists contain."""
_PRUNED_PREFIX: Final = ".bkheal-pruned-"
"""Prefix of a directory that is being removed. After a crash, the next run continues."""

LEFT_MS: Final = (PAUSE_S_MAX + 86_400) * 1000
"""Time without a change after which the directory of a run without a summary is removed. It is longer than any pause of
a run, so an active run keeps its directory."""


class NoSuchReportError(PermanentError):
    """There is no report, no report with the given name, or more than one."""


def summaries(report_dir: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the documents of all finished runs, the newest first. Unreadable files are logged and skipped."""
    # Run ids begin with their time.
    for path in sorted(_paths(report_dir, f"*/{SUMMARY}"), reverse=True):
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("report summary is unreadable", extra={"path": str(path), "reason": str(error)})
            continue
        if is_report(document) and document.get("run_id") == path.parent.name and is_run_id(path.parent.name):
            yield document


def reports(report_dir: Path) -> Iterator[RunSummary]:
    """Yield the summaries of all finished runs, the newest first. Damaged ones are logged and skipped."""
    for document in summaries(report_dir):
        try:
            yield decode_summary(document)
        except DamagedReportError as error:
            _log.warning("report summary is damaged", extra={"run_id": document["run_id"], "reason": str(error)})


def latest(runs: Iterable[Mapping[str, Any]], now_ms: int) -> Mapping[str, Any] | None:
    """Return the first run that is not dated a day or more in the future by a wrong clock.

    If there is no such run, the first one is returned; None: there are no runs.

    Args:
        runs: documents with a ``run_id``, the newest first.
        now_ms: the current time, epoch milliseconds.
    """
    first = None
    for run in runs:
        if not is_misdated(str(run["run_id"]), now_ms):
            if first is not None:
                _log.warning("the clock of the newest run was ahead", extra={"run_id": str(first["run_id"])})
            return run
        first = first or run
    return first


def find(report_dir: Path, name: str) -> RunSummary:
    """Return the run whose id is ``name``, the only one whose id begins with it, or the latest run.

    Raises:
        NoSuchReportError: there is none, or several ids have this beginning.
        DamagedReportError: its summary cannot be read.
    """
    found = [
        document
        for document in summaries(report_dir)
        if name == LATEST or (name and str(document["run_id"]).startswith(name))
    ]
    exact = [document for document in found if document["run_id"] == name]
    if not found:
        what, advice = "holds no report", "`bkheal audit run` writes one"
        if name != LATEST:
            what, advice = f"{what} of a run {name!r}", "`bkheal report list` lists the reports there"
        raise NoSuchReportError(f"{report_dir.absolute()} {what}; {advice}, --report-dir names another place")
    if name != LATEST and not exact and len(found) > 1:
        raise ambiguous(name, [str(document["run_id"]) for document in found])
    chosen = latest(found, round(time.time() * 1000)) if name == LATEST else None
    return decode_summary(chosen or (exact or found)[0])


def ambiguous(name: str, run_ids: Sequence[str]) -> NoSuchReportError:
    """Return the error for a name with which several ids begin."""
    some = ", ".join(run_ids[:4])
    return NoSuchReportError(
        f"{len(run_ids)} runs begin with {name!r}: {some}{' ...' if len(run_ids) > 4 else ''}; give more of the id"
    )


def earlier_run_to_compare(runs: Iterable[RunSummary], summary: RunSummary) -> RunSummary | None:
    """Return the run to compare with: the newest complete earlier run of the same check and cluster."""
    for earlier in runs:
        is_alike = earlier.kind is summary.kind and earlier.cluster.instance_id == summary.cluster.instance_id
        if is_alike and earlier.run_id < summary.run_id and is_whole(earlier):
            return earlier
    return None


def brief(summary: RunSummary) -> dict[str, Any]:
    """Return the fields of a summary's document that lists contain. Pure."""
    document = summary.to_json()
    return {name: document[name] for name in BRIEF}


def is_whole(summary: RunSummary) -> bool:
    """Return whether a run saw every ledger and was not held by the brake."""
    return summary.is_complete and summary.held_because is None


def run_ids_to_prune(runs: Iterable[RunSummary], kept_max: int) -> list[str]:
    """Return the ids of runs to remove, the oldest first. Pure.

    The newest complete run of each check and cluster always stays, because the next run is compared with it.

    Args:
        runs: all runs.
        kept_max: number of runs to keep, at least 1.
    """
    newest_first = sorted(runs, key=lambda run: run.run_id, reverse=True)
    kept: set[tuple[str, RunKind]] = set()
    protected = set()
    for run in newest_first:
        key = (run.cluster.instance_id, run.kind)
        if is_whole(run) and key not in kept:
            kept.add(key)
            protected.add(run.run_id)
    return [run.run_id for run in reversed(newest_first[max(kept_max, 1) :]) if run.run_id not in protected]


def prune(report_dir: Path, kept_max: int) -> list[str]:
    """Remove the directories of the oldest runs; rows of the history stay. After a failure, the next call tries again.

    A run disappears in one step; its files are deleted after that. Failures are logged. Two processes may prune at the
    same time.

    Returns:
        Ids of the removed runs.
    """
    pruned = [run_id for run_id in run_ids_to_prune(reports(report_dir), kept_max) if _set_aside(report_dir, run_id)]
    _remove_set_aside(report_dir)
    return pruned


def remove_left(report_dir: Path, now_ms: int) -> None:
    """Remove the directories of runs that ended without a report, after ``LEFT_MS`` without a change (R153).

    Failures are logged, and the next call tries again.

    Args:
        report_dir: the report directory of all runs.
        now_ms: the current time, epoch milliseconds.
    """
    for directory in _paths(report_dir, "*"):
        try:
            is_left = _is_left(directory, now_ms)
        except OSError as error:
            _log.warning("reports are unreadable", extra={"path": str(directory), "reason": str(error)})
            continue
        if is_left and _set_aside(report_dir, directory.name):
            _log.info("the directory of a run that ended without a report was removed", extra={"path": str(directory)})
    _remove_set_aside(report_dir)


def _is_left(directory: Path, now_ms: int) -> bool:
    started = started_ms(directory.name) if is_run_id(directory.name) else None
    if started is None or now_ms - started < LEFT_MS or directory.is_symlink() or not directory.is_dir():
        return False
    if (directory / SUMMARY).exists():
        return False
    paths = [directory, *directory.rglob("*")]
    return max(path.lstat().st_mtime for path in paths) * 1000 <= now_ms - LEFT_MS


def _set_aside(report_dir: Path, run_id: str) -> bool:
    """Rename the directory of a run, so that it disappears in one step; return whether this call did it."""
    directory = report_dir / run_id
    if directory.is_symlink():
        return False
    try:
        directory.rename(report_dir / f"{_PRUNED_PREFIX}{run_id}")
    except FileNotFoundError:
        return False  # another process removed it first
    except OSError as error:
        _log.warning("an old report cannot be removed", extra={"path": str(directory), "reason": str(error)})
        return False
    return True


def _remove_set_aside(report_dir: Path) -> None:
    for leftover in _paths(report_dir, f"{_PRUNED_PREFIX}*"):
        if not leftover.is_symlink() and is_run_id(leftover.name.removeprefix(_PRUNED_PREFIX)):
            shutil.rmtree(leftover, ignore_errors=True)


def _paths(report_dir: Path, pattern: str) -> list[Path]:
    """Return the paths that match; none if the directory cannot be read, such as a mount whose server is down."""
    try:
        return list(report_dir.glob(pattern))
    except OSError as error:
        _log.warning("reports are unreadable", extra={"path": str(report_dir), "reason": str(error)})
        return []
