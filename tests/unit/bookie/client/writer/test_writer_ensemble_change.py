"""A writer whose bookies fail: what it replaces, which acknowledgements it counts, and what it reports."""

from __future__ import annotations

import asyncio

import pytest

from bookie.client.errors import (
    AddOutcomeUnknownError,
    LedgerDeletedError,
    LedgerFencedError,
    WriterClosedError,
)
from bookie.client.options import WriterOptions
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError
from bookie.metadata.store.memory import Fault
from bookie.model.ids import EntryId
from bookie.model.metadata import LedgerState
from bookie.wire.port import Status
from tests.worlds.ledgers import with_member
from tests.worlds.writer import WriterWorld, in_world, recovering


@in_world(5)
async def test_one_failure_with_many_adds_in_flight_is_one_change(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 3)
    version = (await world.ports.ledgers.read(writer.ledger_id)).version
    await world.fill(writer, 4)
    world.member(writer, 1).refusal = Status.IO_ERROR
    await world.fill(writer, 500)
    assert (await world.ports.ledgers.read(writer.ledger_id)).version == version + 1
    assert [fragment.first_entry_id for fragment in world.stored(writer).fragments] == [0, 4]
    await writer.close()


@in_world(5)
async def test_a_second_failure_while_the_first_is_being_handled_loses_nothing(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 4)
    listed = 0

    async def fail_another(operation: str, path: str) -> Fault | None:
        nonlocal listed
        if operation == "children":
            listed += 1
            world.member(writer, 2).refusal = Status.IO_ERROR
            await asyncio.sleep(0.1)
        return None

    world.member(writer, 0).refusal = Status.IO_ERROR
    world.member(writer, 2).latency_s = 0.05
    world.store.fault_hook = fail_another
    await world.fill(writer, 10)
    assert listed
    kept = writer.metadata.fragments[0].members[1]
    assert writer.metadata.last_fragment.members[1] == kept
    assert len(set(writer.metadata.last_fragment.members) | set(writer.metadata.fragments[0].members)) == 5
    assert len(writer.metadata.fragments) == 2
    await writer.close()
    assert sorted(world.acknowledged) == list(range(14))


@in_world(4)
async def test_nothing_is_acknowledged_while_the_ensemble_changes(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 2)
    may_write = world.hold_writes(writer)
    world.member(writer, 0).refusal = Status.IO_ERROR
    world.member(writer, 1).latency_s = world.member(writer, 2).latency_s = 0.01
    waiters = [await world.submit(writer) for _ in range(5)]
    await asyncio.sleep(60)
    assert not any(waiter.done() for waiter in waiters)
    may_write.set()
    assert await asyncio.gather(*waiters) == [2, 3, 4, 5, 6]
    await writer.close()


@in_world(8)
async def test_the_ack_of_a_replaced_bookie_that_returns_does_not_count(world: WriterWorld) -> None:
    """The situation of #4097: the late answer must not count as a copy that the metadata does not name."""
    writer = await world.writer(6, 2, 2, failed_bookie_quarantine_s=1000)
    members = writer.metadata.last_fragment.members
    first, second = world.bookies[members[0]], world.bookies[members[1]]
    second.latency_s = 0.5  # entry 0 is on positions 0 and 1
    first.latency_s = 12  # stores the entry, but answers after the writer has replaced this bookie
    waiter = await world.submit(writer)
    await asyncio.sleep(11)
    assert members[0] not in world.stored(writer).members()
    replacement = world.member(writer, 0)
    await waiter
    assert (writer.ledger_id, EntryId(0)) in replacement.stored
    await writer.close()


@in_world(6)
async def test_an_entry_needs_only_the_positions_of_its_write_set(world: WriterWorld) -> None:
    writer = await world.writer(5, 2, 2)
    world.member(writer, 3).refusal = Status.IO_ERROR  # entries 2 and 3 are the first ones that it stores
    assert await (await world.submit(writer)) == 0
    assert await (await world.submit(writer)) == 1
    assert len(world.stored(writer).fragments) == 1
    await world.fill(writer, 3)
    assert [fragment.first_entry_id for fragment in world.stored(writer).fragments] == [0, 2]
    await writer.close()


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.FAIL_BEFORE])
@pytest.mark.parametrize("times", [1, 3])
def test_a_lost_answer_to_a_change_is_resolved(fault: Fault, times: int) -> None:
    @in_world(4)
    async def run(world: WriterWorld) -> None:
        writer = await world.writer(3, 2, 2)
        await world.fill(writer, 3)
        left = world.on_writes(writer, *[fault] * times)
        world.member(writer, 1).refusal = Status.IO_ERROR
        await world.fill(writer, 3)
        assert len(left) < times
        assert [fragment.first_entry_id for fragment in world.stored(writer).fragments] == [0, 3]
        metadata = await writer.close()
        assert metadata == world.stored(writer)

    run()


@pytest.mark.parametrize("is_closed", [True, False])
def test_nothing_is_acknowledged_once_another_client_takes_over_during_a_change(is_closed: bool) -> None:
    @in_world(4)
    async def run(world: WriterWorld) -> None:
        writer = await world.writer(3, 2, 2)
        await world.fill(writer, 3)
        await world.set_state(writer, lambda found: found.closed(EntryId(2), 21) if is_closed else recovering(found))
        world.member(writer, 0).refusal = world.member(writer, 1).refusal = Status.IO_ERROR
        waiters = [await world.submit(writer) for _ in range(3)]
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert all(isinstance(result, LedgerFencedError) for result in results)
        with pytest.raises(LedgerFencedError):
            await writer.append(b"never")
        await writer.abandon()

    run()


@in_world(5)
async def test_a_conflict_with_repair_of_an_older_fragment_keeps_both_changes(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    world.member(writer, 0).refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    spare = next(b for b in sorted(world.bookies) if b not in world.stored(writer).members())
    world.bookies[spare].stored |= {
        (writer.ledger_id, EntryId(n)): world.member(writer, 1).stored[writer.ledger_id, EntryId(n)] for n in range(3)
    }
    repaired = await world.set_state(writer, lambda found: with_member(found, 0, 0, spare))
    world.member(writer, 1).refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    metadata = await writer.close()
    assert metadata.fragments[0] == repaired.metadata.fragments[0]
    assert [fragment.first_entry_id for fragment in metadata.fragments] == [0, 3, 6]


@in_world(4)
async def test_writing_to_a_ledger_that_is_deleted_meanwhile_raises_ledger_deleted(world: WriterWorld) -> None:
    writer = await world.writer(3, 2, 2)
    await world.fill(writer, 2)
    await world.client.delete_ledger(writer.ledger_id)
    world.member(writer, 0).refusal = Status.IO_ERROR
    with pytest.raises(LedgerDeletedError, match="deleted"):
        await world.fill(writer, 3)
    for _ in range(2):
        with pytest.raises(NoSuchLedgerError):
            await writer.close()


@in_world(3)
async def test_adds_to_a_busy_bookie_are_retried_within_bounds(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 3)
    busy = world.member(writer, 1)
    busy.busy_left = 10
    assert await world.fill(writer, 1) == [0]
    assert len(busy.batches) == 11
    busy.busy_left = 1 << 30
    with pytest.raises(AddOutcomeUnknownError, match="no writable bookie is left"):
        await world.fill(writer, 1)
    assert len(busy.batches) == 11 + world.ports.settings.busy_retries_max
    assert (await writer.close()).last_entry_id == 0


@in_world(4)
async def test_a_cancelled_append_does_not_affect_the_change(world: WriterWorld) -> None:
    writer = await world.writer(3, 2, 2)
    await world.fill(writer, 2)

    async def slowly(operation: str, path: str) -> Fault | None:
        await asyncio.sleep(1)
        return None

    world.store.fault_hook = slowly
    world.member(writer, 2).refusal = Status.IO_ERROR
    appends = [asyncio.ensure_future(writer.append(b"x")) for _ in range(4)]
    await asyncio.sleep(1.5)
    for append in appends[:3]:
        append.cancel()
    assert await appends[3] == 5
    metadata = await writer.close()
    assert metadata == world.stored(writer)
    assert (metadata.last_entry_id, len(metadata.fragments)) == (5, 2)


@in_world(4)
async def test_closing_while_a_change_runs_closes_at_the_last_acknowledged_entry(world: WriterWorld) -> None:
    writer = await world.writer(3, 2, 2, close_timeout_s=1)
    await world.fill(writer, 2)

    async def stuck(operation: str, path: str) -> Fault | None:
        if operation == "children":
            await asyncio.sleep(50)
        return None

    world.store.fault_hook = stuck
    world.member(writer, 2).refusal = Status.IO_ERROR
    waiters = [await world.submit(writer) for _ in range(4)]
    closing = asyncio.ensure_future(writer.close())
    with pytest.raises(AddOutcomeUnknownError):
        await waiters[-1]
    metadata = await closing
    assert metadata.last_entry_id == 1
    assert metadata.length == 14
    with pytest.raises(WriterClosedError):
        await writer.append(b"x")


@in_world(7)
async def test_the_number_of_ensemble_changes_of_a_writer_is_limited(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, WriterOptions(ensemble_changes_max=2))
    for _ in range(2):
        world.member(writer, 0).refusal = Status.IO_ERROR
        await world.fill(writer, 3)
    world.member(writer, 0).refusal = Status.IO_ERROR
    with pytest.raises(AddOutcomeUnknownError, match="as many ensemble changes"):
        await world.fill(writer, 3)
    metadata = await writer.close()
    assert (metadata.last_entry_id, metadata.state) == (5, LedgerState.CLOSED)


@in_world(4)
async def test_a_fenced_writer_never_succeeds_again(world: WriterWorld) -> None:
    writer = await world.writer(3, 2, 2)
    await world.fill(writer, 3)
    for bookie in world.bookies.values():
        bookie.refusal = Status.FENCED
    waiters = [await world.submit(writer) for _ in range(3)]
    for result in await asyncio.gather(*waiters, return_exceptions=True):
        assert isinstance(result, LedgerFencedError)
    for bookie in world.bookies.values():
        bookie.refusal = None
    batches = sum(len(bookie.batches) for bookie in world.bookies.values())
    with pytest.raises(LedgerFencedError):
        await writer.append(b"x")
    await asyncio.sleep(100)
    assert sum(len(bookie.batches) for bookie in world.bookies.values()) == batches
    await writer.abandon()


@in_world(4)
async def test_writing_continues_while_the_metadata_store_is_unavailable(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    world.store.suspend()
    await world.fill(writer, 100)
    world.store.resume()
    assert (await writer.close()).last_entry_id == 102


@in_world(4)
async def test_a_failure_while_the_metadata_store_is_unavailable_loses_no_acknowledged_entry(
    world: WriterWorld,
) -> None:
    writer = await world.writer(3, 3, 2, add_timeout_s=1)
    await world.fill(writer, 3)
    failed = writer.metadata.last_fragment.members[0]

    async def away(operation: str, path: str) -> Fault | None:
        return Fault.FAIL_BEFORE

    world.store.fault_hook = away
    world.bookies[failed].refusal = Status.IO_ERROR
    await world.fill(writer, 5)  # there are two copies, so nothing is in doubt, and the other members suffice
    world.store.fault_hook = None
    await asyncio.sleep(120)
    await world.fill(writer, 5)
    metadata = await writer.close()
    assert failed not in metadata.last_fragment.members
    assert failed in metadata.fragments[0].members
    assert await world.marked(writer) == (failed,)


@in_world(4)
async def test_after_a_change_that_was_certainly_not_stored_the_writer_keeps_its_ensemble(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, add_timeout_s=1)
    await world.fill(writer, 3)
    failed = writer.metadata.last_fragment.members[0]
    world.on_writes(writer, *[Fault.FAIL_BEFORE] * 10)  # only these requests fail: a spare is found in every round
    world.bookies[failed].refusal = Status.IO_ERROR
    await world.fill(writer, 5)
    assert len(world.stored(writer).fragments) == 1
    world.store.fault_hook = None
    assert (await writer.close()).last_entry_id == 7
    assert await world.marked(writer) == (failed,)


@in_world(4)
async def test_a_writer_with_an_unknown_ensemble_acknowledges_nothing(world: WriterWorld) -> None:
    """The change was stored, but its answer was lost: two live members are no quorum of the stored ensemble."""
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    ledger_path = world.ports.ledgers.path(writer.ledger_id)
    is_lost = False

    async def lose_one_then_fail(operation: str, path: str) -> Fault | None:
        nonlocal is_lost
        if operation == "set" and path == ledger_path and not is_lost:
            is_lost = True
            return Fault.LOSE_ANSWER
        return Fault.FAIL_BEFORE if is_lost else None

    world.store.fault_hook = lose_one_then_fail
    world.member(writer, 0).refusal = Status.IO_ERROR
    waiters = [await world.submit(writer) for _ in range(3)]
    for result in await asyncio.gather(*waiters, return_exceptions=True):
        assert isinstance(result, AddOutcomeUnknownError)
    assert len(world.stored(writer).fragments) == 2
    world.store.fault_hook = None
    assert (await writer.close()).last_entry_id == 2


@in_world(5)
async def test_a_writer_that_cannot_read_the_outcome_of_its_change_acknowledges_nothing(world: WriterWorld) -> None:
    """The change was stored and its answer was lost.

    A repair of an older fragment hides the change from the first read.
    """
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    world.member(writer, 0).refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    ledger_path = world.ports.ledgers.path(writer.ledger_id)
    requests = 0

    async def lose_then_repair_then_fail(operation: str, path: str) -> Fault | None:
        nonlocal requests
        if path != ledger_path or (operation != "set" and not requests):
            return Fault.FAIL_BEFORE if requests else None
        requests += 1
        if requests == 2:
            world.store.fault_hook = None
            await world.set_state(writer, lambda found: with_member(found, 0, 0, found.last_fragment.members[0]))
            world.store.fault_hook = lose_then_repair_then_fail
        return {1: Fault.LOSE_ANSWER, 2: None, 3: None}.get(requests, Fault.FAIL_BEFORE)

    world.store.fault_hook = lose_then_repair_then_fail
    failing = world.member(writer, 0)
    world.member(writer, 1).latency_s, world.member(writer, 2).latency_s = 0.5, 9
    first = await world.submit(writer)
    await asyncio.sleep(0.1)
    failing.refusal = Status.IO_ERROR  # it has the first entry, but the stored ensemble no longer names it
    waiters = [first, await world.submit(writer)]
    for result in await asyncio.gather(*waiters, return_exceptions=True):
        assert isinstance(result, AddOutcomeUnknownError)
    assert len(world.stored(writer).fragments) == 3
    world.store.fault_hook = None
    assert (await writer.close()).last_entry_id == 5


@in_world(10)
async def test_entries_that_wait_only_for_an_earlier_one_count_as_unfinished(world: WriterWorld) -> None:
    writer = await world.writer(10, 2, 2, pipeline_entries_max=20)
    world.member(writer, 0).latency_s = 5
    waiting = [asyncio.ensure_future(world.submit(writer)) for _ in range(100)]
    await asyncio.sleep(4)
    assert sum(submitted.done() for submitted in waiting) == 20
    assert await asyncio.gather(*[await submitted for submitted in waiting]) == list(range(100))
    await writer.close()
