"""How fast a process copies: its own rate, its share of the cluster's limits, and a lower rate for slow bookies.

The invariant: a request of a copy is sent only after all limits allow it, and every attempt counts. The limits of the
cluster are divided by the number of copying workers (``worker_share``), so all workers together stay within them.
Copies wait until the process has its share (``SharedLimits``).

Copies of ledgers with a single copy left have a guaranteed rate, the floor. Each of their requests is sent as soon as
either the floor or all other limits allow it, so these copies get at least the floor, even if it is higher than another
limit. They still count against the other limits, so other copies wait longer, for a bounded time after the last one.

The rate of a bookie is reduced if its requests take longer than the profile allows. Once a second, the rate falls to
70 % of the last measured rate, but never below a small minimum, so every copy ends. Once requests are quick again, the
rate grows by a quarter each second. The reduction ends at twice the rate at which the bookie became slow.

Memory is bounded: the rates of at most 1,000 bookies are kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from bookie.metadata.tasks.copy_limits import CopyLimits, CopyProfile
from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock
from bookie.wire.port import AddBatch, AddReply, ReadReply, ReplyT, Request, Transport
from bookie.wire.requests import Read
from replicator.copying.loads import BookieLoads
from replicator.copying.throttle import Throttle, sleep_slice_s

CRITICAL_RANK: Final = 1
"""The rank of ledgers with a single copy left of some entry (``replicator.queue.ordering``)."""
SLOW_S: Final = {CopyProfile.CLIENT_FIRST: 0.05, CopyProfile.BALANCED: 0.25, CopyProfile.RECOVERY_FIRST: 0.0}
"""The average seconds per copy request above which the rate of its bookie is reduced; 0: never. The time that the
bytes of the request need at ``IDLE_BOOKIE_BYTES_PER_SECOND`` is subtracted before."""
IDLE_BOOKIE_BYTES_PER_SECOND: Final = 32 << 20
"""The assumed speed of an idle bookie, so that it does not appear slow because of large requests: one of several MiB
takes tens of milliseconds on its network and disk."""
SLOWED_BYTES_PER_SECOND_MIN: Final = 256 << 10
"""The lowest rate between this process and a slow bookie."""
DECISION_S: Final = 1.0
"""The time between two changes of a bookie's rate."""
_IDLE_S: Final = 30.0
"""The longest time without a request that a measurement may include; after a longer one, it starts again."""
_SLOWER: Final = 0.7
_FASTER: Final = 1.25
_BOOKIES_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The limits of one process. 0: no limit."""

    bytes_per_second: int = 0
    requests_per_second: int = 0
    bookie_in_bytes_per_second: int = 0
    bookie_out_bytes_per_second: int = 0
    critical_bytes_per_second: int = 0
    slow_s: float = 0.0
    """The average seconds per request above which a bookie's rate is reduced, as in ``SLOW_S``; 0: never."""


UNLIMITED: Final = Rates()


def worker_share(limits: CopyLimits, workers: int) -> Rates:
    """Return the share of ``limits`` for each of ``workers`` workers.

    If a limit is lower than the number of workers, each gets one unit per second, so copying never stops entirely.
    """

    def part(limit: int) -> int:
        return max(1, limit // workers) if limit else 0

    return Rates(
        bytes_per_second=part(limits.bytes_per_second),
        requests_per_second=part(limits.requests_per_second),
        bookie_in_bytes_per_second=part(limits.bookie_in_bytes_per_second),
        bookie_out_bytes_per_second=part(limits.bookie_out_bytes_per_second),
        critical_bytes_per_second=part(limits.critical_bytes_per_second),
        slow_s=SLOW_S[limits.profile],
    )


class _Direction:
    """The traffic to one bookie, or from it, with its limits."""

    def __init__(self, clock: Clock) -> None:
        self.throttle = Throttle(clock)
        self._clock = clock
        self._limit = 0
        self._slowed = 0
        """The reduced rate because of the bookie's latency; 0: not reduced."""
        self._is_quick_above = 0
        """The reduction ends when the reduced rate has grown to this value."""
        self._noted_s = self._since_s = clock.monotonic_s()
        self._bytes = self._requests = 0
        self._seconds = 0.0

    def limit(self, bytes_per_second: int) -> None:
        """Set the limit that follows from the operator's limits; 0: none."""
        self._limit = bytes_per_second
        self._apply()

    def note(self, size_bytes: int, seconds: float, slow_s: float) -> None:
        """Record a request that took ``seconds``, and adjust the rate once a second."""
        now_s = self._clock.monotonic_s()
        if now_s - seconds - self._noted_s > _IDLE_S:
            self._restart(now_s - seconds)
        self._noted_s = now_s
        self._bytes += size_bytes
        self._requests += 1
        self._seconds += seconds
        span_s = now_s - self._since_s
        if span_s < DECISION_S:
            return
        bytes_s = self._bytes / self._requests / IDLE_BOOKIE_BYTES_PER_SECOND
        self._decide(self._bytes / span_s, self._seconds / self._requests - bytes_s, slow_s)
        self._restart(now_s)

    def _restart(self, now_s: float) -> None:
        self._since_s, self._bytes, self._requests, self._seconds = now_s, 0, 0, 0.0

    def _decide(self, bytes_per_second: float, mean_s: float, slow_s: float) -> None:
        """Adjust the rate. ``mean_s`` is the average time per request, without the time for its bytes."""
        if slow_s and mean_s > slow_s:
            reached = min(bytes_per_second, self._slowed or bytes_per_second)
            self._is_quick_above = max(self._is_quick_above, int(2 * reached))
            self._slowed = max(SLOWED_BYTES_PER_SECOND_MIN, int(_SLOWER * reached))
        elif self._slowed:
            self._slowed = int(_FASTER * self._slowed)
            if not slow_s or self._slowed >= self._is_quick_above:
                self._slowed = self._is_quick_above = 0
        self._apply()

    def _apply(self) -> None:
        rate = _lower_limit(self._limit, self._slowed)
        if rate != self.throttle.bytes_per_second:
            self.throttle.set_rate(rate)


class CopyPace:
    """The limits of one process's copies. One instance per process."""

    def __init__(self, clock: Clock, bytes_per_second: int = 0) -> None:
        """Start with the process's own rate (0: none) and no limits of the cluster."""
        self._clock = clock
        self._own = bytes_per_second
        self._rates = UNLIMITED
        self._adds = Throttle(clock, bytes_per_second)
        self._reads = Throttle(clock, bytes_per_second)
        self._requests = Throttle(clock)
        self._critical_adds = Throttle(clock)
        self._critical_reads = Throttle(clock)
        self._in: dict[BookieId, _Direction] = {}
        self._out: dict[BookieId, _Direction] = {}
        self._is_open = asyncio.Event()
        self._is_open.set()
        self.wanted = asyncio.Event()
        """Set when a copy is about to send a request; cleared by ``SharedLimits``."""
        self._waiting = 0
        self._sleeping = 0
        self._slept_since_s = self._slept_s = 0.0
        self.loads = BookieLoads(clock)
        """The load of each bookie as this process sees it."""

    @property
    def bytes_per_second(self) -> int:
        """The rate of this process, in bytes per second sent to targets; 0: no limit."""
        return self._adds.bytes_per_second

    @property
    def waited_s(self) -> float:
        """The seconds during which at least one copy waited for a limit. It grows by at most one per second."""
        return max(self._adds.waited_s, self._reads.waited_s, self._requests.waited_s, self._slept_s)

    @property
    def is_used(self) -> bool:
        """Whether a request waits, or has come after ``wanted`` was cleared."""
        return self._waiting > 0 or self.wanted.is_set()

    def set_rate(self, bytes_per_second: int) -> None:
        """Change the process's own rate (0: none).

        Raises:
            ValueError: the rate is negative.
        """
        if bytes_per_second < 0:
            raise ValueError(f"bytes per second must be 0 (unlimited) or more, not {bytes_per_second}")
        self._own = bytes_per_second
        self._apply()

    def set_share(self, rates: Rates) -> None:
        """Set this process's share of the cluster's limits. It applies to waiting copies too."""
        self._rates = rates
        self._apply()
        self._is_open.set()

    def set_share_if_closed(self, rates: Rates) -> None:
        """Set this process's share if requests wait for one; otherwise the present share stays."""
        if not self._is_open.is_set():
            self.set_share(rates)

    def close(self) -> None:
        """Make all requests wait until the next ``set_share``."""
        self._is_open.clear()

    async def before_add(self, bookie: BookieId, size_bytes: int, rank: int) -> None:
        """Wait until ``size_bytes`` may be sent to ``bookie``. Smaller ranks are served first."""
        await self._pass(self._adds, self._critical_adds, self._direction(self._in, bookie), size_bytes, rank)

    async def before_read(self, bookie: BookieId, size_bytes: int, rank: int) -> None:
        """Wait until about ``size_bytes`` may be read from ``bookie``; ``was_read`` corrects the size afterwards."""
        await self._pass(self._reads, self._critical_reads, self._direction(self._out, bookie), size_bytes, rank)

    def added(self, bookie: BookieId, size_bytes: int, seconds: float) -> None:
        """Record the duration of an add, for every outcome."""
        self._direction(self._in, bookie).note(size_bytes, seconds, self._rates.slow_s)

    def record_pulled_bytes(self, bookie: BookieId, expected_bytes: int, size_bytes: int, seconds: float) -> None:
        """Record the bytes that a bookie pulled, and correct the ``expected_bytes`` passed to ``before_add``."""
        for throttle in (self._adds, self._direction(self._in, bookie).throttle):
            throttle.charge(size_bytes - expected_bytes)
        self.added(bookie, size_bytes, seconds)

    def was_read(self, bookie: BookieId, expected_bytes: int, size_bytes: int, seconds: float) -> None:
        """Record the size and duration of a read, and correct the ``expected_bytes`` passed to ``before_read``."""
        direction = self._direction(self._out, bookie)
        for throttle in (self._reads, direction.throttle):
            throttle.charge(size_bytes - expected_bytes)
        direction.note(size_bytes, seconds, self._rates.slow_s)

    async def _pass(
        self, throttle: Throttle, critical: Throttle, direction: _Direction, size_bytes: int, rank: int
    ) -> None:
        self._waiting += 1
        self.wanted.set()
        try:
            await self._is_open.wait()
            await self._pass_limits(throttle, critical, direction, size_bytes, rank)
        finally:
            self._waiting -= 1

    async def _pass_limits(
        self, throttle: Throttle, critical: Throttle, direction: _Direction, size_bytes: int, rank: int
    ) -> None:
        limits = ((throttle, size_bytes), (direction.throttle, size_bytes), (self._requests, 1))
        while rank == CRITICAL_RANK and critical.bytes_per_second:
            floor_s, limits_s = critical.wait_s(), max(each.wait_s() for each, _ in limits)
            if floor_s > 0 and limits_s > 0:
                await self._sleep(sleep_slice_s(min(floor_s, limits_s)))
                continue
            if floor_s <= 0:
                critical.charge(size_bytes)
            for each, size in limits:
                each.charge_without_waiting(size)
            return
        await self._requests.take(1, rank)
        await direction.throttle.take(size_bytes, rank)
        await throttle.take(size_bytes, rank)

    async def _sleep(self, pause_s: float) -> None:
        """Sleep. The time of requests that sleep together is counted once."""
        if not self._sleeping:
            self._slept_since_s = self._clock.monotonic_s()
        self._sleeping += 1
        try:
            await self._clock.sleep(pause_s)
        finally:
            self._sleeping -= 1
            now_s = self._clock.monotonic_s()
            self._slept_s += now_s - self._slept_since_s
            self._slept_since_s = now_s

    def _direction(self, directions: dict[BookieId, _Direction], bookie: BookieId) -> _Direction:
        if (direction := directions.get(bookie)) is None:
            if len(directions) >= _BOOKIES_MAX:
                del directions[next(iter(directions))]
            direction = directions[bookie] = _Direction(self._clock)
            direction.limit(self._limit_of(directions))
        return direction

    def _limit_of(self, directions: dict[BookieId, _Direction]) -> int:
        is_in = directions is self._in
        return self._rates.bookie_in_bytes_per_second if is_in else self._rates.bookie_out_bytes_per_second

    def _apply(self) -> None:
        rate = _lower_limit(self._own, self._rates.bytes_per_second)
        self._adds.set_rate(rate)
        self._reads.set_rate(rate)
        self._requests.set_rate(self._rates.requests_per_second)
        self._critical_adds.set_rate(self._rates.critical_bytes_per_second)
        self._critical_reads.set_rate(self._rates.critical_bytes_per_second)
        for directions in (self._in, self._out):
            for direction in directions.values():
                direction.limit(self._limit_of(directions))


class PacedReads(Transport):
    """A transport whose reads wait for the limits of a ``CopyPace``. For the copies of one ledger."""

    def __init__(self, inner: Transport, pace: CopyPace, clock: Clock, rank: int) -> None:
        self._inner = inner
        self._pace = pace
        self._clock = clock
        self._rank = rank
        self.entry_bytes = 1
        """The expected size of an entry. The difference to the true size is charged after the read."""

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        return await self._inner.add(bookie, batch, timeout_s)

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        count = len(request.entry_ids) if isinstance(request, Read) else 0
        if not count:
            return await self._inner.ask(bookie, request, timeout_s)
        expected_bytes = count * self.entry_bytes
        await self._pace.before_read(bookie, expected_bytes, self._rank)
        asked_s = self._clock.monotonic_s()
        with self._pace.loads.read(bookie):
            reply = await self._inner.ask(bookie, request, timeout_s)
        self._pace.was_read(bookie, expected_bytes, _size_bytes(reply), self._clock.monotonic_s() - asked_s)
        return reply

    @override
    async def close(self) -> None:
        await self._inner.close()


def _size_bytes(reply: object) -> int:
    return sum([len(result.packet) for result in reply.results]) if isinstance(reply, ReadReply) else 0


def _lower_limit(one: int, other: int) -> int:
    """Return the smaller of two limits; 0 means no limit."""
    return min(one, other) if one and other else one or other
