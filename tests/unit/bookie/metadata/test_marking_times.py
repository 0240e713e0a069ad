"""The earliest time at which the ledgers of a lost bookie are marked: pure."""

from __future__ import annotations

from bookie.metadata.bookies.first_seen_down import Down
from bookie.metadata.bookies.maintenance import MaintenanceWindow
from bookie.metadata.bookies.marking_times import HoldReason, MarkingPolicy
from bookie.model.ids import BookieId

A, B = BookieId("a:1"), BookieId("b:1")
NOW_MS = 1_000_000
DOWN = Down(NOW_MS)


def window(*bookies: BookieId, until_s: int = 3600, holds_critical: bool = False) -> MaintenanceWindow:
    return MaintenanceWindow("rack:/r1", bookies, "me@host", NOW_MS - 1000, NOW_MS + until_s * 1000, holds_critical)


def test_the_shorter_delay_never_exceeds_the_longer_one() -> None:
    assert MarkingPolicy(600, 60).times(A, DOWN).critical_due_ms == NOW_MS + 60_000
    assert MarkingPolicy(30, 60).times(A, DOWN).critical_due_ms == NOW_MS + 30_000
    assert MarkingPolicy(0, 60).times(A, DOWN).critical_due_ms == NOW_MS


def test_a_window_holds_back_only_until_its_end() -> None:
    policy = MarkingPolicy(600, 60, (window(A),))
    times = policy.times(A, DOWN)
    assert (times.due_ms, times.reason) == (NOW_MS + 3_600_000, HoldReason.MAINTENANCE)
    assert times.detail == "rack:/r1, by me@host"
    assert times.critical_due_ms == NOW_MS + 60_000, "critical ledgers have a delay of their own"
    assert policy.times(B, DOWN) == MarkingPolicy(600, 60).times(B, DOWN)


def test_critical_ledgers_wait_in_a_window_even_without_a_lost_bookie_delay() -> None:
    assert MarkingPolicy(0, 60, (window(A),)).times(A, DOWN).critical_due_ms == NOW_MS + 60_000
    short = MarkingPolicy(0, 60, (window(A, until_s=30),)).times(A, DOWN)
    assert (short.due_ms, short.critical_due_ms) == (NOW_MS + 30_000, NOW_MS + 30_000)
    waived = Down(NOW_MS, is_delay_waived=True)
    assert MarkingPolicy(600, 60, (window(A),)).times(A, waived).critical_due_ms == NOW_MS + 60_000


def test_a_delay_that_ends_after_the_window_applies() -> None:
    times = MarkingPolicy(7200, 60, (window(A),)).times(A, DOWN)
    assert (times.due_ms, times.reason) == (NOW_MS + 7_200_000, HoldReason.DELAY)


def test_a_window_can_hold_back_critical_ledgers_as_well() -> None:
    times = MarkingPolicy(600, 60, (window(A, holds_critical=True), window(A, until_s=1800))).times(A, DOWN)
    assert (times.due_ms, times.critical_due_ms) == (NOW_MS + 3_600_000, NOW_MS + 3_600_000)


def test_a_waived_delay_does_not_end_a_window() -> None:
    waived = Down(NOW_MS, is_delay_waived=True)
    assert MarkingPolicy(600, 60, (window(A),)).times(A, waived).due_ms == NOW_MS + 3_600_000
    assert MarkingPolicy(600, 60).times(A, waived).due_ms == NOW_MS
