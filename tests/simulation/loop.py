"""The event loop of a history: virtual time, one thread, nothing from outside, and tasks that know their process."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import base_events
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, cast

START_S: Final = 1000.0
EPOCH_MS: Final = 1_700_000_000_000


class StuckError(AssertionError):
    """Nothing can ever happen again, or far too much happens: the history does not come to its end."""


class Process:
    """Whatever lives and dies together. Its tasks are known, so that a crash can end them all.

    Attributes:
        generation: counts its lives; an answer to an earlier life is nobody's.
        is_alive: whether it runs.
        held_until_s: it is frozen until then: what is sent to it, and what it sends, waits.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.is_alive = True
        self.held_until_s = 0.0
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 64

    def add(self, task: asyncio.Task[Any]) -> None:
        """Note a task of this process."""
        tasks = self._tasks
        tasks.append(task)
        if len(tasks) > self._prune_at:
            self._tasks = [kept for kept in tasks if not kept.done()]
            self._prune_at = 2 * len(self._tasks) + 64

    def die(self) -> None:
        """End every task, as SIGKILL would; whoever owns its connections has cut them already."""
        self.is_alive = False
        self.generation += 1
        tasks, self._tasks = self._tasks, []
        current = asyncio.current_task()
        for task in tasks:
            if task is not current:
                task.cancel()

    def run(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start ``work`` as a task of this process."""
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        task.add_done_callback(_report)
        return task


def _report(task: asyncio.Task[Any]) -> None:
    """A task of a process that fails is a bug of the code under test."""
    if not task.cancelled() and (error := task.exception()) is not None:
        text = f"task {task.get_name()} failed"
        asyncio.get_running_loop().call_exception_handler({"message": text, "exception": error})


CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class SimLoop(base_events.BaseEventLoop):
    """Runs what is ready and jumps to the next timer. First in, first out, as asyncio's own loop.

    Attributes:
        turns: how often it looked for something to do.
        turns_max: more of them are a history that never ends.
    """

    _scheduled: list[Any]
    _ready: deque[Any]
    _stopping: bool

    def __init__(self, turns_max: int = 400_000) -> None:
        super().__init__()
        self._now_s = START_S
        self._selector = self
        self.turns = 0
        self.turns_max = turns_max
        self.tasks: list[asyncio.Task[Any]] = []
        """Every task of the history, so that ending them needs no look at those of others."""
        self.set_task_factory(_task_of_process)

    def time(self) -> float:
        return self._now_s

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's, without its checks: this is called some ten thousand times in a history."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's, without its checks."""
        timer: Any = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return cast("asyncio.TimerHandle", timer)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is dropped when its time has come."""

    def _run_once(self) -> None:
        """One turn: what is due by now becomes ready, and everything that is ready runs once."""
        self.turns += 1
        if self.turns > self.turns_max:
            raise StuckError(f"not at its end after {self.turns_max} turns of the loop")
        scheduled, ready = self._scheduled, self._ready
        if not ready:
            while scheduled and scheduled[0]._cancelled:
                heapq.heappop(scheduled)._scheduled = False
            if not scheduled and not self._stopping:
                raise StuckError("nothing can ever happen again")
            if scheduled:
                self._now_s = max(self._now_s, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now_s:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def _task_of_process(
    loop: asyncio.AbstractEventLoop, work: Any, context: contextvars.Context | None = None
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    assert isinstance(loop, SimLoop)
    loop.tasks.append(task)
    process = CURRENT.get() if context is None else context.get(CURRENT)
    if process is not None:
        process.add(task)
    return task


class SimClock:
    """The loop's time, as one process sees it; its idea of the date may be wrong."""

    def __init__(self, loop: SimLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def monotonic_s(self) -> float:
        return self._loop.time()

    def epoch_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.skew_ms

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
