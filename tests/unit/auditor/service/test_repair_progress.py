"""The progress of repairs as shown by the store, and the rate over several samples."""

from __future__ import annotations

import asyncio

import pytest

from auditor.service.watch.repairs import (
    HEALTHY,
    UNREADABLE,
    WINDOW_S,
    CopyProgress,
    RateMeter,
    RepairObservation,
    copy_progress,
    pause_s,
)
from bookie.metadata.layout import task_path
from bookie.metadata.nodes import create_with_parents
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.tasks.boosts import Boost, Boosts
from bookie.metadata.tasks.parked import ParkedTask, ParkReason
from bookie.metadata.tasks.reservations import Reservation
from bookie.model.ids import BookieId, EntryId, LedgerId
from tests.worlds.cluster import ROOT
from tests.worlds.commands import marked_ledger, repair_watch
from tests.worlds.ledgers import make_metadata
from tests.worlds.repair import a_world
from tests.worlds.virtual_time import in_virtual_time

T = BookieId("t")


@in_virtual_time
async def test_progress_shows_backlog_running_repairs_parked_ledgers_and_boosts() -> None:
    async with a_world("a b t") as world:
        await marked_ledger(world, 1, "a x", "x")
        await world.clock.sleep(60)
        await marked_ledger(world, 2, "b x", "x")
        await marked_ledger(world, 3, "x y", "x y")
        await marked_ledger(world, 4, "a b", "b")
        await create_with_parents(world.store, task_path(ROOT, LedgerId(6)), b"nonsense", ROOT)
        await world.parked.park(
            ParkedTask(
                ledger_id=LedgerId(3),
                reason=ParkReason.NO_LIVE_COPY,
                detail="",
                since_ms=1,
                bookies_seen=frozenset(),
                task_version=0,
            )
        )
        await world.parked.park(
            ParkedTask(
                ledger_id=LedgerId(77),
                reason=ParkReason.NO_LIVE_COPY,
                detail="",
                since_ms=1,
                bookies_seen=frozenset(),
                task_version=0,
            )
        )
        now_ms = world.clock.epoch_ms()
        await Boosts(world.store, ROOT).start(Boost(LedgerId(2), "me", now_ms, now_ms + 1000))
        assert await world.tasks.locks.lock(LedgerId(2), "worker-1") is not None
        assert await world.tasks.locks.lock_unmarked(LedgerId(88), "collector") is not None
        await world.reservations.reserve(LedgerId(2), "t-1", [Reservation(EntryId(0), 1, T, "1", EntryId(4))])
        observation = await repair_watch(world).observe()
        assert {name: part.ledgers for name, part in observation.severities.items()} == {
            "no_live_copy": 1,
            "critical": 2,
            HEALTHY: 1,
            UNREADABLE: 1,
        }
        assert observation.severities["critical"].bytes_estimate == 2000
        assert (observation.waiting, observation.parked, observation.in_flight_count, observation.boosted) == (
            3,
            {"no_live_copy": 1},
            1,
            1,
        )
        assert observation.oldest_ms == now_ms - 60_000
        (flight,) = observation.in_flight
        assert (flight.ledger_id, flight.worker, flight.severity) == (2, "worker-1", "critical")
        assert flight.copies == (CopyProgress(0, 1, T, 4, 10, 400, 1000),)
        assert observation.is_enabled


@in_virtual_time
async def test_a_deleted_ledger_is_not_unreadable() -> None:
    async with a_world("a b") as world:
        assert await world.tasks.marking.mark(LedgerId(5), [BookieId("x")])
        observation = await repair_watch(world).observe()
        assert {name: part.ledgers for name, part in observation.severities.items()} == {HEALTHY: 1}
        assert observation.marked == {LedgerId(5): 0}


@in_virtual_time
async def test_damaged_reservations_and_an_empty_cluster_cause_no_error() -> None:
    async with a_world("a t") as world:
        watch = repair_watch(world)
        empty = await watch.observe()
        assert (empty.marked, empty.oldest_ms, empty.waiting) == ({}, 0, 0)
        await marked_ledger(world, 1, "a x", "x")
        assert await world.tasks.locks.lock(LedgerId(1), "worker-1") is not None
        await world.reservations.reserve(LedgerId(1), "t-1", [Reservation(EntryId(0), 1, T, "1")])
        await world.store.set(world.reservations.path(LedgerId(1)), b"nonsense", ANY_VERSION)
        (flight,) = (await watch.observe()).in_flight
        assert flight.copies == ()


def test_the_progress_of_a_copy_without_a_record_is_unknown() -> None:
    closed = make_metadata((0, "a b c"), (10, "a b d"), quorum=(2, 2), last=19, length=2000)
    assert copy_progress(closed, Reservation(EntryId(10), 1, T, "1")) == CopyProgress(10, 1, T, None, 7, None, 700)
    noted = copy_progress(closed, Reservation(EntryId(10), 1, T, "1", EntryId(16)))
    assert (noted.entries_done, noted.entries_total) == (4, 7)
    gone = copy_progress(closed, Reservation(EntryId(5), 1, T, "1", EntryId(7)))  # no fragment begins there any more
    assert (gone.entries_done, gone.entries_total, gone.bytes_total) == (1, None, None)
    unclosed = make_metadata((0, "a b"), quorum=(2, 2))
    assert copy_progress(unclosed, Reservation(EntryId(0), 1, T, "1")) == CopyProgress(0, 1, T, None, None, None, None)


@in_virtual_time
async def test_a_copy_for_another_position_does_not_count_as_running() -> None:
    async with a_world("a b t") as world:
        await marked_ledger(world, 1, "a b x", "x")
        assert await world.tasks.locks.lock(LedgerId(1), "worker-1") is not None
        copies = [Reservation(EntryId(0), 2, T, "1", EntryId(3)), Reservation(EntryId(0), 1, T, "1", EntryId(6))]
        await world.reservations.reserve(LedgerId(1), "t-1", copies)
        (flight,) = (await repair_watch(world).observe()).in_flight
        assert [copy.position for copy in flight.copies] == [2]


def repairs_of(
    at_s: float, *marked: int, size: int = 100, parked: int = 0, is_enabled: bool = True
) -> RepairObservation:
    waiting = len(marked) - parked
    ids = {LedgerId(each): size for each in marked}
    return RepairObservation(
        0, at_s, is_enabled, {}, ids, (), 0, {"no_live_copy": parked}, waiting, waiting * size, 0, 0
    )


def test_rate_and_remaining_time_need_two_measurements_and_a_completed_ledger() -> None:
    meter = RateMeter()
    first = meter.add(repairs_of(100.0, 1, 2, 3, 4))
    assert (first.ledgers_per_s, first.bytes_per_s, first.eta_s) == (None, None, None)
    second = meter.add(repairs_of(110.0, 1, 2, 3, 4))
    assert (second.ledgers_per_s, second.eta_s) == (0.0, None)
    third = meter.add(repairs_of(120.0, 2, 3, 4, 5))  # one ledger was completed, and another one was marked
    assert (third.ledgers, third.measured_s) == (1, 20.0)
    assert third.ledgers_per_s == pytest.approx(0.05)
    assert third.bytes_per_s == pytest.approx(5.0)
    assert third.eta_s == pytest.approx(80.0)


def test_the_remaining_time_does_not_include_parked_ledgers() -> None:
    meter = RateMeter()
    meter.add(repairs_of(0.0, 1, 2, 3))
    assert meter.add(repairs_of(10.0, 1, 2, parked=2)).eta_s == 0.0


def test_there_is_no_estimate_while_recovery_is_disabled() -> None:
    meter = RateMeter()
    meter.add(repairs_of(0.0, 1, 2, 3))
    assert meter.add(repairs_of(10.0, 1, 2, is_enabled=False)).eta_s is None


def test_the_remaining_time_depends_on_the_size_of_the_ledgers_left() -> None:
    meter = RateMeter()
    meter.add(repairs_of(0.0, 1, 2))
    assert meter.add(repairs_of(10.0, 2, size=5000)).eta_s == pytest.approx(500.0)


def test_the_rate_covers_the_last_minutes() -> None:
    meter, marked = RateMeter(), list(range(200))
    meter.add(repairs_of(0.0, *marked))
    meter.add(repairs_of(10.0, *marked[100:]))
    now_s = 10.0
    while now_s < 2 * WINDOW_S:
        now_s += 10.0
        rate = meter.add(repairs_of(now_s, *marked[100:]))
    assert (rate.ledgers, rate.eta_s) == (0, None)
    assert WINDOW_S <= rate.measured_s < WINDOW_S + 20


@in_virtual_time
async def test_a_wait_for_the_store_is_neither_a_time_of_repairs_nor_a_reason_for_a_long_pause() -> None:
    """Such as an election of ZooKeeper's leader after the marks were read, and before the metadata was."""
    async with a_world("a b t") as world:
        for ledger_id in range(1, 11):
            await marked_ledger(world, ledger_id, "a x", "x")
        watch, meter = repair_watch(world), RateMeter()
        assert meter.add(await watch.observe()).measured_s == 0.0
        await world.clock.sleep(5.0)
        begun_s = world.clock.monotonic_s()
        ledgers = world.ledgers.path(LedgerId(1))

        async def wait_for_metadata(operation: str, path: str) -> None:
            if path == ledgers:
                await asyncio.sleep(60.0)

        world.store.fault_hook = wait_for_metadata
        observation = await watch.observe()
        took_s = world.clock.monotonic_s() - begun_s
        assert (took_s, meter.add(observation).measured_s) == (60.0, 5.0)
        assert pause_s(observation, took_s, 1.0) < 5.0
        assert pause_s(repairs_of(0.0, *range(100_000)), took_s, 1.0) == 300.0
