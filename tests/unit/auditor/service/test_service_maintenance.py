"""Maintenance windows in the service (R71): what is not audited, until when, and what is shown. Virtual time."""

from __future__ import annotations

import asyncio

from auditor.service.leader_term import HOUSEKEEPING_S
from bookie.metadata.bookies.maintenance import WINDOW_S_MAX, MaintenanceWindow, MaintenanceWindows
from bookie.metadata.nodes import child_names, put
from bookie.metadata.own_state import own_path
from bookie.model.ids import BookieId
from bookie.model.records import encode_record
from tests.worlds.cluster import ROOT
from tests.worlds.service import BOOKIES, LONG_TIMES, ServiceWorld, in_service_world
from tests.worlds.virtual_time import when

A, B, *_ = BOOKIES
HOUR_S = 3600


def windows(world: ServiceWorld) -> MaintenanceWindows:
    return MaintenanceWindows(world.session(), ROOT)


def window(world: ServiceWorld, bookie: BookieId, length_s: int, *, holds_critical: bool = False) -> MaintenanceWindow:
    now_ms = world.clock.epoch_ms()
    return MaintenanceWindow(bookie, (bookie,), "me@host", now_ms, now_ms + length_s * 1000, holds_critical)


@in_service_world
async def test_a_loss_is_audited_when_the_window_ends(world: ServiceWorld) -> None:
    auditor = await world.leader(critical_delay_s=0.0, **LONG_TIMES)
    opened = window(world, A, HOUR_S)
    await windows(world).start(opened)
    start_s = world.clock.monotonic_s()
    await world.down(A)
    await when(lambda: bool(world.critical_marked))
    status = auditor.service.status()
    assert status.windows == (opened,)
    (lost,) = status.lost
    assert (lost.hold_reason, lost.hold_detail, lost.audit_due_ms) == (
        "maintenance",
        f"{A}, by me@host",
        opened.until_ms,
    )
    await when(lambda: bool(world.marked), HOUR_S + 20)
    assert world.marked_bookies == [{A}]
    assert HOUR_S <= world.marked[0].at_s - start_s < HOUR_S + 20
    await asyncio.sleep(HOUSEKEEPING_S + 1)
    assert await child_names(world.session(), own_path("maintenance", ROOT)) == (), "the record is removed"
    assert auditor.service.status().windows == ()


@in_service_world
async def test_a_window_may_hold_back_critical_ledgers(world: ServiceWorld) -> None:
    auditor = await world.leader(critical_delay_s=0.0, **LONG_TIMES)
    await windows(world).start(window(world, A, HOUR_S, holds_critical=True))
    await world.down(A)
    await asyncio.sleep(HOUR_S - 30)
    assert auditor.runner.requests == []
    await when(lambda: bool(world.marked))
    assert world.critical_marked == []


@in_service_world
async def test_a_bookie_outside_the_window_is_audited_at_once(world: ServiceWorld) -> None:
    await world.leader()
    await windows(world).start(window(world, A, HOUR_S))
    await world.down(A)
    await world.down(B)
    await when(lambda: bool(world.marked))
    assert world.marked_bookies == [{B}]


@in_service_world
async def test_a_bookie_that_returns_during_the_window_causes_no_run(world: ServiceWorld) -> None:
    auditor = await world.leader(**LONG_TIMES)
    await windows(world).start(window(world, A, HOUR_S, holds_critical=True))
    await world.down(A)
    await asyncio.sleep(HOUR_S / 2)
    await world.up(A)
    await asyncio.sleep(HOUR_S)
    assert auditor.runner.requests == []


@in_service_world
async def test_a_loss_is_audited_when_its_window_is_ended(world: ServiceWorld) -> None:
    await world.leader()
    await windows(world).start(window(world, A, HOUR_S, holds_critical=True))
    await world.down(A)
    await asyncio.sleep(100)
    assert world.marked == []
    await windows(world).end(A)
    await when(lambda: bool(world.marked), 20)
    assert world.marked_bookies == [{A}]


@in_service_world
async def test_a_too_long_or_damaged_window_suppresses_nothing(world: ServiceWorld) -> None:
    auditor = await world.leader()
    over_long = window(world, A, WINDOW_S_MAX + 1, holds_critical=True)
    path = windows(world).path(A)
    await put(world.session(), path, encode_record(over_long, without=["target"]))
    await put(world.session(), windows(world).path(B), b"{")
    await world.down(A)
    await when(lambda: bool(world.marked))
    assert world.marked_bookies == [{A}]
    assert auditor.service.status().windows == ()
