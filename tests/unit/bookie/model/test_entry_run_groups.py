"""Sets of entries as groups of runs: their contents compared with a plain set, and the size of long lists."""

from __future__ import annotations

import itertools
import pickle
import struct
import sys
from collections.abc import Generator
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model import availability
from bookie.model.availability import GROUPS_PER_STEP, EntryRuns, RunGroup, RunsBuilder, finished
from bookie.model.holdings import ENTRIES_COMPARED_PER_STEP, comparing, holds_all, placed_entries
from bookie.model.ids import BookieId
from bookie.model.schedule import Stripe
from tests.worlds.ledgers import make_metadata

ENTRIES: Final = 2_000_000
CALLS_MAX: Final = 100_000
"""The limit of calls between two pauses: about ten milliseconds, half of them in functions written in C."""


@st.composite
def sets(draw: st.DrawFn) -> frozenset[int]:
    """Parts of striped ledgers; single entries are added or removed."""
    found: set[int] = set()
    for _ in range(draw(st.integers(0, 3))):
        start, length = draw(st.integers(0, 60)), draw(st.integers(0, 60))
        stripe = Stripe(draw(st.integers(1, 6)), draw(st.integers(1, 3)))
        found.update(stripe.entries(draw(st.integers(0, 5)), start, start + length))
    return frozenset(found ^ draw(st.frozensets(st.integers(0, 120), max_size=4)))


ranges = st.tuples(st.integers(0, 130), st.integers(0, 130))


@given(sets())
def test_groups_contain_the_entries_of_the_set_and_are_read_back(entries: frozenset[int]) -> None:
    made = EntryRuns.of(sorted(entries))
    assert list(made) == sorted(entries)
    assert len(made) == len(entries)
    assert bool(made) == bool(entries)
    assert all((entry_id in made) == (entry_id in entries) for entry_id in range(130))
    for again in (EntryRuns.decode(made.encode()), pickle.loads(pickle.dumps(made)), EntryRuns(made.runs)):
        assert (again, hash(again), list(again)) == (made, hash(made), sorted(entries))
    runs = list(made.runs)
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(runs))
    assert len(made.groups) <= len(runs)


@given(sets(), ranges)
def test_entries_within_a_range(entries: frozenset[int], where: tuple[int, int]) -> None:
    made, expected = EntryRuns.of(sorted(entries)), sorted(e for e in entries if where[0] <= e <= where[1])
    assert list(made.between(*where)) == expected
    assert [e for first, last in made.within(*where) for e in range(first, last + 1)] == expected
    assert made.between(*where) == EntryRuns.of(expected)


@given(sets(), sets())
def test_union_and_difference(one: frozenset[int], other: frozenset[int]) -> None:
    first, second = EntryRuns.of(sorted(one)), EntryRuns.of(sorted(other))
    assert finished(EntryRuns.union_with_pauses(first, second)) == EntryRuns.of(sorted(one | other))
    assert list(finished(EntryRuns.union_with_pauses(first, second))) == sorted(one | other)
    assert list(first.without(second)) == sorted(one - other)
    assert (first == second) == (one == other)


@given(sets(), ranges, st.integers(1, 6), st.integers(1, 6), st.integers(0, 5))
def test_the_entries_of_a_position_are_counted(
    entries: frozenset[int], where: tuple[int, int], ensemble: int, quorum: int, position: int
) -> None:
    stripe = Stripe(ensemble, min(quorum, ensemble))
    expected = sum(entry_id in entries for entry_id in stripe.entries(position, *where))
    assert stripe.held_count(position, EntryRuns.of(sorted(entries)), *where) == expected


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4), st.integers(0, 6), st.integers(1, 6)), max_size=5))
def test_groups_adjacent_to_or_overlapping_the_last_run_are_added(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    builder, expected, start = RunsBuilder(), set[int](), 0
    for gap, size, more, count in drawn:
        period = size + 1 + more
        group = RunGroup(start, start + (count - 1) * period, size, period if count > 1 else 0)
        builder.add_group(group)
        expected.update(entry for first, last in group.runs() for entry in range(first, last + 1))
        start = group.last_start + gap % (size + 3)
    assert list(builder.built()) == sorted(expected)


def striped() -> EntryRuns:
    """Return position 0 of a 5/2 ledger: a run of two entries in every five."""
    groups = (RunGroup(0, 0, 1, 0), RunGroup(4, ENTRIES - 6, 2, 5), RunGroup(ENTRIES - 1, ENTRIES - 1, 1, 0))
    return finished(EntryRuns.decoding(encoded(groups)))


def irregular() -> EntryRuns:
    """Return runs of which no two neighbors are alike."""
    return EntryRuns((8 * number, 8 * number + number % 5 % 3) for number in range(100_000))


def encoded(groups: Any) -> bytes:
    return struct.pack(">ii", 0, len(groups)).ljust(64, b"\0") + b"".join(
        struct.pack(">qqii", *each) for each in groups
    )


def in_singles(held: EntryRuns) -> bytes:
    """Encode a list as Apache's bookies and older releases do: a group for each run."""
    return encoded([(first, first, last - first + 1, 0) for first, last in held.runs])


def test_a_striped_ledger_of_any_length_is_a_few_groups() -> None:
    held, stripe = striped(), Stripe(5, 2)
    assert len(held) == stripe.count(0, 0, ENTRIES - 1) == stripe.held_count(0, held, 0, ENTRIES - 1)
    assert len(held.groups) <= 3
    assert len(held.encode()) <= 64 + 3 * 24
    assert finished(EntryRuns.decoding(in_singles(held))).groups == held.groups


class Meter:
    """Record the largest number of function calls between two pauses of a generator."""

    def __init__(self) -> None:
        self.most = 0
        self._calls = 0

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        self._calls += event in ("call", "c_call")

    def run(self, steps: Generator[Any, None, Any]) -> Any:
        sys.setprofile(self._count)
        try:
            while True:
                self._calls = 0
                try:
                    next(steps)
                except StopIteration as end:
                    return end.value
                finally:
                    self.most = max(self.most, self._calls)
        finally:
            sys.setprofile(None)


@pytest.mark.parametrize("held", [striped(), irregular()], ids=["striped", "irregular"])
def test_each_step_over_a_long_list_is_short(held: EntryRuns) -> None:
    """The test counts calls, because a time would depend on the machine. A single step would have a million or more."""
    meter = Meter()
    assert meter.run(EntryRuns.decoding(held.encode())) == held
    assert meter.run(EntryRuns.union_with_pauses(held, EntryRuns.of([1, ENTRIES + 5]))) is not None
    metadata = make_metadata(
        *((start, "a b c d e") for start in range(0, ENTRIES, 100_000)), quorum=(2, 2), last=ENTRIES - 1
    )
    assert meter.run(comparing(metadata, BookieId("a"), held)) == holds_all(metadata, BookieId("a"), held)
    pieces = held.encoded()
    meter.run(piece for piece in pieces)
    assert 0 < meter.most <= CALLS_MAX


@pytest.mark.parametrize("absent", [ENTRIES_COMPARED_PER_STEP - 1, ENTRIES_COMPARED_PER_STEP])
def test_an_absent_entry_at_the_boundary_of_two_steps_is_found(absent: int) -> None:
    metadata = make_metadata((0, "a"), quorum=(1, 1), last=2 * ENTRIES_COMPARED_PER_STEP)
    held = EntryRuns([(0, absent - 1), (absent + 1, 2 * ENTRIES_COMPARED_PER_STEP)])
    assert not holds_all(metadata, BookieId("a"), held)


def test_no_entry_is_placed_after_the_end_of_the_ledger() -> None:
    metadata = make_metadata((0, "a b"), (4, "b c"), (9, "a c"), quorum=(1, 1), last=5)
    assert [list(placed_entries(metadata, BookieId(name))) for name in "abc"] == [[0, 2], [1, 3, 4], [5]]


def test_a_list_in_single_runs_is_read_in_steps() -> None:
    data = in_singles(EntryRuns.of(range(0, 40 * GROUPS_PER_STEP, 2)))
    meter = Meter()
    assert len(meter.run(EntryRuns.decoding(data)).groups) == 1
    assert meter.most <= CALLS_MAX


def test_a_list_of_more_runs_than_readers_accept_in_groups_is_encoded_run_by_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs_max = 4 * GROUPS_PER_STEP  # a fraction of the real limit, which takes seconds
    monkeypatch.setattr(availability, "EXPANDED_RUNS_MAX", runs_max)
    held = EntryRuns.decode(encoded([(0, 3 * (runs_max - 1), 1, 3)]))
    assert len(held.encode()) == 64 + 24
    more = EntryRuns.of([*range(3 * runs_max, 3 * runs_max + 9, 3)])
    longer = finished(EntryRuns.union_with_pauses(held, more))
    assert len(longer.groups) == 1
    pieces = list(longer.encoded())
    assert max(map(len, pieces)) <= 24 * GROUPS_PER_STEP
    assert EntryRuns.decode(b"".join(pieces)).groups == longer.groups
