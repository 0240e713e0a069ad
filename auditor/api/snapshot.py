"""A costly answer, kept for some seconds and asked for once however many want it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from bookie.runtime.clock import Clock

T = TypeVar("T")


class Snapshot(Generic[T]):
    """The last answer of ``ask``."""

    def __init__(self, ask: Callable[[], Awaitable[T]], kept_s: float, clock: Clock) -> None:
        self._ask = ask
        self._kept_s = kept_s
        self._clock = clock
        self._asking = asyncio.Lock()
        self._answer: tuple[float, T] | None = None

    async def get(self) -> T:
        """Return an answer no older than ``kept_s``. Raises what ``ask`` raises; an error is not kept."""
        async with self._asking:
            if self._answer is None or self._clock.monotonic_s() - self._answer[0] >= self._kept_s:
                self._answer = None  # two large answers at once would be twice the memory
                asked_s = self._clock.monotonic_s()
                self._answer = (asked_s, await self._ask())
            return self._answer[1]
