"""Memory shared by connections: never more than the limit, fairly distributed, and every wait ends."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.server.apache.frames import FrameBlocks
from bookie.server.apache.room import Room
from bookie.wire.apache.framing import FrameTooLargeError, MalformedFrameError, framed


class MemoryClient:
    """A client that takes memory for one job after another, as soon as it gets it."""

    def __init__(self, room: Room, jobs: list[int], begun: list[tuple[MemoryClient, int]]) -> None:
        self.room, self.jobs, self.begun = room, deque(jobs), begun

    def resume(self) -> None:
        while self.jobs and self.room.take(self.resume, self.jobs[0]):
            self.begun.append((self, self.jobs.popleft()))


def test_the_longest_waiter_is_next_and_gets_one_turn() -> None:
    room, begun = Room(10), list[tuple[MemoryClient, int]]()
    greedy, small, late = (
        MemoryClient(room, [10] * 4, begun),
        MemoryClient(room, [2, 2, 2], begun),
        MemoryClient(room, [1], begun),
    )
    for taker in (greedy, small, late):
        taker.resume()
    order = []
    while begun:
        taker, size = begun.pop(0)
        order.append(taker)
        room.release(size)
    assert order == [greedy, greedy, small, late, greedy, small, greedy, small]
    assert (room.held, room.is_wanted) == (0, False)


def test_a_request_above_the_limit_runs_alone_and_is_not_overtaken() -> None:
    room, begun = Room(10), list[tuple[MemoryClient, int]]()
    first, huge, small = (MemoryClient(room, [size], begun) for size in (4, 50, 1))
    for taker in (first, huge, small):
        taker.resume()
    assert [taker for taker, _ in begun] == [first]
    room.release(4)
    assert [taker for taker, _ in begun] == [first, huge]
    assert room.held == 50
    room.release(50)
    assert [taker for taker, _ in begun] == [first, huge, small]


def test_a_waiter_that_leaves_or_needs_no_room_lets_the_next_one_in() -> None:
    room, begun = Room(10), list[tuple[MemoryClient, int]]()
    holder, leaving, content, next_one = (MemoryClient(room, [size], begun) for size in (9, 5, 1, 1))
    for taker in (holder, leaving, content, next_one):
        taker.resume()
    content.jobs.clear()
    room.leave(leaving.resume)
    assert [taker for taker, _ in begun] == [holder, next_one]
    assert (room.held, room.is_wanted) == (10, False)


def test_room_taken_above_the_estimate_is_counted() -> None:
    room = Room(10)
    assert room.take(lambda: None, 8)
    room.release(-4)
    assert room.held == 12
    assert not room.take(lambda: None, 1)
    room.release(12)
    assert (room.held, room.is_wanted) == (0, False)


@given(st.lists(st.lists(st.integers(1, 15), max_size=6), max_size=6), st.randoms())
def test_every_waiter_is_served_and_the_limit_is_never_exceeded(jobs: list[list[int]], rng: random.Random) -> None:
    room, begun = Room(10), list[tuple[MemoryClient, int]]()
    takers = [MemoryClient(room, sizes, begun) for sizes in jobs]
    for taker in takers:
        taker.resume()
    while begun:
        held = [size for _, size in begun]
        assert room.held == sum(held)
        assert room.held <= 10 or len(held) == 1
        _, size = begun.pop(rng.randrange(len(begun)))
        room.release(size)
    assert not any(taker.jobs for taker in takers)
    assert (room.held, room.is_wanted) == (0, False)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=12), st.data())
def test_frames_are_found_however_the_stream_is_split(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(framed, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    frames, found = FrameBlocks(1000), list[bytes]()
    sent = 0
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        for block, at in frames.feed(stream[start:end]):
            while (behind := frames.frame_end(block, at)) is not None:
                found.append(block[at + 4 : behind])
                at = behind
            frames.keep(block, at)
        sent = sum(map(len, map(framed, found)))
        assert frames.rest_bytes == end - sent
        if frames.rest_bytes >= 4:
            assert frames.frame_bytes == len(framed(bodies[len(found)]))
    assert found == bodies
    assert (frames.rest_bytes, sent) == (0, len(stream))


def used(frames: FrameBlocks, *pieces: bytes) -> None:
    for piece in pieces:
        for block, start in frames.feed(piece):
            assert frames.frame_end(block, start) is None
            frames.keep(block, start)


@pytest.mark.parametrize("cut", range(1, 6))
def test_an_invalid_length_is_refused_as_soon_as_it_arrives(cut: int) -> None:
    for length, error in ((b"\x00\x00\x03\xe5", FrameTooLargeError), (b"\x00" * 4, MalformedFrameError)):
        stream = length + b"...."
        with pytest.raises(error):
            used(FrameBlocks(1000), stream[:cut], stream[cut:])
