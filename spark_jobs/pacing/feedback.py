"""Decide how many nodes a task may request at a time from the latency that it measures. Pure: no clock, no requests.

A task measures the duration of a read of one small node. This read waits behind the task's own requests, as the read of
another client would. The shortest duration counts as the idle latency. Two values follow from it: a limit, which is a
multiple of the idle latency and at least ``SLACK_S`` above it (schedulers cause shorter delays), and an aim between the
two.

Below the aim, the task requests more nodes at a time; the increase grows with the distance. If five measurements are
above the aim, the task requests fewer nodes, and half as many at the limit. All other tasks of all runs do the same, so
the server's queue becomes short again. If even one small request at a time is too much, the task waits between its
requests.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SLACK_S: Final = 0.003
"""Smallest distance between the idle latency and the limit."""
WINDOW_MAX_NODES: Final = 6_000
"""Largest number of nodes requested at a time. Only a distant ZooKeeper needs so many."""
NODES_PER_REQUEST_MIN: Final = 20
CHUNKS_IN_FLIGHT: Final = 3
"""A reader requests two chunks while it decodes a third one."""
FIRST_MEASUREMENTS: Final = 5
"""Number of measurements before the first request. One of them finds an empty queue, even if other tasks are
reading."""
SOON_S: Final = 0.02
MEASURE_INTERVAL_S: Final = 0.1
"""Time between two measurements: the first while a new task ramps up, or after a long latency; the second otherwise."""
_AIM: Final = 0.25
"""Position of the aim between the latency of an idle ZooKeeper and the limit."""
_NEAR_WINDOW: Final = 256
"""Largest number of nodes requested at a time from a near ZooKeeper. A server needs a few milliseconds for them, so
requests of others wait no longer than that."""
_RATE_MAX: Final = 120_000
"""A rate that no task can decode. It determines how many nodes must be in flight with a distant ZooKeeper."""
_WINDOW_MIN: Final = 1.0
_RECENT_MEASUREMENTS: Final = 5
"""Number of consecutive measurements that must all be above the aim: a queue delays each of them, a scheduler only
some."""
_FASTER: Final = 0.25
_SLOWER: Final = 0.5
"""Largest changes of the window by one decision, as a share: an increase at the idle latency, a decrease at or above
the limit."""
_STEP_NODES: Final = 1.0


class Feedback:
    """Adapts the requests of one task."""

    def __init__(self, factor: float, least_nodes_per_s: float = 0.0) -> None:
        """Only store the arguments.

        Args:
            factor: the limit as a multiple of the latency of an idle ZooKeeper.
            least_nodes_per_s: the rate that the task may always use.
        """
        self._factor = factor
        self.least_nodes_per_s = least_nodes_per_s
        """The rate that the task may always use."""
        self._idle_s = float("inf")
        self._recent: deque[float] = deque(maxlen=_RECENT_MEASUREMENTS)
        self._latency_s = 0.0
        self._window = float(NODES_PER_REQUEST_MIN)
        self._is_ramping = True

    def begin(self, latency_s: float) -> None:
        """Take a measurement that was made before the first request."""
        self._idle_s = min(self._idle_s, latency_s)
        self._latency_s = self._idle_s

    def seen(self, latency_s: float) -> None:
        """Take a measurement, and adapt the window."""
        self._idle_s = min(self._idle_s, latency_s)
        self._recent.append(latency_s)
        self._latency_s = min(self._recent)
        room_s = self.aim_s - self._idle_s
        if latency_s <= self.aim_s:
            share = 1.0 if self._is_ramping else _FASTER * (self.aim_s - latency_s) / room_s
            self._window = min(self.window_max, self._window * (1 + share) + _STEP_NODES)
            self._is_ramping = self._is_ramping and self._window < self.window_max
        elif len(self._recent) == _RECENT_MEASUREMENTS and self._latency_s > self.aim_s:
            share = min(1.0, (self._latency_s - self.aim_s) / (self.limit_s - self.aim_s))
            self._window = max(_WINDOW_MIN, self._window * (1 - _SLOWER * share))
            self._is_ramping = False
            self._recent.clear()  # the next decision uses only later measurements

    @property
    def limit_s(self) -> float:
        """The latency at which the task halves its requests."""
        return max(self._factor * self._idle_s, self._idle_s + SLACK_S)

    @property
    def aim_s(self) -> float:
        """The latency at which the task changes nothing."""
        return self._idle_s + _AIM * (self.limit_s - self._idle_s)

    @property
    def window_max(self) -> float:
        """Upper limit of ``window``."""
        return min(WINDOW_MAX_NODES, _NEAR_WINDOW + _RATE_MAX * self._idle_s)

    @property
    def window(self) -> float:
        """Largest number of nodes in flight. If it is less than one request, the task waits between requests."""
        return self._window

    @property
    def next_measurement_s(self) -> float:
        """Time until the next measurement."""
        is_late = bool(self._recent) and self._recent[-1] > self.aim_s
        return SOON_S if self._is_ramping or is_late else MEASURE_INTERVAL_S

    @property
    def nodes_per_s(self) -> float:
        """The rate of the task; 0: only the window limits it."""
        if self._window >= NODES_PER_REQUEST_MIN * CHUNKS_IN_FLIGHT or not self._latency_s:
            return 0.0
        return max(self.least_nodes_per_s, self._window / self._latency_s)
