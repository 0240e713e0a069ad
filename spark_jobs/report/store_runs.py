"""Finished reports in a store that all auditors share.

The store has one folder for each run, with the files of its report. The summary is written last and removed first, so a
folder without it is never a report. The tables of all runs are not in the store: each machine makes its own from the
runs that it wrote or fetched. An unsent report is marked on this machine, and a later run sends it. A fetched report
that is not yet in the tables is marked as well, and a later fetch adds it. So is a report that was removed here and is
still in the store, and a later run removes it there. Rules: R102 in docs/failure-model.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from spark_jobs.report.decoding import DamagedReportError
from spark_jobs.report.files import SUMMARY, ReportDirError, is_run_id
from spark_jobs.report.history import NoSuchReportError, find
from spark_jobs.report.store import ReportStore, ReportStoreError
from spark_jobs.report.tables.sql import ask
from spark_jobs.report.tables.writing import add_run
from spark_jobs.report.writing import renew_index
from spark_jobs.store_address import parse_address

_log = logging.getLogger(__name__)

_FETCHED: Final = ".bkheal-fetched-"
_UNSENT: Final = ".unsent"
"""Name of a file in the directory of a report. It means that the store may lack the report, or a part of it."""
_UNTABLED: Final = ".untabled"
"""Name of a file in the directory of a fetched report. It means that the tables may lack the run."""
_UNREMOVED: Final = ".bkheal-unremoved-"
"""The beginning of the name of an empty file in the report directory. The rest is the id of a run whose report was
removed here and may still be in the store."""
_UNREMOVED_MAX: Final = 1_000
"""Largest number of such files. If there are more, the reports of the oldest runs stay in the store."""
_HIDDEN: Final = (".", "_")
"""The beginnings of the names of files and folders that are not part of a report."""
_LEFT_S: Final = 86_400.0
"""A folder that was left by a fetch that SIGKILL ended is removed after this time. The folder of a fetch in progress is
younger."""
_fetching: Final = threading.Lock()
"""Held by the thread that fetches, so that a run is added to the tables only once."""
RUNS_FETCHED: Final = 50
"""Largest number of runs fetched at a time, the newest first."""
_PROBLEMS_MAX: Final = 3
"""Number of failed reports after which fetching ends, because the store or the directory itself may have failed."""
_FREE_BYTES_MIN: Final = 256 << 20
"""Space that is kept free for the reports of this machine, bytes."""
_ROWS_MAX: Final = 10_000_000
_KNOWN_S: Final = 60.0


def opened_store(address: str) -> ReportStore | None:
    """Return the store at an address, without a call to it; None: the address is empty.

    Raises:
        StoreAddressError: the text is not an address.
    """
    return ReportStore(parse_address(address)) if address else None


class UnreadableReportError(ReportStoreError):
    """A report cannot be sent because of this machine, such as one with an unreadable file. Others can be sent."""


class NoRoomError(ReportDirError):
    """The disk of this machine has no room for a report. A smaller one may fit."""


def send_run(store: ReportStore, report_dir: Path, run_id: str) -> None:
    """Write the report of a finished run to the store, the summary last. Sending it again changes nothing.

    If this fails, or the process ends, ``send_unsent`` sends the report later.

    Raises:
        UnreadableReportError: this machine cannot read the report, or cannot mark it.
        ReportStoreError: the store cannot be written; the report on this machine is complete.
    """
    directory = report_dir / run_id
    try:
        (directory / _UNSENT).touch()
        visible = _visible_files(directory)
        for name in visible:  # before anything is sent
            (directory / name).open("rb").close()
        for name in [*(name for name in visible if name != SUMMARY), SUMMARY]:
            store.upload(directory / name, f"{run_id}/{name}")
        (directory / _UNSENT).unlink(missing_ok=True)
    except OSError as error:
        raise UnreadableReportError(f"the report in {directory} was not sent: {error.strerror}") from error
    except ReportStoreError as error:
        raise ReportStoreError(f"{error}; the report of this run is complete in {directory}") from error


def _visible_files(directory: Path) -> list[str]:
    """Return the relative paths of the files below a directory, without hidden ones, sorted.

    Raises:
        OSError: a directory cannot be listed.
    """
    found: list[str] = []
    for folder, folders, names in os.walk(directory, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        found += [
            (Path(folder) / name).relative_to(directory).as_posix() for name in names if not name.startswith(_HIDDEN)
        ]
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def send_unsent(store: ReportStore, report_dir: Path) -> list[str]:
    """Send the finished reports that earlier runs left unsent, the newest first; return the ids of those sent.

    A report that this machine cannot read is logged and stays unsent.

    Raises:
        ReportStoreError: the store cannot be written; a later call sends the rest.
    """
    waiting = sorted((path.parent.name for path in report_dir.glob(f"*/{_UNSENT}")), reverse=True)
    sent: list[str] = []
    for run_id in waiting:
        if not is_run_id(run_id) or not (report_dir / run_id / SUMMARY).is_file():
            continue
        try:
            send_run(store, report_dir, run_id)
        except UnreadableReportError as error:
            _log.warning("a report is not sent", extra={"run_id": run_id, "reason": str(error)})
        else:
            sent.append(run_id)
    return sent


def stored_runs(store: ReportStore) -> list[str]:
    """Return the ids of the folders in the store, the newest first; some may have no summary yet.

    Raises:
        ReportStoreError: the store cannot be read.
    """
    _, folders = store.list(is_deep=False)
    return sorted(filter(is_run_id, folders), reverse=True)


def fetch_run(store: ReportStore, report_dir: Path, run_id: str) -> bool:
    """Copy the report of a run to this machine, where it appears in one step. Needs disk space for the whole report.

    Args:
        store: the store of all reports.
        report_dir: the report directory of this machine.
        run_id: id of the run.

    Returns:
        Whether the run is on this machine now; False: the store has no finished report of it.

    Raises:
        ReportStoreError: the store cannot be read.
        NoRoomError: the disk has no room for the report.
        ReportDirError: the directory cannot be written.
    """
    if not is_run_id(run_id):
        return False
    if (report_dir / run_id).exists():
        return (report_dir / run_id / SUMMARY).is_file()
    files, _ = store.list(run_id)
    if SUMMARY not in {file.name for file in files}:
        return False
    try:
        report_dir.mkdir(parents=True, exist_ok=True)
        size, free = sum(file.size for file in files), shutil.disk_usage(report_dir).free
        if size > free - _FREE_BYTES_MIN:
            raise NoRoomError(f"no room in {report_dir} for the report {run_id} of {size} bytes: {free} are free")
        with tempfile.TemporaryDirectory(prefix=_FETCHED, dir=report_dir) as folder:
            whole = Path(folder) / run_id
            for file in files:
                if any(part in ("", "..") or part.startswith(".") for part in file.name.split("/")):
                    continue
                target = whole / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                store.download(f"{run_id}/{file.name}", target, file.size)
            (whole / _UNTABLED).touch()
            try:
                os.rename(whole, report_dir / run_id)
            except OSError:
                if not (report_dir / run_id / SUMMARY).is_file():  # otherwise another process was faster
                    raise
    except OSError as error:
        raise ReportDirError(f"cannot write the report to {report_dir}: {error.strerror}") from error
    return True


def fetch_missing(
    store: ReportStore, report_dir: Path, count_max: int = RUNS_FETCHED, *, kept_max: int | None = None
) -> list[str]:
    """Copy the newest reports that this machine lacks, and add them to its tables; return their ids, oldest first.

    Reports that were fetched earlier and are not yet in the tables are added as well.

    Args:
        store: the store of all reports.
        report_dir: the report directory of this machine.
        count_max: number of reports in the store to consider, the newest ones.
        kept_max: number of reports that stay on this machine. A report that would be removed again is not fetched.
            None: all stay.

    Raises:
        ReportStoreError: the store or one of its reports cannot be read. Others were fetched, but none that is older
            than several of those that failed.
        NoRoomError: the disk has no room for one of the reports. All others were tried.
        ReportDirError: the directory cannot be written.
    """
    wanted = stored_runs(store)[:count_max]
    fetched: list[str] = []
    problems: list[ReportDirError] = []
    with _fetching:
        _remove_left(report_dir)
        here = {path.parent.name for path in report_dir.glob(f"*/{SUMMARY}") if is_run_id(path.parent.name)}
        staying = set(sorted(here.union(wanted), reverse=True)[:kept_max])
        lacking = [each for each in wanted if each in staying and not (report_dir / each).exists()]
        for run_id in lacking:
            try:
                if fetch_run(store, report_dir, run_id):
                    fetched.append(run_id)
            except ReportDirError as error:
                problems.append(error)
                if sum(not isinstance(each, NoRoomError) for each in problems) == _PROBLEMS_MAX:
                    break
        waiting = sorted(path.parent.name for path in report_dir.glob(f"*/{_UNTABLED}"))
        if waiting := [run_id for run_id in waiting if is_run_id(run_id) and (report_dir / run_id / SUMMARY).is_file()]:
            _add_to_tables(report_dir, waiting)
    if problems:
        raise problems[0]
    return sorted(fetched)


def _add_to_tables(report_dir: Path, fetched: Sequence[str]) -> None:
    known = {row[0] for row in ask(report_dir, "SELECT run_id FROM runs", limit=_ROWS_MAX, timeout_s=_KNOWN_S).rows}
    for run_id in fetched:
        try:
            if run_id not in known:
                _add(report_dir, run_id)
            (report_dir / run_id / _UNTABLED).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("a fetched run is not yet in the tables", extra={"run_id": run_id, "reason": str(error)})
    renew_index(report_dir, report_dir / fetched[-1])


def _add(report_dir: Path, run_id: str) -> None:
    try:
        add_run(report_dir, find(report_dir, run_id))
    except (NoSuchReportError, DamagedReportError, pa.ArrowException, ValueError, ArithmeticError) as error:
        _log.warning("a fetched run is not in the tables", extra={"run_id": run_id, "reason": str(error)})


def _remove_left(report_dir: Path) -> None:
    """Remove the folders of fetches that did not end."""
    for path in report_dir.glob(f"{_FETCHED}*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - _LEFT_S:
                shutil.rmtree(path, ignore_errors=True)


def note_removed(report_dir: Path, run_ids: Sequence[str]) -> None:
    """Record the removal of reports on this machine, for their removal from the store by ``remove_runs``. Best effort.

    A full disk may prevent it; then the reports stay in the store.
    """
    with contextlib.suppress(OSError):
        for run_id in run_ids:
            (report_dir / f"{_UNREMOVED}{run_id}").touch()
        noted = sorted(report_dir.glob(f"{_UNREMOVED}*"))
        for path in noted[:-_UNREMOVED_MAX]:
            path.unlink(missing_ok=True)


def remove_runs(store: ReportStore, report_dir: Path) -> None:
    """Remove reports from the store that were removed on this machine (``note_removed``).

    A failure is logged, and a later call removes the rest.
    """
    try:
        for path in sorted(report_dir.glob(f"{_UNREMOVED}*")):
            run_id = path.name.removeprefix(_UNREMOVED)
            if is_run_id(run_id):
                store.remove_folder(run_id, first=[SUMMARY])
            path.unlink(missing_ok=True)
    except (ReportStoreError, OSError) as error:
        _log.warning("old reports stay in the store", extra={"store": str(store.address), "reason": str(error)})
