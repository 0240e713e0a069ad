"""The events of a history, as a checksum that is equal for two runs of a seed, and as readable lines on request."""

from __future__ import annotations

import asyncio
import zlib

from tests.simulation.loop import START_S


class Trace:
    """Events of one history in their order.

    Attributes:
        digest: rolling checksum over every event.
        lines: readable events; empty unless recording.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_recording: bool = False) -> None:
        self._loop = loop
        self.is_recording = is_recording
        self.digest = 0
        self.count = 0
        self.lines: list[str] = []

    def event(self, who: str, what: str) -> None:
        """Record that ``what`` happened now at ``who``."""
        now_s = self._loop.time()
        text = f"{now_s - START_S:.6f} {who} {what}"
        self.digest = zlib.crc32(text.encode(), self.digest)
        self.count += 1
        if self.is_recording:
            self.detail(who, what)

    def detail(self, who: str, what: str) -> None:
        """Add a readable line without an event. It does not change the checksum."""
        self.lines.append(f"{self._loop.time() - START_S:12.6f}  {who:<12} {what}")
