"""A bookie that refuses the ledger permanently, although no client recovers it (R160).

A bookie with new disks has fenced each ledger of its former disks, because a fence may be among what it lost. It is
writable, so a writer of such a ledger may choose it again. It answers LIMBO, and FENCED in earlier releases.
"""

from __future__ import annotations

import asyncio

import pytest

from bookie.client.errors import LedgerFencedError
from bookie.model.ids import BookieId
from bookie.model.metadata import LedgerState
from bookie.wire.port import Status
from tests.worlds.writer import WriterWorld, in_world, recovering


def others(world: WriterWorld, *members: BookieId) -> list[BookieId]:
    return sorted(world.bookies.keys() - set(members))


@pytest.mark.parametrize("refusal", [Status.FENCED, Status.LIMBO])
def test_a_replacement_that_has_fenced_the_ledger_is_replaced_for_good(refusal: Status) -> None:
    @in_world(5)
    async def run(world: WriterWorld) -> None:
        writer = await world.writer(3, 3, 2)
        await world.fill(writer, 3)
        first, second = others(world, *writer.metadata.last_fragment.members)
        world.bookies[first].refusal = refusal
        world.member(writer, 0).refusal = Status.IO_ERROR
        await world.fill(writer, 3)
        await asyncio.sleep(3600)
        await world.fill(writer, 3)
        assert first not in writer.metadata.last_fragment.members
        assert second in writer.metadata.last_fragment.members
        metadata = await writer.close()
        assert (metadata.last_entry_id, metadata.state) == (8, LedgerState.CLOSED)

    run()


@in_world(4)
async def test_without_another_bookie_the_writer_continues_with_fewer_copies(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    [spare] = others(world, *writer.metadata.last_fragment.members)
    world.bookies[spare].refusal = Status.FENCED
    world.member(writer, 0).refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    await asyncio.sleep(3600)
    await world.fill(writer, 3)
    assert (await writer.close()).last_entry_id == 8


@in_world(5)
async def test_a_replacement_that_was_fenced_by_a_recovery_ends_the_writer(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 3)
    await world.fill(writer, 3)
    members = writer.metadata.last_fragment.members
    for bookie in others(world, *members):
        world.bookies[bookie].refusal = Status.FENCED
    may_write = world.hold_writes(writer)
    world.member(writer, 0).refusal = Status.IO_ERROR
    waiter = await world.submit(writer)
    await asyncio.sleep(1)
    for bookie in others(world, *members):
        world.bookies[bookie].latency_s = 1.0
    may_write.set()
    await asyncio.sleep(0.5)
    assert world.stored(writer).last_fragment.members != members
    world.store.fault_hook = None
    await world.set_state(writer, recovering)
    with pytest.raises(LedgerFencedError):
        await waiter
    await writer.abandon()


@in_world(5)
async def test_a_replacement_that_has_stored_entries_and_is_then_fenced_ends_the_writer(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 3)
    await world.fill(writer, 3)
    world.member(writer, 0).refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    world.member(writer, 0).refusal = Status.FENCED
    with pytest.raises(LedgerFencedError, match="another client recovers"):
        await world.fill(writer, 3)
    await writer.abandon()


@in_world(4)
async def test_a_member_in_limbo_is_replaced(world: WriterWorld) -> None:
    """Over Apache's protocol, which has no incarnations, this answer is the only sign of lost disks."""
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    members = writer.metadata.last_fragment.members
    world.member(writer, 0).refusal = Status.LIMBO
    await world.fill(writer, 3)
    assert writer.metadata.last_fragment.members == (*others(world, *members), *members[1:])
    assert (await writer.close()).last_entry_id == 5


@in_world(3)
async def test_the_acknowledgements_of_a_member_in_limbo_are_void(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    lost, quick, slow = (world.member(writer, position) for position in range(3))
    quick.latency_s, slow.latency_s = 5.0, 9.0
    waiter = await world.submit(writer)
    await asyncio.sleep(1)
    assert lost.stored
    lost.refusal = Status.LIMBO
    await world.submit(writer)
    await waiter
    assert quick.stored.keys() & slow.stored.keys()
    await writer.close()
