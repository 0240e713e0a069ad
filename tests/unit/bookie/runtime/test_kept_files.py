"""The making of files that outlive a process: the leftovers of killed processes, and two processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookie.runtime.kept_files import BeingMadeError, place_to_make
from tests.deadlines import PROGRAM_S


def made_directory(path: Path) -> Path:
    path.mkdir()
    (path / "half.jsa").write_bytes(b"half")
    return path


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left = made_directory(tmp_path / "a.jsa-x1y2z3_4")
    others = {
        made_directory(tmp_path / name)
        for name in ("a.jsa-x1y2z3", "a.jsa-x1y2z3_45", "b.jsa-x1y2z3_4", "a.jsa", "a.jsa-x1y2z3-4")
    }
    (tmp_path / "a.jsa-abcdefgh").symlink_to(tmp_path / "a.jsa")
    with place_to_make(tmp_path / "a.jsa", 0) as (directory, _):
        assert not left.exists()
        assert directory.parent == tmp_path
        (directory / "half.jsa").touch()
    assert not directory.exists()
    assert {path for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink()} == others
    assert (tmp_path / "a.jsa" / "half.jsa").exists(), "a link is not followed"


def test_the_directory_of_a_living_process_is_not_removed(tmp_path: Path) -> None:
    pauses: list[float] = []
    waits: list[str] = []
    with place_to_make(tmp_path / "a.jsa", 0) as (directory, _):
        place = place_to_make(
            tmp_path / "a.jsa",
            2.0,
            on_wait=lambda: waits.append("another process"),
            sleep=pauses.append,
            monotonic_s=lambda: sum(pauses),
        )
        with pytest.raises(BeingMadeError, match=r"a\.jsa"), place:
            pass
        assert directory.exists()
    assert (sum(pauses), waits) == (2.0, ["another process"])
    with place_to_make(tmp_path / "a.jsa", 0):
        pass


def test_a_child_that_inherits_the_lock_keeps_the_directory_after_its_parent_ended(tmp_path: Path) -> None:
    with place_to_make(tmp_path / "a.jsa", 0) as (directory, lock):
        assert lock is not None
        words = [sys.executable, "-c", "input()"]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[lock])
    try:
        directory.mkdir()  # as if this process had been killed
        with pytest.raises(BeingMadeError), place_to_make(tmp_path / "a.jsa", 0):
            pass
        assert directory.exists()
    finally:
        child.communicate(os.linesep.encode(), timeout=PROGRAM_S)
    with place_to_make(tmp_path / "a.jsa", 0):
        assert not directory.exists()
