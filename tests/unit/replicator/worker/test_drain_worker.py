"""Draining a bookie with real workers on the twin: all data is moved while it serves, and races lose nothing."""

from __future__ import annotations

import random

import pytest

from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerState
from replicator.telemetry.events import Ending
from replicator.worker import RunEnd
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, Running, a_world
from tests.worlds.virtual_time import in_virtual_time, until


async def drain(world: RepairWorld, bookie: str, *ledgers: int) -> None:
    """Do what an operator does: record the drain, let the bookie become read-only, and mark its ledgers."""
    await Drains(world.store, ROOT).start(Drain(BookieId(bookie), "test", 1))
    await world.register(bookie, is_read_only=True)
    await world.tasks.marking.mark_many([(LedgerId(ledger), names(bookie)) for ledger in ledgers])


async def ended(running: Running, ending: Ending) -> None:
    async def is_there() -> bool:
        return ending in running.recorder.endings()

    await until(is_there)


async def is_done(world: RepairWorld) -> bool:
    return not await world.tasks.list()


@in_virtual_time
async def test_every_copy_on_a_drained_bookie_is_moved() -> None:
    async with a_world("a b c t") as world:
        striped = await world.ledger(1, make_metadata((0, "a b c"), quorum=(2, 2), last=99), 100)
        single = await world.ledger(2, make_metadata((0, "b"), quorum=(1, 1), last=9), 10)
        empty = await world.ledger(3, make_metadata((0, "b a"), quorum=(2, 2), last=-1), 0)
        await drain(world, "b", 1, 2, 3)
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED] * 3
        for ledger, packets in ((1, striped), (2, single), (3, empty)):
            metadata = await world.metadata(ledger)
            assert "b" not in metadata.members()
            await world.assert_whole(ledger, packets)
        assert (await world.metadata(1)).last_fragment.members == names("a t c")
        assert await world.is_clean()


@in_virtual_time
async def test_a_drain_replaces_both_positions_of_a_bookie_listed_twice_in_a_fragment() -> None:
    """The lint gives this advice (``DUPLICATE_MEMBER``)."""
    async with a_world("a b s t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "b a b"), quorum=(2, 2), last=9), 10)
        await drain(world, "b", LEDGER)
        await world.heal()
        assert sorted((await world.metadata(LEDGER)).last_fragment.members) == sorted(names("a s t"))
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_withdrawn_drain_changes_nothing() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(2, 2), last=9), 10)
        await drain(world, "b", LEDGER)
        await Drains(world.store, ROOT).stop(BookieId("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.NOTHING_MISSING]
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a b c")


@in_virtual_time
async def test_a_drain_withdrawn_during_the_copy_keeps_the_member() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(2, 2), last=9), 10)
        await drain(world, "b", LEDGER)

        async def withdraw() -> None:
            await Drains(world.store, ROOT).stop(BookieId("b"))

        world.bookies["t"].before_add = withdraw
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a b c")
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_drain_that_begins_while_a_task_is_judged_is_not_forgotten() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(2, 2), last=9), 10)
        drains = Drains(world.store, ROOT)
        await drains.start(Drain(BookieId("z"), "test", 1))
        await world.tasks.marking.mark(LEDGER, names("b"))

        async def begin() -> None:
            await drains.start(Drain(BookieId("b"), "test", 1))
            await world.tasks.marking.mark(LEDGER, names("b"))

        world.bookies["b"].before_list = begin
        recorder = await world.heal()
        assert recorder.endings()[0] is Ending.MARKED_AGAIN
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a t c")
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_drained_bookie_that_dies_during_the_drain_counts_as_lost() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(2, 2), last=9), 10)
        await drain(world, "b", LEDGER)

        async def die() -> None:
            await world.kill("b")

        world.bookies["t"].before_add = die
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a t c")
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_drained_bookie_without_its_copies_is_replaced_by_copies_of_others() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(2, 2), last=9), 10)
        await world.add_bookies("b", incarnation="2")  # its disks were replaced, so it has no entries
        await drain(world, "b", LEDGER)
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a t c")
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_an_open_ledger_waits_for_its_writer_and_is_not_fenced() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        await drain(world, "b", LEDGER)
        recorder = await world.heal(open_ledger_grace_s=1.0)
        assert [result.reason for result in recorder.results] == [ParkReason.OPEN_LEDGER]
        assert (await world.metadata(LEDGER)).state is LedgerState.OPEN
        assert [task.ledger_id for task in await world.tasks.list()] == [LEDGER]


@in_virtual_time
async def test_an_open_ledger_is_moved_once_its_writer_has_left_or_closed_it() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        await drain(world, "b", LEDGER)
        running = world.worker(once=False, poll_interval_s=1.0).start()
        await ended(running, Ending.PARKED)
        before = await world.ledgers.read(LEDGER)
        changed = before.metadata.with_last_fragment(EntryId(5), names("a c"))
        for bookie in ("a", "c"):
            await world.bookies.put(bookie, LEDGER, [packets[EntryId(entry)] for entry in range(5, 10)])
        await world.ledgers.write(LEDGER, changed, before.version)
        await ended(running, Ending.REPAIRED)
        metadata = await world.metadata(LEDGER)
        assert metadata.state is LedgerState.OPEN
        assert "b" not in metadata.members()
        await world.assert_whole(LEDGER, packets)
        assert await running.stop() is RunEnd.STOPPED


@in_virtual_time
async def test_a_ledger_left_open_is_recovered_once_its_drained_bookie_is_stopped() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        await drain(world, "b", LEDGER)
        running = world.worker(once=False, poll_interval_s=1.0, open_ledger_grace_s=5.0).start()
        await ended(running, Ending.PARKED)
        await world.kill("b")
        await ended(running, Ending.REPAIRED)
        assert (await world.metadata(LEDGER)).is_closed
        await world.assert_whole(LEDGER, packets)
        await running.stop()


@pytest.mark.parametrize("seed", range(12))
def test_every_entry_keeps_its_copies_during_drains_with_faults(seed: int) -> None:
    @in_virtual_time
    async def history() -> None:
        rng = random.Random(seed)
        async with a_world("a b c d e f g") as world:
            written = {}
            for ledger in range(1, 9):
                members = " ".join(rng.sample("abcdefg", 3))
                last = rng.randrange(-1, 60)
                metadata = make_metadata((0, members), quorum=(2, 2), last=last)
                written[ledger] = await world.ledger(ledger, metadata, last + 1)
            drained = rng.sample("abcdefg", 2)
            runs = [world.worker(once=False, seed=seed + i, poll_interval_s=0.5).start() for i in range(2)]
            drains = Drains(world.store, ROOT)
            for bookie in drained:
                await drain(world, bookie, *written)
                await world.clock.sleep(rng.random())
            if rng.random() < 0.5:
                await drains.stop(BookieId(drained[0]))
                await world.clock.sleep(rng.random())
                await drain(world, drained[0], *written)
            if rng.random() < 0.5:
                for marked in await world.tasks.list():
                    if (held := await world.tasks.locks.lock_unmarked(marked.ledger_id, "thief")) is not None:
                        await world.clock.sleep(rng.random())
                        await world.tasks.locks.release(held)
            await until(lambda: is_done(world))
            for running in runs:
                await running.stop()
            for ledger, packets in written.items():
                assert (await world.metadata(ledger)).members().isdisjoint(drained)
                await world.assert_whole(ledger, packets)
            assert await world.is_clean()

    history()
