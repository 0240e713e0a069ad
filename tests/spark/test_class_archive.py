"""A session maps the archive of Spark's classes into memory, and starts without one that is cut off or invalid."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookie.runtime.class_data import mark_complete
from bookie.runtime.java import find_java
from spark_jobs.class_archive import SUBMIT_OPTIONS, VARIABLE, archive_path
from tests.deadlines import PROGRAM_S

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of a process's memory"),
]

_PROGRAM = """
from pathlib import Path
from spark_jobs.session import SessionSettings, java_pid, spark_session
with spark_session(SessionSettings(master="local[1]")) as spark:
    assert spark.range(3).count() == 3
    print(Path(f"/proc/{java_pid()}/maps").read_text())
"""


@pytest.fixture
def archive(quick_spark: None) -> Path:
    """The archive that the tests on this machine use."""
    path = archive_path(find_java(), os.environ)
    if not path.exists():
        pytest.skip("this Java cannot make an archive of classes")
    return path


def started(archive: Path) -> tuple[str, str]:
    """Return Java's mapped files after a session has started with this archive, and its error output."""
    environment = {name: value for name, value in os.environ.items() if name != SUBMIT_OPTIONS}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**environment, VARIABLE: str(archive)},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=True,
    )
    return done.stdout, done.stderr


def test_a_session_uses_the_class_archive(archive: Path) -> None:
    mapped, printed = started(archive)
    assert str(archive.resolve()) in mapped
    assert "cds" not in printed


@pytest.mark.long
def test_a_session_starts_despite_a_truncated_class_archive(archive: Path, tmp_path: Path) -> None:
    cut = tmp_path / "classes.jsa"
    cut.write_bytes(archive.read_bytes()[: 1 << 20])
    mapped, printed = started(cut)
    assert str(cut) not in mapped
    assert "archive" not in printed


@pytest.mark.long
def test_a_session_starts_despite_an_archive_of_other_classes(archive: Path, tmp_path: Path) -> None:
    other = tmp_path / "classes.jsa"
    other.write_bytes(b"\0" * 4096)
    mark_complete(other)
    mapped, printed = started(other)
    assert str(other) not in mapped
    assert "archive" not in printed
