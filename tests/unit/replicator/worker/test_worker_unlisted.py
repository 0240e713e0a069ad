"""The worker with bookies that cannot list their entries: it reads them entry by entry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from auditor.safety.dead_letters import DeadLetterOutcome, DeadLetters
from bookie.metadata.tasks.decisions import Decisions
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.wire.port import EntryResult, ListReply, Status
from replicator.knowledge import damage as damages
from replicator.knowledge.stored_again import STORED_AGAIN_MAX
from replicator.repair import turn_damage
from replicator.telemetry.events import Ending
from tests.worlds.ledgers import LEDGER, make_metadata, make_packets, names
from tests.worlds.repair import Recorder, RepairWorld, a_world, answers, flipped
from tests.worlds.virtual_time import in_virtual_time, until

COUNT = 300
UNSTRIPED = make_metadata((0, "a b"), quorum=(2, 2), last=COUNT - 1)
STRIPED = make_metadata((0, "a b c"), (100, "c b a"), quorum=(2, 2), last=COUNT - 1)


def without_lists(world: RepairWorld) -> None:
    for name in world.bookies.nodes:
        world.bookies[name].has_no_lists = True


def flip(packet: bytes) -> bytes:
    """Flip one bit of the payload."""
    return packet[:-1] + bytes([packet[-1] ^ 1])


@in_virtual_time
async def test_a_lost_bookie_is_replaced_once_the_target_serves_every_entry() -> None:
    async with a_world("a b c t") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, STRIPED, COUNT)
        await world.lose("b")
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets, "t")
        assert await world.is_clean()
        read_back = [entry for asked in world.bookies["t"].reads for entry in asked]
        assert sorted(read_back) == await world.bookies.nodes[BookieId("t")].holds(LEDGER)


@pytest.mark.parametrize("lacking", [0, 57, COUNT - 1])
@in_virtual_time
async def test_a_target_that_does_not_serve_every_entry_is_not_installed(lacking: int) -> None:
    async with a_world("a b t u") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=COUNT - 1), COUNT)
        await world.lose("b")
        world.bookies["t"].results[EntryId(lacking)] = answers(Status.NO_ENTRY)
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a u")
        await world.assert_whole(LEDGER, packets, "u")


@in_virtual_time
async def test_a_bookie_that_came_back_without_its_disks_is_filled_in_place() -> None:
    async with a_world("a b c") as world:
        packets = await world.ledger(LEDGER, STRIPED, COUNT)
        await world.kill("b")
        await world.add_bookies("b", incarnation="2")
        without_lists(world)
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED]
        assert world.version(LEDGER) == 0
        await world.assert_whole(LEDGER, packets, "b")


@in_virtual_time
async def test_damaged_entries_of_a_marked_bookie_are_copied_to_it_again() -> None:
    async with a_world("a b") as world:
        without_lists(world)
        metadata = make_metadata((0, "a b"), quorum=(2, 2), last=COUNT - 1)
        packets = await world.ledger(LEDGER, metadata, COUNT)
        damaged = EntryId(57)
        bookie = world.bookies["b"]
        bookie.results[damaged] = answers(Status.CORRUPT)

        async def overwritten() -> None:
            bookie.results.clear()

        bookie.before_add = overwritten
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        (result,) = recorder.results
        assert (result.ending, result.entries) == (Ending.REPAIRED, 1)
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_only_entries_that_a_bookie_does_not_serve_are_copied_to_it_again() -> None:
    async with a_world("a b") as world:
        without_lists(world)
        metadata = make_metadata((0, "a b"), quorum=(2, 2), last=COUNT - 1)
        ledger = await world.ledgers.create(LEDGER, metadata)
        packets = make_packets(LEDGER, COUNT)
        lost = {EntryId(3), EntryId(200)}
        await world.bookies.put("a", ledger.ledger_id, list(packets.values()))
        await world.bookies.put("b", ledger.ledger_id, [packets[e] for e in packets if e not in lost])
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        (result,) = recorder.results
        assert (result.ending, result.entries) == (Ending.REPAIRED, 2)
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_healthy_bookie_receives_no_copies() -> None:
    async with a_world("a b c t") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, STRIPED, COUNT)
        await world.tasks.marking.mark(LEDGER, names("b"))
        await world.heal()
        assert world.version(LEDGER) == 0
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()
        assert world.bookies["b"].adds == []


@in_virtual_time
async def test_a_bookie_in_limbo_receives_only_what_it_does_not_serve() -> None:
    async with a_world("a b") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=COUNT - 1), COUNT)
        await world.kill("b")
        await world.add_bookies("b", incarnation="2")
        await world.bookies.nodes[BookieId("b")].storage.set_limbo([LEDGER])
        without_lists(world)
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets, "b")


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.UNREACHABLE])
@in_virtual_time
async def test_a_bookie_from_which_nothing_can_be_read_stays_unknown(status: Status) -> None:
    async with a_world("a b t") as world:
        without_lists(world)
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=COUNT - 1), COUNT)
        await world.tasks.marking.mark(LEDGER, names("b"))
        world.bookies["b"].read_status = status
        running = world.worker(once=True)
        await running.worker.run()
        assert Ending.REPAIRED not in running.recorder.endings()
        assert world.version(LEDGER) == 0
        assert await world.task(LEDGER) is not None
        assert world.bookies["b"].adds == []
        assert world.bookies["t"].adds == []


@pytest.mark.parametrize("damaged", [{0}, {57}, {COUNT - 1}, {0, 3, 99, 100, 101, COUNT - 1}, set(range(COUNT))])
@pytest.mark.parametrize("metadata", [STRIPED, UNSTRIPED])
@in_virtual_time
async def test_entries_that_a_bookie_cannot_read_are_stored_again_in_one_turn(
    damaged: set[int], metadata: LedgerMetadata
) -> None:
    async with a_world("a b c t") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, metadata, COUNT)
        held = await world.bookies.nodes[BookieId("b")].holds(LEDGER)
        unreadable = damaged & set(held)
        world.bookies["b"].unreadable = set(map(EntryId, unreadable))
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        (result,) = recorder.results
        assert (result.ending, result.entries) == (
            Ending.REPAIRED if unreadable else Ending.NOTHING_MISSING,
            len(unreadable),
        )
        assert result.replaced_copies == len(unreadable)
        assert {(copy.bookie, copy.entry_id) for copy in recorder.corrupt} <= {("b", each) for each in unreadable}
        assert len(recorder.corrupt) == min(len(unreadable), 100)
        assert world.version(LEDGER) == 0
        await world.assert_whole(LEDGER, packets)
        assert not world.bookies["b"].unreadable
        assert await world.is_clean()


@pytest.mark.parametrize("damaged", [{0}, {57}, {COUNT - 1}, {0, 3, 99, 100, 101, COUNT - 1}, set(range(COUNT))])
@pytest.mark.parametrize("metadata", [STRIPED, UNSTRIPED])
@in_virtual_time
async def test_a_marked_bookie_whose_bytes_do_not_verify_is_replaced(
    damaged: set[int], metadata: LedgerMetadata
) -> None:
    """An Apache bookie does not verify digests, and may serve the wrong bytes again after an add of the right ones."""
    async with a_world("a b c t") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, metadata, COUNT)
        damaged &= set(await world.bookies.nodes[BookieId("b")].holds(LEDGER))
        await world.bookies.put("b", LEDGER, [flip(packets[EntryId(each)]) for each in sorted(damaged)])
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert len(recorder.corrupt) == min(len(damaged), 100)
        assert world.bookies["b"].adds == []
        assert sum(result.replaced_copies for result in recorder.results) == len(damaged)
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@pytest.mark.parametrize("damaged", [{0}, {57}, {COUNT - 1}, {0, 3, 99, 100, 101, COUNT - 1}, set(range(COUNT))])
@pytest.mark.parametrize("metadata", [STRIPED, UNSTRIPED])
@in_virtual_time
async def test_without_another_bookie_entries_that_do_not_verify_are_stored_in_place_again(
    damaged: set[int], metadata: LedgerMetadata
) -> None:
    async with a_world("a b c" if metadata is STRIPED else "a b") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, metadata, COUNT)
        damaged &= set(await world.bookies.nodes[BookieId("b")].holds(LEDGER))
        await world.bookies.put("b", LEDGER, [flip(packets[EntryId(each)]) for each in sorted(damaged)])
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert sum(result.replaced_copies for result in recorder.results) == len(damaged)
        assert {(copy.bookie, copy.entry_id) for copy in recorder.corrupt} <= {("b", each) for each in damaged}
        assert len(recorder.corrupt) == min(len(damaged), 100)
        assert world.version(LEDGER) == 0
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_damaged_bytes_without_a_good_copy_are_kept_and_the_ledger_is_parked() -> None:
    async with a_world("a b t") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, UNSTRIPED, COUNT)
        for bookie in "ab":
            await world.bookies.put(bookie, LEDGER, [flip(packets[EntryId(57)])])
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert [(result.ending, result.reason) for result in recorder.results] == [
            (Ending.PARKED, ParkReason.UNREADABLE_ENTRIES)
        ]
        assert "b=CORRUPT" in recorder.results[0].detail
        assert world.bookies["b"].adds == []
        assert await world.task(LEDGER) is not None


@in_virtual_time
async def test_a_target_whose_copies_do_not_verify_is_not_installed() -> None:
    async with a_world("a b t u") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, UNSTRIPED, COUNT)
        await world.lose("b")
        world.bookies["t"].results[EntryId(57)] = flipped
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a u")
        await world.assert_whole(LEDGER, packets, "u")


@pytest.fixture(params=[False, True], ids=["all are recorded", "too many to be recorded"])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one of two cases, lower the limit of recorded damaged copies below the number of entries."""
    if request.param:
        for module in (damages, turn_damage):
            monkeypatch.setattr(module, "LEDGER_COPIES_MAX", COUNT // 3)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("metadata", [STRIPED, UNSTRIPED])
@in_virtual_time
async def test_a_damaged_last_entry_that_prevents_all_reads_is_the_only_one_stored_again(
    metadata: LedgerMetadata,
) -> None:
    """Apache's bookies read the last entry of a ledger for its last add confirmed, which is part of each answer."""
    async with a_world("a b c") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, metadata, COUNT)
        bookie = world.bookies["b"]
        last = max(await world.bookies.nodes[BookieId("b")].holds(LEDGER))
        bookie.unreadable = {last}

        def as_the_last(result: EntryResult) -> EntryResult:
            return EntryResult(result.entry_id, Status.IO_ERROR) if bookie.unreadable else result

        bookie.results = {EntryId(each): as_the_last for each in range(COUNT)}
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        (result,) = recorder.results
        assert (result.ending, result.entries, result.replaced_copies) == (Ending.REPAIRED, 1, 1)
        assert [len(batch.entries) for batch in bookie.adds] == [1]
        assert world.version(LEDGER) == 0
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_bookie_with_one_failed_read_keeps_its_position() -> None:
    async with a_world("a b t") as world:
        without_lists(world)
        await world.ledger(LEDGER, UNSTRIPED, COUNT)
        bookie = world.bookies["b"]

        def once(result: EntryResult) -> EntryResult:
            del bookie.results[result.entry_id]
            return EntryResult(result.entry_id, Status.IO_ERROR)

        bookie.results[EntryId(57)] = once
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert [(result.ending, result.entries) for result in recorder.results] == [(Ending.REPAIRED, 1)]
        assert world.version(LEDGER) == 0


@pytest.mark.parametrize("metadata", [STRIPED, UNSTRIPED])
@in_virtual_time
async def test_a_bookie_that_cannot_read_anything_is_replaced_after_one_copy(metadata: LedgerMetadata) -> None:
    async with a_world("a b c t") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, metadata, COUNT)
        world.bookies["b"].read_status = Status.IO_ERROR
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED]
        assert "b" not in (await world.metadata(LEDGER)).members()
        await world.assert_whole(LEDGER, packets)
        stored = [len(batch.entries) for batch in world.bookies["b"].adds]
        assert stored == [1]


@in_virtual_time
async def test_a_bookie_that_cannot_read_anything_gets_one_copy_per_attempt_without_an_alternative() -> None:
    async with a_world("a b") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, UNSTRIPED, COUNT)
        world.bookies["b"].read_status = Status.IO_ERROR
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False)
        async with world.running(running):
            await until(partial(_has_ended, running.recorder, Ending.PARKED))
            (parked,) = [each for each in running.recorder.results if each.ending is Ending.PARKED]
            assert parked.reason is ParkReason.TARGETS_REFUSE
            assert "b=IO_ERROR" in parked.detail
            assert [len(batch.entries) for batch in world.bookies["b"].adds] == [1] * len(running.recorder.results)
            world.bookies["b"].read_status = None
            await until(world.is_clean)
        assert world.version(LEDGER) == 0
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_bookie_that_serves_wrong_bytes_again_is_not_read_constantly_without_an_alternative() -> None:
    """Apache's ``SortedLedgerStorage`` serves the old bytes until its next flush."""
    async with a_world("a b") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, UNSTRIPED, COUNT)
        bookie = world.bookies["b"]
        bookie.results[EntryId(57)] = flipped
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False, poll_interval_s=60.0)
        async with world.running(running):
            await asyncio.sleep(3 * 3600)
            assert set(running.recorder.endings()) == {Ending.PARKED}
            assert running.recorder.results[-1].reason is ParkReason.NO_CANDIDATE_BOOKIE
            assert "b=CORRUPT" in running.recorder.results[-1].detail
            assert len(running.recorder.results) <= 7
            bookie.results.clear()
            await until(world.is_clean, seconds=3600)
        assert world.version(LEDGER) == 0
        await world.assert_whole(LEDGER, packets)


@pytest.mark.parametrize("damaged", [[57], range(COUNT)], ids=["one", "all"])
@pytest.mark.parametrize("metadata", [STRIPED, UNSTRIPED])
@in_virtual_time
async def test_a_bookie_that_repeatedly_loses_stored_copies_is_replaced(
    metadata: LedgerMetadata, damaged: Sequence[int]
) -> None:
    """An Apache bookie serves a stored entry from memory until it flushes to the failing disk."""
    async with a_world("a b c t") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, metadata, COUNT)
        running = world.worker(once=False)
        async with world.running(running):
            for times in range(1, STORED_AGAIN_MAX + 2):
                world.bookies["b"].unreadable = set(map(EntryId, damaged))
                await world.tasks.marking.mark(LEDGER, names("b"))
                await until(world.is_clean)
                assert running.recorder.endings() == [Ending.REPAIRED] * times
                is_member = "b" in (await world.metadata(LEDGER)).fragments[0].members
                assert is_member == (times <= STORED_AGAIN_MAX)
        await world.assert_whole(LEDGER, packets)


async def _has_ended(recorder: Recorder, ending: Ending) -> bool:
    return ending in recorder.endings()


@pytest.mark.usefixtures("many")
@in_virtual_time
async def test_an_only_copy_among_many_unread_entries_is_not_abandoned() -> None:
    async with a_world("a b") as world:
        without_lists(world)
        await world.ledger(LEDGER, UNSTRIPED, COUNT)
        only = EntryId(COUNT - 10)
        world.bookies["a"].results[only] = answers(Status.NO_ENTRY)
        world.bookies["b"].unreadable = set(map(EntryId, range(COUNT)))
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False)
        async with world.running(running):
            await until(partial(_has_ended, running.recorder, Ending.PARKED))
            parked = running.recorder.results[-1]
            assert parked.reason is ParkReason.UNREACHABLE_BOOKIES
            assert f"entry {only}: a=NO_ENTRY, b=IO_ERROR" in parked.detail


@in_virtual_time
async def test_the_only_copy_of_an_entry_is_not_abandoned_if_its_bookie_cannot_read_it() -> None:
    async with a_world("a b t") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, UNSTRIPED, COUNT)
        world.bookies["a"].results[EntryId(57)] = answers(Status.NO_ENTRY)
        bookie = world.bookies["b"]
        bookie.results[EntryId(57)] = answers(Status.IO_ERROR)
        await world.tasks.marking.mark(LEDGER, names("a b"))
        running = world.worker(once=False)
        async with world.running(running):
            await until(partial(_has_ended, running.recorder, Ending.PARKED))
            parked = running.recorder.results[-1]
            assert parked.reason is ParkReason.UNREACHABLE_BOOKIES
            assert "entry 57: a=NO_ENTRY, b=IO_ERROR" in parked.detail
            assert world.version(LEDGER) == 0
            ports, decisions = world.ports(world.store).client(), Decisions(world.store, world.cluster.root)
            letters = DeadLetters(ports, world.store, world.parked, decisions, "me@host")
            assert (await letters.accept(LEDGER, "no copy")).outcome is DeadLetterOutcome.REFUSED
            bookie.results.clear()
            world.bookies["a"].results.clear()
            await until(world.is_clean)
        assert world.version(LEDGER) == 0
        await world.assert_whole(LEDGER, packets)
        assert {(copy.bookie, copy.entry_id) for copy in running.recorder.corrupt} == {("b", 57)}


@in_virtual_time
async def test_an_entry_of_an_open_ledger_that_a_bookie_cannot_read_stays_unknown() -> None:
    async with a_world("a b t") as world:
        without_lists(world)
        metadata = make_metadata((0, "a b"), (100, "a b"), (200, "a b"), quorum=(2, 2), last=None)
        await world.ledger(LEDGER, metadata, COUNT)
        world.bookies["b"].unreadable = {EntryId(57)}
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False)
        async with world.running(running):
            await until(partial(_has_ended, running.recorder, Ending.PARKED))
            assert running.recorder.results[-1].reason is ParkReason.UNREACHABLE_BOOKIES
        assert (world.bookies["b"].adds, running.recorder.corrupt) == ([], [])


@in_virtual_time
async def test_a_bkheal_bookie_that_fails_to_list_its_entries_stays_unknown() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, UNSTRIPED, COUNT)
        world.bookies["b"].list_replies = [ListReply(Status.IO_ERROR)] * 1000
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False)
        async with world.running(running):
            await until(partial(_has_ended, running.recorder, Ending.PARKED))
            assert running.recorder.results[-1].reason is ParkReason.UNREACHABLE_BOOKIES
        assert (world.bookies["b"].adds, running.recorder.corrupt, world.version(LEDGER)) == ([], [], 0)


@in_virtual_time
async def test_an_unreachable_target_receives_no_copies() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=COUNT - 1), COUNT)
        await world.lose("b")
        world.bookies["t"].list_replies = [ListReply(Status.TIMEOUT)] * 1000
        running = world.worker(once=True)
        await running.worker.run()
        assert world.version(LEDGER) == 0
        assert world.bookies["t"].adds == []
