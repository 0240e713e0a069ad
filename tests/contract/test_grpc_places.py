"""Streams of adds and of health checks, which last as long as their connections, occupy no place for requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bookie.server.grpc.server import GrpcServer
from bookie.wire import bookie_pb2 as pb
from bookie.wire import bookie_pb2_grpc as rpc
from tests.worlds.cluster import open_bookie

REQUESTS = 2
REQUEST = pb.AddRequest(batches=[pb.AddBatch(request_id=1, ledger_id=1, master_key=b"k" * 20, entries=[b"no entry"])])


@dataclass
class Served:
    """A bookie with few places, and a channel to it."""

    channel: grpc.aio.Channel
    stub: rpc.BookieStub

    def add(self) -> grpc.aio.StreamStreamCall[pb.AddRequest, pb.AddResponse]:
        stream: grpc.aio.StreamStreamCall[pb.AddRequest, pb.AddResponse] = self.stub.Add()
        return stream

    async def refusal_of_add(self) -> grpc.StatusCode:
        return await self.add().code()

    async def info(self) -> pb.InfoResponse:
        found: pb.InfoResponse = await self.stub.Info(pb.InfoRequest())
        return found


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    bookie = await open_bookie()
    server = GrpcServer(concurrent_requests_max=REQUESTS)
    port = server.bind("127.0.0.1", 0, None)
    await server.start(bookie.service)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Served(channel, rpc.BookieStub(channel))  # type: ignore[no-untyped-call]
    await server.stop()
    await bookie.storage.abort()


async def streams(served: Served, count: int) -> list[grpc.aio.StreamStreamCall[pb.AddRequest, pb.AddResponse]]:
    """Open add streams, and return them when the bookie has all of them."""
    found = [served.add() for _ in range(count)]
    for stream in found:
        await stream.write(REQUEST)
        await stream.read()
    return found


async def test_idle_add_streams_do_not_use_request_slots(served: Served) -> None:
    held = await streams(served, 4 * REQUESTS)
    assert (await served.info()).version
    for stream in held:
        stream.cancel()


@pytest.mark.parametrize("bound", ["ADD_STREAMS_MAX", "_ADD_STREAMS_OF_PEER_MAX"])
async def test_add_streams_are_bounded_in_total_and_for_each_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(f"bookie.server.grpc.servicer.{bound}", 3)
    held = await streams(served, 3)
    assert await served.refusal_of_add() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await held[0].done_writing()
    assert await held[0].code() is grpc.StatusCode.OK
    (again,) = await streams(served, 1)
    for stream in (*held[1:], again):
        stream.cancel()


async def test_health_watches_are_bounded_and_do_not_use_request_slots(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.wire.health.WATCHES_MAX", 4 * REQUESTS)
    stub = health_pb2_grpc.HealthStub(served.channel)
    watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(4 * REQUESTS)]
    for watch in watches:
        await watch.read()
    assert await stub.Watch(health_pb2.HealthCheckRequest()).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await served.info()).version
    for watch in watches:
        watch.cancel()
