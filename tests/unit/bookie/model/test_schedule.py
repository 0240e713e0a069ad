"""The schedule of docs/formats.md#schedule, compared with loops over every entry."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.availability import EntryRuns
from bookie.model.schedule import Stripe


@dataclass(frozen=True)
class Case:
    ensemble_size: int
    write_quorum: int
    position: int
    first: int
    last: int

    @property
    def stripe(self) -> Stripe:
        return Stripe(self.ensemble_size, self.write_quorum)

    @property
    def arguments(self) -> tuple[int, int, int]:
        return self.position, self.first, self.last

    @property
    def entries(self) -> list[int]:
        """Return the entries of the position by definition: it is in the write set (n + i) mod E, i < Qw."""
        return [
            entry_id
            for entry_id in range(self.first, self.last + 1)
            if any((entry_id + i) % self.ensemble_size == self.position for i in range(self.write_quorum))
        ]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ensemble_size = draw(st.integers(1, 9))
    first = draw(st.one_of(st.integers(0, 30), st.integers(2**31 - 20, 2**31 + 20), st.integers(0, 2**62)))
    return Case(
        ensemble_size,
        write_quorum=draw(st.integers(1, ensemble_size)),
        position=draw(st.integers(0, ensemble_size - 1)),
        first=first,
        last=first + draw(st.integers(-3, 40)),
    )


@pytest.mark.parametrize(
    ("entry_id", "ensemble_size", "write_quorum", "positions"),
    [
        (0, 3, 2, (0, 1)),
        (1, 3, 2, (1, 2)),
        (2, 3, 2, (2, 0)),
        (3, 3, 2, (0, 1)),
        (7, 5, 3, (2, 3, 4)),
        (9, 5, 3, (4, 0, 1)),
        (4, 3, 3, (1, 2, 0)),
        (0, 1, 1, (0,)),
        (2**31, 3, 2, (2, 0)),  # plain modulo: Apache's own helper casts to 32 bits and is wrong from here on
        (2**63 - 1, 4, 2, (3, 0)),
    ],
)
def test_the_write_set_is_round_robin_on_absolute_ids(
    entry_id: int, ensemble_size: int, write_quorum: int, positions: tuple[int, ...]
) -> None:
    assert Stripe(ensemble_size, write_quorum).write_set(entry_id) == positions


@given(cases())
def test_a_position_stores_exactly_the_entries_whose_write_set_contains_it(case: Case) -> None:
    for entry_id in range(case.first, case.last + 1):
        in_write_set = case.position in case.stripe.write_set(entry_id)
        assert case.stripe.stores(case.position, entry_id) is in_write_set


@given(cases())
def test_a_write_set_has_as_many_different_positions_as_the_write_quorum(case: Case) -> None:
    positions = case.stripe.write_set(case.first)
    assert len(set(positions)) == len(positions) == case.write_quorum
    assert all(0 <= position < case.ensemble_size for position in positions)


@given(cases())
def test_range_arithmetic_equals_counting(case: Case) -> None:
    entries = case.entries
    assert list(case.stripe.entries(*case.arguments)) == entries
    assert case.stripe.count(*case.arguments) == len(entries)
    assert list(case.stripe.runs(*case.arguments)) == entries
    assert case.stripe.first_entry(*case.arguments) == (entries[0] if entries else None)
    assert case.stripe.last_entry(*case.arguments) == (entries[-1] if entries else None)


@given(cases())
def test_every_entry_has_as_many_copies_as_the_write_quorum(case: Case) -> None:
    counts = [case.stripe.count(position, case.first, case.last) for position in range(case.ensemble_size)]
    assert sum(counts) == case.write_quorum * max(0, case.last - case.first + 1)


@given(cases())
def test_occurring_write_sets_are_those_of_the_entries(case: Case) -> None:
    starts = {Stripe(case.ensemble_size, 1).write_set(entry_id)[0] for entry_id in range(case.first, case.last + 1)}
    assert case.stripe.starts(case.first, case.last) == starts


@given(cases())
def test_every_write_set_can_occur_if_the_end_is_unknown(case: Case) -> None:
    assert case.stripe.starts(case.first, None) == set(range(case.ensemble_size))


@given(cases(), st.sets(st.integers(-5, 60)))
def test_held_entries_counted_by_runs_equal_those_counted_one_by_one(case: Case, offsets: set[int]) -> None:
    held = EntryRuns.of(sorted(entry_id for offset in offsets if (entry_id := case.first + offset) >= 0))
    assert case.stripe.held_count(case.position, held, case.first, case.last) == sum(e in held for e in case.entries)


def test_huge_ranges_cost_no_more_than_small_ones() -> None:
    last = 2**62
    assert Stripe(4, 2).count(0, 0, last - 1) == last // 2
    assert Stripe(4, 1).first_entry(3, 0, last) == 3
    assert Stripe(4, 1).last_entry(3, 0, last) == last - 1
    assert Stripe(4, 1).starts(0, last) == {0, 1, 2, 3}
    assert len(Stripe(4, 2).runs(1, 0, last).groups) <= 3


@st.composite
def lists_of_entries(draw: st.DrawFn) -> set[int]:
    """Entries of a bookie in a part of a striped ledger; up to two are added or removed."""
    period, size, shift = draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.integers(0, 7))
    start, count = draw(st.integers(0, 30)), draw(st.integers(0, 90))
    striped = {entry for entry in range(start, start + count) if (entry + shift) % period < size}
    return striped ^ draw(st.sets(st.integers(0, 120), max_size=2))


@given(st.integers(1, 5), st.lists(lists_of_entries(), max_size=3), st.integers(0, 40), st.integers(-2, 90))
def test_stretches_contain_each_kind_of_entry(ensemble_size: int, lists: list[set[int]], first: int, more: int) -> None:
    def kind(entry: int) -> tuple[int, ...]:
        return entry % ensemble_size, *(entry in each for each in lists)

    runs = [EntryRuns.of(sorted(each)) for each in lists]
    found = list(Stripe(ensemble_size, 1).uniform_ranges(runs, first, first + more))
    shown = [entry for begin, end in found for entry in range(begin, end + 1)]
    assert shown == sorted(set(shown))
    assert set(shown) <= set(range(first, first + more + 1))
    assert {kind(entry) for entry in shown} == {kind(entry) for entry in range(first, first + more + 1)}
    assert all(kind(entry)[1:] == kind(begin)[1:] for begin, end in found for entry in range(begin, end + 1))


def test_the_number_of_stretches_does_not_depend_on_the_number_of_entries() -> None:
    stripe, last = Stripe(5, 3), (1 << 62) - 1
    lists = [stripe.runs(position, 0, last) for position in range(5)]
    lists[0] = lists[0].without(EntryRuns.of([last // 2 - last // 2 % 5]))
    assert len(list(stripe.uniform_ranges(lists, 0, last))) < 50
