"""One bookie and a transport to it: in memory, or over gRPC or Apache's protocol on the loopback.

Both use the same request handling on the same storage, on disks in memory whose faults produce every status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio

from bookie.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from bookie.model.packet import pack_lac
from bookie.server.apache.listener import ApacheListener
from bookie.server.grpc.server import GrpcServer
from bookie.server.service import BookieService, ServiceLimits
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation, yield_control
from bookie.storage.port import DiskError
from bookie.storage.store import LedgerStorage
from bookie.wire import bookie_pb2_grpc as rpc
from bookie.wire.apache.listing import LIST_SILENCE_S
from bookie.wire.apache.transport import BULK_ENTRIES_MIN, ApacheTransport
from bookie.wire.grpc.transport import GrpcTransport
from bookie.wire.memory import MemoryNetwork, MemoryTransport
from bookie.wire.port import AddBatch, AddReply, EntryResult, ReadReply, Status, Transport
from bookie.wire.requests import Read
from bookie.wire.resolver import APACHE_PROTOCOL, GRPC_PROTOCOL, BookieAddress
from tests.deadlines import STATE_S
from tests.worlds.cluster import open_bookie
from tests.worlds.entries import DIGEST, packed_entry

BOOKIE = BookieId("bookie-1")
LEDGER = LedgerId(7)
KEY = b"k" * 20
INCARNATION = "0b5c7e9e-0000-4000-8000-000000000001"
DEADLINE_S = STATE_S
"""A deadline that a passing test never reaches."""
SOON_S = 0.2
"""The timeout of calls that are expected to time out."""


def reported(kind: str, status: Status) -> Status:
    """Return how a bookie's status arrives: Apache's protocol has fewer, and sends an I/O error for the others."""
    has_no_word = status in (Status.CORRUPT, Status.SHUTTING_DOWN)
    return Status.IO_ERROR if kind == "apache" and has_no_word else status


def outcome(reply: ReadReply) -> Status:
    """Return the status of a read of one entry: that of the reply, or that of the entry."""
    return reply.status if reply.status is not Status.OK else reply.results[0].status


class StuckDisk:
    """A ``before`` hook that makes journal writes hang until ``release``."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self._may_go = asyncio.Event()

    async def __call__(self, operation: Operation, path: str) -> None:
        if operation in (Operation.APPEND, Operation.SYNC):
            self.has_begun.set()
            await self._may_go.wait()

    def release(self) -> None:
        self._may_go.set()


async def broken_disk(operation: Operation, path: str) -> None:
    if operation in (Operation.APPEND, Operation.SYNC, Operation.INDEX_READ):
        raise DiskError("the disk is broken")


class Looked:
    """A ``before`` hook that detects a request for the last entry."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()

    async def __call__(self, operation: Operation, path: str) -> None:
        if operation is Operation.INDEX_READ:
            self.has_begun.set()
        await yield_control(operation, path)


@dataclass
class Directory:
    """A resolver whose answers the test sets."""

    address: BookieAddress | None = None

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        return self.address if bookie == BOOKIE else None


@dataclass
class TransportWorld:
    """One bookie, and a transport to it."""

    kind: str
    transport: Transport
    directory: Directory
    service: BookieService
    storage: LedgerStorage
    journal: MemoryDisk
    ledgers: MemoryDisk
    index: MemoryIndex
    stop_listening: Callable[[], Awaitable[None]]
    stuck: list[StuckDisk] = field(default_factory=list)

    def block_journal(self) -> StuckDisk:
        stuck = StuckDisk()
        self.journal.before = stuck
        self.stuck.append(stuck)
        return stuck

    async def add(self, *entries: bytes, is_recovery: bool = False, key: bytes = KEY) -> AddReply:
        return await self.transport.add(BOOKIE, AddBatch(LEDGER, key, entries, is_recovery), DEADLINE_S)

    async def read(self, *entry_ids: int, fence_key: bytes | None = None) -> ReadReply:
        wanted = [EntryId(entry_id) for entry_id in entry_ids]
        return await self.transport.ask(BOOKIE, Read(LEDGER, wanted, fence_key=fence_key), DEADLINE_S)


def entry(entry_id: int, payload: bytes = b"payload", *, lac: int = NO_ENTRY) -> bytes:
    return packed_entry(LEDGER, entry_id, payload, last_add_confirmed=lac)


def lac(last_add_confirmed: int) -> bytes:
    return pack_lac(DIGEST, LEDGER, last_add_confirmed)


def ok(*entry_ids: int) -> list[EntryResult]:
    return [EntryResult(EntryId(entry_id), Status.OK, entry(entry_id)) for entry_id in entry_ids]


@asynccontextmanager
async def a_world(kind: str) -> AsyncIterator[TransportWorld]:
    """Run a world; ``kind`` is "memory", "grpc", "apache", or "apache in bulk" (a second connection for any read)."""
    is_bulk, kind = kind == "apache in bulk", kind.removesuffix(" in bulk")
    limits = ServiceLimits(add_bytes_max=10_000_000, lac_waiters_max=3)
    bookie = await open_bookie(incarnation=INCARNATION, limits=limits)
    service, storage = bookie.service, bookie.storage
    directory = Directory()
    transport: Transport
    stop_listening: Callable[[], Awaitable[None]]
    if kind == "grpc":
        server = GrpcServer(concurrent_requests_max=100)
        port = server.bind("127.0.0.1", 0, None)
        await server.start(service)
        stop_listening = server.stop
        transport = GrpcTransport(directory, is_plaintext=True)
    elif kind == "apache":
        listener = ApacheListener()
        port = listener.bind("127.0.0.1", 0, None)
        await listener.start(service)
        stop_listening = listener.stop
        bulk_entries_min = 1 if is_bulk else BULK_ENTRIES_MIN
        transport = ApacheTransport(directory, list_silence_s=LIST_SILENCE_S, bulk_entries_min=bulk_entries_min)
    else:
        port = 3181
        network = MemoryNetwork()
        network.listen("127.0.0.1", port, service)
        transport = MemoryTransport(directory, network)

        async def stop() -> None:
            network.stop_listening("127.0.0.1", port)

        stop_listening = stop

    protocol = APACHE_PROTOCOL if kind == "apache" else GRPC_PROTOCOL
    directory.address = BookieAddress("127.0.0.1", port, protocol, INCARNATION)
    world = TransportWorld(
        kind, transport, directory, service, storage, bookie.journal, bookie.ledgers, bookie.index, stop_listening
    )
    yield world
    for stuck in world.stuck:
        stuck.release()
    await transport.close()
    await stop_listening()
    assert await service.drain(DEADLINE_S)
    await storage.abort()


@asynccontextmanager
async def served(servicer: rpc.BookieServicer) -> AsyncIterator[GrpcTransport]:
    """Serve ``servicer`` over gRPC in place of a bookie, and yield a transport to it."""
    server = grpc.aio.server()
    rpc.add_BookieServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    transport = GrpcTransport(Directory(BookieAddress("127.0.0.1", port)), is_plaintext=True)
    try:
        yield transport
    finally:
        await transport.close()
        await server.stop(None)
