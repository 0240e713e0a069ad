"""Whether bookies may be stopped: the decision compared with a count of every entry, and the needs of placement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.safety.scan import Shape
from auditor.safety.stopping import Risk, Worst, room_problems, worst_fragment_risk
from bookie.client.placement.placement import Placement
from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.spread import PlacementPolicy
from bookie.model.topology import Topology, location
from tests.worlds.ledgers import make_metadata, name_set

LEDGER = LedgerId(7)
NAMES = "abcdefg"


def closed(*fragments: tuple[int, str], last: int, quorum: tuple[int, int] = (2, 2)) -> LedgerMetadata:
    return growing(*fragments, quorum=quorum).closed(EntryId(last), 10 * (last + 1))


def growing(*fragments: tuple[int, str], quorum: tuple[int, int] = (2, 2)) -> LedgerMetadata:
    return make_metadata(*fragments, quorum=quorum)


def risk(metadata: LedgerMetadata, live: str, stopping: str, *, is_strict: bool = False) -> Risk | None:
    return worst_fragment_risk(LEDGER, metadata, name_set(live), name_set(stopping), is_strict=is_strict)


def test_one_of_two_copies_may_be_stopped_but_not_both() -> None:
    metadata = closed((0, "a b"), last=9)
    assert risk(metadata, "a b", "a") is None
    assert risk(metadata, "a b", "a b") == Risk(
        ledger_id=LEDGER,
        first_entry_id=EntryId(0),
        copies_left=0,
        copies_needed=1,
        is_growing=False,
        members=tuple(sorted(name_set("a b"))),
    )
    assert risk(metadata, "a", "a") is not None


def test_strict_leaves_an_ack_quorum() -> None:
    metadata = closed((0, "a b c"), last=9, quorum=(3, 2))
    assert risk(metadata, "a b c", "a", is_strict=True) is None
    assert risk(metadata, "a b c", "a b") is None
    assert risk(metadata, "a b c", "a b", is_strict=True) is not None


def test_old_ensembles_count_but_empty_fragments_do_not() -> None:
    metadata = closed((0, "a b"), (10, "c d"), last=9)
    assert risk(metadata, "a b c d", "a b") is not None
    assert risk(metadata, "a b c d", "c d") is None


def test_stopping_an_unregistered_bookie_is_no_risk() -> None:
    assert risk(closed((0, "a b"), last=9), "c", "a b") is None


def test_a_bookie_that_may_hold_the_only_copy_may_not_be_stopped() -> None:
    assert risk(growing((0, "a b"), quorum=(2, 1)), "a b", "a") == Risk(
        ledger_id=LEDGER,
        first_entry_id=EntryId(0),
        copies_left=1,
        copies_needed=2,
        is_growing=True,
        members=(BookieId("a"),),
    )
    assert risk(growing((0, "a b c"), quorum=(3, 2)), "a b c", "a") is None


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 5))
    quorum = draw(st.integers(1, size))
    ack = draw(st.integers(1, quorum))
    gaps = draw(st.lists(st.integers(1, 7), min_size=0, max_size=3))
    firsts = [0, *(sum(gaps[: i + 1]) for i in range(len(gaps)))]
    rng = draw(st.randoms(use_true_random=False))
    parts = tuple(Fragment(EntryId(first), tuple(map(BookieId, rng.sample(NAMES, size)))) for first in firsts)
    metadata = LedgerMetadata(size, quorum, ack, parts)
    if draw(st.booleans()):
        last = firsts[-1] + draw(st.integers(-1, 8))
        metadata = metadata.closed(EntryId(last), max(0, last + 1))
    return metadata


@given(ledgers(), *[st.sets(st.sampled_from(NAMES))] * 3, st.booleans())
def test_the_decision_equals_a_count_of_the_copies_of_every_entry(
    metadata: LedgerMetadata, live: set[str], stopping: set[str], doubted: set[str], is_strict: bool
) -> None:
    end = metadata.fragments[-1].first_entry_id + 2 * metadata.ensemble_size
    last = metadata.last_entry_id if metadata.last_entry_id is not None else end
    bad = False
    for entry in range(last + 1):
        index = metadata.fragment_index(EntryId(entry))
        members = metadata.fragments[index].members
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        holders = {members[(entry + i) % size] for i in range(quorum)} & live
        left = holders - stopping - doubted
        needed = metadata.ack_quorum if is_strict else 1
        if not metadata.is_closed and index >= len(metadata.fragments) - 2:
            needed = max(needed, quorum - metadata.ack_quorum + 1)
        bad |= bool(holders & stopping) and len(left) < needed
    found = worst_fragment_risk(
        LEDGER,
        metadata,
        frozenset(map(BookieId, live)),
        frozenset(map(BookieId, stopping)),
        is_strict=is_strict,
        doubted=frozenset(map(BookieId, doubted)),
    )
    assert (found is not None) == bad


def test_the_worst_ledgers_are_listed_first_and_all_are_counted() -> None:
    worst = Worst(2)
    risks = [
        Risk(
            ledger_id=LedgerId(i),
            first_entry_id=EntryId(0),
            copies_left=copies,
            copies_needed=2,
            is_growing=False,
            members=(),
        )
        for i, copies in enumerate((1, 0, 1, 0, 1))
    ]
    for each in risks:
        worst.add(each)
    assert worst.count == 5
    assert [each.ledger_id for each in worst.risks] == [1, 3]


def test_enough_writable_bookies_must_remain_for_the_widest_open_ensemble() -> None:
    bookies = Bookies(name_set("a b c d"), name_set("r"))
    shapes = [Shape(3, 2), Shape(2, 2)]
    assert room_problems(shapes, bookies, name_set("a"), Placement()) == []
    (problem,) = room_problems(shapes, bookies, name_set("a b"), Placement())
    assert "ensembles of 3" in problem
    assert room_problems([Shape(5, 2)], bookies, name_set("r"), Placement()) == []
    assert room_problems([Shape(5, 2)], bookies, name_set("r"), Placement(), are_copies_moved=True)
    assert room_problems([Shape(5, 2)], bookies, name_set("a"), Placement())
    drained = Placement(draining=name_set("d"))
    assert room_problems([Shape(3, 2)], bookies, name_set("a"), drained)


@pytest.mark.parametrize("is_strict", [False, True])
def test_enough_racks_must_remain(is_strict: bool) -> None:
    topology = Topology({BookieId(name): location(f"/{rack}") for name, rack in zip("abcd", "xxyy", strict=True)})
    placement = Placement(PlacementPolicy(is_strict=is_strict), topology)
    bookies = Bookies(name_set("a b c d"), frozenset())
    assert room_problems([Shape(2, 2)], bookies, name_set("a"), placement) == []
    assert room_problems([Shape(2, 2)], bookies, name_set("a b"), placement)


@given(st.integers(1, 6), st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)))
def test_only_the_number_of_bookies_matters_without_a_rack_policy(
    size: int, writable: set[str], leaving: set[str]
) -> None:
    bookies = Bookies(frozenset(map(BookieId, writable)), frozenset())
    placement = Placement(PlacementPolicy(min_racks=1))
    problems = room_problems([Shape(size, 1)], bookies, frozenset(map(BookieId, leaving)), placement)
    is_touched = bool(writable & leaving)
    assert bool(problems) == (is_touched and len(writable - leaving) < size)
