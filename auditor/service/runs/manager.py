"""Runs of this process: one at a time per kind, kinds side by side, each on record in the store while it goes on.

What a run is lives in the store; this holds only those that this process runs. A run may go on exactly while its term
of leadership and its lock last: both are asked again at each gate, in the run's own thread, so that what a stopped
process begins to do when it wakes up ends there (S14).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from auditor.api.control import NotLeaderError, RunBusyError, RunOverError, UnknownRunError
from auditor.service.runs.gate import RunGate, Stop
from bookie.metadata.port import StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.runs.election import Leadership
from bookie.metadata.runs.records import RunLease, RunLockedError, Runs, RunTakenError
from bookie.model.errors import BkhealError, ConflictError, PermanentError, TransientError
from bookie.model.exit_codes import ExitCode, audit_exit_code
from bookie.model.run import RunCause, RunKind, RunRecord, RunState, new_run_id
from bookie.model.times import rfc3339_if_known
from bookie.runtime.clock import Clock
from bookie.runtime.signal import Signal, waiting_for
from bookie.runtime.tasks import cancel, guarded
from spark_jobs.runs.port import Phase, ProgressEvent, RunStoppedError

_log = logging.getLogger(__name__)

PAUSE_S: Final = 3600.0
"""How long a run stays paused; another pause extends it. A forgotten one must not keep its kind from running."""
REPORT_INTERVAL_S: Final = 2.0
"""Between two writes of a run's progress, and two checks for a request to end it."""
_FINISH_ATTEMPTS: Final = 3
"""To write the end of a run whose session has ended; otherwise the next leader marks it abandoned."""
_FINISH_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run."""

    run_id: str
    kind: RunKind
    cause: RunCause
    owner: str
    is_dry_run: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a run came to."""

    verdict: str
    exit_code: int
    is_success: bool
    """It saw everything, and was not held: the schedule and the lost bookies count it."""
    ledgers: int = 0
    findings: Mapping[str, int] = field(default_factory=dict)
    tasks_changed: int = 0
    report: str = ""
    detail: str = ""


class CheckRunner(Protocol):
    """Does the work of a run."""

    async def run(self, request: RunRequest, gate: RunGate, progress: Callable[[ProgressEvent], None]) -> RunOutcome:
        """Run a check to its end; ``progress`` may be called from any thread.

        Raises:
            RunStoppedError: the gate ended it.
        """
        ...


class ElectionView(Protocol):
    """The part of ``Election`` that runs depend on."""

    @property
    def state(self) -> Leadership:
        """The leadership of this process."""
        ...

    def is_leader(self, term: int | None = None) -> bool:
        """True if this process leads."""
        ...


RunEnded = Callable[[RunRecord, RunOutcome | None], None]
"""Receives each ended run; None: it did not complete. Must not block."""


@dataclass(slots=True)
class _Active:
    record: RunRecord
    gate: RunGate
    lease: RunLease
    event: ProgressEvent
    outcome: RunOutcome | None = None
    pause_ends_s: float | None = None
    """On the monotonic clock; None: not paused."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one write of the record in flight: two at a time would each take the other for another process's."""

    def note(self, event: ProgressEvent) -> None:
        """Called in the run's threads; replacing one reference is atomic."""
        self.event = event


class RunManager:
    """The runs of this process. Used on one loop."""

    def __init__(
        self, runs: Runs, leads: ElectionView, runner: CheckRunner, *, process: str, clock: Clock, rng: random.Random
    ) -> None:
        self._runs = runs
        self._leads = leads
        self._runner = runner
        self._process = process
        self._clock = clock
        self._rng = rng
        self._active: dict[str, _Active] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._beginning: dict[RunKind, asyncio.Task[RunRecord]] = {}
        self._is_stopping = False
        self._changed = Signal()
        self._listeners: list[RunEnded] = []

    @property
    def running(self) -> Sequence[RunRecord]:
        """Runs of this process that have not ended."""
        return tuple(active.record for active in self._active.values())

    def running_of(self, kind: RunKind) -> RunRecord | None:
        """The run of a kind in this process."""
        return next((active.record for active in self._active.values() if active.record.kind is kind), None)

    def on_ended(self, listener: RunEnded) -> None:
        """Call ``listener`` for each run that ends."""
        self._listeners.append(listener)

    async def start(
        self, kind: RunKind, *, cause: RunCause, owner: str, is_dry_run: bool = False, options: Mapping[str, Any]
    ) -> RunRecord:
        """Start a run (``Control.start_run``). A cancelled caller ends nothing: the run begins, or leaves no lock."""
        leadership = self._leads.state
        if self._is_stopping or not self._leads.is_leader():
            raise NotLeaderError("" if self._is_stopping else leadership.leader)
        if (other := self.running_of(kind)) is not None or kind in self._beginning:
            raise RunBusyError(kind, "" if other is None else other.run_id, self._process)
        now_ms = self._clock.epoch_ms()
        record = RunRecord(
            new_run_id(now_ms, self._rng),
            kind,
            cause,
            owner,
            self._process,
            RunState.RUNNING,
            is_dry_run,
            phase=Phase.PLAN.value,
            started_ms=now_ms,
            updated_ms=now_ms,
        )
        beginning = self._beginning[kind] = asyncio.ensure_future(self._started(record, leadership.term, options))
        beginning.add_done_callback(lambda task: self._begun(kind, task))
        return await asyncio.shield(beginning)

    def _begun(self, kind: RunKind, task: asyncio.Task[RunRecord]) -> None:
        del self._beginning[kind]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.info("run was not started", extra={"kind": kind.value, "reason": str(error)})

    async def _started(self, record: RunRecord, term: int, options: Mapping[str, Any]) -> RunRecord:
        run_id, kind = record.run_id, record.kind
        lease = await self._begin(record)
        active = _Active(record, self._gate(lease, term), lease, ProgressEvent(Phase.PLAN))
        request = RunRequest(run_id, kind, record.cause, record.owner, record.is_dry_run, dict(options))
        self._active[run_id] = active
        self._tasks[run_id] = guarded(f"run {run_id}", self._drive(active, request))
        self._changed.fire()
        fields = {"run_id": run_id, "kind": kind.value, "cause": record.cause.value, "owner": record.owner}
        _log.info("run started", extra=fields)
        return record

    async def cancel(self, run_id: str, owner: str) -> RunRecord:
        """Cancel a run (``Control.cancel_run``). The leader asks the process of another run to end it."""
        active = self._active.get(run_id)
        if active is None:
            record = await self._elsewhere(run_id)
            await self._runs.request_cancel(run_id, owner)
            return record
        if active.record.state.is_final:
            raise RunOverError(f"run {run_id} is over: {active.record.state.value}")
        active.gate.stop(Stop(f"cancelled by {owner}", RunState.CANCELLED))
        self._update(active, detail=f"cancelled by {owner}")
        return active.record

    async def make_way(self, kind: RunKind, busy_run_id: str, reason: str) -> None:
        """End the run that keeps the reaction to a lost bookie waiting.

        Every run of the kind ends, also a paused one and a dry run, but not a reaction that is active itself. A run of
        another process is asked to end. Returns without waiting for the end.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: a run of another process could not be asked.
        """
        active = next((active for active in self._active.values() if active.record.kind is kind), None)
        record = await self._runs.get(busy_run_id) if active is None and busy_run_id else None
        record = active.record if active is not None else record
        if record is None or record.state.is_final:
            return
        if record.cause is RunCause.BOOKIE_LOSS and record.state is not RunState.PAUSED:
            return
        _log.warning("run makes way for the reaction to a lost bookie", extra={"run_id": record.run_id})
        await self.cancel(record.run_id, reason)

    async def pause(self, run_id: str, owner: str) -> RunRecord:
        """Pause a run (``Control.pause_run``)."""
        active = await self._own(run_id)
        active.gate.pause()
        active.pause_ends_s = self._clock.monotonic_s() + PAUSE_S
        until = rfc3339_if_known(self._clock.epoch_ms() + int(PAUSE_S * 1000))
        self._update(active, state=RunState.PAUSED, detail=f"paused by {owner} until {until}; another pause extends it")
        await self._write(active)
        return active.record

    async def resume(self, run_id: str) -> RunRecord:
        """Resume a run (``Control.resume_run``)."""
        active = await self._own(run_id)
        await self._resume(active)
        return active.record

    async def _resume(self, active: _Active) -> None:
        active.gate.resume()
        active.pause_ends_s = None
        self._update(active, state=RunState.RUNNING, detail="")
        await self._write(active)

    async def get(self, run_id: str) -> RunRecord:
        """One run (``Control.run``)."""
        if (active := self._active.get(run_id)) is not None:
            return active.record
        record = await self._runs.get(run_id)
        if record is None:
            raise UnknownRunError(f"there is no run {run_id}; records of old runs are removed")
        return record

    async def list(self, limit: int) -> Sequence[RunRecord]:
        """The runs (``Control.runs``)."""
        stored = await self._runs.list(limit)
        return [self._active[record.run_id].record if record.run_id in self._active else record for record in stored]

    async def wait_changed(self, run_id: str, seen: RunRecord) -> RunRecord:
        """Wait for a change of a run (``Control.wait_changed``)."""
        while run_id in self._active:
            with waiting_for(self._changed) as waiter:
                if (active := self._active.get(run_id)) is None:
                    break
                if active.record != seen:
                    return active.record
                await waiter
        record = await self.get(run_id)
        if record != seen:
            return record
        changed = await self._runs.wait_changed(seen)
        if changed is None:
            raise UnknownRunError(f"the record of run {run_id} was removed")
        return changed

    async def wait_ended(self, kind: RunKind) -> None:
        """Return once no run of this kind is under way, here or elsewhere.

        Raises:
            StoreUnavailableError: no answer, or the session was lost while waiting.
        """
        while self.running_of(kind) is not None:
            with waiting_for(self._changed) as waiter:
                if self.running_of(kind) is None:
                    break
                await waiter
        await self._runs.wait_free(kind)

    def refuse_more(self) -> None:
        """Begin no run any more: this process is about to end, and another one leads soon."""
        self._is_stopping = True

    def stop_all(self, stop: Stop) -> None:
        """End every run of this process at its next gate."""
        for active in self._active.values():
            active.gate.stop(stop)

    async def wait_all_ended(self, deadline_s: float) -> bool:
        """Wait until no run of this process is left; False if the deadline came first."""
        if left := [*self._tasks.values(), *self._beginning.values()]:
            await asyncio.wait(left, timeout=deadline_s)
        return not self._tasks and not self._beginning

    def _gate(self, lease: RunLease, term: int) -> RunGate:
        def forbidden_because() -> str:
            if not self._leads.is_leader(term):
                return "this auditor does not lead any more"
            return "" if lease.is_held else "the session that held the run's lock has ended"

        return RunGate(forbidden_because)

    async def _begin(self, record: RunRecord) -> RunLease:
        try:
            lease = await self._runs.acquire(record.kind, record.run_id, self._process)
        except RunLockedError as error:
            raise RunBusyError(record.kind, error.holder.run_id, error.holder.process) from error
        except WriteOutcomeUnknownError as error:
            raise StoreUnavailableError(f"the run was not started: {error}") from error
        try:
            await self._runs.write(record)
        except BaseException as error:
            guarded(f"lock of run {record.run_id}", self._release(lease))
            if isinstance(error, (TransientError, WriteOutcomeUnknownError, ConflictError)):
                raise StoreUnavailableError(f"the run was not started: {error}") from error
            raise
        return lease

    async def _drive(self, active: _Active, request: RunRequest) -> None:
        reporting = guarded(f"progress of run {request.run_id}", self._report(active))
        try:
            ended = await self._execute(active, request)
        except asyncio.CancelledError:
            ended = {"state": RunState.ABANDONED, "detail": "its process stopped"}
        finally:
            await cancel(reporting)
        self._update(active, event=active.event, finished_ms=self._clock.epoch_ms(), **ended)
        try:
            await self._finish(active)
        finally:
            del self._active[request.run_id], self._tasks[request.run_id]
            self._changed.fire()
            for listener in self._listeners:
                listener(active.record, active.outcome)

    async def _execute(self, active: _Active, request: RunRequest) -> dict[str, Any]:
        """Fields of the record about the end of the run."""
        try:
            active.gate.check()
            outcome = active.outcome = await self._runner.run(request, active.gate, active.note)
            return {
                "state": RunState.DONE,
                "verdict": outcome.verdict,
                "exit_code": outcome.exit_code,
                "ledgers": outcome.ledgers,
                "findings": outcome.findings,
                "tasks_changed": outcome.tasks_changed,
                "report": outcome.report,
                "detail": outcome.detail,
            }
        except Exception as error:  # noqa: BLE001  # the boundary of a run: it ends, the service goes on
            # A job that is cancelled inside Spark comes out as Spark's own error.
            if (stop := active.gate.stopped) is not None:
                return {"state": stop.state, "exit_code": ExitCode.CANCELLED, "detail": stop.reason}
            if isinstance(error, RunStoppedError):
                return {"state": RunState.CANCELLED, "exit_code": ExitCode.CANCELLED, "detail": str(error)}
            unforeseen = None if isinstance(error, BkhealError) else error
            _log.error("run failed", extra={"run_id": request.run_id, "reason": str(error)}, exc_info=unforeseen)
            detail = f"{type(error).__name__}: {error}"
            return {"state": RunState.FAILED, "exit_code": audit_exit_code(error), "detail": detail}

    async def _report(self, active: _Active) -> None:
        """Keep the record current, at a bounded rate, and look for requests of others."""
        written = active.record
        while True:
            await self._clock.sleep(REPORT_INTERVAL_S)
            self._update(active, event=active.event)
            try:
                if active.pause_ends_s is not None and self._clock.monotonic_s() >= active.pause_ends_s:
                    _log.warning("paused run goes on, its pause has ended", extra={"run_id": active.record.run_id})
                    await self._resume(active)
                if active.record != written:
                    await self._write(active)
                    written = active.record
                if (owner := await self._runs.cancel_requested_by(active.record.run_id)) is not None:
                    active.gate.stop(Stop(f"cancelled by {owner}", RunState.CANCELLED))
            except (TransientError, WriteOutcomeUnknownError) as error:
                _log.info("progress is not on record", extra={"run_id": active.record.run_id, "reason": str(error)})
            if active.gate.stopped is not None:
                return

    async def _finish(self, active: _Active) -> None:
        record, outcome = active.record, active.outcome
        fields = {"run_id": record.run_id, "state": record.state.value, "verdict": record.verdict}
        _log.info("run ended", extra=fields | {"detail": record.detail})
        attempts_left = _FINISH_ATTEMPTS
        while attempts_left:
            try:
                if outcome is not None and outcome.is_success and not record.is_dry_run:
                    await self._runs.note_success(record.kind, record.started_ms)
                await self._write(active)
                await self._runs.clear_request(record.run_id)
                break
            except (TransientError, WriteOutcomeUnknownError) as error:
                attempts_left -= 0 if active.lease.is_held else 1
                _log.warning("the end of a run is not on record yet", extra=fields | {"reason": str(error)})
                await self._clock.sleep(_FINISH_RETRY_S)
            except (ConflictError, PermanentError) as error:
                _log.error("the end of a run cannot be put on record", extra=fields | {"reason": str(error)})
                break
        await self._release(active.lease)

    async def _write(self, active: _Active) -> None:
        try:
            async with active.writing:
                await self._runs.write(active.record)
        except RunTakenError as error:
            active.gate.stop(Stop(str(error), RunState.ABANDONED))

    async def _release(self, lease: RunLease) -> None:
        """As often as it takes: while its session lives, the lock would keep every other run of this kind out."""
        while True:
            try:
                return await lease.release()
            except (TransientError, WriteOutcomeUnknownError, PermanentError) as error:
                _log.warning("a run's lock is not released yet", extra={"run_id": lease.run_id, "reason": str(error)})
            if not lease.is_held:
                return None
            await self._clock.sleep(_FINISH_RETRY_S)

    async def _own(self, run_id: str) -> _Active:
        """A run of this process that may be paused.

        Raises:
            UnknownRunError, RunOverError, NotLeaderError: see ``Control``.
        """
        active = self._active.get(run_id)
        if active is None:
            record = await self._elsewhere(run_id)
            raise RunOverError(f"run {run_id} is run by {record.process}: it can be cancelled, but not paused")
        if active.record.state.is_final or active.gate.stopped is not None:
            raise RunOverError(f"run {run_id} has ended or is ending: {active.record.state.value}")
        return active

    async def _elsewhere(self, run_id: str) -> RunRecord:
        """The record of a run of another process that has not ended, for the leader to act on."""
        record = await self.get(run_id)
        if record.state.is_final:
            raise RunOverError(f"run {run_id} is over: {record.state.value}")
        if not self._leads.is_leader():
            raise NotLeaderError(self._leads.state.leader)
        return record

    def _update(self, active: _Active, *, event: ProgressEvent | None = None, **fields: Any) -> None:
        if event is not None:
            fields |= {"phase": event.phase.value, "done": event.done, "total": event.total or 0}
        record = replace(active.record, **fields)
        if record != active.record:
            active.record = replace(record, updated_ms=self._clock.epoch_ms())
            self._changed.fire()
