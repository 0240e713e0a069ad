"""The schedule of docs/formats.md#schedule against loops over every entry."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.schedule import (
    first_stored,
    last_stored,
    occurring_starts,
    stored_count,
    stored_entries,
    stores,
    write_set,
)


@dataclass(frozen=True)
class Case:
    ensemble_size: int
    write_quorum: int
    position: int
    first: int
    last: int

    @property
    def arguments(self) -> tuple[int, int, int, int, int]:
        return self.position, self.first, self.last, self.ensemble_size, self.write_quorum

    @property
    def entries(self) -> list[int]:
        """What the position stores, by the definition: it is in the write set (n + i) mod E, i < Qw."""
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
        (2**31, 3, 2, (2, 0)),  # plain modulo: Apache's own helper casts to 32 bits and goes wrong from here on
        (2**63 - 1, 4, 2, (3, 0)),
    ],
)
def test_the_write_set_is_round_robin_on_absolute_ids(
    entry_id: int, ensemble_size: int, write_quorum: int, positions: tuple[int, ...]
) -> None:
    assert write_set(entry_id, ensemble_size, write_quorum) == positions


@given(cases())
def test_a_position_stores_exactly_the_entries_whose_write_set_names_it(case: Case) -> None:
    for entry_id in range(case.first, case.last + 1):
        in_write_set = case.position in write_set(entry_id, case.ensemble_size, case.write_quorum)
        assert stores(case.position, entry_id, case.ensemble_size, case.write_quorum) is in_write_set


@given(cases())
def test_a_write_set_names_as_many_different_positions_as_the_write_quorum(case: Case) -> None:
    positions = write_set(case.first, case.ensemble_size, case.write_quorum)
    assert len(set(positions)) == len(positions) == case.write_quorum
    assert all(0 <= position < case.ensemble_size for position in positions)


@given(cases())
def test_range_arithmetic_equals_counting(case: Case) -> None:
    entries = case.entries
    assert list(stored_entries(*case.arguments)) == entries
    assert stored_count(*case.arguments) == len(entries)
    assert first_stored(*case.arguments) == (entries[0] if entries else None)
    assert last_stored(*case.arguments) == (entries[-1] if entries else None)


@given(cases())
def test_every_entry_is_stored_as_often_as_the_write_quorum_says(case: Case) -> None:
    counts = [
        stored_count(position, case.first, case.last, case.ensemble_size, case.write_quorum)
        for position in range(case.ensemble_size)
    ]
    assert sum(counts) == case.write_quorum * max(0, case.last - case.first + 1)


@given(cases())
def test_occurring_write_sets_are_those_of_the_entries(case: Case) -> None:
    starts = {write_set(entry_id, case.ensemble_size, 1)[0] for entry_id in range(case.first, case.last + 1)}
    assert occurring_starts(case.first, case.last, case.ensemble_size) == starts


@given(cases())
def test_every_write_set_may_occur_where_the_end_is_unknown(case: Case) -> None:
    assert occurring_starts(case.first, None, case.ensemble_size) == set(range(case.ensemble_size))


def test_huge_ranges_cost_no_more_than_small_ones() -> None:
    last = 2**62
    assert stored_count(0, 0, last - 1, 4, 2) == last // 2
    assert first_stored(3, 0, last, 4, 1) == 3
    assert last_stored(3, 0, last, 4, 1) == last - 1
    assert occurring_starts(0, last, 4) == {0, 1, 2, 3}
