"""A pause between two passes, which a request can end early."""

from __future__ import annotations

import asyncio

from bookie.runtime.clock import Clock
from bookie.runtime.waiting import first_of


class Pause:
    """The pauses of one task."""

    def __init__(self, clock: Clock) -> None:
        """Begin without a request."""
        self._clock = clock
        self._asked = asyncio.Event()

    def end(self) -> None:
        """End the current pause, or the next one."""
        self._asked.set()

    async def rest(self, seconds: float) -> None:
        """Wait for ``seconds``, or until ``end`` is called."""
        if not self._asked.is_set():
            await first_of([self._clock.sleep(seconds), self._asked.wait()])
        self._asked.clear()
