"""A member that serves no good copy of an entry which a copy for another bookie needs (R140)."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.layout import task_path
from bookie.metadata.store.memory import Fault
from bookie.metadata.tasks.damage_notes import DamageNotes
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.wire.port import ListReply, Status
from replicator.telemetry.events import Ending
from spark_jobs.runs.marking.noted_damage import mark_recorded_damage
from tests.unit.replicator.worker.test_worker_progress import Fail, dead, lost_session
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time, until

COUNT = 300
LONG, PAYLOAD_BYTES = 8000, 2000
"""The size of a fragment that takes a minute to copy at 256 KiB/s."""
UNSTRIPED = make_metadata((0, "a b c"), quorum=(3, 2), last=COUNT - 1)
STRIPED = make_metadata((0, "a b c d"), (100, "c d a b"), quorum=(3, 2), last=COUNT - 1)
WORLD = "a b c d t"


def without_lists(world: RepairWorld) -> None:
    for name in world.bookies.nodes:
        world.bookies[name].has_no_lists = True


async def a_ledger_without(world: RepairWorld, metadata: LedgerMetadata, lost: set[int]) -> dict[EntryId, bytes]:
    """Create a ledger whose member a lacks the entries in ``lost``."""
    packets = await world.ledger(LEDGER, metadata, COUNT)
    node = world.bookies.nodes[BookieId("a")]
    held = set(await node.holds(LEDGER))
    await world.kill("a")
    await world.add_bookies("a", incarnation="2")
    await world.bookies.put("a", LEDGER, [packets[EntryId(each)] for each in sorted(held - lost)])
    return packets


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("lost", [{0, 1, 2}, set(range(40, 120)), set(range(COUNT))], ids=["first", "some", "all"])
@pytest.mark.parametrize("metadata", [STRIPED, UNSTRIPED])
@in_virtual_time
async def test_missing_copies_of_a_source_are_stored_there_before_the_task_ends(
    metadata: LedgerMetadata, lost: set[int], lists: bool
) -> None:
    async with a_world(WORLD) as world:
        packets = await a_ledger_without(world, metadata, lost)
        if not lists:
            without_lists(world)
        await world.lose("c")
        recorder = await world.heal()
        assert recorder.endings() == [Ending.MARKED_AGAIN, Ending.REPAIRED]
        assert world.version(LEDGER) == 1
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@pytest.mark.parametrize("metadata", [STRIPED, UNSTRIPED])
@in_virtual_time
async def test_copies_that_a_source_cannot_read_are_stored_again(metadata: LedgerMetadata) -> None:
    async with a_world(WORLD) as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, metadata, COUNT)
        bookie = world.bookies["a"]
        bookie.unreadable = {EntryId(each) for each in range(40, 120)}
        unreadable = set(bookie.unreadable & set(await world.bookies.nodes[BookieId("a")].holds(LEDGER)))
        await world.lose("c")
        recorder = await world.heal()
        assert recorder.endings() == [Ending.MARKED_AGAIN, Ending.REPAIRED]
        assert {(copy.bookie, copy.entry_id) for copy in recorder.corrupt} == {("a", each) for each in unreadable}
        assert not bookie.unreadable & unreadable
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@pytest.mark.parametrize("metadata", [STRIPED, UNSTRIPED])
@in_virtual_time
async def test_copies_that_a_source_loses_after_it_was_found_complete_are_stored_again(
    metadata: LedgerMetadata,
) -> None:
    """The task already names this source, so it is not changed when the copy does not get an entry from the source."""
    async with a_world(WORLD) as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, metadata, COUNT)
        bookie = world.bookies["a"]
        await world.lose("c")
        await world.tasks.marking.mark(LEDGER, names("a"))
        held = set(await world.bookies.nodes[BookieId("a")].holds(LEDGER))

        async def fail() -> None:
            bookie.unreadable = {EntryId(each) for each in range(40, 120)} & held

        for target in ("d", "t"):
            world.bookies[target].before_list = fail  # after the members were asked, and before the copy
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED]
        assert {copy.bookie for copy in recorder.corrupt} == {"a"}
        assert not bookie.unreadable
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@pytest.mark.parametrize("fault", ["busy source", "lost session", "disabled repair", "source away"])
@in_virtual_time
async def test_missing_copies_of_a_source_are_not_forgotten_if_its_entries_cannot_be_listed(fault: str) -> None:
    async with a_world(WORLD) as world:
        packets = await a_ledger_without(world, UNSTRIPED, set(range(40, 120)))
        await world.lose("c")
        first = world.worker(once=False)

        async def strike() -> None:
            match fault:
                case "busy source":
                    world.bookies["a"].list_replies = [ListReply(Status.TOO_MANY_REQUESTS)] * 5
                case "lost session":
                    first.store.expire()
                case "disabled repair":
                    await world.tasks.switches.disable()
                case _:
                    await world.kill("a")

        world.bookies["a"].before_list = strike
        async with world.running(first):
            await asyncio.sleep(60)
        assert "c" not in (await world.metadata(LEDGER)).members()
        if fault == "disabled repair":
            await world.tasks.switches.enable()
        elif fault == "source away":
            await world.register("a")
        await world.worker(seed=1).worker.run()
        assert await world.is_clean()
        await world.assert_whole(LEDGER, packets)


async def heal_with_one_mark_unanswered(world: RepairWorld) -> None:
    """Run a worker whose first mark fails because the store does not answer."""
    running, failed = world.worker(), 0

    async def fail_once(operation: str, path: str) -> Fault | None:
        nonlocal failed
        if failed or (operation, path) != ("create", task_path(ROOT, LEDGER)):
            return None
        failed += 1
        return Fault.FAIL_BEFORE

    running.store.fault_hook = fail_once
    await running.worker.run()
    assert failed


@in_virtual_time
async def test_missing_copies_of_a_source_are_not_forgotten_if_their_mark_gets_no_answer() -> None:
    """The next round of the same turn copies the same entries again."""
    async with a_world(WORLD) as world:
        packets = await a_ledger_without(world, UNSTRIPED, set(range(40, 120)))
        await world.lose("c")
        await heal_with_one_mark_unanswered(world)
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_missing_copies_of_a_source_are_not_forgotten_if_the_target_already_lists_its_copies() -> None:
    """The next round does not read these entries, because their target lists them."""
    async with a_world(WORLD) as world:
        packets = await a_ledger_without(world, UNSTRIPED, set(range(40, 120)))
        await world.kill("c")
        await world.add_bookies("c", incarnation="2")
        await world.tasks.marking.mark(LEDGER, [BookieId("c")])
        await heal_with_one_mark_unanswered(world)
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_missing_copy_of_a_source_is_not_forgotten_if_it_was_stored_separately_first() -> None:
    """A damaged entry of a bookie is stored there before the others, and no later copy reads it."""
    async with a_world(WORLD) as world:
        packets = await a_ledger_without(world, UNSTRIPED, {COUNT - 1})
        without_lists(world)
        world.bookies["c"].unreadable = {EntryId(each) for each in range(COUNT - 9, COUNT)}
        await world.tasks.marking.mark(LEDGER, [BookieId("c")])
        await world.heal()
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


async def interrupted_copy(
    world: RepairWorld, metadata: LedgerMetadata, count: int, fail: Fail
) -> dict[EntryId, bytes]:
    """Copy for bookie c, and interrupt the copy after the first 2,500 entries, which the source a lacks."""
    packets = await world.ledger(LEDGER, metadata, count, payload_bytes=PAYLOAD_BYTES)
    await world.kill("a")
    await world.add_bookies("a", incarnation="2")
    held = [packets[EntryId(each)] for each in range(2500, LONG)]
    await world.bookies.put("a", LEDGER, held)
    await world.lose("c")
    running = world.worker(once=False, bytes_per_second=1 << 18)

    async def is_far() -> bool:
        reserved = await world.reservations.read(LEDGER)
        return reserved is not None and reserved.reservations[0].end_entry_id > 2500

    async with world.running(running):
        await until(is_far)
        after = await fail(world, running)
        if after is running:
            await until(world.is_clean, seconds=900, every_s=1)
    if after is not running:
        async with world.running(after):
            await until(world.is_clean, seconds=900, every_s=1)
    return packets


@pytest.mark.parametrize("fail", [dead, lost_session])
@in_virtual_time
async def test_missing_copies_of_a_source_are_not_forgotten_if_the_copy_is_interrupted(fail: Fail) -> None:
    """The copy continues after the entries that the source lacks, so these are not read again."""
    metadata = make_metadata((0, "a b c"), quorum=(3, 2), last=LONG - 1)
    async with a_world(WORLD) as world:
        packets = await interrupted_copy(world, metadata, LONG, fail)
        await world.assert_whole(LEDGER, packets)


@pytest.mark.parametrize("fail", [dead, lost_session])
@in_virtual_time
async def test_missing_copies_of_a_source_of_an_open_ledger_are_stored_there_after_it_is_closed(fail: Fail) -> None:
    """The member must not be named while the ledger is open: a recovery would no longer believe it (R91)."""
    metadata, count = make_metadata((0, "a b c"), (LONG, "b d e"), quorum=(3, 2)), LONG + 9
    async with a_world("a b c d e t") as world:
        packets = await interrupted_copy(world, metadata, count, fail)
        repaired = await world.ledgers.read(LEDGER)
        assert not repaired.metadata.is_closed
        closed = repaired.metadata.closed(EntryId(count - 1), PAYLOAD_BYTES * count)
        await world.ledgers.write(LEDGER, closed, repaired.version)
        notes, marking = DamageNotes(world.store, ROOT), world.tasks.marking
        assert len(await mark_recorded_damage(notes, world.ledgers, marking.mark_many)) == 1
        await world.heal()
        await world.assert_whole(LEDGER, packets)
        assert (await world.is_clean(), await notes.all()) == (True, [])


@in_virtual_time
async def test_read_only_members_with_different_missing_entries_complete_each_other_one_after_another() -> None:
    """There is only one target, so each copy is made alone, from both members."""
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        for name, kept in (("a", range(5)), ("b", range(5, 10))):
            await world.kill(name)
            await world.add_bookies(name, incarnation="2")
            await world.bookies.put(name, LEDGER, [packets[EntryId(each)] for each in kept])
            await world.register(name, is_read_only=True)
        await world.tasks.marking.mark(LEDGER, names("a b"))
        await world.heal()
        assert (await world.metadata(LEDGER)).fragments[0].members == names("t b")
        assert await world.bookies.nodes[BookieId("t")].holds(LEDGER) == sorted(packets)
        await world.add_bookies("u")
        await world.heal()
        await world.assert_whole(LEDGER, packets, "t", "u")
