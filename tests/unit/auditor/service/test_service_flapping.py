"""A bookie that is repeatedly lost and returns is not marked each time (R74). Whole services on virtual time."""

from __future__ import annotations

import asyncio

from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.returned import FLAPPING_WINDOW_S
from tests.worlds.cluster import ROOT
from tests.worlds.service import BOOKIES, LONG_TIMES, ServiceWorld, in_service_world
from tests.worlds.virtual_time import when

A, B, *_ = BOOKIES


async def leave_and_return(world: ServiceWorld, *, away_s: float = 120, times: int = 1) -> None:
    for _ in range(times):
        await world.down(A)
        await asyncio.sleep(away_s)
        await world.up(A)
        await asyncio.sleep(60)


@in_service_world
async def test_the_third_absence_is_held_back_and_then_marked(world: ServiceWorld) -> None:
    auditor = await world.leader(**LONG_TIMES)
    await leave_and_return(world, times=5)
    assert world.marked_bookies == [{A}, {A}], "only the first two absences were marked"
    start_s = world.clock.monotonic_s()
    await world.down(A)
    await asyncio.sleep(120)
    (lost,) = auditor.service.status().lost
    assert lost.hold_reason == "flapping"
    held = (await FirstSeenDown(world.session(), ROOT).read())[A].held_until_ms
    assert held == lost.audit_due_ms, "workers read it in the record"
    await when(lambda: len(world.marked) == 3, 3700)
    assert 3600 <= world.marked[2].at_s - start_s < 3620


@in_service_world
async def test_critical_ledgers_of_a_flapping_bookie_have_their_own_delay(world: ServiceWorld) -> None:
    await world.leader(**LONG_TIMES)
    await leave_and_return(world, times=2)
    start_s = world.clock.monotonic_s()
    await world.down(A)
    await when(lambda: bool(world.critical_marked))
    assert 300 <= world.critical_marked[0].at_s - start_s < 320
    assert len(world.marked) == 2


@in_service_world
async def test_absences_within_the_delay_are_not_counted(world: ServiceWorld) -> None:
    await world.set_delay(200)
    await world.leader(**LONG_TIMES)
    await leave_and_return(world, times=5)
    start_s = world.clock.monotonic_s()
    await world.down(A)
    await when(lambda: bool(world.marked))
    assert 200 <= world.marked[0].at_s - start_s < 203


@in_service_world
async def test_after_hours_without_absences_a_loss_counts_at_once_again(world: ServiceWorld) -> None:
    await world.leader(**LONG_TIMES)
    await leave_and_return(world, times=2)
    await asyncio.sleep(FLAPPING_WINDOW_S + 60)
    await world.down(A)
    await when(lambda: len(world.marked) == 3, 30)


@in_service_world
async def test_flapping_is_remembered_across_leaders_and_for_each_bookie_separately(world: ServiceWorld) -> None:
    first = await world.leader("a")
    second = await world.auditor("b")
    await leave_and_return(world, times=2)
    await first.kill()
    await when(lambda: second.leads)
    await world.down(A)
    await world.down(B)
    await when(lambda: len(world.marked) == 3)
    assert world.marked_bookies[2] == {B}


@in_service_world
async def test_the_flapping_rule_can_be_disabled(world: ServiceWorld) -> None:
    await world.leader(flapping_delay_s=0.0)
    await leave_and_return(world, times=3)
    assert world.marked_bookies == [{A}] * 3
