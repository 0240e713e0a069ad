"""When a worker lists the tasks again: after a change, when a waiting task is due, or after the poll interval.

A listing of 100,000 tasks takes long, so listings use only ``REFRESH_SHARE`` of the time, however often tasks change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bookie.runtime.clock import Clock
from bookie.runtime.fault_points import fault_point

REFRESH_SHARE: Final = 0.05
"""The largest share of time for listings while there is other work."""
NAP_S: Final = 0.01
"""The shortest wait for the end of a grace period. A shorter one, which rounding can leave, might not advance the
clock."""
_LISTING_S: Final = 0.5
_LISTED_TASK_S: Final = 0.01
"""A listing takes at most ``_LISTING_S``, and ``_LISTED_TASK_S`` for each ordinary ledger. For the rest of its time, it
waited for the store (R149)."""


class Renewal:
    """The times of the listings of one worker, in seconds of its clock. The first listing is due at once."""

    def __init__(self, clock: Clock, poll_interval_s: float) -> None:
        self._clock = clock
        self._poll_interval_s = poll_interval_s
        self._is_changed = True
        """Whether a turn has changed the tasks since the last listing began."""
        self._events = 0
        """The number of ``mark_stale`` calls."""
        self._events_at_start = 0
        self._started_s = 0.0
        self._last_listing_s = 0.0
        self._after_change_s = -1.0
        """The earliest time of the next listing if tasks have changed."""
        self._anyway_s = -1.0
        """The time of the next listing if nothing changes."""

    def remaining_s(self, *, has_tasks: bool) -> float:
        """Return the time until the next listing, negative if it is overdue.

        It is earlier if the list is used up (not ``has_tasks``) after a change.
        """
        is_used_up = self._is_changed and not has_tasks
        return (self._after_change_s if is_used_up else self._anyway_s) - self._clock.monotonic_s()

    def note_changed(self) -> None:
        """Record that a turn has changed the tasks."""
        self._is_changed = True

    def mark_stale(self) -> None:
        """Make a listing due at once, because an event may have made other tasks eligible."""
        self._events += 1
        self._anyway_s = -1.0

    def hasten(self) -> None:
        """Make a listing due as early as after a change."""
        self._anyway_s = self._after_change_s

    def begin(self) -> None:
        """Record that a listing begins."""
        self._started_s, self._events_at_start, self._is_changed = self._clock.monotonic_s(), self._events, False

    def end(self, ledgers: int, due_in_s: Iterable[float]) -> None:
        """Record the end of a listing, and set the time of the next one.

        The shorter of the last two listings counts, and no more time than its ledgers need, because a listing may have
        waited for the store (R149).

        Args:
            ledgers: the number of ordinary ledgers that take as long to judge as the listed ones.
            due_in_s: the times until waiting tasks are due.
        """
        now_s = self._clock.monotonic_s()
        first_due_in_s = min(due_in_s, default=self._poll_interval_s)
        if fault_point("queue.renew_early"):
            first_due_in_s = NAP_S
        took_s = min(now_s - self._started_s, _LISTING_S + _LISTED_TASK_S * ledgers)
        self._after_change_s = now_s + min(took_s, self._last_listing_s) / REFRESH_SHARE
        self._last_listing_s = took_s
        self._anyway_s = max(self._after_change_s, now_s + min(self._poll_interval_s, first_due_in_s))
        if self._events != self._events_at_start:  # a part of the list may be older than the event
            self.hasten()
