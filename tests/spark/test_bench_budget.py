"""The benchmark of the effect on other clients of ZooKeeper runs, and all audits see every ledger."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.deadlines import PROGRAM_S

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.long]


def test_another_client_is_measured_with_and_without_audits() -> None:
    command = [sys.executable, "-m", "auditor.cli.main", "bench", "budget", "--ledgers", "2000", "--rounds", "1"]
    done = subprocess.run([*command, "--output", "json"], capture_output=True, text=True, timeout=10 * PROGRAM_S)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    for server in (figures["zookeeper"], figures.get("other_cores", figures["zookeeper"]), figures["slow_server"]):
        assert set(server["ratio_of_p99_to_idle"]) == {
            f"{kind} with {name}" for kind in ("read", "write") for name in ("no_budget", "default_budget")
        }
        assert server["idle"]["read_p99_ms"] > 0
        assert server["default_budget"]["audit_s"] > 0
