"""Handling of the bookies given up by a writer: change the ensemble, go on with the healthy ones, try again.

- A change is due if an entry waits for a failed position. If delayed changes were requested, it is due if an entry can
  never reach ``Qa`` without one, or if a bookie is read-only. Nothing is acknowledged until it is complete.
- If no replacement is left and each write set still has ``Qa`` members, the writer continues with those. It looks again
  after a growing pause: for a spare bookie, and for former members back on the same disks.
- Bookies that lack a confirmed entry are marked for repair while the ledger is still written, and again at close.
- Every other case closes the writer.
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


class FailingPipeline(Protocol):
    """The part of the pipeline that a failover changes."""

    @property
    def error(self) -> BkhealError | None:
        """The error it failed with, if it did."""
        ...

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in the background until it ends or the pipeline is stopped."""
        ...

    def fail(self, error: BkhealError) -> None:
        """End the writer."""
        ...

    def resume(self) -> None:
        """Acknowledge and send everything possible after a change."""
        ...


class Failover:
    """Handles the failures of bookies under a writer.

    Attributes:
        ledger: metadata as last stored or read.
    """

    def __init__(
        self,
        ports: ClientPorts,
        state: WriterState[_Waiter],
        ledger: Versioned,
        options: WriterOptions,
        host: FailingPipeline,
    ) -> None:
        self.ledger = ledger
        self._ports = ports
        self._state = state
        self._host = host
        self._is_delayed = options.is_ensemble_change_delayed
        self._changes_left = options.ensemble_changes_max
        self._change: asyncio.Task[None] | None = None
        self._failed_at_s: dict[BookieId, float] = {}
        self._reasons: dict[BookieId, str] = {}
        self._retry_at_s = 0.0
        self._retry_pause_s = ports.settings.degraded_retry_s
        self._marked: set[BookieId] = set()
        self._marking: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a change is under way."""
        return self._change is not None

    def give_up(self, lane: Lane[_Waiter], status: Status, reason: str = "") -> None:
        """Do without the lane's bookie from now on; call ``see_to_it`` afterwards.

        ``reason`` appears in the error if the writer fails.
        """
        extra = {"ledger_id": self.ledger.ledger_id, "bookie_id": lane.bookie, "status": status.name, "reason": reason}
        _log.info("writer stops using a bookie", extra=extra)
        now_s = self._ports.clock.monotonic_s()
        self._failed_at_s[lane.bookie] = now_s
        self._reasons[lane.bookie] = reason
        self._state.fail(lane, is_wiped=status is Status.WRONG_INCARNATION, is_change_due=status is Status.READ_ONLY)
        if self._state.is_patient and self._retry_at_s <= now_s:
            self._retry_later()

    def give_up_one_that_is_well(self) -> None:
        """For simulations: do without some bookie, if the ledger can and changes are not counted."""
        state, metadata = self._state, self.ledger.metadata
        can_do_without = not state.has_failed_lanes and metadata.write_quorum > metadata.ack_quorum
        if can_do_without and self._changes_left is None and self._host.error is None:
            self.give_up(self._ports.rng.choice(state.lanes), Status.TIMEOUT)

    def see_to_it(self) -> None:
        """Start the work due after positions were given up."""
        if self._host.error is not None:
            return
        self._mark_soon()
        if self._change is not None:
            return
        state = self._state
        if state.needs_change:
            state.is_changing = True
        elif not state.is_patient or self._ports.clock.monotonic_s() < self._retry_at_s:
            return
        self._change = self._host.start("ensemble change", self._run())

    def stop(self) -> None:
        """End a change under way, because the writer failed."""
        if self._change is not None and self._change is not asyncio.current_task():
            self._change.cancel()

    async def _run(self) -> None:
        change = EnsembleChange(
            self._ports, self._state, self.ledger, self._failed_at_s, self._changes_left, self._reasons
        )
        try:
            await self._carry_out(change)
        except BkhealError as error:
            self._host.fail(error)
            return
        finally:
            self.ledger, self._changes_left = change.ledger, change.changes_left
        self._change = None
        self._state.is_changing = False
        if self._state.has_failed_lanes:
            self._state.go_on_short()
            self._retry_later()
        else:
            self._state.is_patient = self._is_delayed
        self._mark_soon()
        self._host.resume()

    async def _carry_out(self, change: EnsembleChange) -> None:
        """Change the ensemble; or leave it, if the ledger can be written as it is."""
        state = self._state
        try:
            if state.is_changing or not self._is_delayed:
                await change.run()
                self._retry_pause_s = self._ports.settings.degraded_retry_s
            else:
                await change.revive()
        except (TransientError, TooManyEnsembleChangesError) as error:
            if change.is_in_doubt or (isinstance(error, TooManyEnsembleChangesError) and not state.is_patient):
                raise
            with suppress(TransientError):
                await change.revive()
            if not state.is_quorum_reachable:
                raise
            extra = {"ledger_id": self.ledger.ledger_id, "reason": str(error)}
            level = logging.DEBUG if state.is_patient else logging.WARNING
            _log.log(level, "writing with fewer copies than requested", extra=extra)

    def _retry_later(self) -> None:
        self._retry_at_s = self._ports.clock.monotonic_s() + self._retry_pause_s
        self._retry_pause_s = min(2 * self._retry_pause_s, self._ports.settings.degraded_retry_max_s)

    def _mark_soon(self) -> None:
        if self._marking is None and not self._state.short <= self._marked:
            self._marking = self._host.start("mark short bookies", self._mark(sorted(self._state.short)))

    async def _mark(self, short: list[BookieId]) -> None:
        try:
            await self._ports.tasks.marking.mark(self.ledger.ledger_id, short)
        except BkhealError as error:  # not tried again before the ledger is closed
            extra = {"ledger_id": self.ledger.ledger_id, "reason": str(error)}
            _log.warning("ledger not marked for repair yet", extra=extra)
        self._marked.update(short)
        self._marking = None
