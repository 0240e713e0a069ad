"""Placement with current data: the topology in the store, and the free space of the bookies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
from typing_extensions import override

from bookie.client.placement.feed import PlacementFeed, load_placement
from bookie.client.placement.free_space import FreeSpace, FreeSpaceSettings
from bookie.client.placement.placement import Placement, PlacementPolicy
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.topology import InvalidTopologyError, TopologyStore
from bookie.metadata.nodes import put
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.store.memory import MemoryStore
from bookie.model.ids import BookieId
from bookie.model.topology import Topology
from bookie.runtime.fault_points import inject_faults
from bookie.wire.port import BookieInfo, InfoReply, ReplyT, Request, Status
from bookie.wire.requests import Info
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import MemoryCluster
from tests.worlds.requests import WithoutAdds
from tests.worlds.virtual_time import in_virtual_time, until, when

BK1, BK2, BK3 = (BookieId(f"bk{i}:3181") for i in range(1, 4))


@dataclass(slots=True)
class Answers(WithoutAdds):
    """Report the free space of bookies."""

    free: Mapping[BookieId, int | Status]
    asked: list[tuple[BookieId, float]] = field(default_factory=list)

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        assert isinstance(request, Info)
        self.asked.append((bookie, VirtualClock().monotonic_s()))
        found = self.free.get(bookie, Status.UNREACHABLE)
        if isinstance(found, Status):
            return cast(ReplyT, InfoReply(found))
        return cast(ReplyT, InfoReply(Status.OK, BookieInfo("1", "test", False, 10**12, found, 0)))


class PlacementWorld(MemoryCluster):
    """A cluster with its topology and the reports of its bookies' free space."""

    def __init__(self, free: Mapping[BookieId, int | Status]) -> None:
        super().__init__()
        self.answers = Answers(free)

    async def start(self) -> None:
        await self.found()
        self.topologies = TopologyStore(self.store, self.cluster)
        self.space = FreeSpace(self.registrations, self.answers, self.clock, FreeSpaceSettings(round_s=60, gap_s=1))

    @asynccontextmanager
    async def fed(self, placement: Placement, *, has_free_space: bool = False) -> AsyncIterator[None]:
        space = self.space if has_free_space else None
        feed = PlacementFeed(placement, VirtualClock(), topologies=self.topologies, free_space=space)
        task = asyncio.ensure_future(feed.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait([task])


async def world(free: Mapping[BookieId, int | Status] | None = None) -> PlacementWorld:
    made = PlacementWorld(free if free is not None else {})
    await made.start()
    return made


async def until_located(placement: Placement, where: str) -> None:
    async def is_there() -> bool:
        return placement.topology.location_of(BK1) == where

    await until(is_there)


@in_virtual_time
async def test_file_takes_precedence_over_the_store() -> None:
    w = await world()
    await w.topologies.write('{"bk1:3181": "/stored"}')
    policy = PlacementPolicy(min_racks=3)
    from_file = await load_placement(w.store, w.cluster, '{"bk1:3181": "/filed"}', policy)
    assert (from_file.policy, from_file.topology.known(BK1)) == (policy, "/filed")
    assert (await load_placement(w.store, w.cluster)).topology.known(BK1) == "/stored"
    with pytest.raises(InvalidTopologyError):
        await load_placement(w.store, w.cluster, "")
    await w.store.set(w.topologies.own_path, b"[]", ANY_VERSION)
    with pytest.raises(InvalidTopologyError):
        await load_placement(w.store, w.cluster, policy=PlacementPolicy(is_strict=True))
    assert (await load_placement(w.store, w.cluster)).topology.known(BK1) is None


@in_virtual_time
async def test_changes_in_the_store_are_applied() -> None:
    w, placement = await world(), Placement()
    async with w.fed(placement):
        for rack in ("/r1", "/r2"):
            await w.topologies.write(f'{{"bk1:3181": "{rack}"}}')
            await until_located(placement, rack)
        await w.store.set(w.topologies.own_path, b"nonsense", ANY_VERSION)
        await asyncio.sleep(60)
        assert placement.topology.known(BK1) == "/r2"
        await w.topologies.write('{"bk1:3181": "/r3"}')
        await until_located(placement, "/r3")
        await w.store.delete(w.topologies.own_path)
        await until_located(placement, "/default-rack")


@in_virtual_time
async def test_the_feed_survives_an_expired_session_and_invalid_data_at_its_start() -> None:
    w, placement = await world(), Placement()
    await w.store.create("/bookies", b"nonsense")
    other = TopologyStore(MemoryStore(w.store.cell), w.cluster)
    async with w.fed(placement):
        await asyncio.sleep(1)
        assert placement.topology == Topology()
        await other.write('{"bk1:3181": "/r1"}')
        await until_located(placement, "/r1")
        w.store.expire()
        await asyncio.sleep(1)
        await other.write('{"bk1:3181": "/r2"}')
        w.store.resume()
        await until_located(placement, "/r2")


@in_virtual_time
async def test_a_problem_of_the_topology_is_logged_once_for_all_stores_of_a_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    w = await world()
    for content, message in (
        (b"nonsense", "topology cannot be read, so copies are placed without regard to racks until it is corrected"),
        (b'{"bk1:3181": "rack 1"}', "locations that cannot be used count as unknown"),
    ):
        await put(w.store, w.topologies.pulsar_path, content)
        caplog.clear()
        async with w.fed(await load_placement(w.store, w.cluster)):
            await asyncio.sleep(60)
        assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [message]
    await put(w.store, w.topologies.pulsar_path, b"{}")
    await load_placement(w.store, w.cluster)
    await put(w.store, w.topologies.pulsar_path, content)
    await load_placement(w.store, w.cluster)
    assert [record.message for record in caplog.records] == [message, message], "it was corrected in between"


@in_virtual_time
async def test_the_feed_can_reread_at_any_moment() -> None:
    w, placement = await world(), Placement()
    looks = iter((True, True, False))
    await w.topologies.write('{"bk1:3181": "/r1"}')
    with inject_faults(lambda name: name == "topology.read_without_change" and next(looks, False)):
        async with w.fed(placement):
            await until_located(placement, "/r1")
            await w.topologies.write('{"bk1:3181": "/r2"}')
            await until_located(placement, "/r2")


@in_virtual_time
async def test_writable_bookies_are_queried_in_turn_and_not_in_a_burst() -> None:
    w = await world({BK1: 100, BK2: -5, BK3: Status.TIMEOUT})
    await w.register(BK3, BK2, BK1)
    await w.space.refresh()
    assert dict(w.space.known) == {BK1: 100, BK2: 0}
    times = [at_s for _, at_s in w.answers.asked]
    assert [bookie for bookie, _ in w.answers.asked] == [BK1, BK2, BK3]
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == [1, 1]


@in_virtual_time
async def test_values_are_kept_while_bookies_do_not_answer_until_they_unregister() -> None:
    free: dict[BookieId, int | Status] = {BK1: 100, BK2: 200}
    w = await world(free)
    await w.register(BK1, BK2)
    placement = Placement()
    async with w.fed(placement, has_free_space=True):
        await asyncio.sleep(30)
        assert placement.free_bytes == {BK1: 100, BK2: 200}
        free[BK1] = Status.UNREACHABLE
        free[BK2] = 300
        await asyncio.sleep(60)
        assert placement.free_bytes == {BK1: 100, BK2: 300}
        await w.registrations.unregister(BK1)
        w.store.suspend()
        await asyncio.sleep(90)
        assert placement.free_bytes == {BK1: 100, BK2: 300}
        w.store.resume()
        await asyncio.sleep(120)
        assert placement.free_bytes == {BK2: 300}
    assert len(w.answers.asked) < 20


@in_virtual_time
async def test_discarded_values_are_queried_again() -> None:
    w = await world({BK1: 100})
    await w.register(BK1)
    with inject_faults(lambda name: name == "free_space.forget"):
        await w.space.refresh()
    assert dict(w.space.known) == {}
    await w.space.refresh()
    assert dict(w.space.known) == {BK1: 100}


@in_virtual_time
async def test_drains_are_followed_from_start_to_end() -> None:
    w = await world()
    drains, placement = Drains(w.store, w.cluster.root), Placement()
    feed = PlacementFeed(placement, VirtualClock(), topologies=None, free_space=None, drains=drains)
    task = asyncio.ensure_future(feed.run())
    for bookie in (BK1, BK2):
        await drains.start(Drain(bookie))
    await when(lambda: placement.draining == {BK1, BK2})
    await drains.stop(BK1)
    await when(lambda: placement.draining == {BK2})
    w.store.expire()
    await w.clock.sleep(1)
    w.store.resume()
    await drains.stop(BK2)
    await when(lambda: not placement.draining)
    task.cancel()
    await asyncio.wait([task])
