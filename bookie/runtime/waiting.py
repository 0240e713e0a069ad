"""Wait for several coroutines: for all of them, for the first to end, or until the first error; long work in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Generator, Iterable, Sequence
from typing import Any, TypeVar

from bookie.runtime.tasks import cancel

T = TypeVar("T")


async def in_turns(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end and return its result; other tasks of the loop run at each of its pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


async def all_or_first_error(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all of ``works`` concurrently. On the first error, cancel and await the others and raise this error alone.

    A ``TaskGroup`` would wrap the error in a group, but callers distinguish our errors by their class.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def all_begun_in_turn(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do the same as ``all_or_first_error``, but start each coroutine before taking the next from ``works``.

    The later coroutines are then created while the store already works on the earlier ones.
    """
    tasks: list[asyncio.Future[None]] = []
    try:
        for work in works:
            tasks.append(asyncio.ensure_future(work))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def first_to_end(*works: Coroutine[Any, Any, None]) -> None:
    """Wait until the first of ``works`` has ended, cancel the others, and raise the error of the first, if any."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _end(tasks)


async def _end(tasks: Iterable[asyncio.Future[None]]) -> None:
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
