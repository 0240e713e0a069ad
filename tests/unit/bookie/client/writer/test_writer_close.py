"""Closing a ledger: the final end, closes by other clients, and lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bookie.client.errors import AddOutcomeUnknownError, CloseOutcomeUnknownError, LedgerFencedError
from bookie.client.options import WriterOptions
from bookie.metadata.ledgers.ledgers import MetadataConflictError
from bookie.metadata.port import StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.store.memory import Fault
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerState
from bookie.wire.port import Status
from tests.worlds.writer import WriterWorld, in_world, recovering


@pytest.mark.parametrize("fault", Fault)
def test_a_lost_answer_to_the_close_is_resolved_by_a_read(fault: Fault) -> None:
    @in_world(3)
    async def run(world: WriterWorld) -> None:
        writer = await world.writer()
        await world.fill(writer, 3)
        left = world.on_writes(writer, fault)
        try:
            metadata = await writer.close()
        except StoreUnavailableError:  # it is certain that the close was not carried out
            assert fault is Fault.FAIL_BEFORE
            assert world.stored(writer).state is LedgerState.OPEN
            metadata = await writer.close()
        assert not left
        assert metadata == world.stored(writer) == await writer.close()
        assert metadata.last_entry_id == 2

    run()


@in_world(3)
async def test_a_close_whose_outcome_stays_unknown_may_be_repeated(world: WriterWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 3)
    world.lose_answers(writer)
    with pytest.raises(WriteOutcomeUnknownError):
        await writer.close()
    assert world.stored(writer).is_closed
    world.store.fault_hook = None
    assert await writer.close() == world.stored(writer)


@in_world(3)
async def test_a_ledger_in_recovery_is_never_closed_by_its_writer(world: WriterWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 3)
    await world.set_state(writer, recovering)
    for _ in range(2):
        with pytest.raises(CloseOutcomeUnknownError):
            await writer.close()
    assert world.stored(writer).state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize(("last", "length"), [(2, 22), (1, 14), (3, 21)])
def test_a_close_is_in_doubt_if_the_ledger_was_closed_at_another_end(last: int, length: int) -> None:
    @in_world(3)
    async def run(world: WriterWorld) -> None:
        writer = await world.writer()
        await world.fill(writer, 3)
        await world.set_state(writer, lambda found: found.closed(EntryId(last), length))
        with pytest.raises(CloseOutcomeUnknownError):
            await writer.close()

    run()


@in_world(3)
async def test_a_close_succeeds_if_the_ledger_was_closed_at_the_same_end(world: WriterWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 3)
    await world.set_state(writer, lambda found: found.closed(EntryId(2), 21))
    assert (await writer.close()).last_entry_id == 2


@in_world(3)
async def test_a_fenced_writer_detects_a_recovery_that_closed_at_its_end(world: WriterWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 3)
    for bookie in world.bookies.values():
        bookie.refusal = Status.FENCED
    with pytest.raises(LedgerFencedError):
        await writer.append(b"x")
    with pytest.raises(CloseOutcomeUnknownError) as failure:
        await writer.close()
    assert isinstance(failure.value.__cause__, LedgerFencedError)
    assert world.stored(writer).state is LedgerState.OPEN
    await world.set_state(writer, lambda found: found.closed(EntryId(2), 21))
    assert (await writer.close()).last_entry_id == 2


@in_world(3)
async def test_after_a_failed_but_stored_change_the_end_is_the_last_acknowledged_entry(
    world: WriterWorld,
) -> None:
    await world.join("b3")
    writer = await world.writer(3, 2, 2)
    await world.fill(writer, 3)
    world.lose_answers(writer)
    world.member(writer, 0).refusal = Status.IO_ERROR
    with pytest.raises(AddOutcomeUnknownError):
        await world.fill(writer, 3)
    world.store.fault_hook = None
    assert len(world.stored(writer).fragments) == 2
    metadata = await writer.close()
    assert (metadata.last_entry_id, metadata.length) == (2, 21)


@in_world(3)
async def test_closing_waits_for_all_copies_and_marks_bookies_that_are_overdue(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    slow = writer.metadata.last_fragment.members[2]
    world.bookies[slow].latency_s = 3
    await world.fill(writer, 2)
    await writer.close()
    assert len(world.bookies[slow].stored) == 2
    assert await world.marked(writer) == ()
    writer = await world.writer(3, 3, 2, add_timeout_s=100)
    late = writer.metadata.last_fragment.members[2]
    world.bookies[late].is_silent = True
    await world.fill(writer, 2)
    began = asyncio.get_running_loop().time()
    assert (await writer.close()).last_entry_id == 1
    assert asyncio.get_running_loop().time() - began == pytest.approx(world.ports.settings.close_timeout_s, abs=1)
    assert await world.marked(writer) == (late,)


@in_world(3)
async def test_failed_marking_at_close_is_an_error_and_closing_again_marks(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    failed = writer.metadata.last_fragment.members[2]

    async def no_tasks(operation: str, path: str) -> Fault | None:
        return Fault.FAIL_BEFORE if "underreplication" in path else None

    world.store.fault_hook = no_tasks
    world.bookies[failed].refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    with pytest.raises(StoreUnavailableError):
        await writer.close()
    world.store.fault_hook = None
    await writer.close()
    assert await world.marked(writer) == (failed,)


@in_world(3)
async def test_a_close_whose_marks_or_metadata_keep_changing_may_be_repeated(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    failed = writer.metadata.last_fragment.members[2]
    tasks, ledger_path = world.ports.tasks, world.ports.ledgers.path(writer.ledger_id)
    await tasks.marking.mark(writer.ledger_id, [BookieId("another")])
    conflicting = "underreplication"

    async def interfere(operation: str, path: str) -> Fault | None:
        if operation == "set" and conflicting in path:
            node = world.cell.get(path)
            world.cell.set(path, node.data, node.stat.version)
        return None

    world.store.fault_hook = interfere
    world.bookies[failed].refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    with pytest.raises(StoreUnavailableError):
        await writer.close()
    conflicting = ledger_path
    with pytest.raises(MetadataConflictError):
        await writer.close()
    world.store.fault_hook = None
    assert (await writer.close()).last_entry_id == 2
    assert failed in await world.marked(writer)


@in_world(3)
async def test_no_task_of_a_writer_runs_after_it_was_closed(world: WriterWorld) -> None:
    before = asyncio.all_tasks()
    everything = WriterOptions(True, True, 5, 1, 7)
    for end in ("close", "abandon"):
        writer = await world.writer(3, 3, 2, everything)
        assert await writer.append_at(EntryId(0), b"x") == 0
        await asyncio.sleep(3)
        await getattr(writer, end)()
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == before


@in_world(3)
async def test_no_task_of_a_writer_runs_after_its_context_was_left_by_a_cancellation(world: WriterWorld) -> None:
    writer = await world.writer(options=WriterOptions(explicit_lac_interval_s=1, add_quorum_timeout_s=60))
    world.member(writer, 2).is_silent = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5), writer:
            await world.fill(writer, 3)  # two bookies are enough, and the close waits for the third one
    assert asyncio.all_tasks() == {asyncio.current_task()}
    metadata = await writer.close()
    assert metadata == world.stored(writer)
    assert metadata.last_entry_id == 2
    assert await world.marked(writer) == (writer.metadata.last_fragment.members[2],)


@in_world(5)
async def test_a_mark_that_ends_during_the_close_starts_no_other_one(world: WriterWorld) -> None:
    writer = await world.writer(5, 5, 2, WriterOptions(add_quorum_timeout_s=100))
    marking, may_end, begun = world.ports.tasks.marking, asyncio.Event(), 0

    async def mark(ledger_id: LedgerId, missing: Sequence[BookieId]) -> bool:
        nonlocal begun
        task = asyncio.current_task()
        if task is not None and task.get_name() == "mark incomplete bookies":
            begun += 1
            await (may_end if begun == 1 else asyncio.Event()).wait()
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marking, "mark", mark)
        before = asyncio.all_tasks()
        for position in range(2):
            world.member(writer, position).refusal = Status.IO_ERROR
            await world.fill(writer, 3)
            await writer.settle()
        assert begun == 1
        may_end.set()
        await writer.close()
        await asyncio.sleep(0.01)
        left = [task for task in asyncio.all_tasks() - before if not task.done()]
    assert left == []


@in_world(3)
async def test_incomplete_bookies_are_marked_before_and_after_the_close(world: WriterWorld) -> None:
    """The writer can die between the two marks, and a worker completes the task of an open ledger."""
    writer = await world.writer(close_timeout_s=1)
    silent = writer.metadata.last_fragment.members[2]
    world.bookies[silent].is_silent = True
    await world.fill(writer, 3)
    tasks, ledger_path = world.ports.tasks, world.ports.ledgers.path(writer.ledger_id)
    marked: tuple[str, ...] = ()

    async def complete_at_the_close(operation: str, path: str) -> Fault | None:
        nonlocal marked
        if (operation, path) == ("set", ledger_path):
            world.store.fault_hook = None
            marked = await world.marked(writer)
            held = await tasks.locks.lock(writer.ledger_id, "worker")
            assert held is not None
            assert await tasks.locks.complete(held)
        return None

    world.store.fault_hook = complete_at_the_close
    assert (await writer.close()).last_entry_id == 2
    assert marked == await world.marked(writer) == (silent,)
