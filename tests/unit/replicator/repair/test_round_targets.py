"""The targets of a round are reserved, and list the ledger, before anything is copied to them."""

from __future__ import annotations

from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.wire.port import Status
from replicator.plan.steps import Cause, CopyPosition, Step, SwapMember
from replicator.repair.round_targets import RoundTargets, ready_targets
from tests.unit.replicator.repair.turns import LockedTurn, a_turn
from tests.worlds.ledgers import LEDGER, make_metadata
from tests.worlds.virtual_time import in_virtual_time

METADATA = make_metadata((0, "a b c"), quorum=(3, 2), last=9)
EMPTY: LedgerMetadata = make_metadata((0, "a b c"), quorum=(3, 2), last=-1)
B, T, U = map(BookieId, "btu")


def copy_to(target: BookieId, old: BookieId = B) -> CopyPosition:
    cause = Cause.INCOMPLETE if target == old else Cause.UNREGISTERED
    return CopyPosition(
        fragment_index=0,
        position=1,
        old=old,
        target=target,
        cause=cause,
        first=EntryId(0),
        last=EntryId(9),
        write_quorum=3,
        sources=(BookieId("a"), None, None),
    )


async def ready(turn: LockedTurn, *steps: Step) -> RoundTargets:
    ledger = await turn.ports.ledgers.read(LEDGER)
    return await ready_targets(ledger, steps, turn.ports.recent, turn.holdings, turn.reservation, turn.found)


@in_virtual_time
async def test_a_new_target_is_reserved_and_lists_the_ledger() -> None:
    async with a_turn("a t", METADATA, "b") as turn:
        targets = await ready(turn, copy_to(T))
        assert (T in targets, targets.incarnation(T)) == (True, "1")
        assert turn.reservation.current is not None
        assert [each.target for each in turn.reservation.current.reservations] == [T]
        assert turn.holdings.is_listing(T)


@in_virtual_time
async def test_a_target_that_has_just_listed_another_ledger_needs_no_list_for_a_copy() -> None:
    async with a_turn("a t", METADATA, "b") as turn:
        turn.ports.recent.note_listing(T, is_answered=True)
        await ready(turn, copy_to(T))
        assert not turn.holdings.is_listing(T)
        await ready(turn, SwapMember(fragment_index=0, position=1, old=B, target=T))
        assert turn.holdings.is_listing(T), "no add clears the mark of its collector"


@in_virtual_time
async def test_a_copy_in_place_is_not_reserved() -> None:
    async with a_turn("a b", METADATA, "b") as turn:
        assert B in await ready(turn, copy_to(B))
        assert turn.reservation.current is None
        assert not turn.holdings.is_listing(B)


@in_virtual_time
async def test_targets_that_left_or_do_not_answer_are_refused() -> None:
    async with a_turn("a t", METADATA, "b") as turn:
        turn.world.bookies.stop_listening("t")
        targets = await ready(turn, copy_to(T), copy_to(U))
        assert (T in targets, U in targets) == (True, False)
        assert turn.found.failed_targets[U].status is Status.UNRESOLVED
        assert turn.found.failed_targets[T].status is not Status.OK


@in_virtual_time
async def test_an_empty_ledger_needs_neither_a_reservation_nor_a_list() -> None:
    async with a_turn("a t", EMPTY, "b") as turn:
        assert T in await ready(turn, SwapMember(fragment_index=0, position=1, old=B, target=T))
        assert turn.reservation.current is None
        assert not turn.holdings.is_listing(T)
