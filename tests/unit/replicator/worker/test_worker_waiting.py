"""An idle worker starts as soon as a task appears, and does not poll until then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from replicator.telemetry.events import Ending, QueueState
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, Running, a_world
from tests.worlds.virtual_time import in_virtual_time, until

NEVER_S = 1e6
"""A poll interval longer than any test."""
SOON_S = 1.0


async def a_loss(world: RepairWorld) -> None:
    await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
    await world.kill("b")


async def an_idle_worker(world: RepairWorld) -> Running:
    running = world.worker(once=False, poll_interval_s=NEVER_S).start()
    await asyncio.sleep(600)
    return running


@in_virtual_time
async def test_the_first_task_is_started_at_once() -> None:
    async with a_world("a b t") as world:
        await a_loss(world)
        running = await an_idle_worker(world)
        await world.tasks.marking.mark(LEDGER, names("b"))
        await until(world.is_clean, seconds=SOON_S)
        assert running.recorder.endings() == [Ending.REPAIRED]
        await running.stop()


@in_virtual_time
async def test_a_task_marked_after_all_others_are_done_is_started_at_once() -> None:
    async with a_world("a b t") as world:
        await a_loss(world)
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False, poll_interval_s=NEVER_S).start()
        for _ in range(3):
            await until(world.is_clean, seconds=SOON_S)
            await asyncio.sleep(600)
            await world.tasks.marking.mark(LEDGER, names("b"))
        await until(world.is_clean, seconds=SOON_S)
        await running.stop()
        assert running.recorder.endings() == [Ending.REPAIRED, *[Ending.NOTHING_MISSING] * 3]


@in_virtual_time
async def test_a_listing_that_waited_for_the_store_does_not_delay_the_next_one() -> None:
    """Such as while ZooKeeper elects a leader: the time of a listing then says nothing about its cost (R149)."""
    async with a_world("a b t") as world:
        await a_loss(world)
        running = await an_idle_worker(world)
        waits_s = [20.0]

        async def wait_once(operation: str, path: str) -> None:
            if operation == "sync" and waits_s:
                await asyncio.sleep(waits_s.pop())

        running.store.fault_hook = wait_once
        await world.tasks.marking.mark(LEDGER, names("b"))
        await until(world.is_clean, seconds=20 + SOON_S)
        await asyncio.sleep(2 * SOON_S)
        await world.tasks.marking.mark(LEDGER, names("b"))
        await until(world.is_clean, seconds=SOON_S)
        assert not waits_s
        await running.stop()


@in_virtual_time
async def test_a_time_in_which_the_store_was_slow_does_not_delay_later_listings() -> None:
    """A listing of few tasks takes no longer than ten seconds of pauses are worth, however long it took (R149)."""
    async with a_world("a b t") as world:
        await a_loss(world)
        running = await an_idle_worker(world)
        slow_s = 20.0

        async def wait(operation: str, path: str) -> None:
            if operation == "sync":
                await asyncio.sleep(slow_s)

        running.store.fault_hook = wait
        for _ in range(3):
            await world.tasks.marking.mark(LEDGER, names("b"))
            await until(world.is_clean, seconds=2000)
        slow_s = 0.0
        await asyncio.sleep(60)  # the requests under way have ended
        await world.tasks.marking.mark(LEDGER, names("b"))
        await until(world.is_clean, seconds=11)
        await running.stop()


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "too short to be seen"])
@in_virtual_time
async def test_tasks_marked_while_repair_was_disabled_are_started_when_it_is_enabled(is_seen: bool) -> None:
    async with a_world("a b t") as world:
        await a_loss(world)
        running = await an_idle_worker(world)
        await world.tasks.switches.disable()
        if is_seen:
            await world.register("t", is_read_only=True)
            await world.register("t")  # a changed bookie wakes the worker
            await asyncio.sleep(600)
        await world.tasks.marking.mark(LEDGER, names("b"))
        await asyncio.sleep(600 if is_seen else 0)
        assert running.recorder.endings() == []
        await world.tasks.switches.enable()
        await until(world.is_clean, seconds=SOON_S)
        await running.stop()


async def interrupted(_: RepairWorld, running: Running) -> None:
    running.store.suspend()


async def expired(_: RepairWorld, running: Running) -> None:
    running.store.expire()


async def reconnected(_: RepairWorld, running: Running) -> None:
    running.store.resume()


async def disabled(world: RepairWorld, _: Running) -> None:
    await world.tasks.switches.disable()
    await world.register("a", is_read_only=True)  # a changed bookie wakes the worker


async def enabled(world: RepairWorld, _: Running) -> None:
    await world.tasks.switches.enable()


Change = Callable[[RepairWorld, Running], Awaitable[None]]


@pytest.mark.parametrize(("begin", "end"), [(interrupted, reconnected), (expired, reconnected), (disabled, enabled)])
@in_virtual_time
async def test_a_worker_that_cannot_list_tasks_reports_none(begin: Change, end: Change) -> None:
    """Other workers may complete the tasks, and the alert uses the maximum over all workers."""
    async with a_world("a b") as world:
        await a_loss(world)
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = await an_idle_worker(world)
        assert running.recorder.queue_state == QueueState(parked=1)
        await begin(world, running)
        await asyncio.sleep(600)
        assert running.recorder.queue_state == QueueState()
        await end(world, running)
        await asyncio.sleep(10)
        assert running.recorder.queue_state == QueueState(parked=1)
        await running.stop()


@in_virtual_time
async def test_a_worker_waits_for_tasks_again_after_a_lost_session() -> None:
    async with a_world("a b t") as world:
        await a_loss(world)
        running = await an_idle_worker(world)
        running.store.suspend()
        await asyncio.sleep(600)
        running.store.resume()
        await asyncio.sleep(600)
        await world.tasks.marking.mark(LEDGER, names("b"))
        await until(world.is_clean, seconds=SOON_S)
        await running.stop()
