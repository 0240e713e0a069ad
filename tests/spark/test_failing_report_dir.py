"""A report directory on a mount whose server has ended: every call on it fails with "not connected".

It is a FUSE mount without a process that serves it, which root may create. The tests are skipped if it cannot be
created.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from auditor.service.fetched_reports import FetchedReports
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.model.exit_codes import ExitCode
from spark_jobs.kept import Kept
from spark_jobs.report.history import summaries
from spark_jobs.report.writing import keep
from spark_jobs.runs.port import Phase, ProgressEvent
from spark_jobs.runs.run import run_audit
from spark_jobs.settings import AuditSettings
from tests.spark.audit_world import Place, closed, opened
from tests.worlds.clocks import ManualClock

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.long]

MNT_DETACH = 2
RUN_ID = "20261128T000000Z-000001"
LOST = {number: ["x:1"] for number in range(0, 20, 5)}


@contextmanager
def without_server(directory: Path) -> Iterator[None]:
    """Mount such a file system over ``directory`` during the block."""
    directory.mkdir(parents=True, exist_ok=True)
    system = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    result = system.mount(b"bkheal-test", os.fsencode(directory), b"fuse", 0, options.encode())
    os.close(device)
    if result:
        pytest.skip(f"FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        assert system.umount2(os.fsencode(directory), MNT_DETACH) == 0


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.add_cookies("a:1", "b:1", "x:1")
        place.create({number: closed("a:1", "x:1" if number in LOST else "b:1") for number in range(20)})
        yield place


def test_a_directory_that_fails_before_a_run_prevents_no_mark(spark: SparkSession, place: Place) -> None:
    with without_server(place.report_dir):
        result = place.audit(spark)
    assert "not connected" in result.report_problem
    assert (place.marked(), place.audited(), result.exit_code()) == (LOST, {"x:1"}, ExitCode.CONFIGURATION)


def test_a_directory_that_fails_before_the_report_prevents_no_mark(spark: SparkSession, place: Place) -> None:
    with ExitStack() as stack:

        def fail_late(event: ProgressEvent) -> None:
            if event.phase is Phase.REPORT:
                stack.enter_context(without_server(place.report_dir))

        result = run_audit(spark, AuditSettings(place.uri, place.report_dir), fail_late)
    assert result.report_problem
    assert (place.marked(), place.audited(), result.exit_code()) == (LOST, {"x:1"}, ExitCode.CONFIGURATION)


async def test_readers_of_a_failing_directory_continue(tmp_path: Path) -> None:
    reports, stored = tmp_path / "reports", tmp_path / "store" / RUN_ID
    stored.mkdir(parents=True)
    (stored / "summary.json").write_text("{}")
    fetched = FetchedReports(stored.parent.as_uri(), reports, Kept(reports_max=1), ManualClock())
    with without_server(reports):
        assert list(summaries(reports)) == []
        assert keep(reports, 0, Kept(reports_max=1)) == []
        await fetched.refresh()
    await fetched.refresh()
    assert (reports / RUN_ID / "summary.json").is_file()
