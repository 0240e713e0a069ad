"""The first request to a bookie with a slow connection: a lost packet, a pause, a busy machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bookie.wire import bookie_pb2 as pb
from bookie.wire.grpc.transport import GrpcTransport
from bookie.wire.port import Status
from bookie.wire.requests import ReadLac
from bookie.wire.resolver import BookieAddress
from tests.contract.test_grpc_transport_misbehaviour import (
    BOOKIE,
    DEADLINE_S,
    LEDGER,
    Directory,
    Start,
    bookie,
    directory,
    start,
    transport,
)

__all__ = ["bookie", "directory", "start", "transport"]

LOST_PACKET_S = 1.5
"""TCP repeats the first packet of a connection after a second."""


async def pumped(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()


@asynccontextmanager
async def hesitant(port: int) -> AsyncIterator[int]:
    """Run a proxy for ``port`` that delays each new connection; yield its port."""
    is_over = asyncio.Event()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(LOST_PACKET_S)
        onward, back = await asyncio.open_connection("127.0.0.1", port)
        pumps = [asyncio.create_task(pumped(reader, back)), asyncio.create_task(pumped(onward, writer))]
        await is_over.wait()
        for pump in pumps:
            pump.cancel()
        for end in (back, writer):
            end.close()

    server = await asyncio.start_server(relay, "127.0.0.1")
    async with server:
        yield server.sockets[0].getsockname()[1]
        is_over.set()


async def test_connecting_may_take_longer_than_the_delay_of_one_lost_packet(
    start: Start, directory: Directory, transport: GrpcTransport
) -> None:
    there = await start()
    there.lac = pb.LacResponse()
    async with hesitant(there.port) as port:
        directory.address = BookieAddress("127.0.0.1", port)
        reply = await transport.ask(BOOKIE, ReadLac(LEDGER), DEADLINE_S)
        assert reply.status is Status.OK, reply.detail
