"""``--ledger-dir`` of the commands for a stopped bookie."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from auditor.cli.bookie.lines import status_lines
from auditor.cli.bookie.place import bookie_from_options, ledger_dirs_of


def test_the_option_may_be_repeated_or_contain_commas(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in "abc")
    first.mkdir()
    expected = (first, second, third)
    assert ledger_dirs_of([f"{first},{second}", str(third)]) == expected
    assert bookie_from_options(None, None, [str(tmp_path)], list(map(str, expected))) == ((tmp_path,), expected)


@pytest.mark.parametrize("given", [["/no/such/directory"], [","]])
def test_the_first_directory_must_exist(given: list[str]) -> None:
    with pytest.raises(typer.BadParameter):
        ledger_dirs_of(given)


def test_a_directory_that_is_out_of_use_is_shown_with_its_reason() -> None:
    disks = [
        {"role": "journal", "total_bytes": 9, "free_bytes": 5, "path": None, "problem": None},
        {"role": "ledgers", "total_bytes": 8, "free_bytes": 4, "path": "/l1", "problem": None},
        {"role": "ledgers", "total_bytes": 0, "free_bytes": 0, "path": "/l2", "problem": "input/output error"},
    ]
    queues = dict.fromkeys(
        ("add_bytes", "journal_bytes", "write_cache_bytes", "reads_running", "reads_waiting", "unsent_bytes"), 0
    )
    document = {
        "bookie_id": "b",
        "incarnation": "i",
        "version": "1",
        "uptime_s": 1,
        "ledgers": 0,
        "read_only": False,
        "read_only_reasons": [],
        "read_only_asked_by": None,
        "read_only_asked_at": None,
        "disks": disks,
        "queues": {**queues, "is_flushing": False},
        "scrub": {
            "phase": "waiting",
            "position": None,
            "entries": 1,
            "bytes": 0,
            "begun_at": None,
            "damaged_count": 0,
            "replaced_count": 0,
            "unrepaired": [{"ledger_id": 7, "entry_ids": [3]}],
            "unrepaired_count": 1,
        },
        "collection": {"running": False, "finished_at": None},
    }
    lines = status_lines(document)
    assert "journal disk: 5 B of 9 B free" in lines
    assert "ledgers disk /l1: 4 B of 8 B free" in lines
    assert "ledgers disk /l2 is out of use: input/output error" in lines
    assert "1 damaged entry is not replaced" in lines
    assert "damaged and not replaced: ledger 7 entry 3" in lines
    assert any(": 1 entry, " in line for line in lines)
