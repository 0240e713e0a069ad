"""Pass callbacks from another thread to one event loop, in order and in batches.

A thousand answers that arrive while the loop is busy wake it once, not a thousand times.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class LoopBridge:
    """Runs callbacks from any thread on ``loop``, in the order in which they were pushed; ``push`` never blocks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_woken = False

    def push(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Run ``callback`` on the loop soon."""
        self._ready.append((callback, arguments))
        if not self._is_woken:
            self._wake()

    def _wake(self) -> None:
        # Set before waking and cleared before draining: a callback appended during a drain wakes the loop again.
        self._is_woken = True
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:  # the loop is closed, so no task waits for the answer
            self._ready.clear()

    def _drain(self) -> None:
        self._is_woken = False
        try:
            for _ in range(len(self._ready)):
                callback, arguments = self._ready.popleft()
                callback(*arguments)
        finally:  # an exception in a callback must not delay the next callbacks
            if self._ready and not self._is_woken:
                self._wake()


class BridgedResult:
    """Receives one result from any thread, with the interface expected by kazoo; the first result counts."""

    __slots__ = ("_bridge", "future")

    def __init__(self, bridge: LoopBridge, loop: asyncio.AbstractEventLoop) -> None:
        self._bridge = bridge
        self.future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def set(self, value: Any = None) -> None:
        """Complete with ``value``."""
        self._bridge.push(self._complete, value, None)

    def set_exception(self, error: BaseException) -> None:
        """Complete with ``error``."""
        self._bridge.push(self._complete, None, error)

    def _complete(self, value: Any, error: BaseException | None) -> None:
        if not self.future.done():
            self.future.set_result((value, error))
