"""Which task comes first."""

from __future__ import annotations

import random

import pytest

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from replicator.queue.ordering import AGE_STEP_MS, COPIES_UNKNOWN, Candidate, in_order, surviving_copies

HOUR_MS = 3_600_000


def candidate(ledger_id: int, copies: int = 1, ctime_ms: int = HOUR_MS, failures: int = 0) -> Candidate:
    return Candidate(LedgerId(ledger_id), copies, ctime_ms, failures)


def order(*candidates: Candidate, seed: int = 0) -> list[LedgerId]:
    return in_order(candidates, random.Random(seed))


def test_fewer_copies_come_first() -> None:
    assert order(candidate(1, copies=2), candidate(2, copies=0), candidate(3, copies=1)) == [2, 3, 1]


def test_older_tasks_come_first_among_equals() -> None:
    assert order(candidate(1, ctime_ms=3 * HOUR_MS), candidate(2, ctime_ms=HOUR_MS), candidate(3, ctime_ms=-1)) == [
        3,
        2,
        1,
    ]


def test_a_failed_task_sinks_below_every_other_however_urgent() -> None:
    assert order(candidate(1, copies=0, failures=1), candidate(2, copies=4), candidate(3, failures=2)) == [2, 1, 3]


def test_workers_with_the_same_list_do_not_reach_for_the_same_task() -> None:
    marked_together = [candidate(i, ctime_ms=HOUR_MS + i % AGE_STEP_MS) for i in range(50)]
    firsts = {order(*marked_together, seed=seed)[0] for seed in range(20)}
    assert len(firsts) > 10


def names(text: str) -> tuple[BookieId, ...]:
    return tuple(map(BookieId, text.split()))


@pytest.mark.parametrize(
    ("registered", "copies"),
    [
        ("a b c d e", COPIES_UNKNOWN),  # nothing is missing
        ("a b c d", 2),
        ("a c d", 1),
        ("a e", 0),
    ],
)
def test_copies_are_those_of_the_entry_that_has_the_fewest(registered: str, copies: int) -> None:
    fragments = (Fragment(EntryId(0), names("a b c d e")),)
    metadata = LedgerMetadata(5, 3, 2, fragments).closed(EntryId(99), 100)
    bookies = Bookies(frozenset(names(registered)), frozenset())
    assert surviving_copies(Versioned(LedgerId(1), metadata, 0), bookies) == copies


def test_ledgers_that_cannot_be_judged_come_last() -> None:
    bookies = Bookies(frozenset(), frozenset())
    assert surviving_copies(None, bookies) == COPIES_UNKNOWN
    assert surviving_copies(Unreadable(LedgerId(1), "cut"), bookies) == COPIES_UNKNOWN
