"""Places for concurrent reads with two priorities: reads of recoveries come before all others.

A recovery delays a writer, or a reader that needs the end of a ledger, and reads few entries. A client with many reads,
a replicator or an audit can wait. So a share of the places is reserved for recoveries, and their waiting reads come
first. After ``URGENT_IN_A_ROW_MAX`` of them in a row, another read gets a place, so no read waits forever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

URGENT_IN_A_ROW_MAX: Final = 8
"""The most consecutive places for reads of recoveries while another read waits."""
RESERVED_DIVISOR: Final = 8
"""One in this many places is reserved for recoveries."""


class ReadPlaces:
    """A fixed number of places. Within a priority, they are given in the order of requests."""

    def __init__(self, count: int) -> None:
        """Start with ``count`` free places."""
        self._count = count
        self._kept = count // RESERVED_DIVISOR
        self._free = count
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()
        self._row = 0

    @property
    def taken(self) -> int:
        """The number of places in use."""
        return self._count - self._free

    @property
    def waiting(self) -> int:
        """The number of reads that wait for a place."""
        return len(self._urgent) + len(self._others)

    @asynccontextmanager
    async def place(self, *, is_urgent: bool) -> AsyncIterator[None]:
        """Hold a place inside the context."""
        await self.take(is_urgent=is_urgent)
        try:
            yield
        finally:
            self.release()

    async def take(self, *, is_urgent: bool) -> None:
        """Wait for a place and take it. The caller must ``release`` it."""
        queue = self._urgent if is_urgent else self._others
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(waiter)
        self._admit_waiters()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in queue:
                queue.remove(waiter)
            elif not waiter.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Release a place."""
        self._free += 1
        self._admit_waiters()

    def _admit_waiters(self) -> None:
        while (queue := self._next()) is not None:
            waiter = queue.popleft()
            if waiter.cancelled():
                continue
            self._free -= 1
            self._row = self._row + 1 if queue is self._urgent else 0
            waiter.set_result(None)

    def _next(self) -> deque[asyncio.Future[None]] | None:
        """Return the queue whose first read gets a place now, or None."""
        may_be_other = bool(self._others) and self._free > (0 if self._row >= URGENT_IN_A_ROW_MAX else self._kept)
        if self._urgent and self._free > 0 and not (may_be_other and self._row >= URGENT_IN_A_ROW_MAX):
            return self._urgent
        return self._others if may_be_other else None
