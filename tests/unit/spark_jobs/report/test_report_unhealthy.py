"""Since when ledgers have been unhealthy: what a run adds, keeps and ends."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from bookie.model.run import RunKind
from bookie.model.severity import Severity
from bookie.model.times import rfc3339
from spark_jobs.kept import EVERYTHING, Kept
from spark_jobs.report.counts import UnknownAnswers
from spark_jobs.report.summary import ClusterName, RunSummary
from spark_jobs.report.tables.files import days, newest_states, table_files
from spark_jobs.report.tables.sql import ask
from spark_jobs.report.tables.sql_values import as_json
from spark_jobs.report.tables.unhealthy import has_seen_every_ledger, write_next_state
from spark_jobs.report.tables.upkeep import compact_and_prune
from tests.worlds import report as world
from tests.worlds.report_tables import HISTORY, Row, finding, run, unreadable, write, write_history

TABLE = "ledgers_unhealthy_since"


def state(report_dir: Path) -> dict[int, tuple[int, int]]:
    """Return the days of the first and the last run that found each ledger."""
    question = f"SELECT ledger_id, first_run_id, run_id FROM {TABLE}"
    rows = ask(report_dir, question, limit=100, timeout_s=60).rows
    return {ledger: (int(first[6:8]), int(last[6:8])) for ledger, first, last in rows}


def test_a_ledger_is_unhealthy_since_the_first_consecutive_run_that_found_it(tmp_path: Path) -> None:
    write_history(tmp_path)
    assert state(tmp_path) == {1: (2, 3), 3: (2, 3), 4: (3, 3), 9: (3, 3)}
    columns = "ledger_id, severity, findings, bytes_estimate, unhealthy_since, last_found, instance_id, run_kind"
    rows = ask(tmp_path, f"SELECT {columns} FROM {TABLE} ORDER BY ledger_id", limit=9, timeout_s=60).rows
    second, third = (rfc3339(summary.finished_ms) for summary, _ in HISTORY[1:])
    assert [tuple(map(as_json, row)) for row in rows] == [
        (1, "no_live_copy", 1, 1 << 20, second, third, world.CLEAN.cluster.instance_id, "bookies"),
        (3, "critical", 1, 1 << 20, second, third, world.CLEAN.cluster.instance_id, "bookies"),
        (4, "below_write_quorum", 1, 1 << 20, third, third, world.CLEAN.cluster.instance_id, "bookies"),
        (9, None, 1, None, third, third, world.CLEAN.cluster.instance_id, "bookies"),
    ]
    write(tmp_path, run(3))
    assert state(tmp_path) == {}
    found = (finding(1, "b:3181"),)
    write(tmp_path, run(4, found), found)
    assert state(tmp_path) == {1: (5, 5)}, "the ledger was healthy between the two"


ASKED = replace(world.ASKED, unknown=())
REPLICAS = replace(world.REPLICAS, problems=(), replicas=ASKED)


@pytest.mark.parametrize(
    "partial",
    [
        replace(world.CLEAN, problems=("some ledgers were not listed",)),
        replace(world.CLEAN, held_because="too many bookies are missing"),
    ],
)
def test_a_run_that_did_not_check_every_ledger_ends_no_unhealthy_state(tmp_path: Path, partial: RunSummary) -> None:
    write_history(tmp_path)
    found = (finding(4, "c:3181", severity=Severity.CRITICAL), finding(7, "c:3181"))
    write(tmp_path, run(3, found, of=partial), found)
    assert state(tmp_path) == {1: (2, 3), 3: (2, 3), 4: (3, 4), 7: (4, 4), 9: (3, 3)}


@pytest.mark.parametrize(
    ("summary", "is_every"),
    [
        (world.CLEAN, True),
        (REPLICAS, True),
        (world.INCOMPLETE, False),
        (world.HELD, False),
        (replace(REPLICAS, replicas=replace(ASKED, sample=0.5)), False),
        (replace(REPLICAS, replicas=replace(ASKED, ledger_min=1)), False),
        (replace(REPLICAS, replicas=replace(ASKED, ledger_max=1 << 40)), False),
        (replace(REPLICAS, replicas=replace(ASKED, unknown=(UnknownAnswers("a", "X", 1),))), False),
    ],
)
def test_runs_that_checked_every_ledger_are_recognized(summary: RunSummary, is_every: bool) -> None:
    assert has_seen_every_ledger(summary) is is_every


@pytest.mark.parametrize(
    "row",
    [
        {**finding(5, "b:3181", severity=Severity.LOST), "kind": "LOSS_ACCEPTED"},
        finding(5, "b:3181", severity=Severity.METADATA_ONLY),
        {**finding(5, severity=Severity.MISPLACED), "kind": "MISPLACED"},
        {**finding(5, "b:3181", severity=Severity.DRAIN), "kind": "DRAINED_BOOKIE"},
        {**unreadable(5), "kind": "UNKNOWN_PLACE"},
    ],
)
def test_a_ledger_with_all_copies_or_an_accepted_loss_is_not_unhealthy(tmp_path: Path, row: Row) -> None:
    found = (row, finding(6, "b:3181"))
    write(tmp_path, run(0, found), found)
    assert state(tmp_path) == {6: (1, 1)}


def test_each_check_and_each_cluster_has_a_state_of_its_own(tmp_path: Path) -> None:
    found = (finding(1, "b:3181"),)
    other = replace(world.CLEAN, cluster=ClusterName("zk://other/ledgers", "another"))
    write(tmp_path, run(0, found), found)
    write(tmp_path, run(1, of=other))
    write(tmp_path, run(2, of=REPLICAS))
    write(tmp_path, run(3, of=replace(world.CLEAN, kind=RunKind.PLACEMENT)))
    assert state(tmp_path) == {1: (1, 1)}
    write(tmp_path, run(4))
    assert state(tmp_path) == {}


def test_only_the_newest_state_is_kept(tmp_path: Path) -> None:
    write_history(tmp_path)
    assert len(table_files(tmp_path, TABLE).partitioned) == 1
    assert len(list((tmp_path / "history" / TABLE).rglob("*.parquet"))) == 1
    compact_and_prune(tmp_path, HISTORY[-1][0].finished_ms + 5 * world.DAY_MS, EVERYTHING)
    assert days(tmp_path, TABLE) == ("2026-01-04",)


@pytest.mark.parametrize("kept", [Kept(days_max=1), Kept(table_bytes_max=1)])
def test_the_state_of_a_rarely_run_check_outlives_the_limits_of_the_tables(tmp_path: Path, kept: Kept) -> None:
    found = (finding(1, "b:3181"),)
    write(tmp_path, run(0, found, of=REPLICAS), found, kept=kept)
    write(tmp_path, run(5), kept=kept)
    assert days(tmp_path, "runs") == ("2026-01-07",)
    write(tmp_path, run(9, found, of=REPLICAS), found, kept=kept)
    assert state(tmp_path) == {1: (1, 10)}


def test_a_damaged_state_is_started_again(tmp_path: Path) -> None:
    write_history(tmp_path)
    (path,) = table_files(tmp_path, TABLE).partitioned
    path.write_bytes(b"torn")
    found = (finding(1, "b:3181"),)
    write(tmp_path, run(3, found), found)
    assert state(tmp_path) == {1: (4, 4)}


def test_a_state_of_many_ledgers_is_complete_and_in_the_order_of_their_ids(tmp_path: Path) -> None:
    """There are more findings than are processed at once; ids are far apart and unsorted, and each has two findings."""
    ids = [number**3 for number in random.Random(3).sample(range(400_000), 400_000)]
    for day, found in ((0, ids[:300_000]), (1, ids[100_000:])):
        row = finding(0, "b:3181", severity=Severity.BELOW_WRITE_QUORUM)
        columns = {name: pa.repeat(row[name], 2 * len(found)) for name in ("kind", "severity_rank", "bytes_estimate")}
        file = tmp_path / f"{day}.parquet"
        pq.write_table(pa.table({"ledger_id": [*found, *found], **columns}), file)
        write_next_state(tmp_path, run(day, (row,)), [file])
    (path,) = table_files(tmp_path, TABLE).partitioned
    table = pq.read_table(path)
    assert table["ledger_id"].to_pylist() == sorted(ids[100_000:])
    assert pc.unique(table["findings"]).to_pylist() == [2]
    is_old = pc.equal(table["first_run_id"], run(0).run_id)
    assert sorted(table.filter(is_old)["ledger_id"].to_pylist()) == sorted(ids[100_000:300_000])


def test_the_state_of_the_newest_run_is_used() -> None:
    paths = [Path(f"day=1/{name}.parquet") for name in ("bookies-a-2", "bookies-a-10", "bookies-b-1", "replicas-a-1")]
    assert [path.stem for path in newest_states(paths)] == ["bookies-a-2", "bookies-b-1", "replicas-a-1"]


def test_a_state_dated_in_the_future_is_used_only_if_there_is_no_other() -> None:
    """A run with a wrong clock wrote it."""
    names = ("bookies-a-20270101T000000Z-000001", "bookies-a-20260101T000000Z-000001", "bookies-b-20270101T000000Z-0")
    paths = [Path(f"day=1/{name}.parquet") for name in names]
    now_ms = world.CLEAN.finished_ms
    assert [path.stem for path in newest_states(paths, now_ms)] == list(names[1:])
    assert [path.stem for path in newest_states(paths)] == [names[0], names[2]]


def test_a_run_with_a_clock_that_is_ahead_does_not_freeze_the_state(tmp_path: Path) -> None:
    one, two = finding(1, "b:3181"), finding(2, "b:3181")
    write(tmp_path, run(0, (one,)), (one,))
    write(tmp_path, ahead(run(1, (one,))), (one,))
    assert [row[:2] for row in since(tmp_path)] == [(1, run(0).run_id)]
    for day, found in ((2, (one, two)), (3, (two,))):
        write(tmp_path, run(day, found), found)
        expected = [(row["ledger_id"], run(0 if row is one else 2).run_id, run(day).run_id) for row in found]
        assert since(tmp_path) == expected
    assert days(tmp_path, TABLE) == ("2026-01-04", "2026-01-05")


def test_a_run_with_a_clock_that_is_behind_loses_no_state(tmp_path: Path) -> None:
    one = finding(1, "b:3181")
    for summary in (ahead(run(0, (one,))), run(1, (one,)), ahead(run(2, (one,)))):
        write(tmp_path, summary, (one,))
    assert since(tmp_path) == [(1, ahead(run(0)).run_id, ahead(run(2)).run_id)]


def ahead(summary: RunSummary) -> RunSummary:
    """Return the run with a clock that is a year ahead."""
    year_ms = 365 * world.DAY_MS
    run_id = f"{int(summary.run_id[:4]) + 1}{summary.run_id[4:]}"
    return replace(
        summary, run_id=run_id, started_ms=summary.started_ms + year_ms, finished_ms=summary.finished_ms + year_ms
    )


def since(report_dir: Path) -> list[tuple[object, ...]]:
    question = f"SELECT ledger_id, first_run_id, run_id FROM {TABLE} ORDER BY ledger_id"
    return ask(report_dir, question, limit=9, timeout_s=60).rows
