"""Count how often lost bookies return while their copies are replaced.

When a lost bookie registers again, the copies that replace it stop, and the next round asks it for its entries. If a
bookie left and returned repeatedly, each copy would stop, and its ledgers would never be repaired. So after
``RETURNS_MAX`` returns within ``WINDOW_S`` a bookie counts as *flapping*: the copies to its replacements run to their
end, and the metadata then names the target, even if the bookie is registered at the time. This is safe, because the
target has every entry.

One return stops the copies of many ledgers, some of them minutes later because they wait for the rate. So a return
counts only if a plan has found the bookie absent after the last return. Each process counts only the returns that it
sees itself. After a restart it counts from zero, so some more returns stop copies.

Source: R55, docs/failure-model.md#R55.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from bookie.metadata.bookies.returned import FLAPPING_RETURNS, FLAPPING_WINDOW_S
from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock

RETURNS_MAX: Final = FLAPPING_RETURNS
"""The returns after which a bookie counts as flapping, as for auditors (``bookie.metadata.bookies.returned``)."""
WINDOW_S: Final = float(FLAPPING_WINDOW_S)
SAME_RETURN_S: Final = 10.0
"""For this long after a return, a plan may still use an older list of bookies."""
_BOOKIES_MAX: Final = 1000
"""The most bookies in each of the two tables; the oldest is forgotten."""


class Returns:
    """The returns of lost bookies, for all turns of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[BookieId, list[float]] = {}
        self._absent_s: dict[BookieId, float] = {}
        """When a plan last found the bookie absent."""

    def note_absent(self, bookies: Iterable[BookieId]) -> None:
        """Record that a plan found ``bookies`` absent, and may replace their copies."""
        now_s = self._clock.monotonic_s()
        for bookie in bookies:
            self._absent_s.pop(bookie, None)
            self._absent_s[bookie] = now_s
        _forget_oldest(self._absent_s)

    def note(self, bookie: BookieId) -> None:
        """Record that a bookie returned and thereby stopped a copy."""
        now_s = self._clock.monotonic_s()
        times = self._seen.pop(bookie, [])
        if not times or self._absent_s.get(bookie, 0.0) - times[-1] >= SAME_RETURN_S:
            times = [*times, now_s][-RETURNS_MAX:]
        self._seen[bookie] = times
        _forget_oldest(self._seen)

    def flapping(self, bookies: Iterable[BookieId]) -> frozenset[BookieId]:
        """Return those of ``bookies`` that are flapping."""
        since_s = self._clock.monotonic_s() - WINDOW_S
        return frozenset(
            bookie
            for bookie in bookies
            if len([time_s for time_s in self._seen.get(bookie, ()) if time_s > since_s]) >= RETURNS_MAX
        )


def _forget_oldest(noted: dict[BookieId, Any]) -> None:
    while len(noted) > _BOOKIES_MAX:
        del noted[next(iter(noted))]
