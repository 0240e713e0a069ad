"""An audit dies while it marks what it found; the next one marks the rest and nothing else (R22)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.layout import task_path
from bookie.metadata.port import Stat
from bookie.metadata.runs.records import RunLane, Runs
from bookie.model.ids import LedgerId
from bookie.model.run import RunKind, RunState
from spark_jobs.one_shot import run as one_shot
from spark_jobs.one_shot.run import OneShot, run_one_shot
from spark_jobs.report.summary import PublishOutcome
from spark_jobs.session import SessionSettings
from spark_jobs.settings import AuditSettings
from tests.deadlines import PROGRAM_S
from tests.integration.killed_audit_child import STANDS_STILL
from tests.sessions import kill9
from tests.spark.audit_world import Place, closed, opened

pytestmark = pytest.mark.integration

LEDGERS = 10


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """Ledgers that have all lost the same bookie."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.create({number: closed("a:1", "x:1") for number in range(LEDGERS)})
        yield place


def tasks(place: Place) -> dict[LedgerId, Stat]:
    """When each task was created and changed."""
    found = place.do(place.tasks.list())
    paths = [task_path(place.cluster.root, task.ledger_id) for task in found]
    nodes = [place.do(place.store.get(path)) for path in paths]
    return {task.ledger_id: node.stat for task, node in zip(found, nodes, strict=True)}


def test_an_audit_after_one_that_was_killed_while_it_marked_adds_the_marks_that_are_missing(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--metadata-uri", place.uri, "--report-dir", str(place.report_dir), "--master", "local[1]", "--quiet"]
    command = [sys.executable, "-m", "tests.integration.killed_audit_child", *words]
    killed = ManagedProcess.start("audit", command, log_path=tmp_path / "audit.log")
    try:
        place.do(killed.wait_for_line(STANDS_STILL, PROGRAM_S))
        place.do(kill9(zookeeper, killed))
    finally:
        place.do(killed.stop())
    before = tasks(place)
    assert len(before) == LEDGERS // 2
    runs = Runs(place.store, place.cluster.root)
    assert [record.state for record in place.do(runs.list(9))] == [RunState.RUNNING]

    @contextmanager
    def session(settings: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(one_shot, "spark_session", session)
    settings = AuditSettings(place.uri, place.report_dir)
    result = run_one_shot(OneShot(RunKind.BOOKIES, settings, SessionSettings(), "me"))
    published = result.summary.published
    assert (published.outcome, published.ledgers) == (PublishOutcome.PUBLISHED, LEDGERS)
    assert published.tasks_changed == LEDGERS - len(before)
    assert place.marked() == {number: ["x:1"] for number in range(LEDGERS)}
    after = tasks(place)
    assert {ledger_id: after[ledger_id] for ledger_id in before} == before, "marks that were there stay as they are"
    assert place.do(place.tasks.locks.locked()) == frozenset()
    states = {record.run_id: record.state for record in place.do(runs.list(9))}
    assert states.pop(result.run_id) is RunState.DONE
    assert list(states.values()) == [RunState.ABANDONED]
    assert place.do(runs.holder(RunLane(RunKind.BOOKIES))) is None
