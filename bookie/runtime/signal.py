"""A signal to wake waiting tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Signal:
    """A signal to wake all its waiters.

    It has no state: each waiter checks for changes itself and waits again.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}  # in order of arrival

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def fire(self) -> None:
        """Wake all present waiters."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def add(self, waiter: asyncio.Future[None]) -> None:
        """Wake ``waiter`` at the next ``fire``."""
        self._waiters[waiter] = None

    def discard(self, waiter: asyncio.Future[None]) -> None:
        """Remove ``waiter``, if it is still waiting."""
        self._waiters.pop(waiter, None)


@contextmanager
def waiting_for(*signals: Signal) -> Iterator[asyncio.Future[None]]:
    """Yield a future that the first of ``signals`` completes. Check the state inside, or a change may be missed."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for signal in signals:
        signal.add(waiter)
    try:
        yield waiter
    finally:
        for signal in signals:
            signal.discard(waiter)
        waiter.cancel()


class Requests:
    """Requests to repeat some work. A request that is made during the work is not missed."""

    __slots__ = ("_signal", "count")

    def __init__(self) -> None:
        self._signal = Signal()
        self.count = 0
        """The number of requests so far. Read it before the work begins."""

    def add(self) -> None:
        """Request the work again."""
        self.count += 1
        self._signal.fire()

    async def since(self, count: int) -> None:
        """Wait until there are more than ``count`` requests."""
        while self.count == count:
            with waiting_for(self._signal) as waiter:
                await waiter
