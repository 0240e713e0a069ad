"""Which bookies a mark names, and why a ledger is held back: pure."""

from __future__ import annotations

from collections import Counter

import pytest

from bookie.metadata.bookies.first_seen_down import Down
from bookie.metadata.bookies.marking_times import HoldReason, MarkingPolicy, MarkingTimes
from bookie.model.ids import BookieId, LedgerId
from spark_jobs.report.counts import FindingSums
from spark_jobs.runs.marking.held_back import HeldBookieFilter, HeldBookies, LedgerWithFindings
from spark_jobs.runs.marking.lost_bookies import LostBookies

OLD, YOUNG, NEW = BookieId("old"), BookieId("young"), BookieId("new")
POLICY = MarkingPolicy(delay_s=600, critical_delay_s=60)
NOW_MS = 1_000_000
DOWN = {OLD: Down(NOW_MS - 600_000), YOUNG: Down(NOW_MS - 60_000), NEW: Down(NOW_MS - 59_999)}
LOST = LostBookies(DOWN, POLICY, NOW_MS)


def ledger(*missing: BookieId, critical: tuple[BookieId, ...] = ()) -> LedgerWithFindings:
    return LedgerWithFindings(LedgerId(1), missing, critical)


def test_a_bookie_is_held_back_until_its_own_delay_ends() -> None:
    assert {bookie: time.due_ms for bookie, time in LOST.waiting.items()} == {
        YOUNG: NOW_MS + 540_000,
        NEW: NOW_MS + 540_001,
    }
    assert dict(LOST.due) == {OLD: DOWN[OLD]}
    reported, _ = sorted(LOST.waiting_bookies_by_id(FindingSums((), {"young": (4, 5)})), key=lambda each: -each.ledgers)
    assert (reported.bookie_id, reported.ledgers, reported.until_ms) == ("young", 4, NOW_MS + 540_000)
    assert (reported.critical_until_ms, reported.reason) == (NOW_MS, "delay")
    assert not LostBookies(DOWN, MarkingPolicy(0), NOW_MS).waiting


def test_critical_ledgers_have_a_shorter_delay_and_never_a_longer_one() -> None:
    assert set(LOST.critical_due) == {YOUNG}
    assert set(LostBookies(DOWN, MarkingPolicy(600, 0), NOW_MS).critical_due) == {YOUNG, NEW}
    longer = LostBookies(DOWN, MarkingPolicy(600, 3600), NOW_MS)
    assert not longer.critical_due
    assert set(longer.due) == {OLD}


def test_a_waived_delay_is_over() -> None:
    waived = LostBookies({NEW: Down(NOW_MS, is_delay_waived=True)}, POLICY, NOW_MS)
    assert (set(waived.due), set(waived.waiting)) == ({NEW}, set())


def test_a_mark_contains_the_due_bookies_and_the_members_of_critical_fragments() -> None:
    held = LOST.held
    assert held.to_mark(ledger(OLD)) == (OLD,)
    assert held.to_mark(ledger(YOUNG)) == ()
    assert held.to_mark(ledger(OLD, YOUNG)) == (OLD,), "the delay of the other member has not passed"
    assert held.to_mark(ledger(YOUNG, critical=(YOUNG,))) == (YOUNG,)
    assert held.to_mark(ledger(NEW, critical=(NEW,))) == (), "the shorter delay has not passed either"
    assert held.to_mark(ledger(NEW, YOUNG, critical=(NEW, YOUNG))) == (YOUNG,)
    assert held.to_mark(ledger(OLD, YOUNG, NEW, critical=(YOUNG, NEW))) == (OLD, YOUNG)
    assert held.to_mark(ledger(BookieId("drained"))) == (BookieId("drained"),)
    assert HeldBookies().to_mark(ledger(YOUNG)) == (YOUNG,)


def test_ledgers_held_back_are_counted_once_with_their_reason() -> None:
    due_only = HeldBookieFilter(LOST.held)
    found = [ledger(OLD), ledger(YOUNG), ledger(YOUNG, NEW), ledger(YOUNG, critical=(YOUNG,))]
    assert list(due_only.of(found)) == [((1, (OLD,)), 0), ((1, (YOUNG,)), 0)]
    assert due_only.ledgers_held == Counter({HoldReason.DELAY: 2})


@pytest.mark.parametrize("missing", [(YOUNG, NEW), (NEW, YOUNG)])
def test_a_ledger_on_several_held_back_bookies_has_the_reason_of_the_one_that_is_due_last(
    missing: tuple[BookieId, ...],
) -> None:
    delay = MarkingTimes(NOW_MS + 1, NOW_MS, HoldReason.DELAY)
    window = MarkingTimes(NOW_MS + 2, NOW_MS, HoldReason.MAINTENANCE)
    assert HeldBookies({YOUNG: delay, NEW: window}).reason(ledger(*missing)) is HoldReason.MAINTENANCE
