"""Executors write findings to S3 with Hadoop's s3a, on a server on loopback; commands and the service read them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from auditor.api.http.report_routes import ReportRoutes
from auditor.service.fetched_reports import FetchedReports
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.model.exit_codes import ExitCode
from spark_jobs.kept import EVERYTHING
from spark_jobs.report.files import PAGE
from tests.deadlines import PROGRAM_S
from tests.integration.commands import Ended, command, document, environment, output, typed
from tests.loopback_s3 import CREDENTIALS, KEY_ID, SECRET, s3_server
from tests.spark.audit_world import Place, closed, opened
from tests.spark.standalone import build_wheel, driver_environment, executor_conf, make_environment, started_cluster
from tests.worlds.clocks import ManualClock

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.needs("moto"),
    pytest.mark.needs("hadoop-aws"),
]

HEALTHY = closed("a:1", "b:1")
LOST = {5: closed("a:1", "x:1"), 10_005: closed("x:1", "b:1")}
BUCKET = "audits"


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    return tmp_path / "requests.log"


@pytest.fixture
def endpoint(requests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with a bucket, and Spark settings with its address. The credentials are only in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server(requests) as endpoint:
        fs.S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True).create_dir(BUCKET)
        classes = os.environ["BKHEAL_HADOOP_AWS_CLASSPATH"]
        settings = {
            **executor_conf(),
            "spark.driver.extraClassPath": classes,
            "spark.executor.extraClassPath": classes,
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.attempts.maximum": "1",
            "spark.hadoop.fs.s3a.retry.limit": "1",
        }
        (tmp_path / "conf").mkdir()
        lines = "".join(f"{name} {value}\n" for name, value in settings.items())
        (tmp_path / "conf" / "spark-defaults.conf").write_text(lines)
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        yield endpoint


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.add_cookies("a:1", "b:1", "x:1")
        place.create(dict.fromkeys(range(5), HEALTHY) | LOST)
        yield place


def written_findings(requests: Path, run_id: str) -> list[str]:
    """Return the requests for storing files of findings."""
    lines = requests.read_text().splitlines()
    return [line for line in lines if f"PUT /{BUCKET}/findings/{run_id}/" in line and "/part-" in line]


def audit(place: Place, *more: str) -> Ended:
    """Run a process, whose executors are threads of its Spark."""
    words = ("audit", "run", "--master", "local[2]", "--output", "json", "--report-dir", str(place.report_dir), *more)
    return subprocess.run(
        command(*words), env=environment(place.uri), capture_output=True, timeout=PROGRAM_S, check=False
    )


async def test_findings_written_by_spark_to_s3_are_readable_on_other_machines(
    place: Place, endpoint: str, requests: Path, tmp_path: Path
) -> None:
    store = f"s3a://{BUCKET}/reports?endpoint_override={endpoint}"
    ended = audit(place, "--findings-dir", f"s3a://{BUCKET}/findings", "--report-store", store)
    run_id = document(ended)["run_id"]

    assert written_findings(requests, run_id)
    assert SECRET not in ended.stderr.decode() + ended.stdout.decode()
    assert KEY_ID not in ended.stderr.decode() + ended.stdout.decode()
    kept = [path for path in place.report_dir.rglob("*") if path.is_file()]
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]
    selector = fs.FileSelector(f"{BUCKET}/findings", allow_not_found=True, recursive=True)
    left = fs.S3FileSystem(endpoint_override=endpoint).get_file_info(selector)
    assert not [info for info in left if info.type is fs.FileType.File], "the driver left findings in the bucket"

    there = ("--report-dir", str(tmp_path / "there"))
    output(typed(None, "report", "fetch", store, *there))
    found = document(typed(None, "report", "findings", "latest", *there, "--output", "json"))
    assert sorted(row["ledger_id"] for row in found["items"]) == sorted(LOST)
    sql = "SELECT ledger_id FROM findings ORDER BY ledger_id"
    assert [
        row["ledger_id"]
        for row in json.loads(output(typed(None, "report", "sql", sql, *there, "--output", "json")))["items"]
    ] == (sorted(LOST))

    auditor = tmp_path / "auditor"
    await FetchedReports(store, auditor, EVERYTHING, ManualClock()).refresh()
    assert await ReportRoutes(auditor, report_store=store)._found([f"{run_id}/{PAGE}"]) is not None


def test_a_bucket_that_refuses_the_findings_prevents_no_marks(place: Place, endpoint: str) -> None:
    ended = audit(place, "--findings-dir", "s3a://no-such-bucket/findings")
    assert ended.returncode == ExitCode.CONFIGURATION
    assert place.marked() == {number: ["x:1"] for number in LOST}
    reported = ended.stderr.decode()
    assert "cannot write the findings to s3a://no-such-bucket/findings" in reported
    assert SECRET not in reported + ended.stdout.decode()


def test_executors_write_findings_and_image_to_s3_and_only_the_driver_has_the_report_directory(
    place: Place, endpoint: str, requests: Path, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "environment", build_wheel(tmp_path))
    with started_cluster(tmp_path / "spark-cluster") as spark:
        words = ["audit", "run", "--master", spark.url, "--metadata-uri", place.uri, "--output", "json"]
        words += ["--report-dir", str(place.report_dir), "--image-dir", f"s3a://{BUCKET}/image"]
        words += ["--findings-dir", f"s3a://{BUCKET}/findings", "--incremental"]

        def run() -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(
                [str(python.parent / "bkheal"), *words],
                env={**os.environ, **driver_environment(python)},
                cwd=tmp_path,
                capture_output=True,
                timeout=PROGRAM_S,
                check=False,
            )

        assert json.loads(output(run()))["image"]["written_ledgers"] == 5 + len(LOST)
        ended = run()
        logs = "".join(path.read_text() for path in (tmp_path / "spark-cluster").rglob("std*"))
    run_id = json.loads(output(ended))["run_id"]
    assert json.loads(output(ended))["image"]["carried"] == 5
    assert not (place.report_dir / "image").exists()
    assert written_findings(requests, run_id), "the executors did not write the findings"
    assert place.marked() == {number: ["x:1"] for number in LOST}
    found = document(typed(None, "report", "findings", run_id, "--report-dir", str(place.report_dir), "-o", "json"))
    assert sorted(row["ledger_id"] for row in found["items"]) == sorted(LOST)
    assert logs
    assert SECRET not in logs + ended.stderr.decode() + ended.stdout.decode()
