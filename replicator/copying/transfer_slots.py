"""Limit the chunks in flight to one bookie, over all ledgers in repair.

A chunk is in flight from before it is read until its target has acknowledged it. It waits for its slot before it holds
memory, so copies to a slow bookie do not use memory that others need. A free slot goes to the copy with the smallest
rank. A copy never changes its target because no slot is free (R38): chunks are small, so the wait is short, whereas
the whole position would have to be copied to another target.

A chunk for several targets takes their slots in the order of the bookies' ids, so copies cannot deadlock. Each slot is
freed as soon as its target has acknowledged the chunk.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from bookie.model.ids import BookieId
from replicator.copying.throttle import RankedLock

SLOTS_MAX: Final = 8
"""The default limit of chunks in flight to one bookie: two positions with all their lanes. A chunk is at most 1 MiB, so
an add of a client waits for at most 8 MiB of copies: less than 0.1 s at 100 MB/s."""


class HeldSlots:
    """The slots that one chunk holds."""

    def __init__(self) -> None:
        """Start without slots."""
        self._held: dict[BookieId, AsyncExitStack] = {}

    def note(self, bookie: BookieId, held: AsyncExitStack) -> None:
        """Add a slot; closing ``held`` frees it."""
        self._held[bookie] = held

    async def free(self, bookie: BookieId) -> None:
        """Free the slot at one bookie. Idempotent."""
        await self._held[bookie].aclose()


class TransferSlots:
    """At most ``slots_max`` chunks of copies in flight to each bookie. One instance per process."""

    def __init__(self, slots_max: int) -> None:
        """Start without held slots."""
        self._slots_max = slots_max
        self._locks: dict[BookieId, RankedLock] = {}
        self._users: Counter[BookieId] = Counter()
        """The number of chunks that hold a slot at a bookie or wait for one. Bookies without chunks are removed."""

    @asynccontextmanager
    async def hold(self, bookies: Iterable[BookieId], rank: int) -> AsyncIterator[HeldSlots]:
        """Wait for a slot at each of ``bookies``, and hold them while the context lasts."""
        slots = HeldSlots()
        async with AsyncExitStack() as stack:
            for bookie in sorted(set(bookies)):
                held = await stack.enter_async_context(AsyncExitStack())
                await held.enter_async_context(self._hold_one(bookie, rank))
                slots.note(bookie, held)
            yield slots

    @asynccontextmanager
    async def _hold_one(self, bookie: BookieId, rank: int) -> AsyncIterator[None]:
        lock = self._locks.setdefault(bookie, RankedLock(self._slots_max))
        self._users[bookie] += 1
        try:
            async with lock.held(rank):
                yield
        finally:
            self._users[bookie] -= 1
            if not self._users[bookie]:
                del self._users[bookie], self._locks[bookie]
