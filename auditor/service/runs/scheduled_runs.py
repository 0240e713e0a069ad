"""The runs of schedules: each begins when it is due, waits while its kind is paused, and is tried again if it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from auditor.api.control import NotLeaderError, RunBusyError, UnknownRunError
from auditor.service.runs.manager import RunManager
from bookie.metadata.runs.records import Runs
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunKind, RunRecord, RunState
from bookie.model.times import rfc3339_if_known
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import guarded

_log = logging.getLogger(__name__)

RETRY_S: Final = 120.0
"""Pause after the first failure of a scheduled run; doubled after each further failure."""
RETRY_S_MAX: Final = 960.0
PAUSE_CHECK_INTERVAL_S: Final = 15.0
"""Interval of the checks whether the pause of a schedule has ended."""


class ScheduledRuns:
    """The scheduled runs of this process: at most one of each kind. Used on one loop."""

    def __init__(
        self,
        start: Callable[[RunKind], Awaitable[RunRecord]],
        manager: RunManager,
        runs: Runs,
        clock: Clock,
        misfire_grace_s: float,
    ) -> None:
        """Prepare.

        Args:
            start: starts the run of a kind (``Control.start_run``).
            manager: the runs of this process.
            runs: the records in the store.
            clock: for pauses and deadlines.
            misfire_grace_s: a run that could not be started is tried again for this long.
        """
        self._start = start
        self._manager = manager
        self._runs = runs
        self._clock = clock
        self._misfire_grace_s = misfire_grace_s
        self._tasks: dict[RunKind, asyncio.Task[Any]] = {}

    def begin(self, kind: RunKind) -> None:
        """Begin the run of a schedule that is due. It is skipped if the one before has not ended."""
        earlier = self._tasks.get(kind)
        if earlier is not None and not earlier.done():
            _log.warning("scheduled run skipped, the one before has not ended", extra={"kind": kind.value})
            return
        self._tasks[kind] = guarded(f"scheduled {kind.value} run", self._run(kind))

    def cancel_all(self) -> None:
        """Start none of the runs that wait. Runs that are under way are not affected."""
        for task in self._tasks.values():
            task.cancel()

    async def _run(self, kind: RunKind) -> None:
        """Run the check. A failed run is retried with growing intervals until the misfire grace ends.

        No run begins while its schedule is paused.
        """
        await self._wait_while_paused(kind)
        clock, retry_s = self._clock, RETRY_S
        deadline_s = clock.monotonic_s() + self._misfire_grace_s
        while True:
            try:
                reason = await self._run_once(kind)
                if reason is None:
                    return
            except (NotLeaderError, UnknownRunError) as error:
                _log.warning("scheduled run skipped", extra={"kind": kind.value, "reason": str(error)})
                return
            except (TransientError, OutcomeUnknownError) as error:
                reason = str(error)
            fields = {"kind": kind.value, "reason": reason}
            if clock.monotonic_s() + retry_s > deadline_s:
                _log.error("scheduled run could not be started, it is skipped until it is due again", extra=fields)
                return
            _log.warning("scheduled run could not be started, trying again", extra=fields | {"in_s": retry_s})
            await clock.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_S_MAX)
            await self._wait_while_paused(kind)

    async def _run_once(self, kind: RunKind) -> str | None:
        """Run the check to its end. Return the reason if it failed and should be retried, else None."""
        while True:
            try:
                record = await self._start(kind)
                break
            except RunBusyError as busy:
                _log.info("scheduled run waits for another one", extra={"kind": kind.value, "reason": str(busy)})
                await self._manager.wait_ended(kind)
                await self._wait_while_paused(kind)
        while not record.state.is_final:
            record = await self._manager.wait_changed(record.run_id, record)
        if record.state is not RunState.FAILED or record.exit_code == ExitCode.CONFIGURATION:
            return None
        return record.detail or "the run failed"

    async def _wait_while_paused(self, kind: RunKind) -> None:
        """Wait until the schedule of a kind is not paused. Runs that are due during a pause become one run after it.

        A pause of a check also delays scheduled runs that contain this check.
        """
        clock, seen = self._clock, None
        while True:
            try:
                paused = await self._runs.paused_kinds(clock.epoch_ms())
                pause = next((paused[each] for each in (kind, *kind.contained) if each in paused), None)
            except (TransientError, OutcomeUnknownError) as error:
                _log.warning("pauses could not be read, trying again", extra={"kind": kind.value, "reason": str(error)})
                await clock.sleep(PAUSE_CHECK_INTERVAL_S)
                continue
            if pause is None:
                break
            if pause != seen:
                seen, until = pause, rfc3339_if_known(pause.until_ms)
                fields = {"kind": kind.value, "owner": pause.owner, "until": until}
                _log.info("scheduled run waits, its kind is paused", extra=fields)
            await clock.sleep(PAUSE_CHECK_INTERVAL_S)
        if seen is not None:
            _log.warning("scheduled run begins after the pause of its kind", extra={"kind": kind.value})
