"""The repair plan with drained bookies: what is moved, the sources, and what is left to writers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata, LedgerState
from replicator.plan.installable import with_steps
from replicator.plan.planner import Knowledge, Plan, needs_tail_evidence, plan_repair
from replicator.plan.steps import Cause, CopyPosition, SwapMember
from replicator.plan.target_choice import target_chooser
from tests.worlds.ledgers import make_metadata, name_set, names

LEDGER = LedgerId(7)


def bookies(writable: str, draining: str = "") -> Bookies:
    both = name_set(f"{writable} {draining}")
    return Bookies(both, frozenset()).with_draining(name_set(draining))


def ledger(
    *fragments: tuple[int, str], last: int | None = None, state: LedgerState = LedgerState.OPEN, quorum: int = 2
) -> Versioned:
    length = 0 if last is None else 10 * (last + 1)
    return Versioned(
        LEDGER, make_metadata(*fragments, quorum=(quorum, quorum), last=last, state=state, length=length), 3
    )


def plan(of: Versioned, registered: Bookies, knowledge: Knowledge | None = None) -> Plan:
    return plan_repair(of, registered, target_chooser(LEDGER), knowledge or Knowledge())


def reasons(result: Plan) -> list[tuple[int, int, ParkReason]]:
    return [(b.fragment_index, b.position, b.reason) for b in result.blocked]


def test_a_drained_member_is_a_source_and_its_position_moves_to_another_bookie() -> None:
    result = plan(ledger((0, "a b c"), last=9), bookies("a c d", "b"))
    a, b, c, d = names("a b c d")
    (step,) = result.steps
    assert isinstance(step, CopyPosition)
    assert step == CopyPosition(
        fragment_index=0,
        position=1,
        old=b,
        target=d,
        cause=Cause.DRAINING,
        first=EntryId(0),
        last=EntryId(9),
        write_quorum=2,
        sources=(a, b, c),
    )
    assert [step.holders(start) for start in range(2)] == [(a, b), (c, b)]


def test_the_only_copy_is_read_from_the_drained_bookie() -> None:
    (step,) = plan(ledger((0, "a"), last=9, quorum=1), bookies("b", "a")).steps
    assert isinstance(step, CopyPosition)
    assert step.holders(0) == names("a")


def test_a_draining_bookie_is_not_a_target() -> None:
    result = plan(ledger((0, "a b"), last=9), bookies("a", "b c"))
    assert reasons(result) == [(0, 1, ParkReason.NO_CANDIDATE_BOOKIE)]


def test_an_unregistered_drained_bookie_is_replaced_as_lost() -> None:
    gone = Bookies(name_set("a c"), frozenset()).with_draining(name_set("b"))
    (step,) = plan(ledger((0, "a b"), last=9), gone).steps
    assert isinstance(step, CopyPosition)
    assert (step.cause, step.sources) == (Cause.UNREGISTERED, (BookieId("a"), None))


def test_only_metadata_is_changed_for_a_fragment_without_entries() -> None:
    (step,) = plan(ledger((0, "a b"), last=-1), bookies("a c", "b")).steps
    b, c = names("b c")
    assert step == SwapMember(fragment_index=0, position=1, old=b, target=c)


def test_fragments_that_a_writer_may_still_write_to_are_not_moved() -> None:
    of = ledger((0, "a b"), (10, "a b"), (20, "a b"))
    result = plan(of, bookies("a c", "b"))
    assert [step.fragment_index for step in result.steps] == [0]
    assert reasons(result) == [(1, 1, ParkReason.OPEN_LEDGER), (2, 1, ParkReason.OPEN_LEDGER)]


def test_the_fragment_before_the_last_is_moved_once_the_tail_is_written() -> None:
    of = ledger((0, "a b"), (10, "a c"))
    registered = bookies("a c d", "b")
    assert needs_tail_evidence(of.metadata, registered)
    assert reasons(plan(of, registered)) == [(0, 1, ParkReason.OPEN_LEDGER)]
    assert plan(of, registered, Knowledge(is_tail_written=True)).steps
    assert not needs_tail_evidence(of.metadata, bookies("a b d", "c"))


def test_a_recovery_that_was_begun_is_finished_for_a_drain() -> None:
    result = plan(ledger((0, "a b"), state=LedgerState.IN_RECOVERY), bookies("a c", "b"))
    assert reasons(result) == [(0, 1, ParkReason.NEEDS_RECOVERY)]


@given(
    st.lists(st.permutations("abcdefg"), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sets(st.sampled_from("abcdefg")),
    st.sets(st.sampled_from("abcdefg")),
    st.booleans(),
)
def test_only_lost_and_draining_members_are_replaced_and_never_by_draining_bookies(
    orders: list[list[str]], size: int, registered: set[str], drained: set[str], is_closed: bool
) -> None:
    parts = tuple(Fragment(EntryId(10 * i), tuple(map(BookieId, order[:size]))) for i, order in enumerate(orders))
    metadata = LedgerMetadata(size, min(2, size), 1, parts)
    if is_closed:
        metadata = metadata.closed(EntryId(10 * len(parts) - 1), 100)
    leaving = frozenset(map(BookieId, drained))
    seen = Bookies(frozenset(map(BookieId, registered)), frozenset()).with_draining(leaving)
    result = plan_repair(Versioned(LEDGER, metadata, 0), seen, target_chooser(LEDGER))
    after = with_steps(metadata, result.steps)
    blocked = {(block.fragment_index, block.position) for block in result.blocked}
    for index, (old, new) in enumerate(zip(metadata.fragments, after.fragments, strict=True)):
        assert len(set(new.members)) == size
        for position, (was, now) in enumerate(zip(old.members, new.members, strict=True)):
            if was in seen.staying:
                assert now == was
            elif now == was:
                assert (index, position) in blocked
            else:
                assert now in seen.writable
                assert now not in leaving
    if not is_closed:
        assert after.fragments[-1] == metadata.fragments[-1]
