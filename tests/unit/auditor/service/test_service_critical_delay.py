"""Ledgers with one copy left do not wait for the lost-bookie delay (R70). Whole services on virtual time."""

from __future__ import annotations

import asyncio

from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from tests.worlds.cluster import ROOT
from tests.worlds.service import BOOKIES, LONG_TIMES, SESSION_TIMEOUT_S, ServiceWorld, in_service_world
from tests.worlds.virtual_time import when

A, B, C, *_ = BOOKIES


@in_service_world
async def test_critical_ledgers_are_audited_once_after_their_own_delay(world: ServiceWorld) -> None:
    await world.set_delay(3600)
    auditor = await world.leader(**LONG_TIMES)
    start_s = world.clock.monotonic_s()
    await world.down(A)
    await asyncio.sleep(200)
    (lost,) = auditor.service.status().lost
    assert lost.audit_due_ms - lost.critical_due_ms == 3_300_000
    assert lost.hold_reason == "delay"
    await when(lambda: bool(world.critical_marked))
    assert 300 <= world.critical_marked[0].at_s - start_s < 303
    assert world.marked == []
    await asyncio.sleep(3000)
    assert len(auditor.runner.requests) == 1, "these ledgers are not audited again"
    await when(lambda: bool(world.marked))
    assert world.marked_bookies == [{A}]
    assert 3600 <= world.marked[0].at_s - start_s < 3603
    assert len(auditor.runner.requests) == 2


@in_service_world
async def test_each_loss_has_its_own_critical_audit(world: ServiceWorld) -> None:
    """The ledgers of two lost bookies become critical with the second one."""
    await world.set_delay(3600)
    await world.leader(**LONG_TIMES)
    await world.down(A)
    await asyncio.sleep(1000)
    start_s = world.clock.monotonic_s()
    await world.down(B)
    await when(lambda: len(world.critical_marked) == 2)
    assert world.critical_marked[1].bookies == {A, B}
    assert 300 <= world.critical_marked[1].at_s - start_s < 303


@in_service_world
async def test_a_return_ends_the_critical_delay_as_well(world: ServiceWorld) -> None:
    await world.set_delay(3600)
    auditor = await world.leader(**LONG_TIMES)
    await world.down(A)
    await asyncio.sleep(250)
    await world.up(A)
    await asyncio.sleep(1000)
    assert auditor.runner.requests == []


@in_service_world
async def test_the_critical_audit_survives_a_change_of_leader(world: ServiceWorld) -> None:
    await world.set_delay(3600)
    first = await world.leader("a")
    second = await world.auditor("b")
    start_s = world.clock.monotonic_s()
    await world.down(A)
    await asyncio.sleep(150)
    await first.kill()
    await when(lambda: second.leads, SESSION_TIMEOUT_S)
    await when(lambda: bool(world.critical_marked))
    assert 300 <= world.critical_marked[0].at_s - start_s < 303
    assert (await FirstSeenDown(world.session(), ROOT).read())[A].critical_audited_ms > 0


@in_service_world
async def test_the_brake_holds_back_critical_ledgers_too(world: ServiceWorld) -> None:
    await world.set_delay(3600)
    auditor = await world.leader(**LONG_TIMES)
    for bookie in BOOKIES[:3]:
        await world.down(bookie)
    await asyncio.sleep(3000)
    assert auditor.service.status().held_because
    assert world.critical_marked == []


@in_service_world
async def test_no_critical_audit_begins_while_the_brake_holds(world: ServiceWorld) -> None:
    await world.set_delay(3600)
    auditor = await world.leader(**LONG_TIMES)
    for bookie in (A, B, C):
        await world.down(bookie)
    await asyncio.sleep(1000)
    assert "3 of 5" in auditor.service.status().held_because
    assert auditor.runner.requests == []
