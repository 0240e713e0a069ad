"""The gRPC transport and a bookie whose host has a new address, as a restarted pod of Kubernetes has."""

# ruff: noqa: N802  # method names of the service are gRPC's

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc.aio
import pytest

from bookie.model.ids import BookieId, LedgerId
from bookie.wire import bookie_pb2 as pb
from bookie.wire import bookie_pb2_grpc as rpc
from bookie.wire.grpc import transport as transport_module
from bookie.wire.grpc.transport import GrpcTransport
from bookie.wire.port import AddBatch, Status
from bookie.wire.requests import ReadLac
from bookie.wire.resolver import BookieAddress
from tests.deadlines import STATE_S

BOOKIE = BookieId("bk-0.test:3181")
LEDGER = LedgerId(7)
REQUEST = ReadLac(LEDGER)
FOUND_S = 20.0
"""Longer than a second, and shorter than the 30 s of gRPC's default."""
FORMER, PRESENT = "127.0.0.2", "127.0.0.3"


class NameServer(asyncio.DatagramProtocol):
    """Answers every question about an IPv4 address with ``address``."""

    def __init__(self) -> None:
        self.address = FORMER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        end = data.index(0, 12) + 5
        kind = int.from_bytes(data[end - 4 : end - 2])
        address = struct.pack(">HHHIH4B", 0xC00C, 1, 1, 5, 4, *map(int, self.address.split(".")))
        answer = address if kind == 1 else b""
        head = struct.pack(">HHHHH", 0x8580, 1, 1 if answer else 0, 0, 0)
        self.transport.sendto(data[:2] + head + data[12:end] + answer, addr)


class Disks(rpc.BookieServicer):
    """A bookie with the disks of one incarnation. It records the client's address of each request."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.peers: list[str] = []

    def _status(self, incarnation: str) -> pb.Status:
        return pb.STATUS_OK if incarnation == self.incarnation else pb.STATUS_WRONG_INCARNATION

    async def ReadLac(self, request: pb.ReadLacRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.LacResponse:
        self.peers.append(context.peer())
        return pb.LacResponse(status=self._status(request.incarnation))

    async def Add(self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        while isinstance(message := await context.read(), pb.AddRequest):
            self.peers.append(context.peer())
            for batch in message.batches:
                ack = pb.AddAck(request_id=batch.request_id, ledger_id=batch.ledger_id)
                ack.status = self._status(message.incarnation)
                await context.write(pb.AddResponse(acks=[ack]))


class Hosts:
    """Servers at two addresses with the same port, and the registration of a bookie that names its host."""

    def __init__(self) -> None:
        self.port = 0
        self._servers: list[grpc.aio.Server] = []

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        return BookieAddress("bk-0.test", self.port, incarnation="disks of bk-0")

    async def serve(self, address: str, disks: Disks) -> grpc.aio.Server:
        server = grpc.aio.server()
        rpc.add_BookieServicer_to_server(disks, server)  # type: ignore[no-untyped-call]
        self.port = server.add_insecure_port(f"{address}:{self.port}")
        await server.start()
        self._servers.append(server)
        return server

    async def stop(self) -> None:
        for server in self._servers:
            await server.stop(None)


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NameServer]:
    """A name server that all channels of this test use."""
    loop, open_channel = asyncio.get_running_loop(), grpc.aio.insecure_channel
    socket, names = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    host, port = socket.get_extra_info("sockname")
    monkeypatch.setattr(
        grpc.aio, "insecure_channel", lambda target, **given: open_channel(f"dns://{host}:{port}/{target}", **given)
    )
    yield names
    socket.close()


@pytest.fixture
async def hosts() -> AsyncIterator[Hosts]:
    made = Hosts()
    yield made
    await made.stop()


@pytest.fixture
async def transport(hosts: Hosts) -> AsyncIterator[GrpcTransport]:
    made = GrpcTransport(hosts, is_plaintext=True)
    yield made
    await made.close()


async def test_a_bookie_that_restarts_with_another_address_is_soon_found(
    hosts: Hosts, names: NameServer, transport: GrpcTransport
) -> None:
    bookie = Disks("disks of bk-0")
    server = await hosts.serve(FORMER, bookie)
    assert (await transport.ask(BOOKIE, REQUEST, STATE_S)).status is Status.OK
    await server.stop(None)
    names.address = PRESENT
    await hosts.serve(PRESENT, bookie)
    async with asyncio.timeout(FOUND_S):
        while (await transport.ask(BOOKIE, REQUEST, STATE_S)).status is not Status.OK:
            pass


@pytest.mark.parametrize("request_kind", ["read", "add", "add to named disks"])
async def test_a_connection_to_another_bookie_at_the_former_address_is_replaced(
    hosts: Hosts, names: NameServer, transport: GrpcTransport, monkeypatch: pytest.MonkeyPatch, request_kind: str
) -> None:
    monkeypatch.setattr(transport_module, "_RECONNECT_INTERVAL_S", 0.0)
    await hosts.serve(FORMER, Disks("disks of bk-1"))
    await hosts.serve(PRESENT, Disks("disks of bk-0"))

    async def status() -> Status:
        if request_kind == "read":
            return (await transport.ask(BOOKIE, REQUEST, STATE_S)).status
        named = "disks of bk-0" if request_kind == "add to named disks" else ""
        return (await transport.add(BOOKIE, AddBatch(LEDGER, b"key", (b"entry",), incarnation=named), STATE_S)).status

    assert await status() is Status.WRONG_INCARNATION
    names.address = PRESENT
    assert await status() is Status.OK


async def test_a_connection_is_kept_if_only_a_request_named_other_disks(
    hosts: Hosts, names: NameServer, transport: GrpcTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "_RECONNECT_INTERVAL_S", 0.0)
    bookie = Disks("disks of bk-0")
    await hosts.serve(FORMER, bookie)
    add = AddBatch(LEDGER, b"key", (b"entry",), incarnation="former disks")
    assert (await transport.add(BOOKIE, add, STATE_S)).status is Status.WRONG_INCARNATION
    assert (await transport.ask(BOOKIE, REQUEST, STATE_S)).status is Status.OK
    assert len(set(bookie.peers)) == 1


async def test_connections_to_other_disks_are_replaced_at_most_once_per_second(
    hosts: Hosts, names: NameServer, transport: GrpcTransport
) -> None:
    other = Disks("disks of bk-1")
    await hosts.serve(FORMER, other)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    for _ in range(50):
        assert (await transport.ask(BOOKIE, REQUEST, STATE_S)).status is Status.WRONG_INCARNATION
    assert len(set(other.peers)) <= loop.time() - begun_s + 1
