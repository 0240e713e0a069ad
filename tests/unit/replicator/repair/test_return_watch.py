"""The copies of a round end after a lost bookie has returned."""

from __future__ import annotations

from dataclasses import replace

from bookie.model.ids import BookieId, EntryId
from replicator.knowledge.recent import BOOKIES_AGE_S
from replicator.knowledge.returns import RETURNS_MAX, SAME_RETURN_S, Returns
from replicator.plan.steps import Cause, CopyPosition
from replicator.repair.return_watch import ReturnWatch
from tests.unit.replicator.repair.turns import LockedTurn, a_turn
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.virtual_time import in_virtual_time

METADATA = make_metadata((0, "a b c"), quorum=(3, 2), last=9)
B, C = BookieId("b"), BookieId("c")
COPY = CopyPosition(
    fragment_index=0,
    position=1,
    old=B,
    target=BookieId("t"),
    cause=Cause.UNREGISTERED,
    first=EntryId(0),
    last=EntryId(9),
    write_quorum=3,
    sources=(*names("a"), None, None),
)
OF_ANOTHER = replace(COPY, position=2, old=C)


def watch(turn: LockedTurn, returns: Returns) -> ReturnWatch:
    return ReturnWatch(turn.lease, turn.ports.recent, returns)


@in_virtual_time
async def test_a_return_ends_the_copies_of_its_bookie_and_the_round_even_if_it_leaves_again() -> None:
    async with a_turn("a t", METADATA, "b c") as turn:
        watched = watch(turn, Returns(turn.world.clock))
        assert await watched.may_copy_chunk([COPY, OF_ANOTHER])
        assert not watched.has_ended_round
        await turn.world.add_bookies("b")
        await turn.world.clock.sleep(BOOKIES_AGE_S)
        assert not await watched.may_copy_chunk([COPY])
        assert await watched.may_copy_chunk([OF_ANOTHER])
        await turn.world.kill("b")
        await turn.world.clock.sleep(BOOKIES_AGE_S)
        assert not await watched.may_copy_chunk([COPY])
        assert watched.has_ended_round


@in_virtual_time
async def test_the_return_of_a_flapping_bookie_ends_nothing() -> None:
    async with a_turn("a b t", METADATA, "b c") as turn:
        watched = watch(turn, Returns(turn.world.clock))
        assert await watched.may_copy_chunk([replace(COPY, cause=Cause.FLAPPING)])
        assert not watched.has_ended_round


@in_virtual_time
async def test_returns_are_counted_for_all_turns() -> None:
    async with a_turn("a b t", METADATA, "b c") as turn:
        returns = Returns(turn.world.clock)
        for _ in range(RETURNS_MAX):
            assert not returns.flapping([B])
            watched = watch(turn, returns)
            assert not await watched.may_copy_chunk([COPY])
            watched.count_returns(LEDGER)
            await turn.world.clock.sleep(SAME_RETURN_S)
            returns.note_absent([B])
        assert returns.flapping([B, C]) == {B}
