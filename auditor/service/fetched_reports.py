"""Fetches reports from the common store of all auditors, so each auditor can list all reports.

A new pod, or an auditor that never led, has no reports of its own. It lists the store regularly and fetches the
missing reports. This runs in a thread, so a hanging store delays nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from typing_extensions import override

from auditor.service.listeners import Listener
from auditor.service.runs.spark_holder import run_in_daemon_thread
from bookie.model.errors import PermanentError
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import cancel, guarded
from spark_jobs.kept import Kept

_log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 60.0
"""Pause between two fetches."""


class FetchedReports(Listener):
    """Fetches missing reports while the service listens."""

    def __init__(self, report_store: str, report_dir: Path, kept: Kept, clock: Clock) -> None:
        """Store the arguments.

        Args:
            report_store: address of the store.
            report_dir: of this auditor.
            kept: how many reports to keep here, and for how long. Others are removed here and stay in the store.
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
        """Start fetching in the background, the first time at once."""
        self._looking = guarded("fetched reports", self._run())

    @override
    async def stop(self) -> None:
        await cancel(self._looking)

    @override
    def set_requests_per_second(self, rate: float) -> None:
        """Do nothing: it has no clients."""

    async def refresh(self) -> None:
        """Fetch the reports that are missing here. A failure is logged once, until a fetch succeeds."""
        try:
            await run_in_daemon_thread("fetched reports", self._fetch)
        except (PermanentError, OSError) as error:
            if not self._is_failing:
                _log.warning("reports were not fetched", extra={"store": self._report_store, "reason": str(error)})
            self._is_failing = True
        else:
            self._is_failing = False

    async def _run(self) -> None:
        while True:
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001  # the boundary of a task: no error may end it, such as too few threads
                _log.exception("fetching reports failed, trying again")
            await self._clock.sleep(CHECK_INTERVAL_S)

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
            if is_changed:  # true also after an error, because some reports may have been fetched before it
                keep(self._report_dir, self._clock.epoch_ms(), self._kept)
