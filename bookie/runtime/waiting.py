"""Wait for several coroutines: all, the first to end, or the first error. Run work in turns, or with a deadline."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Sequence,
)
from typing import Any, Final, TypeVar

from bookie.runtime.tasks import cancel

T = TypeVar("T")

STEPS: Final = 12
"""Number of steps of a wait; a pause of the process counts as one step at most."""


async def run_cooperatively(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end and return its result. Other tasks of the loop run after each ``yield``."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


async def paced(items: Iterable[T], size: int) -> AsyncIterator[T]:
    """Yield each of ``items``. Other tasks of the loop run after every ``size`` of them."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)


async def within_running_time(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, or cancel it after ``seconds`` during which this process ran.

    A process may be stopped (SIGSTOP, a paused machine). When it continues, its timers have expired, although the
    threads on which it waits were stopped as well. So a pause counts as one of ``STEPS`` steps at most.

    Raises:
        TimeoutError: ``work`` has not ended in time.
    """
    running = asyncio.ensure_future(work)
    try:
        for _ in range(STEPS):
            done, _ = await asyncio.wait([running], timeout=seconds / STEPS)
            if done:
                return running.result()
    finally:
        running.cancel()
    raise TimeoutError(f"no end within {seconds:g} s")


async def in_bounded_thread(places: asyncio.Semaphore, work: Callable[[], T]) -> T:
    """Run blocking ``work`` in a thread after one of ``places`` is free, and return its result.

    If the caller is cancelled, the thread continues, and its result or error is ignored. The place becomes free only
    after the thread has ended; otherwise callers with deadlines could start any number of threads.
    """
    await places.acquire()
    running = asyncio.ensure_future(asyncio.to_thread(work))

    def leave(ended: asyncio.Future[T]) -> None:
        places.release()
        if not ended.cancelled():
            ended.exception()  # asyncio would log an error that was never read

    running.add_done_callback(leave)
    await asyncio.wait([running])
    return running.result()


async def all_or_first_error(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all of ``works`` concurrently. On the first error, cancel and await the others, and raise that error.

    A ``TaskGroup`` would wrap the error in a group, but callers distinguish our errors by their class.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def all_started_in_order(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do the same as ``all_or_first_error``, but start each coroutine before taking the next from ``works``.

    So the store already works on the first coroutines while the later ones are created.
    """
    tasks: list[asyncio.Future[None]] = []
    try:
        for work in works:
            tasks.append(asyncio.ensure_future(work))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def results_as_completed(works: Iterable[Coroutine[Any, Any, T]], at_once: int) -> AsyncGenerator[T, None]:
    """Run up to ``at_once`` of ``works`` at a time, in their order, and yield each result as soon as it is available.

    The next coroutine is taken from ``works`` when one has ended, even while the caller uses a result. At most
    ``at_once`` results wait for the caller; no coroutine starts beyond this bound. If the caller closes the generator
    (``contextlib.aclosing``), the running coroutines are cancelled and awaited.

    Raises:
        Exception: the error of one of ``works``, after the results before it; the others are cancelled and awaited.
    """
    waiting = iter(works)
    begun = list(itertools.islice(waiting, 2)) if at_once > 1 else []
    if at_once > 1 and len(begun) < 2:  # the usual case, which needs no task
        for work in begun:
            yield await work
        return
    waiting = itertools.chain(begun, waiting)
    results: asyncio.Queue[T] = asyncio.Queue(at_once)

    async def run() -> None:
        for work in waiting:
            await results.put(await work)

    tasks: list[asyncio.Task[Any]] = [asyncio.ensure_future(run()) for _ in range(at_once)]
    runners = tuple(tasks)
    try:
        while True:
            running = [runner for runner in runners if not runner.done()]
            if results.empty():
                for runner in runners:
                    if runner.done():
                        runner.result()
                if not running:
                    return
            tasks = [*running, getting := asyncio.ensure_future(results.get())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                yield getting.result()
            else:
                getting.cancel()
    finally:
        await _end(tasks)
        for work in begun:
            work.close()  # if no runner has taken it


async def first_to_end(*works: Coroutine[Any, Any, None]) -> None:
    """Wait until the first of ``works`` has ended, cancel the others, and raise the error of the first, if any."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _end(tasks)


async def _end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(events: Sequence[Coroutine[Any, Any, Any]], work: Collection[asyncio.Task[Any]] = ()) -> None:
    """Return when one of ``events`` or ``work`` has completed.

    The remaining events are cancelled. The tasks of ``work`` continue, and their results and errors are ignored.

    Raises:
        Exception: the error of an event.
    """
    # Not guarded: the tasks end with this call, and their errors are raised to the caller.
    waits = [asyncio.create_task(event) for event in events]
    try:
        await asyncio.wait([*waits, *work], return_when=asyncio.FIRST_COMPLETED)
        happened = [wait for wait in waits if wait.done()]
    finally:
        for wait in waits:
            await cancel(wait)
    for wait in happened:
        wait.result()


async def all_completed(work: Collection[asyncio.Task[Any]]) -> None:
    """Return when every task has completed, with any result."""
    if work:
        await asyncio.wait(list(work))
