"""The way to start a background task: with a name, a strong reference and a log message if it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from bookie.model.errors import BkhealError, InvariantError

T = TypeVar("T")
_log = logging.getLogger(__name__)
_running: set[asyncio.Task[Any]] = set()


def guarded(name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start ``work`` as a task whose failure is logged with ``name``. The caller owns the task and cancels it.

    An error of the five families says in its text what failed, so it is logged without a traceback.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)  # the loop itself keeps only a weak reference
    task.add_done_callback(_finished)
    return task


async def cancel(task: asyncio.Task[Any] | None) -> None:
    """Cancel ``task`` and wait until it has ended. Its error, if any, is logged and not raised."""
    if task is None or task is asyncio.current_task():
        return
    if not task.done():
        task.cancel()
        await asyncio.wait([task])


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel each task and wait for its end, one after another.

    If the caller is cancelled during the wait, the rest is cancelled without a wait: a task that waits for its own
    children may be cancelled a second time, and no child may continue.
    """
    left = list(tasks)
    try:
        for task in left:
            await cancel(task)
    except asyncio.CancelledError:
        for task in left:
            if not task.cancelling():  # a second cancellation would interrupt its end
                task.cancel()
        raise


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Wait for the end of ``work``, even if the caller is cancelled, and return its result.

    ``work`` must have its own deadline. A cancellation is delivered at the caller's next wait.
    """
    caller, task = asyncio.current_task(), asyncio.ensure_future(work)
    assert caller is not None
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            caller.uncancel()
            is_cancelled = True
    if is_cancelled:
        caller.cancel()
    return task.result()


def _finished(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        is_expected = isinstance(error, BkhealError) and not isinstance(error, InvariantError)
        fields = {"task": task.get_name(), "error": str(error)}
        _log.error("task failed", extra=fields, exc_info=None if is_expected else error)
