"""The worker under concurrency: writers, other workers, lost locks and sessions, stops and crashes."""

from __future__ import annotations

import asyncio
import random

import pytest

from bookie.metadata.layout import lock_path, task_path
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.store.memory import Fault, MemoryStore
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.errors import InvariantError
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import Fragment
from bookie.wire.port import Status
from replicator.repair.lease import Lease, LeaseLostError
from replicator.telemetry.events import Ending
from replicator.worker import RunEnd
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time, run_virtual, until


@in_virtual_time
async def test_a_concurrent_ensemble_change_by_the_writer_loses_nothing_and_repeats_no_copy() -> None:
    async with a_world("a b c t") as world:
        before = make_metadata((0, "a b"), (10, "a c"), quorum=(2, 2), last=None)
        packets = await world.ledger(LEDGER, before, 15)
        await world.lose("b")

        async def change_ensemble() -> None:
            now = await world.ledgers.read(LEDGER)
            wanted = now.metadata.with_last_fragment(EntryId(15), names("c a"))
            await world.ledgers.write(LEDGER, wanted, now.version)

        for name in "ct":
            world.bookies[name].before_add = change_ensemble
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED]
        after = await world.metadata(LEDGER)
        assert after.fragments[1:] == (Fragment(EntryId(10), names("a c")), Fragment(EntryId(15), names("c a")))
        assert "b" not in after.members()
        copied = sum(len(batch.entries) for name in "ct" for batch in world.bookies[name].adds)
        assert copied == 10
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_ledger_deleted_before_or_during_the_copy_ends_its_task() -> None:
    async with a_world("a b t") as world:
        for ledger_id in (1, 2):
            await world.ledger(ledger_id, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.kill("b")
        await world.tasks.marking.mark(LedgerId(1), names("b"))
        await world.tasks.marking.mark(LedgerId(2), names("b"))
        await world.ledgers.delete(LedgerId(1))
        world.bookies["t"].before_add = lambda: world.ledgers.delete(LedgerId(2))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.LEDGER_DELETED, Ending.LEDGER_DELETED]
        assert await world.is_clean()
        assert world.version(LedgerId(2)) is None


@pytest.mark.parametrize("seed", range(5))
def test_two_workers_share_the_tasks(seed: int) -> None:
    async def main() -> None:
        async with a_world("a b c d t u") as world:
            packets = {}
            for ledger_id in range(12):
                metadata = make_metadata((0, "a b c"), (10, "b c d"), quorum=(3, 2), last=19)
                packets[ledger_id] = await world.ledger(ledger_id, metadata, 20)
            await world.kill("b")
            await world.tasks.marking.mark_many([(LedgerId(i), names("b")) for i in range(12)])
            workers = [world.worker(seed=seed * 2 + i, ledgers_in_flight=3) for i in range(2)]
            ends = await asyncio.gather(*(running.worker.run() for running in workers))
            assert ends == [RunEnd.SETTLED, RunEnd.SETTLED]
            repaired = [
                result.ledger_id
                for running in workers
                for result in running.recorder.results
                if result.ending is Ending.REPAIRED
            ]
            assert sorted(repaired) == list(range(12))
            for ledger_id, expected in packets.items():
                assert world.version(LedgerId(ledger_id)) == 1
                await world.assert_whole(ledger_id, expected)
            assert await world.is_clean()

    run_virtual(main())


@in_virtual_time
async def test_a_worker_that_lost_its_lock_changes_nothing() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        world.bookies["t"].before_add = lambda: world.store.delete(lock_path(ROOT, LEDGER))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.STOPPED, Ending.REPAIRED]
        assert recorder.looks == [0, 1]  # the versions of the metadata at the two checks
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_a_lock_taken_by_another_worker_stops_the_repair_and_is_not_released() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        running = world.worker(once=False)

        async def replace_lock() -> None:
            await world.store.delete(lock_path(ROOT, LEDGER))
            assert await world.tasks.locks.lock(LEDGER, "thief") is not None

        world.bookies["t"].before_add = replace_lock
        running.start()
        await asyncio.sleep(60)
        assert running.recorder.endings() == [Ending.STOPPED]
        assert await world.tasks.locks.locked() == {LEDGER}
        assert world.version(LEDGER) == 0
        await running.stop()


@in_virtual_time
async def test_a_lease_ends_with_its_session_and_changes_nothing_afterwards() -> None:
    async with a_world("a b") as world:
        await world.tasks.marking.mark(LEDGER, names("b"))
        store = MemoryStore(world.cell)
        ports = world.ports(store)
        held = await ports.tasks.locks.lock(LEDGER, "first")
        assert held is not None
        lease = Lease(ports, held, store.session.epoch)
        assert await lease.may_continue()
        await lease.ensure_ours()
        store.expire()
        store.resume()
        assert await ports.tasks.locks.lock(LEDGER, "second") is not None
        assert not await lease.may_continue()
        for use in (lease.ensure_ours, lease.complete):
            with pytest.raises(LeaseLostError):
                await use()
        assert await lease.release()
        assert await world.tasks.locks.locked() == {LEDGER}
        await store.close()


@in_virtual_time
async def test_a_task_marked_again_during_the_repair_stays() -> None:
    async with a_world("a b c t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("b")

        async def another_loss() -> None:
            await world.tasks.marking.mark(LEDGER, names("z"))

        for name in "tu":
            world.bookies[name].before_add = another_loss
        recorder = await world.heal()
        assert recorder.endings() == [Ending.MARKED_AGAIN, Ending.NOTHING_MISSING]
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_task_that_was_deleted_and_created_again_during_the_repair_stays() -> None:
    async with a_world("a b c t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("b")
        task = await world.task(LEDGER)

        async def a_loss_after_the_end_of_the_task() -> None:
            for name in "tu":
                world.bookies[name].before_list = None
            await world.store.delete(task_path(ROOT, LEDGER), ANY_VERSION)
            await world.lose("c")
            made_anew = await world.task(LEDGER)
            assert task is not None
            assert made_anew is not None
            assert made_anew.version == task.version

        for name in "tu":
            world.bookies[name].before_list = a_loss_after_the_end_of_the_task
        recorder = await world.heal()
        assert recorder.endings() == [Ending.MARKED_AGAIN, Ending.REPAIRED]
        assert (await world.metadata(LEDGER)).members() == set(names("a t u"))
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_worker_without_a_session_changes_nothing() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        running = world.worker(once=False)

        async def expire() -> None:
            running.store.expire()

        world.bookies["t"].before_add = expire
        running.start()
        await asyncio.sleep(120)
        assert running.recorder.results == []
        assert world.version(LEDGER) == 0
        assert await world.task(LEDGER) is not None
        assert await world.tasks.locks.locked() == frozenset()
        running.store.resume()
        await until(world.is_clean, seconds=20)
        await running.stop()
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_a_new_session_does_not_continue_the_repair_of_the_old_one() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        running = world.worker(once=False)
        sessions: list[int] = []

        async def expire() -> None:
            running.store.expire()
            running.store.resume()

        async def note(operation: str, path: str) -> Fault | None:
            if operation in ("set", "multi") and path == world.ledgers.path(LEDGER):
                sessions.append(running.store.session.epoch)
            return None

        running.store.fault_hook = note
        world.bookies["t"].before_add = expire
        running.start()
        await until(world.is_clean, seconds=60)
        await running.stop()
        assert sessions == [2]  # a single write of metadata, in the second session
        assert running.recorder.endings() == [Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_a_connection_that_returns_in_time_does_not_interrupt_the_repair() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        running = world.worker()

        async def suspend_briefly() -> None:
            running.store.suspend()
            asyncio.get_running_loop().call_later(3, running.store.resume)

        world.bookies["t"].before_add = suspend_briefly
        assert await running.worker.run() is RunEnd.SETTLED
        assert running.recorder.endings() == [Ending.REPAIRED]
        assert len(world.bookies["t"].adds) == 1
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_disabling_stops_before_the_next_copy_and_enabling_continues() -> None:
    async with a_world("a b t") as world:
        metadata = make_metadata((0, "a b"), quorum=(2, 2), last=19_999)
        packets = await world.ledger(LEDGER, metadata, 20_000)
        await world.lose("b")
        running = world.worker(once=False)
        world.bookies["t"].before_add = world.tasks.switches.disable
        running.start()
        await asyncio.sleep(60)
        assert running.recorder.endings() == [Ending.STOPPED]
        assert len(world.bookies["t"].adds) <= 4  # only what was already in transfer
        assert world.version(LEDGER) == 0
        assert await world.tasks.locks.locked() == frozenset()
        await world.tasks.switches.enable()
        await until(world.is_clean, seconds=20)
        await running.stop()
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_a_run_with_once_does_not_wait_for_repair_to_be_enabled() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))
        await world.tasks.switches.disable()
        running = world.worker()
        assert await running.worker.run() is RunEnd.UNSETTLED
        assert running.recorder.results == []


@in_virtual_time
async def test_a_violated_invariant_parks_one_ledger_and_does_not_end_the_worker() -> None:
    async with a_world("a b t") as world:
        for ledger_id in (LEDGER, 8, 9):
            await world.ledger(ledger_id, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
            await world.tasks.marking.mark(LedgerId(ledger_id), names("b"))
        await world.kill("b")

        async def broken(operation: str, path: str) -> Fault | None:
            if path == world.ledgers.path(LEDGER) and operation == "multi":
                raise InvariantError("two and two are five")
            return None

        running = world.worker()
        running.store.fault_hook = broken
        assert await running.worker.run() is RunEnd.SETTLED
        assert await world.tasks.locks.locked() == frozenset()
        assert [task.ledger_id for task in await world.tasks.list()] == [LEDGER]
        (parked,) = await world.parked.list()
        assert parked.reason is ParkReason.INTERNAL_ERROR
        assert "two and two are five" in parked.detail
        assert "test_worker_races" in parked.detail


@in_virtual_time
async def test_occasional_failures_of_the_store_only_delay_repairs() -> None:
    async with a_world("a b t") as world:
        packets = {}
        for ledger_id in range(5):
            packets[ledger_id] = await world.ledger(ledger_id, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.kill("b")
        await world.tasks.marking.mark_many([(LedgerId(i), names("b")) for i in range(5)])
        running = world.worker(once=False)
        rng = random.Random(5)

        async def flaky(operation: str, path: str) -> Fault | None:
            return rng.choices((None, Fault.FAIL_BEFORE, Fault.LOSE_ANSWER), (90, 5, 5))[0]

        running.store.fault_hook = flaky
        running.start()
        await until(world.is_clean, seconds=3600, every_s=1)
        await running.stop()
        for ledger_id, expected in packets.items():
            await world.assert_whole(ledger_id, expected)


@in_virtual_time
async def test_a_leftover_lock_is_released_even_if_its_ledger_no_longer_has_a_task() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.kill("b")
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False)
        lock = lock_path(ROOT, LEDGER)
        refused = 0

        async def fails(operation: str, path: str) -> Fault | None:
            """Let another worker complete the task just before the lock, and let the release get no answer."""
            nonlocal refused
            if operation == "multi" and not refused:
                await world.store.delete(task_path(ROOT, LEDGER), 0)
            if operation == "sync" and path == lock and refused < 3:
                refused += 1
                return Fault.FAIL_BEFORE
            return None

        async def is_free() -> bool:
            return refused == 3 and await world.store.stat(lock) is None

        running.store.fault_hook = fails
        async with world.running(running):
            await until(is_free, seconds=300)


@in_virtual_time
async def test_a_lock_that_could_not_be_released_is_released_while_repair_is_disabled() -> None:
    """Otherwise the collectors of bookies, which need the lock, wait until repair is enabled."""
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        running = world.worker(once=False)
        lock, refused = lock_path(ROOT, LEDGER), 0

        async def fails(operation: str, path: str) -> Fault | None:
            nonlocal refused
            if operation == "sync" and path == lock and refused < 6:
                refused += 1
                return Fault.FAIL_BEFORE
            return None

        async def disable() -> None:
            await world.tasks.switches.disable()
            running.store.fault_hook = fails

        async def is_free() -> bool:
            return refused == 6 and await world.store.stat(lock) is None

        world.bookies["t"].before_add = disable
        world.bookies["t"].add_replies = [Status.TOO_MANY_REQUESTS]  # the switch is read before the next attempt
        async with world.running(running):
            await until(is_free, seconds=300)


@in_virtual_time
async def test_stopping_lets_repairs_in_flight_finish_within_the_grace_period() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(1, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.ledger(2, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.kill("b")
        await world.tasks.marking.mark_many([(LedgerId(i), names("b")) for i in (1, 2)])
        running = world.worker(once=False, ledgers_in_flight=1)
        seen: list[int] = []

        async def stop() -> None:
            running.worker.stop()
            await asyncio.sleep(10)
            seen.append(1)

        world.bookies["t"].before_add = stop
        assert await running.worker.run() is RunEnd.STOPPED
        assert seen == [1]
        (result,) = running.recorder.results
        assert result.ending is Ending.REPAIRED
        if result.ledger_id == 1:
            await world.assert_whole(1, packets)
        assert len(await world.tasks.list()) == 1
        assert await world.tasks.locks.locked() == frozenset()


@in_virtual_time
async def test_a_repair_that_exceeds_the_stop_grace_is_cancelled_and_its_lock_released() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        running = world.worker(once=False, grace_s=5)

        async def stop() -> None:
            running.worker.stop()
            await asyncio.sleep(20)

        world.bookies["t"].before_add = stop
        assert await running.worker.run() is RunEnd.STOPPED
        assert running.recorder.results == []
        assert world.version(LEDGER) == 0
        assert await world.task(LEDGER) is not None
        assert await world.tasks.locks.locked() == frozenset()


async def assert_no_unverified_member(world: RepairWorld, packets: dict[EntryId, bytes], lost: str) -> None:
    """Check that each member that is not lost has all its entries (I17), and that members are distinct (I6)."""
    metadata = await world.metadata(LEDGER)
    for fragment in metadata.fragments:
        assert len(set(fragment.members)) == metadata.ensemble_size
    for bookie in metadata.members() - set(names(lost)):
        held = set(await world.bookies.nodes[bookie].holds(LEDGER))
        last = metadata.last_entry_id
        assert last is not None
        for entry_id in range(last + 1):
            fragment = metadata.fragments[metadata.fragment_index(EntryId(entry_id))]
            for step in range(metadata.write_quorum):
                if fragment.members[(entry_id + step) % metadata.ensemble_size] == bookie:
                    assert entry_id in held


async def crash_after(turns: int) -> bool:
    """Crash a worker after this many turns of the loop, and let another one finish.

    Return whether the first one had finished.
    """
    async with a_world("a b c t u") as world:
        metadata = make_metadata((0, "a b c"), (4, "b a c"), (9, "c a b"), quorum=(2, 2), last=8)
        packets = await world.ledger(LEDGER, metadata, 9)
        await world.lose("b")
        first = world.worker(seed=1)
        run = asyncio.create_task(first.worker.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = run.done()
        first.store.expire()
        run.cancel()
        await asyncio.wait([run])
        await assert_no_unverified_member(world, packets, "b")
        second = world.worker(seed=2)
        assert await second.worker.run() is RunEnd.SETTLED
        await world.assert_whole(LEDGER, packets)
        assert "b" not in (await world.metadata(LEDGER)).members()
        assert await world.is_clean()
        return is_over


def test_after_a_crash_at_any_point_another_worker_can_finish() -> None:
    turns = 0
    while not run_virtual(crash_after(turns)):
        turns += 1
    assert turns > 100
