"""Bookies that behave like Apache's: no limbo, no record of their disks, no list of entries, no reservations.

Their only answer for an entry that they cannot read is an I/O error. They do not verify digests, so they serve some
damaged entries with wrong bytes.

Their disks have the same format as ours, because their storage is not under test here. They differ in what they show
to other processes. As their last entry, they report the greatest one added since a flush (R137). A bookie on new disks
denies the entries of its former disks, and forgets its fences. Its collector respects the lock of a ledger, but not a
reservation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from typing_extensions import override

from bookie.metadata.bookies.cookies import Cookie, CookieExistsError, CookieStore
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import lock_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import NodeExistsError, NoNodeError
from bookie.model.errors import BkhealError
from bookie.model.ids import EntryId, LedgerId
from bookie.model.packet import packet_ids
from bookie.runtime.clock import Clock
from bookie.storage.port import DiskFullError
from bookie.storage.store import LedgerStorage
from bookie.wire.handler import BookieHandler
from bookie.wire.port import (
    AddBatch,
    AddReply,
    EntryResult,
    FenceReply,
    LacReply,
    ReadReply,
    Reply,
    ReplyT,
    Request,
    Status,
)
from bookie.wire.requests import Fence, ListEntries, Read, ReadLac, ReadLast, WaitLac

if TYPE_CHECKING:
    from tests.simulation.nodes import SimBookie

_PAGE: Final = 1000
_FLUSH_INTERVAL_S: Final = 60.0
"""The value in Pulsar's configuration of bookies."""


class LikeApache(BookieHandler):
    """A handler that lists no entries, and derives the last entry of a ledger from the entries since the last flush."""

    def __init__(self, inner: BookieHandler, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._flush = 0
        self._unflushed: dict[LedgerId, EntryId] = {}
        """The greatest entry of each ledger since the last flush."""

    @override
    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        reply = await self._inner.add(incarnation, batch)
        if reply.status is Status.OK:
            added = max(packet_ids(packet)[1] for packet in batch.entries)
            newest = self._since_flush()
            newest[batch.ledger_id] = max(added, newest.get(batch.ledger_id, added))
        return reply

    @override
    async def answer(self, incarnation: str, request: Request[ReplyT]) -> ReplyT:
        if isinstance(request, ListEntries):
            return cast(ReplyT, request.failed(Status.UNSUPPORTED, detail="no lists"))
        reply: Reply = _without_damage(await self._inner.answer(incarnation, request))
        if reply.status is Status.OK and isinstance(request, ReadLast | Fence | ReadLac | WaitLac):
            last = await self._last(incarnation, request.ledger_id)
            if last is not None and isinstance(reply, ReadReply):
                reply = replace(reply, results=[last])
            elif last is not None and isinstance(reply, FenceReply | LacReply):
                reply = replace(reply, last_entry=last)
        return cast(ReplyT, reply)

    async def _last(self, incarnation: str, ledger_id: LedgerId) -> EntryResult | None:
        """Return the greatest entry since the last flush; None if there is none or it was deleted."""
        entry_id = self._since_flush().get(ledger_id)
        if entry_id is None:
            return None
        reply = await self._inner.answer(incarnation, Read(ledger_id, [entry_id]))
        return next((result for result in reply.results if result.status is Status.OK), None)

    def _since_flush(self) -> dict[LedgerId, EntryId]:
        flush = int(self._clock.monotonic_s() / _FLUSH_INTERVAL_S)
        if flush != self._flush:
            self._flush = flush
            self._unflushed.clear()
        return self._unflushed


def _without_damage(reply: Reply) -> Reply:
    """Return the reply of a bookie that has no special answer for damage."""
    if isinstance(reply, ReadReply):
        return replace(reply, results=[_as_apache(each) for each in reply.results])
    if isinstance(reply, FenceReply | LacReply):
        is_damaged = reply.last_entry is not None and reply.last_entry.status is Status.CORRUPT
        return replace(reply, status=Status.IO_ERROR, last_entry=None) if is_damaged else reply
    return reply


def served_unverified(result: EntryResult, packets: Mapping[EntryId, bytes]) -> EntryResult:
    """Return the answer for an entry. If it is damaged, every second entry is answered with wrong bytes."""
    packet = packets.get(result.entry_id)
    if result.status is not Status.IO_ERROR or result.detail or packet is None or result.entry_id % 2:
        return result
    return EntryResult(result.entry_id, Status.OK, packet[:-1] + bytes([packet[-1] ^ 1]))


def _as_apache(result: EntryResult) -> EntryResult:
    return EntryResult(result.entry_id, Status.IO_ERROR) if result.status is Status.CORRUPT else result


async def join(node: SimBookie, cluster: Cluster) -> None:
    """Store the bookie's cookie, as the first start of a bookie on its disks does.

    An Apache bookie refuses to start on empty disks while its old cookie is in the store, so an operator deletes it.
    """
    name, cookies = node.process.name, CookieStore(node.store, cluster)
    cookie = Cookie(node.bookie, (f"/sim/{name}/journal",), (f"/sim/{name}/ledgers",))
    if node.is_new_incarnation and (old := await cookies.read(node.bookie)) is not None:
        await cookies.delete(node.bookie, old.version)
    try:
        await cookies.create(cookie)
    except CookieExistsError:
        return


class ApacheCollector:
    """Deletes the entries of ledgers that do not exist, or are closed and no longer name this bookie."""

    def __init__(self, node: SimBookie, cluster: Cluster, storage: LedgerStorage, rng: random.Random) -> None:
        self._bookie = node.bookie
        self._ledgers = LedgerStore(node.store, cluster, rng)
        self._store = node.store
        self._root = cluster.root
        self._storage = storage

    async def run(self, interval_s: float) -> None:
        """Run pass after pass, without end."""
        while True:
            await asyncio.sleep(interval_s)
            with suppress(DiskFullError):  # the index was full when it was opened; the next pass reads it
                await self.run_pass()

    async def run_pass(self) -> None:
        """Check every ledger stored here."""
        after = -1
        while page := await self._storage.ledger_ids(after, _PAGE):
            after = page[-1]
            for ledger_id in page:
                try:
                    await self._look_at(ledger_id)
                except BkhealError:
                    continue  # the ledger stays if its state is unknown
        try:
            await self._storage.compact()
        except BkhealError:
            return

    async def _look_at(self, ledger_id: LedgerId) -> None:
        if await self._is_needed(ledger_id):
            return
        path = lock_path(self._root, ledger_id)
        try:
            await self._store.create(path, b"", is_ephemeral=True)
        except NodeExistsError:
            return
        try:
            mark = self._storage.mark(ledger_id)
            if not await self._is_needed(ledger_id):
                await self._storage.collect(ledger_id, mark)
        finally:
            await self._release(path)

    async def _release(self, path: str) -> None:
        """Delete the lock as Apache's bookies do, even if another process has taken it since then."""
        while True:
            try:
                await self._store.delete(path)
            except NoNodeError:
                return
            except BkhealError:
                await asyncio.sleep(1.0)
            else:
                return

    async def _is_needed(self, ledger_id: LedgerId) -> bool:
        current = await self._ledgers.current(ledger_id)
        return current is not None and (not current.metadata.is_closed or self._bookie in current.metadata.members())
