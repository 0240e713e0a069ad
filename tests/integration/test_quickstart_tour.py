"""The tour as run by a user: a child process, checked by its output, its exit code and the files that remain."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.deadlines import PROGRAM_S

pytestmark = [pytest.mark.integration, pytest.mark.spark]

_TOUR = [sys.executable, "-m", "auditor.cli.main", "quickstart"]
_PREFIX = "bkheal-quickstart-"


@pytest.fixture
def own_temp(tmp_path: Path) -> dict[str, str]:
    """Return an environment with the test's own temporary directory."""
    return {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "140"}


def processes_using(directory: Path) -> list[str]:
    """Return the command lines of live processes with ``directory`` in them."""
    found = []
    for process in psutil.process_iter(["cmdline", "pid"]):
        command = " ".join(process.info["cmdline"] or ())
        if str(directory) in command and process.info["pid"] != os.getpid():
            found.append(command)
    return found


@pytest.mark.usefixtures("quick_spark")
def test_the_tour_repairs_a_cluster_and_cleans_up(own_temp: dict[str, str], tmp_path: Path) -> None:
    result = subprocess.run(_TOUR, env=own_temp, capture_output=True, text=True, timeout=PROGRAM_S)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.strip().splitlines()
    repaired = re.fullmatch(r"repaired: (\d+) ledgers, (\d+) fragments, ([\d.]+) MiB in [\d.]+ s", lines[-2])
    assert repaired is not None, lines[-2]
    assert lines[-1].startswith("next: ")
    assert int(repaired[1]) > 50
    assert int(repaired[2]) >= int(repaired[1])
    assert float(repaired[3]) > 5
    assert any("no live copy" in line for line in lines)
    assert any("fenced, recovered and closed" in line for line in lines)
    assert not list(tmp_path.glob(f"{_PREFIX}*"))
    assert processes_using(tmp_path) == []


@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGHUP, 2)])
def test_an_interrupted_tour_cleans_up(
    own_temp: dict[str, str], tmp_path: Path, number: signal.Signals, step: int
) -> None:
    process = subprocess.Popen(
        _TOUR, env=own_temp, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"[{step}/"):
            break
    process.send_signal(number)
    _, stderr = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 128 + number, stderr
    assert "Traceback" not in stderr
    assert not list(tmp_path.glob(f"{_PREFIX}*"))
    assert processes_using(tmp_path) == []


def test_a_directory_that_is_not_empty_is_refused(own_temp: dict[str, str], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "mine").write_text("precious")
    result = subprocess.run(
        [*_TOUR, "--keep", str(kept)], env=own_temp, capture_output=True, text=True, timeout=PROGRAM_S
    )
    assert result.returncode == 2
    assert "not empty" in result.stderr
    assert (kept / "mine").read_text() == "precious"
