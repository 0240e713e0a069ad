"""An event loop with virtual time, so that tests of code that waits do not wait."""

from __future__ import annotations

import asyncio
import functools
import math
from asyncio import base_events
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class VirtualTimeLoop(base_events.BaseEventLoop):
    """A loop that runs ready callbacks and then jumps to the next timer; ``turns`` counts its turns."""

    _ready: Collection[asyncio.Handle]
    _scheduled: Sequence[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 1000.0
        self._selector = self
        self.turns = 0

    def time(self) -> float:
        return self._now_s

    def pass_time(self, seconds: float) -> None:
        """Let time pass while the process does not run."""
        self._now_s += seconds

    def next_change_s(self) -> float:
        """The earliest time at which anything but the running callback can happen."""
        if self._ready or not self._scheduled:
            return self._now_s
        return self._scheduled[0].when()

    def select(self, timeout: float | None) -> list[Any]:
        self.turns += 1
        if timeout is None:
            raise RuntimeError("nothing can ever happen again")
        self._now_s += timeout
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a coroutine test on its own loop with virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs))

    return run


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 600, every_s: float = 0.1) -> None:
    """Wait until the condition is true at one of the moments that are ``every_s`` apart.

    On virtual time, moments before which nothing has happened are left out.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds):
        while not await condition():
            steps = 1
            if isinstance(loop, VirtualTimeLoop):
                steps = max(1, math.ceil((loop.next_change_s() - loop.time()) / every_s))
            await asyncio.sleep(steps * every_s)


async def when(condition: Callable[[], bool], seconds: float = 600) -> None:
    """Wait as ``until`` does, for a condition that is not a coroutine."""

    async def holds() -> bool:
        return condition()

    await until(holds, seconds)
