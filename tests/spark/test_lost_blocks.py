"""Metadata that Spark lost and would read again later is never mixed with metadata read before (R2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.layout import ledger_path
from bookie.metadata.ledgers.serde import encode
from bookie.metadata.uri import parse_uri
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from spark_jobs.pacing.budget import Budget
from spark_jobs.report.counts import PublishOutcome
from spark_jobs.runs.cluster_view import opened_cluster
from spark_jobs.runs.reading.ledger_scan import scan_ledgers
from spark_jobs.runs.spark_failures import READ_AGAIN, MetadataReadAgainError
from spark_jobs.settings import AuditSettings
from tests.spark.audit_world import Place, after_listing, closed, lose_blocks, opened

pytestmark = pytest.mark.spark

LOST, MOVED = 1, 2


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """A ledger with a lost bookie, and one without."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.create({LOST: closed("a:1", "x:1"), MOVED: closed("a:1", "b:1")})
        yield place


def move(place: Place) -> None:
    """Register a new bookie, and move a fragment to it."""
    place.register("n:1")
    path = ledger_path(place.cluster.kind, place.cluster.root, MOVED)
    place.do(place.store.set(path, encode(closed("n:1", "b:1")), -1))


def test_rows_that_would_need_a_second_read_are_an_error(spark: SparkSession, place: Place, tmp_path: Path) -> None:

    settings = AuditSettings(place.uri, tmp_path)
    with opened_cluster(parse_uri(place.uri), SystemClock(), Budget(run_id="a-run")) as cluster:
        scan = scan_ledgers(spark, settings, cluster.leaf_parents(), {"a:1", "b:1"})
    try:
        assert [row["ledger_id"] for row in scan.suspects.collect()] == [LOST]
        lose_blocks(spark)
        with pytest.raises(PySparkException, match=READ_AGAIN):
            scan.suspects.collect()
    finally:
        scan.release()


@pytest.mark.parametrize("listing", [2, 3])
def test_a_bookie_that_joined_before_a_repeated_read_of_the_metadata_is_not_lost(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, listing: int
) -> None:
    def act() -> None:
        lose_blocks(spark)
        move(place)

    after_listing(monkeypatch, listing, act)
    result = place.audit(spark)
    assert place.marked() == {LOST: ["x:1"]}
    assert "metadata was lost with an executor, so it is read again" in caplog.text
    assert (result.summary.published.outcome, result.summary.published.ledgers) == (PublishOutcome.PUBLISHED, 1)
    assert {each.bookie_id for each in result.summary.bookies} == {"a:1", "b:1", "n:1", "x:1"}


def test_a_run_that_loses_its_metadata_each_time_ends_and_marks_nothing(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for listing in range(2, 20):
        after_listing(monkeypatch, listing, lambda: lose_blocks(spark))
    with pytest.raises(MetadataReadAgainError):
        place.audit(spark)
    assert place.marked() == {}


def test_a_replicas_run_reads_lost_metadata_again(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    after_listing(monkeypatch, 2, lambda: lose_blocks(spark))
    summary = place.check(spark, RunKind.REPLICAS).summary
    assert "metadata was lost with an executor, so it is read again" in caplog.text
    assert summary.replicas is not None
    assert (summary.counts.ledgers, summary.replicas.ledgers) == (2, 2)
