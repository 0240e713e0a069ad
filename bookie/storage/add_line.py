"""The adds that wait until the ledger disk catches up with the journal, in the order of their arrival.

A later add that may wait never overtakes a waiting one. Each continues only after the one before it has left the line,
so the order in which they reach the journal is that of their arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from bookie.wire.add_wait import AddWait


class AddLine:
    """The line of one store. Its length is bounded by the callers, who hold room for their adds."""

    def __init__(self, is_behind: Callable[[], bool]) -> None:
        """Start empty. While ``is_behind`` returns true, no add continues; call ``look`` after it may have changed."""
        self._is_behind = is_behind
        self._places: dict[asyncio.Event, None] = {}
        self.is_closed = False
        """True if no add waits any more."""

    async def turn(self, wait: AddWait) -> bool:
        """Wait for the turn of an add, or until the end of its wait. Return False if the line was closed meanwhile."""
        if not self._places and not self._is_behind():
            return True
        place = asyncio.Event()
        self._places[place] = None
        wait.caller.places.add(place)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(wait.until_s):
                    while self._must_wait(place, wait):
                        place.clear()
                        await place.wait()
        finally:
            wait.caller.places.discard(place)
            del self._places[place]
            self.look()
        return not self.is_closed

    def look(self) -> None:
        """Let the first add continue if it need not wait any more; the next one follows it."""
        if self._places and (self.is_closed or not self._is_behind()):
            next(iter(self._places)).set()

    def close(self) -> None:
        """End every wait, including later ones."""
        self.is_closed = True
        self.look()

    def _must_wait(self, place: asyncio.Event, wait: AddWait) -> bool:
        if wait.caller.is_over or self.is_closed:
            return False
        return next(iter(self._places)) is not place or self._is_behind()
