"""Memory that connections share for large frames and answers, and which connection is closed if it is exhausted.

Virtual time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from bookie.server.apache import grouping
from bookie.server.apache.answering import RequestAnswerer
from bookie.server.apache.connection import ApacheConnection
from bookie.server.apache.grouping import WAITING_GROUPS_MAX, AddGroup
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.requests import AddKind, Read
from bookie.server.apache.room import SharedRoom
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache import v2
from bookie.wire.apache.framing import framed
from tests.worlds.apache_listener import KEY, LEDGER, entry
from tests.worlds.socketless import SocketlessTransport
from tests.worlds.virtual_time import in_virtual_time

SIZE = 1 << 20
PIECE = 256 << 10
LIMITS = ListenerLimits(all_add_bytes_max=SIZE, all_frame_bytes_max=5 * SIZE)


def frame(entry_id: int, size: int = SIZE, ledger: int = LEDGER) -> bytes:
    """Encode an add; one of this size fills a batch."""
    return framed(v2.encode_request(v2.AddV2(KEY, entry(entry_id, ledger=ledger, size=size))))


class Socket(SocketlessTransport):
    """A client that sends these frames piece by piece, as they are read.

    It fetches its answers only if the test does.
    """

    def __init__(self, world: SlowStorage, *frames: bytes) -> None:
        super().__init__()
        self.unsent, self.unfetched, self.is_over = b"".join(frames), 0, False
        self.protocol = ApacheConnection(world, world.limits, world.room, None, lambda _: True, lambda _: None)
        self.protocol.connection_made(self)
        world.sockets.append(self)

    def arrive(self, size: int = 1 << 40) -> None:
        while size and self.unsent and not self.is_paused and not self.is_over:
            piece = self.unsent[: min(PIECE, size)]
            self.unsent = self.unsent[len(piece) :]
            size -= len(piece)
            self.protocol.data_received(piece)

    def get_write_buffer_size(self) -> int:
        return self.unfetched

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_over

    def abort(self) -> None:
        self.is_over = True
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def close(self) -> None:
        self.abort()


class SlowStorage(RequestAnswerer):
    """A storage that stores adds only when ``store`` is called, and its clients."""

    def __init__(self, limits: ListenerLimits = LIMITS) -> None:
        self.limits, self.room = limits, SharedRoom.within(limits)
        self.sockets: list[Socket] = []
        self.stored: list[bytes] = []
        self.waiting: deque[tuple[AddGroup, asyncio.Future[None]]] = deque()

    async def adds(self, group: AddGroup) -> Sequence[bytes]:
        self.waiting.append((group, asyncio.get_running_loop().create_future()))
        await self.waiting[-1][1]
        self.stored += group.packets
        return list(group.accepted)

    async def arrive(self) -> None:
        for socket in self.sockets:
            socket.arrive()
        await asyncio.sleep(0)

    async def store(self) -> None:
        """Accept one group of adds."""
        await asyncio.sleep(0)
        self.waiting.popleft()[1].set_result(None)
        await asyncio.sleep(0.01)

    async def store_all(self) -> None:
        while self.waiting:
            await self.store()
            await self.arrive()

    async def reads(self, reads: Sequence[Read]) -> tuple[list[bytes], list[Read]]:
        return [frame(0)] * len(reads), []

    @property
    def in_memory(self) -> int:
        """Return the number of bytes received from the connected clients and not stored yet."""
        came = sum(len(frame(0)) * 2 - len(socket.unsent) for socket in self.sockets)
        return came - sum(map(len, self.stored))


@in_virtual_time
async def test_frames_that_wait_for_the_storage_stay_within_the_bounds() -> None:
    world = SlowStorage()
    for ledger in range(60):
        Socket(world, frame(0, ledger=ledger), frame(1, ledger=ledger))
    for _ in range(10):
        await world.arrive()
    assert world.in_memory <= LIMITS.all_add_bytes_max + LIMITS.all_frame_bytes_max + 60 * PIECE
    assert world.room.frames.held <= LIMITS.all_frame_bytes_max
    await world.store_all()
    assert len(world.stored) == 120
    assert (world.room.frames.held, world.room.frames.is_wanted, world.room.adds.held) == (0, False, 0)


@in_virtual_time
async def test_a_frame_takes_room_once_the_one_before_it_has_begun() -> None:
    world = SlowStorage()
    Socket(world, frame(0)).arrive()
    pipelining = Socket(world, frame(0), frame(1))
    pipelining.arrive()
    assert len(frame(0)) == world.room.frames.held
    assert len(pipelining.unsent) > SIZE - PIECE
    await world.store()
    assert len(frame(1)) == world.room.frames.held
    await world.arrive()
    await world.store_all()
    assert (len(world.stored), world.room.frames.held) == (3, 0)


@in_virtual_time
async def test_collected_frames_keep_their_room_while_the_next_one_arrives() -> None:
    world, size = SlowStorage(), 300 << 10
    gathering = Socket(world, frame(0, size), frame(1, size))
    gathering.arrive(size + PIECE // 2)
    assert (len(world.waiting), world.room.frames.held) == (0, len(frame(0, size) + frame(1, size)))
    await asyncio.sleep(1)
    assert (len(world.waiting), world.room.frames.held) == (1, len(frame(1, size)))


@in_virtual_time
async def test_room_is_released_when_waiting_frames_are_dropped() -> None:
    world = SlowStorage()
    Socket(world, frame(0)).arrive()
    waiting, partly = Socket(world, frame(0)), Socket(world, frame(0))
    waiting.arrive()
    partly.arrive(PIECE)
    assert world.room.frames.held == 2 * len(frame(0))
    waiting.protocol.finish()
    assert world.room.frames.held == len(frame(0))
    partly.abort()
    await asyncio.sleep(0.01)
    assert world.room.frames.held == 0
    await world.store_all()
    assert (len(world.stored), world.room.frames.held) == (1, 0)


@in_virtual_time
async def test_a_disconnected_client_takes_no_room_when_its_adds_end() -> None:
    world = SlowStorage()
    leaving = Socket(world, frame(0), frame(1))
    leaving.arrive(SIZE + PIECE)
    await asyncio.sleep(0)
    assert (len(world.waiting), world.room.frames.held) == (1, len(frame(1)))
    leaving.abort()
    await asyncio.sleep(0.01)
    await world.store_all()
    assert (len(world.stored), world.room.frames.held) == (1, 0)


class Contended(SlowStorage):
    """One client's add waits for the storage after another client's.

    Then a large frame of the first client begins to arrive.
    """

    def __init__(self) -> None:
        super().__init__(ListenerLimits(all_add_bytes_max=1, all_frame_bytes_max=SIZE, gather_s=0.001))
        Socket(self, frame(0)).arrive()
        self.held_back = Socket(self, frame(0, 5) + frame(1))
        self.held_back.arrive(PIECE)
        self.next_one = Socket(self, frame(0))
        self.next_one.arrive()

    async def begin(self) -> None:
        await asyncio.sleep(1)
        assert self.room.frames.held == len(frame(1))
        assert self.room.frames.is_wanted


@in_virtual_time
async def test_a_paused_client_has_the_full_time_for_its_frame_after_it_is_resumed() -> None:
    world = Contended()
    await world.begin()
    await asyncio.sleep(world.limits.frame_s * 5.5)
    assert not world.held_back.is_closing()
    await world.store()
    await asyncio.sleep(world.limits.frame_s - 1)
    assert not world.held_back.is_closing()
    await asyncio.sleep(2)
    assert world.held_back.is_closing()
    assert not world.next_one.is_paused


@in_virtual_time
async def test_a_client_that_reads_no_answers_releases_the_room_of_its_frames() -> None:
    world = Contended()
    await world.begin()
    world.held_back.unfetched = 2 * world.limits.unsent_bytes_max
    world.held_back.protocol.pause_writing()
    await asyncio.sleep(world.limits.frame_s + 1)
    assert world.held_back.is_closing()
    assert not world.next_one.is_paused


@in_virtual_time
async def test_connections_without_any_request_are_closed_and_later_silence_is_allowed() -> None:
    world = SlowStorage(ListenerLimits(silent_s=60))
    silent, talking = Socket(world), Socket(world, frame(0))
    talking.arrive()
    await asyncio.sleep(59)
    assert not silent.is_closing()
    await asyncio.sleep(1000)
    assert (silent.is_closing(), talking.is_closing()) == (True, False)


@in_virtual_time
async def test_of_clients_that_hold_the_room_of_answers_only_those_that_read_none_are_closed() -> None:
    world = SlowStorage(ListenerLimits(all_answer_bytes_max=1, unsent_bytes_max=2 << 20, unfetched_s=30))
    one_read = framed(v2.encode_request(v2.ReadV2(LEDGER, 0)))
    slow, stuck, waiting = Socket(world, one_read), Socket(world, one_read), Socket(world, one_read)
    slow.unfetched = stuck.unfetched = 30 << 20
    slow.arrive()
    slow.protocol.pause_writing()
    await asyncio.sleep(1)
    for socket in (stuck, waiting):
        socket.arrive()
    for _ in range(10):  # it fetches just enough of its answers
        slow.unfetched -= 2 << 20
        await asyncio.sleep(30)
    assert not slow.is_closing()
    slow.unfetched = 0
    slow.protocol.resume_writing()
    stuck.protocol.pause_writing()
    await asyncio.sleep(31)
    assert (stuck.is_closing(), slow.is_closing(), waiting.is_closing()) == (True, False, False)
    assert (world.room.answers.held, world.room.answers.is_wanted) == (0, False)


class Deaf(Socket):
    """A client that fetches nothing until ``fetch``."""

    def write(self, data: Any) -> None:
        self.unfetched += len(data)
        self.protocol.pause_writing()

    def fetch(self) -> int:
        fetched, self.unfetched = self.unfetched, 0
        self.protocol.resume_writing()
        return fetched


def force() -> bytes:
    """Encode a request that is answered without the storage."""
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.FORCE_LEDGER, txnId=1)
    return framed(pb.Request(header=header, forceLedgerRequest=pb.ForceLedgerRequest(ledgerId=1)).SerializeToString())


@in_virtual_time
async def test_unsent_answers_without_entries_have_a_bound_for_all_clients_and_are_all_sent_in_the_end() -> None:
    limits = ListenerLimits(all_unsent_bytes_max=64 << 10, crowded_unsent_bytes_max=4 << 10)
    world = SlowStorage(limits)
    count = 8000
    clients = [Deaf(world, force() * count) for _ in range(4)]
    for _ in range(3):
        await world.arrive()
    assert all(client.unfetched for client in clients)
    assert sum(client.unfetched for client in clients) < (64 << 10) + len(clients) * (80 << 10)
    fetched = dict.fromkeys(clients, 0)
    while any(client.unsent or client.unfetched for client in clients):
        for client in clients:
            fetched[client] += client.fetch()
        await world.arrive()
    assert len(set(fetched.values())) == 1
    assert fetched[clients[0]] > count * len(force())
    assert world.room.unsent.held == 0


@in_virtual_time
async def test_answers_of_a_disconnected_client_no_longer_count_as_unsent() -> None:
    world = SlowStorage()
    client = Deaf(world, force())
    await world.arrive()
    assert world.room.unsent.held == client.unfetched > 0
    client.abort()
    await asyncio.sleep(1)
    assert world.room.unsent.held == 0


@in_virtual_time
async def test_adds_to_many_ledgers_in_one_piece_are_decoded_as_far_as_they_may_wait_and_all_stored() -> None:
    world = SlowStorage(ListenerLimits(all_add_bytes_max=1))
    count = 3 * WAITING_GROUPS_MAX
    adds = b"".join(frame(0, size=5, ledger=ledger) for ledger in range(count))
    assert len(adds) < PIECE
    client = Socket(world, adds)
    with most_groups() as decoded:
        await world.arrive()
        assert decoded() <= 2 * WAITING_GROUPS_MAX
        while world.waiting:
            world.waiting.popleft()[1].set_result(None)
            await asyncio.sleep(0.01)
        assert decoded() == count
    assert len(world.stored) == count
    assert not client.is_paused


@contextmanager
def most_groups() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the number of groups that were made so far."""
    made = 0

    class Counted(AddGroup):
        def __init__(self, kind: AddKind) -> None:
            nonlocal made
            made += 1
            super().__init__(kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "AddGroup", Counted)
        yield lambda: made
