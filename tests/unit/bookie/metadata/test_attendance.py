"""ZooKeeper's counters reveal each bookie that was registered after a given time and is absent now, however briefly."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from bookie.metadata.bookies.attendance import Attendance, attendance, read_parents, who_left
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.layout import bookie_path
from bookie.model.ids import BookieId
from tests.worlds.cluster import MemoryCluster

A, B, C = map(BookieId, ("a:1", "b:1", "c:1"))


class Place:
    """The registrations of one cluster; ``seen`` has each bookie that was registered after ``look``."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.there: dict[BookieId, bool] = {}
        self.seen: set[BookieId] = set()

    async def observe(self) -> Attendance:
        self.seen = set(self.there)
        return await attendance(self.cluster.store, self.cluster.cluster)

    async def join(self, *bookies: BookieId, is_read_only: bool = False) -> None:
        for bookie in bookies:
            await self.leave(bookie)
            await self.cluster.store.create(self._path(bookie, is_read_only), is_ephemeral=True)
            self.there[bookie] = is_read_only
            self.seen.add(bookie)

    async def leave(self, bookie: BookieId) -> None:
        if (is_read_only := self.there.pop(bookie, None)) is not None:
            await self.cluster.store.delete(self._path(bookie, is_read_only))

    @property
    def drains(self) -> Drains:
        return Drains(self.cluster.store, self.cluster.cluster.root)

    async def left(self, then: Attendance) -> str:
        now = await read_parents(self.cluster.store, self.cluster.cluster)
        draining = (await self.drains.draining()).bookies & self.there.keys()
        return who_left(then, now, await self.drains.begun(draining))

    def _path(self, bookie: BookieId, is_read_only: bool) -> str:
        return bookie_path(self.cluster.cluster.root, bookie, is_read_only=is_read_only)


async def opened() -> Place:
    place = Place(await MemoryCluster().found())
    await place.join(C, is_read_only=True)
    await place.join(A, B)
    await place.leave(C)
    return place


def test_a_bookie_that_stays_or_restarts_did_not_leave() -> None:
    async def run() -> None:
        place = await opened()
        then = await place.observe()
        assert then.bookies == (A, B)
        assert await place.left(then) == ""
        await place.join(A)
        await place.join(B, is_read_only=True)
        await place.join(C)
        assert await place.left(then) == ""

    asyncio.run(run())


def test_a_bookie_that_was_drained_throughout_is_ignored() -> None:
    async def run() -> None:
        place = await opened()
        then = await place.observe()
        await place.drains.start(Drain(B))
        assert "b:1 is drained" in await place.left(then)
        then = await place.observe()
        assert (then.draining, await place.left(then)) == ((B,), "")
        await place.drains.start(Drain(A))
        await place.drains.stop(A)
        assert await place.left(then) == "", "a drain of another bookie that has ended"
        await place.drains.stop(B)
        assert await place.left(then) == "", "the end of the drain does not endanger the copies on the bookie"
        await place.drains.start(Drain(B))
        assert "b:1 is drained" in await place.left(then), "it may have received copies while it was not drained"
        then = await place.observe()
        assert await place.left(then) == ""
        assert "b:1 is drained" in await place.left(replace(then, drains_zxid=0)), "the record of an earlier release"

    asyncio.run(run())


def test_a_drain_that_ends_between_the_reads_is_detected() -> None:
    async def run() -> None:
        place = await opened()
        await place.drains.start(Drain(B))
        then = await place.observe()
        await place.drains.stop(B)
        now = await read_parents(place.cluster.store, place.cluster.cluster)
        assert "b:1 is drained" in who_left(then, now, await place.drains.begun([B]))

    asyncio.run(run())


@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_bookie_that_left_is_detected(is_read_only: bool) -> None:
    async def run() -> None:
        place = await opened()
        then = await place.observe()
        await place.join(C, is_read_only=is_read_only)
        await place.leave(C)
        assert "joined and left" in await place.left(then)
        then = await place.observe()
        await place.leave(A)
        assert "a:1 left" in await place.left(then)
        assert await place.left(Attendance())

    asyncio.run(run())


def test_parents_that_were_created_again_are_detected() -> None:
    async def run() -> None:
        place = await opened()
        then = await place.observe()
        parent = place._path(C, True).rpartition("/")[0]
        await place.cluster.store.delete(parent)
        await place.cluster.store.create(parent)
        assert await place.left(then)

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(8))
def test_a_bookie_that_joins_and_leaves_is_always_detected(seed: int) -> None:
    rng = random.Random(seed)

    async def run() -> None:
        place = await opened()
        for _ in range(25):
            then = await place.observe()
            for _ in range(rng.randrange(1, 6)):
                bookie = rng.choice((A, B, C))
                await (
                    place.leave(bookie) if rng.random() < 0.5 else place.join(bookie, is_read_only=rng.random() < 0.3)
                )
            if place.seen - place.there.keys():
                assert await place.left(then)

    asyncio.run(run())
