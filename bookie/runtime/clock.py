"""The port for time, and the only code that reads the real clock.

Cores take a ``Clock`` (and a ``random.Random``) as an argument, so that they also run under virtual time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from typing_extensions import override

T = TypeVar("T")


class Clock(Protocol):
    """Time as a core sees it."""

    def monotonic_s(self) -> float:
        """Return seconds that never decrease; for deadlines and durations."""
        ...

    def epoch_ms(self) -> int:
        """Return milliseconds since 1970; for records read by people and other programs."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for ``seconds`` while other tasks run."""
        ...


class SystemClock(Clock):
    """The machine's clocks."""

    @override
    def monotonic_s(self) -> float:
        return time.monotonic()

    @override
    def epoch_ms(self) -> int:
        return time.time_ns() // 1_000_000

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def within(seconds: float, awaitable: Awaitable[T]) -> T:
    """Await ``awaitable`` for at most ``seconds`` of the loop's (possibly virtual) time.

    Raises:
        TimeoutError: the deadline passed; the awaitable was cancelled.
    """
    async with asyncio.timeout(seconds):
        return await awaitable
