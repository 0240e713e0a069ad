"""The limits of one run (R73): pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from bookie.model.ids import BookieId, LedgerId
from spark_jobs.options.marking import RunLimits
from spark_jobs.runs.marking.limits import DueLedger, MarkLimiter
from spark_jobs.runs.marking.publish import Marking
from spark_jobs.runs.spark_failures import MetadataReadAgainError

GONE = (BookieId("gone"),)


class Marks:
    """A stand-in for the existing marks."""

    def __init__(self, *ledgers: int) -> None:
        self.ledgers = set(ledgers)

    def are_marked(self, batch: Sequence[Marking]) -> Sequence[bool]:
        return [ledger_id in self.ledgers for ledger_id, _ in batch]


def due(*sizes: int) -> list[DueLedger]:
    return [((LedgerId(number), GONE), size) for number, size in enumerate(sizes)]


def admitted(limiter: MarkLimiter, ledgers: list[DueLedger]) -> list[int]:
    markings = list(limiter.admitted(ledgers))
    limiter.count(markings)
    return [ledger_id for ledger_id, _ in markings]


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_the_first_ledgers_are_admitted_and_the_rest_is_held_back(batch_size: int) -> None:
    limiter = MarkLimiter(RunLimits(marks_max=2), Marks(), batch_size)
    assert admitted(limiter, due(1, 1, 1, 1, 1)) == [0, 1]
    assert (limiter.take_held_back_count(), limiter.take_held_back_count(), limiter.first_held) == (3, 0, 2)
    assert (admitted(limiter, due(1)), limiter.first_held) == ([], 0)


def test_existing_marks_do_not_count_so_the_next_run_gets_further() -> None:
    limits, marks, ledgers = RunLimits(marks_max=2), Marks(), due(*[1] * 5)
    runs = []
    for _ in range(3):
        limiter = MarkLimiter(limits, marks, 2)
        marks.ledgers |= set(admitted(limiter, ledgers))
        runs.append((len(marks.ledgers), limiter.take_held_back_count()))
    assert runs == [(2, 3), (4, 1), (5, 0)]


def test_bytes_are_limited_and_the_first_ledger_is_always_admitted() -> None:
    assert admitted(MarkLimiter(RunLimits(bytes_max=10), Marks()), due(4, 6, 1)) == [0, 1]
    assert admitted(MarkLimiter(RunLimits(bytes_max=10), Marks()), due(400, 1)) == [0]
    assert admitted(MarkLimiter(RunLimits(bytes_max=10), Marks(0)), due(400, 400, 1)) == [0, 1]


def test_a_smaller_ledger_does_not_overtake_a_worse_one() -> None:
    assert admitted(MarkLimiter(RunLimits(bytes_max=10), Marks()), due(4, 9, 1)) == [0]


def test_the_limits_apply_across_all_chunks_of_a_run() -> None:
    limiter = MarkLimiter(RunLimits(marks_max=3), Marks())
    assert len(admitted(limiter, due(1, 1))) + len(admitted(limiter, due(1, 1))) == 3
    assert limiter.take_held_back_count() == 1


def test_a_reading_that_ends_with_an_error_leaves_no_count_of_ledgers_held_back() -> None:
    limiter = MarkLimiter(RunLimits(marks_max=1), Marks(), 2)

    def lost() -> Iterator[DueLedger]:
        yield from due(1, 1)
        raise MetadataReadAgainError

    with pytest.raises(MetadataReadAgainError):
        list(limiter.admitted(lost()))
    assert admitted(limiter, due(1, 1, 1)) == [0]
    assert limiter.take_held_back_count() == 2


def test_without_limits_nothing_is_read_or_held_back() -> None:
    limiter = MarkLimiter(RunLimits(), None)  # type: ignore[arg-type]
    assert admitted(limiter, due(1, 2, 3)) == [0, 1, 2]
    assert limiter.take_held_back_count() == 0
