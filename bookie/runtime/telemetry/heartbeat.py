"""A heartbeat of the event loop, read by other threads: the liveness probe checks whether the loop still runs.

It depends on nothing outside the process, so an outage of ZooKeeper causes no restarts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bookie.runtime.clock import Clock

INTERVAL_S: Final = 1.0
SILENCE_S_MAX: Final = 30.0
"""A loop that is blocked longer than this does not recover. Garbage collections and slow disks block it less long."""


class Heartbeat:
    """The time of the loop's last beat, readable from any thread."""

    def __init__(self, clock: Clock, on_beat: Callable[[], None] | None = None) -> None:
        """Begin as alive. ``on_beat`` is called on the loop at each beat and must not block or raise."""
        self._clock = clock
        self._on_beat = on_beat
        self._last_s = clock.monotonic_s()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self._last_s = self._clock.monotonic_s()
            if self._on_beat is not None:
                self._on_beat()
            await self._clock.sleep(INTERVAL_S)

    def problem(self) -> str:
        """Return why the loop counts as stuck, or an empty text if it does not. Callable from any thread."""
        silent_s = self._clock.monotonic_s() - self._last_s
        return f"the event loop has not answered for {silent_s:.0f} s" if silent_s > SILENCE_S_MAX else ""
