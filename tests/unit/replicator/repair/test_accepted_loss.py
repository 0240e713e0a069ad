"""The record of an accepted loss, as one turn uses and changes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager

import pytest

from bookie.metadata.layout import lock_path
from bookie.metadata.ledgers.ledgers import PreconditionFailedError
from bookie.metadata.tasks.decisions import Decision, DecisionKind, Denial, LostFragment
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from replicator.plan.acceptance import NOTHING_ACCEPTED
from replicator.plan.planner import Blocked
from replicator.plan.steps import PositionKey
from replicator.repair import accepted_loss
from replicator.repair.accepted_loss import AcceptedLoss
from replicator.repair.lease import LeaseLostError
from tests.unit.replicator.repair.turns import locked
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time

METADATA = make_metadata((0, "a b c"), quorum=(2, 2), last=29)
FIRST = EntryId(0)
A = BookieId("a")
LOST = EntryRuns.of([1, 4])


async def never(members: Set[BookieId]) -> None:
    raise AssertionError(f"marked {members}")


async def unnoted(members: Set[BookieId]) -> None:
    return


def blocked_for(reason: ParkReason) -> Blocked:
    return Blocked(fragment_index=0, position=1, bookie=BookieId("b"), reason=reason, detail="")


NO_LIVE_COPY = [blocked_for(ParkReason.NO_LIVE_COPY)]


async def decide(world: RepairWorld, verdict: DecisionKind) -> None:
    """Write a decision about the loss of entries 1 and 4, which b had and c denies."""
    loss = LostFragment(FIRST, EntryId(29), (1,), names("b"), (Denial(2, BookieId("c"), 2),), LOST.groups, (1,))
    decisions = world.ports(world.store).decisions
    decision = Decision(LEDGER, verdict, "me@host", 1, "destroyed", lost=(loss,))
    await world.store.multi([await decisions.writing(decision)])


@asynccontextmanager
async def a_decided_turn(
    verdict: DecisionKind | None = DecisionKind.LOSS_ACCEPTED,
) -> AsyncIterator[tuple[RepairWorld, AcceptedLoss]]:
    """Lock a ledger whose bookie b is lost, with this decision about it."""
    async with a_world("a c d") as world:
        await world.ledgers.create(LEDGER, METADATA)
        await world.tasks.marking.mark(LEDGER, names("b"))
        if verdict is not None:
            await decide(world, verdict)
        turn = await locked(world)
        yield world, AcceptedLoss(turn.ports, turn.lease)


@pytest.mark.parametrize("verdict", [None, DecisionKind.DROPPED])
@in_virtual_time
async def test_without_an_accepted_loss_nothing_is_permitted_or_checked(verdict: DecisionKind | None) -> None:
    async with a_decided_turn(verdict) as (world, accepted):
        assert not accepted.use(NO_LIVE_COPY)
        bookies = await world.registrations.list()
        assert accepted.acceptance(METADATA, bookies) == NOTHING_ACCEPTED
        assert not accepted.checks()
        assert not accepted.entries(FIRST)
        await accepted.remove(await world.ledgers.read(LEDGER), FIRST, {EntryId(1): A}, never)


@in_virtual_time
async def test_the_record_is_used_once_a_plan_is_blocked_for_a_reason_that_it_may_end() -> None:
    async with a_decided_turn() as (world, accepted):
        bookies = await world.registrations.list()
        assert not accepted.use([blocked_for(ParkReason.NO_CANDIDATE_BOOKIE)])
        assert accepted.acceptance(METADATA, bookies) == NOTHING_ACCEPTED
        assert not accepted.checks()
        assert accepted.use(NO_LIVE_COPY) == {FIRST}
        assert accepted.acceptance(METADATA, bookies).entries(FIRST) == LOST
        assert [(check.path, check.version) for check in accepted.checks()] == [(accepted.path, 0)]
        assert not accepted.use(NO_LIVE_COPY), "it permits nothing more"


@in_virtual_time
async def test_an_entry_that_a_source_served_is_removed_from_the_record() -> None:
    async with a_decided_turn() as (world, accepted):
        accepted.use(NO_LIVE_COPY)
        marked: list[BookieId] = []

        async def mark(members: Set[BookieId]) -> None:
            assert accepted.entries(FIRST) == LOST, "they are marked before the record changes"
            marked.extend(members)

        await accepted.remove(await world.ledgers.read(LEDGER), FIRST, {EntryId(4): A}, mark)
        assert marked == [*names("c")], "the record names it as a bookie that denied the entry"
        assert accepted.entries(FIRST) == EntryRuns.of([1])
        written = await world.ports(world.store).decisions.read(LEDGER)
        assert written == accepted.current
        assert [check.version for check in accepted.checks()] == [1]


@in_virtual_time
async def test_the_acceptance_of_a_fragment_ends_after_too_many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted_loss, "RECORD_CHANGES_MAX", 0)
    async with a_decided_turn() as (world, accepted):
        await accepted.remove(await world.ledgers.read(LEDGER), FIRST, {EntryId(4): A}, unnoted)
        assert not accepted.entries(FIRST)
        assert accepted.current is not None
        assert not accepted.current.decision.lost


@in_virtual_time
async def test_a_record_that_another_process_changed_is_not_replaced() -> None:
    async with a_decided_turn() as (world, accepted):
        accepted.use(NO_LIVE_COPY)
        key = PositionKey(FIRST, 0, A)
        accepted.note_left_out(key, LOST)
        await decide(world, DecisionKind.DROPPED)
        with pytest.raises(PreconditionFailedError) as refused:
            await accepted.remove(await world.ledgers.read(LEDGER), FIRST, {EntryId(4): A}, unnoted)
        assert refused.value.path == accepted.path
        await accepted.read_again()
        assert accepted.current is None
        assert not accepted.checks()
        assert accepted.left_out(key) is None


@in_virtual_time
async def test_the_record_is_not_changed_without_the_lock() -> None:
    async with a_decided_turn() as (world, accepted):
        await world.store.delete(lock_path(world.cluster.root, LEDGER))
        with pytest.raises(LeaseLostError):
            await accepted.remove(await world.ledgers.read(LEDGER), FIRST, {EntryId(4): A}, unnoted)
        assert accepted.entries(FIRST) == LOST
