"""Failures and pauses are shared: a ledger that cannot be repaired costs a fleet no more than one worker."""

from __future__ import annotations

import asyncio
import random

import pytest

from bookie.metadata.layout import lock_path
from bookie.metadata.own_state import own_path
from bookie.metadata.port import ANY_VERSION, StoreUnavailableError
from bookie.metadata.store.memory import Fault
from bookie.metadata.tasks.failures import FailedTask
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import Status
from replicator.queue.parking import ATTEMPTS_MAX, RECHECK_S, Memory
from replicator.telemetry.events import Ending
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, Running, a_world, answers
from tests.worlds.virtual_time import in_virtual_time, until

WORKERS = 3
"""The number of workers that check all tasks."""


def start(world: RepairWorld, count: int = WORKERS, *, poll_interval_s: float = 5.0) -> list[Running]:
    return [world.worker(once=False, seed=seed, poll_interval_s=poll_interval_s).start() for seed in range(count)]


def endings(workers: list[Running], ending: Ending) -> int:
    return sum(running.recorder.endings().count(ending) for running in workers)


async def failures(world: RepairWorld) -> list[LedgerId]:
    return [record.ledger_id for record in await world.ports(world.session()).failures.list()]


@in_virtual_time
async def test_a_failing_ledger_is_tried_by_the_fleet_as_often_as_by_one_worker() -> None:
    tried: dict[int, int] = {}
    for count in (1, WORKERS):
        async with a_world("a b t") as world:
            await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
            await world.lose("b")

            async def bug(operation: str, path: str, world: RepairWorld = world) -> Fault | None:
                if operation == "multi" and path == world.ledgers.path(LEDGER):
                    raise RuntimeError("a bug, or so it seems")
                return None

            workers = start(world, count)
            for running in workers:
                running.store.fault_hook = bug
            await asyncio.sleep(900)
            tried[count] = endings(workers, Ending.FAILED)
            assert await failures(world) == [LEDGER]
            for running in workers:
                running.store.fault_hook = None
            await until(world.is_clean)
            assert await failures(world) == []
            for running in workers:
                await running.stop()
    assert 5 <= tried[1] <= 12
    assert tried[WORKERS] <= tried[1] + 2  # pauses are random


@pytest.mark.parametrize("error", [StoreUnavailableError("no answer"), RuntimeError("a bug")], ids=["store", "bug"])
def test_a_failed_repair_logs_its_reason_and_only_a_bug_has_a_traceback(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    @in_virtual_time
    async def story() -> None:
        async with a_world("a b t") as world:
            await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
            await world.lose("b")
            running = world.worker()

            async def fail_first_turn(operation: str, path: str) -> Fault | None:
                if not running.recorder.results and path == lock_path(ROOT, LEDGER):
                    raise error
                return None

            running.store.fault_hook = fail_first_turn
            await running.worker.run()
            assert running.recorder.endings() == [Ending.FAILED, Ending.REPAIRED]

    story()
    (failed,) = [record for record in caplog.records if record.getMessage() == "repair failed"]
    assert failed.__dict__["error"] == str(error)
    assert bool(failed.exc_info) is isinstance(error, RuntimeError)


@in_virtual_time
async def test_an_unreachable_bookie_parks_a_ledger_after_attempts_of_all_workers_together() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        world.bookies.stop_listening("a")
        workers = start(world)
        await until(lambda: is_parked(world))
        assert endings(workers, Ending.FAILED) == ATTEMPTS_MAX - 1
        assert endings(workers, Ending.PARKED) == 1
        assert await failures(world) == []
        for running in workers:
            await running.stop()


async def is_parked(world: RepairWorld) -> bool:
    return bool(await world.parked.list())


@in_virtual_time
async def test_a_parked_ledger_is_retried_once_per_period_by_the_fleet() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("b")
        for name in "ac":
            world.bookies[name].results[EntryId(3)] = answers(Status.NO_ENTRY)
        workers = start(world, poll_interval_s=60.0)
        await asyncio.sleep(4.5 * RECHECK_S)
        assert endings(workers, Ending.PARKED) == 1 + 4
        [record] = await world.parked.list()
        assert (record.reason, record.attempts) == (ParkReason.UNREADABLE_ENTRIES, 4)
        for running in workers:
            await running.stop()


@in_virtual_time
async def test_a_run_with_once_tries_tasks_that_others_have_given_up() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        ports = world.ports(world.session())
        for _ in range(3 * ATTEMPTS_MAX):
            record = world.worker().worker._queue._memory.record_failure(LEDGER)
        await ports.failures.note(record)
        await world.heal()
        await world.assert_whole(LEDGER, packets, "t")
        assert await failures(world) == []


def test_a_listing_that_overlaps_the_write_of_a_failure_does_not_forget_it() -> None:
    clock = ManualClock()
    memory = Memory(clock, random.Random(1))
    record = memory.record_failure(LEDGER)
    clock.now_s += 1
    memory.forget_deleted_failures((), clock.monotonic_s())
    assert memory.failures(LEDGER) == 1
    memory.finish_recording(record, is_kept=False)
    clock.now_s += 1
    memory.forget_deleted_failures((), clock.monotonic_s())
    assert memory.failures(LEDGER) == 0


@in_virtual_time
async def test_a_ledger_marked_again_during_its_repair_does_not_wait_for_an_earlier_failure_again() -> None:
    """R95."""
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        pause_s = 200.0
        await world.ports(world.session()).failures.note(FailedTask(LEDGER, 6, pause_s, "token"))

        async def another_loss() -> None:
            await world.tasks.marking.mark(LEDGER, names("z"))

        world.bookies["t"].before_add = another_loss
        started_s = world.clock.monotonic_s()
        running = world.worker(once=False).start()
        await until(world.is_clean)
        assert running.recorder.endings() == [Ending.MARKED_AGAIN, Ending.NOTHING_MISSING]
        assert pause_s <= world.clock.monotonic_s() - started_s < 1.5 * pause_s
        assert await failures(world) == []
        await running.stop()
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_a_damaged_record_of_failures_counts_as_none_and_is_removed_with_the_task() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        await world.ports(world.session()).failures.note(world.worker().worker._queue._memory.record_failure(LEDGER))
        path = own_path("failures", ROOT) + f"/{LEDGER}"
        await world.store.set(path, b"{", ANY_VERSION)
        await world.heal()
        await world.assert_whole(LEDGER, packets, "t")
        assert await world.store.stat(path) is None


@in_virtual_time
async def test_parked_ledgers_share_one_list_of_bookies() -> None:
    async with a_world("a b c") as world:
        for ledger_id in range(5):
            await world.ledger(ledger_id, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
            await world.tasks.marking.mark(LedgerId(ledger_id), names("a b"))
        await world.kill("a", "b")
        await world.heal()
        parked = await world.parked.list()
        assert [record.bookies_seen for record in parked] == [frozenset({BookieId("c")})] * 5
        lists = own_path("parked-bookies", ROOT)
        assert len((await world.store.children(lists)).names) == 1
        for record in parked:
            await world.parked.unpark(record.ledger_id)
        await world.parked.forget_lists()
        assert len((await world.store.children(lists)).names) == 1  # a record may be in the process of being written
        await world.parked.forget_lists()
        assert (await world.store.children(lists)).names == ()
