"""Killed audits. After a kill during the marking, the next audit marks only the rest (R22). After a kill during
the reads, the next audit continues with the unfinished ones (R108).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.layout import task_path
from bookie.metadata.port import Stat
from bookie.metadata.runs.records import RunLane, Runs
from bookie.model.ids import LedgerId
from bookie.model.run import RunKind, RunState
from spark_jobs.image.files import cluster_folder, unfinished
from spark_jobs.image.folder import ImageFolder, LocalImageFolder
from spark_jobs.one_shot.run import OneShot, run_one_shot
from spark_jobs.report import writing as report
from spark_jobs.report.counts import PublishOutcome
from spark_jobs.runs.run import AuditResult
from spark_jobs.session import SessionSettings
from spark_jobs.settings import AuditSettings
from tests.deadlines import PROGRAM_S
from tests.integration.auditors import when
from tests.integration.commands import command, environment
from tests.integration.killed_audit_child import PAUSED_LINE
from tests.lent_session import lend_session
from tests.sessions import kill9
from tests.spark.audit_world import Place, closed, opened

pytestmark = pytest.mark.integration

LEDGERS = 10
HEALTHY = closed("a:1", "b:1")


SMALL_LEAVES = {leaf * 10_000 + number: HEALTHY for leaf in (1, 2, 3) for number in range(20)}
"""Three leaves, each with the ledgers of one read request, which is sent immediately at any rate."""
LARGE_LEAF = dict.fromkeys(range(200), HEALTHY)
FOUND = {5: closed("a:1", "x:1"), 10_005: closed("b:1", "x:1"), 30_007: closed("a:1", "x:1")}
"""One ledger of the leaf whose reads are interrupted, and two of leaves that are read before."""


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """Ledgers with the same lost bookie."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.create({number: closed("a:1", "x:1") for number in range(LEDGERS)})
        yield place


def tasks(place: Place) -> dict[LedgerId, Stat]:
    """Return the times of the creation and the change of each task."""
    found = place.do(place.tasks.list())
    paths = [task_path(place.cluster.root, task.ledger_id) for task in found]
    nodes = [place.do(place.store.get(path)) for path in paths]
    return {task.ledger_id: node.stat for task, node in zip(found, nodes, strict=True)}


def findings(result: AuditResult) -> list[dict[str, Any]]:
    found = pq.read_table(result.summary_path.parent / report.FINDINGS).to_pylist()
    return sorted(({**row, "run_id": ""} for row in found), key=lambda row: row["ledger_id"])


def test_an_audit_after_one_killed_during_marking_adds_the_missing_marks(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--metadata-uri", place.uri, "--report-dir", str(place.report_dir), "--master", "local[1]", "--quiet"]
    command = [sys.executable, "-m", "tests.integration.killed_audit_child", *words]
    killed = ManagedProcess.start("audit", command, log_path=tmp_path / "audit.log")
    try:
        place.do(killed.wait_for_line(PAUSED_LINE, PROGRAM_S))
        place.do(kill9(zookeeper, killed))
    finally:
        place.do(killed.stop())
    before = tasks(place)
    assert len(before) == LEDGERS // 2
    runs = Runs(place.store, place.cluster.root)
    assert [record.state for record in place.do(runs.list(9, now_ms=0))] == [RunState.RUNNING]

    lend_session(monkeypatch, spark)
    settings = AuditSettings(place.uri, place.report_dir)
    result = run_one_shot(OneShot(RunKind.BOOKIES, settings, SessionSettings(), "me"))
    published = result.summary.published
    assert (published.outcome, published.ledgers) == (PublishOutcome.PUBLISHED, LEDGERS)
    assert published.tasks_changed == LEDGERS - len(before)
    assert place.marked() == {number: ["x:1"] for number in range(LEDGERS)}
    after = tasks(place)
    assert {ledger_id: after[ledger_id] for ledger_id in before} == before, "existing marks were changed"
    assert place.do(place.tasks.locks.locked()) == frozenset()
    states = {record.run_id: record.state for record in place.do(runs.list(9, now_ms=0))}
    assert states.pop(result.run_id) is RunState.DONE
    assert list(states.values()) == [RunState.ABANDONED]
    assert place.do(runs.holder(RunLane(RunKind.BOOKIES))) is None


@pytest.mark.long  # a process with its own Spark; tests/spark/test_incremental_audit.py finds the same defects
def test_an_audit_after_one_killed_during_reading_continues_after_the_finished_parts(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    fresh_root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.add_cookies("a:1", "b:1", "x:1")
        ledgers = LARGE_LEAF | SMALL_LEAVES | FOUND
        place.create(ledgers)
        image = cluster_folder(LocalImageFolder(place.report_dir / "image"), place.cluster)

        async def small_leaves_are_read() -> bool:
            return len(finished_parts(image)) == len(SMALL_LEAVES) // 20

        # Four tasks, one for each leaf. At this rate, the driver's reads take a minute, and the second request of the
        # large leaf is due a minute after the small leaves are read.
        words = ["audit", "run", "--incremental", "--metadata-rate", "1", "--master", "local[4]"]
        words += ["--report-dir", str(place.report_dir)]
        killed = ManagedProcess.start(
            "audit", command(*words), log_path=tmp_path / "audit.log", environment=environment(place.uri)
        )
        try:
            place.do(when(small_leaves_are_read))
            place.do(kill9(zookeeper, killed))
        finally:
            place.do(killed.stop())
        assert place.marked() == {}
        assert place.do(small_leaves_are_read()), "the large leaf was read as well"

        lend_session(monkeypatch, spark)
        settings = AuditSettings(place.uri, place.report_dir)
        whole = run_one_shot(OneShot(RunKind.BOOKIES, replace(settings, is_dry_run=True), SessionSettings(), "me"))
        result = run_one_shot(OneShot(RunKind.BOOKIES, replace(settings, incremental=True), SessionSettings(), "me"))
        carried = len(SMALL_LEAVES) - len(FOUND.keys() & SMALL_LEAVES.keys())
        assert result.summary.image.carried == carried
        assert "lost" in result.summary.image.carried_problem, "the rest was taken from the image"
        assert result.summary.is_complete
        assert result.summary.counts.ledgers == len(ledgers)
        assert findings(result) == findings(whole) != []
        assert whole.summary.image.carried == 0
        assert place.marked() == {number: ["x:1"] for number in FOUND}
        assert place.audited() == {"x:1"}
        assert finished_parts(image) == [], "files of the interrupted run are left"


def finished_parts(image: ImageFolder) -> list[str]:
    return [name for left in unfinished(image) for name in left.files() if name.startswith("part-")]
