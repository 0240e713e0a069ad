"""Adds are addressed to the disks that a member had when the metadata first named it."""

from __future__ import annotations

import pytest

from bookie.client.errors import AddOutcomeUnknownError, NotEnoughBookiesError
from bookie.metadata.store.memory import Fault
from bookie.model.ids import BookieId, EntryId
from bookie.wire.port import Status
from tests.worlds.writer import WriterWorld, in_world


@in_world(4)
async def test_each_add_contains_the_incarnation_of_its_member(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    world.member(writer, 0).refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    await writer.close()
    for name, bookie in world.bookies.items():
        assert bookie.batches
        assert {batch.incarnation for batch in bookie.batches} == {f"{name}-disks"}


@in_world(4)
async def test_new_disks_never_accept_adds_that_were_meant_for_the_old_ones(
    world: WriterWorld,
) -> None:
    writer = await world.writer(3, 2, 2)
    await world.fill(writer, 3)
    name = writer.metadata.last_fragment.members[1]
    await world.leave(name)
    world.bookies[name].stored.clear()
    await world.join(name, incarnation="fresh")
    await world.fill(writer, 6)
    assert world.bookies[name].stored == {}
    assert name not in writer.metadata.last_fragment.members
    await writer.close()


@in_world(3)
async def test_acks_of_disks_that_were_lost_do_not_count(world: WriterWorld) -> None:
    """One member stored entry 0 and then lost its disks before another member had the entry."""
    writer = await world.writer(3, 3, 2)
    first, second, third = (world.member(writer, position) for position in range(3))
    second.latency_s = third.latency_s = 5.0
    waiter = await world.submit(writer)
    await world.ports.clock.sleep(1)
    first.incarnation = "fresh"
    first.stored.clear()
    third.refusal = Status.IO_ERROR
    later = await world.submit(writer)
    with pytest.raises(AddOutcomeUnknownError):
        await waiter
    with pytest.raises(AddOutcomeUnknownError):
        await later
    assert (await writer.close()).last_entry_id == -1


@in_world(4)
async def test_a_member_without_an_incarnation_is_not_pinned(world: WriterWorld) -> None:
    for name in sorted(world.bookies):
        await world.leave(name)
        await world.join(name, incarnation="")
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    await writer.close()
    assert {batch.incarnation for bookie in world.bookies.values() for batch in bookie.batches} == {""}


@in_world(4)
async def test_an_unregistered_bookie_is_not_chosen_for_a_new_ledger(world: WriterWorld) -> None:
    gone: list[BookieId] = []

    async def unregister(operation: str, path: str) -> Fault | None:
        if operation == "get_many" and "/available/" in path and not gone:
            bookie = BookieId(path.rpartition("/")[2])
            gone.append(bookie)
            world.store.fault_hook = None
            await world.leave(bookie)
        return None

    world.store.fault_hook = unregister
    writer = await world.writer(3, 3, 2)
    assert len(gone) == 1
    assert gone[0] not in writer.metadata.members()
    world.store.fault_hook = unregister
    gone.clear()
    with pytest.raises(NotEnoughBookiesError):
        await world.writer(3, 3, 2)
    await writer.abandon()


@in_world(5)
async def test_an_unregistered_bookie_is_not_chosen_as_a_replacement(world: WriterWorld) -> None:
    writer = await world.writer(3, 2, 2)
    await world.fill(writer, 3)
    gone: list[BookieId] = []

    async def unregister(operation: str, path: str) -> Fault | None:
        if operation == "get_many" and "/available/" in path and not gone:
            gone.append(BookieId(path.rpartition("/")[2]))
            world.store.fault_hook = None
            await world.leave(*gone)
        return None

    world.store.fault_hook = unregister
    world.member(writer, 0).refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    assert len(gone) == 1
    assert gone[0] not in writer.metadata.members()
    assert (await writer.close()).last_entry_id == EntryId(5)


@in_world(2)
async def test_only_incarnations_of_registered_bookies_are_found(world: WriterWorld) -> None:
    await world.join("b1", incarnation="")
    found = await world.ports.registrations.incarnations([BookieId("b0"), BookieId("b1"), BookieId("b2")])
    assert found == {"b0": "b0-disks", "b1": ""}


@in_world(5)
async def test_a_replacement_found_stored_later_keeps_the_incarnation_it_was_chosen_with(world: WriterWorld) -> None:
    """The answer to the change is lost, and the next attempt would choose another bookie."""
    writer = await world.writer(3, 3, 2)
    await world.fill(writer, 3)
    ledger_path, is_stored = world.ports.ledgers.path(writer.ledger_id), False

    async def lose(operation: str, path: str) -> Fault | None:
        nonlocal is_stored
        if path != ledger_path or (operation != "set" and not is_stored):
            return None
        if operation == "set":
            is_stored = True
            return Fault.LOSE_ANSWER
        world.store.fault_hook = None
        await world.join(world.stored(writer).last_fragment.members[0], is_read_only=True)
        return Fault.FAIL_BEFORE

    world.store.fault_hook = lose
    world.member(writer, 0).refusal = Status.IO_ERROR
    await world.fill(writer, 3)
    await writer.settle()
    name = world.stored(writer).last_fragment.members[0]
    assert {batch.incarnation for batch in world.bookies[name].batches} == {f"{name}-disks"}
    assert len((await writer.close()).fragments) == 2
