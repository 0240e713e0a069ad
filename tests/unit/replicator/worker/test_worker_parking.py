"""What the worker cannot repair now is parked with a reason, woken by a change, and never retried in a hot loop."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.layout import task_path
from bookie.metadata.nodes import put
from bookie.metadata.own_state import own_path
from bookie.metadata.port import ANY_VERSION, NotEmptyError
from bookie.metadata.store.memory import Fault
from bookie.metadata.tasks.parked import ParkedTask, ParkReason
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import Status
from replicator.queue.task_queue import TaskQueue
from replicator.telemetry.events import Ending
from replicator.worker import RunEnd
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, a_world, answers, flipped
from tests.worlds.virtual_time import in_virtual_time, until


@in_virtual_time
async def test_an_entry_that_no_bookie_serves_parks_the_ledger_with_evidence() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("b")
        world.bookies["a"].results[EntryId(3)] = answers(Status.NO_ENTRY)
        world.bookies["c"].results[EntryId(3)] = flipped
        await world.heal()
        (parked,) = await world.parked.list()
        assert parked.reason is ParkReason.UNREADABLE_ENTRIES
        assert "entry 3" in parked.detail
        assert "a=NO_ENTRY" in parked.detail
        assert "c=CORRUPT" in parked.detail
        assert await world.task(LEDGER) is not None
        assert await world.tasks.locks.locked() == frozenset()
        assert world.version(LEDGER) == 0


@in_virtual_time
@pytest.mark.parametrize("is_draining", [False, True])
async def test_the_only_holder_of_an_entry_is_used_once_it_registers_even_if_it_accepts_no_copies(
    is_draining: bool,
) -> None:
    """R93."""
    async with a_world("a b c t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("b", "c")
        world.bookies["a"].results[EntryId(3)] = answers(Status.NO_ENTRY)
        running = world.worker(once=False).start()

        async def is_parked() -> bool:
            return [task.reason for task in await world.parked.list()] == [ParkReason.UNREADABLE_ENTRIES]

        await until(is_parked)
        if is_draining:
            await Drains(world.store, ROOT).start(Drain(BookieId("c"), "test", 1))
        await world.register("c", is_read_only=not is_draining)
        await until(world.is_clean)
        await running.stop()
        await world.assert_whole(LEDGER, packets, "t", "u")
        assert (await world.metadata(LEDGER)).members().isdisjoint(names("b c" if is_draining else "b"))


@in_virtual_time
async def test_the_readable_fragments_of_a_partly_unreadable_ledger_are_repaired() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), (10, "b a"), quorum=(2, 2), last=19), 20)
        await world.lose("b")
        world.bookies["a"].results[EntryId(3)] = answers(Status.NO_ENTRY)
        recorder = await world.heal()
        assert [f.members for f in (await world.metadata(LEDGER)).fragments] == [names("a b"), names("t a")]
        (result,) = recorder.results
        assert (result.ending, result.fragments, result.reason) == (Ending.PARKED, 1, ParkReason.UNREADABLE_ENTRIES)


@in_virtual_time
async def test_an_unreachable_source_fails_the_attempt_and_does_not_park_the_task() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("b")
        world.bookies["a"].results[EntryId(3)] = answers(Status.NO_ENTRY)
        world.bookies.stop_listening("c")
        running = world.worker(once=False).start()
        await asyncio.sleep(60)
        assert set(running.recorder.endings()) == {Ending.FAILED}
        assert await world.parked.list() == []
        world.bookies.listen("c")
        await until(world.is_clean)
        assert await running.stop() is RunEnd.STOPPED
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_a_bookie_that_lost_entries_without_another_copy_is_not_contacted_repeatedly() -> None:
    async with a_world("a b") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.kill("b")
        await world.add_bookies("b", incarnation="2")
        world.bookies["a"].results[EntryId(3)] = answers(Status.CORRUPT)
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False).start()
        await asyncio.sleep(600)
        assert running.recorder.endings() == [Ending.PARKED]
        await running.stop()


@in_virtual_time
async def test_targets_that_keep_refusing_park_the_ledger() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        world.bookies["t"].add_replies = [Status.UNAUTHORIZED] * 100
        recorder = await world.heal()
        assert recorder.endings() == [*[Ending.FAILED] * 4, Ending.PARKED]
        (parked,) = await world.parked.list()
        assert parked.reason is ParkReason.TARGETS_REFUSE
        assert "t=UNAUTHORIZED" in parked.detail


def made_earlier(task: ParkedTask, *, days: int) -> ParkedTask:
    """Return the record as it would be if the bookies had refused this many days earlier."""
    refusals = tuple(replace(each, at_ms=each.at_ms - days * 86_400_000) for each in task.refusals)
    return replace(task, refusals=refusals)


async def wait_parked(world: RepairWorld) -> None:
    async def is_parked() -> bool:
        return [task.reason for task in await world.parked.list()] == [ParkReason.TARGETS_REFUSE]

    await until(is_parked)


@in_virtual_time
@pytest.mark.parametrize("help_by", ["restart", "another bookie", "retry", "eight days"])
async def test_a_bookie_whose_collector_deleted_the_ledger_is_not_retried_before_that_can_help(
    help_by: str,
) -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        target = world.bookies["t"]
        target.add_replies = [Status.FENCED] * 100
        running = world.worker(once=False, poll_interval_s=60.0).start()
        await wait_parked(world)
        asked = len(target.adds)
        await asyncio.sleep(3600)
        await running.stop()
        running = world.worker(once=False, seed=1, poll_interval_s=60.0).start()
        await asyncio.sleep(3600)
        assert len(target.adds) == asked
        [parked] = await world.parked.list()
        assert parked.reason is ParkReason.TARGETS_REFUSE
        assert "t=FENCED" in parked.detail
        target.add_replies.clear()
        if help_by == "restart":
            await world.kill("t")
            await asyncio.sleep(600)
            await world.register("t")
        elif help_by == "another bookie":
            await world.add_bookies("u")
        elif help_by == "retry":
            await world.parked.unpark(LEDGER)
        else:
            await world.parked.park(made_earlier(parked, days=7))
            await asyncio.sleep(3600)
            assert len(target.adds) == asked
            await world.parked.park(made_earlier(parked, days=8))
        await until(world.is_clean)
        assert await running.stop() is RunEnd.STOPPED
        await world.assert_whole(LEDGER, packets, "u" if help_by == "another bookie" else "t")


@in_virtual_time
async def test_a_bookie_that_refuses_for_another_reason_is_retried_next_to_one_that_keeps_refusing() -> None:
    async with a_world("a b t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        world.bookies["t"].add_replies = [Status.FENCED] * 100
        world.bookies["u"].add_replies = [Status.IO_ERROR] * 100
        running = world.worker(once=False).start()
        await wait_parked(world)
        asked = len(world.bookies["t"].adds)
        world.bookies["u"].add_replies.clear()
        await until(world.is_clean)
        assert await running.stop() is RunEnd.STOPPED
        assert len(world.bookies["t"].adds) == asked
        await world.assert_whole(LEDGER, packets, "u")


@in_virtual_time
async def test_changes_of_another_bookie_do_not_delay_the_next_attempt() -> None:
    async with a_world("a b t z") as world:
        await world.kill("z")
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        world.bookies["t"].add_replies = [Status.UNAUTHORIZED] * 100
        running = world.worker(once=False).start()
        await wait_parked(world)
        world.bookies["t"].add_replies.clear()
        for _ in range(4):
            await asyncio.sleep(100)
            await world.register("z", is_read_only=True)
            await asyncio.sleep(100)
            await world.kill("z")
        assert await world.is_clean()
        await running.stop()


@in_virtual_time
async def test_if_an_entry_is_too_large_for_every_target_the_ledger_is_parked_until_a_bookie_joins() -> None:
    async with a_world("a b t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        for target in "tu":
            world.bookies[target].add_replies = [Status.BAD_REQUEST] * 100
        running = world.worker(once=False).start()
        await asyncio.sleep(600)
        assert running.recorder.endings() == [Ending.PARKED]
        [task] = await world.parked.list()
        assert task.reason is ParkReason.NO_CANDIDATE_BOOKIE
        assert "t=BAD_REQUEST (as the test wants)" in task.detail
        assert "u=BAD_REQUEST (as the test wants)" in task.detail
        await world.add_bookies("v")
        await until(world.is_clean)
        assert await running.stop() is RunEnd.STOPPED
        await world.assert_whole(LEDGER, packets, "v")


@in_virtual_time
async def test_a_parked_task_completed_by_another_process_is_forgotten() -> None:
    async with a_world("a b") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        await world.heal()
        assert await world.parked.list() != []
        held = await world.tasks.locks.lock(LEDGER, "another program")
        assert held is not None
        assert await world.tasks.locks.complete(held)
        await world.heal()
        assert await world.is_clean()


UNREADABLE_RECORDS = (
    b'{"format":3,"reason":"no_candidate_bookie","detail":"","since_ms":1,"task_version":0,"bookies":"ab"}',
    b'{"format":2,"reason":"of_a_newer_release","detail":"","since_ms":1,"task_version":0,"bookies":"ab"}',
    b'{"format":2,"rea',
)


@in_virtual_time
@pytest.mark.parametrize("record", UNREADABLE_RECORDS)
async def test_an_unreadable_record_counts_as_not_parked_and_is_removed_with_the_task(record: bytes) -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        await put(world.store, world.parked.path(LEDGER), record)
        assert (await world.heal()).endings() == [Ending.REPAIRED]
        assert await world.task(LEDGER) is None
        assert await world.store.stat(world.parked.path(LEDGER)) is None
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
@pytest.mark.parametrize("ledger_id", [LEDGER, 9])
@pytest.mark.parametrize("kind", ["parked", "failures", "doubts", "parked-bookies"])
async def test_a_record_that_cannot_be_deleted_prevents_no_repair_and_is_logged_once(
    kind: str, ledger_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_world("a b t u v") as world:
        await put(world.store, f"{own_path(kind, ROOT)}/{ledger_id}/x", b"")
        running = world.worker(once=False).start()
        for ledger, lost in ((LEDGER, "a"), (LedgerId(LEDGER + 1), "b")):
            packets = await world.ledger(ledger, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
            await world.lose(lost)

            async def is_repaired(ledger: LedgerId = ledger) -> bool:
                return await world.task(ledger) is None

            await until(is_repaired)
            await world.assert_whole(ledger, packets)
            await asyncio.sleep(1500)
        assert running.run is not None
        assert not running.run.done()
        assert set(running.recorder.endings()) == {Ending.REPAIRED}
        assert sum(line.getMessage() == "record of a ledger without a task remains" for line in caplog.records) <= 1
        assert await world.store.stat(f"{own_path(kind, ROOT)}/{ledger_id}/x") is not None
        await running.stop()


@in_virtual_time
async def test_a_conflict_in_a_listing_does_not_end_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    conflicts = iter([NotEmptyError("delete /bkheal/x: it has children")])
    refresh = TaskQueue.refresh

    async def refused_once(queue: TaskQueue) -> None:
        for conflict in conflicts:
            raise conflict
        await refresh(queue)

    monkeypatch.setattr(TaskQueue, "refresh", refused_once)
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        assert (await world.heal()).endings() == [Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_doubts_that_cannot_be_deleted_stay_and_their_task_is_completed() -> None:
    async with a_world("a b c t") as world:
        doubts = world.ports(world.store).doubts
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        await doubts.add(LEDGER, names("b"))
        await put(world.store, f"{doubts.path(LEDGER)}/x", b"")
        await world.lose("b")
        running = world.worker(once=False).start()

        async def is_completed() -> bool:
            return await world.task(LEDGER) is None

        await until(is_completed, seconds=120)
        assert Ending.MARKED_AGAIN not in running.recorder.endings()
        await running.stop()
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_a_ledger_with_doubts_that_may_not_be_read_prevents_no_repair_and_no_deletion_of_other_doubts() -> None:
    denied, closed = LedgerId(LEDGER + 1), LedgerId(LEDGER + 2)
    async with a_world("a b c t") as world:
        doubts = world.ports(world.store).doubts
        for ledger in (denied, closed):
            await world.ledger(ledger, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
            await doubts.add(ledger, names("b"))
        world.cell.deny(world.ledgers.path(denied))
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("c")
        assert Ending.REPAIRED in (await world.heal()).endings()
        await world.assert_whole(LEDGER, packets, "t")
        assert await doubts.ledgers() == {denied}


@in_virtual_time
async def test_an_unreadable_record_is_replaced_by_the_next_attempt() -> None:
    async with a_world("a b") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        await put(world.store, world.parked.path(LEDGER), UNREADABLE_RECORDS[0])
        assert (await world.heal()).endings() == [Ending.PARKED]
        assert [task.reason for task in await world.parked.list()] == [ParkReason.NO_CANDIDATE_BOOKIE]


@in_virtual_time
async def test_without_a_candidate_the_ledger_is_parked_until_a_bookie_joins() -> None:
    async with a_world("a b") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        running = world.worker(once=False).start()

        async def is_parked() -> bool:
            return [task.reason for task in await world.parked.list()] == [ParkReason.NO_CANDIDATE_BOOKIE]

        await until(is_parked)
        await asyncio.sleep(300)
        assert running.recorder.endings() == [Ending.PARKED]
        await world.add_bookies("t")
        await until(world.is_clean, seconds=10)
        await world.assert_whole(LEDGER, packets, "t")
        await running.stop()


@in_virtual_time
async def test_without_a_live_copy_the_ledger_is_parked_until_a_holder_returns() -> None:
    async with a_world("a b t u") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("a", "b")
        recorder = await world.heal()
        assert [result.reason for result in recorder.results] == [ParkReason.NO_LIVE_COPY]
        await world.register("a", is_read_only=True)
        assert (await world.heal()).endings() == [Ending.REPAIRED]
        assert (await world.metadata(LEDGER)).last_fragment.members[0] == "a"
        assert await world.is_clean()


@in_virtual_time
async def test_an_incomplete_bookie_is_filled_although_it_has_the_only_copies_of_other_entries() -> None:
    """Of these other entries, the bookie lacks none. There is no bookie that could take the other lost position."""
    async with a_world("a b c") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(2, 2), last=29), 30)
        held = await world.bookies.nodes[BookieId("a")].holds(LEDGER)
        await world.kill("a", "c")
        await world.add_bookies("a", incarnation="2")
        await world.bookies.put("a", LEDGER, [packets[each] for each in held if each not in (3, 9)])
        await world.tasks.marking.mark(LEDGER, names("a c"))
        await world.heal()
        assert await world.bookies.nodes[BookieId("a")].holds(LEDGER) == held
        (parked,) = await world.parked.list()
        assert parked.reason is ParkReason.NO_CANDIDATE_BOOKIE


@in_virtual_time
async def test_a_parked_task_is_retried_when_it_is_marked_again() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("b")
        assert (await world.heal()).endings() == [Ending.PARKED]
        assert (await world.heal()).endings() == []
        await world.lose("c")
        assert (await world.heal()).endings() == [Ending.PARKED]


@in_virtual_time
async def test_an_unreadable_entry_is_retried_when_another_bookie_joins() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        world.bookies["a"].results[EntryId(3)] = answers(Status.CORRUPT)
        assert (await world.heal()).endings() == [Ending.PARKED]
        world.bookies["a"].results.clear()
        assert (await world.heal()).endings() == []
        await world.add_bookies("u")
        assert (await world.heal()).endings() == [Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_there_is_no_hot_loop_while_everything_is_parked() -> None:
    async with a_world("a b") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        running = world.worker(once=False)
        requests = 0

        async def count(operation: str, path: str) -> Fault | None:
            nonlocal requests
            requests += 1
            return None

        running.store.fault_hook = count
        running.start()
        await asyncio.sleep(3600)
        assert requests < 3600 / running.worker._settings.poll_interval_s * 30
        assert running.recorder.endings().count(Ending.PARKED) <= 3  # once at first, and once every half hour
        await running.stop()


@in_virtual_time
async def test_unreadable_metadata_is_parked() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.store.set(world.ledgers.path(LEDGER), b"junk", ANY_VERSION)
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert [result.reason for result in recorder.results] == [ParkReason.UNREADABLE_METADATA]
        assert (await world.heal()).endings() == []


@in_virtual_time
async def test_one_failing_ledger_does_not_delay_the_others() -> None:
    async with a_world("a b c t") as world:
        packets = {}
        for ledger_id in range(6):
            members = "a b" if ledger_id else "c b"
            packets[ledger_id] = await world.ledger(ledger_id, make_metadata((0, members), quorum=(2, 2), last=9), 10)
        await world.kill("b")
        await world.tasks.marking.mark_many([(LedgerId(i), names("b")) for i in range(6)])

        async def bug(operation: str, path: str) -> Fault | None:
            if operation == "multi" and path == world.ledgers.path(LedgerId(0)):
                raise RuntimeError("a bug, or so it seems")
            return None

        running = world.worker(ledgers_in_flight=1)
        running.store.fault_hook = bug
        started_s = world.clock.monotonic_s()
        assert await running.worker.run() is RunEnd.UNSETTLED
        for ledger_id in range(1, 6):
            await world.assert_whole(ledger_id, packets[ledger_id])
        failures = [result for result in running.recorder.results if result.ending is Ending.FAILED]
        assert {result.ledger_id for result in failures} == {0}
        assert len(failures) == 5
        assert world.clock.monotonic_s() - started_s > 60  # the pauses grow
        assert [task.ledger_id for task in await world.tasks.list()] == [0]


@in_virtual_time
async def test_a_run_once_reports_a_task_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    async with a_world("a b c d") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.kill("b")
        await world.tasks.marking.mark_many([(LEDGER, names("b")), (LedgerId(8), names("b"))])
        await world.store.set(task_path(ROOT, LedgerId(8)), b"rubbish", ANY_VERSION)
        assert await world.worker().worker.run() is RunEnd.UNSETTLED
        await world.assert_whole(LEDGER, packets)
        assert "tasks cannot be read, so their ledgers are not repaired" in caplog.text
