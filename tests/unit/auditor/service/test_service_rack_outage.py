"""The loss of a whole rack in the service (R72). Virtual time."""

from __future__ import annotations

import asyncio
import json

from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.topology import TopologyStore
from bookie.metadata.cluster import open_cluster
from tests.worlds.cluster import ROOT
from tests.worlds.service import BOOKIES, LONG_TIMES, ServiceWorld, in_service_world
from tests.worlds.virtual_time import when

A, B, C, D, E = BOOKIES


async def place(world: ServiceWorld) -> None:
    """Put A and B into one rack, and the others into another one."""
    racks = {A: "/r1", B: "/r1", C: "/r2", D: "/r2", E: "/r2"}
    store = world.session()
    await TopologyStore(store, await open_cluster(store, ROOT)).write(json.dumps(racks))


async def lose_rack(world: ServiceWorld) -> None:
    for bookie in (A, B):
        await world.down(bookie)
        await asyncio.sleep(5)


@in_service_world
async def test_bookies_of_a_failed_rack_are_held_back_until_they_return(world: ServiceWorld) -> None:
    await place(world)
    await world.set_delay(60)
    auditor = await world.leader(critical_delay_s=30.0, **LONG_TIMES)
    start_s = world.clock.monotonic_s()
    await lose_rack(world)
    await asyncio.sleep(3000)
    assert auditor.runner.requests == []
    status = auditor.service.status()
    assert {(lost.bookie_id, lost.hold_reason, lost.hold_detail) for lost in status.lost} == {
        (A, "rack_outage", "rack /r1"),
        (B, "rack_outage", "rack /r1"),
    }
    assert not status.held_because, "the brake is a separate rule"
    held = {down.held_until_ms for down in (await FirstSeenDown(world.session(), ROOT).read()).values()}
    assert held == {status.lost[0].audit_due_ms}, "workers read it in the record"
    await when(lambda: bool(world.marked), 1000)
    assert world.marked_bookies == [{A, B}]
    assert 3605 <= world.marked[0].at_s - start_s < 3625


@in_service_world
async def test_the_return_of_one_bookie_ends_the_rack_outage(world: ServiceWorld) -> None:
    await place(world)
    await world.set_delay(60)
    await world.leader()
    await lose_rack(world)
    await asyncio.sleep(600)
    await world.up(B)
    await when(lambda: bool(world.marked))
    assert world.marked_bookies == [{A}]
    assert (await FirstSeenDown(world.session(), ROOT).read())[A].held_until_ms == 0


@in_service_world
async def test_an_operator_may_end_the_rack_outage(world: ServiceWorld) -> None:
    await place(world)
    await world.set_delay(60)
    await world.leader()
    await lose_rack(world)
    await asyncio.sleep(600)
    assert world.marked == []
    await world.set_delay(60)
    await when(lambda: bool(world.marked), 30)
    assert world.marked_bookies == [{A, B}]


@in_service_world
async def test_without_racks_each_bookie_has_its_own_delay(world: ServiceWorld) -> None:
    await world.set_delay(60)
    await world.leader()
    await lose_rack(world)
    await when(lambda: len(world.marked) == 2, 100)
