"""Requests that were begun: each runs to its end, whoever stops waiting for it, and is answered whatever happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from bookie.model.errors import BkhealError
from bookie.runtime.tasks import guarded
from bookie.wire.port import Status

_log = logging.getLogger(__name__)

Reply = TypeVar("Reply")


class RunningRequests:
    """See the module docstring."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def to_the_end(self, work: Coroutine[Any, Any, Reply], failed: Callable[[Status, str], Reply]) -> Reply:
        """Run ``work`` so that a caller who is cancelled does not stop it half-way; what it raises becomes IO_ERROR."""
        task = guarded("bookie request", _answered(work, failed))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def drain(self, deadline_s: float) -> bool:
        """Wait for those that run now; whether they ended in time."""
        if not self._running:
            return True
        _, late = await asyncio.wait(self._running, timeout=deadline_s)
        return not late


async def _answered(work: Coroutine[Any, Any, Reply], failed: Callable[[Status, str], Reply]) -> Reply:
    try:
        return await work
    except BkhealError as error:
        _log.warning("request failed", extra={"error": str(error)})
        return failed(Status.IO_ERROR, str(error))
    except Exception:  # noqa: BLE001 (task boundary: a bug in one request must answer it, and end no other)
        _log.exception("request failed unexpectedly")
        return failed(Status.IO_ERROR, "internal error of the bookie, see its log")
