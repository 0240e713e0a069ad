"""The running requests of one connection: their number and their tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from bookie.runtime.tasks import guarded
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.outgoing import OutgoingAnswers

_log = logging.getLogger(__name__)


class ConnectionRequests:
    """The requests of one connection in the storage.

    ``count`` is the number of requests that have begun and not ended. ``ended`` is called after each task. A failed
    task ends only its own connection.
    """

    def __init__(
        self, limits: ListenerLimits, out: OutgoingAnswers, ended: Callable[[], None], disconnect: Callable[[str], None]
    ) -> None:
        """Start without requests.

        Args:
            limits: bounds.
            out: the answers. No request begins while they are full.
            ended: called at the end of each task.
            disconnect: called with the reason if a request cannot be answered.
        """
        self._limits, self._out, self._ended, self._disconnect = limits, out, ended, disconnect
        self.count = 0

    @property
    def can_begin_group(self) -> bool:
        """Whether the bounds of the connection allow another group of requests."""
        return not self._out.is_full and self.count < self._limits.requests_max

    def run(self, name: str, count: int, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin ``count`` requests. ``work`` must call ``end`` with the same number, even if it fails."""
        self.count += count
        return guarded(name, self._run_to_end(work))

    def end(self, count: int) -> None:
        """Count requests as ended. To be called before their room is released, because others then begin."""
        self.count -= count

    async def _run_to_end(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001 (task boundary: a request without an answer ends its connection alone)
            _log.exception("request over Apache's protocol failed unexpectedly")
            self._disconnect("a request of the client could not be answered")
        finally:
            self._ended()
