"""Copying by a bookie itself: it reads entries from another bookie, verifies them, and stores them.

The invariant: every stored entry was verified here against the ledger's digest (S10), and passed the same admission,
journal and sync as a recovery add (S3, S11, R30). The bookie acknowledges a copied entry only after all of this, so a
copied entry has the same guarantees as an entry that a worker sent.

A request has a bookie id, never an address: the source is found by its registration in this bookie's own cluster. A
request therefore cannot make this bookie connect to anything else. The ledger's master key is compared before a request
to the source, so a caller without permission to add causes no traffic.

If the source does not answer, the reply says so: an entry without an answer is unknown, never absent (S6).

A common budget bounds the memory of all copies. A copy reserves the largest possible size of the answer before its
request, and then keeps the actual size until everything is stored. A copy that gets no memory in time is refused, like
an add.

R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.model.digest import digest_with
from bookie.model.ids import EntryId
from bookie.model.packet import PACKET_BYTES_MAX
from bookie.runtime.clock import Clock
from bookie.wire.batching import batches
from bookie.wire.port import (
    READ_BYTES_MAX,
    AddBatch,
    AddReply,
    CopyReply,
    EntryResult,
    ReadReply,
    Status,
    Transport,
)
from bookie.wire.requests import Copy, Read
from bookie.wire.verified import verified

COPY_BYTES_MAX: Final = 64 << 20
"""The most bytes in memory of copied entries, which were read and not stored yet."""
SOURCE_TIMEOUT_S: Final = 3.0
"""Deadline for a source to answer. Workers also try another bookie after this time."""
ROOM_TIMEOUT_S: Final = 2.0
"""The longest wait of a copy for memory, after which it is refused."""
COPIES_MAX: Final = 128
"""The most concurrent copies, a quarter of the concurrent requests of a bookie. Further copies are refused."""
_DETAIL_MAX: Final = 160
"""The most characters of a reason. A reply may have one reason per entry."""

Store = Callable[[AddBatch], Awaitable[AddReply]]
"""A function that stores a batch as if a client had sent it."""


class Copying:
    """The copies that one bookie makes."""

    def __init__(self, sources: Transport, clock: Clock, bytes_max: int = COPY_BYTES_MAX) -> None:
        """Store the arguments. ``sources`` must reach only bookies that are registered in this cluster."""
        self._sources = sources
        self._clock = clock
        self._room = _ByteBudget(bytes_max)
        self._copies = 0

    @property
    def held_bytes(self) -> int:
        """The bytes that copies currently hold."""
        return self._room.held_bytes

    async def copy(self, copy: Copy, store: Store) -> CopyReply:
        """Copy the entries of one answer of the source. The reply contains refusals and failures."""
        if self._copies >= COPIES_MAX:
            return CopyReply(
                Status.TOO_MANY_REQUESTS, detail=f"{self._copies} copies are in progress, which is the maximum"
            )
        self._copies += 1
        try:
            return await self._copy(copy, store)
        finally:
            self._copies -= 1

    async def _copy(self, copy: Copy, store: Store) -> CopyReply:
        held = min(len(copy.entry_ids) * PACKET_BYTES_MAX, READ_BYTES_MAX + PACKET_BYTES_MAX)
        try:
            async with asyncio.timeout(ROOM_TIMEOUT_S):
                await self._room.take(held)
        except TimeoutError:
            return CopyReply(
                Status.TOO_MANY_REQUESTS,
                detail=f"no memory for another copy: the copies in progress take {self.held_bytes} bytes",
            )
        try:
            asked_s = self._clock.monotonic_s()
            answer = await self._sources.ask(copy.source, Read(copy.ledger_id, copy.entry_ids), SOURCE_TIMEOUT_S)
            read_s = self._clock.monotonic_s() - asked_s
            found = _verified_entries(copy, answer)
            size_bytes = sum(map(len, found.packets))
            self._room.release(held - size_bytes)
            held = size_bytes
            return await _stored(copy, found, store, answer, read_s)
        finally:
            self._room.release(held)


class _ByteBudget:
    """A budget of bytes, in the order of requests. A request above the bound waits until nothing else is held."""

    def __init__(self, bytes_max: int) -> None:
        self.held_bytes = 0
        self._bytes_max = bytes_max
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, size_bytes: int) -> None:
        """Wait for room. If cancelled while waiting, nothing is taken."""
        async with self._turn:
            while self.held_bytes and self.held_bytes + size_bytes > self._bytes_max:
                self._freed.clear()
                await self._freed.wait()
            self.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        self._freed.set()


@dataclass(frozen=True, slots=True)
class _Found:
    """A source's answer, with an outcome for each entry of a prefix of the request."""

    entry_ids: Sequence[EntryId]
    """The ids of the entries in ``packets``."""
    packets: Sequence[bytes]
    refusals: Sequence[EntryResult]
    covered: int


def _verified_entries(copy: Copy, answer: ReadReply) -> _Found:
    digest = digest_with(copy.digest_type, copy.digest_key)
    entry_ids: list[EntryId] = []
    packets: list[bytes] = []
    refusals: list[EntryResult] = []
    for entry_id, result in zip(copy.entry_ids, answer.results, strict=False):
        found = verified(digest, copy.ledger_id, entry_id, result)
        if found.status is Status.OK:
            entry_ids.append(entry_id)
            packets.append(found.packet)
        else:
            refusals.append(EntryResult(entry_id, found.status, detail=found.detail[:_DETAIL_MAX]))
    return _Found(entry_ids, packets, refusals, min(len(answer.results), len(copy.entry_ids)))


async def _stored(copy: Copy, found: _Found, store: Store, answer: ReadReply, read_s: float) -> CopyReply:
    stored = stored_bytes = 0
    for batch in batches(found.packets):
        reply = await store(
            AddBatch(copy.ledger_id, copy.master_key, batch, is_recovery=True, incarnation=copy.incarnation)
        )
        if reply.status is not Status.OK:
            first = found.entry_ids[stored]
            refusals = [each for each in found.refusals if each.entry_id < first]
            return CopyReply(
                reply.status, stored + len(refusals), stored_bytes, refusals, read_s=read_s, detail=reply.detail
            )
        stored += len(batch)
        stored_bytes += sum(map(len, batch))
    return CopyReply(
        Status.OK,
        found.covered,
        stored_bytes,
        found.refusals,
        answer.status,
        answer.detail[:_DETAIL_MAX],
        read_s,
    )
