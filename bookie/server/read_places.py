"""Places for reads that run at once, with two priorities: the reads of a recovery go before all others.

A recovery holds up a writer or a reader that needs the end of a ledger, and reads few entries. A client that reads
much, a replicator or an audit can wait. So a part of the places is kept for recoveries, and of those that wait they are
first. After ``ROW_MAX`` of them in a row another read gets a place, so no read waits for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

ROW_MAX: Final = 8
"""Reads of recoveries that get a place one after the other while another read waits."""
KEPT_SHARE: Final = 8
"""One place of so many is kept for recoveries."""


class ReadPlaces:
    """A number of places. First come, first served within a priority."""

    def __init__(self, count: int) -> None:
        """All ``count`` places are free."""
        self._count = count
        self._kept = count // KEPT_SHARE
        self._free = count
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()
        self._row = 0

    @property
    def taken(self) -> int:
        """Places that are in use."""
        return self._count - self._free

    @property
    def waiting(self) -> int:
        """Reads that wait for a place."""
        return len(self._urgent) + len(self._others)

    @asynccontextmanager
    async def place(self, *, is_urgent: bool) -> AsyncIterator[None]:
        """Have a place while this lasts."""
        await self.take(is_urgent=is_urgent)
        try:
            yield
        finally:
            self.give_back()

    async def take(self, *, is_urgent: bool) -> None:
        """Wait for a place and take it; the caller gives it back."""
        queue = self._urgent if is_urgent else self._others
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(waiter)
        self._give_out()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in queue:
                queue.remove(waiter)
            elif not waiter.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        """Free a place."""
        self._free += 1
        self._give_out()

    def _give_out(self) -> None:
        while (queue := self._next()) is not None:
            waiter = queue.popleft()
            if waiter.cancelled():
                continue
            self._free -= 1
            self._row = self._row + 1 if queue is self._urgent else 0
            waiter.set_result(None)

    def _next(self) -> deque[asyncio.Future[None]] | None:
        """The queue whose first read gets a place now."""
        may_be_other = bool(self._others) and self._free > (0 if self._row >= ROW_MAX else self._kept)
        if self._urgent and self._free > 0 and not (may_be_other and self._row >= ROW_MAX):
            return self._urgent
        return self._others if may_be_other else None
