"""The benchmark of the reaction to a loss runs, and both kinds of reaction mark the same ledgers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from auditor.bench.audits.loss import measure
from bookie.embedded.zookeeper import EmbeddedZooKeeper

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.long]


def test_marking_with_and_without_an_image_is_measured(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    figures = measure(spark, zookeeper.connect_string, tmp_path, 500, fresh_root)
    assert figures["marks"] == figures["suspects"] > 0
    read = figures["ledgers_read"]
    assert 0 < read["incremental"] < read["whole"]
    assert set(figures["with_image_s"]) == set(figures["without_image_s"]) == {"first_mark", "last_mark", "end"}
