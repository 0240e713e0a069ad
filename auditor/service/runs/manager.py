"""Runs of this process: one at a time in each lane, lanes in parallel, each recorded in the store while it runs.

A lane is a kind, or the dry runs of a kind, so a run with marks never waits for a dry run.

Run records are stored in ZooKeeper; this class holds the runs of this process. A run continues only while its term of
leadership and its lock last. Its own thread checks both at each gate, so a process that was suspended stops its runs at
the next gate (S14).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from auditor.api.control import NotLeaderError, RunBusyError, RunEndedError, UnknownRunError
from bookie.metadata.port import StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.runs.election import Leadership
from bookie.metadata.runs.records import RunLane, RunLockedError, Runs, lane_of
from bookie.model.errors import BkhealError, ConflictError, TransientError
from bookie.model.exit_codes import ExitCode
from bookie.model.run import PAUSE_S, RunCause, RunKind, RunRecord, RunState, new_run_id
from bookie.runtime.clock import Clock
from bookie.runtime.signal import Signal, waiting_for
from bookie.runtime.tasks import cancel, guarded
from spark_jobs.runs.gate import RunGate, Stop
from spark_jobs.runs.life_cycle import RunLifeCycle, RunOutcome, described, outcome_of_error
from spark_jobs.runs.port import Phase, ProgressEvent

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request to run a check."""

    run_id: str
    kind: RunKind
    cause: RunCause
    owner: str
    is_dry_run: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class CheckRunner(Protocol):
    """Does the work of a run."""

    async def run(self, request: RunRequest, gate: RunGate, progress: Callable[[ProgressEvent], None]) -> RunOutcome:
        """Run a check to its end; ``progress`` may be called from any thread.

        Raises:
            RunStoppedError: the gate ended it.
        """
        ...


class ElectionView(Protocol):
    """The part of ``Election`` that runs use."""

    @property
    def state(self) -> Leadership:
        """The leadership of this process."""
        ...

    def is_leader(self, term: int | None = None) -> bool:
        """True if this process leads."""
        ...


VIA: Final[Mapping[RunCause, str]] = {RunCause.HTTP: "http", RunCause.GRPC: "grpc", RunCause.SPARK_UI: "spark ui"}
"""The names of the ways in which an operator starts a run here; the service itself starts runs of other causes."""
NoteChange = Callable[[str, str, str, str], Awaitable[None]]
"""Records a change: the operator, the way, the action, the detail. If it raises StoreUnavailableError or
WriteOutcomeUnknownError, the change is not made."""


async def _note_nothing(owner: str, via: str, action: str, detail: str) -> None:
    pass


RunEnded = Callable[[RunRecord], None]
"""Receives the record of each ended run. Must not block."""


class RunManager:
    """The runs of this process. Used on one loop."""

    def __init__(
        self,
        runs: Runs,
        election: ElectionView,
        runner: CheckRunner,
        *,
        process: str,
        clock: Clock,
        rng: random.Random,
        pause_s: float = PAUSE_S,
        note: NoteChange | None = None,
    ) -> None:
        """Prepare.

        Args:
            runs: the records in the store.
            election: whether this process leads, and its term.
            runner: does the work of a run.
            process: the name of this process in records.
            clock: for times.
            rng: for ids of runs.
            pause_s: how long a pause lasts.
            note: records what an operator requests, before it is done; None: nothing is recorded.
        """
        self._runs = runs
        self._election = election
        self._runner = runner
        self._process = process
        self._clock = clock
        self._rng = rng
        self._pause_s = pause_s
        self._note = note or _note_nothing
        self._active: dict[str, RunLifeCycle] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._beginning: dict[RunLane, asyncio.Task[RunRecord]] = {}
        self._is_stopping = False
        self._changed = Signal()
        self._listeners: list[RunEnded] = []

    @property
    def running(self) -> Sequence[RunRecord]:
        """Current runs of this process."""
        return tuple(active.record for active in self._active.values())

    def running_in(self, lane: RunLane) -> RunRecord | None:
        """The current run of a lane in this process, if there is one."""
        return next((active.record for active in self._active.values() if lane_of(active.record) == lane), None)

    def on_ended(self, listener: RunEnded) -> None:
        """Call ``listener`` at the end of each run."""
        self._listeners.append(listener)

    async def start(
        self, kind: RunKind, *, cause: RunCause, owner: str, is_dry_run: bool = False, options: Mapping[str, Any]
    ) -> RunRecord:
        """Start a run (``Control.start_run``). If the caller is cancelled, the run still begins, or leaves no lock."""
        leadership = self._election.state
        if self._is_stopping or not self._election.is_leader():
            raise NotLeaderError("" if self._is_stopping else leadership.leader)
        lane = RunLane(kind, is_dry_run)
        if (other := self.running_in(lane)) is not None or lane in self._beginning:
            raise RunBusyError(kind, "" if other is None else other.run_id, self._process, is_dry_run=is_dry_run)
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
        beginning = self._beginning[lane] = asyncio.ensure_future(self._begin(record, leadership.term, options))
        beginning.add_done_callback(lambda task: self._on_begun(lane, task))
        return await asyncio.shield(beginning)

    def _on_begun(self, lane: RunLane, task: asyncio.Task[RunRecord]) -> None:
        del self._beginning[lane]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.info("run was not started", extra={"kind": lane.name, "reason": str(error)})

    async def _begin(self, record: RunRecord, term: int, options: Mapping[str, Any]) -> RunRecord:
        run_id, kind = record.run_id, record.kind
        gate = RunGate(lambda: "" if self._election.is_leader(term) else "this auditor is no longer the leader")
        run = RunLifeCycle(self._runs, record, gate, self._clock, self._changed.fire)
        await self._announce(record, options)
        try:
            await run.begin()
        except RunLockedError as error:
            holder = error.holder
            raise RunBusyError(kind, holder.run_id, holder.process, is_dry_run=record.is_dry_run) from error
        except (TransientError, WriteOutcomeUnknownError, ConflictError) as error:
            raise StoreUnavailableError(f"the run was not started: {error}") from error
        request = RunRequest(run_id, kind, record.cause, record.owner, record.is_dry_run, dict(options))
        self._active[run_id] = run
        self._tasks[run_id] = guarded(f"run {run_id}", self._run_to_end(run, request))
        self._changed.fire()
        fields = {"run_id": run_id, "kind": kind.value, "cause": record.cause.value, "owner": record.owner}
        _log.info("run started", extra=fields)
        return record

    async def cancel(self, run_id: str, owner: str, via: str = "") -> RunRecord:
        """Cancel a run (``Control.cancel_run``). The leader also cancels runs of other processes, by a request to them.

        If ``via`` is empty, the request is not an operator's, and nothing is recorded.
        """
        active = self._active.get(run_id)
        record = await self._run_of_other_process(run_id) if active is None else active.record
        if record.state.is_final:
            raise RunEndedError(f"run {run_id} has already ended: {record.state.value}")
        if via:
            await self._note(owner, via, "run cancel", f"{run_id} {record.kind.value}")
        if active is None:
            await self._runs.request_cancel(run_id, owner)
            return record
        active.cancel(owner)
        return active.record

    async def end_delaying_run(self, kind: RunKind, busy_run_id: str, reason: str) -> None:
        """End the run that delays the reaction to a lost bookie.

        Even a paused run is ended, but not a reaction that is itself active. Another process is asked to end its run.
        Dry runs continue, because they delay nothing. The function does not wait for the end.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: a run of another process could not be asked.
        """
        record = self.running_in(RunLane(kind))
        if record is None and busy_run_id:
            record = await self._runs.get(busy_run_id)
        if record is None or record.state.is_final:
            return
        if record.cause is RunCause.BOOKIE_LOSS and record.state is not RunState.PAUSED:
            return
        _log.warning("run is cancelled for the reaction to a lost bookie", extra={"run_id": record.run_id})
        await self.cancel(record.run_id, reason)

    async def pause(self, run_id: str, owner: str, via: str) -> RunRecord:
        """Pause a run (``Control.pause_run``)."""
        active = await self._own(run_id)
        await self._note(owner, via, "run pause", f"{run_id} {active.record.kind.value}")
        await active.pause(owner, self._pause_s)
        return active.record

    async def resume(self, run_id: str, owner: str, via: str) -> RunRecord:
        """Resume a run (``Control.resume_run``)."""
        active = await self._own(run_id)
        await self._note(owner, via, "run resume", f"{run_id} {active.record.kind.value}")
        await active.resume()
        return active.record

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
        stored = await self._runs.list(limit, self._clock.epoch_ms())
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
        """Wait until no run of this kind with marks is under way, in this process or another one.

        Raises:
            StoreUnavailableError: no answer, or the session was lost while waiting.
        """
        lane = RunLane(kind)
        while self.running_in(lane) is not None:
            with waiting_for(self._changed) as waiter:
                if self.running_in(lane) is None:
                    break
                await waiter
        await self._runs.wait_lane_free(lane)

    def refuse_new_runs(self) -> None:
        """Start no more runs: this process is about to end, and another one will lead."""
        self._is_stopping = True

    def stop_all(self, stop: Stop) -> None:
        """End every run of this process at its next gate."""
        for active in self._active.values():
            active.gate.stop(stop)

    async def wait_all_ended(self, deadline_s: float) -> bool:
        """Wait until no run of this process is left; False if the deadline has passed before that."""
        if left := [*self._tasks.values(), *self._beginning.values()]:
            await asyncio.wait(left, timeout=deadline_s)
        return not self._tasks and not self._beginning

    async def end_all_records(self, deadline_s: float) -> None:
        """Record the end of runs that do not pass a gate, and release their locks; wait for ``deadline_s`` at most.

        Their threads end at their next gates. The records of such runs would otherwise look like those of a process
        that was killed.
        """
        left = [*self._tasks.values()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=deadline_s)

    async def _run_to_end(self, run: RunLifeCycle, request: RunRequest) -> None:
        following = guarded(f"record of run {request.run_id}", run.follow())
        try:
            outcome = await self._execute(run, request)
        except asyncio.CancelledError as error:
            stop = run.gate.stopped or Stop("its process stopped", RunState.ABANDONED, ExitCode.CANCELLED)
            outcome = outcome_of_error(error, stop)
        finally:
            await cancel(following)
        try:
            await run.end(outcome)
        finally:
            del self._active[request.run_id], self._tasks[request.run_id]
            self._changed.fire()
            for listener in self._listeners:
                listener(run.record)

    async def _execute(self, run: RunLifeCycle, request: RunRequest) -> RunOutcome:
        try:
            run.gate.check()
            return await self._runner.run(request, run.gate, run.note)
        except Exception as error:  # noqa: BLE001  # the boundary of a run: it ends, the service continues
            outcome = outcome_of_error(error, run.gate.stopped)
            if outcome.state is RunState.FAILED:
                unforeseen = None if isinstance(error, BkhealError) else error
                _log.error("run failed", extra={"run_id": request.run_id, "reason": str(error)}, exc_info=unforeseen)
            return outcome

    async def _announce(self, record: RunRecord, options: Mapping[str, Any]) -> None:
        """Record an operator's start of a run, unless another one is under way. The lock of the run decides finally.

        Raises:
            RunBusyError: another process runs one.
            StoreUnavailableError: the start cannot be recorded, so the run must not begin.
        """
        via = VIA.get(record.cause)
        if via is None:
            return
        if (holder := await self._runs.holder(lane_of(record))) is not None:
            raise RunBusyError(record.kind, holder.run_id, holder.process, is_dry_run=record.is_dry_run)
        try:
            await self._note(record.owner, via, "run start", described(record, options))
        except WriteOutcomeUnknownError as error:
            raise StoreUnavailableError(f"the run was not started: {error}") from error

    async def _own(self, run_id: str) -> RunLifeCycle:
        """Return a run of this process that can be paused.

        Raises:
            UnknownRunError, RunEndedError, NotLeaderError: see ``Control``.
        """
        active = self._active.get(run_id)
        if active is None:
            record = await self._run_of_other_process(run_id)
            raise RunEndedError(f"run {run_id} is run by {record.process}: it can be cancelled, but not paused")
        if active.record.state.is_final or active.gate.stopped is not None:
            raise RunEndedError(f"run {run_id} has ended or is ending: {active.record.state.value}")
        return active

    async def _run_of_other_process(self, run_id: str) -> RunRecord:
        """Return the record of another process's run, if this process leads."""
        record = await self.get(run_id)
        if record.state.is_final:
            raise RunEndedError(f"run {run_id} has already ended: {record.state.value}")
        if not self._election.is_leader():
            raise NotLeaderError(self._election.state.leader)
        return record
