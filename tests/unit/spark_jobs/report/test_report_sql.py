"""SQL queries: what is answered, what is refused, and the limits of a query."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from bookie.model.severity import Severity
from spark_jobs.report.findings.all_runs import InvalidCursorError, findings_since
from spark_jobs.report.findings.filters import ANY, FindingFilter
from spark_jobs.report.tables import sql
from spark_jobs.report.tables.files import table_files
from spark_jobs.report.tables.schemas import TABLES
from spark_jobs.report.tables.sql import QueryRefusedError, QueryResult, QueryTooLargeError, ask
from spark_jobs.report.tables.sql_values import as_json, as_text
from spark_jobs.report.writing import ReportDirError
from tests.worlds.report_tables import HISTORY, dangling, finding, run, unreadable, write, write_history


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reports")
    write_history(directory)
    return directory


def answer(report_dir: Path, question: str, limit: int = 100) -> QueryResult:
    return ask(report_dir, question, limit=limit, timeout_s=60)


def test_a_query_can_join_tables(reports: Path) -> None:
    found = answer(
        reports,
        "SELECT verdict, count(*) AS found FROM findings JOIN runs USING (run_id) GROUP BY ALL ORDER BY found, verdict",
    )
    assert found == QueryResult(("verdict", "found"), [("no live copy", 4), ("under-replicated", 4)], False, ())


@pytest.mark.parametrize("table", TABLES)
def test_an_empty_directory_has_every_table_without_rows(tmp_path: Path, table: str) -> None:
    found = answer(tmp_path / "nothing", f"SELECT * FROM {table}")
    assert (found.columns, found.rows) == (TABLES[table].column_names, [])


def test_rows_above_the_limit_are_cut_off_and_columns_have_distinct_names(reports: Path) -> None:
    found = answer(reports, "SELECT 1 AS a, 2 AS a, ledger_id FROM findings ORDER BY ledger_id", 2)
    assert found == QueryResult(("a", "a_2", "ledger_id"), [(1, 2, 1), (1, 2, 1)], True, ())
    assert not answer(reports, "SELECT * FROM range(2)", 2).is_cut


@pytest.mark.parametrize(
    "question",
    [
        "CREATE TABLE t AS SELECT 1",
        "COPY runs TO '/tmp/bkheal-never.csv'",
        "COPY (SELECT 1) TO '{path}' (USE_TMP_FILE false)",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{path}' (USE_TMP_FILE false)",
        "COPY (PIVOT runs ON verdict USING count(*)) TO '{path}' (USE_TMP_FILE false)",
        "INSTALL httpfs",
        "LOAD httpfs",
        "ATTACH '/tmp/bkheal-never.db'",
        "SET threads = 64",
        "SET lock_configuration = false",
        "PRAGMA database_list",
        "SELECT 1; SELECT 2",
        "",
        "-- nothing",
        "SELEC 1",
        "SELECT nosuch FROM runs",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_parquet('https://192.0.2.1/x.parquet')",
        "SELECT * FROM reports",
        "SELECT getenv('HOME')",
        "SELECT $secret",
    ],
)
def test_anything_but_a_query_of_the_tables_is_refused_without_effect(reports: Path, question: str) -> None:
    path = table_files(reports, "runs").partitioned[0]
    before = path.read_bytes()
    with pytest.raises(QueryRefusedError):
        answer(reports, question.format(path=path))
    assert path.read_bytes() == before


def test_the_error_for_an_unknown_table_lists_the_existing_ones(reports: Path) -> None:
    with pytest.raises(QueryRefusedError, match=f"no table ledgers; the tables are {', '.join(TABLES)}"):
        answer(reports, "SELECT * FROM ledgers")


def test_other_errors_have_the_message_of_duckdb(reports: Path) -> None:
    with pytest.raises(QueryRefusedError, match='Referenced column "nosuch" not found'):
        answer(reports, "SELECT nosuch FROM runs")


def test_a_query_ends_at_its_deadline(reports: Path) -> None:
    with pytest.raises(QueryTooLargeError, match=r"no answer after 0\.2 s"):
        ask(
            reports, "SELECT sum(a.range * b.range) FROM range(10000000000) a, range(1000000) b", limit=1, timeout_s=0.2
        )


def test_a_query_ends_at_its_memory_limit_and_writes_no_temporary_file(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "MEMORY", "64MiB")
    with pytest.raises(QueryTooLargeError, match="takes more memory than 64MiB"):
        answer(reports, "SELECT list(repeat('x', 1000000) || range) FROM range(1000)")


def test_a_path_that_duckdb_reads_as_a_pattern_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportDirError, match="DuckDB reads as a pattern"):
        answer(tmp_path / "reports[1]", "SELECT 1")


def test_a_path_that_looks_like_a_partition_does_not_change_answers(reports: Path, tmp_path: Path) -> None:
    moved = tmp_path / "run_kind=replicas" / "verdict=clean" / "day=1" / "env=a" / "reports"
    shutil.copytree(reports, moved)
    for question in (
        "SELECT run_id, run_kind, verdict, day FROM runs ORDER BY run_id",
        "SELECT * FROM findings WHERE day >= DATE '2026-01-04' ORDER BY ALL",
    ):
        assert answer(moved, question) == answer(reports, question)
        assert answer(moved, question).rows


def test_a_path_with_a_quote_a_link_and_dot_dot_is_read(tmp_path: Path) -> None:
    write_history(tmp_path / "it's here")
    (tmp_path / "link").symlink_to("it's here")
    for path in (tmp_path / "it's here", tmp_path / "link", tmp_path / "link" / ".." / "it's here"):
        assert answer(path, "SELECT count(*) FROM findings").rows == [(8,)]


def test_a_damaged_file_is_named_and_the_others_are_queried(tmp_path: Path) -> None:
    write_history(tmp_path)
    path = table_files(tmp_path, "findings").partitioned[0]
    path.write_bytes(path.read_bytes()[:-2])
    assert answer(tmp_path, "SELECT count(*) FROM findings") == QueryResult(
        ("count_star()",), [(4,)], False, (str(path),)
    )


ALL = [("03", 1), ("03", 3), ("03", 4), ("03", 9), ("02", 1), ("02", 2), ("02", 3), ("02", 3)]


def since(report_dir: Path, since_ms: int, wanted: FindingFilter = ANY, limit: int = 100) -> list[object]:
    """Return the ledger and day of each finding, read in pages of this size."""
    found: list[object] = []
    after = None
    while True:
        page = findings_since(report_dir, since_ms, limit, wanted, after)
        found += [(row["run_id"][6:8], row["ledger_id"]) for row in page["items"]]
        after = page["next_after"]
        if after is None:
            return found


def test_findings_since_a_time_are_newest_run_first_in_pages_of_any_size(reports: Path) -> None:
    for limit in (1, 3, 100):
        assert since(reports, 0, limit=limit) == ALL
    second, third = (summary for summary, _ in HISTORY[1:])
    assert since(reports, second.finished_ms) == ALL
    assert since(reports, second.finished_ms + 1) == since(reports, third.finished_ms) == ALL[:4]
    assert since(reports, third.finished_ms + 1) == []


def test_findings_of_all_runs_are_filtered(reports: Path) -> None:
    assert since(reports, 0, FindingFilter(severity=Severity.NO_LIVE_COPY)) == [("03", 1)]
    assert since(reports, 0, FindingFilter(bookie="c:3181")) == [("03", 1), ("03", 4)]
    assert since(reports, 0, FindingFilter(ledger_id=3)) == [("03", 3), ("02", 3), ("02", 3)]
    with pytest.raises(InvalidCursorError):
        findings_since(reports, 0, 1, after="1:0:MISSING_BOOKIE")


def test_findings_without_a_ledger_are_returned_in_pages_of_any_size(tmp_path: Path) -> None:
    rows = (dangling("y:3181"), finding(1, "b:3181"), dangling("x:3181"), unreadable(9))
    write(tmp_path, run(1, rows), rows)
    for limit in (1, 2, 3, 100):
        assert since(tmp_path, 0, limit=limit) == [("02", None), ("02", None), ("02", 1), ("02", 9)]
    assert since(tmp_path, 0, FindingFilter(bookie="x:3181"), limit=1) == [("02", None)]


@pytest.mark.parametrize(
    ("value", "in_json", "text"),
    [
        (None, None, "null"),
        (True, True, "true"),
        (7, 7, "7"),
        (1.5, 1.5, "1.5"),
        (float("nan"), None, "null"),
        (Decimal("2.00"), 2, "2"),
        (Decimal("2.50"), 2.5, "2.5"),
        ("a", "a", "a"),
        (datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05.000Z", "2026-01-02T03:04:05.000Z"),  # noqa: DTZ001
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05.000Z", "2026-01-02T03:04:05.000Z"),
        (date(2026, 1, 2), "2026-01-02", "2026-01-02"),
        (time(3, 4), "03:04:00", "03:04:00"),
        (timedelta(hours=30), 108_000.0, "1 day, 6:00:00"),
        (b"\x00\xff", "00ff", "00ff"),
        (["a", "b"], ["a", "b"], "a,b"),
        ([1, 2], [1, 2], "[1, 2]"),
        ({"a": Decimal(1)}, {"a": 1}, '{"a": 1}'),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_values_are_shown_as_json_and_as_text(value: object, in_json: object, text: str) -> None:
    assert (as_json(value), as_text(value)) == (in_json, text)
