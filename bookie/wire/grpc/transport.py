"""The transport port over gRPC: one channel for each bookie address, and one stream of it for adds.

Nothing is retried here. A call ended by gRPC or a deadline returns UNREACHABLE or TIMEOUT, and may have taken effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

import grpc.aio
from typing_extensions import override

from bookie.model.availability import InvalidAvailabilityError
from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId
from bookie.runtime.tasks import guarded
from bookie.wire.add_lane import AddLane
from bookie.wire.grpc.channel import MESSAGE_BYTES_MAX, failure_of
from bookie.wire.grpc.codec import MalformedAnswerError
from bookie.wire.grpc.connection import GrpcConnection
from bookie.wire.port import AddBatch, AddReply, EntryResult, Failed, Reply, ReplyT, Request, Status, Transport
from bookie.wire.requests import incarnation_for, with_results
from bookie.wire.resolver import GRPC_PROTOCOL, Resolver, UnresolvedError, address_for
from bookie.wire.security import TlsSettings
from bookie.wire.tls import channel_credentials

IN_FLIGHT_BYTES_MAX: Final = 16 << 20
"""Default bound of the adds in flight to one bookie: 40 ms of a 400 MB/s stream, far above what a journal needs."""
_BATCH_BYTES_MAX: Final = MESSAGE_BYTES_MAX - (64 << 10)
"""A batch of this many bytes still fits into a message with its framing; a larger one would break the stream."""
_RECONNECT_INTERVAL_S: Final = 1.0
"""Shortest life of a connection that leads to other disks than the registered ones."""
_CLOSED: Final = "the connection was closed"


class InsecureTransportError(PermanentError):
    """Neither TLS nor plaintext was requested explicitly, or both were."""


class GrpcTransport(Transport):
    """``bookie.wire.port.Transport`` over gRPC. Belongs to one event loop."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        tls: TlsSettings | None = None,
        is_plaintext: bool = False,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    ) -> None:
        """Prepare the transport; nothing is connected yet.

        Args:
            resolver: finds the addresses of bookies.
            tls: files for TLS; the bookie's certificate is always verified.
            is_plaintext: no TLS; must be explicit, because plaintext is only for loopback and trusted networks.
            in_flight_bytes_max: limit of the bytes of adds to one bookie without an ack; more adds wait for room.

        Raises:
            InsecureTransportError: not exactly one of ``tls`` and ``is_plaintext`` was given.
            TlsFilesError: the files cannot be read.
        """
        if is_plaintext == (tls is not None):
            raise InsecureTransportError(
                "GrpcTransport needs exactly one of tls=TlsSettings(...) and is_plaintext=True"
            )
        self._resolver = resolver
        self._credentials = channel_credentials(tls) if tls is not None else None
        self._in_flight_bytes_max = in_flight_bytes_max
        self._connections: dict[BookieId, GrpcConnection] = {}
        self._lanes: dict[BookieId, AddLane] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        size = sum(map(len, batch.entries))
        if size > _BATCH_BYTES_MAX:
            return AddReply(Status.BAD_REQUEST, f"a batch of {size} bytes exceeds the limit of {_BATCH_BYTES_MAX}")
        return await _answered(timeout_s, self._add(bookie, batch, size), AddReply)

    async def _add(self, bookie: BookieId, batch: AddBatch, size: int) -> AddReply:
        lane = self._lanes.get(bookie)
        if lane is None:
            lane = self._lanes[bookie] = AddLane(self._in_flight_bytes_max)
        async with lane.turn(size):
            connection = await self._connection(bookie)
            add = connection.adds.submit(batch, size)
        try:
            reply = await add.reply
        finally:
            connection.adds.forget(add)
            lane.leave(size)
        self._check_disks(bookie, connection, batch.incarnation, reply)
        return reply

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        results: list[EntryResult] = []

        async def asked() -> ReplyT:
            connection = await self._connection(bookie)
            reply = await connection.ask(request, results, timeout_s)
            self._check_disks(bookie, connection, incarnation_for(request, ""), reply)
            return reply

        return with_results(await _answered(timeout_s, asked(), request.failed), results)

    @override
    async def close(self) -> None:
        """Close every connection. Idempotent; later calls return UNREACHABLE."""
        self._is_closed = True
        for connection in self._connections.values():
            self._retire(connection)
        self._connections.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _connection(self, bookie: BookieId) -> GrpcConnection:
        """Return the connection to the present address of ``bookie``.

        It is a new one if the address, or the disks there, have changed.
        """
        address = await address_for(self._resolver, bookie, GRPC_PROTOCOL)
        if self._is_closed:
            raise asyncio.CancelledError  # as gRPC ends the calls on a closed channel
        current = self._connections.get(bookie)
        if current is not None and current.address == address:
            return current
        fresh = self._connections[bookie] = GrpcConnection(address, self._credentials)
        if current is not None:
            self._retire(current)
        return fresh

    def _check_disks(self, bookie: BookieId, connection: GrpcConnection, named: str, reply: Reply) -> None:
        """Discard a connection to other disks than the registered ones, so the next request looks up the host again.

        Such a connection never fails by itself: another bookie may have the address that the host had before, as pods
        of Kubernetes may. ``named`` are the disks that the request named itself; empty: those of the connection.
        """
        if reply.status is not Status.WRONG_INCARNATION or named not in ("", connection.address.incarnation):
            return
        if self._connections.get(bookie) is connection and connection.age_s >= _RECONNECT_INTERVAL_S:
            del self._connections[bookie]
            self._retire(connection)

    def _retire(self, connection: GrpcConnection) -> None:
        task = guarded("close bookie connection", connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _answered(timeout_s: float, ask: Awaitable[ReplyT], failed: Failed[ReplyT]) -> ReplyT:
    """Await ``ask`` for at most ``timeout_s``; failures of the connection become a status."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _uncancelled_by_channel(ask, failed)
    except TimeoutError:
        return failed(Status.TIMEOUT, detail=f"no answer within {timeout_s:g} s")
    except UnresolvedError as error:
        return failed(Status.UNRESOLVED, detail=str(error))
    except grpc.aio.AioRpcError as error:
        status, detail = failure_of(error)
        return failed(status, detail=detail)
    except grpc.aio.UsageError:  # the channel was closed before the call began
        return failed(Status.UNREACHABLE, detail=_CLOSED)
    except (MalformedAnswerError, InvalidAvailabilityError) as error:
        return failed(Status.IO_ERROR, detail=str(error))


async def _uncancelled_by_channel(ask: Awaitable[ReplyT], failed: Failed[ReplyT]) -> ReplyT:
    # A call on a closing channel ends as if this task had been cancelled, which is only true if a caller cancelled it.
    try:
        return await ask
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return failed(Status.UNREACHABLE, detail=_CLOSED)
