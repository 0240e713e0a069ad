"""The comparison with Apache runs end to end; its figures mean nothing at this size."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.apache, pytest.mark.long]

DEADLINE_S = 600.0


async def _bench(tmp_path: Path, *options: str) -> dict[str, Any]:
    raw = tmp_path / "raw.json"
    command = [sys.executable, "-m", "auditor.cli.main", "bench", "versus-apache", *options, "--raw", str(raw)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert "times better" in done.stdout
    found: dict[str, Any] = json.loads(raw.read_text())
    return found


async def test_both_auditors_mark_the_same_ledgers(tmp_path: Path) -> None:
    figures = await _bench(tmp_path, "--part", "audit", "--ledgers", "300", "--no-tuned")
    rounds = figures["audit"][0]["rounds"]
    tasks = {each["tasks"] for those in rounds.values() for each in those}
    assert len(tasks) == 1
    assert 0 < tasks.pop() < 300
    assert all(each["requests"] > 0 for those in rounds.values() for each in those)


async def test_both_workers_repair_everything_and_ours_writes_no_more_than_was_lost(tmp_path: Path) -> None:
    options = ["--part", "repair", "--shape", "3/2/2", "--megabytes", "0.2", "--no-tuned"]
    repairs = (await _bench(tmp_path, *options, "--small-ledgers", "5", "--empty-ledgers", "5"))["repair"]
    assert len(repairs) == 3
    for results in (repair["results"] for repair in repairs):
        assert results["ours"]["written_per_lost"] == 1
        assert results["apache"]["written_per_lost"] >= 1
        assert results["ours"]["unrepaired_ledgers"] == 0


async def test_both_kinds_of_bookies_accept_adds(tmp_path: Path) -> None:
    figures = await _bench(tmp_path, "--part", "add", "--megabytes", "0.2")
    for add in figures["add"]:
        assert set(add["results"]) == {"apache", "ours over gRPC", "ours over Apache's protocol"}


async def test_one_bookie_of_each_side_is_measured_under_the_same_load() -> None:
    options = ["--entry-bytes", "1024", "--writers", "3", "--megabytes", "0.2", "--rounds", "1", "--output", "json"]
    command = [sys.executable, "-m", "auditor.cli.main", "bench", "bookie", *options]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["left_out"] == []
    contestants = {"apache", "ours over gRPC", "ours over Apache's protocol"}
    assert {*figures["adds"][0]["results"]} == contestants
    assert {*figures["reads"][0]["results"]} == contestants | {"plain file"}
    assert {"fdatasync", *contestants} <= {*figures["lone"]["times"]}
    assert all(each["ratio"] > 0 for each in figures["comparisons"] if each["measure"] == "adds/s")
