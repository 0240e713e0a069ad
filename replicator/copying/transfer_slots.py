"""Bound the chunks of copies under way to one bookie at a time, over all ledgers in repair.

A chunk is under way from before it is read until its target has acknowledged it. It waits for its slot before it holds
memory, so copies to a slow bookie do not take the memory of others. A free slot goes to the copy with the smallest
rank. A copy never changes its target for lack of a slot (R38): chunks are small, so the wait is short, whereas another
target would need the whole position.

A chunk for several targets takes its slots in the order of their ids, so two copies never wait for each other. Each
slot is freed after its own target has acknowledged the chunk.

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
"""Most chunks under way to one bookie by default: two positions with all their lanes. A chunk is 1 MiB at most, so an
add of a client waits for at most 8 MiB of copies: less than 0.1 s at 100 MB/s."""


class HeldSlots:
    """Slots held by one chunk."""

    def __init__(self) -> None:
        """Start with none."""
        self._held: dict[BookieId, AsyncExitStack] = {}

    def note(self, bookie: BookieId, held: AsyncExitStack) -> None:
        """Add a slot; closing ``held`` frees it."""
        self._held[bookie] = held

    async def free(self, bookie: BookieId) -> None:
        """Give back the slot at one bookie. Idempotent."""
        await self._held[bookie].aclose()


class TransferSlots:
    """At most ``slots_max`` chunks of copies under way to each bookie. One instance per process."""

    def __init__(self, slots_max: int) -> None:
        """Prepare; nothing is held."""
        self._slots_max = slots_max
        self._locks: dict[BookieId, RankedLock] = {}
        self._users: Counter[BookieId] = Counter()
        """Chunks with a slot or waiting for one; only their bookies are kept."""

    @asynccontextmanager
    async def hold(self, bookies: Iterable[BookieId], rank: int) -> AsyncIterator[HeldSlots]:
        """Hold a slot at each of ``bookies`` while the context lasts, waiting for them first."""
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
