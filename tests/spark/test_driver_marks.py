"""The marks of an audit of a small cluster before Spark reads the ledgers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.tasks.decisions import Decision, DecisionKind, Decisions, LostFragment
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.run import RunKind, RunState
from spark_jobs.report.files import TASKS
from spark_jobs.runs.gate import RunGate, Stop
from spark_jobs.runs.marking import driver_marks
from spark_jobs.runs.port import Phase, ProgressEvent, RunStoppedError
from spark_jobs.runs.run import AuditResult, run_audit, run_check
from spark_jobs.settings import AuditSettings
from tests.spark.audit_world import Place, after_listing, closed, opened

pytestmark = [pytest.mark.spark, pytest.mark.integration]

THREE_COPIES = (Fragment(EntryId(0), (BookieId("a:1"), BookieId("b:1"), BookieId("x:1"))),)
LEDGERS = {
    1: closed("a:1", "b:1", "c:1"),
    2: closed("x:1", "b:1", "c:1"),
    3: closed("a:1", "x:1"),
    4: closed("a:1", "b:1"),
    5: closed("x:1", "c:1"),
    6: LedgerMetadata(3, 3, 2, THREE_COPIES).closed(EntryId(9), 9),
    10_001: closed("a:1", "c:1", "x:1"),
    1 << 33: closed("x:1", "b:1"),
}
ON_X = {2, 3, 5, 6, 10_001, 1 << 33}
CRITICAL = ON_X - {6}
"""The ledgers of ``ON_X`` whose entries have two copies, one of them on x."""


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """A cluster that has lost the bookie x, and that no audit has read."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1", "c:1", "x:1")
        place.add_cookies("a:1", "b:1", "c:1", "x:1")
        place.create(LEDGERS)
        place.unregister("x:1")
        yield place


def audited(spark: SparkSession, place: Place, **settings: Any) -> tuple[AuditResult, set[int]]:
    """Run an audit that may wait for Spark, and return it with the marks when its pass over all ledgers begins."""
    first: list[set[int]] = []

    def note(event: ProgressEvent) -> None:
        if event.phase is Phase.SCAN and not first:
            first.append(set(place.marked()))

    result = run_audit(lambda: spark, AuditSettings(place.uri, place.report_dir, **settings), note)
    return result, first[0]


def test_the_driver_marks_a_small_cluster_before_spark_reads_it(spark: SparkSession, place: Place) -> None:
    result, first = audited(spark, place)
    counts = result.summary.driver_marks
    assert (first, set(place.marked())) == (ON_X, ON_X)
    assert (counts.ledgers, counts.marked, counts.problem) == (len(LEDGERS), len(ON_X), "")
    assert result.summary.started_ms <= counts.first_mark_ms <= counts.last_mark_ms <= result.summary.finished_ms
    assert (result.summary.published.ledgers, result.summary.published.tasks_changed) == (6, 6)
    tasks = pq.read_table(result.summary_path.parent / TASKS).to_pylist()
    assert {row["ledger_id"] for row in tasks if row["marked_at"].timestamp() * 1000 <= counts.last_mark_ms} == ON_X
    assert place.audited() == {"x:1"}

    again, _ = audited(spark, place)
    assert again.summary.driver_marks.ledgers == 0, "an audited loss must not be read again"


def test_the_last_read_of_a_ledger_determines_its_verdict(spark: SparkSession, place: Place) -> None:
    """An accepted loss, a deleted ledger and damaged metadata are also left to the pass over all ledgers."""
    lost = LostFragment(EntryId(0), EntryId(9), (1,), (BookieId("x:1"),))
    accepted = Decision(LedgerId(3), DecisionKind.LOSS_ACCEPTED, "an operator", 1, "gone", lost=(lost,))

    async def accept() -> None:
        await place.store.multi([await Decisions(place.store, place.cluster.root).writing(accepted)])

    place.do(accept())
    place.do(LedgerStore(place.store, place.cluster, random.Random(1)).delete(LedgerId(5)))
    place.damage(2)
    result, first = audited(spark, place)
    assert first == {6, 10_001, 1 << 33}
    assert result.summary.counts.unreadable == 1


def test_a_bookie_that_returns_before_the_verdict_causes_no_mark(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_listing(monkeypatch, 1, lambda: place.register("x:1"))
    _, first = audited(spark, place)
    assert (first, place.marked()) == (set(), {})


def test_reasons_to_hold_back_marks_apply_to_the_driver_too(spark: SparkSession, place: Place) -> None:
    result, first = audited(spark, place, is_dry_run=True)
    assert (first, place.marked(), result.summary.driver_marks.ledgers) == (set(), {}, 0)

    place.do(place.tasks.switches.set_lost_bookie_delay_s(3600))
    _, first = audited(spark, place, critical_delay_s=3600, with_image=False)
    assert (first, place.marked()) == (set(), {})
    place.do(place.tasks.switches.disable())
    result, first = audited(spark, place, critical_delay_s=0, with_image=False)
    assert (first, place.marked()) == (set(), {})
    assert "disabled" in result.summary.driver_marks.problem
    place.do(place.tasks.switches.enable())
    _, first = audited(spark, place, critical_delay_s=0, with_image=False)
    assert (first, set(place.marked())) == (CRITICAL, CRITICAL)

    place.do(place.tasks.switches.set_lost_bookie_delay_s(0))
    result, first = audited(spark, place, marks_max=1, with_image=False)
    assert (first, result.summary.driver_marks.ledgers) == (CRITICAL, 0), (
        "with a limit, all ledgers must be read before the first mark"
    )


def test_a_larger_cluster_is_left_to_spark(spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_marks, "LEDGERS_MAX", len(LEDGERS) - 1)
    result, first = audited(spark, place)
    assert (first, set(place.marked())) == (set(), ON_X)
    assert result.summary.driver_marks.ledgers == 0


@pytest.mark.parametrize("limit", [{"metadata_rate": 1_000.0}, {"metadata_bytes_rate": 256_000.0}])
def test_spark_does_not_wait_for_a_driver_with_a_low_rate_limit(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, limit: dict[str, float]
) -> None:
    monkeypatch.setattr(driver_marks, "START_S", (len(LEDGERS) - 1) / 1_000)
    result, first = audited(spark, place, **limit)
    assert (first, set(place.marked()), result.summary.driver_marks.ledgers) == (set(), ON_X, 0)


def test_limits_high_enough_to_read_all_ledgers_at_once_do_not_stop_the_driver(
    spark: SparkSession, place: Place
) -> None:
    _, first = audited(spark, place, metadata_rate=1_000.0, metadata_bytes_rate=256_000.0)
    assert first == ON_X


def test_a_session_that_is_already_running_reads_all_ledgers_at_once(spark: SparkSession, place: Place) -> None:
    summary = place.audit(spark).summary
    assert (summary.driver_marks.ledgers, set(place.marked())) == (0, ON_X)


def test_an_implausible_loss_stops_the_driver_before_its_first_mark(spark: SparkSession, place: Place) -> None:
    """Bookies without a cookie, which only metadata names, count for the brake as in the pass over all ledgers."""
    place.create({100 + number: closed(f"gone-{number}:1", "a:1") for number in range(9)})
    result, first = audited(spark, place)
    assert (first, place.marked()) == (set(), {})
    assert result.summary.held_because
    assert "not registered" in result.summary.driver_marks.problem


def test_a_stopped_run_marks_nothing(spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = RunGate()
    after_listing(monkeypatch, 2, lambda: gate.stop(Stop("an operator stopped it", RunState.CANCELLED)))
    with pytest.raises(RunStoppedError, match="an operator stopped it"):
        run_check(lambda: spark, RunKind.BOOKIES, AuditSettings(place.uri, place.report_dir), gate=gate)
    assert place.marked() == {}
