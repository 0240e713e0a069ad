"""A small benchmark of one journal against two: where it writes, which files remain, and what it reports."""

from __future__ import annotations

from pathlib import Path

from auditor.bench.bookies.several_journals import run


async def test_both_layouts_are_measured_on_given_directories_and_leave_no_files(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
    figures = await run(directories, entries=64, entry_bytes=100, writers=4, rounds=2)
    assert figures["one_journal_adds_per_second"] > 0
    assert figures["two_journals_adds_per_second"] > 0
    assert (figures["devices"], len(figures["ratios"])) == (1, 2)
    assert [list(directory.iterdir()) for directory in directories] == [[], []]
