"""The bookie check with drained bookies: they are marked after all losses, and reported as drained."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.model.severity import Severity
from spark_jobs.report.summary import Verdict
from spark_jobs.settings import FailOn
from tests.spark.audit_world import after_listing, closed, opened

pytestmark = [pytest.mark.spark, pytest.mark.integration]

A = BookieId("a:1")


def test_ledgers_of_drained_bookies_are_marked(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("b:1", "c:1")
        place.register("a:1", is_read_only=True)
        place.create({1: closed("a:1", "b:1"), 2: closed("b:1", "c:1"), 3: closed("a:1", "x:1")})
        drains = Drains(place.store, place.cluster.root)
        place.do(drains.start(Drain(A, "test", 1)))
        result = place.audit(spark)
        assert place.marked() == {1: ["a:1"], 3: ["a:1", "x:1"]}
        assert {count.severity: count.ledgers for count in result.summary.severities} == {
            Severity.CRITICAL: 1,
            Severity.DRAIN: 1,
        }


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_a_drain_alone_is_not_under_replication(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    fresh_root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_withdrawn: bool,
) -> None:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.create({1: closed("a:1", "b:1")})
        drains = Drains(place.store, place.cluster.root)
        place.do(drains.start(Drain(A, "test", 1)))
        if is_withdrawn:

            def withdraw() -> None:
                place.do(drains.stop(A))

            after_listing(monkeypatch, 2, withdraw)
        summary = place.audit(spark).summary
        assert summary.verdict is (Verdict.CLEAN if is_withdrawn else Verdict.DRAINING)
        assert summary.exit_code(FailOn.UNDER_REPLICATED) is ExitCode.OK
        assert place.marked() == ({} if is_withdrawn else {1: ["a:1"]})
