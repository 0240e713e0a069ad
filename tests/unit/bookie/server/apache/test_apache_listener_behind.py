"""Adds over Apache's protocol while the ledger disk is behind: they wait, but not without limits. Virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bookie.model.ids import EntryId
from bookie.server import metrics as names
from bookie.server.apache.answering import RequestAnswerer
from bookie.server.apache.connection import ApacheConnection
from bookie.server.apache.grouping import GROUP_OVERHEAD_BYTES
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.room import SharedRoom
from bookie.server.measured import MeasuredService
from bookie.server.metrics import bookie_metrics
from bookie.storage.disks.memory import Operation, yield_control
from bookie.storage.port import DiskError
from bookie.storage.settings import StorageSettings
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.framing import FrameSplitter, framed
from bookie.wire.port import Status
from tests.worlds.apache_listener import KEY, LEDGER, add, entry, read
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import MemoryBookie, open_bookie
from tests.worlds.socketless import SocketlessTransport
from tests.worlds.virtual_time import in_virtual_time, when

CACHE_BYTES = 4000
SIZE = 500
COUNT = 40
"""The number of adds of this size that exceeds both caches."""
LIMITS = ListenerLimits()


class Client(SocketlessTransport):
    """A connection without a socket."""

    def __init__(self, world: SlowDisk) -> None:
        super().__init__()
        self.answers: list[pb.Response] = []
        self._frames = FrameSplitter()
        self._protocol = ApacheConnection(
            world.answering, world.limits, world.room, None, lambda _: True, lambda _: None
        )
        self._protocol.connection_made(self)

    def send(self, *messages: pb.Request) -> None:
        self._protocol.data_received(b"".join(framed(message.SerializeToString()) for message in messages))

    async def answered(self, count: int) -> list[int]:
        await when(lambda: len(self.answers) >= count, seconds=60)
        return [answer.status for answer in self.answers]

    def end(self) -> None:
        self._protocol.connection_lost(None)

    def write(self, data: Any) -> None:
        self.answers += map(pb.Response.FromString, self._frames.feed(bytes(data)))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


class SlowDisk:
    """A bookie whose checkpoints end only after ``catch_up``, with its listener."""

    def __init__(self, bookie: MemoryBookie, limits: ListenerLimits) -> None:
        self.limits = limits
        self.bookie, self.metrics, clock = bookie, bookie_metrics("1"), VirtualClock()
        self.answering = RequestAnswerer(MeasuredService(bookie.service, self.metrics, clock), clock)
        self.room = SharedRoom.within(limits)
        self._may_write = asyncio.Event()
        bookie.index.before = self._before

    async def _before(self, operation: Operation, path: str) -> None:
        await yield_control(operation, path)
        if operation is Operation.INDEX_WRITE:
            await self._may_write.wait()

    def catch_up(self) -> None:
        self._may_write.set()

    async def fallen_behind(self) -> tuple[Client, int]:
        """Send adds until they have to wait. Return the connection and the number of answers."""
        client = Client(self)
        for number in range(COUNT):
            client.send(numbered(add(entry(number, size=SIZE)), number))
            await asyncio.sleep(0.01)
        assert 5 < len(client.answers) < COUNT - 10
        assert {answer.status for answer in client.answers} == {pb.EOK}
        return client, len(client.answers)

    async def stored(self) -> Sequence[EntryId]:
        """Return the stored entries."""
        ids = [EntryId(number) for number in range(COUNT)]
        reply = await self.bookie.storage.read(LEDGER, ids)
        return [result.entry_id for result in reply.results if result.status is Status.OK]

    def counted(self, status: str) -> float | None:
        return self.metrics.registry.get_sample_value(names.REQUESTS, {"operation": "add", "status": status})


def numbered(message: pb.Request, txn: int) -> pb.Request:
    message.header.txnId = txn
    return message


@asynccontextmanager
async def slow_disk(limits: ListenerLimits = LIMITS) -> AsyncIterator[SlowDisk]:
    bookie = await open_bookie(VirtualClock(), settings=StorageSettings(cache_bytes_max=CACHE_BYTES))
    world = SlowDisk(bookie, limits)
    try:
        yield world
    finally:
        world.catch_up()
        await bookie.storage.abort()


@in_virtual_time
async def test_adds_during_a_flush_beyond_the_caches_are_acknowledged_and_not_counted_as_refused() -> None:
    async with slow_disk() as world:
        client, _ = await world.fallen_behind()
        assert not client.is_paused
        await asyncio.sleep(LIMITS.add_wait_s - 1)
        world.catch_up()
        assert await client.answered(COUNT) == [pb.EOK] * COUNT
        assert [answer.header.txnId for answer in client.answers] == list(range(COUNT))
        assert await world.stored() == list(range(COUNT))
        assert world.counted("too_many_requests") == 0
        assert world.room.adds.held == 0


@in_virtual_time
async def test_a_read_is_answered_while_adds_of_its_connection_wait() -> None:
    async with slow_disk() as world:
        client, begun = await world.fallen_behind()
        client.send(read(0))
        await client.answered(begun + 1)
        assert client.answers[-1].readResponse.body == entry(0, size=SIZE)
        assert world.room.adds.held > 0


@in_virtual_time
async def test_a_flush_longer_than_the_limit_refuses_each_add_after_its_own_wait() -> None:
    async with slow_disk() as world:
        client, begun = await world.fallen_behind()
        await asyncio.sleep(LIMITS.add_wait_s - 1)
        assert len(client.answers) == begun
        statuses = await client.answered(COUNT)
        assert statuses[begun:] == [pb.ETOOMANYREQUESTS] * (COUNT - begun)
        assert world.counted("too_many_requests") == COUNT - begun
        world.catch_up()
        client.send(numbered(add(entry(0)), 0))
        assert (await client.answered(COUNT + 1))[-1] == pb.EOK


@in_virtual_time
async def test_adds_of_one_ledger_keep_their_order_when_there_is_room_again() -> None:
    async with slow_disk() as world:
        client, _ = await world.fallen_behind()
        world.catch_up()
        for number in range(COUNT, 3 * COUNT):
            client.send(numbered(add(entry(number, size=SIZE), is_recovery=bool(number % 2)), number))
            await asyncio.sleep(0)
        assert await client.answered(3 * COUNT) == [pb.EOK] * 3 * COUNT
        assert [answer.header.txnId for answer in client.answers] == list(range(3 * COUNT))


@in_virtual_time
async def test_a_fence_does_not_wait_and_refuses_the_waiting_adds_but_not_those_of_a_recovery() -> None:
    async with slow_disk() as world:
        client, begun = await world.fallen_behind()
        client.send(add(entry(COUNT), is_recovery=True))
        await asyncio.sleep(0.01)
        other = Client(world)
        other.send(read(-1, fence_key=KEY))
        assert await other.answered(1) == [pb.EOK]
        assert other.answers[0].readResponse.body == entry(begun - 1, size=SIZE)
        world.catch_up()
        statuses = await client.answered(COUNT + 1)
        assert statuses[begun:] == [pb.EFENCED] * (COUNT - begun) + [pb.EOK]


@in_virtual_time
async def test_adds_of_a_closed_connection_stop_waiting() -> None:
    async with slow_disk() as world:
        client, begun = await world.fallen_behind()
        other = Client(world)
        other.send(add(entry(COUNT - 1, size=SIZE)))
        await asyncio.sleep(0.01)
        client.end()
        await asyncio.sleep(0.01)
        assert world.room.adds.held == len(entry(COUNT - 1, size=SIZE)) + GROUP_OVERHEAD_BYTES
        world.catch_up()
        assert await other.answered(1) == [pb.EOK]
        assert await world.stored() == [*range(begun), COUNT - 1]


@in_virtual_time
async def test_a_bookie_that_stops_answers_the_waiting_adds_at_once() -> None:
    async with slow_disk() as world:
        client, begun = await world.fallen_behind()
        world.bookie.service.refuse_everything()
        assert await world.bookie.service.drain(1.0)
        await asyncio.sleep(0.01)
        assert len(client.answers) == COUNT
        assert pb.EOK not in {answer.status for answer in client.answers[begun:]}
        assert world.counted("shutting_down") == COUNT - begun


@in_virtual_time
async def test_waiting_adds_are_answered_at_once_when_a_disk_fails() -> None:
    async with slow_disk() as world:
        client, begun = await world.fallen_behind()
        world.bookie.storage.fail(DiskError("it failed"))
        await asyncio.sleep(0.01)
        assert [answer.status for answer in client.answers[begun:]] == [pb.EIO] * (COUNT - begun)


@in_virtual_time
async def test_small_waiting_adds_count_with_the_memory_they_take() -> None:
    limits = ListenerLimits(add_bytes_max=100 * GROUP_OVERHEAD_BYTES, all_add_bytes_max=150 * GROUP_OVERHEAD_BYTES)
    async with slow_disk(limits) as world:
        fallen, _ = await world.fallen_behind()
        clients = [Client(world) for _ in range(2)]
        for number in range(200):
            for client in clients:
                if not client.is_paused:
                    client.send(numbered(add(entry(COUNT)), number))
            await asyncio.sleep(0)
        assert [client.is_paused for client in clients] == [True, True]
        assert 149 * GROUP_OVERHEAD_BYTES <= world.room.adds.held <= limits.all_add_bytes_max
        fallen.end()
        for client in clients:
            client.end()
        await asyncio.sleep(0.01)
        assert world.room.adds.held == 0


@in_virtual_time
async def test_small_waiting_adds_of_one_connection_stay_within_its_limit() -> None:
    limits = ListenerLimits(add_bytes_max=100 * GROUP_OVERHEAD_BYTES)
    async with slow_disk(limits) as world:
        await world.fallen_behind()
        before, client, sent = world.room.adds.held, Client(world), 0
        while not client.is_paused and sent < 200:
            client.send(numbered(add(entry(COUNT)), sent))
            sent += 1
            await asyncio.sleep(0)
        assert 95 < sent <= 101
        assert world.room.adds.held - before <= limits.add_bytes_max + GROUP_OVERHEAD_BYTES


@in_virtual_time
async def test_the_wait_of_an_add_counts_from_its_arrival_even_if_it_waited_for_room() -> None:
    limits = ListenerLimits(all_add_bytes_max=100 * GROUP_OVERHEAD_BYTES)
    async with slow_disk(limits) as world:
        await world.fallen_behind()
        await asyncio.sleep(1)
        filling = Client(world)
        while not filling.is_paused:
            filling.send(add(entry(COUNT)))
            await asyncio.sleep(0)
        last = Client(world)
        last.send(add(entry(COUNT)))
        assert last.is_paused
        await asyncio.sleep(limits.add_wait_s - 0.01)
        assert not last.answers
        await asyncio.sleep(0.02)
        assert [answer.status for answer in last.answers] == [pb.ETOOMANYREQUESTS]


@in_virtual_time
async def test_waiting_adds_are_answered_at_once_when_the_disks_have_no_space_for_adds() -> None:
    async with slow_disk() as world:
        client, begun = await world.fallen_behind()
        world.bookie.storage.takes_no_adds = True
        await asyncio.sleep(0.01)
        assert [answer.status for answer in client.answers[begun:]] == [pb.EREADONLY] * (COUNT - begun)
