"""Reports from the store shared by all auditors, for the list of reports of each.

A new pod or an auditor without leadership has no reports of its own. It looks into the store now and then, and
fetches missing ones. The look runs in a thread: a hanging store delays nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from typing_extensions import override

from auditor.service.listeners import Listener
from auditor.service.runs.spark_holder import in_thread
from bookie.model.errors import PermanentError
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import cancel, guarded
from spark_jobs.kept import Kept

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 60.0
"""After the end of one look, before the next."""


class FetchedReports(Listener):
    """Fetches while the service listens."""

    def __init__(self, report_store: str, report_dir: Path, kept: Kept, clock: Clock) -> None:
        """Only stores.

        Args:
            report_store: address of the store.
            report_dir: of this auditor.
            kept: how much to keep here; what is older or more is removed here, and stays in the store.
            clock: for the interval.
        """
        self._report_store = report_store
        self._report_dir = report_dir
        self._kept = kept
        self._clock = clock
        self._looking: asyncio.Task[None] | None = None
        self._is_failing = False

    @override
    async def start(self) -> None:
        """Begin; the first look follows at once, in the background."""
        self._looking = guarded("fetched reports", self._run())

    @override
    async def stop(self) -> None:
        await cancel(self._looking)

    @override
    def set_requests_per_second(self, rate: float) -> None:
        """Nothing: it has no clients."""

    async def look(self) -> None:
        """Fetch what is missing here. A failure is logged once, until a look succeeds."""
        try:
            await in_thread("fetched reports", self._fetch)
        except (PermanentError, OSError) as error:
            if not self._is_failing:
                _log.warning("reports were not fetched", extra={"store": self._report_store, "reason": str(error)})
            self._is_failing = True
        else:
            self._is_failing = False

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001  # the boundary of a task: no error may end it, such as too few threads
                _log.exception("fetching reports failed, trying again")
            await self._clock.sleep(LOOK_INTERVAL_S)

    def _fetch(self) -> None:
        from spark_jobs.report.store_runs import RUNS_FETCHED, fetch_missing, opened_store
        from spark_jobs.report.writing import keep

        store, is_changed = opened_store(self._report_store), True
        if store is None:
            return
        try:
            most = self._kept.reports_max
            is_changed = bool(fetch_missing(store, self._report_dir, most or RUNS_FETCHED, kept_max=most))
        finally:
            if is_changed:  # also if some could not be fetched
                keep(self._report_dir, self._clock.epoch_ms(), self._kept)
