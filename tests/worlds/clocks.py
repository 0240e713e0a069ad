"""The clocks of the tests: a manual one, which the test moves, and a virtual one with the time of an event loop."""

from __future__ import annotations

import asyncio
from typing import Final

from typing_extensions import override

from bookie.runtime.clock import Clock

EPOCH_MS: Final = 1_700_000_000_000
"""The date of both clocks when their time is 0."""


class ManualClock(Clock):
    """A clock whose time moves when the test sets ``now_s``.

    A sleep lasts until the test has moved the time far enough. With ``turns``, a sleep moves the time itself and ends
    after that many turns of the event loop.

    Attributes:
        sleepers: number of unfinished sleeps.
    """

    def __init__(self, start_s: float = 0.0, *, turns: int | None = None) -> None:
        self._now_s = start_s
        self._turns = turns
        self._moved = asyncio.Event()
        self.sleepers = 0

    @property
    def now_s(self) -> float:
        return self._now_s

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self._now_s = now_s
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    @override
    def monotonic_s(self) -> float:
        return self._now_s

    @override
    def epoch_ms(self) -> int:
        return EPOCH_MS + int(self._now_s * 1000)

    @override
    async def sleep(self, seconds: float) -> None:
        end_s = self._now_s + seconds
        if self._turns is not None:
            self.now_s = end_s
            for _ in range(self._turns):
                await asyncio.sleep(0)
            return
        self.sleepers += 1
        try:
            while self._now_s < end_s:
                await self._moved.wait()
        finally:
            self.sleepers -= 1


class VirtualClock(Clock):
    """The time of the running event loop, which is virtual in its tests.

    Attributes:
        skew_ms: how far the date is ahead of the true one; a test may change it at any time. The monotonic time never
            jumps.
    """

    def __init__(self, skew_ms: int = 0) -> None:
        self.skew_ms = skew_ms

    @override
    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    @override
    def epoch_ms(self) -> int:
        return EPOCH_MS + int(self.monotonic_s() * 1000) + self.skew_ms

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
