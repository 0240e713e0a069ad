"""Clocks for tests whose time passes by sleeping alone."""

from __future__ import annotations

import asyncio


class SteppingClock:
    """Each sleep is over at once and moves the time; others get ``turns`` turns of the loop meanwhile."""

    def __init__(self, turns: int = 0, start_s: float = 0.0) -> None:
        self.now_s = start_s
        self._turns = turns

    def monotonic_s(self) -> float:
        return self.now_s

    def epoch_ms(self) -> int:
        return int(self.now_s * 1000)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for _ in range(self._turns):
            await asyncio.sleep(0)
