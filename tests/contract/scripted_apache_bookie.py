"""A bookie of Apache's protocol with scripted answers: the test receives each request and answers it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bookie.model.errors import TransientError
from bookie.model.ids import NO_ENTRY, BookieId, LedgerId
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.framing import FrameSplitter, framed
from bookie.wire.apache.transport import ApacheTransport
from bookie.wire.port import AddBatch, Status
from bookie.wire.requests import Info
from bookie.wire.resolver import APACHE_PROTOCOL, BookieAddress
from tests.deadlines import STATE_S
from tests.worlds.entries import packed_entry

BOOKIE = BookieId("b:1")
LEDGER = LedgerId(7)
KEY = b"k" * 20
DEADLINE_S = STATE_S
"""A deadline that a passing test never reaches."""
SOON_S = 0.2
"""The timeout of calls that are expected to time out."""
AFTER_AN_ANSWER_S = 1.0
"""The timeout of calls that are expected to time out, but only after a first answer."""


def entry(entry_id: int, payload: bytes = b"payload", ledger_id: int = LEDGER, lac: int = NO_ENTRY) -> bytes:
    return packed_entry(ledger_id, entry_id, payload, last_add_confirmed=lac)


def batch(*entry_ids: int, payload: bytes = b"x", ledger_id: int = LEDGER, is_recovery: bool = False) -> AddBatch:
    entries = [entry(entry_id, payload, ledger_id) for entry_id in entry_ids]
    return AddBatch(LedgerId(ledger_id), KEY, entries, is_recovery)


FRAME_BYTES_TAKEN = 1 << 25


class Client(asyncio.Protocol):
    """One connection to the scripted bookie."""

    def __init__(self, bookie: ScriptedApacheBookie) -> None:
        self._bookie = bookie
        self._splitter = FrameSplitter(FRAME_BYTES_TAKEN)
        self.transport: asyncio.Transport | None = None
        self.is_lost = asyncio.Event()
        self._early: list[bytes] | None = None  # data that arrives before ``start_tls`` returns

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._bookie.clients.append(self)
        if self._bookie.is_deaf:
            transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost.set()

    def data_received(self, data: bytes) -> None:
        if self._early is not None:
            self._early.append(data)
            return
        for body in self._splitter.feed(data):
            received = Received(pb.Request.FromString(body), self)
            if self._bookie.react is None:
                self._bookie.requests.put_nowait(received)
            else:
                self._bookie.react(received)

    def send(self, *bodies: bytes) -> None:
        self.send_raw(b"".join(map(framed, bodies)))

    def send_raw(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def disconnect(self) -> None:
        assert self.transport is not None
        self.transport.close()

    def stop_listening(self) -> None:
        """Ignore all further data."""
        self._early = []

    async def encrypt(self, context: ssl.SSLContext) -> None:
        assert self.transport is not None
        loop, self._early = asyncio.get_running_loop(), []
        self.transport = await loop.start_tls(self.transport, self, context, server_side=True)
        early, self._early = self._early, None
        for data in early:
            self.data_received(data)


@dataclass
class Received:
    """One request, and the methods that answer it."""

    request: pb.Request
    client: Client = field(repr=False)

    @property
    def operation(self) -> int:
        return self.request.header.operation

    def response(self, status: int = pb.EOK, *, txn_id: int | None = None, operation: int | None = None) -> pb.Response:
        """The outer part of an answer."""
        header = pb.BKPacketHeader(
            version=pb.VERSION_THREE,
            operation=operation or self.operation,  # type: ignore[arg-type]
            txnId=self.request.header.txnId if txn_id is None else txn_id,
        )
        return pb.Response(header=header, status=status)  # type: ignore[arg-type]

    def answer(self, status: int = pb.EOK, **content: object) -> None:
        """Answer with the content of the operation, under the ids of the request."""
        self.client.send(self.answered(status, **content).SerializeToString())

    def answered(self, status: int = pb.EOK, **content: object) -> pb.Response:
        response = self.response(status)
        kind, asked = _KINDS[self.operation], None
        for field_, value in self.request.ListFields():
            if field_.name not in ("header", "requestContext"):
                asked = value
        fields: dict[str, object] = {"status": status}
        for name in ("ledgerId", "entryId"):
            if asked is not None and name in asked.DESCRIPTOR.fields_by_name and name in _fields(kind, response):
                fields[name] = getattr(asked, name)
        getattr(response, kind).CopyFrom(type(getattr(response, kind))(**(fields | content)))
        return response

    def refuse(self, status: int) -> None:
        """Answer only with a status."""
        self.client.send(self.response(status).SerializeToString())


_KINDS: dict[int, str] = {
    pb.READ_ENTRY: "readResponse",
    pb.ADD_ENTRY: "addResponse",
    pb.WRITE_LAC: "writeLacResponse",
    pb.READ_LAC: "readLacResponse",
    pb.GET_BOOKIE_INFO: "getBookieInfoResponse",
    pb.FORCE_LEDGER: "forceLedgerResponse",
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: "getListOfEntriesOfLedgerResponse",
}


def _fields(kind: str, response: pb.Response) -> list[str]:
    return list(getattr(response, kind).DESCRIPTOR.fields_by_name)


class ScriptedApacheBookie:
    """A bookie that by default does not answer: requests wait in ``requests`` until the test answers them."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Received] = asyncio.Queue()
        self.react: Callable[[Received], None] | None = None
        """If set, it answers requests immediately, and they are not put into the queue."""
        self.is_deaf = False
        """Whether new connections are accepted but never read."""
        self.clients: list[Client] = []
        self.port = 0

    async def next(self, operation: int) -> Received:
        received = await self.requests.get()
        assert received.operation == operation, received.request
        return received


async def connect(transport: ApacheTransport, bookie: ScriptedApacheBookie) -> None:
    """Make a round trip.

    Call this before a call that is expected to time out, which might not be sent if it had to connect first.
    """
    info = asyncio.create_task(transport.ask(BOOKIE, Info(), DEADLINE_S))
    (await bookie.next(pb.GET_BOOKIE_INFO)).answer()
    assert (await info).status is Status.OK


@asynccontextmanager
async def scripted_bookie() -> AsyncIterator[ScriptedApacheBookie]:
    bookie = ScriptedApacheBookie()
    server = await asyncio.get_running_loop().create_server(lambda: Client(bookie), "127.0.0.1", 0)
    bookie.port = server.sockets[0].getsockname()[1]
    yield bookie
    server.close()
    for client in bookie.clients:
        if client.transport is not None:
            client.transport.abort()
    await server.wait_closed()


class Directory:
    """A resolver whose answers the test sets."""

    def __init__(self, port: int) -> None:
        self.address: BookieAddress | None = BookieAddress("127.0.0.1", port, APACHE_PROTOCOL)
        self.error: TransientError | None = None

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        if self.error is not None:
            raise self.error
        return self.address
