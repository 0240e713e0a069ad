"""The transport port over Apache's bookie protocol, version 3: one TCP connection for each bookie's address.

Reads or recovery adds of many entries use a second one, in version 2, as long as that succeeds (``bulk_link``).

The transport connects at the first call, and at the next one after a failure. Nothing is retried here: a call ended by
a broken connection or its deadline returns UNREACHABLE or TIMEOUT, and may have taken effect.

The protocol has no incarnations: only the resolver can determine whose disks answer. A batch for certain disks is
refused unless the address names the same ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.tasks import cancel, guarded
from bookie.wire.add_lane import AddLane
from bookie.wire.apache.adding import AddWaiter
from bookie.wire.apache.bulk_link import BulkLink
from bookie.wire.apache.connection import Version3Connection
from bookie.wire.apache.exchange import Exchange, forced
from bookie.wire.apache.framing import FRAME_BYTES_MAX
from bookie.wire.apache.handshake import client_context, open_connection
from bookie.wire.apache.stream import ConnectionLostError
from bookie.wire.apache.too_long import HINT
from bookie.wire.port import AddBatch, AddReply, EntryResult, Failed, ReplyT, Request, Status, Transport
from bookie.wire.request_shape import (
    batch_ids_problem,
    batch_size_problem,
    beyond_problem,
    entry_ids_problem,
    ledger_problem,
)
from bookie.wire.requests import Fence, Read, WaitLac, WriteLac, with_results
from bookie.wire.resolver import APACHE_PROTOCOL, BookieAddress, Resolver, UnresolvedError, address_for
from bookie.wire.security import PLAINTEXT, BookieSecurity

IN_FLIGHT_BYTES_MAX: Final = 16 << 20
"""Default bound of the adds in flight to one bookie, as over gRPC."""
BULK_ENTRIES_MIN: Final = 16
"""Minimum number of entries in one call for which a second connection is used."""
_FRAME_OVERHEAD_BYTES: Final = 128
"""Upper bound of the bytes of an add's frame apart from the entry and the master key."""
_CLOSED: Final = "the connection was closed"


@dataclass(slots=True)
class _Link:
    """One address, and the connection to it, which may still be opening."""

    address: BookieAddress
    opening: asyncio.Task[Version3Connection | ConnectionLostError] = field(repr=False)
    bulk: BulkLink | None = field(repr=False)
    """The use of version 2; None if this client must encrypt, or log in."""

    @property
    def is_over(self) -> bool:
        """Whether the next call needs a new link."""
        if not self.opening.done():
            return False
        if self.opening.cancelled() or self.opening.exception() is not None:
            return True
        opened = self.opening.result()
        return isinstance(opened, ConnectionLostError) or opened.is_over

    async def connection(self) -> Version3Connection:
        """Wait for the open connection. A cancelled caller does not stop the opening for others.

        Raises:
            ConnectionLostError: it could not be opened, or was closed during the wait.
        """
        await asyncio.wait([self.opening])
        if self.opening.cancelled():
            raise ConnectionLostError(_CLOSED)
        opened = self.opening.result()
        if isinstance(opened, ConnectionLostError):
            raise ConnectionLostError(str(opened))
        return opened

    async def close(self) -> None:
        """Cancel the opening, or end the requests in flight."""
        if self.bulk is not None:
            await self.bulk.close()
        await cancel(self.opening)
        if not self.opening.cancelled() and isinstance(opened := self.opening.result(), Version3Connection):
            await opened.close(_CLOSED)


class ApacheTransport(Transport):
    """``bookie.wire.port.Transport`` over Apache's protocol. Belongs to one event loop."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        security: BookieSecurity = PLAINTEXT,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
        list_silence_s: float | None = None,
        bulk_entries_min: int = BULK_ENTRIES_MIN,
    ) -> None:
        """Prepare the transport; nothing is connected yet.

        Args:
            resolver: finds the addresses of bookies.
            security: TLS and login for every bookie.
            frame_bytes_max: longest frame in either direction, Apache's ``nettyMaxFrameSizeBytes``.
            in_flight_bytes_max: limit of the bytes of adds to one bookie without an ack; more adds wait for room.
            list_silence_s: time without a list after which a bookie may not support lists, in seconds; at most half of
                the request's deadline is used. None: no bookie is asked for lists, which cost it memory (``listing``).
            bulk_entries_min: minimum number of entries for a read or a recovery add in bulk.

        Raises:
            TlsFilesError: the files cannot be read.
        """
        self._resolver = resolver
        self._sasl = security.sasl
        self._context = client_context(security.tls) if security.tls is not None else None
        self._frame_bytes_max = frame_bytes_max
        self._in_flight_bytes_max = in_flight_bytes_max
        self._list_silence_s = list_silence_s
        self._bulk_entries_min = bulk_entries_min
        self._links: dict[BookieId, _Link] = {}
        self._lanes: dict[BookieId, AddLane] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        """Store a batch. The reply is OK only if every entry was stored.

        Otherwise it is the most informative failure, and a part of the batch may have been stored.
        """
        size = sum(map(len, batch.entries))
        problem = batch_size_problem(batch, size) or self._frame_problem(batch) or batch_ids_problem(batch)
        if problem is not None:
            return AddReply(Status.BAD_REQUEST, problem)
        adding = AddWaiter(batch)
        return await _answered(
            timeout_s,
            self._add(bookie, batch, adding, size),
            lambda status, *, detail: adding.failure or AddReply(status, detail),
        )

    def _frame_problem(self, batch: AddBatch) -> str | None:
        largest = max(map(len, batch.entries))
        if largest + len(batch.master_key) + _FRAME_OVERHEAD_BYTES > self._frame_bytes_max:
            return f"an entry of {largest} bytes does not fit into a frame of {self._frame_bytes_max}: {HINT}"
        return None

    async def _add(self, bookie: BookieId, batch: AddBatch, adding: AddWaiter, size: int) -> AddReply:
        lane = self._lanes.get(bookie)
        if lane is None:
            lane = self._lanes[bookie] = AddLane(self._in_flight_bytes_max)
        connection: Version3Connection | None = None
        try:
            async with lane.turn(size):
                link = await self._link(bookie)
                if batch.incarnation and batch.incarnation != link.address.incarnation:
                    raise _OtherDisksError(bookie, batch.incarnation)
                bulk = link.bulk if batch.is_recovery and len(batch.entries) >= self._bulk_entries_min else None
                if bulk is None:
                    connection = await link.connection()
                    await adding.submit(connection)
            try:
                if bulk is not None:
                    if await bulk.store(batch):
                        return AddReply(Status.OK)
                    connection = await link.connection()
                    await adding.submit(connection)
                return await adding.reply
            finally:
                lane.leave(size)
        finally:
            if connection is not None:
                adding.forget(connection)

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        if (problem := _problem(request)) is not None:
            return request.failed(Status.BAD_REQUEST, detail=problem)
        results: list[EntryResult] = []

        async def asked() -> ReplyT:
            link = await self._link(bookie)
            if link.bulk is not None and isinstance(request, Read) and self._is_for_bulk(request):
                await link.bulk.fetch(request.ledger_id, request.entry_ids, results)
            silence_s = self._list_silence_s
            exchange = Exchange(await link.connection(), None if silence_s is None else min(silence_s, timeout_s / 2))
            return await exchange.ask(request, results)

        return with_results(await _answered(timeout_s, asked(), request.failed), results)

    def _is_for_bulk(self, read: Read) -> bool:
        return read.fence_key is None and len(read.entry_ids) >= self._bulk_entries_min

    async def force(self, bookie: BookieId, ledger_id: LedgerId, timeout_s: float) -> AddReply:
        """Wait until all entries of a ledger sent to the bookie so far are durable there."""

        async def asked() -> AddReply:
            return await forced(await (await self._link(bookie)).connection(), ledger_id)

        return await _answered(timeout_s, asked(), AddReply)

    @override
    async def close(self) -> None:
        """Close every connection. Idempotent; later calls return UNREACHABLE."""
        self._is_closed = True
        for link in self._links.values():
            self._retire(link)
        self._links.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _link(self, bookie: BookieId) -> _Link:
        """Return the link to the present address of ``bookie``.

        It is a new one if the address, or the disks there, have changed.
        """
        address = await address_for(self._resolver, bookie, APACHE_PROTOCOL)
        if self._is_closed:
            raise ConnectionLostError(_CLOSED)
        current = self._links.get(bookie)
        if current is not None and current.address == address and not current.is_over:
            return current
        opening = guarded("open bookie connection", self._open(address))
        is_bare = self._context is None and self._sasl is None
        bulk = BulkLink(address, self._frame_bytes_max) if is_bare else None
        fresh = self._links[bookie] = _Link(address, opening, bulk)
        if current is not None:
            self._retire(current)
        return fresh

    async def _open(self, address: BookieAddress) -> Version3Connection | ConnectionLostError:
        try:
            return await open_connection(address, self._context, self._sasl, self._frame_bytes_max)
        except ConnectionLostError as error:
            return error

    def _retire(self, link: _Link) -> None:
        task = guarded("close bookie connection", link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _problem(request: Request[Any]) -> str | None:
    """Return what is wrong with the shape of a request, as far as these bookies do not check it."""
    match request:
        case Read():
            return ledger_problem(request.ledger_id, request.fence_key or b"") or entry_ids_problem(request.entry_ids)
        case Fence() | WriteLac():
            return ledger_problem(request.ledger_id, request.master_key)
        case WaitLac():
            return beyond_problem(request.beyond)
        case _:
            return None


class _OtherDisksError(BkhealError):
    """A batch is meant for other disks than those at the address, or it is unknown which disks are there."""

    def __init__(self, bookie: BookieId, wanted: str) -> None:
        super().__init__(f"the batch is meant for incarnation {wanted[:64]} of {bookie}, which nothing names there")


async def _answered(timeout_s: float, ask: Awaitable[ReplyT], failed: Failed[ReplyT]) -> ReplyT:
    """Await ``ask`` for at most ``timeout_s``; failures of the connection become a status."""
    try:
        async with asyncio.timeout(timeout_s):
            return await ask
    except TimeoutError:
        return failed(Status.TIMEOUT, detail=f"no answer within {timeout_s:g} s")
    except UnresolvedError as error:
        return failed(Status.UNRESOLVED, detail=str(error))
    except _OtherDisksError as error:
        return failed(Status.WRONG_INCARNATION, detail=str(error))
    except ConnectionLostError as error:
        return failed(Status.UNREACHABLE, detail=str(error))
