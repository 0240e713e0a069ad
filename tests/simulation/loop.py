"""The event loop of a history: virtual time, one thread, no external events; each task belongs to a process."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import types
from asyncio import base_events
from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any, Final, cast

START_S: Final = 1000.0


class StuckError(AssertionError):
    """The history does not end: no event is left, or there are far too many."""


class Process:
    """A process of the simulation. It knows its tasks, so that a crash can end them.

    Attributes:
        generation: counts its lives. Answers to an earlier life are dropped.
        is_alive: whether it runs.
        held_until_s: the process is frozen until then: messages to it and from it wait.
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
        """End every task, as SIGKILL would. The caller has already cut the connections."""
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
    """Report a failed task of a process, which is a bug of the code under test."""
    if not task.cancelled() and (error := task.exception()) is not None:
        text = f"task {task.get_name()} failed"
        asyncio.get_running_loop().call_exception_handler({"message": text, "exception": error})


CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class _Soon(asyncio.Handle):
    """A handle like asyncio's, without the fields of the debug mode. A history creates tens of thousands of them."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, context: contextvars.Context | None) -> None:
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._context = contextvars.copy_context() if context is None else context

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, ()


class _Timer(asyncio.TimerHandle):
    """A timer like asyncio's, without the fields of the debug mode."""

    __slots__ = ()

    def __init__(self, when: float, callback: Any, args: Any, context: contextvars.Context | None) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._context = contextvars.copy_context() if context is None else context

    def cancel(self) -> None:
        """Cancel the timer. The loop drops it at its time."""
        self._cancelled = True
        self._callback, self._args = None, ()


TURNS_MAX: Final = 500_000
"""The longest of the fixed histories and of those that failed before has 55,000 turns."""


class SimLoop(base_events.BaseEventLoop):
    """Runs the ready callbacks and jumps to the next timer. First in, first out, like asyncio's own loop.

    Attributes:
        turns: the number of turns so far.
        turns_max: a history with more turns counts as endless.
    """

    _scheduled: list[tuple[float, int, Any]]
    _ready: deque[Any]
    _stopping: bool

    def __init__(self, turns_max: int = TURNS_MAX) -> None:
        super().__init__()
        self._now_s = START_S
        self._selector = self
        self._timers = 0
        self.turns = 0
        self.turns_max = turns_max
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks of the history, so that they can be ended without other tasks."""

    def time(self) -> float:
        return self._now_s

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def create_task(
        self, coro: Any, *, name: object = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        """Create a task as asyncio does, and register it with its process."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=cast("str | None", name), context=context)
        self.tasks.append(task)
        process = CURRENT.get() if context is None else context.get(CURRENT)
        if process is not None:
            process.add(task)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Do what asyncio does, without its checks: this is called tens of thousands of times in a history."""
        handle = _Soon(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Do what asyncio does, without its checks."""
        return self._at(self._now_s + delay, callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Do what asyncio does, without its checks."""
        return self._at(when, callback, args, context)

    def _at(self, when: float, callback: Any, args: Any, context: contextvars.Context | None) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, context)
        self._timers += 1
        heapq.heappush(self._scheduled, (when, self._timers, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is dropped when it is due."""

    def _run_once(self) -> None:
        """Run turns until the loop is stopped. In each, due timers become ready, and all ready callbacks run once."""
        scheduled, ready, pop = self._scheduled, self._ready, heapq.heappop
        while True:
            self.turns += 1
            if self.turns > self.turns_max:
                raise StuckError(f"not at its end after {self.turns_max} turns of the loop")
            if not ready:
                while scheduled and scheduled[0][2]._cancelled:
                    pop(scheduled)
                if scheduled:
                    self._now_s = max(self._now_s, scheduled[0][0])
                elif not self._stopping:
                    raise StuckError("no event is scheduled any more")
            now_s = self._now_s
            while scheduled and scheduled[0][0] <= now_s:
                ready.append(pop(scheduled)[2])
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    try:
                        handle._context.run(handle._callback, *handle._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # noqa: BLE001 as asyncio's own handle does
                        self.call_exception_handler({"message": "a callback failed", "exception": error})
            if self._stopping:
                return

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


@types.coroutine
def yield_control() -> Generator[None, None, None]:
    """Let all other ready callbacks run first: ``asyncio.sleep(0)`` without its checks."""
    yield
