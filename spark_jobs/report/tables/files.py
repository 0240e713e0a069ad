"""The locations of the rows of all runs, and the current files of a table. Needs neither Spark nor Arrow.

<report_dir>/history/_schema.json                          the version of the tables
<report_dir>/history/<table>/day=2026-11-20/<run_id>.parquet      rows of one run
<report_dir>/history/<table>/day=2026-11-20/<run_id>-0001.parquet the same, if the run left large files
<report_dir>/history/<table>/day=2026-11-20/compacted-<digest>.parquet    rows of several runs
<report_dir>/history/<table>/day=2026-11-20/_compaction.json      only while files are replaced, see ``upkeep``
<report_dir>/history/<table>/<run_id>.parquet              rows of a run of an earlier release
<report_dir>/history/ledgers_unhealthy_since/day=2026-11-20/<kind>-<cluster>-<run_id>.parquet   see ``unhealthy``

Spark's and Arrow's readers of tables ignore names with a leading dot or underscore.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bookie.model.errors import PermanentError
from bookie.model.run import is_misdated
from spark_jobs.report.files import FINDINGS, HISTORY, SUMMARY, ReportDirError, is_run_id, write_file
from spark_jobs.report.tables.schemas import SCHEMA_VERSION, TABLES

_log = logging.getLogger(__name__)

SCHEMA_FILE: Final = "_schema.json"
JOURNAL: Final = "_compaction.json"
_KIND: Final = "ReportTables"
_API_VERSION: Final = "bkheal/v1"
_DAY: Final = re.compile(r"day=\d{4}-\d{2}-\d{2}")
_LISTING_ATTEMPTS_MAX: Final = 8
"""Number of attempts to list a directory that changes. A change takes milliseconds, and happens once for each run."""
_MAGIC: Final = b"PAR1"


class NewerTablesError(PermanentError):
    """The tables were written by a newer release."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table; together they contain each row once."""

    partitioned: tuple[Path, ...] = ()
    """Files in directories of days, the oldest first."""
    flat: tuple[Path, ...] = ()
    """Files of earlier releases."""


def day_of(epoch_ms: int) -> str:
    """Return the day of a time, in UTC: ``2026-11-20``."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).date().isoformat()


def table_dir(report_dir: Path, table: str) -> Path:
    """Return the directory of a table."""
    return report_dir / HISTORY / table


def day_dir(report_dir: Path, table: str, day: str) -> Path:
    """Return the directory of a day of a table."""
    return table_dir(report_dir, table) / f"day={day}"


def days(report_dir: Path, table: str) -> tuple[str, ...]:
    """Return the days with rows in a table, ascending."""
    found = _children(table_dir(report_dir, table))
    return tuple(sorted(name.removeprefix("day=") for name in found if _DAY.fullmatch(name)))


def table_files(report_dir: Path, table: str, now_ms: int | None = None) -> TableFiles:
    """Return the current files of a table.

    Args:
        report_dir: the report directory of all runs.
        table: name of the table.
        now_ms: see ``newest_states``.

    Raises:
        ReportDirError: the directory cannot be read, or changes continuously.
    """
    # The flat files are listed first, because they may move into directories of days at any time, but never back.
    directory = table_dir(report_dir, table)
    flat = {name for name in _children(directory) if _is_table(name) and (directory / name).is_file()}
    partitioned = [
        day_dir(report_dir, table, day) / name
        for day in days(report_dir, table)
        for name in day_files(day_dir(report_dir, table, day))
    ]
    if not TABLES[table].is_by_run:
        partitioned = newest_states(partitioned, now_ms)
    moved = {path.name for path in partitioned}
    return TableFiles(tuple(partitioned), tuple(directory / name for name in sorted(flat - moved)))


def newest_states(paths: Iterable[Path], now_ms: int | None = None) -> list[Path]:
    """Return the file of the newest run of each kind and cluster, from files KIND-CLUSTER-RUN.parquet. Pure.

    Args:
        paths: paths of the files.
        now_ms: the current time, epoch milliseconds. A run dated a day or more after it had a wrong clock. It counts
            only if there is no other run, so that its rows are not lost. None: every date is taken as correct.
    """
    newest: dict[tuple[str, str], tuple[tuple[bool, str], Path]] = {}
    for path in paths:
        kind, cluster, run_id = path.name.split("-", 2) if path.name.count("-") >= 2 else ("", "", path.name)
        order = now_ms is None or not is_misdated(run_id, now_ms), run_id
        known = newest.get((kind, cluster))
        if known is None or known[0] < order:
            newest[kind, cluster] = order, path
    return sorted(path for _, path in newest.values())


def day_files(directory: Path) -> tuple[str, ...]:
    """Return the names of the current files of a day of a table, sorted.

    Raises:
        ReportDirError: see ``table_files``.
    """
    for _ in range(_LISTING_ATTEMPTS_MAX):
        names = _tables(directory)
        replaced = read_journal(directory)
        # The journal exists as long as both the old and the new files do. If the listings before and after it was read
        # are equal, it matches them.
        if names == _tables(directory):
            is_done = replaced is not None and replaced.file in names
            return tuple(sorted(names - set(replaced.replaces) if replaced and is_done else names))
    raise ReportDirError(f"{directory} kept changing; try again")


@dataclass(frozen=True, slots=True)
class ReplacementJournal:
    """A replacement of files that is in progress."""

    file: str
    """The new file. As soon as it exists, the files in ``replaces`` no longer count."""
    replaces: tuple[str, ...]


def read_journal(directory: Path) -> ReplacementJournal | None:
    """Return the replacement in progress in the directory of a day; None: there is none.

    Raises:
        ReportDirError: the journal cannot be read.
    """
    path = directory / JOURNAL
    try:
        document = json.loads(path.read_bytes())
        return ReplacementJournal(str(document["file"]), tuple(map(str, document["replaces"])))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReportDirError(
            f"{path} cannot be read ({error}): it is unknown which files of the day count; remove the day's directory"
        ) from error


def write_journal(directory: Path, journal: ReplacementJournal) -> None:
    """Record the start of a replacement.

    Raises:
        OSError: the journal cannot be written.
    """
    document = {"file": journal.file, "replaces": list(journal.replaces)}
    write_file(directory / JOURNAL, json.dumps(document).encode() + b"\n")


def findings_of(report_dir: Path, run_id: str) -> list[Path]:
    """Return the files of findings in the directory of a finished run. Earlier releases wrote findings only there."""
    directory = report_dir / run_id
    if not is_run_id(run_id) or not (directory / SUMMARY).is_file():
        return []
    return [directory / FINDINGS / name for name in sorted(_children(directory / FINDINGS)) if _is_table(name)]


def check_version(report_dir: Path) -> None:
    """Check that this release can read and extend the tables. If there is no version, an earlier release wrote them.

    Raises:
        NewerTablesError: a newer release wrote the tables.
        ReportDirError: the file of the version cannot be read.
    """
    path = report_dir / HISTORY / SCHEMA_FILE
    try:
        document: Any = json.loads(path.read_bytes())
        version = document["version"]
        if document["kind"] != _KIND or type(version) is not int:
            raise ValueError("it is another document")
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReportDirError(
            f"{path} cannot be read ({error}), so the version of the tables is unknown; if all auditors that write "
            "there are of one release, remove the file: the next run writes it again"
        ) from error
    if version > SCHEMA_VERSION:
        raise NewerTablesError(
            f"the tables in {path.parent} have version {version}, and this release reads versions up to "
            f"{SCHEMA_VERSION}: use the release that wrote them, or a newer one; `bkheal report show` reads the reports"
        )


def write_version(report_dir: Path, writer: str) -> None:
    """Record the version of the tables, unless one is recorded already.

    Args:
        report_dir: the report directory of all runs.
        writer: a name that no other process uses, such as the id of its run.

    Raises:
        OSError: it cannot be written.
    """
    path = report_dir / HISTORY / SCHEMA_FILE
    if not path.exists():
        document = {"apiVersion": _API_VERSION, "kind": _KIND, "version": SCHEMA_VERSION}
        write_file(path, json.dumps(document).encode() + b"\n", temporary=path.with_name(f".{path.name}.{writer}.tmp"))


def is_parquet(path: Path) -> bool:
    """Return whether a file begins and ends like a Parquet file. A truncated or overwritten file does not.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return False
        file.seek(-len(_MAGIC), 2)
        return file.read() == _MAGIC and file.tell() > 2 * len(_MAGIC)


def _tables(directory: Path) -> set[str]:
    return {name for name in _children(directory) if _is_table(name)}


def _is_table(name: str) -> bool:
    return name.endswith(".parquet") and not name.startswith((".", "_"))


def _children(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ReportDirError(f"cannot read {directory}: {error.strerror}") from error
