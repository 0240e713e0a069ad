"""The changes of a disk that are under way, to detect one that does not end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Changes:
    """Counts changes, few at a time. For one event loop."""

    def __init__(self) -> None:
        self._begun = 0
        self._under_way: dict[int, None] = {}
        """Their numbers, the oldest first."""

    @property
    def oldest(self) -> int | None:
        """The number of the oldest change under way; None if there is none. Numbers are never used again."""
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
