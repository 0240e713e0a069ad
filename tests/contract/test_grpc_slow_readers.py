"""Clients with large requests that read no answers: a real gRPC server holds a bounded part of their answers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest

from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.server.grpc.servicer import BookieServicer
from bookie.server.grpc.unsent import UnsentLimits
from bookie.wire import bookie_pb2 as pb
from bookie.wire import bookie_pb2_grpc as rpc
from bookie.wire.grpc.transport import GrpcTransport
from bookie.wire.handler import BookieHandler
from bookie.wire.port import (
    READ_BYTES_MAX,
    AddBatch,
    AddReply,
    EntryResult,
    FenceReply,
    LacReply,
    ReadReply,
    Request,
    Status,
)
from bookie.wire.requests import Fence, Read, ReadLast
from bookie.wire.resolver import BookieAddress
from tests.deadlines import STATE_S

BOOKIE, LEDGER = BookieId("b:1"), LedgerId(7)
SERVICE = pb.DESCRIPTOR.services_by_name["Bookie"].full_name
PACKET = bytes(1 << 20)
LIMITS = UnsentLimits(taken_within_s=STATE_S)
"""The limits of a bookie, but no call is ended during a test."""


H2_DATA, H2_HEADERS, H2_SETTINGS = 0, 1, 4
H2_END_STREAM, H2_END_HEADERS = 1, 4
NO_WINDOW = struct.pack(">HI", 4, 0)


def h2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2 (RFC 9113)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def h2_headers(method: str) -> bytes:
    """Return the headers of a call, as literals without an index (RFC 7541)."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/{SERVICE}/{method}",
        ":authority": "bookie",
        "content-type": "application/grpc",
        "te": "trailers",  # codespell:ignore te
    }
    return b"".join(b"\0" + b"".join(bytes((len(word),)) + word.encode() for word in field) for field in fields.items())


class LargeEntries(BookieHandler):
    """Returns 1 MiB for each requested entry."""

    def __init__(self) -> None:
        self.read_count = 0

    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        raise AssertionError("these tests send only reads")

    async def answer(self, incarnation: str, request: Request[Any]) -> Any:
        entry = EntryResult(EntryId(0), Status.OK, PACKET)
        match request:
            case Read():
                self.read_count += 1
                return ReadReply(Status.OK, [replace(entry, entry_id=entry_id) for entry_id in request.entry_ids])
            case ReadLast():
                return ReadReply(Status.OK, [entry])
            case Fence():
                return FenceReply(Status.OK, entry)
            case _:
                return LacReply(Status.OK, last_entry=entry, entry=entry)


class Server:
    """A server and its clients."""

    def __init__(self, stack: AsyncExitStack, limits: UnsentLimits) -> None:
        self.handler = LargeEntries()
        self.servicer = BookieServicer(self.handler, unsent=limits)
        self.most_bytes = 0
        self._stack = stack
        self._server = grpc.aio.server()
        rpc.add_BookieServicer_to_server(self.servicer, self._server)  # type: ignore[no-untyped-call]
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.transport = GrpcTransport(self, is_plaintext=True)

    async def start(self) -> None:
        await self._server.start()
        self._stack.push_async_callback(self._server.stop, None)
        self._stack.push_async_callback(self.transport.close)

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        return BookieAddress("127.0.0.1", self.port)

    async def slow_reads(self, count: int, ledgers: int = 0) -> AsyncExitStack:
        """Start reads of 8 MiB on a separate connection, without reading the answers; closing it ends them.

        With ``ledgers``, each call reads ``ledgers`` MiB of each of ``ledgers`` ledgers.
        """
        mine = await self._stack.enter_async_context(AsyncExitStack())
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = await mine.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=options))
        request = pb.ReadRequest(ledger_id=LEDGER, entry_ids=range(8))
        stub = rpc.BookieStub(channel)  # type: ignore[no-untyped-call]
        several = pb.ReadLedgersRequest(
            reads=[pb.LedgerRead(ledger_id=each, entry_ids=range(ledgers)) for each in range(ledgers)]
        )
        calls = [stub.ReadLedgers(several) if ledgers else stub.Read(request) for _ in range(count)]
        mine.callback(calls.clear)  # a call without a reference is cancelled
        return mine

    async def stuck_calls(self, method: str, request: Any, count: int) -> asyncio.StreamWriter:
        """Start calls on a connection whose client has no window, so it receives no byte of an answer."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + h2_frame(H2_SETTINGS, 0, 0, NO_WINDOW))
        message: bytes = request.SerializeToString()
        for stream in range(1, 2 * count, 2):
            writer.write(h2_frame(H2_HEADERS, H2_END_HEADERS, stream, h2_headers(method)))
            writer.write(h2_frame(H2_DATA, H2_END_STREAM, stream, b"\0" + len(message).to_bytes(4, "big") + message))
        return writer

    async def until(self, is_reached: Callable[[int], bool]) -> None:
        """Wait until the condition holds for the unsent bytes, and record their maximum."""
        async with asyncio.timeout(STATE_S):
            while not is_reached(self.servicer.unsent.bytes):
                self._note_bytes()
                await asyncio.sleep(0)

    def _note_bytes(self) -> None:
        self.most_bytes = max(self.most_bytes, self.servicer.unsent.bytes)

    async def read(self) -> Status:
        self._note_bytes()
        return (await self.transport.ask(BOOKIE, Read(LEDGER, [EntryId(0)]), STATE_S)).status


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def test_the_pending_answers_of_five_hundred_slow_readers_are_bounded(stack: AsyncExitStack) -> None:
    server = Server(stack, LIMITS)
    await server.start()
    readers = [await server.slow_reads(25) for _ in range(20)]
    async with asyncio.timeout(STATE_S):
        while await server.read() is Status.OK:  # the buffers of the connections hold some answers, so request more
            readers.append(await server.slow_reads(25))
    assert server.most_bytes <= LIMITS.total_bytes_max + LIMITS.reads_max * READ_BYTES_MAX  # all answers together: 4 GB
    for reader in readers:
        await reader.aclose()
    await server.until(lambda unsent: unsent == 0)
    assert await server.read() is Status.OK


async def test_a_slow_connection_does_not_delay_others(stack: AsyncExitStack) -> None:
    server = Server(stack, LIMITS)
    await server.start()
    await server.slow_reads(100)
    await server.until(lambda unsent: unsent >= LIMITS.connection_bytes_max)
    assert await server.read() is Status.OK
    assert server.servicer.unsent.bytes <= LIMITS.connection_bytes_max + LIMITS.reads_max * READ_BYTES_MAX


async def test_answers_about_several_ledgers_are_bounded_as_well(stack: AsyncExitStack) -> None:
    server = Server(stack, LIMITS)
    await server.start()
    reader = await server.slow_reads(40, ledgers=8)
    await server.until(lambda unsent: unsent >= LIMITS.connection_bytes_max)
    assert await server.read() is Status.OK
    assert server.servicer.unsent.bytes <= LIMITS.connection_bytes_max + LIMITS.reads_max * READ_BYTES_MAX
    await reader.aclose()
    await server.until(lambda unsent: unsent == 0)


async def test_an_unread_answer_about_several_ledgers_is_dropped_after_its_deadline(stack: AsyncExitStack) -> None:
    server = Server(stack, UnsentLimits(taken_within_s=0.1))
    await server.start()
    await server.slow_reads(1, ledgers=8)
    await server.until(lambda unsent: unsent > 0)
    await server.until(lambda unsent: unsent == 0)
    assert await server.read() is Status.OK


async def test_an_unread_answer_is_dropped_after_its_deadline(stack: AsyncExitStack) -> None:
    server = Server(stack, UnsentLimits(taken_within_s=0.1))
    await server.start()
    await server.slow_reads(1)
    await server.until(lambda unsent: unsent > 0)
    await server.until(lambda unsent: unsent == 0)
    assert await server.read() is Status.OK


@pytest.mark.parametrize(
    ("method", "request_message", "packets"),
    [
        ("ReadLast", pb.ReadLastRequest(ledger_id=LEDGER), 1),
        ("Fence", pb.FenceRequest(ledger_id=LEDGER), 1),
        ("ReadLac", pb.ReadLacRequest(ledger_id=LEDGER), 2),
        ("WaitLac", pb.WaitLacRequest(ledger_id=LEDGER), 2),
    ],
)
async def test_unread_answers_about_last_entries_are_bounded_until_their_client_disconnects(
    stack: AsyncExitStack, method: str, request_message: Any, packets: int
) -> None:
    server = Server(stack, UnsentLimits(connection_bytes_max=4 << 20, reads_max=2))
    await server.start()
    client = await server.stuck_calls(method, request_message, 20)
    await server.until(lambda unsent: unsent >= 4 << 20)
    for _ in range(20):
        assert await server.read() is Status.OK
    assert server.most_bytes <= (4 + 2 * packets) << 20
    client.close()
    await server.until(lambda unsent: unsent == 0)


async def test_a_client_that_leaves_an_answer_unread_gets_no_others(stack: AsyncExitStack) -> None:
    """gRPC still holds a message of the dropped answer."""
    server = Server(stack, UnsentLimits(connection_bytes_max=1, taken_within_s=0.1, reads_max=1))
    await server.start()
    client = await server.stuck_calls("Read", pb.ReadRequest(ledger_id=LEDGER, entry_ids=[0]), 3)
    await server.until(lambda unsent: unsent > 0)
    await server.until(lambda unsent: unsent == 0)
    assert await server.read() is Status.OK
    assert server.handler.read_count == 2
    client.close()
