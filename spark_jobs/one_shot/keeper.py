"""Beside a one-shot run: the lock of its kind, its record, and the check for a request to stop it.

All of that lives in a thread with a ZooKeeper session of its own, as the run itself blocks for as long as Spark works.
If the session is lost, so is the lock, and the run ends (S14).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from bookie.metadata.cluster import open_cluster
from bookie.metadata.runs.records import RunLease, RunLockedError, Runs, RunTakenError
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.uri import parse_uri
from bookie.model.errors import BkhealError, OutcomeUnknownError, TransientError
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunRecord
from bookie.runtime.clock import Clock
from spark_jobs.one_shot.gate import StopGate
from spark_jobs.runs.port import Phase, Progress, ProgressEvent
from spark_jobs.settings import AuditSettings

_log = logging.getLogger(__name__)

RUNS_KEPT: Final = 200
_LOOK_S: Final = 0.5
_RECORD_S: Final = 2.0
_END_DEADLINE_S: Final = 30.0


class RunKeeper:
    """One run. ``begin``, then ``end`` in any case; from the run's thread."""

    def __init__(
        self, settings: AuditSettings, record: RunRecord, gate: StopGate, clock: Clock, progress: Progress | None = None
    ) -> None:
        """Nothing is taken yet; ``progress`` is called if the run has to wait."""
        self._settings = settings
        self._record = record
        self._gate = gate
        self._clock = clock
        self._progress = progress
        self._begun: Future[None] = Future()
        self._last: Future[tuple[RunRecord, bool]] = Future()
        self._thread = threading.Thread(target=self._run, name=f"keep {record.run_id}", daemon=True)

    @property
    def record(self) -> RunRecord:
        """What is, or will be, on record."""
        return self._record

    def begin(self, wait_s: float) -> None:
        """Take the lock, waiting for it at most ``wait_s`` seconds.

        Raises:
            RunLockedError: a run of this kind is under way, and was for all that time.
            OneShotStoppedError: the run was stopped while it waited.
            StoreUnavailableError, NotAClusterError: see there.
        """
        self._wait_s = wait_s
        self._thread.start()
        self._begun.result()

    def on_progress(self, event: ProgressEvent) -> None:
        """Take the progress for the record."""
        self._record = replace(
            self._record,
            phase=event.phase.value,
            done=event.done,
            total=event.total or 0,
            updated_ms=self._clock.epoch_ms(),
        )

    def end(self, record: RunRecord, *, is_success: bool) -> None:
        """Write the record of a completed run, and release the lock.

        A store that does not answer is only logged.
        """
        if not self._last.done():
            self._last.set_result((record, is_success))
        self._thread.join(_END_DEADLINE_S)

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
            runs = Runs(store, (await open_cluster(store, uri)).root)
            lease = await self._acquire(runs)
            try:
                await runs.abandon_orphans(self._clock.epoch_ms())
                await runs.write(self._record)
                self._begun.set_result(None)
                record, is_success = await self._watch(runs, lease)
                await self._write_last(runs, record, is_success=is_success)
            finally:
                await self._release(lease)
        finally:
            await store.close()

    async def _acquire(self, runs: Runs) -> RunLease:
        kind, deadline_s = self._record.kind, self._clock.monotonic_s() + self._wait_s
        while True:
            self._gate.pass_through()
            try:
                return await runs.acquire(kind, self._record.run_id, self._record.process)
            except RunLockedError:
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise
                if self._progress is not None:
                    self._progress(ProgressEvent(Phase.WAIT))
                    self._progress = None
            try:
                async with asyncio.timeout(min(left_s, _LOOK_S)):
                    await runs.wait_free(kind)
            except TimeoutError:
                continue

    async def _watch(self, runs: Runs, lease: RunLease) -> tuple[RunRecord, bool]:
        """Until the end of the run."""
        written, next_write_s = self._record, 0.0
        while not self._last.done():
            if not lease.is_held:
                self._lost("the session that held the run's lock was lost")
            now_s = self._clock.monotonic_s()
            if now_s >= next_write_s:
                next_write_s = now_s + _RECORD_S
                written = await self._look(runs, written)
            await self._clock.sleep(_LOOK_S / 5)
        return self._last.result()

    async def _look(self, runs: Runs, written: RunRecord) -> RunRecord:
        record = self._record
        try:
            if (owner := await runs.cancel_requested_by(record.run_id)) is not None:
                self._gate.stop(f"cancelled by {owner}", ExitCode.CANCELLED)
            if record != written:
                await runs.write(record)
        except RunTakenError as error:
            self._lost(str(error))
        except (TransientError, OutcomeUnknownError) as error:  # the session's end is what counts
            _log.warning("run record was not written", extra={"run_id": record.run_id, "reason": str(error)})
            return written
        return record

    async def _write_last(self, runs: Runs, record: RunRecord, *, is_success: bool) -> None:
        try:
            await runs.write(record)
            await runs.clear_request(record.run_id)
            if is_success:
                await runs.note_success(record.kind, record.started_ms)
            await runs.prune(RUNS_KEPT)
        except BkhealError as error:
            _log.warning("run record was not written", extra={"run_id": record.run_id, "reason": str(error)})

    async def _release(self, lease: RunLease) -> None:
        try:
            await lease.release()
        except (TransientError, OutcomeUnknownError) as error:  # closing the session releases it as well
            _log.warning("run lock was not released", extra={"reason": str(error)})

    def _lost(self, reason: str) -> None:
        self._gate.stop(f"{reason}; what was marked stays, run again", ExitCode.STORE_UNREACHABLE)
