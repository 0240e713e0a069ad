"""The work of one term of leadership: the schedules, and the housekeeping of what is recorded in the store."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from auditor.service.runs.schedule import SchedulerPort
from bookie.metadata.bookies.maintenance import MaintenanceWindows
from bookie.metadata.bookies.returned import ReturnedBookies
from bookie.metadata.runs.records import Runs
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import cancel, guarded

_log = logging.getLogger(__name__)

HOUSEKEEPING_S: Final = 60.0
"""Interval at which records of runs are checked: for runs of processes that have ended, and for surplus records."""
CLOCK_STEP_S_MAX: Final = 60.0
"""If the system time is changed by more than this, a leader schedules again, because its scheduler holds dates."""
_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Housekeeping:
    """The records in the store that a leader keeps in order: runs, pauses, windows and returns of bookies."""

    runs: Runs
    tasks: UnderReplication
    """The tasks, and the nodes of auto-recovery."""
    windows: MaintenanceWindows
    returned: ReturnedBookies
    """The bookies that returned."""
    clock: Clock
    on_pause_ended: Callable[[], None]
    """Called if the pause of a schedule has ended."""
    runs_kept: int
    """The number of records of ended runs that stay."""
    pause_s: float
    """How long a pause of a schedule lasts."""

    async def initialize(self) -> None:
        """Create the nodes of auto-recovery as Apache's auditor does at its start, because Apache's tools need them.

        Raises:
            TransientError, OutcomeUnknownError: try again.
        """
        try:
            await self.tasks.initialize()
            await self.tasks.switches.initialize_lost_bookie_delay()
        except (ConflictError, PermanentError) as error:  # a leader must do its housekeeping even so
            _log.error("the nodes of auto-recovery cannot be created", extra={"reason": str(error)})

    async def clean_up(self) -> None:
        """End the records of dead processes' runs, and remove what is old or over: runs, pauses, windows, returns.

        Raises:
            TransientError, OutcomeUnknownError: try again.
            ConflictError, PermanentError: something cannot be removed.
        """
        await self.runs.abandon_orphans(self.clock.epoch_ms())
        await self.runs.prune(self.runs_kept, self.clock.epoch_ms())
        for kind in await self.runs.end_pauses(self.clock.epoch_ms(), self.pause_s):
            _log.warning("the pause of a schedule has ended", extra={"kind": kind.value})
            self.on_pause_ended()
        await self.windows.remove_ended(self.clock.epoch_ms())
        await self.returned.remove_old(self.clock.epoch_ms())
        await self.runs.note_kept(self.runs_kept)


class LeaderTerm:
    """The work of one term of leadership. Call ``run`` once for each term."""

    def __init__(
        self,
        scheduler: SchedulerPort,
        housekeeping: Housekeeping,
        runs: Runs,
        clock: Clock,
        prepare: Callable[[], Awaitable[object]] | None,
    ) -> None:
        """Prepare.

        Args:
            scheduler: started at the beginning of each term. The owner of the service stops it.
            housekeeping: done every ``HOUSEKEEPING_S``.
            runs: the records of runs, from which the first time of each schedule follows.
            clock: for pauses and dates.
            prepare: called at the beginning of each term, for preparations that take long; None: there are none.
        """
        self._scheduler = scheduler
        self._housekeeping = housekeeping
        self._runs = runs
        self._clock = clock
        self._prepare = prepare

    async def run(self) -> None:
        """Start the schedules, then do the housekeeping, until the end of the term cancels this."""
        preparing = None if self._prepare is None else guarded("prepare", _of(self._prepare()))
        try:
            is_initialized, is_scheduled, offset_s = False, False, 0.0
            while True:
                try:
                    stepped_s = self._date_offset_s() - offset_s
                    if is_scheduled and abs(stepped_s) > CLOCK_STEP_S_MAX:
                        _log.warning("the date has changed, runs are scheduled again", extra={"by_s": round(stepped_s)})
                        is_scheduled = False
                    if not is_scheduled:
                        offset_s = self._date_offset_s()
                        self._scheduler.start(await self._runs.last_success_ms(), self._clock.epoch_ms())
                        is_scheduled = True
                    if not is_initialized:
                        await self._housekeeping.initialize()
                        is_initialized = True
                    await self._housekeeping.clean_up()
                except (TransientError, OutcomeUnknownError) as error:
                    _log.warning("housekeeping failed, trying again", extra={"reason": str(error)})
                    await self._clock.sleep(_RETRY_S)
                    continue
                except (ConflictError, PermanentError) as error:  # a leader must have its schedule even so
                    _log.error("housekeeping failed", extra={"reason": str(error)})
                await self._clock.sleep(HOUSEKEEPING_S)
        finally:
            await cancel(preparing)

    def _date_offset_s(self) -> float:
        """The system time minus the monotonic time: it changes only if the system time is set."""
        return self._clock.epoch_ms() / 1000 - self._clock.monotonic_s()


async def _of(awaitable: Awaitable[object]) -> None:
    await awaitable
