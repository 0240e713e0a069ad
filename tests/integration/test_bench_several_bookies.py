"""A small run of the benchmark of several bookies on one machine: its report agrees with its writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bookie.embedded.process import ManagedProcess
from tests.deadlines import PROGRAM_S

pytestmark = [pytest.mark.integration, pytest.mark.long]


async def test_each_client_writes_to_its_bookie_and_the_ratio_is_from_one_run(tmp_path: Path) -> None:
    words = [
        "-m",
        "auditor.cli.main",
        "bench",
        "several-bookies",
        "--entries",
        "1000",
        "--rounds",
        "1",
        "--output",
        "json",
    ]
    process = ManagedProcess.start("bench", [sys.executable, *words], log_path=tmp_path / "log")
    assert await process.wait(PROGRAM_S) == 0, process.log_tail()
    figures = json.loads((tmp_path / "log").read_text())
    assert (figures["bookies"], figures["clients"], figures["entries"], len(figures["ratios"])) == (2, 2, 1000, 1)
    assert figures["adds_per_second_with_one"] > 0
    assert figures["adds_per_second_with_all"] > 0
