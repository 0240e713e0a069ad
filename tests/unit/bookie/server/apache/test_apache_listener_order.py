"""Adds and reads of recoveries on a connection with many plain reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bookie.model.ids import LedgerId
from bookie.server.apache.answering import RequestAnswerer
from bookie.server.apache.connection import ApacheConnection
from bookie.server.apache.grouping import AddGroup
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.requests import Other, Read
from bookie.server.apache.room import SharedRoom
from bookie.server.read_places import URGENT_IN_A_ROW_MAX
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.framing import framed
from tests.worlds.apache_listener import KEY, add, entry, read, request
from tests.worlds.socketless import SocketlessTransport
from tests.worlds.virtual_time import in_virtual_time

LIMITS = ListenerLimits(reads_max=2)
PLAIN = 100


class Answerer(RequestAnswerer):
    """A storage whose reads wait until ``may_read`` is set."""

    def __init__(self) -> None:
        self.may_read = asyncio.Event()
        self.begun: list[LedgerId] = []
        """The ledgers of the reads, in the order of their beginning."""
        self.added = 0

    async def reads(self, reads: Sequence[Read]) -> tuple[list[bytes], list[Read]]:
        self.begun.append(reads[0].ledger_id)
        await self.may_read.wait()
        return [b""], []

    async def adds(self, group: AddGroup) -> Sequence[bytes]:
        self.added += len(group.packets)
        return group.accepted

    async def one(self, request: Other) -> bytes:
        await self.may_read.wait()
        return b""


class Client(SocketlessTransport):
    """One connection."""

    def __init__(self, limits: ListenerLimits = LIMITS, room: SharedRoom | None = None) -> None:
        super().__init__()
        self.storage, self.room = Answerer(), room or SharedRoom.within(limits)
        self.protocol = ApacheConnection(self.storage, limits, self.room, None, lambda _: True, lambda _: None)
        self.protocol.connection_made(self)

    async def send(self, *messages: pb.Request) -> None:
        self.protocol.data_received(b"".join(framed(message.SerializeToString()) for message in messages))
        await asyncio.sleep(1)

    async def end(self) -> None:
        self.storage.may_read.set()
        await asyncio.sleep(1)
        self.protocol.connection_lost(None)

    def write(self, data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


def plain(first: int, count: int = PLAIN) -> list[pb.Request]:
    return [read(0, ledger=first + number) for number in range(count)]


def fencing(first: int, count: int = 1) -> list[pb.Request]:
    return [read(-1, ledger=first + number, fence_key=KEY) for number in range(count)]


@in_virtual_time
async def test_a_fence_begins_at_once_behind_many_plain_reads() -> None:
    client = Client()
    await client.send(*plain(1000))
    assert client.storage.begun == [1000, 1001]
    await client.send(*fencing(7))
    assert client.storage.begun == [1000, 1001, 7]
    await client.end()


@in_virtual_time
async def test_many_fences_let_a_plain_read_begin_from_time_to_time() -> None:
    client = Client()
    await client.send(*plain(1000), *fencing(1, 3 * URGENT_IN_A_ROW_MAX))
    client.storage.may_read.set()
    await asyncio.sleep(1)
    places = [place for place, ledger_id in enumerate(client.storage.begun) if ledger_id >= 1000]
    assert len(places) == PLAIN
    assert all(after - before <= URGENT_IN_A_ROW_MAX + 1 for before, after in zip([-1, *places], places, strict=False))
    await client.end()


@in_virtual_time
async def test_adds_do_not_wait_for_earlier_reads() -> None:
    client = Client()
    await client.send(*plain(1000))
    assert not client.is_paused
    await client.send(add(entry(0)))
    assert client.storage.added == 1
    await client.end()


@in_virtual_time
async def test_a_client_with_too_many_waiting_requests_is_not_read() -> None:
    client = Client(ListenerLimits(reads_max=2, waiting_bytes_max=10_000))
    await client.send(*plain(1000))
    were_paused = [client.is_paused]
    client.storage.may_read.set()
    await asyncio.sleep(1)
    assert [*were_paused, client.is_paused] == [True, False]
    await client.end()


@in_virtual_time
async def test_waiting_requests_of_all_clients_together_have_a_bound() -> None:
    limits = ListenerLimits(reads_max=2, all_waiting_bytes_max=30_000)
    room = SharedRoom.within(limits)
    clients = [Client(limits, room) for _ in range(3)]
    for client in clients[:2]:
        await client.send(*plain(1000))
    await clients[2].send(*plain(1000, 2))
    assert [client.is_paused for client in clients] == [False, True, False]
    await clients[0].send(add(entry(0)))
    assert (clients[0].is_paused, clients[0].storage.added) == (True, 0)
    await clients[2].send(add(entry(0)))
    assert clients[2].storage.added == 1, "a client without waiting requests is not read"
    clients[1].protocol.connection_lost(None)
    assert 0 < room.waiting.held < 30_000
    clients[0].storage.may_read.set()
    await asyncio.sleep(1)
    assert (clients[0].is_paused, clients[0].storage.added) == (False, 1)
    for client in clients:
        await client.end()
    assert room.waiting.held == 0


@in_virtual_time
async def test_a_piece_with_many_requests_is_decoded_in_parts() -> None:
    client = Client(ListenerLimits(reads_max=2, waiting_bytes_max=10_000))
    await client.send(*plain(1000, 5000), add(entry(0)))
    assert client.room.waiting.held < 100_000
    assert client.storage.added == 0
    client.storage.may_read.set()
    await asyncio.sleep(1)
    assert client.storage.begun == list(range(1000, 6000))
    assert client.storage.added == 1
    assert not client.is_paused
    await client.end()


@in_virtual_time
async def test_requests_of_large_frames_that_wait_keep_the_room_of_their_frames() -> None:
    client = Client(ListenerLimits(reads_max=1, waiting_bytes_max=1 << 30))
    hint = request(pb.WRITE_LAC)
    hint.writeLacRequest.ledgerId, hint.writeLacRequest.lac = 7, 1
    hint.writeLacRequest.masterKey, hint.writeLacRequest.body = KEY, bytes(1 << 20)
    await client.send(*plain(1000, 1))
    frame = framed(hint.SerializeToString())
    for piece in (frame[:1000], frame[1000:]):
        client.protocol.data_received(piece)
    assert client.room.frames.held == len(frame)
    await client.send(*plain(1001))
    assert client.room.frames.held == len(frame)
    client.storage.may_read.set()
    await asyncio.sleep(1)
    assert client.room.frames.held == 0
    await client.end()
