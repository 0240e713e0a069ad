"""Answers SQL questions about the tables of all runs, with DuckDB in this process. Needs neither Spark nor Arrow.

A question can only read. It is one SELECT on an in-memory database that has access only to the files of the tables. The
database loads no extension, reads no variable of the program, and writes no temporary file; its configuration is
locked. Memory, time and rows of an answer are bounded.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb

from bookie.model.errors import PermanentError
from bookie.model.run import RunKind
from spark_jobs.report.files import ReportDirError
from spark_jobs.report.tables.files import check_version, findings_of, is_parquet, table_files
from spark_jobs.report.tables.schemas import BOOKIES, FINDINGS, RUNS, TABLES, TableSchema
from spark_jobs.report.tables.sql_text import sql_list

_THREADS_MAX: Final = 4
MEMORY: Final = "1GiB"
_INTERRUPT_S: Final = 0.5
_ATTEMPTS_MAX: Final = 5
"""Number of attempts, if files are replaced between the listing and the reading."""
_DAY_OF_FILE: Final = r"regexp_extract(filename, '/day=(\d{4}-\d{2}-\d{2})/[^/]*$', 1)"
"""SQL for the day in the path of a file. DuckDB's own partitioning would also use components ``name=value`` above the
reports."""
_NO_TABLE: Final = re.compile(r"Table with name (.+?) does not exist")


class QueryRefusedError(PermanentError):
    """The text is not a single SELECT that DuckDB accepts."""


class QueryTooLargeError(PermanentError):
    """The answer needs more time or memory than allowed."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer to a question."""

    columns: tuple[str, ...]
    """Names of the columns, each one unique."""
    rows: list[tuple[Any, ...]]
    is_cut: bool
    """Whether there are more rows than requested."""
    left_out: tuple[str, ...]
    """Files that are not Parquet, for example after a disk crash. Their rows are missing from the answer."""


def ask(
    report_dir: Path, question: str, *, limit: int, timeout_s: float, values: Mapping[str, object] | None = None
) -> QueryResult:
    """QueryResult one question.

    Args:
        report_dir: the report directory of all runs; it is not changed.
        question: one SELECT in DuckDB's SQL.
        limit: maximum number of returned rows.
        timeout_s: longest time from the call to the answer, seconds.
        values: values of the question's parameters (``$name``).

    Raises:
        QueryRefusedError: the text is not such a question.
        QueryTooLargeError: the answer needs too much time or memory.
        NewerTablesError: a newer release wrote the tables.
        ReportDirError: the tables cannot be read.
    """
    for _ in range(_ATTEMPTS_MAX):
        check_version(report_dir)
        with contextlib.suppress(_ReplacedError):
            return _attempt(report_dir, question, limit, timeout_s, values)
    raise ReportDirError(f"the tables in {report_dir} kept changing; try again")


class _ReplacedError(Exception):
    """A file was replaced between the listing and the reading."""


def _attempt(
    report_dir: Path, question: str, limit: int, timeout_s: float, values: Mapping[str, object] | None
) -> QueryResult:
    files: list[str] = []
    try:
        with _opened(report_dir, files) as (connection, left_out):
            return _answer(connection, left_out, question, limit, timeout_s, values)
    except FileNotFoundError as error:
        raise _ReplacedError from error
    except (duckdb.IOException, QueryRefusedError) as error:
        # DuckDB reports a deleted file in different ways, depending on the step.
        if not all(map(os.path.exists, files)):
            raise _ReplacedError from error
        if isinstance(error, QueryRefusedError):
            raise
        raise ReportDirError(f"the tables in {report_dir} cannot be read: {error}") from error


def _answer(
    connection: duckdb.DuckDBPyConnection,
    left_out: tuple[str, ...],
    question: str,
    limit: int,
    timeout_s: float,
    values: Mapping[str, object] | None,
) -> QueryResult:
    is_late, is_done = threading.Event(), threading.Event()

    def interrupt_after_timeout() -> None:
        wait_s = timeout_s
        while not is_done.wait(wait_s):
            is_late.set()
            connection.interrupt()  # repeated, because it has no effect between steps
            wait_s = _INTERRUPT_S

    watch = threading.Thread(target=interrupt_after_timeout, name="deadline of a query", daemon=True)
    watch.start()
    try:
        statements = connection.extract_statements(question)
        if len(statements) != 1 or statements[0].type is not duckdb.StatementType.SELECT:
            raise QueryRefusedError("a query is one SELECT and nothing else; it cannot change anything")
        connection.execute(statements[0], dict(values) if values else None)
        names = tuple(str(column[0]) for column in connection.description or ())
        rows = connection.fetchmany(limit + 1)
    except duckdb.IOException:
        raise
    except duckdb.OutOfMemoryException as error:
        raise QueryTooLargeError(
            f"the answer takes more memory than {MEMORY}; ask for fewer days or columns"
        ) from error
    except duckdb.Error as error:
        if is_late.is_set():
            raise QueryTooLargeError(f"there is no answer after {timeout_s:g} s; ask for fewer days") from error
        raise QueryRefusedError(_sentence(error)) from error
    finally:
        is_done.set()
        watch.join()
    return QueryResult(_distinct(names), rows[:limit], len(rows) > limit, left_out)


def _sentence(error: duckdb.Error) -> str:
    missing = _NO_TABLE.search(str(error))
    if missing is not None:
        return f"there is no table {missing[1]}; the tables are {', '.join(TABLES)}"
    return str(error).strip()


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns, with a number added to each repeated name."""
    made: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in made:
            number += 1
            unique = f"{name}_{number}"
        made.append(unique)
    return tuple(made)


@contextlib.contextmanager
def _opened(report_dir: Path, readable: list[str]) -> Iterator[tuple[duckdb.DuckDBPyConnection, tuple[str, ...]]]:
    """Open an in-memory database with the tables as views. It can read only the files of the tables.

    The files are added to ``readable``. The database is yielded together with the damaged files.
    """
    report_dir = report_dir.resolve()
    if set("*?[]") & set(str(report_dir)):
        raise ReportDirError(
            f"the path {report_dir} has one of the characters * ? [ ], which DuckDB reads as a pattern"
        )
    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
        "temp_directory": "",
        "memory_limit": MEMORY,
        "threads": min(_THREADS_MAX, os.cpu_count() or 1),
    }
    left_out: list[str] = []
    with duckdb.connect(":memory:", config=config) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table in TABLES.values():
            statement, files = _view(connection, report_dir, table, left_out)
            connection.execute(statement)
            readable += files
        connection.execute(f"SET allowed_paths = {sql_list(readable)}")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection, tuple(left_out)


def _view(
    connection: duckdb.DuckDBPyConnection, report_dir: Path, table: TableSchema, left_out: list[str]
) -> tuple[str, list[str]]:
    found = table_files(report_dir, table.name)
    partitioned, flat = (
        _readable_parquet_files(found.partitioned, left_out),
        _readable_parquet_files(found.flat, left_out),
    )
    if table is FINDINGS:
        flat = _readable_parquet_files(_findings_of_earlier_releases(connection, report_dir), left_out)
    typed = ", ".join(f"CAST(NULL AS {column.type}) AS {_quoted(column.name)}" for column in table.columns)
    parts = [f"SELECT {typed} WHERE false"]
    if partitioned:
        is_of_run = " WHERE run_id IN (SELECT run_id FROM runs)" if table.is_by_run and table is not RUNS else ""
        parts.append(
            f"SELECT * EXCLUDE (filename), CAST({_DAY_OF_FILE} AS DATE) AS day "  # noqa: S608 - quoted
            f"FROM read_parquet({sql_list(partitioned)}, union_by_name = true, "
            f"hive_partitioning = false, filename = true){is_of_run}"
        )
    if flat:
        day = "try_strptime(left(run_id, 8), '%Y%m%d')" if table is FINDINGS else "finished"
        parts.append(
            f"SELECT *, CAST({day} AS DATE) AS day "  # noqa: S608 - quoted
            f"FROM read_parquet({sql_list(flat)}, union_by_name = true, hive_partitioning = false)"
        )
    columns = ", ".join(
        f"CAST({_EXPRESSIONS.get((table.name, column.name), _quoted(column.name))} AS {column.type}) "
        f"AS {_quoted(column.name)}"
        for column in table.columns
    )
    return (
        f"CREATE VIEW {table.name} AS SELECT {columns} FROM ({' UNION ALL BY NAME '.join(parts)})",  # noqa: S608
        partitioned + flat,
    )


_EXPRESSIONS: Final = {
    (RUNS.name, "run_kind"): f"coalesce(run_kind, '{RunKind.BOOKIES.value}')",
    (RUNS.name, "dry_run"): "coalesce(dry_run, publish_outcome = 'dry run')",
    (BOOKIES.name, "state"): "CASE upper(state) WHEN 'UNREGISTERED' THEN 'lost' ELSE lower(state) END",
    (FINDINGS.name, "kind"): "lower(kind)",
    (FINDINGS.name, "state"): "lower(state)",
    (FINDINGS.name, "severity"): "lower(severity)",
}
"""SQL for the columns whose values differ between releases, or between files and commands."""


def _findings_of_earlier_releases(connection: duckdb.DuckDBPyConnection, report_dir: Path) -> list[Path]:
    """Return the files of findings that the tables lack, from the directories of their runs."""
    earlier = connection.execute("SELECT run_id FROM runs WHERE tables_version IS NULL ORDER BY run_id").fetchall()
    return [path for (run_id,) in earlier for path in findings_of(report_dir, run_id)]


def _readable_parquet_files(paths: Sequence[Path], left_out: list[str]) -> list[str]:
    sound = []
    for path in paths:
        try:
            if is_parquet(path):
                sound.append(str(path))
            else:
                left_out.append(str(path))
        except FileNotFoundError:
            raise  # the file was replaced
        except OSError as error:
            raise ReportDirError(f"cannot read {path}: {error.strerror}") from error
    return sound


def _quoted(name: str) -> str:
    return f'"{name}"'
