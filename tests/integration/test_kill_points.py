"""A store in its own process is killed at each named step, and loses no acknowledged entry."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("kill_point_child.py")
LIMIT_S = 60
LEFT_BYTES_MAX = 1 << 20
"""Maximum size of entry logs and journal after the deletion of all ledgers, for any number of kills."""
GATE_POINTS = (
    "journal.write.after",
    "journal.sync.before",
    "entry_log.write.after",
    "entry_log.sync.after",
    "index.update.before",
    "checkpoint.before",
    "checkpoint.after",
    "compaction.update.before",
    "entry_log.remove.before",
    "journal.trim.after",
)
RUNS_OF_CHILD = 7
"""Number of processes for each point and layout in the long suite: more than 600 in total."""
LAYOUTS = ((1, 1), (2, 1), (2, 2))
"""Each layout is the number of journals and the number of ledger directories."""


def child_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kill_point_child", CHILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def life(root: Path, number: int, kill_at: str, layout: tuple[int, int]) -> tuple[int, list[str]]:
    """Run the child to its end. Return its exit code and the complete lines of its output."""
    done = subprocess.run(
        [sys.executable, str(CHILD), str(root), *map(str, (number, *layout))],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "KILL_AT": kill_at},
    )
    assert done.returncode in {0, -signal.SIGKILL}, f"{kill_at}, exit code {done.returncode}: {done.stderr}"
    return done.returncode, [line for line in done.stdout.splitlines(keepends=True) if line.endswith("\n")]


def run_killed_children(root: Path, kills: list[tuple[str, int]], layout: tuple[int, int]) -> None:
    acknowledged = root / "acknowledged"
    acknowledged.write_text("")
    for number, (point, count) in enumerate(kills):
        code, lines = life(root, number, f"{point}:{count}", layout)
        assert code == -signal.SIGKILL, f"{point} was not reached {count} times"
        with acknowledged.open("a") as file:
            file.writelines(line for line in lines if line != "verified\n")
    code, lines = life(root, len(kills), ":0", layout)
    assert code == 0
    assert lines[0] == "verified\n"
    _, journal_bytes, ledger_bytes = lines[-1].split()
    assert int(journal_bytes) <= LEFT_BYTES_MAX
    assert int(ledger_bytes) <= LEFT_BYTES_MAX


@pytest.mark.parametrize("layout", [(1, 1), pytest.param((2, 2), marks=pytest.mark.long)])
def test_ten_kills_at_ten_different_steps_lose_nothing(tmp_path: Path, layout: tuple[int, int]) -> None:
    run_killed_children(tmp_path, [(point, 2 + number % 3) for number, point in enumerate(GATE_POINTS)], layout)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("point", child_module().POINTS)
def test_kills_at_one_step_at_different_times_lose_nothing(tmp_path: Path, point: str, layout: tuple[int, int]) -> None:
    run_killed_children(tmp_path, [(point, 1 + number) for number in range(RUNS_OF_CHILD)], layout)
