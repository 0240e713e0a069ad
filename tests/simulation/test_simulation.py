"""Fresh histories, old failures, planted defects, and the simulator's own promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.simulation.command import CORPUS
from tests.simulation.defects import DEFECTS
from tests.simulation.detection import TABLE, read_found, table
from tests.simulation.profiles import PROFILES

HISTORIES = int(os.environ.get("BKHEAL_HISTORIES", "2000"))
ROOT = Path(__file__).parents[2]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as people use it: a process of its own, with a fixed order of sets."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1400, check=False)


def test_fresh_histories_break_no_rule() -> None:
    ended = simulate("run", "--seeds", str(HISTORIES), "--output", "json")
    assert ended.returncode == 0, ended.stderr[-4000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["histories"] == HISTORIES
    assert found["counted"] > 0.7 * HISTORIES
    assert found["acked_median"] >= 30
    assert found["faults_median"] >= 3


def test_what_failed_once_does_not_fail_again() -> None:
    for case in json.loads(CORPUS.read_text()) if CORPUS.exists() else []:
        profile = [] if case["profile"] is None else ["--profile", case["profile"]]
        ended = simulate("replay", "--seed", str(case["seed"]), *profile)
        assert ended.returncode == 0, ended.stdout[-2000:]


def test_every_planted_defect_is_found_where_it_was_found() -> None:
    ended = simulate("defects", "--known")
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]


def test_the_published_table_is_that_of_the_last_search() -> None:
    assert TABLE.read_text() == table()
    assert len(DEFECTS) >= 25
    assert set(read_found()) == set(DEFECTS), "make simulate-defects looks for all of them"
    assert all(found.seeds <= 5000 for found in read_found().values())


def test_a_seed_repeats_itself_in_another_process() -> None:
    for seed in range(0, 3 * len(PROFILES), 3):
        first, second = (simulate("replay", "--seed", str(seed)).stdout for _ in range(2))
        assert first == second
        assert "digest" in first


def test_a_seed_can_be_read_event_by_event() -> None:
    ended = simulate("replay", "--seed", "1", "--trace")
    assert "b0           serves" in ended.stdout
    assert "hears add OK" in ended.stdout
