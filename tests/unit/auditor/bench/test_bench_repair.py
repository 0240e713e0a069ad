"""The cases of the repair benchmark's suite."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.bench.bookies.lone_writer import raw_write
from auditor.bench.repairs.one_replicator import rate_after_first, suite, time_file_copy
from auditor.cli.main import app


def test_each_case_of_bytes_loses_the_requested_amount() -> None:
    large = [case for case in suite(1 << 30) if "entries of" in case.name and case.ledgers < 1000]
    assert [case.entry_bytes for case in large] == [100, 1024, 16 << 10, 128 << 10]
    assert all(0 <= case.entries * case.entry_bytes - (1 << 30) < case.entry_bytes for case in large)


def test_a_suite_of_few_bytes_has_an_entry_for_each_ledger() -> None:
    assert all(case.entries >= case.ledgers for case in suite(1) if case.entries)


def test_bytes_and_entries_cannot_be_combined() -> None:
    assert CliRunner().invoke(app, ["bench", "repair", "--bytes", "1000", "--entries", "5"]).exit_code == 2


def test_the_rate_of_a_running_worker_excludes_the_first_ledger_of_the_interval() -> None:
    assert (rate_after_first(11, 2.0), rate_after_first(1, 0.0)) == (5.0, 0.0)


@pytest.mark.parametrize("baseline", ["write", "copy"])
async def test_a_baseline_can_be_interrupted(baseline: str, tmp_path: Path) -> None:
    """Otherwise Ctrl-C would have no effect until all of its bytes are written."""
    endless = raw_write(tmp_path / "raw", b"x", 1 << 60) if baseline == "write" else time_file_copy(tmp_path, 1 << 60)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await endless


def test_an_impossible_shape_is_refused_before_anything_is_written() -> None:
    result = CliRunner().invoke(app, ["bench", "add", "-e", "1", "-w", "2", "--entries", "1"])
    assert "need ensemble size >= write quorum" in str(result.exception)
