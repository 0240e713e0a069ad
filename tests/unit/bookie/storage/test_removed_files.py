"""The removed files that a process remembers."""

from __future__ import annotations

from bookie.storage.disks.removed_files import REMOVED_MAX, RemovedFiles


def test_only_the_files_removed_last_are_remembered() -> None:
    removed: RemovedFiles[int] = RemovedFiles()
    for number in range(REMOVED_MAX + 5):
        removed.add(number)
    assert [number in removed for number in (0, 4, 5, REMOVED_MAX + 4)] == [False, False, True, True]
    removed.discard(5)
    removed.discard(0)
    assert 5 not in removed
