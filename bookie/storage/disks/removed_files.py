"""The files that this process removed recently.

A reader may look up the place of an entry before the removal of its file, and open the file after it. The file then
counts as removed, and not as lost. Removals before that need not be known, so their number is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

REMOVED_MAX: Final = 10_000
"""The number of files that are remembered: far more than are removed during one read."""

K = TypeVar("K")


class RemovedFiles(Generic[K]):
    """The last ``REMOVED_MAX`` removed files, by path or id."""

    def __init__(self) -> None:
        self._keys: OrderedDict[K, None] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._keys

    def add(self, key: K) -> None:
        """Record that a file was removed, or is being removed."""
        self._keys[key] = None
        if len(self._keys) > REMOVED_MAX:
            self._keys.popitem(last=False)

    def discard(self, key: K) -> None:
        """Record that a file was not removed after all."""
        self._keys.pop(key, None)
