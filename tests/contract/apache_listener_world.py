"""A listener of Apache's protocol on a real socket, with a bookie in memory, and a client that sends frames."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.listener import ApacheListener
from bookie.server.service import BookieIdentity, BookieService
from bookie.storage.disks.memory import MemoryDisk
from bookie.storage.store import LedgerStorage
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.framing import LENGTH_SIZE, framed
from bookie.wire.handler import BookieHandler
from bookie.wire.port import AddBatch, AddReply
from bookie.wire.security import TlsSettings
from tests.deadlines import STATE_S
from tests.worlds.cluster import open_bookie

DEADLINE_S = STATE_S
"""A deadline that a passing test never reaches."""


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *messages: pb.Request | bytes) -> None:
        """Write frames, without waiting."""
        bodies = [item if isinstance(item, bytes) else item.SerializeToString() for item in messages]
        self.writer.write(b"".join(map(framed, bodies)))

    async def body(self) -> bytes:
        """Return the body of the next answer."""
        async with asyncio.timeout(DEADLINE_S):
            length = int.from_bytes(await self.reader.readexactly(LENGTH_SIZE), "big")
            return await self.reader.readexactly(length)

    async def answer(self) -> pb.Response:
        return pb.Response.FromString(await self.body())

    async def answers(self, count: int) -> Sequence[pb.Response]:
        return [await self.answer() for _ in range(count)]

    async def ask(self, message: pb.Request) -> pb.Response:
        self.send(message)
        return await self.answer()

    async def is_closed(self) -> bool:
        """Wait for the end of the connection, and drop all bytes received until then."""
        await self.received()
        return True

    async def received(self) -> int:
        """Wait for the end of the connection, and return the number of bytes received until then."""
        count = 0
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionError):
                while data := await self.reader.read(1 << 16):
                    count += len(data)
        return count

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Do the TLS handshake, as after an accepted START_TLS."""
        await self.writer.start_tls(context, server_hostname="127.0.0.1", ssl_handshake_timeout=DEADLINE_S)

    def close(self) -> None:
        self.writer.transport.abort()


class HeldAdds(BookieService):
    """A service whose adds wait until ``may_go`` is set."""

    def __init__(self, storage: LedgerStorage, ledgers: MemoryDisk, identity: BookieIdentity) -> None:
        super().__init__(storage, ledgers, identity)
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.batches: list[AddBatch] = []
        self.has_begun = asyncio.Event()

    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        self.batches.append(batch)
        self.has_begun.set()
        await self.may_go.wait()
        return await super().add(incarnation, batch)


class Listening:
    """The running listener."""

    def __init__(self, listener: ApacheListener, port: int, service: HeldAdds) -> None:
        self.listener, self.port, self.service = listener, port, service
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client


@asynccontextmanager
async def listening(
    limits: ListenerLimits | None = None, tls: TlsSettings | None = None, handler: BookieHandler | None = None
) -> AsyncIterator[Listening]:
    bookie = await open_bookie()
    service = HeldAdds(bookie.storage, bookie.ledgers, BookieIdentity("uuid", "1"))
    listener = ApacheListener(limits)
    world = Listening(listener, listener.bind("127.0.0.1", 0, tls), service)
    await listener.start(handler or service)
    try:
        yield world
    finally:
        service.may_go.set()
        for client in world.clients:
            client.close()
        await listener.stop()
        await bookie.storage.abort()
