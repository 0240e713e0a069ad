"""The order of tasks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from replicator.queue.ordering import (
    AGE_STEP_MS,
    FAILING_KINDS,
    NO_COPY_LEFT_RANK,
    NOTHING_LOST_RANK,
    Candidate,
    Order,
    QueueKind,
    is_of_system_topic,
    mark_time_ms,
    rank,
)
from tests.worlds.ledgers import name_set, names
from tests.worlds.virtual_time import run_virtual

HOUR_MS = 3_600_000


def candidate(
    ledger_id: int,
    copies: int = 1,
    ctime_ms: int = HOUR_MS,
    *,
    is_recheck: bool = False,
    is_boosted: bool = False,
    is_of_system_topic: bool = False,
    is_large: bool = False,
    failures: int = 0,
) -> Candidate:
    return Candidate(
        ledger_id=LedgerId(ledger_id),
        rank=copies,
        ctime_ms=ctime_ms,
        is_recheck=is_recheck,
        is_boosted=is_boosted,
        is_of_system_topic=is_of_system_topic,
        is_large=is_large,
        failures=failures,
    )


def order(*candidates: Candidate, seed: int = 0) -> list[LedgerId]:
    sorted_ = run_virtual(Order.of(candidates, random.Random(seed)))
    return [sorted_.take().ledger_id for _ in candidates]


def test_failing_tasks_can_be_passed_over() -> None:
    failing = [candidate(1, copies=1, failures=2), candidate(2, copies=1, failures=9, is_large=True)]
    candidates = [*failing, candidate(3, copies=2), candidate(4, copies=1, failures=1), candidate(5, copies=3)]
    found = run_virtual(Order.of(candidates, random.Random(1)))
    assert [found.take(FAILING_KINDS).ledger_id for _ in range(3)] == [4, 3, 5]
    assert found.first(FAILING_KINDS) is None
    assert found.take((QueueKind.FAILING_LARGE,)).ledger_id == 1
    assert found.first() == failing[1]
    assert len(found) == 1


def test_fewer_copies_come_first() -> None:
    assert order(candidate(1, copies=2), candidate(2, copies=1), candidate(3, copies=3)) == [2, 1, 3]


def test_older_tasks_come_first_among_equals() -> None:
    assert order(candidate(1, ctime_ms=3 * HOUR_MS), candidate(2, ctime_ms=HOUR_MS), candidate(3, ctime_ms=-1)) == [
        3,
        2,
        1,
    ]


def test_a_mark_from_the_future_counts_as_the_oldest() -> None:
    """The clock of ZooKeeper's leader was wrong when the ledger was marked."""
    now_ms = 1000 * HOUR_MS
    marked = [now_ms - HOUR_MS, now_ms + 240 * HOUR_MS, now_ms - 1]
    tasks = [candidate(number, ctime_ms=mark_time_ms(ctime_ms, now_ms)) for number, ctime_ms in enumerate(marked)]
    assert order(*tasks) == [1, 0, 2]
    assert mark_time_ms(now_ms + HOUR_MS, now_ms) == now_ms + HOUR_MS, "this process's clock may be wrong"


def test_a_boost_comes_first_within_its_rank_and_after_more_severe_ranks() -> None:
    tasks = [
        candidate(1, 2, -1),
        candidate(2, 2, 3 * HOUR_MS, is_boosted=True),
        candidate(3, 1, 3 * HOUR_MS),
        candidate(4, 3, -1, is_boosted=True),
        candidate(5, 1, is_recheck=True, is_boosted=True),
    ]
    assert order(*tasks) == [3, 2, 1, 4, 5]


def test_system_topics_come_first_within_their_rank_and_after_boosts() -> None:
    tasks = [
        candidate(1, 2, -1),
        candidate(2, 2, 3 * HOUR_MS, is_of_system_topic=True),
        candidate(3, 1, 3 * HOUR_MS),
        candidate(4, 2, is_boosted=True),
        candidate(5, 3, -1, is_of_system_topic=True),
    ]
    assert order(*tasks) == [3, 4, 2, 1, 5]


@pytest.mark.parametrize(
    ("name", "expected"),
    [(b"t/n/persistent/__change_events", True), (b"t/n/persistent/orders", False), (b"damage", False)],
)
def test_system_topics_are_recognised_from_the_metadata_without_another_read(name: bytes, expected: bool) -> None:
    custom = (("application", b"pulsar"), ("component", b"managed-ledger"), ("pulsar/managed-ledger", name))
    metadata = LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), names("a b")),), custom=custom)
    assert is_of_system_topic(Versioned(LedgerId(1), metadata, 0)) is expected
    assert not is_of_system_topic(Unreadable(LedgerId(1), "cut"))
    assert not is_of_system_topic(None)


def test_ledgers_that_cannot_be_repaired_come_after_all_that_can() -> None:
    tasks = [
        candidate(1, NO_COPY_LEFT_RANK),
        candidate(2, 1, is_recheck=True),
        candidate(3, NOTHING_LOST_RANK),
        candidate(4, 2),
    ]
    assert order(*tasks) == [4, 3, 1, 2]


def test_workers_with_the_same_list_do_not_start_with_the_same_task() -> None:
    marked_together = [candidate(i, ctime_ms=HOUR_MS + i % AGE_STEP_MS) for i in range(50)]
    firsts = {order(*marked_together, seed=seed)[0] for seed in range(20)}
    assert len(firsts) > 10


@pytest.mark.parametrize(
    ("registered", "named", "draining", "expected"),
    [
        ("a b c d e", "", "", NOTHING_LOST_RANK),
        ("a b c d", "e", "", 2),
        ("a c d", "b e", "", 1),
        ("a e", "b c d", "", 1),  # some entries have one copy left, others none
        ("", "a b c d e", "", NO_COPY_LEFT_RANK),
        ("a b c d e", "e", "", 2),  # e is registered, but may have lost its disks
        ("a b c d e", "b c", "", 1),
        ("a b c d e", "b c", "b c", NOTHING_LOST_RANK),
        ("a c d e", "b c", "c", 2),
    ],
)
def test_the_rank_is_that_of_the_repairable_entry_with_the_fewest_copies(
    registered: str, named: str, draining: str, expected: int
) -> None:
    fragments = (Fragment(EntryId(0), names("a b c d e")),)
    metadata = LedgerMetadata(5, 3, 2, fragments).closed(EntryId(99), 100)
    bookies = Bookies(name_set(registered), frozenset()).with_draining(name_set(draining))
    assert rank(Versioned(LedgerId(1), metadata, 0), names(named), bookies) == expected


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ("a c b", 2),
        ("a a b", 1),
        ("a b a", 1),
        ("a a a", NOTHING_LOST_RANK),
        ("b b b", NO_COPY_LEFT_RANK),
        ("c a a d b", 2),
        ("a a c d b", 1),  # the entries on b, a and a
        ("c a a a d b e", 2),  # the entries that are only on a lack no position
    ],
)
def test_a_bookie_listed_twice_in_a_fragment_counts_as_one_copy(members: str, expected: int) -> None:
    ensemble = names(members)
    metadata = LedgerMetadata(len(ensemble), 3, 2, (Fragment(EntryId(0), ensemble),)).closed(EntryId(99), 100)
    bookies = Bookies(name_set("a c d e"), frozenset())
    assert rank(Versioned(LedgerId(1), metadata, 0), names("b"), bookies) == expected


def test_a_ledger_with_a_repairable_fragment_is_ranked_by_that_fragment() -> None:
    fragments = (Fragment(EntryId(0), names("a b")), Fragment(EntryId(10), names("c d")))
    metadata = LedgerMetadata(2, 2, 2, fragments).closed(EntryId(19), 100)
    bookies = Bookies(name_set("c"), frozenset())
    assert rank(Versioned(LedgerId(1), metadata, 0), names("a b d"), bookies) == 1


def test_equal_fragments_of_different_sizes_are_ranked_by_their_entries() -> None:
    """The last fragment has only one entry, which is on a, b and c."""
    members = names("a b c d e")
    fragments = (Fragment(EntryId(0), members), Fragment(EntryId(100), members))
    whole = LedgerMetadata(5, 3, 2, fragments).closed(EntryId(100), 100)
    bookies = Bookies(name_set("c d e"), frozenset())
    assert rank(Versioned(LedgerId(1), whole, 0), names("a b"), bookies) == 1
    last = replace(whole, fragments=(fragments[1],))
    assert rank(Versioned(LedgerId(1), last, 0), names("a"), Bookies(name_set("b c d e"), frozenset())) == 2


def test_ledgers_without_readable_metadata_count_as_nothing_lost() -> None:
    bookies = Bookies(frozenset(), frozenset())
    assert rank(None, (), bookies) == NOTHING_LOST_RANK
    assert rank(Unreadable(LedgerId(1), "cut"), (), bookies) == NOTHING_LOST_RANK
