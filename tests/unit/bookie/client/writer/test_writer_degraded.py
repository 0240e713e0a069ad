"""Writing with fewer members than requested: because changes are delayed, or because there is no spare."""

from __future__ import annotations

import asyncio

import pytest

from bookie.client.errors import AddOutcomeUnknownError
from bookie.client.options import WriterOptions
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.layout import task_path
from bookie.metadata.store.memory import Fault
from bookie.model.ids import EntryId
from bookie.wire.port import Status
from tests.worlds.cluster import ROOT
from tests.worlds.writer import WriterWorld, in_world

DELAYED = WriterOptions(is_ensemble_change_delayed=True)


def held(world: WriterWorld, writer: LedgerWriter, bookie: str) -> list[int]:
    return sorted(entry for ledger, entry in world.bookies[bookie].stored if ledger == writer.ledger_id)  # type: ignore[index]


@in_world(5)
async def test_a_delayed_change_continues_with_a_quorum_and_marks_the_incomplete_bookie(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, DELAYED)
    await world.fill(writer, 3)
    failed = writer.metadata.last_fragment.members[1]
    world.bookies[failed].refusal = Status.IO_ERROR
    await world.fill(writer, 5)
    assert len(world.stored(writer).fragments) == 1
    await asyncio.sleep(1)
    assert await world.marked(writer) == (failed,)  # while the ledger is still open
    metadata = await writer.close()
    assert metadata.fragments[0].members.count(failed) == 1
    assert metadata.last_entry_id == 7


@in_world(5)
async def test_a_delayed_change_is_made_once_an_entry_cannot_reach_its_quorum(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, DELAYED)
    await world.fill(writer, 3)
    members = writer.metadata.last_fragment.members
    world.bookies[members[1]].refusal = Status.IO_ERROR
    await world.fill(writer, 2)
    assert len(world.stored(writer).fragments) == 1
    world.bookies[members[2]].refusal = Status.IO_ERROR
    await world.fill(writer, 2)
    fragments = world.stored(writer).fragments
    assert [fragment.first_entry_id for fragment in fragments] == [0, 5]
    assert not {members[1], members[2]} & set(fragments[1].members)  # both are replaced at the same time
    await writer.close()
    assert await world.marked(writer) == (members[1],)


@in_world(7)
async def test_a_delayed_change_checks_each_write_set(world: WriterWorld) -> None:
    writer = await world.writer(5, 3, 2, DELAYED)
    members = writer.metadata.last_fragment.members
    world.bookies[members[0]].refusal = Status.IO_ERROR
    await world.fill(writer, 10)
    assert len(world.stored(writer).fragments) == 1
    world.bookies[members[3]].refusal = Status.IO_ERROR  # in the write set with position 0 for entries 3 and 8
    await world.fill(writer, 10)
    assert members[3] not in world.stored(writer).last_fragment.members
    assert (await writer.close()).last_entry_id == 19


@in_world(5)
async def test_a_read_only_bookie_is_replaced_although_changes_are_delayed(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, DELAYED)
    await world.fill(writer, 3)
    gone = writer.metadata.last_fragment.members[1]
    world.bookies[gone].refusal = Status.READ_ONLY
    await world.fill(writer, 3)
    await world.fill(writer, 3)
    assert gone not in world.stored(writer).last_fragment.members
    await writer.close()


@in_world(4)
async def test_nothing_is_acknowledged_while_a_delayed_change_is_made(world: WriterWorld) -> None:
    """The store does not answer for longer than any caller waits (#1591)."""
    writer = await world.writer(3, 3, 2, DELAYED)
    await world.fill(writer, 3)
    members = writer.metadata.last_fragment.members
    world.bookies[members[0]].refusal = Status.IO_ERROR
    await world.fill(writer, 2)
    may_write = world.hold_writes(writer)
    world.bookies[members[1]].refusal = Status.IO_ERROR
    waiters = [await world.submit(writer) for _ in range(3)]
    await asyncio.sleep(100)
    assert not any(waiter.done() for waiter in waiters)
    may_write.set()
    assert await asyncio.gather(*waiters) == [5, 6, 7]
    await writer.close()


@in_world(3)
async def test_nothing_is_acknowledged_while_a_degraded_writer_takes_a_spare_bookie(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    world.member(writer, 0).refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    spare = await world.join("b9")
    await asyncio.sleep(6)
    may_write = world.hold_writes(writer)
    world.member(writer, 1).latency_s = world.member(writer, 2).latency_s = 1
    waiters = [await world.submit(writer) for _ in range(3)]
    await asyncio.sleep(100)
    assert not any(waiter.done() for waiter in waiters)
    may_write.set()
    assert await asyncio.gather(*waiters) == [6, 7, 8]
    await writer.settle()
    assert set(held(world, writer, spare)) == {6, 7, 8}
    await writer.close()


@in_world(3)
async def test_a_returned_bookie_is_written_to_again(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, DELAYED)
    await world.fill(writer, 3)
    name = writer.metadata.last_fragment.members[1]
    bookie = world.bookies[name]
    bookie.refusal = Status.SHUTTING_DOWN
    await world.fill(writer, 3)
    bookie.refusal = None
    await asyncio.sleep(6)
    await world.fill(writer, 1)  # this entry makes the writer check its members
    await asyncio.sleep(1)
    await world.fill(writer, 3)
    await writer.settle()
    assert {7, 8, 9} <= set(held(world, writer, name))
    assert len(world.stored(writer).fragments) == 1
    await writer.close()
    assert await world.marked(writer) == (name,)  # it lacks the entries written after its failure


@in_world(3)
async def test_a_bookie_that_fails_hours_later_is_tried_again_as_soon_as_the_first_time(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, DELAYED)
    bookie = world.member(writer, 1)
    for _ in range(3):
        bookie.refusal = Status.SHUTTING_DOWN
        await world.fill(writer, 3)
        bookie.refusal = None
        await asyncio.sleep(6)
        await world.fill(writer, 1)
        await asyncio.sleep(1)
        before = len(bookie.stored)
        await world.fill(writer, 3)
        await writer.settle()
        assert len(bookie.stored) == before + 3
        await asyncio.sleep(3600)
    await writer.close()


@in_world(3)
async def test_a_bookie_that_is_used_again_is_marked_again_as_its_repair_may_have_ended(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, DELAYED)
    await world.fill(writer, 3)
    name = writer.metadata.last_fragment.members[1]
    world.bookies[name].refusal = Status.SHUTTING_DOWN
    await world.fill(writer, 3)
    await asyncio.sleep(1)
    assert await world.marked(writer) == (name,)
    await world.store.delete(task_path(ROOT, writer.ledger_id))  # it is repaired
    await world.fill(writer, 3)
    world.bookies[name].refusal = None
    await asyncio.sleep(6)
    await world.fill(writer, 1)
    await asyncio.sleep(1)
    assert held(world, writer, name)[-1] > 6
    await writer.abandon()
    assert await world.marked(writer) == (name,)


@in_world(3)
async def test_a_bookie_that_returns_with_other_disks_is_not_written_to(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, DELAYED)
    await world.fill(writer, 3)
    name = writer.metadata.last_fragment.members[1]
    world.bookies[name].refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    world.bookies[name].refusal = None
    world.bookies[name].stored.clear()
    await world.leave(name)
    await world.join(name, incarnation="fresh")
    for _ in range(10):
        await asyncio.sleep(30)
        await world.fill(writer, 3)
    await writer.settle()
    assert held(world, writer, name) == []
    await writer.close()


@in_world(3)
async def test_without_a_spare_bookie_the_writer_continues_with_its_quorum(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    failed = writer.metadata.last_fragment.members[0]
    world.bookies[failed].refusal = Status.IO_ERROR
    await world.fill(writer, 100)
    await asyncio.sleep(1)
    assert await world.marked(writer) == (failed,)
    metadata = await writer.close()
    assert (metadata.last_entry_id, len(metadata.fragments)) == (102, 1)


@in_world(3)
async def test_a_degraded_writer_takes_a_spare_bookie_when_there_is_one(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    failed = writer.metadata.last_fragment.members[0]
    world.bookies[failed].refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    spare = await world.join("b9")
    await asyncio.sleep(6)
    await world.fill(writer, 1)
    await asyncio.sleep(1)
    await world.fill(writer, 3)
    await writer.settle()
    fragments = world.stored(writer).fragments
    assert fragments[-1].members[0] == spare
    assert fragments[-1].first_entry_id in (6, 7)
    assert {7, 8, 9} <= set(held(world, writer, spare))
    world.member(writer, 1).refusal = Status.IO_ERROR  # from now on, its patience is as before
    await world.join("b10")
    await world.fill(writer, 1)
    await world.fill(writer, 1)
    assert len(world.stored(writer).fragments) == 3
    await writer.close()


@in_world(3)
async def test_the_writer_fails_when_its_quorum_cannot_be_reached(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    world.member(writer, 0).refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    world.member(writer, 1).refusal = Status.IO_ERROR
    with pytest.raises(AddOutcomeUnknownError, match="no writable bookie is left"):
        await world.fill(writer, 3)
    metadata = await writer.close()
    assert metadata.last_entry_id == 5


@in_world(3)
async def test_a_returned_member_restores_the_quorum(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    first, second = world.member(writer, 0), world.member(writer, 1)
    first.refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    await asyncio.sleep(60)
    first.refusal, second.refusal = None, Status.IO_ERROR
    await world.fill(writer, 3)
    assert (await writer.close()).last_entry_id == 8


@in_world(4)
async def test_as_many_positions_as_there_are_spares_are_replaced(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 1)
    await world.fill(writer, 3)
    world.member(writer, 0).refusal = world.member(writer, 1).refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    await asyncio.sleep(60)
    await world.fill(writer, 3)  # the previous change replaced one of two positions, and is in the writer's metadata
    await world.join("b9")
    await asyncio.sleep(60)
    await world.fill(writer, 3)
    await asyncio.sleep(1)
    await world.fill(writer, 3)
    metadata = await writer.close()
    assert metadata.last_entry_id == 14
    assert {"b9"} <= set(metadata.last_fragment.members)


@in_world(3)
async def test_entries_do_not_accumulate_for_a_failed_bookie(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, DELAYED)
    world.member(writer, 0).refusal = Status.IO_ERROR
    await world.fill(writer, 50)
    state = writer._pipeline.state
    assert state.unsettled_entries == state.unsettled_bytes == 0
    assert not state.lanes[0].queue
    await writer.close()


@in_world(3)
async def test_a_hanging_bookie_does_not_delay_a_degraded_writer_for_long(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, pipeline_entries_max=20)
    hung = world.member(writer, 2)
    hung.is_silent = True
    began = asyncio.get_running_loop().time()
    for _ in range(100):
        await world.fill(writer, 10)
        await asyncio.sleep(1)
    assert asyncio.get_running_loop().time() - began < 100 + 6 * 11  # one deadline for each attempt
    await writer.close()


@in_world(3)
async def test_failed_marking_does_not_fail_the_writer_and_is_done_at_close(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 1)

    async def no_tasks(operation: str, path: str) -> Fault | None:
        return Fault.FAIL_BEFORE if "underreplication" in path else None

    world.store.fault_hook = no_tasks
    failed = writer.metadata.last_fragment.members[0]
    world.bookies[failed].refusal = Status.IO_ERROR
    await world.fill(writer, 5)
    await asyncio.sleep(60)
    await world.fill(writer, 5)
    world.store.fault_hook = None
    await writer.close()
    assert await world.marked(writer) == (failed,)


@in_world(4)
async def test_an_ack_from_before_its_bookie_failed_still_counts(
    world: WriterWorld,
) -> None:
    """An ack that was counted before its bookie failed still counts: the metadata names that bookie for the entry."""
    writer = await world.writer(3, 3, 2, DELAYED)
    first, second, third = (world.member(writer, position) for position in range(3))
    second.latency_s = third.latency_s = 5.0
    waiter = await world.submit(writer)
    await asyncio.sleep(1)
    first.refusal = Status.IO_ERROR
    later = await world.submit(writer)
    assert [await waiter, await later] == [0, 1]
    assert (writer.ledger_id, EntryId(0)) in first.stored
    await writer.close()
