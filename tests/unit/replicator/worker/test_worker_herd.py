"""Many workers, few events: the cost of an event does not depend on the number of standby workers.

A request is anything that a session sends, including the setting of a watch. When a watch fires, the store sends the
message, so that is not a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bookie.metadata.port import AccessDeniedError
from bookie.metadata.store.memory import Fault, MemoryStore
from bookie.metadata.tasks.standby import WATCHING_MAX
from bookie.model.ids import LedgerId
from replicator.telemetry.events import Ending
from tests.worlds.ledgers import make_metadata, names
from tests.worlds.repair import RepairWorld, Running, a_world
from tests.worlds.virtual_time import in_virtual_time, until

IDLE_S = 10.0
"""Less than the time after which a standby worker checks the tasks without a call."""
LISTING = 25
"""The requests of one check of everything, including the watches that it sets again."""


class Fleet:
    """Running workers and their requests."""

    def __init__(self, world: RepairWorld, count: int) -> None:
        self.requests: list[str] = []
        self.workers = [world.worker(once=False, seed=seed) for seed in range(count)]
        for running in self.workers:
            self._count(running.store)

    def endings(self) -> list[Ending]:
        return [ending for running in self.workers for ending in running.recorder.endings()]

    async def requests_in(self, seconds: float) -> int:
        before = len(self.requests)
        await asyncio.sleep(seconds)
        return len(self.requests) - before

    def _count(self, store: MemoryStore) -> None:
        async def count(operation: str, path: str) -> Fault | None:
            self.requests.append(f"{operation} {path}")
            return None

        def counted(wait: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
            async def waiting(path: str, seen: Any) -> None:
                self.requests.append(f"watch {path}")
                await wait(path, seen)

            return waiting

        store.fault_hook = count
        store.wait_node_changed = counted(store.wait_node_changed)  # type: ignore[method-assign, assignment]
        store.wait_children_changed = counted(store.wait_children_changed)  # type: ignore[method-assign, assignment]


@asynccontextmanager
async def a_fleet(world: RepairWorld, count: int) -> AsyncIterator[Fleet]:
    fleet = Fleet(world, count)
    for running in fleet.workers:
        running.start()
    await asyncio.sleep(IDLE_S)
    try:
        yield fleet
    finally:
        await asyncio.gather(*(running.stop() for running in fleet.workers))


async def cost_of(fleet: Fleet, event: Callable[[], Awaitable[None]]) -> int:
    """Return the requests that an event causes, in addition to what the fleet sends anyway."""
    idle = await fleet.requests_in(IDLE_S)
    await event()
    return await fleet.requests_in(IDLE_S) - idle


@pytest.mark.parametrize("workers", [20, 400])
@in_virtual_time
async def test_the_cost_of_the_first_task_does_not_depend_on_the_number_of_idle_workers(workers: int) -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(7, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.kill("c")
        async with a_fleet(world, workers) as fleet:

            async def mark() -> None:
                await world.tasks.marking.mark(LedgerId(7), names("c"))

            assert await cost_of(fleet, mark) <= WATCHING_MAX * 3 * LISTING
            assert fleet.endings().count(Ending.REPAIRED) == 1
        await world.assert_whole(7, packets, "t")


@pytest.mark.parametrize("workers", [20, 400])
@in_virtual_time
async def test_the_cost_of_a_lost_bookie_does_not_depend_on_the_number_of_idle_workers(workers: int) -> None:
    async with a_world("a b c t") as world, a_fleet(world, workers) as fleet:

        async def leave() -> None:
            await world.kill("c")

        assert await cost_of(fleet, leave) <= WATCHING_MAX * LISTING


@pytest.mark.parametrize("workers", [20, 400])
@in_virtual_time
async def test_the_cost_of_the_end_of_watching_workers_does_not_depend_on_those_on_standby(workers: int) -> None:
    async with a_world("a b c t") as world, a_fleet(world, workers) as fleet:

        async def end() -> None:
            for running in fleet.workers[:WATCHING_MAX]:
                running.store.expire()

        assert await cost_of(fleet, end) <= WATCHING_MAX * 2 * LISTING


@in_virtual_time
async def test_the_requests_of_standby_workers_are_bounded() -> None:
    """One check of each standby worker every few minutes, and the checks of the watching workers."""
    async with a_world("a b c t") as world, a_fleet(world, 400) as fleet:
        looks = await fleet.requests_in(600.0) / LISTING
        assert looks <= 600 * (1 + WATCHING_MAX / 5.0)


@in_virtual_time
async def test_workers_on_standby_are_called_to_share_many_tasks() -> None:
    async with a_world("a b c t u v") as world:
        for ledger_id in range(256):
            await world.ledger(ledger_id, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.kill("c")
        async with a_fleet(world, 12) as fleet:
            for name in "tuv":  # so slow that a few workers cannot do everything
                await slow_down(world, name)
            await world.tasks.marking.mark_many([(LedgerId(i), names("c")) for i in range(256)])
            await asyncio.sleep(8)
            at_work = [running for running in fleet.workers if running.worker.load().ledgers_in_flight]
            assert len(at_work) > WATCHING_MAX
            await until(world.is_clean, seconds=600)
            assert fleet.endings().count(Ending.REPAIRED) == 256


async def slow_down(world: RepairWorld, name: str) -> None:
    inner = world.bookies[name].inner
    add = inner.add

    async def slowly(incarnation: str, batch: Any) -> Any:
        await asyncio.sleep(9)
        return await add(incarnation, batch)

    inner.add = slowly  # type: ignore[method-assign]


@in_virtual_time
async def test_a_standby_worker_that_is_not_called_repairs_after_a_delay() -> None:
    """The watching workers are registered but do nothing: the task waits for minutes, but not for ever."""
    async with a_world("a b c t") as world:
        packets = await world.ledger(7, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.kill("c")
        for number in range(WATCHING_MAX):
            await world.ports(world.session(), seed=number).standby.enter(f"dead{number}")
        async with a_fleet(world, 2) as fleet:
            await world.tasks.marking.mark(LedgerId(7), names("c"))
            await until(world.is_clean, seconds=120)
            assert fleet.endings() == [Ending.REPAIRED]
        await world.assert_whole(7, packets, "t")


@in_virtual_time
async def test_a_single_worker_starts_at_once() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(7, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.kill("c")
        async with a_fleet(world, 1):
            await world.tasks.marking.mark(LedgerId(7), names("c"))
            await until(world.is_clean, seconds=2)


@in_virtual_time
async def test_workers_without_access_to_standby_nodes_repair() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(7, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.kill("c")
        workers: list[Running] = [world.worker(once=False, seed=seed) for seed in range(5)]

        async def refuse(operation: str, path: str) -> Fault | None:
            if operation == "create" and "/standby" in path:
                raise AccessDeniedError(path)
            return None

        for running in workers:
            running.store.fault_hook = refuse
            running.start()
        await asyncio.sleep(IDLE_S)
        await world.tasks.marking.mark(LedgerId(7), names("c"))
        await until(world.is_clean, seconds=10)
        for running in workers:
            await running.stop()
