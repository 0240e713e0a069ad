"""The options for the journal directories and the ledger directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.runtime.configuration.settings import ConfigurationError
from bookie.server.settings import JOURNAL_DIRS_MAX, LEDGER_DIRS_MAX, BookieSettings

URI = "zk+hierarchical://host:2181/ledgers"


def test_directories_are_separated_by_commas() -> None:
    assert BookieSettings(URI, "/j", "/l").ledger_dirs == (Path("/l"),)
    assert BookieSettings(URI, "/j", "/l1, /l2,").ledger_dirs == (Path("/l1"), Path("/l2"))
    assert BookieSettings(URI, "/j", "/l").journal_dirs == (Path("/j"),)
    assert BookieSettings(URI, "/j1,/j2", "/l").journal_dirs == (Path("/j1"), Path("/j2"))


@pytest.mark.parametrize(
    ("journals", "ledgers", "problem"),
    [
        ("/j", "/l,/j", "both /j"),
        ("/j,/l", "/l", "both /l"),
        ("/j", "/l,/m,/l", "ledger_dir names /l more than once"),
        ("/j,/j", "/l", "journal_dir names /j more than once"),
        ("/j", ",", "ledger_dir names no directory"),
        (",", "/l", "journal_dir names no directory"),
        ("/j", ",".join(f"/l{number}" for number in range(LEDGER_DIRS_MAX + 1)), f"allowed are {LEDGER_DIRS_MAX}"),
        (",".join(f"/j{number}" for number in range(JOURNAL_DIRS_MAX + 1)), "/l", f"allowed are {JOURNAL_DIRS_MAX}"),
    ],
)
def test_invalid_lists_are_named(journals: str, ledgers: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        BookieSettings(URI, journals, ledgers)
