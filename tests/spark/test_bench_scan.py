"""The benchmarks of audits run, and their audits see everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from auditor.bench.audits.references import ReferenceBench, measure
from auditor.bench.audits.scan_measurement import BenchSettings, run
from bookie.embedded.zookeeper import EmbeddedZooKeeper

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.long]


def test_each_way_of_reading_is_measured(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    settings = BenchSettings(zookeeper.connect_string, tmp_path, ledgers=300, bookies=5, warm_runs=1, root=fresh_root)
    figures = run(spark, settings)
    assert figures["ledgers"] == 300
    assert (
        list(figures["ledgers_per_s"]) == list(figures["ratio_to_get_async"]) == ["get_async", "get_many_data", "audit"]
    )
    assert figures["ratio_to_get_async"]["get_async"] == 1.0
    assert len(figures["audit_warm_s"]) == 1


def test_the_reference_check_is_measured_together_with_the_bookie_check(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    settings = ReferenceBench(zookeeper.connect_string, tmp_path, topics=21, bookies=5, warm_runs=1, root=fresh_root)
    figures = measure(spark, settings)
    assert (figures["ledgers"], figures["unreferenced"], figures["lost"]) == (210, 3, 1)
    assert len(figures["references_warm_s"]) == len(figures["bookies_warm_s"]) == 1
    assert all(figures[f"{kind}_peak_mib"]["driver_python"] > 0 for kind in ("bookies", "references"))
    assert figures["ratio_to_bookies_check"] > 0
    assert figures["processor_ratio"] > figures["processor_ratio_per_node"] > 0
