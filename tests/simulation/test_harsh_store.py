"""The store of harsh histories ends sessions, loses writes and splits reads, as a real ZooKeeper does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from bookie.metadata.port import ANY_VERSION, Session, StoreUnavailableError, WriteOutcomeUnknownError
from tests.simulation.harshness import Harshness
from tests.simulation.loop import Process, SimLoop
from tests.simulation.store import SimCell, SimStore, StoreFaults
from tests.simulation.trace import Trace

SESSION_S = 10.0


class Harsh(Harshness):
    """Every behaviour at once."""

    def __init__(self) -> None:
        super().__init__(1)
        self.ends_sessions = self.loses_writes = self.splits_reads = self.delays_watches = True

    def part_size(self) -> int:
        return 1


class StoreWorld:
    """Two sessions, of which the first one is harsh."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        cell, trace = SimCell(loop, lambda *change: None), Trace(loop)
        self.process, self.faults = Process("ours"), StoreFaults(0.0)
        self.store = SimStore(cell, self.process, loop, random.Random(1), self.faults, trace, Harsh(), SESSION_S)
        self.other = SimStore(cell, Process("theirs"), loop, random.Random(2), StoreFaults(0.0), trace)

    def freeze(self, seconds: float) -> None:
        self.process.held_until_s = asyncio.get_running_loop().time() + seconds
        self.store.hold(self.process.held_until_s)


def on_virtual_time(history: Callable[[StoreWorld], Awaitable[None]]) -> None:
    async def run() -> None:
        await history(StoreWorld())

    loop = SimLoop()
    loop.run_until_complete(run())
    loop.close()


def is_next(session: Session, before: Session) -> bool:
    return session.is_connected and session.epoch == before.epoch + 1


def test_the_session_of_a_process_that_was_frozen_too_long_has_ended_without_its_knowledge() -> None:
    async def history(world: StoreWorld) -> None:
        await world.store.create("/held", is_ephemeral=True)
        before = world.store.session
        world.freeze(SESSION_S + 5)
        writing = asyncio.ensure_future(world.store.create("/late"))
        await asyncio.sleep(SESSION_S + 1)
        assert await world.other.stat("/held") is None
        assert world.store.session == before
        with pytest.raises((StoreUnavailableError, WriteOutcomeUnknownError)):
            await writing
        await asyncio.sleep(1)
        assert is_next(world.store.session, before)
        assert await world.other.stat("/late") is None

    on_virtual_time(history)


def test_a_session_survives_only_a_short_interruption() -> None:
    async def history(world: StoreWorld) -> None:
        before = world.store.session
        for seconds in (SESSION_S - 1, SESSION_S + 1):
            assert world.store.session == before
            world.store.suspend()
            await asyncio.sleep(seconds)
            world.store.resume()
        assert is_next(world.store.session, before)

    on_virtual_time(history)


def test_a_write_with_an_unknown_outcome_may_have_had_no_effect() -> None:
    async def history(world: StoreWorld) -> None:
        await world.other.create("/a", b"0")
        outcomes = set()
        world.faults.lose_share = 0.5
        for number in range(1, 40):
            data = b"%d" % number
            try:
                await world.store.set("/a", data, ANY_VERSION)
            except WriteOutcomeUnknownError:
                outcomes.add((await world.other.get("/a")).data == data)
        assert outcomes == {False, True}

    on_virtual_time(history)


def test_nodes_change_between_the_parts_of_a_read_of_many() -> None:
    async def history(world: StoreWorld) -> None:
        paths = [f"/n{number}" for number in range(6)]
        for path in paths:
            await world.other.create(path, b"0")
        reading = asyncio.ensure_future(world.store.get_many(paths))
        for path in reversed(paths):
            await world.other.set(path, b"1", ANY_VERSION)
        seen = [b"" if node is None else node.data for node in await reading]
        assert set(seen) == {b"0", b"1"}

    on_virtual_time(history)
