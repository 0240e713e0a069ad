"""A rate limit for requests: one token bucket per client, for a bounded number of clients."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from bookie.runtime.clock import Clock

_BURST_FACTOR: Final = 2.0
"""Allows a page to request several documents at once without delay."""


class RateLimit:
    """Token buckets that refill at ``rate`` requests per second and hold the requests of two seconds, at least one."""

    def __init__(self, rate: float, clients_max: int, clock: Clock) -> None:
        self.set_rate(rate)
        self._clients_max = clients_max
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Remaining requests of each client and the time of that count; the least recently seen client comes first."""

    def set_rate(self, rate: float) -> None:
        """Change the rate of every client, from its next request on."""
        self._rate = rate
        self._burst = max(1.0, rate * _BURST_FACTOR)

    def wait_s(self, client: str) -> float:
        """Count one request of ``client``. Return 0 if it is admitted, else the seconds until the next one is."""
        now_s = self._clock.monotonic_s()
        left, seen_s = self._buckets.pop(client, (self._burst, now_s))
        left = min(self._burst, left + (now_s - seen_s) * self._rate)
        is_admitted = left >= 1.0
        self._buckets[client] = (left - 1.0 if is_admitted else left, now_s)
        while len(self._buckets) > self._clients_max:
            self._buckets.popitem(last=False)
        return 0.0 if is_admitted else (1.0 - left) / self._rate
