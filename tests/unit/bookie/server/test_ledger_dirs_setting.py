"""The option that names the ledger directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.runtime.configuration.settings import ConfigurationError
from bookie.server.settings import LEDGER_DIRS_MAX, BookieSettings

URI = "zk+hierarchical://host:2181/ledgers"


def test_directories_are_separated_by_commas() -> None:
    assert BookieSettings(URI, Path("/j"), "/l").ledger_dirs == (Path("/l"),)
    assert BookieSettings(URI, Path("/j"), "/l1, /l2,").ledger_dirs == (Path("/l1"), Path("/l2"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("/l,/j", "both /j"),
        ("/l,/m,/l", "/l more than once"),
        (",", "names no directory"),
        (",".join(f"/l{number}" for number in range(LEDGER_DIRS_MAX + 1)), f"allowed are {LEDGER_DIRS_MAX}"),
    ],
)
def test_impossible_lists_are_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        BookieSettings(URI, Path("/j"), text)
