"""A drained bookie: read-only at once, writable again afterwards, and not chosen during the drain."""

from __future__ import annotations

import asyncio
import random

from bookie.client.placement.feed import PlacementFeed
from bookie.client.placement.placement import Placement
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.store.memory import MemoryCell, MemoryStore
from bookie.model.ids import BookieId
from bookie.server.upkeep.disk_watch import DiskWatch, ReadOnlyReason
from bookie.server.upkeep.drain_watch import DrainWatch
from bookie.server.upkeep.registration_keeper import RegistrationKeeper, service_info
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import ROOT, MemoryCluster, open_bookie
from tests.worlds.virtual_time import in_virtual_time, until

US = BookieId("us:3181")


@in_virtual_time
async def test_a_drained_bookie_is_read_only_until_the_drain_is_cancelled() -> None:
    world = await MemoryCluster().found()
    store, clock, registrations = world.store, world.clock, world.registrations
    bookie = await open_bookie(clock)
    keeper = RegistrationKeeper(store, registrations, US, service_info("h", 1, "uuid"), clock, takeover_deadline_s=5)
    drains = Drains(store, ROOT)
    drain = DrainWatch(drains, US, clock)
    await drain.check()
    await keeper.start(is_read_only=False)
    watch = DiskWatch(
        (bookie.ledgers,),
        bookie.storage,
        bookie.service,
        keeper,
        clock,
        read_only_below_bytes=0,
        requests={ReadOnlyReason.DRAIN: lambda: drain.is_drained},
    )
    following = asyncio.create_task(drain.run(watch.check))

    async def is_read_only() -> bool:
        return bookie.service.is_read_only and US in (await registrations.list()).read_only

    async def is_writable() -> bool:
        return not bookie.service.is_read_only and US in (await registrations.list()).writable

    await drains.start(Drain(BookieId("other:3181"), "test", 1))
    await until(is_writable, 60)
    await drains.start(Drain(US, "test", 1))
    await until(is_read_only, 60)
    store.expire()
    store.resume()
    await until(is_read_only, 60)
    assert drain.is_drained
    await drains.stop(US)
    await until(is_writable, 60)
    following.cancel()
    await keeper.stop(1.0)
    await bookie.storage.close()


@in_virtual_time
async def test_drained_bookies_get_no_new_copies() -> None:
    store, placement = MemoryStore(MemoryCell()), Placement()
    drains = Drains(store, ROOT)
    feed = PlacementFeed(placement, VirtualClock(), topologies=None, free_space=None, drains=drains)
    following = asyncio.create_task(feed.run())
    a, b, c = (BookieId(name) for name in "abc")

    async def is_avoided() -> bool:
        return placement.draining == {b}

    await drains.start(Drain(b, "test", 1))
    await until(is_avoided, 60)
    for seed in range(20):
        rng = random.Random(seed)
        assert set(placement.ensemble((a, b, c), 2, 2, 2, (), rng)) == {a, c}
        assert placement.replacement((a,), 0, 1, (b, c), (), rng) == c
    assert placement.replacement((a, c), 0, 1, (b,), (), random.Random(0)) is None
    store.expire()
    store.resume()
    await drains.stop(b)

    async def is_chosen() -> bool:
        return not placement.draining

    await until(is_chosen, 60)
    following.cancel()
