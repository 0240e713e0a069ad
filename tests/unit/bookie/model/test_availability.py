from __future__ import annotations

import random
import struct
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.availability import EXPANDED_RUNS_MAX, EntryRuns, InvalidAvailabilityError

ENTRY_ID_MAX = (1 << 63) - 2
entry_sets = st.frozensets(st.one_of(st.integers(0, 60), st.integers(0, ENTRY_ID_MAX)), max_size=60)


def header(groups: int, version: int = 0) -> bytes:
    return struct.pack(">ii", version, groups).ljust(64, b"\0")


def group(first: int, last: int, size: int, period: int) -> bytes:
    return struct.pack(">qqii", first, last, size, period)


def encoded(*groups: tuple[int, int, int, int]) -> bytes:
    return header(len(groups)) + b"".join(group(*values) for values in groups)


def slow_runs(entry_ids: frozenset[int]) -> tuple[tuple[int, int], ...]:
    """Return the runs: consecutive ids have the same difference from their index."""
    runs = groupby(enumerate(sorted(entry_ids)), key=lambda pair: pair[1] - pair[0])
    collected = [[entry_id for _, entry_id in run] for _, run in runs]
    return tuple((run[0], run[-1]) for run in collected)


def test_the_encoding_is_that_of_apache() -> None:
    assert EntryRuns.of([0, 1, 2, 7]).encode().hex() == (
        "0000000000000002"  # version 0, two groups
        + "00" * 56
        + "0000000000000000" + "0000000000000000" + "00000003" + "00000000"
        + "0000000000000007" + "0000000000000007" + "00000001" + "00000000"
    )  # fmt: skip


def test_an_empty_bookie_is_encoded_as_a_header_alone() -> None:
    assert EntryRuns.of([]).encode() == bytes(64)
    assert EntryRuns.decode(bytes(64)) == EntryRuns(())


@given(entry_sets)
def test_runs_are_read_back_as_written(entry_ids: frozenset[int]) -> None:
    runs = EntryRuns.of(sorted(entry_ids))
    assert tuple(runs.runs) == slow_runs(entry_ids)
    assert EntryRuns.decode(runs.encode()) == runs


@given(entry_sets, st.lists(st.integers(-1, 62)))
def test_membership_length_and_iteration_are_those_of_the_set(entry_ids: frozenset[int], probes: list[int]) -> None:
    runs = EntryRuns.of(sorted(entry_ids))
    assert list(runs) == sorted(entry_ids)
    assert len(runs) == len(entry_ids)
    for probe in [*probes, *entry_ids, *(entry_id + 1 for entry_id in entry_ids)]:
        assert (probe in runs) is (probe in entry_ids)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=20))
def test_runs_have_one_canonical_form(pairs: list[tuple[int, int]]) -> None:
    overlapping = [(first, first + more) for first, more in pairs]
    covered = frozenset(entry_id for first, last in overlapping for entry_id in range(first, last + 1))
    assert tuple(EntryRuns.of_runs(overlapping).runs) == slow_runs(covered)


@given(entry_sets, st.integers(1, 9), st.randoms(use_true_random=False))
def test_sections_of_a_set_are_joined_in_any_order(entry_ids: frozenset[int], size: int, rng: random.Random) -> None:
    ids = sorted(entry_ids)
    sections = [EntryRuns.of(ids[start : start + size]) for start in range(0, len(ids), size)]
    rng.shuffle(sections)
    joined = EntryRuns.of_parts([*sections, EntryRuns()])
    assert joined == EntryRuns.of(ids)
    assert tuple(joined.runs) == slow_runs(entry_ids)


def test_sections_of_a_striped_set_are_one_group() -> None:
    ids = [entry_id for entry_id in range(3000) if entry_id % 5 < 3]
    sections = [EntryRuns.of(ids[start : start + 300]) for start in range(0, len(ids), 300)]
    assert len(EntryRuns.of_parts(sections).groups) == 1


def test_repeated_ids_count_once() -> None:
    assert tuple(EntryRuns.of([3, 3, 4, 4, 4]).runs) == ((3, 4),)


def test_ids_out_of_order_are_refused_and_not_dropped() -> None:
    with pytest.raises(AssertionError, match="entry 1 after"):
        EntryRuns.of([5, 1])


@st.composite
def periodic_groups(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    groups, end = [], 0
    for _ in range(draw(st.integers(0, 4))):
        first = end + draw(st.integers(0, 20))
        size = draw(st.integers(1, 6))
        period = draw(st.one_of(st.just(0), st.integers(1, 12)))
        last = first + period * draw(st.integers(0, 8))
        groups.append((first, last, size, period))
        end = last + size
    return groups


def is_present(entry_id: int, groups: list[tuple[int, int, int, int]]) -> bool:
    """The rule of docs/formats.md#entry-lists, word for word.

    It holds for groups whose runs neither touch nor overlap within the group.
    """
    covering = [values for values in groups if values[0] <= entry_id]
    if not covering:
        return False
    first, last, size, period = max(covering)
    if entry_id > last + size:
        return False
    return entry_id - first < size if period == 0 else (entry_id - first) % period < size


@given(periodic_groups())
def test_periodic_groups_contain_the_entries_of_the_rule(groups: list[tuple[int, int, int, int]]) -> None:
    runs = EntryRuns.decode(encoded(*groups))
    for entry_id in range(200):
        is_beyond_touching_runs = any(
            0 < period <= size and entry_id == last + size for _, last, size, period in groups
        )  # here, Apache's implementation of the rule is off by one
        if not is_beyond_touching_runs:
            assert (entry_id in runs) is is_present(entry_id, groups)


def test_every_second_pair_of_a_striped_ledger() -> None:
    assert tuple(EntryRuns.decode(encoded((1, 7, 2, 3))).runs) == ((1, 2), (4, 5), (7, 8))


def test_adjacent_groups_are_one_run() -> None:
    assert tuple(EntryRuns.decode(encoded((0, 0, 5, 0), (5, 5, 5, 0))).runs) == ((0, 9),)


def test_runs_too_long_for_one_group_are_split_and_joined_again() -> None:
    long = EntryRuns(((7, 7 + (1 << 33)),))
    assert struct.unpack_from(">ii", long.encode()) == (0, 5)
    assert EntryRuns.decode(long.encode()) == long


def test_a_group_of_adjacent_runs_of_any_length_is_read_as_one_run() -> None:
    everything = EntryRuns.decode(encoded((0, ENTRY_ID_MAX, 1, 1)))
    assert tuple(everything.runs) == ((0, ENTRY_ID_MAX),)
    assert len(everything) == ENTRY_ID_MAX + 1


@pytest.mark.parametrize(
    "group_values",
    [
        (0, 1 << 62, 1, 2),  # 2^61 runs
        (0, 3 * (EXPANDED_RUNS_MAX + 1), 2, 3),
    ],
)
def test_a_group_that_claims_absurdly_many_runs_is_refused(group_values: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidAvailabilityError, match="too many to hold"):
        EntryRuns.decode(encoded(group_values))


def test_many_groups_cannot_add_up_to_absurdly_many_runs() -> None:
    many = 2 * (EXPANDED_RUNS_MAX // 2)
    groups = [(start * (many + 2), start * (many + 2) + many, 1, 2) for start in range(3)]
    with pytest.raises(InvalidAvailabilityError, match="group 2 unfolds"):
        EntryRuns.decode(encoded(*groups))


@pytest.mark.parametrize(
    "group_values",
    [
        (0, 0, 0, 0),  # empty
        (0, 0, -1, 0),
        (0, 0, 1, -1),
        (5, 4, 1, 1),  # ends before it starts
        (-1, -1, 1, 0),  # not an entry id
        (0, 3, 1, 0),  # several runs, but no period
        (0, 4, 1, 3),  # the last run does not lie on the period
        (ENTRY_ID_MAX, ENTRY_ID_MAX, 2, 0),  # beyond the last id
        (-(1 << 63), (1 << 63) - 1, 1, 2),
    ],
)
def test_invalid_groups_are_refused(group_values: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidAvailabilityError, match="impossible group"):
        EntryRuns.decode(encoded(group_values))


@pytest.mark.parametrize("second", [(9, 9, 1, 0), (4, 4, 1, 0), (0, 0, 2, 0)])
def test_groups_that_overlap_or_are_out_of_order_are_refused(second: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidAvailabilityError, match="group 1 starts at"):
        EntryRuns.decode(encoded((2, 2, 8, 0), second))


@pytest.mark.parametrize(
    "data",
    [b"", bytes(63), header(1), header(1) + bytes(23), header(-1), header(0, version=1), header(1 << 30)],
)
def test_truncated_or_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidAvailabilityError):
        EntryRuns.decode(data)


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=96).map(lambda tail: header(len(tail) // 24) + tail)))
def test_arbitrary_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        runs = EntryRuns.decode(data)
    except InvalidAvailabilityError:
        return
    assert EntryRuns.decode(runs.encode()) == runs
