"""Keep the record and the lock of a one-shot run (``spark_jobs.runs.life_cycle``).

It runs in a thread with its own ZooKeeper session, because the run itself blocks while Spark works. If the session is
lost, so is the lock, and the run ends (S14).
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import threading
from concurrent.futures import Future
from dataclasses import MISSING, fields, replace
from typing import Final

from bookie.metadata.cluster import open_cluster
from bookie.metadata.own_state import claim_state_root
from bookie.metadata.port import StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.runs.records import RunLockedError, Runs, lane_of
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.metadata.uri import parse_uri
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunCause, RunRecord, RunState, new_run_id
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import cancel, guarded
from spark_jobs.runs.gate import RunGate, Stop
from spark_jobs.runs.life_cycle import RunLifeCycle, RunOutcome, described
from spark_jobs.runs.port import Phase, Progress, ProgressEvent
from spark_jobs.runs.prerequisites import check_run_prerequisites
from spark_jobs.settings import AuditSettings

_log = logging.getLogger(__name__)

RUNS_KEPT: Final = 200
"""Number of run records to keep if no auditor has recorded its own (``runs_kept``)."""
WAIT_S_MAX: Final = 7 * 86_400.0
"""Longest wait for the previous run: every wait has a deadline."""
_POLL_S: Final = 0.5
_END_CHECK_INTERVAL_S: Final = 0.1
"""Interval at which the end of the run is checked."""
_END_DEADLINE_S: Final = 30.0


def non_default_options(settings: AuditSettings) -> dict[str, bool | int | float]:
    """Return the switches and numbers that differ from their defaults, by name. Pure."""
    names = (each.name for each in fields(settings) if each.name != "is_dry_run" and each.default is not MISSING)
    values = {name: getattr(settings, name) for name in names}
    defaults = {each.name: each.default for each in fields(settings)}
    chosen = {name: value for name, value in values.items() if value != defaults[name]}
    return {name: value for name, value in chosen.items() if isinstance(value, bool | int | float)}


class RunKeeper:
    """The record and the lock of one run. Call ``begin``, and after it always ``end``, in the run's thread."""

    def __init__(
        self,
        settings: AuditSettings,
        record: RunRecord,
        gate: RunGate,
        clock: Clock,
        progress: Progress | None = None,
        *,
        is_change: bool = True,
    ) -> None:
        """Only store the arguments; no lock is taken yet.

        Args:
            settings: the settings of the run.
            record: the record of the run. If the run has to wait, it gets another id after that.
            gate: the gate of the run.
            clock: for times and pauses.
            progress: called if the run has to wait.
            is_change: whether to record a start by a person as a change (decision 69).
        """
        self._is_change = is_change
        self._settings = settings
        self._record = record
        self._gate = gate
        self._clock = clock
        self._progress = progress
        self._life: RunLifeCycle | None = None
        self._begun: Future[None] = Future()
        self._outcome: Future[RunOutcome] = Future()
        self._thread = threading.Thread(target=self._run, name=f"keep {record.run_id}", daemon=True)

    def begin(self, wait_s: float) -> str:
        """Take the lock, waiting for it at most ``wait_s`` seconds and ``WAIT_S_MAX``; return the id of the run.

        Reports, records and images are in the order of their ids. So the id is not from before the wait, because the
        run is newer than the one it waited for.

        Raises:
            RunLockedError: a run of this kind was active for the whole wait.
            RunStoppedError: the run was stopped while it waited.
            StoreUnavailableError: the store did not answer.
            NotAClusterError: there is no cluster at the metadata URI.
            StateRootError: the cluster's other processes keep their state below another root (R90).
            NoTopologyError, InvalidTopologyError, NoPulsarError, ExportError, SnapshotError, ReportDirError: the run,
                if a person starts it, could only fail.
        """
        self._wait_s = min(WAIT_S_MAX, wait_s)  # in this order, NaN is limited as well
        self._thread.start()
        self._begun.result()
        return self._record.run_id

    def on_progress(self, event: ProgressEvent) -> None:
        """Note the progress for the record."""
        if self._life is not None:
            self._life.note(event)

    def end(self, outcome: RunOutcome) -> RunRecord:
        """Write the record of a completed run, and release the lock; return the record.

        If the store does not answer, this is only logged.
        """
        if not self._outcome.done():
            self._outcome.set_result(outcome)
        self._thread.join(_END_DEADLINE_S)
        record = self._record if self._life is None else self._life.record
        return replace(record, finished_ms=record.finished_ms or self._clock.epoch_ms(), **outcome.record_fields())

    def _run(self) -> None:
        try:
            asyncio.run(self._keep())
        except BkhealError as error:
            if self._begun.done():
                _log.error("keeping the run's lock failed", extra={"reason": str(error)})
                self._lost("the metadata store did not answer for the run's lock")
            else:
                self._begun.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - the boundary of a thread; it is raised in the run's
            if not self._begun.done():
                self._begun.set_exception(error)
            self._lost(f"keeping the run's lock failed: {error!r}")

    async def _keep(self) -> None:
        uri = parse_uri(self._settings.metadata_uri)
        store = await ZooKeeperStore.connect(uri.hosts, connect_timeout_s=self._settings.connect_timeout_s)
        try:
            cluster = await open_cluster(store, uri)
            root = cluster.root
            if self._record.cause is RunCause.COMMAND:
                await check_run_prerequisites(self._record.kind, self._settings, store, cluster)
            if not self._settings.is_dry_run:
                await claim_state_root(store, root)
            runs = Runs(store, root)
            life = await self._begin(runs, ChangeRecords(store, root, self._clock))
            await self._ended(life)
            await self._prune(runs)
        finally:
            await store.close()

    async def _begin(self, runs: Runs, changes: ChangeRecords) -> RunLifeCycle:
        deadline_s = self._clock.monotonic_s() + self._wait_s
        is_change = self._is_change and self._record.cause is RunCause.COMMAND
        is_announced, has_waited = not is_change, False
        while True:
            self._gate.pass_through()
            if has_waited and not (is_change and is_announced):  # a recorded change names the id
                run_id = new_run_id(self._clock.epoch_ms(), random.SystemRandom())
                self._record = replace(self._record, run_id=run_id)
            has_waited = True
            try:
                if not is_announced and await runs.holder(lane_of(self._record)) is None:
                    await self._announce(changes)
                    is_announced = True
                record = replace(self._record, started_ms=self._clock.epoch_ms())  # the wait is no part of the run
                life = RunLifeCycle(runs, record, self._gate, self._clock)
                await life.begin()
                break
            except RunLockedError:
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise
                if self._progress is not None:
                    self._progress(ProgressEvent(Phase.WAIT))
                    self._progress = None
            try:
                async with asyncio.timeout(min(left_s, _POLL_S)):
                    await runs.wait_lane_free(lane_of(self._record))
            except TimeoutError:
                continue
        self._life = life
        await self._abandon_orphans(runs)
        self._begun.set_result(None)
        return life

    async def _abandon_orphans(self, runs: Runs) -> None:
        """Best effort: this run is already recorded, and the next run abandons the rest."""
        try:
            await runs.abandon_orphans(self._clock.epoch_ms())
        except BkhealError as error:
            _log.warning("runs whose process died are not marked abandoned yet", extra={"reason": str(error)})

    async def _announce(self, changes: ChangeRecords) -> None:
        """Record the start of a run by a person before the run begins. The run may still fail to get the lock.

        Raises:
            StoreUnavailableError: the start cannot be recorded, so the run must not begin.
        """
        by = f"{self._record.owner}@{socket.gethostname()}"
        what = described(self._record, non_default_options(self._settings))
        try:
            await changes.record(by, "command", "run start", what, claims_root=not self._settings.is_dry_run)
        except WriteOutcomeUnknownError as error:
            raise StoreUnavailableError(f"the run was not started: {error}") from error

    async def _ended(self, life: RunLifeCycle) -> None:
        """Keep the record until the run has ended, then write its end."""
        following = guarded(f"record of run {self._record.run_id}", life.follow())
        try:
            while not self._outcome.done():
                await self._clock.sleep(_END_CHECK_INTERVAL_S)
        finally:
            await cancel(following)
        await life.end(self._outcome.result())

    async def _prune(self, runs: Runs) -> None:
        try:
            await runs.prune(await runs.kept(RUNS_KEPT), self._clock.epoch_ms())
        except BkhealError as error:
            _log.warning("records of old runs were not removed", extra={"reason": str(error)})

    def _lost(self, reason: str) -> None:
        self._gate.stop(Stop(reason, RunState.ABANDONED, ExitCode.STORE_UNREACHABLE))
