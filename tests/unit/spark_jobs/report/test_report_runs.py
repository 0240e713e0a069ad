"""Runs in a report directory: found, compared with the right run, and pruned."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bookie.model.run import RunKind
from spark_jobs.report import writing as report
from spark_jobs.report.history import (
    LEFT_MS,
    NoSuchReportError,
    earlier_run_to_compare,
    find,
    prune,
    reports,
    run_ids_to_prune,
)
from spark_jobs.report.summary import ClusterName
from spark_jobs.report.tables.run_tables import trend
from tests.worlds import report as world


def test_a_run_is_found_by_its_id_by_a_prefix_and_as_the_latest(tmp_path: Path) -> None:
    first, second = world.at(world.CLEAN, 0), world.at(world.NO_LIVE_COPY, 1)
    world.write(tmp_path, first, second)
    assert find(tmp_path, "latest") == second
    assert find(tmp_path, first.run_id) == first
    assert find(tmp_path, "20260102") == second
    with pytest.raises(NoSuchReportError, match="2 runs begin with '2026'"):
        find(tmp_path, "2026")
    for name in ("2027", "", "../20260101"):
        with pytest.raises(NoSuchReportError, match="no report of a run"):
            find(tmp_path, name)


def test_a_run_dated_in_the_future_is_not_the_latest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = world.at(world.CLEAN, 0), world.at(world.NO_LIVE_COPY, 1)
    ahead = replace(first, run_id=f"9998{first.run_id[4:]}")
    world.write(tmp_path, ahead)
    assert find(tmp_path, "latest") == ahead, "there is no other run"
    assert not caplog.records
    world.write(tmp_path, first, second)
    assert find(tmp_path, "latest") == second
    assert [record.__dict__["run_id"] for record in caplog.records] == [ahead.run_id]
    assert find(tmp_path, ahead.run_id) == ahead


def test_an_empty_or_missing_directory_has_no_latest_run(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NoSuchReportError, match="bkheal audit"):
            find(directory, "latest")


def test_files_that_are_not_reports_are_skipped(tmp_path: Path) -> None:
    world.write(tmp_path, world.CLEAN)
    summary = (tmp_path / world.CLEAN.run_id / "summary.json").read_bytes()
    for name, content in (
        ("20270101T000000Z-000001", b"{ torn"),
        ("20270101T000000Z-000002", b"[" * 100_000),
        ("20270101T000000Z-000003", b"[]"),
        ("20270101T000000Z-000004", b'{"apiVersion": "bkheal/v1", "kind": "AuditReport"}'),
        ("20270101T000000Z-000005", summary),  # the summary of another run
        (".hidden", summary.replace(world.CLEAN.run_id.encode(), b".hidden")),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_bytes(content)
    broken = json.loads(summary) | {"run_id": "20270101T000000Z-000006", "counts": 3}
    (tmp_path / "20270101T000000Z-000006").mkdir()
    (tmp_path / "20270101T000000Z-000006" / "summary.json").write_text(json.dumps(broken))
    assert list(reports(tmp_path)) == [world.CLEAN]
    assert report.earlier_ledgers(tmp_path, world.CLEAN.cluster.instance_id) == 1284


def test_a_run_is_compared_with_the_last_complete_one_of_its_check_and_cluster() -> None:
    wanted = world.at(world.CLEAN, 2)
    runs = [
        world.at(world.CLEAN, 9),
        world.at(world.HELD, 6),
        world.at(world.INCOMPLETE, 5),
        world.at(replace(world.CLEAN, kind=RunKind.PLACEMENT), 4),
        world.at(replace(world.CLEAN, cluster=ClusterName("zk://b/l", "b")), 3),
        wanted,
        world.at(world.CLEAN, 1),
    ]
    assert earlier_run_to_compare(runs, world.at(world.CLEAN, 8)) == wanted
    assert earlier_run_to_compare(runs, world.at(world.CLEAN, 1)) is None


def test_the_oldest_runs_are_removed_except_those_the_next_run_needs() -> None:
    runs = [
        world.at(world.CLEAN, 0),
        world.at(replace(world.CLEAN, kind=RunKind.REPLICAS), 1),
        world.at(world.CLEAN, 2),
        world.at(world.INCOMPLETE, 3),
        world.at(world.HELD, 4),
        world.at(world.HELD, 5),
    ]
    ids = [run.run_id for run in runs]
    assert run_ids_to_prune(runs, 6) == []
    assert run_ids_to_prune(runs, 2) == [ids[0], ids[3]]
    assert run_ids_to_prune(runs, 0) == [ids[0], ids[3], ids[4]]


def test_pruning_removes_only_our_directories_and_keeps_the_history(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    reports_dir = tmp_path / "reports"
    world.write(outside, world.at(world.CLEAN, 0))
    for day in range(1, 4):
        world.write(reports_dir, world.at(world.CLEAN, day))
    link = reports_dir / world.at(world.CLEAN, 0).run_id
    link.symlink_to(outside / link.name)
    running = report.prepare(reports_dir, world.at(world.CLEAN, 20).run_id)
    (reports_dir / "notes").mkdir()
    (reports_dir / "notes" / "summary.json").write_text("{}")
    world.write(reports_dir, world.at(world.CLEAN, 4), kept_max=2)
    kept = {path.name for path in reports_dir.iterdir()}
    assert kept == {
        "history", "index.html", "notes", link.name, running.name,
        world.at(world.CLEAN, 3).run_id, world.at(world.CLEAN, 4).run_id,
    }  # fmt: skip
    assert (outside / link.name / "summary.json").is_file()
    assert pq.read_table(reports_dir / "history" / "runs").num_rows == 4


def test_after_a_crash_while_pruning_the_next_run_finishes_it(tmp_path: Path) -> None:
    world.write(tmp_path, world.at(world.CLEAN, 1), world.at(world.CLEAN, 2))
    going = tmp_path / f".bkheal-pruned-{world.at(world.CLEAN, 1).run_id}"
    (tmp_path / world.at(world.CLEAN, 1).run_id).rename(going)
    (going / "summary.json").unlink()
    assert prune(tmp_path, 5) == []
    assert not going.exists()
    assert find(tmp_path, "latest") == world.at(world.CLEAN, 2)


def left_by_a_killed_run(reports_dir: Path, day: int, changed_ms: int) -> Path:
    """Make the directory of a run that was killed, and that wrote its last findings at this time."""
    directory = report.prepare(reports_dir, world.at(world.CLEAN, day).run_id)
    findings = directory / "findings.parquet" / "_temporary" / "part-0.parquet"
    findings.parent.mkdir(parents=True)
    findings.write_bytes(b"PAR1")
    began_ms = world.at(world.CLEAN, day).started_ms
    for path in (findings, *findings.relative_to(reports_dir).parents):
        os.utime(reports_dir / path, ns=(0, (changed_ms if path == findings else began_ms) * 10**6))
    return directory


def test_what_a_killed_run_left_is_removed_after_no_run_can_still_be_paused(tmp_path: Path) -> None:
    now_ms = world.at(world.CLEAN, 20).finished_ms
    left = left_by_a_killed_run(tmp_path, 1, now_ms - LEFT_MS)
    active = left_by_a_killed_run(tmp_path, 2, now_ms - LEFT_MS + 1)
    notes = tmp_path / "20260101"
    notes.mkdir()
    os.utime(notes, ns=(0, 0))
    world.write(tmp_path, world.at(world.CLEAN, 20))
    assert not left.exists()
    assert (active / "findings.parquet").is_dir(), "its run may still be active"
    assert notes.is_dir(), "its name is not that of a run"
    assert not list(tmp_path.glob(".bkheal-pruned-*"))


def test_the_trend_outlives_the_reports_and_is_separate_by_check_and_cluster(tmp_path: Path) -> None:
    world.write(
        tmp_path,
        world.at(world.CLEAN, 0),
        world.at(world.UNDER_REPLICATED, 1),
        world.at(world.PLACEMENT, 2),
        world.at(replace(world.CLEAN, cluster=ClusterName("zk://b/l", "b")), 3),
        world.at(world.HELD, 4),
        kept_max=1,
    )
    (tmp_path / "history" / "runs" / "20260101T000000Z-torn.parquet").write_bytes(b"PAR1 torn")
    now = world.at(world.NO_LIVE_COPY, 9)
    points = trend(tmp_path, now, 10)
    assert [point.run_id for point in points] == [world.at(world.CLEAN, day).run_id for day in (0, 1, 4, 9)]
    assert [point.ledgers_found for point in points] == [0, 452, 0, 455]
    assert [point.ledgers_serious for point in points] == [0, 12, 0, 15]
    assert [point.is_held for point in points] == [False, False, True, False]
    assert [point.run_id for point in trend(tmp_path, now, 2)] == [points[2].run_id, points[3].run_id]
