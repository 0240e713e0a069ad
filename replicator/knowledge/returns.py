"""Lost bookies that return while their copies are replaced, and those that do so again and again.

A copy for a lost bookie ends when the bookie registers again: the next round asks it what it has. A bookie that keeps
leaving and returning would end each copy, and its ledgers would never be repaired. So after ``RETURNS_MAX`` returns
within ``WINDOW_S`` a bookie counts as *flapping*: copies for it run to their end, and the metadata then names the
target although the bookie may be registered at that moment. That is safe, because the target has every entry.

Copies of many ledgers end by the same return, and one that waits for its rate ends minutes later. So a return counts
only if a plan has found the bookie absent since the last one. Each process counts the returns that it has seen itself.
A restart forgets them, which costs some more returns.

Source: R55, docs/failure-model.md#R55.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from bookie.metadata.bookies.returned import FLAPPING_RETURNS, FLAPPING_WINDOW_S
from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock

RETURNS_MAX: Final = FLAPPING_RETURNS
"""Returns that end a copy: as many as auditors count, which record them for all (``bookie.metadata.bookies.returned``).
"""
WINDOW_S: Final = float(FLAPPING_WINDOW_S)
SAME_RETURN_S: Final = 10.0
"""How long after a return a plan may still find the bookie absent, by a list that was read before the return."""
_BOOKIES_MAX: Final = 1000
"""Bookies that are remembered of each kind; the one that was noted first is forgotten."""


class Returns:
    """For all turns of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[BookieId, list[float]] = {}
        self._absent_s: dict[BookieId, float] = {}
        """When a plan found the bookie absent for the last time."""

    def note_absent(self, bookies: Iterable[BookieId]) -> None:
        """Note that a plan has found ``bookies`` absent, and may copy for them."""
        now_s = self._clock.monotonic_s()
        for bookie in bookies:
            self._absent_s.pop(bookie, None)
            self._absent_s[bookie] = now_s
        _forget_oldest(self._absent_s)

    def note(self, bookie: BookieId) -> None:
        """Note that a bookie has returned, and a copy for it was ended."""
        now_s = self._clock.monotonic_s()
        times = self._seen.pop(bookie, [])
        if not times or self._absent_s.get(bookie, 0.0) - times[-1] >= SAME_RETURN_S:
            times = [*times, now_s][-RETURNS_MAX:]
        self._seen[bookie] = times
        _forget_oldest(self._seen)

    def flapping(self, bookies: Iterable[BookieId]) -> frozenset[BookieId]:
        """Those of ``bookies`` that return again and again."""
        since_s = self._clock.monotonic_s() - WINDOW_S
        return frozenset(
            bookie
            for bookie in bookies
            if len([time_s for time_s in self._seen.get(bookie, ()) if time_s > since_s]) >= RETURNS_MAX
        )


def _forget_oldest(noted: dict[BookieId, Any]) -> None:
    while len(noted) > _BOOKIES_MAX:
        del noted[next(iter(noted))]
