"""The benchmark of executors runs, in a separate process: it starts Spark three times."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.deadlines import PROGRAM_S

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.long]


def test_audits_with_one_two_and_four_executors_are_measured() -> None:
    command = [sys.executable, "-m", "auditor.cli.main", "bench", "executors", "--ledgers", "500", "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * PROGRAM_S)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["executors"] == [1, 2, 4]
    assert len(figures["audit_s"]) == len(figures["ratio_to_baseline"]) == 3
    assert figures["ratio_to_baseline"][0] == 1.0
