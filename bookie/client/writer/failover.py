"""The handling of bookies that a writer gave up: change the ensemble, or continue with the others and retry later.

- A change is due if an entry waits for a failed position. If delayed changes were requested, it is due if an entry can
  never reach ``Qa`` without one, or if a bookie is read-only. Nothing is acknowledged until it is complete.
- If no replacement is left and each write set still has ``Qa`` members, the writer continues with those. After growing
  pauses it looks again for a spare bookie, and for former members that are back with the same disks.
- Bookies that lack a confirmed entry are marked for repair while the ledger is still written: after the failure, again
  when they are used again or replaced, because a repair may have ended before that, and again at the close.
- In every other case the writer fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol

from bookie.client.errors import TooManyEnsembleChangesError
from bookie.client.options import WriterOptions
from bookie.client.ports import ClientPorts
from bookie.client.writer.ensemble_change import EnsembleChange
from bookie.client.writer.state import Lane, WriterState
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.errors import BkhealError, TransientError
from bookie.model.ids import BookieId, EntryId
from bookie.wire.port import Status

_log: Final = logging.getLogger(__name__)

_Waiter = asyncio.Future[EntryId]

_SERIES_PAUSES: Final = 2
"""A failure after this many of the longest pauses without one begins a new series, with the first pause. More than one,
because a bookie that hangs fails again only some time after a pause."""


_PERMANENT_STATUSES: Final = (Status.FENCED, Status.LIMBO)
"""The refusals that no later add of the same writer can change. LIMBO: the bookie may have lost a fence."""
_WIPED_STATUSES: Final = (Status.WRONG_INCARNATION, Status.LIMBO)
"""The refusals of a bookie that may have lost what it acknowledged."""


class FailingPipeline(Protocol):
    """The part of the pipeline that a failover changes."""

    @property
    def error(self) -> BkhealError | None:
        """The error with which the pipeline failed, if it did."""
        ...

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in the background until it ends or the pipeline is stopped."""
        ...

    def fail(self, error: BkhealError) -> None:
        """Fail the writer with ``error``."""
        ...

    def resume(self) -> None:
        """Acknowledge and send everything possible after a change."""
        ...


class Failover:
    """Handles the failures of the bookies of a writer.

    Attributes:
        ledger: the metadata as last stored or read.
    """

    def __init__(
        self,
        ports: ClientPorts,
        state: WriterState[_Waiter],
        ledger: Versioned,
        options: WriterOptions,
        pipeline: FailingPipeline,
    ) -> None:
        self.ledger = ledger
        self._ports = ports
        self._state = state
        self._pipeline = pipeline
        self._is_delayed = options.is_ensemble_change_delayed
        self._changes_left = options.ensemble_changes_max
        self._change: asyncio.Task[None] | None = None
        self._failed_at_s: dict[BookieId, float] = {}
        self._reasons: dict[BookieId, str] = {}
        self._refusing: set[BookieId] = set()
        """Bookies that refused the ledger permanently (R160)."""
        self._retry_at_s = 0.0
        self._retry_pause_s = ports.settings.degraded_retry_s
        self._marked: set[BookieId] = set()
        """Bookies that were marked, or are being marked, since they failed."""
        self._marking: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a change is under way."""
        return self._change is not None

    def fail_lane(self, lane: Lane[_Waiter], status: Status, reason: str = "") -> None:
        """Stop using the lane's bookie; call ``handle_failures`` afterwards.

        ``reason`` appears in the error if the writer fails.
        """
        extra = {"ledger_id": self.ledger.ledger_id, "bookie_id": lane.bookie, "status": status.name, "reason": reason}
        _log.info("writer stops using a bookie", extra=extra)
        now_s, settings = self._ports.clock.monotonic_s(), self._ports.settings
        if now_s - max(self._failed_at_s.values(), default=now_s) > _SERIES_PAUSES * settings.degraded_retry_max_s:
            self._retry_pause_s = settings.degraded_retry_s
        self._failed_at_s[lane.bookie] = now_s
        self._reasons[lane.bookie] = reason
        if status in _PERMANENT_STATUSES:
            self._refusing.add(lane.bookie)
        is_change_due = status is Status.READ_ONLY or status in _PERMANENT_STATUSES
        self._state.fail(lane, is_wiped=status in _WIPED_STATUSES, is_change_due=is_change_due)
        if self._state.is_patient and self._retry_at_s <= now_s:
            self._retry_later()

    def fail_healthy_lane(self) -> None:
        """For simulations: give up a healthy bookie, if the ledger can do without it and changes are unlimited."""
        state, metadata = self._state, self.ledger.metadata
        can_do_without = not state.has_failed_lanes and metadata.write_quorum > metadata.ack_quorum
        if can_do_without and self._changes_left is None and self._pipeline.error is None:
            self.fail_lane(self._ports.rng.choice(state.lanes), Status.TIMEOUT)

    def handle_failures(self) -> None:
        """Start what is due after positions were given up: a change of the ensemble, and marks for repair."""
        if self._pipeline.error is not None:
            return
        self._start_marking()
        if self._change is not None:
            return
        state = self._state
        if state.needs_change:
            state.is_changing = True
        elif not state.is_patient or self._ports.clock.monotonic_s() < self._retry_at_s:
            return
        self._change = self._pipeline.start("ensemble change", self._run())

    def stop(self) -> None:
        """Cancel a change under way, because the writer failed."""
        if self._change is not None and self._change is not asyncio.current_task():
            self._change.cancel()

    async def _run(self) -> None:
        failed = self._failed_bookies()
        change = EnsembleChange(
            self._ports, self._state, self.ledger, self._failed_at_s, self._changes_left, self._reasons, self._refusing
        )
        try:
            await self._apply_change(change)
        except BkhealError as error:
            self._pipeline.fail(error)
            return
        finally:
            self.ledger, self._changes_left = change.ledger, change.changes_left
        self._change = None
        self._state.is_changing = False
        if self._state.has_failed_lanes:
            self._state.continue_incomplete()
            self._retry_later()
        else:
            self._state.is_patient = self._is_delayed
        self._marked -= failed - self._failed_bookies()
        self._start_marking()
        self._pipeline.resume()

    async def _apply_change(self, change: EnsembleChange) -> None:
        """Change the ensemble, or leave it if the ledger can be written as it is."""
        state = self._state
        try:
            if state.is_changing or not self._is_delayed:
                await change.run()
                self._retry_pause_s = self._ports.settings.degraded_retry_s
            else:
                await change.readmit()
        except (TransientError, TooManyEnsembleChangesError) as error:
            if change.is_in_doubt or (isinstance(error, TooManyEnsembleChangesError) and not state.is_patient):
                raise
            with suppress(TransientError):
                await change.readmit()
            if not state.is_quorum_reachable:
                raise
            extra = {"ledger_id": self.ledger.ledger_id, "reason": str(error)}
            level = logging.DEBUG if state.is_patient else logging.WARNING
            _log.log(level, "writing with fewer copies than requested", extra=extra)

    def _retry_later(self) -> None:
        self._retry_at_s = self._ports.clock.monotonic_s() + self._retry_pause_s
        self._retry_pause_s = min(2 * self._retry_pause_s, self._ports.settings.degraded_retry_max_s)

    def _failed_bookies(self) -> set[BookieId]:
        return {self._state.lanes[position].bookie for position in self._state.failed_positions()}

    def _start_marking(self) -> None:
        if self._marking is None and not self._state.incomplete <= self._marked:
            incomplete = sorted(self._state.incomplete)
            self._marked.update(incomplete)
            self._marking = self._pipeline.start("mark incomplete bookies", self._mark(incomplete))

    async def _mark(self, incomplete: list[BookieId]) -> None:
        try:
            await self._ports.tasks.marking.mark(self.ledger.ledger_id, incomplete)
        except BkhealError as error:  # not tried again before the next change
            extra = {"ledger_id": self.ledger.ledger_id, "reason": str(error)}
            _log.warning("ledger not marked for repair yet", extra=extra)
        self._marking = None
        self._start_marking()
