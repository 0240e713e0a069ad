"""Quorum coverage compared with three other definitions (T14), for every shape with up to seven bookies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

from bookie.model.coverage import is_covered, negative_quorum
from bookie.model.schedule import Stripe

SIZE_MAX = 7


def shapes() -> Iterator[tuple[int, int, int]]:
    for size in range(1, SIZE_MAX + 1):
        for write_quorum in range(1, size + 1):
            for ack_quorum in range(1, write_quorum + 1):
                yield size, write_quorum, ack_quorum


def subsets(size: int) -> Iterator[frozenset[int]]:
    for count in range(size + 1):
        yield from map(frozenset, combinations(range(size), count))


def windows(size: int, write_quorum: int) -> list[frozenset[int]]:
    return [frozenset((start + i) % size for i in range(write_quorum)) for start in range(size)]


def every_ack_set_is_hit(known: frozenset[int], size: int, write_quorum: int, ack_quorum: int) -> bool:
    """In every possible set of acknowledging bookies, one bookie answered."""
    return all(
        known & set(acked)
        for window in windows(size, write_quorum)
        for acked in combinations(sorted(window), ack_quorum)
    )


def too_few_are_unknown(known: frozenset[int], size: int, write_quorum: int, ack_quorum: int) -> bool:
    """The bookies without an answer are too few to have acknowledged an entry."""
    return all(len(window - known) < ack_quorum for window in windows(size, write_quorum))


def no_ack_set_is_unsatisfied(known: frozenset[int], size: int, write_quorum: int, ack_quorum: int) -> bool:
    """In every ack set, at least one member answered."""
    return not any(
        set(acked).isdisjoint(known)
        for window in windows(size, write_quorum)
        for acked in combinations(sorted(window), ack_quorum)
    )


@pytest.mark.parametrize("size", range(1, SIZE_MAX + 1))
def test_four_definitions_of_coverage_agree(size: int) -> None:
    for shape in shapes():
        if shape[0] != size:
            continue
        for known in subsets(size):
            expected = is_covered(known, Stripe(*shape[:2]), shape[2])
            assert every_ack_set_is_hit(known, *shape) is expected, (known, shape)
            assert too_few_are_unknown(known, *shape) is expected, (known, shape)
            assert no_ack_set_is_unsatisfied(known, *shape) is expected, (known, shape)


@pytest.mark.parametrize(
    ("shape", "fewest", "always"),
    [
        ((1, 1, 1), 1, 1),
        ((2, 2, 2), 1, 1),
        ((2, 2, 1), 2, 2),
        ((3, 3, 3), 1, 1),
        ((3, 3, 2), 2, 2),
        ((3, 2, 2), 2, 2),
        ((4, 2, 2), 2, 3),
        ((5, 3, 3), 2, 3),
        ((5, 3, 2), 4, 4),
        ((6, 3, 2), 4, 5),
    ],
)
def test_the_number_of_answers_that_suffices(shape: tuple[int, int, int], fewest: int, always: int) -> None:
    """The table in docs/formats.md#coverage."""
    by_count: dict[int, set[bool]] = {}
    for known in subsets(shape[0]):
        by_count.setdefault(len(known), set()).add(is_covered(known, Stripe(*shape[:2]), shape[2]))
    assert min(count for count, covered in by_count.items() if True in covered) == fewest
    assert min(count for count, covered in by_count.items() if covered == {True}) == always


def test_the_negative_quorum_is_the_smallest_set_that_meets_every_ack_set() -> None:
    for _, write_quorum, ack_quorum in shapes():
        members = range(write_quorum)
        smallest = min(
            count
            for count in range(write_quorum + 1)
            if all(
                set(answered) & set(acked)
                for answered in combinations(members, count)
                for acked in combinations(members, ack_quorum)
            )
        )
        assert negative_quorum(write_quorum, ack_quorum) == smallest


def test_order_and_repetition_do_not_matter() -> None:
    assert is_covered([2, 0, 2], Stripe(3, 3), 2)
    assert not is_covered([2, 2, 2], Stripe(3, 3), 2)
