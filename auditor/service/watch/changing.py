"""Bookies that are absent for a moment while they change between writable and read-only (R85). Pure.

A bookie with Pulsar's driver deletes its registration before it creates the other one, so an observation during the
change finds it in neither list. So a bookie that this process saw registered counts as registered until it has been
absent for ``REGISTRATION_CHANGE_S_MAX``. This is short compared with the session timeout, after which a dead bookie
disappears.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from bookie.model.ids import BookieId

REGISTRATION_CHANGE_S_MAX: Final = 0.5
"""Longest time of a change: two requests to ZooKeeper, with room for a busy server."""


class RegistrationChanges:
    """The absences that may be changes of registration, as one process sees them."""

    def __init__(self) -> None:
        self._registered: AbstractSet[BookieId] = frozenset()
        self._until_s: dict[BookieId, float] = {}

    def observe(self, known: AbstractSet[BookieId], registered: AbstractSet[BookieId], now_s: float) -> set[BookieId]:
        """Return the known absent bookies that may be changing their registration. ``now_s`` is monotonic."""
        absent = known - registered
        since = dict.fromkeys(absent & self._registered, now_s + REGISTRATION_CHANGE_S_MAX)
        self._until_s = since | {bookie: self._until_s[bookie] for bookie in absent & self._until_s.keys()}
        self._registered = registered
        return {bookie for bookie, until_s in self._until_s.items() if now_s < until_s}

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds until the next absence counts as a loss; None: there is no such absence."""
        return min((until_s - now_s for until_s in self._until_s.values() if now_s < until_s), default=None)
