"""A signal that wakes the tasks that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Signal:
    """Wakes all waiters.

    It carries no state: a waiter checks for changes itself, and waits again.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}  # in the order of their arrival

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def fire(self) -> None:
        """Wake everyone who waits now."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def add(self, waiter: asyncio.Future[None]) -> None:
        """Wake ``waiter`` as well at the next ``fire``."""
        self._waiters[waiter] = None

    def discard(self, waiter: asyncio.Future[None]) -> None:
        """Forget ``waiter``."""
        self._waiters.pop(waiter, None)


@contextmanager
def waiting_for(*signals: Signal) -> Iterator[asyncio.Future[None]]:
    """A future that the first of ``signals`` completes. Look at the state after entering, so that nothing is missed."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for signal in signals:
        signal.add(waiter)
    try:
        yield waiter
    finally:
        for signal in signals:
            signal.discard(waiter)
        waiter.cancel()
