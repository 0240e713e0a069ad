"""Keep the tables of all runs small: merge many files into one, and remove old days. One process at a time does it.

A replacement of files has these steps, each on the disk before the next: write the new file under a hidden name; write
a journal with the names of the new file and the replaced files; rename the new file; remove the replaced files; remove
the journal. As soon as the new file exists, ``table_files`` leaves the replaced files out. So no crash loses or doubles
rows for its callers, and the next run continues. A reader that does not use the journal (Spark) may see rows twice
until then.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.kept import Kept
from spark_jobs.report.files import HISTORY, ReportDirError
from spark_jobs.report.tables.files import (
    JOURNAL,
    NewerTablesError,
    ReplacementJournal,
    check_version,
    day_dir,
    day_files,
    day_of,
    days,
    read_journal,
    table_dir,
    table_files,
    write_journal,
)
from spark_jobs.report.tables.merging import write_merged
from spark_jobs.report.tables.schemas import RUNS, TABLES

_log = logging.getLogger(__name__)

LOCK: Final = ".upkeep.lock"
_PRUNED_PREFIX: Final = ".pruned-"
_COMPACTED: Final = "compacted-"
"""The names of files with the rows of several runs begin with this."""
_PART: Final = re.compile(r"-\d{4}$")
FILES_MAX: Final = 32
"""Largest number of files of today or yesterday; if there are more, they are merged into one. The files of an older day
are always merged."""
LARGE_BYTES: Final = 32 << 20
"""Files of this size or more are not merged. A merge would save little, and would replace a link to the run's file by a
copy."""


def compact_and_prune(report_dir: Path, now_ms: int, kept: Kept) -> bool:
    """Compact and prune the tables, unless another process is doing so. After a failure, the next call tries again.

    Args:
        report_dir: the report directory of all runs.
        now_ms: the current time, epoch milliseconds.
        kept: how much to keep.

    Returns:
        Whether this process did the work.
    """
    try:
        if not (report_dir / HISTORY).is_dir():
            return False
        check_version(report_dir)
        with _exclusive_lock(report_dir) as is_locked:
            if is_locked:
                _compact_and_prune(report_dir, now_ms, kept)
            return is_locked
    except (OSError, NewerTablesError, ReportDirError) as error:
        _log.warning("the tables are not compacted", extra={"path": str(report_dir), "reason": str(error)})
        return False


def days_to_drop(held: Sequence[str], today: str, days_max: int | None) -> list[str]:
    """Return the days before the last ``days_max`` days, which include today. Pure; days are as ``2026-11-20``."""
    if days_max is None:
        return []
    first_kept = (date.fromisoformat(today) - timedelta(days=max(days_max, 1) - 1)).isoformat()
    return [day for day in held if day < first_kept]


def days_too_large(sizes: Sequence[tuple[str, int]], bytes_max: int, today: str) -> list[str]:
    """Return the days to remove from a table above a total size, but never the newest day. Pure.

    Days after tomorrow come from runs with a wrong clock, and are removed first, then the oldest days.

    Args:
        sizes: days with their sizes in bytes, the oldest first.
        bytes_max: largest size of all remaining days together.
        today: the current day, as ``2026-11-20``.
    """
    tomorrow = _days_after(today, 1)
    dated = [each for each in sizes if each[0] <= tomorrow]
    total, dropped = sum(size for _, size in sizes), []
    for day, size in [*sizes[len(dated) :], *dated][:-1]:
        if total <= bytes_max:
            break
        dropped.append(day)
        total -= size
    return dropped


def _days_after(day: str, count: int) -> str:
    return (date.fromisoformat(day) + timedelta(days=count)).isoformat()


def _compact_and_prune(report_dir: Path, now_ms: int, kept: Kept) -> None:
    today = day_of(now_ms)
    yesterday = _days_after(today, -1)  # a run finished before midnight may still write its files
    for table, schema in TABLES.items():
        for leftover in table_dir(report_dir, table).glob(f"{_PRUNED_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if not schema.is_by_run:  # the next run of its check continues a state, however old
            _remove_other_states(report_dir, table, now_ms)
            continue
        _move_into_days(report_dir, table)
        held = days(report_dir, table)
        dropped = days_to_drop(held, today, kept.days_max)
        if kept.table_bytes_max is not None:
            left = [day for day in held if day not in dropped]
            dropped += days_too_large(
                [(day, _size(report_dir, table, day)) for day in left], kept.table_bytes_max, today
            )
        for day in dropped:
            _drop(report_dir, table, day)
        for day in held:
            if day not in dropped:
                runs = None if schema is RUNS else day_dir(report_dir, RUNS.name, day)
                _compact(day_dir(report_dir, table, day), runs, is_over=day < yesterday)


def _move_into_days(report_dir: Path, table: str) -> None:
    """Move files of earlier releases into directories of days. An unreadable file stays where it is."""
    for path in table_files(report_dir, table).flat:
        try:
            finished = pq.read_table(path, columns=["finished"])["finished"][0].as_py()
            directory = day_dir(report_dir, table, finished.date().isoformat())
            directory.mkdir(parents=True, exist_ok=True)
            path.rename(directory / path.name)
        except (OSError, ValueError, IndexError, KeyError, AttributeError, pa.ArrowException) as error:
            _log.warning("a file of the history is unreadable", extra={"path": str(path), "reason": str(error)})


def _remove_other_states(report_dir: Path, table: str, now_ms: int) -> None:
    yesterday, tomorrow = _days_after(day_of(now_ms), -1), _days_after(day_of(now_ms), 1)
    counting = set(table_files(report_dir, table, now_ms).partitioned)
    for day in days(report_dir, table):
        directory = day_dir(report_dir, table, day)
        paths = [directory / name for name in day_files(directory)]
        for path in paths:
            if path not in counting:
                path.unlink(missing_ok=True)
        # A run may be about to write into the directory of another day.
        if not yesterday <= day <= tomorrow and not counting & set(paths):
            _drop(report_dir, table, day)


def _size(report_dir: Path, table: str, day: str) -> int:
    directory = day_dir(report_dir, table, day)
    return sum((directory / name).stat().st_size for name in day_files(directory))


def _drop(report_dir: Path, table: str, day: str) -> None:
    """Remove a day in one step, then delete its files."""
    directory = day_dir(report_dir, table, day)
    pruned = directory.with_name(f"{_PRUNED_PREFIX}{directory.name}")
    directory.rename(pruned)
    shutil.rmtree(pruned, ignore_errors=True)


def _compact(directory: Path, runs: Path | None, *, is_over: bool) -> None:
    """Merge the small files of a day, except those of runs without a row in ``runs``.

    Such a run may be added again, and its file then replaces the present one. Rows that were merged would stay.

    Args:
        directory: the directory of a day of a table.
        runs: the directory of the same day of the table ``runs``; None: it is ``directory``.
        is_over: whether no more runs are added to this day, except runs that another machine wrote.
    """
    _finish_replacement(directory)
    names = day_files(directory)
    if is_over:
        for leftover in directory.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
    small = [name for name in names if (directory / name).stat().st_size < LARGE_BYTES]
    if len(small) < 2 or not (is_over or len(small) > FILES_MAX):
        return
    if runs is not None:
        added = _run_ids(runs)
        small = [name for name in small if name.startswith(_COMPACTED) or _run_of(name) in added]
        if len(small) < 2:
            return
    digest = hashlib.sha256("\n".join(small).encode()).hexdigest()[:16]
    journal = ReplacementJournal(f"{_COMPACTED}{digest}.parquet", tuple(small))
    hidden = directory / f".{journal.file}.tmp"
    try:
        write_merged([directory / name for name in small], hidden)
    except (OSError, pa.ArrowException) as error:
        # The damaged file is left for inspection, and the day stays unchanged.
        hidden.unlink(missing_ok=True)
        _log.warning("a day is not compacted", extra={"path": str(directory), "reason": str(error)})
        return
    write_journal(directory, journal)
    _sync(directory)
    hidden.rename(directory / journal.file)
    _sync(directory)
    _finish_replacement(directory)


def _run_ids(runs: Path) -> set[str]:
    """Return the ids of the runs of a day; none if a file of them cannot be read."""
    try:
        tables = [pq.read_table(runs / name, columns=["run_id"]) for name in day_files(runs)]
        return {run_id for table in tables for run_id in table["run_id"].to_pylist()}
    except (OSError, KeyError, pa.ArrowException) as error:
        _log.warning("runs in the history are unreadable", extra={"path": str(runs), "reason": str(error)})
        return set()


def _run_of(name: str) -> str:
    """Return the id of the run that added a file: RUN.parquet, or RUN-0001.parquet."""
    return _PART.sub("", name.removesuffix(".parquet"))


def _finish_replacement(directory: Path) -> None:
    """Finish a replacement, also after a crash in any step. Without a journal there is nothing to do."""
    journal = read_journal(directory)
    if journal is None:
        return
    if (directory / journal.file).is_file():
        for name in journal.replaces:
            if name != journal.file:
                (directory / name).unlink(missing_ok=True)
        _sync(directory)
    (directory / f".{journal.file}.tmp").unlink(missing_ok=True)
    (directory / JOURNAL).unlink()


@contextlib.contextmanager
def _exclusive_lock(report_dir: Path) -> Iterator[bool]:
    """Yield whether this process has the lock for tidying; the lock ends with the process."""
    with (report_dir / HISTORY / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
