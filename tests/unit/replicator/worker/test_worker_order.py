"""The order of repair: the ledger with the fewest copies comes first, whatever failed earlier or is registered now."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.port import AccessDeniedError
from bookie.metadata.store.memory import Fault
from bookie.metadata.tasks.boosts import Boost, Boosts
from bookie.model.ids import BookieId, LedgerId
from bookie.wire.port import Status
from replicator.queue import ordering
from replicator.queue.places import LARGE_IN_FLIGHT_MAX
from replicator.telemetry.events import Ending
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time, until

MANY = 60


async def _true(value: bool) -> bool:
    return value


async def ledgers_on(world: RepairWorld, members: str, ledger_ids: range, *, count: int = 4) -> None:
    for ledger_id in ledger_ids:
        metadata = make_metadata((0, members), quorum=(len(members.split()), 1), last=count - 1)
        await world.ledger(ledger_id, metadata, count)


@in_virtual_time
async def test_a_critical_ledger_that_failed_waits_only_for_its_delay() -> None:
    async with a_world("a b c d e s t") as world:
        await ledgers_on(world, "a b c", range(1, MANY))
        await ledgers_on(world, "s d", range(99, 100))
        await world.kill("c", "d")
        for ledger_id in range(1, MANY):
            await world.tasks.marking.mark(LedgerId(ledger_id), names("c"))
        await world.tasks.marking.mark(LedgerId(99), names("d"))
        world.bookies["s"].read_status = Status.TIMEOUT
        running = world.worker(ledgers_in_flight=1, bytes_per_second=240)  # about one ledger per second
        results = running.recorder.results
        async with asyncio.TaskGroup() as group:
            group.create_task(running.worker.run())
            await until(lambda: _true(any(result.ending is Ending.FAILED for result in results)))
            world.bookies["s"].read_status = None
        order = [result.ledger_id for result in results if result.ending is Ending.REPAIRED]
        assert len(order) == MANY
        assert order.index(LedgerId(99)) < MANY // 2


@pytest.mark.parametrize("ledgers_in_flight", [8, 2])
@in_virtual_time
async def test_critical_ledgers_that_fail_again_and_again_do_not_stop_other_repairs(ledgers_in_flight: int) -> None:
    """Their bookie answers slowly, and only with errors. Many more of them than places are due at any time."""
    critical, minute_s = 8 * ledgers_in_flight, 60.0
    async with a_world("a b c h x t u") as world:
        await world.ledger(LEDGER, make_metadata((0, "b c x"), quorum=(3, 2), last=9), 10)
        for ledger_id in range(100, 100 + critical):
            await world.ledger(ledger_id, make_metadata((0, "a h x"), quorum=(3, 2)), 5)
        await world.kill("x")
        for ledger_id in range(100, 100 + critical):
            await world.tasks.marking.mark(LedgerId(ledger_id), names("a x"))
        world.bookies["h"].read_status = Status.IO_ERROR
        world.bookies.transport.faults(BookieId("h")).delay_s = 14.0
        running = world.worker(once=False, ledgers_in_flight=ledgers_in_flight)
        async with world.running(running):
            await world.clock.sleep(20 * minute_s)  # each of them has failed several times
            await world.tasks.marking.mark(LEDGER, names("x"))
            await world.clock.sleep(15 * minute_s)
            ends = {result.ledger_id: result.ending for result in running.recorder.results}
        assert ends[LEDGER] is Ending.REPAIRED
        assert set(ends.values()) == {Ending.REPAIRED, Ending.FAILED}


@in_virtual_time
async def test_failing_ledgers_keep_a_quarter_of_the_places() -> None:
    places = 8
    async with a_world("a b c h x t u") as world:
        await ledgers_on(world, "h x", range(1, 40))
        await ledgers_on(world, "b c x", range(100, 200))
        await world.kill("x")
        for ledger_id in (*range(1, 40), *range(100, 200)):
            await world.tasks.marking.mark(LedgerId(ledger_id), names("x"))
        world.bookies["h"].read_status = Status.TOO_MANY_REQUESTS
        for name in "bctu":
            world.bookies.transport.faults(BookieId(name)).delay_s = 1.0
        running = world.worker(once=False, ledgers_in_flight=places)
        most = 0
        async with world.running(running):
            for _ in range(300):
                await world.clock.sleep(1.0)
                most = max(most, running.worker._places.failing_count)
        repaired = [result for result in running.recorder.results if result.ending is Ending.REPAIRED]
        assert len(repaired) == 100
        assert 0 < most <= places // 4


@in_virtual_time
async def test_ledgers_of_a_wiped_registered_bookie_are_as_urgent_as_those_of_a_lost_one() -> None:
    async with a_world("a b c d e t") as world:
        await ledgers_on(world, "a b c", range(1, MANY))
        await ledgers_on(world, "a d", range(99, 100))
        await world.kill("c", "d")
        await world.add_bookies("d", incarnation="2")  # empty disks under the same bookie id
        for ledger_id in range(1, MANY):
            await world.tasks.marking.mark(LedgerId(ledger_id), names("c"))
        await world.tasks.marking.mark(LedgerId(99), names("d"))
        recorder = await world.heal(ledgers_in_flight=1)
        assert recorder.results[0].ledger_id == 99


@in_virtual_time
async def test_ledgers_without_a_copy_come_last_when_marked_and_when_retried() -> None:
    async with a_world("a b c d e t") as world:
        await ledgers_on(world, "d e", range(1, 10))
        await ledgers_on(world, "a b c", range(10, 20))
        await world.kill("c", "d", "e")
        for ledger_id in range(1, 10):
            await world.tasks.marking.mark(LedgerId(ledger_id), names("d e"))
        for ledger_id in range(10, 20):
            await world.tasks.marking.mark(LedgerId(ledger_id), names("c"))
        recorder = await world.heal(ledgers_in_flight=1)
        endings = recorder.endings()
        assert endings[:10] == [Ending.REPAIRED] * 10
        assert set(endings[10:]) == {Ending.PARKED}


@in_virtual_time
async def test_a_ledger_that_becomes_critical_does_not_wait_for_a_slot() -> None:
    async with a_world("a b c d t") as world:
        await ledgers_on(world, "a b c", range(1, 7), count=400)
        await ledgers_on(world, "b d", range(9, 10))
        await world.kill("c")
        for ledger_id in range(1, 7):
            await world.tasks.marking.mark(LedgerId(ledger_id), names("c"))
        running = world.worker(once=False, ledgers_in_flight=4, bytes_per_second=1000)
        results = running.recorder.results
        async with asyncio.TaskGroup() as group:
            group.create_task(running.worker.run())
            await until(lambda: _true(running.worker.load().ledgers_in_flight == 4))
            await world.kill("d")
            await world.tasks.marking.mark(LedgerId(9), names("d"))
            await until(lambda: _true(len(results) >= 7))
            running.worker.stop()
        assert [result.ledger_id for result in results].index(LedgerId(9)) <= 2  # at most two batches had begun


@in_virtual_time
async def test_a_boosted_ledger_comes_first_among_those_with_as_many_copies() -> None:
    async with a_world("a b c d e s t") as world:
        await ledgers_on(world, "a b c", range(1, MANY))
        await ledgers_on(world, "s d", range(99, 100))
        await world.kill("c", "d")
        for ledger_id in range(1, MANY):
            await world.tasks.marking.mark(LedgerId(ledger_id), names("c"))
        await world.tasks.marking.mark(LedgerId(99), names("d"))
        boosts, now_ms = Boosts(world.store, world.cluster.root), world.clock.epoch_ms()
        await boosts.start(Boost(LedgerId(30), "me", now_ms, now_ms + 3_600_000))
        await boosts.start(Boost(LedgerId(31), "me", now_ms - 7_200_000, now_ms - 1))
        recorder = await world.heal(ledgers_in_flight=1)
        assert [result.ledger_id for result in recorder.results][:2] == [99, 30]
        assert [boost.ledger_id for boost in await boosts.active(0)] == [30]


@pytest.mark.parametrize("is_denied", [False, True])
@in_virtual_time
async def test_an_ended_boost_that_cannot_be_deleted_does_not_stop_repairs(is_denied: bool) -> None:
    async with a_world("a b c t") as world:
        await ledgers_on(world, "a b c", range(1, 2))
        boosts, now_ms = Boosts(world.store, world.cluster.root), world.clock.epoch_ms()
        await boosts.start(Boost(LedgerId(31), "me", now_ms - 7_200_000, now_ms - 1))
        if not is_denied:
            await world.store.create(f"{boosts.path(LedgerId(31))}/x")
        await world.lose("c")
        running = world.worker(once=False)

        async def refuse(operation: str, path: str) -> Fault | None:
            if is_denied and operation == "delete" and path == boosts.path(LedgerId(31)):
                raise AccessDeniedError(f"delete {path}")
            return None

        running.store.fault_hook = refuse
        async with world.running(running):
            await until(world.is_clean, seconds=60.0)


async def most_in_flight(entries: int) -> int:
    """Repair forty ledgers with default settings, and return the largest number in repair at the same time."""
    async with a_world("a b c t") as world:
        await ledgers_on(world, "a b c", range(1, 41), count=entries)
        await world.kill("c")
        for ledger_id in range(1, 41):
            await world.tasks.marking.mark(LedgerId(ledger_id), names("c"))
        running = world.worker()
        seen: set[int] = set()

        async def sample(operation: str, path: str) -> Fault | None:
            seen.add(running.worker.load().ledgers_in_flight)
            await asyncio.sleep(0.001)
            return None

        running.store.fault_hook = sample
        await running.worker.run()
        assert running.recorder.endings() == [Ending.REPAIRED] * 40
        return max(seen)


@in_virtual_time
async def test_large_ledgers_are_repaired_concurrently_in_smaller_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "SMALL_ENTRIES", 4)
    assert await most_in_flight(4) == 40
    assert await most_in_flight(5) == LARGE_IN_FLIGHT_MAX


@in_virtual_time
async def test_small_ledgers_do_not_wait_for_a_place_of_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "SMALL_ENTRIES", 4)
    many = LARGE_IN_FLIGHT_MAX + 4
    large, small = range(1, 1 + many), range(100, 110)
    async with a_world("a b c d e t u") as world:
        await ledgers_on(world, "a e c", large, count=5)
        await ledgers_on(world, "b d c", small)
        await world.kill("c")
        await world.register("a", is_read_only=True)  # no copies go there
        for ledger_id in large:  # one copy left, so they are more urgent than the small ones
            await world.tasks.marking.mark(LedgerId(ledger_id), names("a c"))
        for ledger_id in small:
            await world.tasks.marking.mark(LedgerId(ledger_id), names("c"))
        world.bookies.transport.faults(BookieId("a")).delay_s = 5.0  # it is asked for its entries first
        running = world.worker(once=False)
        async with world.running(running):
            await until(lambda: _true(len(running.recorder.results) == len(small)), seconds=4.0)
            assert {result.ledger_id for result in running.recorder.results} == set(small)
            assert running.worker.load().ledgers_in_flight == LARGE_IN_FLIGHT_MAX
            await until(world.is_clean)


@in_virtual_time
async def test_urgent_large_ledgers_do_not_wait_for_large_ledgers_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "SMALL_ENTRIES", 4)
    async with a_world("a b c d e t") as world:
        await ledgers_on(world, "a b c", range(1, 41), count=5)
        await ledgers_on(world, "e d", range(99, 100), count=5)
        await world.kill("c")
        for ledger_id in range(1, 41):
            await world.tasks.marking.mark(LedgerId(ledger_id), names("c"))
        running = world.worker(bytes_per_second=100, once=False)  # each ledger takes seconds
        results = running.recorder.results
        work = asyncio.ensure_future(running.worker.run())
        await until(lambda: _true(running.worker.load().ledgers_in_flight == LARGE_IN_FLIGHT_MAX))
        await world.lose("d")
        await world.tasks.marking.mark(LedgerId(99), names("d"))
        await until(lambda: _true(LedgerId(99) in [result.ledger_id for result in results]))
        assert len(results) < 40
        running.worker.stop()
        await work
