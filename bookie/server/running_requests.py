"""The requests of a bookie that run to their end, even if their caller is cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from bookie.model.errors import BkhealError
from bookie.runtime.tasks import guarded
from bookie.wire.port import Failed, ReplyT, Status

_log = logging.getLogger(__name__)


class RunningRequests:
    """The requests in the storage of one bookie."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def count(self) -> int:
        """The number of running requests."""
        return len(self._running)

    async def run_uncancelled(self, work: Coroutine[Any, Any, ReplyT], failed: Failed[ReplyT]) -> ReplyT:
        """Run ``work`` to its end even if the caller is cancelled. An error becomes a reply with IO_ERROR."""
        task = guarded("bookie request", _answered(work, failed))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def drain(self, deadline_s: float) -> bool:
        """Wait for the running requests. Return whether they ended in time."""
        if not self._running:
            return True
        _, late = await asyncio.wait(self._running, timeout=deadline_s)
        return not late


async def _answered(work: Coroutine[Any, Any, ReplyT], failed: Failed[ReplyT]) -> ReplyT:
    try:
        return await work
    except BkhealError as error:
        _log.warning("request failed", extra={"error": str(error)})
        return failed(Status.IO_ERROR, detail=str(error))
    except Exception:  # noqa: BLE001 (task boundary: a bug in one request must answer it, and end no other)
        _log.exception("request failed unexpectedly")
        return failed(Status.IO_ERROR, detail="internal error of the bookie, see its log")
