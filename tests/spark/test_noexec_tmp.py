"""Spark writes Parquet files on a machine whose ``/tmp`` is mounted with ``noexec``.

The test needs a mount namespace of its own, which root may have. It is skipped without one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.long]

MOUNT: Final = "mount -t tmpfs -o noexec tmpfs /tmp"
WRITE: Final = """
import sys
from spark_jobs.session import spark_session

with spark_session() as spark:
    for codec in ("snappy", "zstd"):
        spark.range(10).write.option("compression", codec).parquet(f"/tmp/{codec}")
        assert spark.read.parquet(f"/tmp/{codec}").count() == 10
"""


@pytest.fixture
def tree() -> Path:
    """The directory of this project, which must stay visible in the namespace."""
    tree = Path(__file__).parents[2]
    mounted = subprocess.run(["unshare", "--mount", "sh", "-c", MOUNT], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted in a namespace: {mounted.stderr.strip()}")
    if tree.is_relative_to("/tmp"):
        pytest.skip("this checkout is below /tmp")
    return tree


def test_findings_are_written_without_executable_temporary_files(tree: Path) -> None:
    command = ["unshare", "--mount", "sh", "-c", f'{MOUNT} && exec "$@"', "sh", sys.executable, "-c", WRITE]
    written = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tree)
    assert written.returncode == 0, written.stderr
