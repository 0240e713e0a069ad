"""Bookies that lack entries of an unclosed ledger: they returned on empty disks, and nothing on them shows it.

Apache's bookies have no limbo, so only the other members show that entries are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bookie.client.recovery.recovery import recover_ledger
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.digest import digest_for
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import DigestType, LedgerMetadata, LedgerState
from bookie.model.packet import pack, packet_ids, unpack
from bookie.wire.port import EntryResult, Status
from replicator.knowledge import frontier
from replicator.knowledge.evidence import BookieAnswer
from replicator.knowledge.holdings import HoldingsReader
from replicator.telemetry.events import Ending
from tests.worlds.ledgers import LEDGER, PASSWORD, make_metadata, make_packets, names, should_hold
from tests.worlds.repair import RepairWorld, Tamper, a_world, answers, flipped
from tests.worlds.virtual_time import in_virtual_time, until

GRACE_S = 30.0


async def wipe(world: RepairWorld, bookie: str, *, has_no_lists: bool = False) -> None:
    """Let a bookie lose its disks and serve again as if nothing had happened, and mark the lost entries."""
    await world.kill(bookie)
    await world.add_bookies(bookie, incarnation="2")
    world.bookies[bookie].has_no_lists = has_no_lists
    await world.tasks.marking.mark(LEDGER, names(bookie))


async def assert_filled_up(world: RepairWorld, packets: dict[EntryId, bytes], open_as: LedgerMetadata) -> None:
    recorder = await world.heal()
    assert recorder.endings() == [Ending.REPAIRED]
    assert await world.metadata(LEDGER) == open_as
    await world.assert_whole(LEDGER, packets)
    assert await world.is_clean()


@pytest.mark.parametrize("has_no_lists", [False, True])
@pytest.mark.parametrize("tail", ["a t", "a b"])
def test_a_fragment_that_the_writer_has_left_is_filled_in_place(tail: str, has_no_lists: bool) -> None:
    @in_virtual_time
    async def test() -> None:
        async with a_world("a b t") as world:
            packets = await world.ledger(LEDGER, make_metadata((0, "a b"), (20, tail), quorum=(2, 2), last=None), 30)
            metadata = await world.metadata(LEDGER)
            await wipe(world, "b", has_no_lists=has_no_lists)
            if tail == "a b":  # the writer has continued on the present disks
                await world.bookies.put("b", LEDGER, [packets[EntryId(each)] for each in range(20, 30)])
            await assert_filled_up(world, packets, metadata)

    test()


@pytest.mark.parametrize("has_no_lists", [False, True])
@pytest.mark.parametrize("held", [0, 7, 9])
@pytest.mark.parametrize("shape", ["a b", "a b c"])
def test_a_fragment_that_may_grow_is_filled_with_entries_of_other_members(
    shape: str, held: int, has_no_lists: bool
) -> None:
    """With two copies and two acknowledgements, a recovery would believe the empty bookie and drop the last entry."""

    @in_virtual_time
    async def test() -> None:
        async with a_world("a b c t") as world:
            packets = await world.ledger(LEDGER, make_metadata((0, shape), quorum=(2, 2), last=None), 10)
            metadata = await world.metadata(LEDGER)
            await wipe(world, "b", has_no_lists=has_no_lists)
            mine = [packets[each] for each in should_hold(metadata, "b", map(EntryId, range(held)))]
            if mine:
                await world.bookies.put("b", LEDGER, mine)
            await assert_filled_up(world, packets, metadata)
            closed = await recover_ledger(world.ports(world.store).client(), LEDGER)
            assert closed.metadata.last_entry_id == 9

    test()


@in_virtual_time
async def test_the_fragment_before_an_empty_tail_is_filled_too() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), (20, "a t"), quorum=(2, 2), last=None), 20)
        metadata = await world.metadata(LEDGER)
        await wipe(world, "b")
        await assert_filled_up(world, packets, metadata)


@in_virtual_time
async def test_entries_after_a_gap_were_not_acknowledged_and_are_not_copied() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        packets = make_packets(LEDGER, 15)
        ahead = {EntryId(each): packets[EntryId(each)] for each in (10, 11, 13, 14)}
        late = [repacked(packets[entry_id], lac=9) for entry_id in ahead]
        await world.bookies.put("a", LEDGER, late)
        await wipe(world, "b")
        assert (await world.heal()).endings() == [Ending.REPAIRED]
        assert await world.bookies.nodes[BookieId("b")].holds(LEDGER) == list(range(12))


@in_virtual_time
async def test_a_writer_continues_while_its_bookie_is_filled() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        metadata = await world.metadata(LEDGER)
        await wipe(world, "b")
        packets = make_packets(LEDGER, 20)

        async def write_on() -> None:
            for bookie in "abc":
                await world.bookies.put(bookie, LEDGER, [packets[EntryId(each)] for each in range(10, 20)])

        world.bookies["b"].before_add = write_on
        await assert_filled_up(world, packets, metadata)


@in_virtual_time
async def test_the_repair_of_a_read_only_incomplete_bookie_waits_for_the_writer() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        await wipe(world, "b")
        await world.registrations.unregister(BookieId("b"))
        await world.register("b", is_read_only=True)
        running = world.worker(once=False).start()
        await asyncio.sleep(3 * GRACE_S)
        assert running.recorder.results[-1].reason is ParkReason.OPEN_LEDGER
        ledger = await world.ledgers.read(LEDGER)
        assert ledger.metadata.state is LedgerState.OPEN
        await world.ledgers.write(LEDGER, ledger.metadata.closed(EntryId(9), 90), ledger.version)
        await until(world.is_clean, seconds=30)
        await world.assert_whole(LEDGER, packets, "t")
        await running.stop()


@in_virtual_time
async def test_a_member_that_has_every_entry_lacks_nothing() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(2, 2), last=None), 10)
        metadata = await world.metadata(LEDGER)
        await world.tasks.marking.mark(LEDGER, names("b"))
        assert (await world.heal()).endings() == [Ending.NOTHING_MISSING]
        assert await world.metadata(LEDGER) == metadata


@in_virtual_time
async def test_an_open_ledger_without_entries_lacks_nothing() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(2, 2), last=None), 0)
        await wipe(world, "b")
        assert (await world.heal()).endings() == [Ending.NOTHING_MISSING]


@in_virtual_time
async def test_the_task_stays_while_a_member_is_unreachable() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        await wipe(world, "b")
        world.bookies.stop_listening("a")
        running = world.worker(once=False).start()
        await asyncio.sleep(5 * GRACE_S)
        assert set(running.recorder.endings()) <= {Ending.FAILED, Ending.PARKED}
        assert await world.task(LEDGER) is not None
        world.bookies.listen("a")
        await until(world.is_clean, seconds=600)
        await world.assert_whole(LEDGER, packets)
        await running.stop()


@in_virtual_time
async def test_a_damaged_last_entry_does_not_prove_that_nothing_was_written() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        await wipe(world, "b")
        world.bookies["a"].last = flipped
        world.bookies["a"].results[EntryId(9)] = flipped
        running = world.worker(once=False).start()
        await asyncio.sleep(5 * GRACE_S)
        assert running.recorder.results[-1].reason is ParkReason.UNREADABLE_ENTRIES
        assert await world.task(LEDGER) is not None
        await running.stop()


NAMES_NEWEST = [
    pytest.param(((0, "y a"), (10, "a c")), 3, id="in the fragment before"),
    pytest.param(((0, "y a"), (10, "a c")), 9, id="at the end of the fragment before"),
    pytest.param(((0, "y a"), (10, "a c")), 12, id="in the last fragment"),
    pytest.param(((0, "a c y"),), 0, id="striped"),
]


@pytest.mark.parametrize(("fragments", "named"), NAMES_NEWEST)
def test_entries_after_the_last_entry_that_a_member_reports_are_copied(
    fragments: tuple[tuple[int, str], ...], named: int
) -> None:
    """An Apache bookie reports the greatest of its newest entries, which a repair may have stored after later ones."""

    @in_virtual_time
    async def test() -> None:
        async with a_world("y a c t") as world:
            packets = await world.ledger(LEDGER, make_metadata(*fragments, quorum=(2, 2)), 60)
            metadata = await world.metadata(LEDGER)
            await wipe(world, "c", has_no_lists=True)
            for bookie in ("a", "y"):
                world.bookies[bookie].has_no_lists = True
                world.bookies[bookie].last = names_as_last(packets, named)
            await assert_filled_up(world, packets, metadata)

    test()


@in_virtual_time
async def test_each_member_is_checked_for_one_entry_after_the_last_one() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2)), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))
        assert (await world.heal()).endings() == [Ending.NOTHING_MISSING]
        assert [world.bookies[name].reads for name in "abc"] == [[(9,), (10,)]] * 3


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.IO_ERROR, Status.CORRUPT])
def test_the_task_stays_while_a_member_may_have_later_entries_than_it_reports(status: Status) -> None:
    @in_virtual_time
    async def test() -> None:
        async with a_world("y a c t") as world:
            packets = await world.ledger(LEDGER, make_metadata((0, "y a"), (10, "a c"), quorum=(2, 2)), 20)
            await wipe(world, "c", has_no_lists=True)
            world.bookies["a"].last = names_as_last(packets, 9)
            world.bookies["a"].results[EntryId(10)] = answers(status)
            running = world.worker(once=False).start()
            await asyncio.sleep(5 * GRACE_S)
            assert set(running.recorder.endings()) <= {Ending.FAILED, Ending.PARKED}
            assert await world.task(LEDGER) is not None
            world.bookies["a"].results.clear()
            await until(world.is_clean, seconds=4000, every_s=1)
            await world.assert_whole(LEDGER, packets)
            await running.stop()

    test()


@in_virtual_time
async def test_an_end_far_after_the_last_reported_entry_is_found_in_several_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frontier, "_UNNAMED_MAX", 16)
    async with a_world("y a c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "y a"), (10, "a c"), quorum=(2, 2)), 60)
        metadata = await world.metadata(LEDGER)
        await wipe(world, "c", has_no_lists=True)
        world.bookies["a"].last = names_as_last(packets, 9)
        await assert_filled_up(world, packets, metadata)


@in_virtual_time
async def test_the_task_stays_while_the_end_is_too_far_after_the_last_reported_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frontier, "_UNNAMED_MAX", 16)
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2)), 60)
        for bookie in ("a", "b"):
            world.bookies[bookie].last = names_as_last(packets, 9)
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False).start()
        await asyncio.sleep(5 * GRACE_S)
        assert running.recorder.results[-1].reason is ParkReason.UNREACHABLE_BOOKIES
        assert "no bookie reports an entry after 9" in running.recorder.results[-1].detail
        for bookie in ("a", "b"):
            world.bookies[bookie].last = lambda result: result  # as after a flush
        await until(world.is_clean, seconds=4000, every_s=1)
        await running.stop()


@in_virtual_time
async def test_the_search_for_the_end_stops_even_if_a_writer_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier, "_UNNAMED_FEW", 8)
    monkeypatch.setattr(frontier, "_UNNAMED_MAX", 40)
    packets, asks = make_packets(LEDGER, 2000), frontier.Frontier._before_first_gap
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)

        async def write_on(
            of: frontier.Frontier, ledger: Versioned, members: Sequence[BookieId], wanted: Sequence[EntryId]
        ) -> tuple[EntryId, list[BookieAnswer]]:
            for bookie in "abc":
                await world.bookies.put(
                    bookie, LEDGER, [packets[EntryId(each)] for each in range(wanted[0], wanted[-1] + 6)]
                )
            return await asks(of, ledger, members, wanted)

        monkeypatch.setattr(frontier.Frontier, "_before_first_gap", write_on)
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.NOTHING_MISSING]


@in_virtual_time
async def test_a_loss_after_the_last_reported_entry_counts_as_a_loss_of_acknowledged_entries() -> None:
    async with a_world("y a c") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "y a"), (10, "a c"), quorum=(2, 2)), 20)
        await wipe(world, "c", has_no_lists=True)
        world.bookies["a"].last = world.bookies["y"].last = names_as_last(packets, 9)
        holdings = HoldingsReader(world.bookies.transport, world.clock)
        judged = await holdings.judge_members(await world.ledgers.read(LEDGER), await world.registrations.list())
        assert judged.lost == {BookieId("c")}


@in_virtual_time
async def test_a_damaged_copy_does_not_hide_the_entries_of_a_third_member() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        metadata = await world.metadata(LEDGER)
        await wipe(world, "b")
        world.bookies["a"].last = answers(Status.CORRUPT)
        world.bookies["a"].results[EntryId(9)] = answers(Status.CORRUPT)
        await assert_filled_up(world, packets, metadata)


@in_virtual_time
async def test_a_recovery_does_not_trust_a_bookie_that_lost_acknowledged_entries() -> None:
    """Two copies, two acknowledgements: if a single denial were believed, an acknowledged entry would be cut off."""
    async with a_world("a b c d t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "b a c d"), quorum=(2, 2), last=None), 9)
        await wipe(world, "b", has_no_lists=True)
        await lose_too(world, "c")
        await world.heal(open_ledger_grace_s=0.0)
        after = await world.metadata(LEDGER)
        assert (after.state, after.last_entry_id) == (LedgerState.CLOSED, 8)
        await world.assert_whole(LEDGER, packets)


@pytest.mark.parametrize("is_recovery_begun", [False, True])
def test_a_ledger_stays_unclosed_while_no_member_is_trusted(is_recovery_begun: bool) -> None:
    @in_virtual_time
    async def test() -> None:
        async with a_world("a b c t") as world:
            packets = await world.ledger(LEDGER, make_metadata((0, "b a c"), quorum=(2, 2), last=None), 10)
            running = world.worker(once=False)
            if is_recovery_begun:
                await world.lose("b", "c")
                running.start()
                await asyncio.sleep(3 * GRACE_S)
                assert (await world.metadata(LEDGER)).state is LedgerState.IN_RECOVERY
                await world.add_bookies("b", incarnation="2")
                world.bookies["b"].has_no_lists = True
            else:
                await wipe(world, "b", has_no_lists=True)
                await lose_too(world, "c")
                running.start()
            await asyncio.sleep(10 * GRACE_S)
            assert (await world.metadata(LEDGER)).state is not LedgerState.CLOSED
            assert running.recorder.endings()[-1] is Ending.PARKED
            await world.register("c")  # with its old disks
            await until(world.is_clean, seconds=4000, every_s=1)
            after = await world.metadata(LEDGER)
            if after.state is LedgerState.CLOSED:
                assert after.last_entry_id == 9
            await world.assert_whole(LEDGER, packets)
            await running.stop()

    test()


@in_virtual_time
async def test_a_bookie_that_is_temporarily_busy_is_filled_later() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        metadata = await world.metadata(LEDGER)
        await wipe(world, "b")
        world.bookies["b"].add_replies = [Status.TIMEOUT] * 3
        recorder = await world.heal()
        assert recorder.endings() == [Ending.FAILED, Ending.REPAIRED]
        assert "TIMEOUT" in recorder.results[0].detail
        assert await world.metadata(LEDGER) == metadata
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_an_entry_only_on_a_bookie_that_the_writer_replaced_was_never_acknowledged() -> None:
    async with a_world("a b t") as world:
        metadata = make_metadata((0, "a b"), (20, "a t"), quorum=(2, 2), last=None)
        packets = await world.ledger(LEDGER, metadata, 20)
        await world.bookies.put("b", LEDGER, [make_packets(LEDGER, 21)[EntryId(20)]])
        await world.tasks.marking.mark(LEDGER, names("a"))
        assert (await world.heal()).endings() == [Ending.NOTHING_MISSING]
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_new_entries_that_a_slow_member_lacks_are_not_copied() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))
        packets = make_packets(LEDGER, 2000)
        written = 10

        async def write_on() -> None:
            nonlocal written
            late = range(max(10, written - 10), written - 5)
            for bookie, ids in (("a", range(written, written + 5)), ("c", range(written, written + 5)), ("b", late)):
                if ids:
                    await world.bookies.put(bookie, LEDGER, [packets[EntryId(each)] for each in ids])
            written += 5
            world.bookies["b"].before_list = write_on

        world.bookies["b"].before_list = write_on
        recorder = await world.heal()
        assert recorder.endings()[-1] in (Ending.REPAIRED, Ending.NOTHING_MISSING)
        assert len(recorder.endings()) == 1
        assert await world.is_clean()


async def lose_too(world: RepairWorld, bookie: str) -> None:
    """Lose another bookie with its disks, and mark its ledger."""
    await world.kill(bookie)
    await world.tasks.marking.mark(LEDGER, names(bookie))


def names_as_last(packets: dict[EntryId, bytes], named: int) -> Tamper:
    """Return a change that reports this entry as the last one, as after it was stored on an Apache bookie."""

    def change(result: EntryResult) -> EntryResult:
        entry_id = EntryId(named)
        return result if result.status.is_absent else EntryResult(entry_id, Status.OK, packets[entry_id])

    return change


def repacked(packet: bytes, *, lac: int) -> bytes:
    """Return the same entry, as written when no entry after ``lac`` was confirmed."""
    digest = digest_for(DigestType.CRC32C, PASSWORD)
    ledger_id, entry_id = packet_ids(packet)
    entry = unpack(digest, packet, ledger_id, entry_id)
    return pack(digest, ledger_id, entry_id, lac, entry.length, entry.payload)
