"""Tracking of the running changes of a disk, to detect a change that does not end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class RunningChanges:
    """The running changes of one disk. There should be few at a time, all on one event loop."""

    def __init__(self) -> None:
        self._begun = 0
        self._under_way: dict[int, None] = {}
        """The numbers of the running changes, oldest first."""

    @property
    def oldest(self) -> int | None:
        """The number of the oldest running change, or None. Numbers are never reused."""
        return next(iter(self._under_way), None)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count the work in the block as one change."""
        self._begun += 1
        number = self._begun
        self._under_way[number] = None
        try:
            yield
        finally:
            del self._under_way[number]
