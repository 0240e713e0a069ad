"""When a worker searches for repayable placement debts (``repayment``).

A worker that watches the tasks searches in the background, because a search among many debts takes long: listings and
repairs do not wait for it, and continue if it fails. A run with ``once`` searches before each listing, which then
contains the new marks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.runtime.retry import GrowingPause
from bookie.runtime.tasks import cancel, guarded
from replicator.knowledge.absence import Absences
from replicator.knowledge.store_refusals import REFUSED_PAUSE_S_MAX, STORE_PAUSE_S, StoreRefusals
from replicator.ports import RepairPorts
from replicator.queue.repayment import Repayment

_log = logging.getLogger(__name__)

_DEBTS: Final = "the placement debts"


class DebtSearch:
    """The searches of one worker."""

    def __init__(
        self, ports: RepairPorts, absences: Absences, refusals: StoreRefusals, on_marked: Callable[[], None]
    ) -> None:
        """Prepare. ``on_marked`` is called after a search in the background has marked a ledger."""
        self._clock = ports.clock
        self._repayment = Repayment(ports, absences)
        self._refusals = refusals
        self._on_marked = on_marked
        self._task: asyncio.Task[None] | None = None
        """The latest search in the background, including the pause after a failure."""
        self._pauses = GrowingPause(STORE_PAUSE_S, REFUSED_PAUSE_S_MAX)
        self.error: Exception | None = None
        """Why the last ``search`` failed; None if it succeeded."""

    @property
    def debts(self) -> int:
        """The number of debts at the last search."""
        return self._repayment.count

    def follow(self, *, is_watching: bool) -> None:
        """Start another search in the background if the worker watches, and its last search has ended.

        Raises:
            Exception: the last search ended with an unexpected error.
        """
        if self._task is not None and self._task.done():
            ended, self._task = self._task, None
            ended.result()
        if self._task is None and is_watching:
            self._task = guarded("placement debts", self._search_in_background())

    async def search(self) -> None:
        """Search now. A failure is recorded in ``error`` and not raised, because it must not delay repairs."""
        self.error = None
        try:
            await self._repayment.mark_movable()
        except (TransientError, OutcomeUnknownError, ConflictError, PermanentError) as error:
            _log.warning("search for placement debts failed", extra={"error": str(error)})
            self.error = error

    def forget(self) -> None:
        """Forget all observations, because a worker on standby sees no changes."""
        self._repayment.forget()
        self._refusals.clear(_DEBTS)

    async def stop(self) -> None:
        """End the search in the background."""
        await cancel(self._task)

    async def _search_in_background(self) -> None:
        try:
            if await self._repayment.mark_movable():
                self._on_marked()
        except (TransientError, OutcomeUnknownError, ConflictError) as error:
            _log.warning("search for placement debts failed, trying again", extra={"error": str(error)})
            await self._clock.sleep(STORE_PAUSE_S)
        except PermanentError as error:
            await self._refusals.pause(_DEBTS, error, self._pauses.next_pause_s())
        else:
            self._pauses.reset()
            self._refusals.clear(_DEBTS)
