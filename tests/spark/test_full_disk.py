"""Runs with the report or image on a full disk: the run marks, and its exit code and summary show the failure.

The disk is a small tmpfs, which root may mount. The tests are skipped if it cannot be mounted.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.model.exit_codes import ExitCode
from spark_jobs.report.summary import Verdict
from tests.spark.audit_world import Place, closed, opened

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.long]

DISK_KIB = 4096
LOST = {number: ["x:1"] for number in range(0, 2000, 5)}
LEDGERS = {number: closed("a:1", "x:1" if number in LOST else "b:1") for number in range(2000)}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.add_cookies("a:1", "b:1", "x:1")
        place.create(LEDGERS)
        yield place


def fill(disk: Path, left_kib: int) -> Path:
    """Fill the disk except for ``left_kib``; return the file that takes the space."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        free = os.statvfs(disk)
        file.write(b"\0" * (free.f_bavail * free.f_bsize - left_kib * 1024))
    return filler


@pytest.mark.parametrize("left_kib", [0, 16, 64])
def test_a_report_without_disk_space_prevents_no_mark_and_shows_in_the_exit_code(
    spark: SparkSession, place: Place, disk: Path, tmp_path: Path, left_kib: int
) -> None:
    place.report_dir, image = disk / "reports", tmp_path / "image"
    filler = fill(disk, left_kib)
    result = place.audit(spark, image_dir=str(image))
    assert place.marked() == LOST
    assert place.audited() == {"x:1"}
    assert "No space left on device" in result.report_problem
    assert (result.summary.verdict, result.exit_code()) == (Verdict.UNDER_REPLICATED, ExitCode.CONFIGURATION)
    assert list(place.report_dir.glob("*/summary.json")) == [], "there is a summary, although the report is incomplete"
    filler.unlink()
    result = place.audit(spark, image_dir=str(image))
    assert (result.report_problem, result.exit_code(), place.marked()) == ("", ExitCode.OK, LOST)
    assert result.summary_path.is_file()


@pytest.mark.parametrize("left_kib", [0, 16])
def test_an_image_without_disk_space_prevents_neither_marks_nor_the_report(
    spark: SparkSession, place: Place, disk: Path, left_kib: int
) -> None:
    filler = fill(disk, left_kib)
    result = place.audit(spark, image_dir=str(disk / "image"))
    assert (place.marked(), result.exit_code(), result.report_problem) == (LOST, ExitCode.OK, "")
    assert (result.summary.is_complete, result.summary.image.written_ledgers) == (True, 0)
    assert result.summary.image.write_problem
    filler.unlink()
    assert place.audit(spark, image_dir=str(disk / "image")).summary.image.written_ledgers == len(LEDGERS)
    fill(disk, left_kib)
    place.unregister("b:1")
    result = place.audit(spark, image_dir=str(disk / "image"), missing_share_max=0.9)
    assert place.marked() == {number: sorted(set(LOST.get(number, ["b:1"]))) for number in LEDGERS}
    assert result.summary.image.write_problem
    assert result.summary.is_complete
