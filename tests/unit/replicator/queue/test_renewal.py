"""When a worker lists the tasks again, on a clock in memory."""

from __future__ import annotations

import pytest

from replicator.queue.renewal import REFRESH_SHARE, Renewal
from tests.worlds.clocks import ManualClock

LISTING_S = 0.5
ROUND_S = 60.0
EARLIEST_S = LISTING_S / REFRESH_SHARE


def listed(clock: ManualClock, *due_in_s: float) -> Renewal:
    """Return the renewal after two listings, of which each took ``LISTING_S``."""
    renewal = Renewal(clock, ROUND_S)
    for _ in range(2):
        renewal.begin()
        clock.now_s += LISTING_S
        renewal.end(100, due_in_s)
    return renewal


def test_the_first_listing_is_due_at_once() -> None:
    assert Renewal(ManualClock(), ROUND_S).remaining_s(has_tasks=False) <= 0


def test_tasks_are_listed_again_after_the_poll_interval_or_when_one_is_due() -> None:
    assert listed(ManualClock()).remaining_s(has_tasks=True) == pytest.approx(ROUND_S)
    assert listed(ManualClock(), 30.0, 20.0).remaining_s(has_tasks=True) == pytest.approx(20.0)


def test_listings_use_a_small_share_of_the_time() -> None:
    assert listed(ManualClock(), 0.1).remaining_s(has_tasks=True) == pytest.approx(EARLIEST_S)
    renewal = listed(ManualClock())
    renewal.hasten()
    assert renewal.remaining_s(has_tasks=True) == pytest.approx(EARLIEST_S)


@pytest.mark.parametrize(("has_tasks", "expected_s"), [(True, ROUND_S), (False, EARLIEST_S)])
def test_a_change_makes_a_listing_due_early_only_if_the_list_is_used_up(has_tasks: bool, expected_s: float) -> None:
    renewal = listed(ManualClock())
    renewal.note_changed()
    assert renewal.remaining_s(has_tasks=has_tasks) == pytest.approx(expected_s)


def test_an_event_makes_a_listing_due_at_once_but_during_a_listing_after_the_usual_time() -> None:
    clock = ManualClock()
    renewal = listed(clock)
    renewal.mark_stale()
    assert renewal.remaining_s(has_tasks=True) <= 0
    renewal.begin()
    renewal.mark_stale()
    clock.now_s += LISTING_S
    renewal.end(100, ())
    assert renewal.remaining_s(has_tasks=True) == pytest.approx(EARLIEST_S)


def test_time_for_which_a_listing_waited_for_the_store_delays_no_other() -> None:
    clock = ManualClock()
    renewal = listed(clock)
    for _ in range(2):
        renewal.begin()
        clock.now_s += 500.0
        renewal.end(0, [0.0])
    assert renewal.remaining_s(has_tasks=True) == pytest.approx(EARLIEST_S)
