"""A queue of adds that wait until the ledger disk catches up with the journal, in the order of their arrival.

An add that may wait never overtakes one that is already waiting. Each add proceeds only after the one before it has
left the queue, so the adds reach the journal in the order of their arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from bookie.wire.add_wait import AddWait


class AddQueue:
    """The queue of one store. The callers bound its length: each of them has reserved memory for its adds."""

    def __init__(self, is_behind: Callable[[], bool]) -> None:
        """Start empty. None proceeds while ``is_behind`` returns true; call ``advance`` when that may have changed."""
        self._is_behind = is_behind
        self._places: dict[asyncio.Event, None] = {}
        self.is_closed = False
        """True if adds no longer wait."""

    async def turn(self, wait: AddWait) -> bool:
        """Wait for the turn of an add, or until its wait ends. Return False if the queue was closed first."""
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
            self.advance()
        return not self.is_closed

    def advance(self) -> None:
        """Let the first add proceed if it no longer needs to wait; it then wakes the next one."""
        if self._places and (self.is_closed or not self._is_behind()):
            next(iter(self._places)).set()

    def close(self) -> None:
        """End all current and future waits."""
        self.is_closed = True
        self.advance()

    def _must_wait(self, place: asyncio.Event, wait: AddWait) -> bool:
        if wait.caller.is_over or self.is_closed:
            return False
        return next(iter(self._places)) is not place or self._is_behind()
