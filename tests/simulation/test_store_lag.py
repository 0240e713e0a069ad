"""Tests of a session on a lagging server: it reads a past state, and never an older one than before."""

from __future__ import annotations

import asyncio
import random

import pytest

from bookie.metadata.port import ANY_VERSION, Create, NoNodeError
from tests.simulation.loop import Process, SimLoop
from tests.simulation.store import SimCell, SimStore, StoreFaults
from tests.simulation.trace import Trace


def two_sessions(lag_s: float) -> tuple[SimStore, SimStore]:
    loop = asyncio.get_running_loop()
    cell, trace = SimCell(loop, lambda *change: None), Trace(loop)
    lags = (0.0, lag_s)
    first, second = (
        SimStore(cell, Process(str(i)), loop, random.Random(i), StoreFaults(0.0, lag_s=lag), trace)
        for i, lag in enumerate(lags)
    )
    return first, second


def on_virtual_time(test: object) -> None:
    assert callable(test)
    loop = SimLoop()
    loop.run_until_complete(test())
    loop.close()


def test_reads_are_old_until_sync() -> None:
    async def history() -> None:
        writer, lagging = two_sessions(5.0)
        await writer.create("/a", b"1")
        await asyncio.sleep(10)
        assert (await lagging.get("/a")).data == b"1"
        await writer.set("/a", b"2", ANY_VERSION)
        await writer.create("/b")
        assert (await lagging.get("/a")).data == b"1"
        assert set((await lagging.children("/")).names) == {"a"}
        with pytest.raises(NoNodeError):
            await lagging.get("/b")
        await lagging.sync("/")
        assert (await lagging.get("/a")).data == b"2"
        assert set((await lagging.children("/")).names) == {"a", "b"}

    on_virtual_time(history)


def test_its_own_writes_are_seen_and_time_brings_the_rest() -> None:
    async def history() -> None:
        writer, lagging = two_sessions(5.0)
        await writer.create("/a", b"1")
        await lagging.create("/mine", b"x")
        assert (await lagging.get("/mine")).data == b"x"
        assert (await lagging.get("/a")).data == b"1"
        await writer.set("/a", b"2", ANY_VERSION)
        await writer.delete("/mine")
        assert (await lagging.get("/mine")).data == b"x"
        await asyncio.sleep(6)
        assert (await lagging.get("/a")).data == b"2"
        assert await lagging.stat("/mine") is None

    on_virtual_time(history)


def test_a_transaction_is_seen_whole_or_not_at_all() -> None:
    async def history() -> None:
        writer, lagging = two_sessions(1.0)
        seen: set[tuple[bool, bool]] = set()

        async def look() -> None:
            for _ in range(40):
                nodes = await lagging.get_many(["/a", "/b"])
                seen.add((nodes[0] is not None, nodes[1] is not None))
                await asyncio.sleep(0.1)

        looking = asyncio.get_running_loop().create_task(look())
        await asyncio.sleep(1)
        await writer.multi([Create("/a"), Create("/b")])
        await looking
        assert seen == {(False, False), (True, True)}

    on_virtual_time(history)
