"""The computation of grace periods."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import BookieId, EntryId, LedgerId
from replicator.plan.steps import PositionKey
from replicator.queue.grace import GracePeriods
from tests.worlds.clocks import ManualClock

LEDGER = LedgerId(7)


def key(name: str) -> PositionKey:
    return PositionKey(EntryId(0), ord(name) - ord("a"), BookieId(name))


@given(st.lists(st.tuples(st.integers(0, 40), st.sets(st.sampled_from("abc"))), max_size=20))
def test_a_ledger_is_due_once_one_position_was_missing_in_every_check_of_the_period(
    looks: list[tuple[int, set[str]]],
) -> None:
    clock = ManualClock(100.0)
    grace_periods = GracePeriods(clock, 30.0)
    since: dict[str, float] = {}
    for pause_s, missing in looks:
        clock.now_s += pause_s
        since = {name: since.get(name, clock.now_s) for name in missing}
        grace_periods.observe(LEDGER, map(key, sorted(missing)))
        if since:
            assert grace_periods.due_in_s(LEDGER) == min(since.values()) + 30.0 - clock.now_s


def test_a_listing_does_not_forget_what_only_a_closer_check_finds() -> None:
    clock = ManualClock(100.0)
    grace_periods = GracePeriods(clock, 30.0)
    assert grace_periods.remaining_s(LEDGER, [], [key("b")]) == 30.0
    clock.now_s += 20
    grace_periods.observe(LEDGER, [])
    assert grace_periods.remaining_s(LEDGER, [key("a")], [key("b")]) == 10.0
    assert grace_periods.remaining_s(LEDGER, [key("a")], []) == 30.0


def test_ledgers_without_a_task_are_forgotten() -> None:
    clock = ManualClock(100.0)
    grace_periods = GracePeriods(clock, 30.0)
    grace_periods.observe(LEDGER, [key("b")])
    clock.now_s += 20
    grace_periods.keep_only([])
    assert grace_periods.remaining_s(LEDGER, [key("b")], []) == 30.0


def test_a_failed_recovery_is_retried_when_a_new_bookie_registers() -> None:
    grace_periods = GracePeriods(ManualClock(), 30.0)
    a, b = BookieId("a"), BookieId("b")
    few, more = Bookies(frozenset({a}), frozenset()), Bookies(frozenset({a}), frozenset({b}))
    assert not grace_periods.has_new_bookie(LEDGER, more)
    grace_periods.record_failed_recovery(LEDGER, few)
    assert not grace_periods.has_new_bookie(LEDGER, few)
    assert grace_periods.has_new_bookie(LEDGER, more)
    grace_periods.record_failed_recovery(LEDGER, more)
    assert not grace_periods.has_new_bookie(LEDGER, few)
