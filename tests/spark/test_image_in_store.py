"""Audits with the image of ledger metadata in an S3 store: a bad store delays findings and marks, and changes none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.model.run import RunKind
from spark_jobs.image import files
from spark_jobs.image import folder as folder_module
from spark_jobs.image.folder import image_folder
from spark_jobs.report import writing as report
from spark_jobs.report.store import ReportStore
from spark_jobs.report.store_runs import fetch_missing
from spark_jobs.runs.run import AuditResult, run_check
from spark_jobs.settings import AuditSettings
from spark_jobs.store_address import parse_address
from tests.loopback_hdfs import hdfs_cluster
from tests.loopback_s3 import CREDENTIALS, KEY_ID, SECRET
from tests.spark.audit_world import Place, closed, opened
from tests.worlds.clocks import ManualClock
from tests.worlds.s3_objects import S3Objects, s3_objects

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.long,
]  # the short suite has tests/contract/test_image_contract.py

HEALTHY = closed("a:1", "b:1", "c:1")
LEDGERS = {leaf * 10_000 + number: HEALTHY for leaf in range(4) for number in range(20)} | {
    5: closed("a:1", "x:1"),
    10_005: closed("b:1", "x:1"),
}
IMAGE = "s3a://images/bookkeeper"


def executors_have(spark: SparkSession, variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Set variables in the environment of this process, and of the Python workers that the session starts later."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)


@pytest.fixture
def s3(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Objects]:
    with s3_objects("images") as objects:
        executors_have(spark, {**CREDENTIALS, "AWS_ENDPOINT_URL": objects.endpoint}, monkeypatch)
        folder_module._client.cache_clear()
        yield objects
    folder_module._client.cache_clear()
    monkeypatch.undo()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1", "c:1", "x:1")
        place.add_cookies("a:1", "b:1", "c:1", "x:1")
        place.create(LEDGERS)
        yield place


def audit(spark: SparkSession, place: Place, clock: ManualClock, **settings: Any) -> AuditResult:
    clock.now_s += 60
    chosen = AuditSettings(place.uri, place.report_dir, **{"num_partitions": 1, "image_dir": IMAGE, **settings})
    return run_check(spark, RunKind.BOOKIES, chosen, clock=clock)


def found(result: AuditResult) -> set[int]:
    return set(pq.read_table(result.summary_path.parent / report.FINDINGS)["ledger_id"].to_pylist())


def test_an_incremental_audit_reads_unchanged_ledgers_from_a_store(
    spark: SparkSession, place: Place, clock: ManualClock, s3: S3Objects
) -> None:
    place.unregister("x:1")
    first = audit(spark, place, clock)
    assert (first.summary.image.write_problem, first.summary.image.written_ledgers) == ("", len(LEDGERS))
    place.create({30_050: closed("a:1", "x:1")})
    result = audit(spark, place, clock, incremental=True)
    image = result.summary.image
    assert (image.carried, image.carried_problem) == (len(LEDGERS) - 2, "")
    assert image.written_ledgers == len(LEDGERS) + 1
    assert found(result) == set(place.marked()) == {5, 10_005, 30_050}
    assert not (place.report_dir / "image").exists()


def test_ledgers_in_damaged_files_of_a_store_are_read_from_zookeeper(
    spark: SparkSession, place: Place, clock: ManualClock, s3: S3Objects
) -> None:
    place.unregister("x:1")
    audit(spark, place, clock)
    folder, manifest = files.newest(image_folder(IMAGE), place.cluster)
    for name in (
        key for key in s3.objects if key.rpartition("/")[2] in {f.name for f in manifest.files if f.is_ledgers}
    ):
        data = bytearray(s3.objects[name])
        data[-1] ^= 1
        s3.objects[name] = bytes(data)
    damaged = audit(spark, place, clock, incremental=True)
    assert (damaged.summary.image.carried, damaged.summary.is_complete) == (0, True)
    assert folder.name in (old.name for old in files.generations(folder.parent))
    assert damaged.summary.image.carried_problem
    assert found(damaged) == {5, 10_005}


def test_a_bucket_that_denies_access_prevents_no_finding_and_no_mark(
    spark: SparkSession, place: Place, clock: ManualClock, s3: S3Objects, caplog: pytest.LogCaptureFixture
) -> None:
    audit(spark, place, clock)
    place.unregister("x:1")
    s3.is_denied = True
    caplog.clear()
    denied = audit(spark, place, clock)
    assert set(place.marked()) == {5, 10_005}
    assert (denied.summary.is_complete, found(denied)) == (True, {5, 10_005})
    assert IMAGE in denied.summary.image.write_problem
    reported = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert IMAGE in reported
    assert SECRET not in reported + repr(denied) + denied.summary_path.read_text()
    assert KEY_ID not in reported + repr(denied) + denied.summary_path.read_text()


def test_a_loss_is_marked_from_an_image_in_a_store(
    spark: SparkSession, place: Place, clock: ManualClock, s3: S3Objects
) -> None:
    audit(spark, place, clock)
    place.unregister("x:1")
    result = audit(spark, place, clock)
    assert (result.summary.image.problem, result.summary.image.marked) == ("", 2)
    assert set(place.marked()) == {5, 10_005}


def test_a_store_that_stops_answering_during_a_scan_prevents_no_mark(
    spark: SparkSession, place: Place, clock: ManualClock, s3: S3Objects
) -> None:
    audit(spark, place, clock)
    place.unregister("x:1")
    s3.answers.clear()
    result = audit(spark, place, clock)
    assert result.summary.is_complete
    assert "no answer" in result.summary.image.problem or "NETWORK" in result.summary.image.problem
    assert set(place.marked()) == {5, 10_005}
    assert place.audited() == {"x:1"}


def test_a_store_that_stops_answering_after_the_beginning_prevents_no_mark(
    spark: SparkSession, place: Place, clock: ManualClock, s3: S3Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = files.note_beginning

    def then_silent(*given: Any) -> None:
        note(*given)
        s3.answers.clear()

    monkeypatch.setattr(files, "note_beginning", then_silent)
    place.unregister("x:1")
    result = audit(spark, place, clock)
    assert (result.summary.is_complete, set(place.marked())) == (True, {5, 10_005})
    assert result.summary.image.write_problem


@pytest.mark.needs("hadoop-hdfs")
def test_an_incremental_audit_works_with_image_and_reports_in_hdfs(
    spark: SparkSession, place: Place, clock: ManualClock, tmp_path: Path
) -> None:
    with hdfs_cluster(tmp_path / "hdfs") as address:
        image, store = f"{address}/bookkeeper/image", f"{address}/bookkeeper/reports"
        place.unregister("x:1")
        first = audit(spark, place, clock, image_dir=image, report_store=store)
        assert (first.summary.image.write_problem, first.summary.image.written_ledgers) == ("", len(LEDGERS))
        place.create({30_050: closed("a:1", "x:1")})
        result = audit(spark, place, clock, image_dir=image, report_store=store, incremental=True)
        assert (result.summary.image.carried, result.summary.image.carried_problem) == (len(LEDGERS) - 2, "")
        assert found(result) == set(place.marked()) == {5, 10_005, 30_050}
        fetched = fetch_missing(ReportStore(parse_address(store)), tmp_path / "there")
        assert set(fetched) == {first.summary.run_id, result.summary.run_id}
    lost = audit(spark, place, clock, image_dir=image, incremental=True)
    assert (lost.summary.is_complete, found(lost)) == (True, {5, 10_005, 30_050})
    assert address in lost.summary.image.write_problem
