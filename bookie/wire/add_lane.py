"""The order of the adds to one bookie (first come, first served), and the bound on their bytes in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AddLane:
    """Callers get their turns one by one; each one's bytes are reserved from its turn until ``leave``."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait until it is the caller's turn and ``size`` more bytes fit (anything fits into an empty lane).

        Turns follow the order of the calls. The bytes remain reserved after a successful block, and are released if the
        block fails.
        """
        async with self._turn:
            while self._bytes and self._bytes + size > self._bytes_max:
                self._freed.clear()
                await self._freed.wait()
            self._bytes += size
            try:
                yield
            except BaseException:
                self.leave(size)
                raise

    def leave(self, size: int) -> None:
        """Release the bytes of a completed add."""
        self._bytes -= size
        self._freed.set()
