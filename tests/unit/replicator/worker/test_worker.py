"""The worker on a small cluster in memory: what it repairs, how it repairs it, and what it ignores."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bookie.metadata.tasks.parked import ParkReason
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerState
from bookie.wire.port import ListReply, Status
from replicator.repair import execution, ledger_repair
from replicator.telemetry.events import Ending
from replicator.worker import RunEnd
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, Tampering, a_world, flipped
from tests.worlds.virtual_time import in_virtual_time, until


@in_virtual_time
async def test_a_striped_ledger_is_repaired_with_exactly_its_entries() -> None:
    async with a_world("a b c d e t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c d e"), quorum=(3, 2), last=2999), 3000)
        await world.lose("c")
        recorder = await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a b t d e")
        await world.assert_whole(LEDGER, packets, "t")
        assert await world.is_clean()
        (result,) = recorder.results
        assert (result.ending, result.fragments, result.entries) == (Ending.REPAIRED, 1, 1800)


@in_virtual_time
async def test_two_lost_bookies_are_replaced_by_two_others() -> None:
    async with a_world("a b c d e t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c d e"), quorum=(3, 2), last=99), 100)
        await world.lose("a", "c")
        await world.heal()
        members = (await world.metadata(LEDGER)).last_fragment.members
        assert {members[0], members[2]} == set(names("t u"))
        await world.assert_whole(LEDGER, packets, "t", "u")


@in_virtual_time
async def test_every_fragment_is_repaired_and_other_metadata_is_unchanged() -> None:
    async with a_world("a b c t") as world:
        before = make_metadata((0, "a b"), (10, "b c"), (20, "b a"), quorum=(2, 2), last=29, length=300)
        packets = await world.ledger(LEDGER, before, 30)
        await world.lose("b")
        await world.heal()
        after = await world.metadata(LEDGER)
        assert [fragment.first_entry_id for fragment in after.fragments] == [0, 10, 20]
        assert [fragment.members[p] for fragment, p in zip(after.fragments, (0, 1, 1), strict=True)] == list("aca")
        assert (after.state, after.last_entry_id, after.length) == (LedgerState.CLOSED, 29, 300)
        await world.assert_whole(LEDGER, packets)
        assert world.version(LEDGER) == 1  # all fragments are changed by one write


@in_virtual_time
async def test_a_ledger_of_many_fragments_is_repaired_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "STEPS_MAX", 2)
    async with a_world("a b c t") as world:
        before = make_metadata((0, "a b"), (10, "b c"), (20, "b a"), (30, "a b"), (40, "b c"), quorum=(2, 2), last=49)
        packets = await world.ledger(LEDGER, before, 50)
        await world.lose("b")
        recorder = await world.heal()
        assert [(result.ending, result.fragments) for result in recorder.results] == [(Ending.REPAIRED, 5)]
        await world.assert_whole(LEDGER, packets)
        assert world.version(LEDGER) == 3


@in_virtual_time
async def test_a_last_fragment_beyond_the_steps_of_a_round_is_repaired_before_the_task_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution, "STEPS_MAX", 2)
    async with a_world("a b c d t u") as world:
        before = make_metadata((0, "a c d"), (10, "a b c"), quorum=(3, 2), last=19)
        packets = await world.ledger(LEDGER, before, 20)
        await world.lose("a", "b")
        recorder = await world.heal()
        assert [(result.ending, result.fragments) for result in recorder.results] == [(Ending.REPAIRED, 2)]
        assert (await world.metadata(LEDGER)).members().isdisjoint(names("a b"))
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_marked_bookie_that_did_not_answer_at_first_is_checked_again_before_the_task_ends() -> None:
    """Entry 1 is on b and c: b lacks it, so b cannot be its source while the copies of a are made."""
    async with a_world("a b c d t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c d"), quorum=(2, 2), last=11), 12)
        kept = [packets[EntryId(i)] for i in await world.bookies.nodes[BookieId("b")].holds(LEDGER) if i != 1]
        await world.kill("b")
        await world.add_bookies("b", incarnation="2")
        await world.bookies.put("b", LEDGER, kept)
        world.bookies["b"].list_replies = [ListReply(Status.IO_ERROR)]
        await world.lose("a")
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_rounds_that_repair_have_a_separate_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "STEPS_MAX", 2)
    monkeypatch.setattr(ledger_repair, "ROUNDS_MAX", 3)
    async with a_world("a b c d t u") as world:
        fragments = [(10 * number, "a b c" if number % 2 else "b d a") for number in range(20)]
        packets = await world.ledger(LEDGER, make_metadata(*fragments, quorum=(3, 2), last=199), 200)
        await world.lose("a", "b")
        recorder = await world.heal()
        assert [(result.ending, result.fragments) for result in recorder.results] == [(Ending.REPAIRED, 20)]
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_rounds_end_at_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "STEPS_MAX", 2)
    monkeypatch.setattr(ledger_repair, "REPAIRING_ROUNDS_MAX", 2)
    async with a_world("a b c t") as world:
        before = make_metadata((0, "a b"), (10, "b c"), (20, "b a"), (30, "a b"), (40, "b c"), quorum=(2, 2), last=49)
        packets = await world.ledger(LEDGER, before, 50)
        await world.lose("b")
        recorder = await world.heal()
        assert recorder.endings() == [Ending.FAILED, Ending.REPAIRED]
        assert recorder.results[0].detail.startswith("not settled after 2 rounds, 0 of them without a repair")
        await world.assert_whole(LEDGER, packets)

        async def nothing(repair: ledger_repair.LedgerRepair) -> None:
            """Run a round without a result."""

        monkeypatch.setattr(ledger_repair, "REPAIRING_ROUNDS_MAX", 1000)
        monkeypatch.setattr(ledger_repair.LedgerRepair, "_round", nothing)
        await world.lose("c")
        running = world.worker()
        assert await running.worker.run() is RunEnd.UNSETTLED
        assert running.recorder.results[0].detail.startswith("not settled after 12 rounds, 12 of them without a repair")


@in_virtual_time
async def test_an_empty_ledger_needs_no_copies() -> None:
    async with a_world("a b t u") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=-1), 0)
        await world.lose("a", "b")
        await world.heal()
        assert set((await world.metadata(LEDGER)).last_fragment.members) == set(names("t u"))
        assert world.bookies["t"].adds == world.bookies["u"].adds == []
        assert await world.is_clean()


@in_virtual_time
async def test_a_read_only_bookie_is_a_source_and_is_not_replaced() -> None:
    async with a_world("a b t r") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.register("a", is_read_only=True)
        await world.register("r", is_read_only=True)
        await world.kill("b")
        await world.tasks.marking.mark(LEDGER, names("b a"))
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a t")
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_a_task_with_nothing_missing_is_completed() -> None:
    async with a_world("a b") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("z"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.NOTHING_MISSING]
        assert world.version(LEDGER) == 0
        assert await world.is_clean()


@in_virtual_time
async def test_a_bookie_that_came_back_with_its_copies_needs_no_repair() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.NOTHING_MISSING]
        assert world.bookies["t"].adds == []
        assert world.version(LEDGER) == 0


@in_virtual_time
async def test_a_bookie_that_comes_back_during_the_copy_keeps_its_position() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        world.bookies["t"].before_add = lambda: world.register("b")
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a b")
        assert await world.is_clean()


@in_virtual_time
async def test_a_bookie_that_came_back_with_empty_disks_is_filled_in_place() -> None:
    async with a_world("a b") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.kill("b")
        await world.add_bookies("b", incarnation="2")
        await world.bookies.nodes[BookieId("b")].storage.set_limbo([LEDGER])
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED]
        assert world.version(LEDGER) == 0
        await world.assert_whole(LEDGER, packets, "b")
        assert await world.is_clean()


@in_virtual_time
async def test_a_registered_bookie_that_does_not_answer_is_neither_healthy_nor_lost() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))
        world.bookies.stop_listening("b")
        recorder = await world.heal()
        assert recorder.endings() == [*[Ending.FAILED] * 4, Ending.PARKED]
        assert recorder.results[-1].reason is ParkReason.UNREACHABLE_BOOKIES
        assert world.version(LEDGER) == 0
        assert await world.task(LEDGER) is not None


@in_virtual_time
async def test_a_parked_task_with_an_unreachable_bookie_is_repaired_minutes_after_it_answers() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))
        world.bookies.stop_listening("b")
        running = world.worker(once=False)
        async with world.running(running):
            await until(lambda: is_parked(world))
            world.bookies.listen("b")
            await until(world.is_clean, seconds=400)


@in_virtual_time
async def test_an_unreachable_bookie_that_is_lost_is_replaced_at_once() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))
        world.bookies.stop_listening("b")
        running = world.worker(once=False)
        async with world.running(running):
            await until(lambda: is_parked(world))
            await world.kill("b")
            await until(world.is_clean, seconds=10)
        await world.assert_whole(LEDGER, packets, "t")


async def is_parked(world: RepairWorld) -> bool:
    return bool(await world.parked.list())


@in_virtual_time
async def test_a_corrupt_source_is_reported_and_the_next_one_used() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("b")
        for name, entry in (("a", 3), ("c", 4)):
            world.bookies[name].results[EntryId(entry)] = flipped
        recorder = await world.heal()
        await world.assert_whole(LEDGER, packets, "t")
        assert [(copy.bookie, copy.entry_id) for copy in recorder.corrupt] in ([("a", 3)], [("c", 4)])


@in_virtual_time
async def test_a_target_that_dies_during_the_copy_is_replaced_and_no_partial_change_is_left() -> None:
    async with a_world("a b t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=99), 100)
        await world.lose("b")
        for name in "tu":

            async def die(name: str = name) -> None:
                for other in "tu":
                    world.bookies[other].before_add = None
                await world.kill(name)

            world.bookies[name].before_add = die
        await world.heal()
        assert world.version(LEDGER) == 1
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_target_that_acknowledges_but_does_not_list_entries_is_not_installed() -> None:
    async with a_world("a b t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        world.bookies["t"].list_replies = [ListReply(Status.OK, EntryRuns.of(range(9)))] * 100
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a u")
        await world.assert_whole(LEDGER, packets, "u")


def at_the_next_list(tampering: Tampering, act: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Any]:
    """For use before the first list: run ``act`` before the second list, which follows the copy."""

    async def arm() -> None:
        tampering.before_list = act

    return arm


@in_virtual_time
async def test_a_target_whose_disks_changed_after_the_copy_is_not_installed() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        lying = world.bookies["t"]
        versions: list[int | None] = []

        async def swap_disks() -> None:
            versions.append(world.version(LEDGER))
            await world.add_bookies("t", incarnation="2")
            lying.list_replies = [ListReply(Status.OK, EntryRuns.of(range(10)))]

        lying.before_list = at_the_next_list(lying, swap_disks)
        recorder = await world.heal()
        assert Ending.REPAIRED in recorder.endings()
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_a_target_that_becomes_read_only_during_the_copy_is_not_installed() -> None:
    async with a_world("a b t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        became: list[str] = []
        for name in "tu":

            async def fill_up(name: str = name) -> None:
                if not became:
                    became.append(name)
                    await world.register(name, is_read_only=True)

            world.bookies[name].before_list = at_the_next_list(world.bookies[name], fill_up)
        await world.heal()
        (full,) = became
        assert (await world.metadata(LEDGER)).last_fragment.members == ("a", "u" if full == "t" else "t")
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_new_tasks_are_found_and_the_most_urgent_come_first() -> None:
    async with a_world("a b c d t") as world:
        await world.ledger(1, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.ledger(2, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.kill("b")
        await world.tasks.marking.mark_many([(LedgerId(i), names("b")) for i in (1, 2)])
        running = world.worker(once=False, ledgers_in_flight=1).start()
        await until(world.is_clean, seconds=20)
        assert [result.ledger_id for result in running.recorder.results] == [2, 1]
        await world.ledger(3, make_metadata((0, "a d"), quorum=(2, 2), last=9), 10)
        await world.kill("d")
        await world.tasks.marking.mark(LedgerId(3), names("d"))
        await until(world.is_clean, seconds=20)
        await running.stop()
        assert running.recorder.results[-1].ledger_id == 3
