"""The tables of all runs: what a run adds, compaction, removal, crashes, and files of other releases."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bookie.model.severity import Severity
from spark_jobs.checks.findings import FINDING_DDL
from spark_jobs.kept import EVERYTHING, Kept
from spark_jobs.report import writing
from spark_jobs.report.history import reports
from spark_jobs.report.summary import RunSummary
from spark_jobs.report.tables import sql
from spark_jobs.report.tables import upkeep as table_upkeep
from spark_jobs.report.tables import writing as table_writing
from spark_jobs.report.tables.files import (
    NewerTablesError,
    ReplacementJournal,
    day_files,
    days,
    table_files,
    write_journal,
)
from spark_jobs.report.tables.run_tables import bookies_table, runs_table, trend
from spark_jobs.report.tables.schemas import BOOKIES, FINDINGS, RUNS, SCHEMA_VERSION, TABLES, TASKS
from spark_jobs.report.tables.sql import ask
from spark_jobs.report.tables.upkeep import compact_and_prune, days_to_drop, days_too_large
from spark_jobs.runs.mark_log import SCHEMA
from tests.worlds import report as world
from tests.worlds.report_tables import FINDING_COLUMNS, HISTORY, finding, run, write, write_findings, write_history

FAR_MS = world.START_MS + 100 * world.DAY_MS


def rows(report_dir: Path, columns: str, table: str) -> list[tuple[object, ...]]:
    return ask(report_dir, f"SELECT {columns} FROM {table} ORDER BY ALL", limit=1_000, timeout_s=60).rows


def count(report_dir: Path, table: str) -> int:
    ((number,),) = ask(report_dir, f"SELECT count(*) FROM {table}", limit=1, timeout_s=60).rows
    assert isinstance(number, int)
    return number


def test_the_declared_columns_are_those_written() -> None:
    (summary, _), *_ = HISTORY
    for table, written in ((RUNS, runs_table(summary)), (BOOKIES, bookies_table(summary))):
        assert set(table.column_names) - {"day"} == set(written.column_names)
    assert TASKS.column_names == ("run_id", "day", *SCHEMA.names[1:])
    assert FINDINGS.column_names == ("run_id", "day", *(name for name, _ in FINDING_COLUMNS))
    assert len(FINDING_COLUMNS) == FINDING_DDL.count(",") + 1


def test_every_run_adds_its_rows_to_the_partition_of_its_day(tmp_path: Path) -> None:
    write_history(tmp_path)
    assert json.loads((tmp_path / "history" / "_schema.json").read_bytes()) == {
        "apiVersion": "bkheal/v1",
        "kind": "ReportTables",
        "version": SCHEMA_VERSION,
    }
    assert days(tmp_path, "runs") == days(tmp_path, "bookies") == ("2026-01-02", "2026-01-03", "2026-01-04")
    assert days(tmp_path, "findings") == ("2026-01-03", "2026-01-04"), "a run without findings writes no file"
    assert rows(tmp_path, "day::VARCHAR, ledgers_critical, tables_version", "runs") == [
        ("2026-01-02", 0, SCHEMA_VERSION), ("2026-01-03", 2, SCHEMA_VERSION), ("2026-01-04", 1, SCHEMA_VERSION)
    ]  # fmt: skip
    assert rows(tmp_path, "day::VARCHAR, ledger_id, fragment_index, kind, state, severity", "findings")[:2] == [
        ("2026-01-03", 1, 0, "missing_bookie", "closed", "critical"),
        ("2026-01-03", 2, 0, "missing_bookie", "closed", "below_write_quorum"),
    ]
    assert [path.name for path in table_files(tmp_path, "findings").partitioned] == [
        f"{summary.run_id}.parquet" for summary, found in HISTORY if found
    ]


def test_the_marks_of_a_run_are_a_table(tmp_path: Path) -> None:
    write_history(tmp_path)
    assert rows(tmp_path, "day::VARCHAR, ledger_id, missing", "tasks") == [
        ("2026-01-03", 1, ["b:3181"]), ("2026-01-03", 2, ["b:3181"]), ("2026-01-03", 3, ["b:3181"]),
        ("2026-01-04", 1, ["b:3181", "c:3181"]), ("2026-01-04", 3, ["b:3181"]), ("2026-01-04", 4, ["c:3181"]),
    ]  # fmt: skip


def test_arrow_reads_a_table_with_its_partitions(tmp_path: Path) -> None:
    write_history(tmp_path)
    table = pq.read_table(tmp_path / "history" / "findings", filters=[("day", "=", "2026-01-04")])
    assert sorted(table["ledger_id"].to_pylist()) == [1, 3, 4, 9]


def test_large_findings_are_linked_and_outlive_the_directory_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_writing, "MERGED_BYTES_MAX", 1)
    summary, found = HISTORY[1]
    write(tmp_path, summary, found)
    linked = table_files(tmp_path, "findings").partitioned
    assert [path.name for path in linked] == [f"{summary.run_id}-0000.parquet", f"{summary.run_id}-0001.parquet"]
    assert [path.stat().st_nlink for path in linked] == [2, 2]
    newer, _ = HISTORY[2]
    write(tmp_path, newer, kept=Kept(reports_max=1))
    assert [each.run_id for each in reports(tmp_path)] == [newer.run_id]
    assert count(tmp_path, "findings") == len(found)


def test_findings_are_copied_if_links_are_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    summary, found = HISTORY[1]
    write(tmp_path, summary, found, parts=1)
    (path,) = table_files(tmp_path, "findings").partitioned
    assert path.stat().st_nlink == 1
    assert count(tmp_path, "findings") == len(found)


def test_rows_of_an_unfinished_run_do_not_count(tmp_path: Path) -> None:
    write_history(tmp_path)
    (table_files(tmp_path, "runs").partitioned[-1]).unlink()
    assert {row[0] for row in rows(tmp_path, "run_id", "findings")} == {HISTORY[1][0].run_id}
    assert {row[0] for row in rows(tmp_path, "run_id", "bookies")} == {HISTORY[0][0].run_id, HISTORY[1][0].run_id}


def many(report_dir: Path, number: int) -> None:
    """Return runs of one day with one finding each."""
    for each in range(number):
        found = (finding(each, "b:3181"),)
        write(report_dir, replace(run(0, found), run_id=f"20260101T0304{each:02}Z-00000a"), found)


def test_a_past_day_is_compacted_to_one_file_per_table(tmp_path: Path) -> None:
    many(tmp_path, 5)
    assert len(table_files(tmp_path, "runs").partitioned) == 5
    before = {table: rows(tmp_path, "*", table) for table in TABLES}
    assert compact_and_prune(tmp_path, world.START_MS + 2 * world.DAY_MS, EVERYTHING)
    for table in ("runs", "findings", "bookies", "tasks"):
        (path,) = table_files(tmp_path, table).partitioned
        assert path.name.startswith("compacted-")
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        assert rows(tmp_path, "*", table) == before[table]


def test_a_run_that_is_added_again_after_a_failure_has_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was fetched from a store may be of a past day, and the upkeep may compact this day before that."""
    many(tmp_path, 2)
    found = (finding(7, "b:3181"),)
    summary = replace(run(0, found), run_id="20260101T030459Z-00000a")
    directory = writing.prepare(tmp_path, summary.run_id)
    write_findings(directory, found)
    with monkeypatch.context() as patch:
        patch.setattr(table_writing, "write_next_state", _full_disk)
        with pytest.raises(OSError, match="No space"):
            table_writing.add_run(tmp_path, summary)
    compact_and_prune(tmp_path, FAR_MS, EVERYTHING)
    assert len(table_files(tmp_path, "runs").partitioned) == 1
    table_writing.add_run(tmp_path, summary)
    assert rows(tmp_path, "ledger_id", "findings") == [(0,), (1,), (7,)]
    compact_and_prune(tmp_path, FAR_MS, EVERYTHING)
    assert {len(table_files(tmp_path, table).partitioned) for table in TABLES} == {1}
    assert rows(tmp_path, "ledger_id", "findings") == [(0,), (1,), (7,)]


def _full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_current_day_is_compacted_if_it_has_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_upkeep, "FILES_MAX", 3)
    many(tmp_path, 3)
    assert len(table_files(tmp_path, "runs").partitioned) == 3
    found = (finding(77, "b:3181"),)
    write(tmp_path, replace(run(0, found), run_id="20260101T030499Z-00000a"), found)
    assert len(table_files(tmp_path, "runs").partitioned) == 1
    assert count(tmp_path, "findings") == 4


def test_large_files_are_not_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_upkeep, "LARGE_BYTES", 1)
    many(tmp_path, 3)
    compact_and_prune(tmp_path, FAR_MS, EVERYTHING)
    assert len(table_files(tmp_path, "findings").partitioned) == 3


def test_the_trend_is_the_same_before_and_after_a_compaction(tmp_path: Path) -> None:
    many(tmp_path, 5)
    summary = replace(run(1), run_id="20260102T030405Z-00000a")
    before = trend(tmp_path, summary, 4)
    assert [point.run_id[:15] for point in before] == [f"20260101T0304{each:02}" for each in (2, 3, 4)] + [
        "20260102T030405"
    ]
    compact_and_prune(tmp_path, FAR_MS, EVERYTHING)
    assert trend(tmp_path, summary, 4) == before


class _Crash(BaseException):
    """The simulated end of the process."""


def crash_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the process before change number ``step`` of the file system."""
    left = [step]

    def dying(change: Callable[..., object]) -> Callable[..., object]:
        def changed(*args: object, **options: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise _Crash
            return change(*args, **options)

        return changed

    for owner, name in (
        (Path, "rename"), (Path, "replace"), (Path, "unlink"),
        (table_upkeep, "write_merged"), (shutil, "rmtree"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))


def run_ids(report_dir: Path) -> dict[str, list[str]]:
    """Return the run ids in all rows of each table, read from the files that our reader selects."""
    return {
        table: sorted(
            run_id
            for path in table_files(report_dir, table).partitioned
            for run_id in pq.ParquetFile(path).read(["run_id"])["run_id"].to_pylist()
        )
        for table in TABLES
    }


@pytest.mark.parametrize("kept", [EVERYTHING, Kept(days_max=99)])
def test_a_crash_at_any_step_of_the_upkeep_loses_and_duplicates_nothing(tmp_path: Path, kept: Kept) -> None:
    made = tmp_path / "made"
    many(made, 2)
    expected = run_ids(made)
    gone = {table for table, schema in TABLES.items() if kept.days_max and schema.is_by_run}
    tidied = {table: [] if table in gone else found for table, found in expected.items()}
    for step in range(100):
        place = tmp_path / str(step)
        shutil.copytree(made / "history", place / "history")
        try:
            with pytest.MonkeyPatch.context() as patch:
                crash_at(step, patch)
                compact_and_prune(place, FAR_MS, kept)
        except _Crash:
            found = run_ids(place)
            for table in TABLES:
                assert found[table] in (expected[table], tidied[table]), (step, table)
            compact_and_prune(place, FAR_MS, kept)
            assert run_ids(place) == tidied
            left = {path.name for path in (place / "history").rglob("*") if not path.is_dir()}
            assert not [name for name in left if name.endswith(".tmp") or name == "_compaction.json"]
            assert not list((place / "history").rglob(".pruned-*"))
        else:
            assert step > 5, "the upkeep has more than five steps"
            return
    raise AssertionError("the upkeep does not end")


def test_while_files_are_replaced_each_row_counts_once(tmp_path: Path) -> None:
    for name in ("1.parquet", "2.parquet", "3.parquet", "compacted-ab.parquet"):
        (tmp_path / name).touch()
    write_journal(tmp_path, ReplacementJournal("compacted-ab.parquet", ("1.parquet", "2.parquet")))
    assert day_files(tmp_path) == ("3.parquet", "compacted-ab.parquet")
    (tmp_path / "compacted-ab.parquet").rename(tmp_path / ".compacted-ab.parquet.tmp")
    assert day_files(tmp_path) == ("1.parquet", "2.parquet", "3.parquet")


def test_only_one_process_at_a_time_does_the_upkeep(tmp_path: Path) -> None:
    many(tmp_path, 2)
    with (tmp_path / "history" / table_upkeep.LOCK).open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not compact_and_prune(tmp_path, FAR_MS, Kept(days_max=1))
    assert count(tmp_path, "runs") == 2
    assert compact_and_prune(tmp_path, FAR_MS, Kept(days_max=1))
    assert count(tmp_path, "runs") == 0


def test_days_are_dropped_by_age_and_by_table_size(tmp_path: Path) -> None:
    write_history(tmp_path)
    now = HISTORY[-1][0].finished_ms
    compact_and_prune(tmp_path, now, Kept(days_max=2, table_bytes_max=1 << 30))
    for table in ("runs", "bookies", "findings", "tasks"):
        assert days(tmp_path, table) == ("2026-01-03", "2026-01-04")
    compact_and_prune(tmp_path, now, Kept(table_bytes_max=1))
    for table in ("runs", "bookies", "findings", "tasks"):
        assert days(tmp_path, table) == ("2026-01-04",), "the newest day is kept"


def test_the_days_to_drop_are_the_oldest() -> None:
    held = ["2026-01-01", "2026-02-27", "2026-02-28", "2026-03-01"]
    assert days_to_drop(held, "2026-03-01", None) == []
    assert days_to_drop(held, "2026-03-01", 1) == held[:-1]
    assert days_to_drop(held, "2026-03-01", 2) == held[:2]
    assert days_to_drop(held, "2026-03-01", 365) == []
    first, second, third = held[1:]
    sizes = [(first, 5), (second, 3), (third, 2)]
    for limit, gone in ((10, []), (9, [first]), (5, [first]), (4, [first, second]), (1, [first, second])):
        for today in (third, second):
            assert days_too_large(sizes, limit, today) == gone
    assert days_too_large([], 1, third) == []


def test_days_in_the_future_are_dropped_first() -> None:
    sizes = [("2026-02-28", 5), ("2026-03-01", 3), ("2027-03-01", 2)]
    assert days_too_large(sizes, 9, "2026-03-01") == ["2027-03-01"]
    assert days_too_large(sizes, 1, "2026-03-01") == ["2027-03-01", "2026-02-28"]
    assert days_too_large(sizes, 1, "2025-03-01") == ["2026-02-28", "2026-03-01"], "the newest day is kept in any case"


def of_earlier_release(report_dir: Path) -> None:
    """Write the same reports as an earlier release did, without the additions of this release."""
    write_history(report_dir)
    history = report_dir / "history"
    for table in ("runs", "bookies"):
        for path in table_files(report_dir, table).partitioned:
            flat = pq.ParquetFile(path).read().drop_columns(["tables_version", "run_kind"] if table == "runs" else [])
            pq.write_table(flat, history / table / path.name)
            path.unlink()
            path.parent.rmdir()
    for path in table_files(report_dir, "findings").partitioned:
        path.unlink()
    (history / "_schema.json").unlink()


def test_reports_of_an_earlier_release_are_in_the_tables(tmp_path: Path) -> None:
    of_earlier_release(tmp_path / "old")
    write_history(tmp_path / "new")
    for columns, table in (
        ("run_id, day, run_kind, ledgers_critical", "runs"), ("*", "bookies"), ("* EXCLUDE (day)", "findings"),
    ):  # fmt: skip
        assert rows(tmp_path / "old", columns, table) == rows(tmp_path / "new", columns, table)
    assert [each.run_id for each in reports(tmp_path / "old")] == [each.run_id for each in reports(tmp_path / "new")]


def test_the_next_run_moves_rows_of_an_earlier_release_into_their_days(tmp_path: Path) -> None:
    of_earlier_release(tmp_path)
    torn = tmp_path / "history" / "runs" / "20260101T000000Z-torn.parquet"
    torn.write_bytes(b"PAR1 torn")
    found = (finding(1, "b:3181", severity=Severity.NO_LIVE_COPY),)
    write(tmp_path, run(3, found), found)
    assert table_files(tmp_path, "runs").flat == (torn,), "an unreadable file is left for the operator"
    assert days(tmp_path, "runs") == ("2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05")
    answer = ask(tmp_path, "SELECT count(*) FROM findings", limit=1, timeout_s=60)
    assert answer.rows == [(sum(len(each) for _, each in HISTORY) + 1,)]
    assert answer.left_out == (str(torn),)


def test_tables_of_a_newer_release_are_refused_with_advice_and_stay_as_they_are(tmp_path: Path) -> None:
    write_history(tmp_path)
    schema = tmp_path / "history" / "_schema.json"
    schema.write_text(json.dumps({"kind": "ReportTables", "version": SCHEMA_VERSION + 1}))
    with pytest.raises(NewerTablesError, match="use the release that wrote them, or a newer one"):
        ask(tmp_path, "SELECT 1", limit=1, timeout_s=60)
    before = sorted((tmp_path / "history").rglob("*"))
    write(tmp_path, run(9), kept=Kept(days_max=1))
    assert sorted((tmp_path / "history").rglob("*")) == before
    assert next(reports(tmp_path)).run_id == run(9).run_id, "the report was written nevertheless"


def test_an_unreadable_version_is_not_mistaken_for_none(tmp_path: Path) -> None:
    write_history(tmp_path)
    (tmp_path / "history" / "_schema.json").write_text("{ torn")
    with pytest.raises(writing.ReportDirError, match="the version of the tables is unknown"):
        ask(tmp_path, "SELECT 1", limit=1, timeout_s=60)
    before = sorted((tmp_path / "history").rglob("*"))
    write(tmp_path, run(9))
    assert sorted((tmp_path / "history").rglob("*")) == before


def test_findings_that_cannot_be_read_are_the_reason_of_a_missing_report(tmp_path: Path) -> None:
    summary, found = HISTORY[1]
    directory = writing.prepare(tmp_path, summary.run_id)
    write_findings(directory, found)
    (directory / "findings.parquet" / "part-9.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(writing.ReportDirError, match="cannot read the findings"):
        writing.finish(tmp_path, summary)
    assert list(reports(tmp_path)) == []


@pytest.mark.parametrize(("sign", "limit"), [(1, (1 << 63) - 1), (-1, 0)])
def test_damaged_lengths_of_ledgers_give_sizes_that_fit_into_a_table(tmp_path: Path, sign: int, limit: int) -> None:
    found = tuple({**finding(1, "b:3181"), "bytes_estimate": sign * 6 * 10**18} for _ in range(2))
    write(tmp_path, run(0, found), found)
    assert rows(tmp_path, "bytes_critical", "runs") == [(limit,)]
    assert rows(tmp_path, "ledger_id, bytes_estimate", "ledgers_unhealthy_since") == [(1, limit)]


def test_a_number_too_large_for_a_table_is_the_reason_of_a_missing_report(tmp_path: Path) -> None:
    summary = replace(run(0), counts=replace(world.CLEAN.counts, ledgers=1 << 63))
    writing.prepare(tmp_path, summary.run_id)
    with pytest.raises(writing.ReportDirError, match="cannot write the report in"):
        writing.finish(tmp_path, summary)
    assert list(reports(tmp_path)) == []


@pytest.mark.parametrize("step", ["is_parquet", "_answer"])
def test_a_query_during_a_compaction_is_answered_from_the_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    many(tmp_path, 3)
    real = getattr(sql, step)
    tidied: list[bool] = []

    def after_a_compaction(*args: object) -> object:
        if not tidied:
            tidied.append(compact_and_prune(tmp_path, FAR_MS, EVERYTHING))
        return real(*args)

    monkeypatch.setattr(sql, step, after_a_compaction)
    assert rows(tmp_path, "ledger_id", "findings") == [(0,), (1,), (2,)]
    assert tidied == [True]


def test_two_runs_that_end_at_the_same_time_are_both_in_the_tables(tmp_path: Path) -> None:
    summaries = [replace(run(0), run_id=f"20260101T0304{each:02}Z-00000a") for each in range(4)]
    ready = threading.Barrier(len(summaries))

    def end(summary: RunSummary) -> None:
        ready.wait(timeout=60)
        write(tmp_path, summary, (finding(1, "b:3181"),))

    with ThreadPoolExecutor(len(summaries)) as threads:
        list(threads.map(end, summaries))
    for table in ("runs", "findings"):
        assert [row[0] for row in rows(tmp_path, "run_id", table)] == [each.run_id for each in summaries]
    assert count(tmp_path, "ledgers_unhealthy_since") == 1
