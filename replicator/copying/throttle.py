"""The two kinds of limits that the copies of a process share: bytes or requests per second, and bytes in memory."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from operator import itemgetter
from typing import Final

from bookie.runtime.clock import Clock

BURST_S: Final = 0.25
"""The seconds of unused rate that may accumulate. It is short, so that the rate also holds within any one second."""
DEBT_S_MAX: Final = 10.0
"""The longest wait that requests that do not wait themselves (``charge_without_waiting``) can cause for later ones."""
_OLDEST_TURN: Final = 4
_SLICE_S: Final = 0.5
"""The longest single sleep: a new rate takes effect after at most this time."""
_NAP_S: Final = 0.001
"""The shortest single sleep. A shorter one, which rounding can leave, might not advance the clock."""


class RankedLock:
    """A lock that waiting tasks enter by rank, the smallest first, and within a rank in the order of arrival.

    Each ``_OLDEST_TURN``-th of them is the one that waits for longest, so each enters in the end, whatever comes later.
    """

    def __init__(self, holders_max: int = 1) -> None:
        """Prepare; ``holders_max`` tasks may hold it at a time."""
        self._free = holders_max
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()
        self._admitted = 0

    @asynccontextmanager
    async def held(self, rank: int) -> AsyncIterator[None]:
        """Hold the lock while the context lasts."""
        if self._free:
            self._free -= 1
        else:
            entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (rank, next(self._arrivals), entered))
            try:
                await entered
            except asyncio.CancelledError:
                if entered.done() and not entered.cancelled():  # handed over just before the cancellation
                    self._admit_next()
                raise
        try:
            yield
        finally:
            self._admit_next()

    def _admit_next(self) -> None:
        while self._waiting:
            *_, entered = self._take_next()
            if not entered.done():
                self._admitted += 1
                entered.set_result(None)
                return
        self._free += 1

    def _take_next(self) -> tuple[int, int, asyncio.Future[None]]:
        if self._admitted % _OLDEST_TURN != _OLDEST_TURN - 1:
            return heapq.heappop(self._waiting)
        oldest = min(self._waiting, key=itemgetter(1))
        self._waiting.remove(oldest)
        heapq.heapify(self._waiting)
        return oldest


class Throttle:
    """A token bucket of bytes. The smallest rank is served first; safe to share between tasks of one loop.

    In any ``t`` seconds, at most ``rate * (t + BURST_S)`` bytes plus one request pass. A request larger than the bucket
    passes as soon as the bucket has no debt, and later requests wait until the debt that it leaves is paid.
    """

    def __init__(self, clock: Clock, bytes_per_second: int = 0) -> None:
        self._clock = clock
        self._rate = _checked(bytes_per_second)
        self._tokens = bytes_per_second * BURST_S
        self._filled_at_s = clock.monotonic_s()
        self._turn = RankedLock()
        self.waited_s = 0.0
        """The seconds during which a task waited for the rate. It grows by at most one per second."""

    @property
    def bytes_per_second(self) -> int:
        """The rate; 0 means unlimited."""
        return self._rate

    def set_rate(self, bytes_per_second: int) -> None:
        """Change the rate (0: unlimited). Waiting tasks apply it within half a second.

        A debt is paid at the new rate. A change to unlimited cancels it.

        Raises:
            ValueError: the rate is negative.
        """
        self._fill()
        self._rate = _checked(bytes_per_second)
        if self._rate == 0:
            self._tokens = 0.0

    async def take(self, size_bytes: int, rank: int = 0) -> None:
        """Wait until ``size_bytes`` more may pass. A cancelled call takes nothing."""
        if self._rate == 0:
            return
        async with self._turn.held(rank):
            while (wait_s := self.wait_s()) > 0:
                begun_s = self._clock.monotonic_s()
                await self._clock.sleep(sleep_slice_s(wait_s))
                self.waited_s += self._clock.monotonic_s() - begun_s
            if self._rate:
                self._tokens -= size_bytes

    def charge(self, size_bytes: int) -> None:
        """Correct an earlier ``take`` without waiting. A negative ``size_bytes`` returns a part of it."""
        if self._rate:
            self._tokens -= size_bytes

    def charge_without_waiting(self, size_bytes: int) -> None:
        """Take ``size_bytes`` without waiting. The debt stays within ``DEBT_S_MAX`` seconds plus this request."""
        if self._rate:
            least = -self._rate * DEBT_S_MAX - size_bytes
            self._tokens = max(self._tokens - size_bytes, min(self._tokens, least))

    def wait_s(self) -> float:
        """Return the seconds until a request may pass, if no other request passes before."""
        if self._rate == 0:
            return 0.0
        self._fill()
        return -self._tokens / self._rate if self._tokens < 0 else 0.0

    def _fill(self) -> None:
        now_s = self._clock.monotonic_s()
        earned = (now_s - self._filled_at_s) * self._rate
        self._tokens = min(self._tokens + earned, self._rate * BURST_S)
        self._filled_at_s = now_s


def sleep_slice_s(wait_s: float) -> float:
    """Return how long to sleep before the wait is computed again, because the rate may change during a long wait."""
    return max(_NAP_S, min(wait_s, _SLICE_S))


class HeldBytes:
    """A share of a budget. It can shrink while it is held."""

    def __init__(self, size_bytes: int) -> None:
        """Start with ``size_bytes``."""
        self.bytes = size_bytes

    def keep(self, size_bytes: int) -> int:
        """Keep at most ``size_bytes``, and return how many bytes are freed."""
        freed = max(0, self.bytes - size_bytes)
        self.bytes -= freed
        return freed


class ByteBudget:
    """A memory budget of ``limit_bytes``. The smallest rank is served first.

    A request for more than ``limit_bytes`` counts as ``limit_bytes``. A task holds one share at a time. It can return a
    part of it, but never requests more while it holds one, so tasks cannot deadlock.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._held = 0
        self._turn = RankedLock()
        self._freed = asyncio.Event()

    @property
    def held_bytes(self) -> int:
        """The bytes that are held now."""
        return self._held

    @asynccontextmanager
    async def hold(self, size_bytes: int, rank: int = 0) -> AsyncIterator[HeldBytes]:
        """Wait until ``size_bytes`` are free, and hold them while the context lasts."""
        size = min(size_bytes, self.limit_bytes)
        async with self._turn.held(rank):
            while self._held + size > self.limit_bytes:
                self._freed.clear()
                await self._freed.wait()
            self._held += size
        share = HeldBytes(size)
        try:
            yield share
        finally:
            self.reduce(share, 0)

    @contextmanager
    def try_hold(self, size_bytes: int) -> Iterator[bool]:
        """Hold ``size_bytes`` while the context lasts; yield False and hold nothing if it would exceed the limit."""
        if self._held + size_bytes > self.limit_bytes:
            yield False
            return
        self._held += size_bytes
        share = HeldBytes(size_bytes)
        try:
            yield True
        finally:
            self.reduce(share, 0)

    def reduce(self, share: HeldBytes, size_bytes: int) -> None:
        """Shrink a share to ``size_bytes``, if it is larger, and free the rest for waiting tasks."""
        self._held -= share.keep(size_bytes)
        self._freed.set()


def _checked(bytes_per_second: int) -> int:
    if bytes_per_second < 0:
        raise ValueError(f"bytes per second must be 0 (unlimited) or more, not {bytes_per_second}")
    return bytes_per_second
