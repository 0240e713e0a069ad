"""Bookies that behave like Apache's: no limbo, no record of their disks, no list of entries, no reservations.

Their disks hold the same data as ours, because their storage is not under test here. They differ in what other
processes can learn from them. A bookie on new disks denies what its former disks held, and forgets its fences. Its
collector respects the lock of a ledger, and nothing else.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from typing_extensions import override

from bookie.metadata.bookies.cookies import Cookie, CookieExistsError, CookieStore
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import lock_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import NodeExistsError, NoNodeError
from bookie.model.errors import BkhealError
from bookie.model.ids import LedgerId
from bookie.storage.port import DiskFullError
from bookie.storage.store import LedgerStorage
from bookie.wire.handler import BookieHandler
from bookie.wire.port import AddBatch, AddReply, ReplyT, Request, Status
from bookie.wire.requests import ListEntries

if TYPE_CHECKING:
    from tests.simulation.nodes import SimBookie

_PAGE: Final = 1000


class WithoutLists(BookieHandler):
    """A handler without a list of entries."""

    def __init__(self, inner: BookieHandler) -> None:
        self._inner = inner

    @override
    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        return await self._inner.add(incarnation, batch)

    @override
    async def answer(self, incarnation: str, request: Request[ReplyT]) -> ReplyT:
        if isinstance(request, ListEntries):
            return cast(ReplyT, request.failed(Status.UNSUPPORTED, detail="no lists"))
        return await self._inner.answer(incarnation, request)


async def join(node: SimBookie, cluster: Cluster) -> None:
    """Store the bookie's cookie, as its first start does, and its first start on other disks.

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
        """Run one pass after the other."""
        while True:
            await asyncio.sleep(interval_s)
            with suppress(DiskFullError):  # the index was full when it was opened again: the next pass reads it
                await self.run_pass()

    async def run_pass(self) -> None:
        """Look at every ledger stored here."""
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
        """Delete the lock, even if another process holds it by now, as Apache's bookies do."""
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
