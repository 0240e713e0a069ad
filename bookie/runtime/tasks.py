"""The way to start a background task: with a name, a strong reference and a log message if it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger(__name__)
_running: set[asyncio.Task[Any]] = set()


def guarded(name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start ``work`` as a task whose failure is logged with ``name``. The caller owns the task and cancels it."""
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


def _finished(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task failed", extra={"task": task.get_name()}, exc_info=error)
