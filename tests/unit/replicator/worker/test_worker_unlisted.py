"""The worker among bookies that cannot list their entries: what they serve, entry by entry, is what counts."""

from __future__ import annotations

import pytest

from bookie.model.ids import BookieId, EntryId
from bookie.wire.port import ListReply, Status
from replicator.telemetry.events import Ending
from tests.worlds.ledgers import LEDGER, make_metadata, make_packets, names
from tests.worlds.repair import RepairWorld, a_world, answers
from tests.worlds.virtual_time import in_virtual_time

COUNT = 300
STRIPED = make_metadata((0, "a b c"), (100, "c b a"), quorum=(2, 2), last=COUNT - 1)


def without_lists(world: RepairWorld) -> None:
    for name in world.bookies.nodes:
        world.bookies[name].has_no_lists = True


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
async def test_a_target_that_does_not_serve_some_entry_is_not_named(lacking: int) -> None:
    async with a_world("a b t u") as world:
        without_lists(world)
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=COUNT - 1), COUNT)
        await world.lose("b")
        world.bookies["t"].results[EntryId(lacking)] = answers(Status.NO_ENTRY)
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a u")
        await world.assert_whole(LEDGER, packets, "u")


@in_virtual_time
async def test_a_bookie_that_came_back_without_its_disks_is_filled_up_in_place() -> None:
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
async def test_damaged_entries_of_a_named_bookie_are_copied_to_it_again() -> None:
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
async def test_only_what_a_bookie_does_not_serve_is_copied_to_it_again() -> None:
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
async def test_a_healthy_bookie_gets_no_copies() -> None:
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
async def test_a_bookie_in_limbo_is_filled_up_with_what_it_does_not_serve() -> None:
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


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.UNREACHABLE, Status.IO_ERROR])
@in_virtual_time
async def test_a_bookie_of_which_nothing_can_be_read_stays_unknown(status: Status) -> None:
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


@in_virtual_time
async def test_an_unreachable_target_gets_no_copies() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=COUNT - 1), COUNT)
        await world.lose("b")
        world.bookies["t"].list_replies = [ListReply(Status.TIMEOUT)] * 1000
        running = world.worker(once=True)
        await running.worker.run()
        assert world.version(LEDGER) == 0
        assert world.bookies["t"].adds == []
