"""The repair plan: its decisions in certain situations, and the rules that it follows in all of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import Fragment, LedgerMetadata, LedgerState
from replicator.plan.installable import with_steps
from replicator.plan.planner import Blocked, Knowledge, Plan, needs_tail_evidence, plan_repair, planning_repair
from replicator.plan.steps import Cause, CopyPosition, PositionKey, SwapMember
from replicator.plan.target_choice import target_chooser
from tests.worlds.ledgers import LEDGER, make_metadata, name_set, names


def bookies(writable: str, read_only: str = "") -> Bookies:
    return Bookies(name_set(writable), name_set(read_only))


def ledger(*fragments: tuple[int, str], quorum: tuple[int, int] = (2, 2), last: int | None = None) -> Versioned:
    """Return a ledger with these fragments (first entry, members), closed at ``last`` unless that is None."""
    length = 0 if last is None else last + 1
    return Versioned(LEDGER, make_metadata(*fragments, quorum=quorum, last=last, length=length), 3)


def first_candidate(key: PositionKey, members: Sequence[BookieId], candidates: Sequence[BookieId]) -> BookieId:
    return candidates[0]


def plan(of: Versioned, registered: Bookies, knowledge: Knowledge | None = None) -> Plan:
    return plan_repair(of, registered, first_candidate, knowledge or Knowledge())


def reasons(result: Plan) -> list[tuple[int, int, ParkReason]]:
    return [(b.fragment_index, b.position, b.reason) for b in result.blocked]


def test_nothing_is_planned_while_every_member_is_registered() -> None:
    assert plan(ledger((0, "a b c"), last=9), bookies("a c", "b")).is_nothing_missing


def test_a_lost_position_is_copied_from_registered_members_to_another_bookie() -> None:
    result = plan(ledger((0, "a b c"), last=9), bookies("a d", "c"))
    a, b, c, d = names("a b c d")
    (step,) = result.steps
    assert step == CopyPosition(
        fragment_index=0,
        position=1,
        old=b,
        target=d,
        cause=Cause.UNREGISTERED,
        first=EntryId(0),
        last=EntryId(9),
        write_quorum=2,
        sources=(a, None, c),
    )
    assert result.blocked == ()


def test_read_only_bookies_are_not_targets() -> None:
    assert reasons(plan(ledger((0, "a b c"), last=9), bookies("a c", "d"))) == [(0, 1, ParkReason.NO_CANDIDATE_BOOKIE)]


def test_each_lost_position_of_a_fragment_gets_its_own_target() -> None:
    result = plan(ledger((0, "a b c d"), quorum=(3, 2), last=9), bookies("a d e f"))
    assert [(step.position, step.target) for step in result.steps] == [(1, "e"), (2, "f")]


def test_a_plan_at_its_step_limit_is_partial_unless_the_ledger_is_unclosed() -> None:
    fragments = [(10 * number, "a b c") for number in range(4)]
    seen = bookies("a d e")

    def planned(steps_max: int, last: int | None) -> tuple[list[int], bool]:
        result = plan_repair(ledger(*fragments, quorum=(3, 2), last=last), seen, first_candidate, steps_max=steps_max)
        return [step.fragment_index for step in result.steps], result.is_partial

    assert planned(3, 39) == ([0, 0, 1, 1], True)
    assert planned(7, 39) == planned(8, 39) == ([0, 0, 1, 1, 2, 2, 3, 3], False)
    assert planned(1, None) == ([0, 0, 1, 1], False)


def test_the_plan_of_a_ledger_with_thousands_of_fragments_is_made_in_steps() -> None:
    count = 3000
    of = ledger(*((10 * number, "a b c") for number in range(count)), quorum=(3, 2), last=10 * count - 1)
    choices: list[int] = [0]

    def choose(key: PositionKey, members: Sequence[BookieId], candidates: Sequence[BookieId]) -> BookieId:
        choices[-1] += 1
        return candidates[0]

    for _ in planning_repair(of, bookies("a c d"), choose):
        choices.append(0)
    assert sum(choices) == count
    assert max(choices) <= 10, "positions for which a target is chosen between two pauses"


def test_the_plan_of_a_small_ledger_has_no_pause() -> None:
    assert list(planning_repair(ledger((0, "a b"), (5, "a c"), last=9), bookies("c d"), first_candidate)) == []


def test_steps_are_applied_to_the_metadata_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the metadata for each step takes seconds, if a ledger has thousands of fragments."""
    of = ledger(*((10 * number, "a b c") for number in range(100)), quorum=(3, 2), last=999)
    steps = plan(of, bookies("a c d")).steps
    made = 0

    def count(metadata: LedgerMetadata) -> None:
        nonlocal made
        made += 1

    monkeypatch.setattr(LedgerMetadata, "__post_init__", count)
    after = with_steps(of.metadata, steps)
    assert {fragment.members for fragment in after.fragments} == {names("a d c")}
    assert made == 1


def test_positions_with_a_target_are_repaired_and_the_rest_is_blocked() -> None:
    result = plan(ledger((0, "a b c d"), quorum=(3, 2), last=9), bookies("a d e"))
    assert [step.position for step in result.steps] == [1]
    assert reasons(result) == [(0, 2, ParkReason.NO_CANDIDATE_BOOKIE)]


def test_a_position_with_an_entry_without_a_live_copy_is_blocked_and_its_neighbours_are_not() -> None:
    result = plan(ledger((0, "a b c d e"), last=99), bookies("c e x y z"))
    assert reasons(result) == [(0, 0, ParkReason.NO_LIVE_COPY), (0, 1, ParkReason.NO_LIVE_COPY)]
    assert [step.position for step in result.steps] == [3]


def test_only_existing_entries_count_as_lost() -> None:
    only_entry_2 = plan(ledger((2, "a b c d e"), last=2), bookies("c e x y z"))
    assert reasons(only_entry_2) == []
    assert [type(step) for step in only_entry_2.steps] == [SwapMember, SwapMember, CopyPosition]


def test_only_metadata_is_changed_for_an_empty_last_fragment() -> None:
    result = plan(ledger((0, "a c"), (5, "a b"), last=4), bookies("a c d"))
    assert result.steps == (SwapMember(fragment_index=1, position=1, old=BookieId("b"), target=BookieId("c")),)


def test_an_empty_ledger_without_a_live_member_is_repaired_anyway() -> None:
    result = plan(ledger((0, "a b"), last=-1), bookies("c d"))
    assert [type(step) for step in result.steps] == [SwapMember, SwapMember]


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_the_last_fragment_of_an_unclosed_ledger_is_not_touched(state: LedgerState) -> None:
    fragment = Fragment(EntryId(0), names("a b"))
    unclosed = Versioned(LEDGER, LedgerMetadata(2, 2, 2, (fragment,), state=state), 0)
    result = plan(unclosed, bookies("a c"))
    assert result.steps == ()
    assert reasons(result) == [(0, 1, ParkReason.NEEDS_RECOVERY)]


def test_older_fragments_of_an_unclosed_ledger_are_repaired() -> None:
    result = plan(ledger((0, "a b"), (10, "a b"), (20, "a b")), bookies("a c"), Knowledge(is_tail_written=True))
    assert [step.fragment_index for step in result.steps] == [0, 1]
    assert reasons(result) == [(2, 1, ParkReason.NEEDS_RECOVERY)]


def test_the_fragment_before_an_empty_last_one_counts_as_unclosed() -> None:
    open_ledger = ledger((0, "a b"), (10, "a b"), (20, "a c"))
    assert needs_tail_evidence(open_ledger.metadata, bookies("a c d"))
    result = plan(open_ledger, bookies("a c d"), Knowledge(is_tail_written=False))
    assert [step.fragment_index for step in result.steps] == [0]
    assert reasons(result) == [(1, 1, ParkReason.NEEDS_RECOVERY)]


def test_the_tail_is_not_read_if_the_fragment_before_it_has_all_members() -> None:
    assert not needs_tail_evidence(ledger((0, "a b"), (10, "a c"), (20, "a b")).metadata, bookies("a c"))
    assert not needs_tail_evidence(ledger((0, "a b"), (10, "a c"), last=20).metadata, bookies("a c"))


def of_format_1(*fragments: tuple[int, str]) -> LedgerMetadata:
    parts = tuple(Fragment(EntryId(first), names(members)) for first, members in fragments)
    return LedgerMetadata(2, 2, 2, parts, digest_type=None, password=None, format_version=1)


def test_a_closed_ledger_without_a_password_is_repaired() -> None:
    old = of_format_1((0, "a b"), (5, "a b")).closed(EntryId(4), 5)
    result = plan(Versioned(LEDGER, old, 0), bookies("a c"))
    assert [type(step) for step in result.steps] == [CopyPosition, SwapMember]


def test_an_open_ledger_without_a_password_is_not_written_to() -> None:
    result = plan(Versioned(LEDGER, of_format_1((0, "a b"), (5, "a c"), (9, "a c")), 0), bookies("a c d"))
    assert reasons(result) == [(0, 1, ParkReason.UNREADABLE_METADATA)]
    assert "not closed" in result.blocked[0].detail


def test_positions_with_unreadable_entries_are_blocked_with_the_evidence() -> None:
    key = PositionKey(EntryId(0), 1, BookieId("b"))
    result = plan(ledger((0, "a b"), last=9), bookies("a c"), Knowledge(unreadable={key: "entry 3: a=NO_ENTRY"}))
    assert result.blocked == (
        Blocked(
            fragment_index=0,
            position=1,
            bookie=BookieId("b"),
            reason=ParkReason.UNREADABLE_ENTRIES,
            detail="fragment 0 position 1: entry 3: a=NO_ENTRY",
        ),
    )


def test_targets_that_refused_are_not_chosen_again() -> None:
    known = Knowledge(failed_targets=name_set("c"))
    assert [step.target for step in plan(ledger((0, "a b"), last=9), bookies("a c d"), known).steps] == ["d"]


def test_unresponsive_bookies_are_chosen_only_without_an_alternative() -> None:
    known = Knowledge(avoided=frozenset(names("c")))
    of = ledger((0, "a b"), last=9)
    assert [step.target for step in plan(of, bookies("a c d"), known).steps] == ["d"]
    assert [step.target for step in plan(of, bookies("a c"), known).steps] == ["c"]


def test_a_bookie_with_damaged_copies_keeps_its_position_if_it_accepts_good_ones() -> None:
    damaged = {PositionKey(EntryId(0), 1, BookieId("b")): EntryId(4)}
    of, (a, b, c) = ledger((0, "a b"), last=9), names("a b c")
    in_place = CopyPosition(
        fragment_index=0,
        position=1,
        old=b,
        target=b,
        cause=Cause.DAMAGED,
        first=EntryId(0),
        last=EntryId(9),
        write_quorum=2,
        sources=(a, b),
    )
    assert plan(of, bookies("a b c"), Knowledge(damaged=damaged)).steps == (in_place,)
    assert in_place.holders(0) == (a,)
    refused = Knowledge(damaged=damaged, failed_targets=frozenset({b}))
    for known, registered in ((refused, bookies("a b c")), (Knowledge(damaged=damaged), bookies("a c", "b"))):
        [step] = plan(of, registered, known).steps
        assert step == CopyPosition(
            fragment_index=0,
            position=1,
            old=b,
            target=c,
            cause=Cause.DAMAGED,
            first=EntryId(0),
            last=EntryId(9),
            write_quorum=2,
            sources=(a, b),
        )
        assert step.holders(0) == (a, b)  # undamaged entries on a and b may have no other copy


def test_a_damaged_copy_of_a_fragment_that_may_grow_is_replaced_in_place_or_waits() -> None:
    known = Knowledge(damaged={PositionKey(EntryId(0), 1, BookieId("b")): EntryId(4)})
    of, (a, b) = ledger((0, "a b")), names("a b")
    in_place = CopyPosition(
        fragment_index=0,
        position=1,
        old=b,
        target=b,
        cause=Cause.DAMAGED,
        first=EntryId(0),
        last=EntryId(4),
        write_quorum=2,
        sources=(a, b),
    )
    assert plan(of, bookies("a b c"), known).steps == (in_place,)
    assert reasons(plan(of, bookies("a c", "b"), known)) == [(0, 1, ParkReason.OPEN_LEDGER)]


def test_no_damaged_copy_is_replaced_in_place_while_a_position_waits_for_a_recovery() -> None:
    known = Knowledge(damaged={PositionKey(EntryId(0), 1, BookieId("b")): EntryId(4)})
    result = plan(ledger((0, "a b c"), quorum=(3, 2)), bookies("a b d"), known)
    assert (result.steps, reasons(result)) == ((), [(0, 2, ParkReason.NEEDS_RECOVERY)])


def test_an_incomplete_bookie_is_filled_in_place_if_possible() -> None:
    whole = ledger((0, "a b"), last=9)
    known = Knowledge(incomplete=frozenset({PositionKey(EntryId(0), 1, BookieId("b"))}))
    in_place = plan(whole, bookies("a b c"), known).steps[0]
    assert isinstance(in_place, CopyPosition)
    assert (in_place.target, in_place.cause) == ("b", Cause.INCOMPLETE)
    assert in_place.is_in_place
    replaced = plan(whole, bookies("a c", "b"), known).steps[0]
    assert replaced.target == "c"


@pytest.mark.parametrize("awaited", ["", "c"])
def test_a_replaced_incomplete_bookie_is_a_source_of_the_entries_that_it_has(awaited: str) -> None:
    """Bookie b lacks entries of write set 0, which a has; only b has those of write set 1, because c is lost."""
    striped, key = ledger((0, "a b c"), last=9), PositionKey(EntryId(0), 1, BookieId("b"))
    registered = Bookies(name_set("a d e"), name_set("b"), awaited=name_set(awaited))

    def planned(lacking: set[int]) -> Plan:
        return plan(striped, registered, Knowledge(incomplete=frozenset({key}), lacking={key: frozenset(lacking)}))

    step = planned({0}).steps[0]
    assert isinstance(step, CopyPosition)
    assert (step.position, step.target, step.holders(0), step.holders(1)) == (1, "d", ("a", "b"), ("b",))
    assert reasons(planned({0, 1})) == [(0, 1, ParkReason.NO_LIVE_COPY)]


def test_every_worker_chooses_the_same_target_for_a_position() -> None:
    choose = target_chooser(LEDGER)
    key = PositionKey(EntryId(0), 1, BookieId("b"))
    chosen = {choose(key, names("a b"), names("c d e f")) for _ in range(10)}
    assert len(chosen) == 1


BOOKIES = names("a b c d e f g h")


@st.composite
def situations(draw: st.DrawFn) -> tuple[Versioned, Bookies, Knowledge]:
    size = draw(st.integers(1, 5))
    quorum = draw(st.integers(1, size))
    starts = sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=4)))
    ensembles = st.permutations(BOOKIES).map(lambda order: tuple(order[:size]))
    fragments = tuple(Fragment(EntryId(start), draw(ensembles)) for start in starts)
    metadata = LedgerMetadata(size, quorum, draw(st.integers(0, quorum)), fragments)
    if draw(st.booleans()):
        last = draw(st.integers(starts[-1] - 1, starts[-1] + 20))
        metadata = metadata.closed(EntryId(last), last + 1)
    roles = [draw(st.sampled_from("wwrd")) for _ in BOOKIES]
    registered = Bookies(
        frozenset(b for b, role in zip(BOOKIES, roles, strict=True) if role == "w"),
        frozenset(b for b, role in zip(BOOKIES, roles, strict=True) if role == "r"),
    )
    failed = frozenset(draw(st.sets(st.sampled_from(BOOKIES), max_size=2)))
    knowledge = Knowledge(is_tail_written=draw(st.booleans()), failed_targets=failed)
    return Versioned(LEDGER, metadata, 0), registered, knowledge


def closed_range(metadata: LedgerMetadata, index: int, is_tail_written: bool) -> range | None:
    """The slow twin: return the entries of a fragment that can no longer change, or None."""
    count = len(metadata.fragments)
    if not metadata.is_closed and (index == count - 1 or (index == count - 2 and not is_tail_written)):
        return None
    last = metadata.fragments[index + 1].first_entry_id - 1 if index + 1 < count else metadata.last_entry_id
    assert last is not None
    return range(metadata.fragments[index].first_entry_id, last + 1)


@given(situations(), st.integers())
def test_a_plan_follows_every_rule(situation: tuple[Versioned, Bookies, Knowledge], seed: int) -> None:
    of, registered, knowledge = situation
    rng = random.Random(seed)
    result = plan_repair(of, registered, lambda key, members, candidates: rng.choice(candidates), knowledge)
    metadata = of.metadata

    lost = {
        (index, position)
        for index, fragment in enumerate(metadata.fragments)
        for position, member in enumerate(fragment.members)
        if member not in registered.registered
    }
    decided = [(each.fragment_index, each.position) for each in (*result.steps, *result.blocked)]
    assert sorted(decided) == sorted(lost)

    for step in result.steps:
        entries = closed_range(metadata, step.fragment_index, knowledge.is_tail_written)
        assert entries is not None
        assert step.target in registered.writable - knowledge.failed_targets
        assert step.target not in metadata.fragments[step.fragment_index].members
        stored = [e for e in entries if step.position in metadata.stripe.write_set(e)]
        if isinstance(step, SwapMember):
            assert stored == []
            continue
        assert list(step.entries()) == stored
        assert step.entry_count == len(stored) > 0
        members = metadata.fragments[step.fragment_index].members
        for entry in stored:
            live = {members[p] for p in metadata.stripe.write_set(entry)} & registered.registered
            assert set(step.holders(entry % metadata.ensemble_size)) == live
            assert live

    repaired = with_steps(metadata, result.steps)
    for before, after in zip(metadata.fragments, repaired.fragments, strict=True):
        assert before.first_entry_id == after.first_entry_id
        assert len(set(after.members)) == metadata.ensemble_size
    changed = {(step.fragment_index, step.position) for step in result.steps}
    for index, fragment in enumerate(metadata.fragments):
        for position, member in enumerate(fragment.members):
            is_same = repaired.fragments[index].members[position] == member
            assert is_same != ((index, position) in changed)


@given(situations())
def test_blocked_positions_have_the_right_reason(situation: tuple[Versioned, Bookies, Knowledge]) -> None:
    of, registered, knowledge = situation
    metadata = of.metadata
    for blocked in plan_repair(of, registered, first_candidate, knowledge).blocked:
        entries = closed_range(metadata, blocked.fragment_index, knowledge.is_tail_written)
        members = metadata.fragments[blocked.fragment_index].members
        if entries is None:
            assert blocked.reason is ParkReason.NEEDS_RECOVERY
            continue
        write_sets = [metadata.stripe.write_set(e) for e in entries]
        is_lost = any(
            blocked.position in positions and not {members[p] for p in positions} & registered.registered
            for positions in write_sets
        )
        assert blocked.reason is (ParkReason.NO_LIVE_COPY if is_lost else ParkReason.NO_CANDIDATE_BOOKIE)
