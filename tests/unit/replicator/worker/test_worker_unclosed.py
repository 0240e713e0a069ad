"""Unclosed ledgers: left to their writer for a grace period, then fenced, closed and repaired; no entry is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from bookie.client.bookkeeper import BookKeeper, LedgerOptions
from bookie.client.errors import LedgerFencedError
from bookie.client.recovery.recovery import recover_ledger
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.layout import lock_path
from bookie.metadata.port import NoNodeError
from bookie.metadata.store.memory import Fault
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.digest import master_key
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerState
from bookie.wire.port import AddBatch, ReplyT, Request, Status
from replicator.telemetry.events import Ending
from replicator.worker import RunEnd
from tests.unit.replicator.worker.test_worker_absences import with_cookies
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, PASSWORD, make_metadata, make_packets, names
from tests.worlds.repair import RepairWorld, Running, a_world
from tests.worlds.virtual_time import in_virtual_time, until

GRACE_S = 30.0


def _has_failed(running: Running, times: int) -> Callable[[], Awaitable[bool]]:
    async def has_failed() -> bool:
        return running.recorder.endings().count(Ending.FAILED) >= times

    return has_failed


async def a_writer(world: RepairWorld) -> LedgerWriter:
    client = BookKeeper(world.ports(world.store).client())
    return await client.create_ledger(LedgerOptions(3, 3, 2), password=PASSWORD)


async def a_writer_that_lost_a_bookie(world: RepairWorld) -> tuple[LedgerWriter, BookieId]:
    """Create a writer of ten entries, and return it with the lost member of its ensemble."""
    writer = await a_writer(world)
    for entry in range(10):
        await writer.append(b"%d" % entry)
    lost = writer.metadata.last_fragment.members[1]
    await world.kill(lost)
    await world.tasks.marking.mark(writer.ledger_id, [lost])
    return writer, lost


@in_virtual_time
async def test_an_open_ledger_is_recovered_after_the_grace_period_and_then_repaired() -> None:
    async with a_world("a b c t") as world:
        metadata = make_metadata((0, "a b"), (10, "a b"), (20, "a b"), quorum=(2, 2), last=None)
        packets = await world.ledger(LEDGER, metadata, 25)
        await world.lose("b")
        running = world.worker(once=False).start()
        await asyncio.sleep(GRACE_S - 1)
        waiting = await world.metadata(LEDGER)
        assert [fragment.members[1] == "b" for fragment in waiting.fragments] == [False, False, True]
        assert waiting.state is LedgerState.OPEN
        # Only two turns: the first repairs what it can, the second finds nothing to do. No lock is held, and no worker
        # is blocked.
        assert running.recorder.endings() == [Ending.IN_GRACE] * 2
        assert running.recorder.queue_state.in_grace == 1
        assert await world.tasks.locks.locked() == frozenset()
        copied = {e for name in "ct" for e in await world.bookies.nodes[BookieId(name)].holds(LEDGER)}
        assert copied == set(range(20))
        await until(world.is_clean, seconds=5)
        after = await world.metadata(LEDGER)
        assert (after.state, after.last_entry_id) == (LedgerState.CLOSED, 24)
        assert running.recorder.endings()[-1] is Ending.REPAIRED
        assert running.recorder.results[-1].is_recovered
        await world.assert_whole(LEDGER, packets)
        await running.stop()


@in_virtual_time
async def test_a_run_with_once_waits_for_the_grace_period() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        await world.lose("b")
        started_s = world.clock.monotonic_s()
        recorder = await world.heal(open_ledger_grace_s=12)
        assert recorder.endings() == [Ending.IN_GRACE, Ending.REPAIRED]
        assert 12 <= world.clock.monotonic_s() - started_s < 14
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_no_recovery_begins_after_repair_was_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repair is disabled after the grace period, while the members are asked for their entries."""
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        await world.lose("b")
        await world.tasks.marking.mark(LEDGER, names("a"))  # so that a is asked in each turn
        started_s = world.clock.monotonic_s()
        ask, is_over = world.bookies.transport.ask, False

        async def ask_later(bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
            nonlocal is_over
            if world.clock.monotonic_s() - started_s >= GRACE_S and not is_over:
                is_over = True
                await world.tasks.switches.disable()
                await asyncio.sleep(1)
            return await ask(bookie, request, timeout_s)

        monkeypatch.setattr(world.bookies.transport, "ask", ask_later)
        running = world.worker(once=False).start()
        await asyncio.sleep(3 * GRACE_S)
        assert is_over
        assert (await world.metadata(LEDGER)).state is LedgerState.OPEN
        await world.tasks.switches.enable()
        await until(world.is_clean, seconds=30)
        assert (await world.metadata(LEDGER)).last_entry_id == 9
        await world.assert_whole(LEDGER, packets, "t")
        await running.stop()


@in_virtual_time
async def test_the_fragment_before_an_empty_last_one_waits_for_the_recovery_too() -> None:
    async with a_world("a b t") as world:
        await with_cookies(world, "a b t", 0)
        metadata = make_metadata((0, "a b"), (10, "a b"), (20, "a t"), quorum=(2, 2), last=None)
        packets = await world.ledger(LEDGER, metadata, 20)
        await world.lose("b")
        running = world.worker()
        run = asyncio.create_task(running.worker.run())
        await asyncio.sleep(GRACE_S - 1)
        waiting = await world.metadata(LEDGER)
        assert [fragment.members for fragment in waiting.fragments] == [names("a t"), names("a b"), names("a t")]
        assert await run is RunEnd.SETTLED
        after = await world.metadata(LEDGER)
        assert (after.state, after.last_entry_id) == (LedgerState.CLOSED, 19)
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_an_unclosed_ledger_without_entries_is_closed_before_it_loses_its_quorum(state: LedgerState) -> None:
    @in_virtual_time
    async def test() -> None:
        async with a_world("a b c t") as world:
            await with_cookies(world, "a b c t", 0)
            await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 0)
            now = await world.ledgers.read(LEDGER)
            await world.ledgers.write(LEDGER, replace(now.metadata, state=state), now.version)
            await world.lose("b")
            await world.heal()
            after = await world.metadata(LEDGER)
            assert (after.state, after.last_entry_id, after.length) == (LedgerState.CLOSED, -1, 0)
            assert after.last_fragment.members == names("a t c")
            assert await world.is_clean()

    test()


@in_virtual_time
async def test_a_recovery_whose_process_died_is_finished() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 7)
        now = await world.ledgers.read(LEDGER)
        await world.ledgers.write(LEDGER, replace(now.metadata, state=LedgerState.IN_RECOVERY), now.version)
        await world.lose("b")
        await world.heal()
        assert (await world.metadata(LEDGER)).last_entry_id == 6
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_if_a_bookie_returns_within_the_grace_period_the_writer_is_not_fenced() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        await world.lose("b")
        running = world.worker(once=False).start()
        await asyncio.sleep(GRACE_S - 1)
        await world.register("b")
        await until(world.is_clean, seconds=5)
        assert running.recorder.endings() == [Ending.IN_GRACE, Ending.NOTHING_MISSING]
        assert world.version(LEDGER) == 0
        await running.stop()


@in_virtual_time
async def test_the_grace_period_starts_again_if_the_bookie_returned_in_between() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        await world.lose("b")
        running = world.worker(once=False).start()
        await asyncio.sleep(GRACE_S - 1)
        await world.register("b")
        await until(world.is_clean, seconds=5)
        await world.lose("b")
        await asyncio.sleep(GRACE_S - 1)
        assert (await world.metadata(LEDGER)).state is LedgerState.OPEN
        await until(world.is_clean, seconds=5)
        assert (await world.metadata(LEDGER)).state is LedgerState.CLOSED
        await running.stop()


@in_virtual_time
async def test_a_ledger_closed_by_its_writer_during_the_grace_period_is_repaired_without_recovery() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        await world.lose("b")
        running = world.worker(once=False).start()
        await asyncio.sleep(10)
        now = await world.ledgers.read(LEDGER)
        await world.ledgers.write(LEDGER, now.metadata.closed(EntryId(8), 90), now.version)
        await until(world.is_clean, seconds=10)
        assert running.recorder.endings() == [Ending.IN_GRACE, Ending.REPAIRED]
        assert not running.recorder.results[-1].is_recovered
        after = await world.metadata(LEDGER)
        assert (after.last_entry_id, after.length) == (8, 90)
        await world.assert_whole(LEDGER, {i: packets[EntryId(i)] for i in map(EntryId, range(9))}, "t")
        await running.stop()


@in_virtual_time
async def test_the_deletion_of_a_waiting_ledger_ends_its_task() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        await world.lose("b")
        running = world.worker(once=False).start()
        await asyncio.sleep(10)
        await world.ledgers.delete(LEDGER)
        await until(world.is_clean, seconds=10)
        assert running.recorder.endings() == [Ending.IN_GRACE, Ending.LEDGER_DELETED]
        await running.stop()


@in_virtual_time
async def test_a_live_writer_that_replaces_the_bookie_is_not_fenced() -> None:
    async with a_world("a b c d t") as world:
        writer, lost = await a_writer_that_lost_a_bookie(world)
        running = world.worker(once=False).start()
        await asyncio.sleep(10)
        for entry in range(10, 20):
            await writer.append(b"%d" % entry)
        await asyncio.sleep(2 * GRACE_S)
        assert (await world.metadata(writer.ledger_id)).state is LedgerState.OPEN
        await until(world.is_clean, seconds=10)
        assert (await writer.close()).last_entry_id == 19
        assert lost not in (await world.metadata(writer.ledger_id)).members()
        await running.stop()


@in_virtual_time
async def test_an_idle_writer_is_fenced_and_every_acknowledged_entry_is_readable() -> None:
    async with a_world("a b c t") as world:
        writer, lost = await a_writer_that_lost_a_bookie(world)
        await world.heal()
        after = await world.metadata(writer.ledger_id)
        assert (after.state, after.last_entry_id) == (LedgerState.CLOSED, 9)
        assert lost not in after.members()
        with pytest.raises(LedgerFencedError):
            await writer.append(b"too late")
        reader = await BookKeeper(world.ports(world.store).client()).open_ledger(writer.ledger_id, password=PASSWORD)
        assert [entry.payload async for entry in reader.read_all()] == [b"%d" % entry for entry in range(10)]
        for member in after.members():
            assert await world.bookies.nodes[member].holds(writer.ledger_id) == list(range(10))
        await writer.abandon()


@in_virtual_time
async def test_a_client_that_recovers_at_the_same_time_gets_the_same_end() -> None:
    async with a_world("a b c t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 20)
        await world.lose("b")
        running = world.worker(once=True, open_ledger_grace_s=0)
        both = asyncio.create_task(recover_ledger(world.ports(world.store, 5).client(), LEDGER))
        assert await running.worker.run() is RunEnd.SETTLED
        recovered = await both
        after = await world.metadata(LEDGER)
        assert recovered.metadata.last_entry_id == after.last_entry_id == 19
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_recovery_that_is_impossible_is_parked_until_a_bookie_returns() -> None:
    async with a_world("a b c t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        await world.lose("b", "c")
        running = world.worker(once=False)
        requests = 0

        async def count(operation: str, path: str) -> Fault | None:
            nonlocal requests
            requests += 1
            return None

        running.start()

        async def is_parked() -> bool:
            return [task.reason for task in await world.parked.list()] == [ParkReason.NEEDS_RECOVERY]

        await until(is_parked, seconds=GRACE_S + 60)
        (parked,) = await world.parked.list()
        assert "cannot be recovered now" in parked.detail
        assert "b: " in parked.detail
        running.store.fault_hook = count
        await asyncio.sleep(900)
        assert running.recorder.endings() == [Ending.IN_GRACE, Ending.PARKED]
        assert requests < 900 / 5 * 30
        running.store.fault_hook = None
        await world.register("c")
        await until(world.is_clean, seconds=60)
        await world.assert_whole(LEDGER, packets)
        assert (await world.metadata(LEDGER)).last_entry_id == 9
        await running.stop()


@in_virtual_time
async def test_a_ledger_with_an_unknown_password_is_not_fenced_with_a_guess() -> None:
    async with a_world("a b c t") as world:
        before = make_metadata((0, "a b c"), quorum=(3, 3), last=None)
        before = replace(before, password=None, digest_type=None, ctime_ms=None, format_version=1)
        await world.ledgers.create(LEDGER, before)
        await world.lose("c")
        recorder = await world.heal()
        assert (recorder.results[-1].ending, recorder.results[-1].reason) == (Ending.PARKED, ParkReason.NEEDS_RECOVERY)
        assert "no password" in recorder.results[-1].detail
        assert (await world.metadata(LEDGER)).state is LedgerState.OPEN
        stored = await world.bookies.nodes[BookieId("a")].storage.add(
            AddBatch(LEDGER, master_key(b"right"), list(make_packets(LEDGER, 1).values()))
        )
        assert stored.status is Status.OK


@in_virtual_time
async def test_a_recovery_without_answers_from_registered_bookies_is_retried_after_pauses() -> None:
    async with a_world("a b c t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        await world.lose("b")
        world.bookies.stop_listening("a")
        running = world.worker()
        assert await running.worker.run() is RunEnd.UNSETTLED
        assert running.recorder.endings() == [Ending.IN_GRACE, *[Ending.FAILED] * 5]
        assert "a: UNREACHABLE" in running.recorder.results[-1].detail
        world.bookies.listen("a")
        await world.heal()
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_new_bookie_ends_the_pause_after_a_failed_recovery() -> None:
    async with a_world("a b c t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        await world.lose("b")
        world.bookies.stop_listening("a")
        running = world.worker(once=False).start()
        await until(_has_failed(running, 6), seconds=3600)  # by now, the pause lasts minutes
        world.bookies.listen("a")
        await world.add_bookies("v")
        await until(world.is_clean, seconds=10)
        await world.assert_whole(LEDGER, packets)
        await running.stop()


@in_virtual_time
async def test_a_recovery_is_parked_if_too_many_members_lost_their_disks() -> None:
    async with a_world("a b c t u") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        await world.kill("c")
        await world.add_bookies("c", incarnation="2")
        await world.bookies.nodes[BookieId("c")].storage.set_limbo([LEDGER])
        await world.lose("b")
        recorder = await world.heal()
        assert recorder.endings() == [Ending.IN_GRACE, Ending.PARKED]
        assert recorder.results[-1].reason is ParkReason.NEEDS_RECOVERY
        assert "c: LIMBO" in recorder.results[-1].detail
        assert (await world.metadata(LEDGER)).state is LedgerState.IN_RECOVERY


async def a_ledger_with_unknown_end(world: RepairWorld) -> None:
    """Create an open ledger with an empty last fragment; its confirmed entries are only on members in limbo."""
    await with_cookies(world, "a b c d t u", 0)
    await world.ledger(LEDGER, make_metadata((0, "a b"), (10, "c d"), quorum=(2, 2), last=None), 10)
    await world.kill("a", "b")
    await world.add_bookies("a b", incarnation="2")
    for name in "ab":
        await world.bookies.nodes[BookieId(name)].storage.set_limbo([LEDGER])
    await world.lose("d")


@in_virtual_time
async def test_a_recovery_is_parked_if_the_last_confirmed_entry_is_lost_with_an_older_fragment() -> None:
    """The last ensemble shows the end, but not the length, which is stored in the previous entry."""
    async with a_world("a b c d t u") as world:
        await a_ledger_with_unknown_end(world)
        recorder = await world.heal()
        assert recorder.endings() == [Ending.IN_GRACE, Ending.PARKED]
        assert recorder.results[-1].reason is ParkReason.NEEDS_RECOVERY
        assert "entry 9, which was confirmed, cannot be read (b: LIMBO, a: LIMBO)" in recorder.results[-1].detail


@in_virtual_time
async def test_a_recovery_is_retried_if_the_last_confirmed_entry_may_still_be_served() -> None:
    async with a_world("a b c d t u") as world:
        await a_ledger_with_unknown_end(world)
        world.bookies.stop_listening("b")
        running = world.worker()
        assert await running.worker.run() is RunEnd.UNSETTLED
        assert running.recorder.endings() == [Ending.IN_GRACE, *[Ending.FAILED] * 5]


@in_virtual_time
async def test_a_dead_recovery_that_found_an_incomplete_bookie_is_finished_before_its_task_ends() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        now = await world.ledgers.read(LEDGER)
        await world.ledgers.write(LEDGER, replace(now.metadata, state=LedgerState.IN_RECOVERY), now.version)
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings()[0] is Ending.IN_GRACE
        assert (await world.metadata(LEDGER)).last_entry_id == 9
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_an_unreachable_source_of_an_older_fragment_does_not_keep_the_ledger_open() -> None:
    async with a_world("a b c d t u") as world:
        metadata = make_metadata((0, "d b"), (10, "a b"), quorum=(2, 2), last=None)
        packets = await world.ledger(LEDGER, metadata, 20)
        await world.lose("b")
        world.bookies.stop_listening("d")
        running = world.worker(once=False).start()
        await asyncio.sleep(600)
        assert Ending.FAILED in running.recorder.endings()
        after = await world.metadata(LEDGER)
        assert (after.state, after.last_entry_id) == (LedgerState.CLOSED, 19)
        world.bookies.listen("d")
        await until(world.is_clean)
        await world.assert_whole(LEDGER, packets)
        await running.stop()


@in_virtual_time
async def test_a_member_of_an_open_ledger_that_lost_its_disk_counts_as_lost() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        await world.kill("b")
        await world.add_bookies("b", incarnation="2")
        await world.bookies.nodes[BookieId("b")].storage.set_limbo([LEDGER])
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings()[0] is Ending.IN_GRACE
        after = await world.metadata(LEDGER)
        assert (after.state, after.last_entry_id) == (LedgerState.CLOSED, 9)
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_two_workers_recover_and_repair_while_locks_disappear() -> None:
    async with a_world("a b c d t u") as world:
        packets = {}
        for ledger_id in range(6):
            metadata = make_metadata((0, "a b c"), (4, "b c d"), quorum=(3, 2), last=None)
            packets[ledger_id] = await world.ledger(ledger_id, metadata, 12)
        await world.kill("b")
        await world.tasks.marking.mark_many([(LedgerId(i), names("b")) for i in range(6)])
        workers = [world.worker(seed=i, once=False, open_ledger_grace_s=1, poll_interval_s=0.5) for i in range(2)]
        for running in workers:
            running.start()
        for _ in range(40):
            for ledger_id in range(6):
                with contextlib.suppress(NoNodeError):
                    await world.store.delete(lock_path(ROOT, LedgerId(ledger_id)))
            await asyncio.sleep(0.1)
        await until(world.is_clean, seconds=600)
        for running in workers:
            await running.stop()
        for ledger_id, expected in packets.items():
            assert (await world.metadata(ledger_id)).last_entry_id == 11
            await world.assert_whole(ledger_id, expected)
