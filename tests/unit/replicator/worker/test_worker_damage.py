"""Damaged copies that a repair finds are replaced by good ones, in place if the bookie supports it (R41)."""

from __future__ import annotations

import pytest

from bookie.metadata.tasks.parked import ParkReason
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from bookie.wire.port import Status
from replicator.knowledge import damage
from replicator.knowledge.damage import without
from replicator.telemetry.events import Ending
from tests.unit.replicator.worker.test_worker_progress import Fail, dead, lost_session, stopped
from tests.worlds.ledgers import LEDGER, make_metadata, make_packets, names
from tests.worlds.repair import RepairWorld, a_world, answers, flipped
from tests.worlds.virtual_time import in_virtual_time, until

OTHERS = (("a", EntryId(3)), ("c", EntryId(4)))
"""Of each other member, an entry with a damaged copy: one of the two members is asked first for both entries."""


async def store_damaged(world: RepairWorld, bookie: str, packet: bytes) -> None:
    """Store an entry with a flipped bit."""
    await world.bookies.put(bookie, LEDGER, [packet[:-1] + bytes([packet[-1] ^ 1])])


async def stored(world: RepairWorld, bookie: str, entry_id: EntryId) -> bytes:
    reply = await world.bookies.nodes[BookieId(bookie)].storage.read(LEDGER, [entry_id])
    return reply.results[0].packet


def undamaged(packets: dict[EntryId, bytes]) -> dict[EntryId, bytes]:
    """Return the entries without damaged copies: the member that was not asked first keeps its damaged copy."""
    damaged = {entry_id for _, entry_id in OTHERS}
    return {entry_id: packet for entry_id, packet in packets.items() if entry_id not in damaged}


@in_virtual_time
async def test_a_damaged_copy_is_replaced_in_place_in_the_same_turn() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        for bookie, entry_id in OTHERS:
            await store_damaged(world, bookie, packets[entry_id])
        await world.kill("b")
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        [copy] = recorder.corrupt
        assert recorder.endings() == [Ending.MARKED_AGAIN, Ending.NOTHING_MISSING]
        assert (recorder.results[0].entries, recorder.results[0].replaced_copies) == (11, 1)
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a t c")
        assert await stored(world, copy.bookie, copy.entry_id) == packets[copy.entry_id]
        assert [len(batch.entries) for batch in world.bookies[copy.bookie].adds] == [1]
        assert await world.is_clean()


@in_virtual_time
async def test_every_damaged_copy_found_in_a_striped_ledger_is_replaced() -> None:
    async with a_world("a b c d t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c d"), quorum=(2, 2), last=39), 40)
        for entry_id in (EntryId(0), EntryId(1), EntryId(8)):
            await store_damaged(world, "b" if entry_id % 4 == 0 else "c", packets[entry_id])
        await world.kill("a")
        await world.tasks.marking.mark(LEDGER, names("a"))
        recorder = await world.heal()
        # Entries 0 and 8 are only on the lost bookie and on b, so they have no good copy. Entry 1 is not read.
        assert recorder.endings() == [Ending.PARKED]
        assert recorder.results[0].reason is ParkReason.UNREADABLE_ENTRIES
        assert {(copy.bookie, copy.entry_id) for copy in recorder.corrupt} == {("b", 0), ("b", 8)}
        assert recorder.results[0].replaced_copies == 0
        assert not world.bookies["b"].adds


@in_virtual_time
async def test_a_bookie_that_serves_damaged_bytes_after_a_good_add_is_replaced() -> None:
    async with a_world("a b c t u v") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        for bookie, entry_id in OTHERS:
            world.bookies[bookie].results[entry_id] = flipped
        await world.kill("b")
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.MARKED_AGAIN, Ending.NOTHING_MISSING]
        damaged = {copy.bookie for copy in recorder.corrupt}
        assert damaged
        assert damaged.isdisjoint((await world.metadata(LEDGER)).last_fragment.members)
        assert recorder.results[0].replaced_copies == len(damaged)
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@pytest.mark.parametrize("is_apache", [False, True])
@in_virtual_time
async def test_an_apache_bookie_with_wrong_bytes_is_replaced(is_apache: bool) -> None:
    """After an add of the right bytes, the bookie may serve the wrong ones again."""
    async with a_world("b t u v") as world:
        await world.add_bookies("a c", incarnation="" if is_apache else "1")
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        for bookie, entry_id in OTHERS:
            await store_damaged(world, bookie, packets[entry_id])
        await world.kill("b")
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        [copy] = recorder.corrupt
        assert (copy.bookie in (await world.metadata(LEDGER)).members()) == (not is_apache)
        assert bool(world.bookies[copy.bookie].adds) == (not is_apache)
        await world.assert_whole(LEDGER, undamaged(packets))
        assert await world.is_clean()


@in_virtual_time
async def test_a_read_only_bookie_with_a_damaged_copy_is_replaced() -> None:
    async with a_world("a b c t u v") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        for bookie, entry_id in OTHERS:
            await store_damaged(world, bookie, packets[entry_id])
            await world.register(bookie, is_read_only=True)
        await world.kill("b")
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.MARKED_AGAIN, Ending.NOTHING_MISSING]
        assert {copy.bookie for copy in recorder.corrupt}.isdisjoint((await world.metadata(LEDGER)).members())
        await world.assert_whole(LEDGER, undamaged(packets))


@in_virtual_time
async def test_a_bookie_without_space_keeps_its_position_until_another_one_replaces_it() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        for bookie, entry_id in OTHERS:
            await store_damaged(world, bookie, packets[entry_id])
            world.bookies[bookie].add_replies = [Status.READ_ONLY] * 100
        await world.kill("b")
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False)
        async with world.running(running):
            await until(lambda: _has_ended(running.recorder.endings(), Ending.PARKED))
            assert running.recorder.results[-1].reason is ParkReason.TARGETS_REFUSE
            await world.add_bookies("u v")
            await until(world.is_clean)
        [copy] = {(copy.bookie, copy.entry_id) for copy in running.recorder.corrupt}
        assert copy[0] not in (await world.metadata(LEDGER)).members()
        await world.assert_whole(LEDGER, undamaged(packets))


async def _has_ended(endings: list[Ending], ending: Ending) -> bool:
    return ending in endings


@in_virtual_time
async def test_a_damaged_copy_of_an_open_ledger_is_replaced_in_place() -> None:
    async with a_world("a b c t") as world:
        metadata = make_metadata((0, "a b c"), (20, "a b c"), quorum=(3, 2), last=None)
        packets = await world.ledger(LEDGER, metadata, 30)
        before = await world.metadata(LEDGER)
        for bookie, entry_id in OTHERS:
            await store_damaged(world, bookie, packets[entry_id])
        await world.kill("b")
        await world.add_bookies("b", incarnation="2")
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED]
        copies = {(copy.bookie, copy.entry_id) for copy in recorder.corrupt}
        assert recorder.results[0].replaced_copies == len(copies) > 0
        assert await world.metadata(LEDGER) == before
        for bookie, entry_id in copies:
            assert await stored(world, bookie, entry_id) == packets[entry_id]
        assert await world.is_clean()


@in_virtual_time
async def test_a_member_of_an_open_ledger_that_lacks_entries_and_has_a_damaged_one_gets_both() -> None:
    """The copy of b reveals the damaged entry of c. The damage remains at first, because c accepts no copies."""
    async with a_world("a b c") as world:
        before = (await world.ledgers.create(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None))).metadata
        packets = make_packets(LEDGER, 30)
        for name, count in (("a", 30), ("b", 10), ("c", 20)):
            await world.bookies.put(name, LEDGER, [packets[EntryId(i)] for i in range(count)])
        await store_damaged(world, "c", packets[EntryId(13)])
        world.bookies["c"].add_replies = [Status.READ_ONLY]
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False)
        async with world.running(running):
            await until(lambda: _has_ended(running.recorder.endings(), Ending.FAILED))
            await world.tasks.marking.mark(LEDGER, names("c"))
            await until(world.is_clean)
        assert {(copy.bookie, copy.entry_id) for copy in running.recorder.corrupt} == {("c", 13)}
        assert running.recorder.endings() == [Ending.FAILED, Ending.REPAIRED]
        assert await world.metadata(LEDGER) == before
        await world.assert_whole(LEDGER, packets)


@pytest.mark.parametrize("last", [None, 29], ids=["open", "closed"])
@in_virtual_time
async def test_damage_on_a_member_that_gets_missing_entries_in_the_same_round_is_replaced(last: int | None) -> None:
    """The task names b and c. The copy of b reveals the damaged entry of c, which is asked first."""
    async with a_world("a b c") as world:
        await world.ledgers.create(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=last))
        packets = make_packets(LEDGER, 30)
        for name, count in (("a", 30), ("b", 10), ("c", 20)):
            await world.bookies.put(name, LEDGER, [packets[EntryId(i)] for i in range(count)])
        await store_damaged(world, "c", packets[EntryId(13)])
        await world.tasks.marking.mark(LEDGER, names("b c"))
        recorder = await world.heal()
        assert {(copy.bookie, copy.entry_id) for copy in recorder.corrupt} == {("c", 13)}
        assert recorder.endings() == [Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_damage_found_in_a_failed_turn_is_repaired_in_a_later_turn() -> None:
    async with a_world("a b c d t") as world:
        metadata = make_metadata((0, "a b c"), (10, "b d a"), quorum=(3, 2), last=19)
        packets = await world.ledger(LEDGER, metadata, 20)
        for bookie, entry_id in OTHERS:
            await store_damaged(world, bookie, packets[entry_id])
        for name in "da":
            world.bookies[name].results |= {EntryId(12): answers(Status.IO_ERROR)}
        await world.kill("b")
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False)
        async with world.running(running):
            await until(lambda: _has_ended(running.recorder.endings(), Ending.FAILED))
            for name in "da":
                world.bookies[name].results.clear()
            await until(world.is_clean)
        [copy] = running.recorder.corrupt
        assert await stored(world, copy.bookie, copy.entry_id) == packets[copy.entry_id]
        assert sum(result.replaced_copies for result in running.recorder.results) == 1


@pytest.mark.parametrize("fail", [lost_session, stopped, dead])
@in_virtual_time
async def test_damage_found_by_an_interrupted_copy_is_replaced_before_the_task_ends(fail: Fail) -> None:
    """The entries read before the interruption are not read again, neither by this process nor by another one."""
    count, damaged = 8000, range(0, 2000, 100)
    async with a_world("a b c t") as world:
        for name in world.bookies.nodes:
            world.bookies[name].has_no_lists = True
        metadata = make_metadata((0, "a b c"), quorum=(3, 2), last=count - 1)
        packets = await world.ledger(LEDGER, metadata, count, payload_bytes=2000)
        for entry_id in damaged:
            await store_damaged(world, "a", packets[EntryId(entry_id)])
        await world.lose("c")
        running = world.worker(once=False, bytes_per_second=1 << 18)

        async def is_past_the_damage() -> bool:
            found = await world.reservations.read(LEDGER)
            return found is not None and found.reservations[0].end_entry_id > max(damaged)

        async with world.running(running):
            await until(is_past_the_damage)
            after = await fail(world, running)
            if after is running:
                await until(world.is_clean, seconds=900, every_s=1)
        if after is not running:
            async with world.running(after):
                await until(world.is_clean, seconds=900, every_s=1)
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_bookie_with_too_many_damaged_copies_is_replaced_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "LEDGER_COPIES_MAX", 3)
    async with a_world("a b c t u v") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        for bookie, first in (("a", 0), ("c", 5)):
            for entry_id in range(first, first + 5):
                await store_damaged(world, bookie, packets[EntryId(entry_id)])
        await world.kill("b")
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.MARKED_AGAIN, Ending.NOTHING_MISSING]
        assert {copy.bookie for copy in recorder.corrupt}.isdisjoint((await world.metadata(LEDGER)).members())
        assert not any(world.bookies[name].adds for name in "ac")


def test_entries_are_removed_from_a_list() -> None:
    held = EntryRuns(((0, 5), (8, 9)))
    assert without(held, [EntryId(i) for i in (5, 0, 2, 3, 7, 8)]) == EntryRuns(((1, 1), (4, 4), (9, 9)))
    assert without(held, []) == held
