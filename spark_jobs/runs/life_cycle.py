"""The life cycle of one run: the lock of its lane, its record during the run, and its end.

A run may continue exactly as long as its lock lasts. The order of the steps makes this true for every reader of the
store: the run takes the lock before it writes the record, and releases the lock only after the record shows the end. A
process that dies before the release leaves a record without a lock; the next run of the kind, or the leading auditor,
marks it abandoned. The gate checks the lock in the run's own thread. So after a process was suspended for longer than
its session lasts, the run ends as soon as the process resumes (S14).

The auditor service has several of these on its event loop. The one-shot command has one, in its own thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bookie.metadata.port import WriteOutcomeUnknownError
from bookie.metadata.runs.records import RunLease, Runs, RunTakenError, lane_of
from bookie.model.errors import BkhealError, ConflictError, PermanentError, TransientError
from bookie.model.exit_codes import ExitCode, audit_exit_code
from bookie.model.run import RunKind, RunRecord, RunState
from bookie.model.times import rfc3339
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import guarded
from spark_jobs.report.summary import RunSummary
from spark_jobs.runs.gate import RunGate, Stop
from spark_jobs.runs.outcome import is_for_report
from spark_jobs.runs.port import ProgressEvent, RunStoppedError

_log = logging.getLogger(__name__)

REPORT_INTERVAL_S: Final = 2.0
"""Interval between two writes of a run's progress, and between two checks for a request to end it."""
_MARKING: Final = (RunKind.BOOKIES, RunKind.EVERYTHING)
"""The kinds of runs that mark the ledgers of lost bookies and write an image."""
_END_ATTEMPTS: Final = 3
"""Number of attempts to write the end of a run whose session has ended. If all fail, the next leader marks it
abandoned."""
_RETRY_S: Final = 1.0


def described(record: RunRecord, options: Mapping[str, Any]) -> str:
    """Describe a started run for the record of changes. Pure."""
    chosen = [f"{name}={value}" for name, value in sorted(options.items())]
    return " ".join([record.run_id, record.kind.value, *(["dry run"] if record.is_dry_run else []), *chosen])


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a run. Fields without a description are as in ``RunRecord``."""

    state: RunState
    exit_code: int
    detail: str = ""
    verdict: str = ""
    is_success: bool = False
    """Whether the run counts for the schedule and for lost bookies: it saw every ledger, was not held, and was not a
    dry run."""
    ledgers: int = 0
    findings: Mapping[str, int] = field(default_factory=dict)
    tasks_changed: int = 0
    report: str = ""
    held_back: Mapping[str, int] = field(default_factory=dict)
    """This field and the next three are as in ``RunRecord``."""
    withdrawn: Mapping[str, int] = field(default_factory=dict)
    image: Mapping[str, int] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    also_done: tuple[RunKind, ...] = ()
    """Other kinds of checks that the run completed successfully. It counts for their schedules as well."""
    is_every_ledger: bool = True
    """This field and the next one are as in ``RunRecord``."""
    contained_done: tuple[RunKind, ...] = ()

    def record_fields(self) -> dict[str, Any]:
        """Return the fields of the run's record."""
        return {
            "state": self.state,
            "exit_code": self.exit_code,
            "detail": self.detail,
            "verdict": self.verdict,
            "ledgers": self.ledgers,
            "findings": self.findings,
            "tasks_changed": self.tasks_changed,
            "held_back": self.held_back,
            "withdrawn": self.withdrawn,
            "image": self.image,
            "namespaces": self.namespaces,
            "report": self.report,
            "is_every_ledger": self.is_every_ledger,
            "contained_done": self.contained_done,
        }


def outcome_of(summary: RunSummary, report: Path, why_no_report: str = "", *, namespaces_max: int = 0) -> RunOutcome:
    """Return the outcome of a finished run.

    Args:
        summary: the summary of the run.
        report: path of the summary of its report.
        why_no_report: the reason why the report could not be written; empty: it was written. Unless the report is the
            purpose of the run, the run is complete without it.
        namespaces_max: largest number of namespaces of Pulsar that the record names.
    """
    is_delivered = not why_no_report or not is_for_report(summary.kind, is_dry_run=summary.is_dry_run)
    is_complete = summary.is_complete and summary.held_because is None and is_delivered
    no_report = f"the report is missing: {why_no_report}" if why_no_report else ""
    is_marked = summary.published.outcome.is_all or summary.kind not in _MARKING
    is_success = is_marked and is_delivered and not summary.is_dry_run
    return RunOutcome(
        state=RunState.DONE,
        exit_code=int(summary.exit_code() or (ExitCode.CONFIGURATION if why_no_report else ExitCode.OK)),
        detail="; ".join(filter(None, (summary.held_because or "; ".join(summary.incomplete_reasons), no_report))),
        verdict=summary.verdict.value,
        is_success=is_complete and is_success and summary.is_every_ledger,
        ledgers=summary.ledgers_checked,
        findings={count.severity.label: count.ledgers for count in summary.severities if count.ledgers},
        tasks_changed=summary.published.tasks_changed,
        report="" if why_no_report else str(report),
        held_back=dict(summary.published.held_back),
        withdrawn=dict(summary.published.withdrawn),
        image=_image(summary),
        namespaces=summary.impact.by_namespace(namespaces_max),
        also_done=_other_kinds_done(summary, has_report=not why_no_report) if is_success else (),
        is_every_ledger=summary.is_every_ledger,
        contained_done=tuple(kind for kind in summary.kinds_done if kind is not summary.kind),
    )


def _other_kinds_done(summary: RunSummary, *, has_report: bool) -> tuple[RunKind, ...]:
    others = (kind for kind in summary.kinds_done if kind is not summary.kind)
    return tuple(kind for kind in others if has_report or not is_for_report(kind, is_dry_run=False))


def _image(summary: RunSummary) -> Mapping[str, int]:
    if summary.kind not in _MARKING:
        return {}
    image = summary.image
    return {
        "marked": image.marked,
        "written_from_ms": image.written_from_ms,
        "written_ledgers": image.written_ledgers,
        "written_bytes": image.written_bytes,
    }


def outcome_of_error(error: BaseException, stop: Stop | None) -> RunOutcome:
    """Return the outcome of a run after an error.

    Args:
        error: the error.
        stop: why the run had to end; None: it did not have to. It takes precedence over the error, because a cancelled
            Spark job raises an error of Spark.
    """
    if stop is not None:
        return RunOutcome(stop.state, stop.exit_code, stop.reason)
    if isinstance(error, RunStoppedError):
        return RunOutcome(RunState.CANCELLED, ExitCode.CANCELLED, str(error))
    code = audit_exit_code(error) if isinstance(error, Exception) else ExitCode.INTERNAL
    detail = str(error) if isinstance(error, BkhealError) else f"{type(error).__name__}: {error}"
    return RunOutcome(RunState.FAILED, code, detail)


class RunLifeCycle:
    """The life cycle of one run, used on one event loop. ``note`` and the gate may be used from any thread."""

    def __init__(
        self, runs: Runs, record: RunRecord, gate: RunGate, clock: Clock, changed: Callable[[], None] | None = None
    ) -> None:
        """Prepare a run before its start. ``changed`` is called on the loop after each change of the run's record."""
        self._runs = runs
        self._record = record
        self._clock = clock
        self._changed = changed
        self._event: ProgressEvent | None = None
        self._lease: RunLease | None = None
        self._written = record
        self._pause_ends_s: float | None = None
        self._writing = asyncio.Lock()
        """Allows only one write of the record at a time: two writes would each take the other for that of another
        process."""
        self.gate = gate

    @property
    def record(self) -> RunRecord:
        """The record, which is already stored or will be soon."""
        return self._record

    def note(self, event: ProgressEvent) -> None:
        """Note the progress of the run for its record."""
        self._event = event  # replacing a reference is atomic

    async def begin(self) -> None:
        """Take the lock of the lane, and write the record of the run.

        Raises:
            RunLockedError: another run of this lane is in progress. Runs of one kind share a lane, except that dry runs
                have their own.
            StoreUnavailableError, WriteOutcomeUnknownError, RunTakenError: the run has not begun; its lock is released
                in the background.
        """
        record = self._record
        lease = self._lease = await self._runs.acquire(lane_of(record), record.run_id, record.process)
        try:
            await self._runs.write(record)
        except BaseException:
            guarded(f"lock of run {record.run_id}", self._release(lease))
            raise
        self.gate.forbid_if(lambda: "" if lease.is_held else "the session that held the run's lock has ended")

    async def follow(self) -> None:
        """Keep the record current and check for requests to end the run, until the gate stops it.

        A step that the store refuses is tried again like one without an answer, because a permission may be given back
        during the run. The other steps do not wait for it.
        """
        refused: dict[str, str] = {}
        while self.gate.stopped is None:
            await self._clock.sleep(REPORT_INTERVAL_S)
            self._take_progress()
            for step in (self._end_pause_if_due, self._write_changes, self._end_if_requested):
                try:
                    await step()
                except (TransientError, WriteOutcomeUnknownError) as error:
                    _log.info(
                        "the progress of a run could not be recorded, trying again",
                        extra={"run_id": self._record.run_id, "reason": str(error)},
                    )
                    break
                except (PermanentError, ConflictError) as error:
                    if refused.get(step.__name__) != str(error):
                        refused[step.__name__] = str(error)
                        _log.error(
                            "the record of a run or the requests to end it are refused, trying again",
                            extra={"run_id": self._record.run_id, "reason": str(error)},
                        )
                else:
                    refused.pop(step.__name__, None)

    async def _end_pause_if_due(self) -> None:
        if self._pause_ends_s is not None and self._clock.monotonic_s() >= self._pause_ends_s:
            _log.warning("paused run continues, its pause has ended", extra={"run_id": self._record.run_id})
            await self.resume(f"continues automatically: its pause ended at {rfc3339(self._record.pause_ends_ms)}")

    async def _write_changes(self) -> None:
        if self._record != self._written:
            await self._write()

    async def _end_if_requested(self) -> None:
        if (owner := await self._runs.cancel_requested_by(self._record.run_id)) is not None:
            self.gate.stop(Stop(f"cancelled by {owner}", RunState.CANCELLED))

    def cancel(self, owner: str) -> None:
        """End the run at its next gate."""
        self.gate.stop(Stop(f"cancelled by {owner}", RunState.CANCELLED))
        self._update(detail=f"cancelled by {owner}")

    async def pause(self, owner: str, pause_s: float) -> None:
        """Hold the run at its next gate, for ``pause_s`` from now.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: the run is paused, and its record may not show it yet.
        """
        self.gate.pause()
        self._pause_ends_s = self._clock.monotonic_s() + pause_s
        ends_ms = self._clock.epoch_ms() + int(pause_s * 1000)
        detail = f"paused by {owner} until {rfc3339(ends_ms)}; another pause extends it"
        self._update(state=RunState.PAUSED, pause_ends_ms=ends_ms, detail=detail)
        await self._write()

    async def resume(self, detail: str = "") -> None:
        """End a pause; ``detail`` is for the record of the run.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: the run continues, and its record may not show it yet.
        """
        self.gate.resume()
        self._pause_ends_s = None
        self._update(state=RunState.RUNNING, pause_ends_ms=0, detail=detail)
        await self._write()

    async def end(self, outcome: RunOutcome) -> None:
        """Record the end of the run, and release its lock; ``follow`` must have ended.

        This is retried as long as the lock is held, and then a few more times. If the store never answers, this is only
        logged.
        """
        self._take_progress()
        self._update(finished_ms=self._clock.epoch_ms(), pause_ends_ms=0, **outcome.record_fields())
        record = self._record
        fields = {"run_id": record.run_id, "state": record.state.value, "verdict": record.verdict}
        _log.info("run ended", extra=fields | {"detail": record.detail})
        attempts_left = _END_ATTEMPTS
        while attempts_left:
            try:
                await self._note_success(outcome)
                await self._write()
                await self._runs.clear_request(record.run_id)
                break
            except (TransientError, WriteOutcomeUnknownError) as error:
                attempts_left -= 0 if self._lease is not None and self._lease.is_held else 1
                _log.warning(
                    "the end of a run could not be recorded, trying again", extra=fields | {"reason": str(error)}
                )
                await self._clock.sleep(_RETRY_S)
            except (ConflictError, PermanentError) as error:
                _log.error("the end of a run cannot be recorded", extra=fields | {"reason": str(error)})
                break
        if self._lease is not None:
            await self._release(self._lease)

    async def _note_success(self, outcome: RunOutcome) -> None:
        """Note the success for the schedules.

        A refusal is only logged, so that the end of the run is still recorded.
        """
        record = self._record
        if record.is_dry_run:
            return
        for kind in (*((record.kind,) if outcome.is_success else ()), *outcome.also_done):
            try:
                await self._runs.note_success(kind, record.started_ms, self._clock.epoch_ms())
            except (ConflictError, PermanentError) as error:
                fields = {"run_id": record.run_id, "kind": kind.value, "reason": str(error)}
                _log.error("the success of a run cannot be recorded, so its schedule does not count it", extra=fields)

    def _take_progress(self) -> None:
        if (event := self._event) is not None:
            now_ms = self._clock.epoch_ms()
            self._replace(self._record.with_progress(event.phase.value, event.done, event.total or 0, now_ms))

    def _update(self, **fields: Any) -> None:
        self._replace(replace(self._record, **fields))

    def _replace(self, record: RunRecord) -> None:
        if record != self._record:
            self._record = replace(record, updated_ms=self._clock.epoch_ms())
            if self._changed is not None:
                self._changed()

    async def _write(self) -> None:
        try:
            async with self._writing:
                written = self._record
                await self._runs.write(written)
                self._written = written
        except RunTakenError as error:
            self.gate.stop(Stop(str(error), RunState.ABANDONED, ExitCode.STORE_UNREACHABLE))

    async def _release(self, lease: RunLease) -> None:
        """Release the lock. Retry while the session lasts, because the lock excludes all other runs of this kind."""
        while True:
            try:
                return await lease.release()
            except (TransientError, WriteOutcomeUnknownError, PermanentError) as error:
                _log.warning("a run's lock is not released yet", extra={"run_id": lease.run_id, "reason": str(error)})
            if not lease.is_held:
                return None
            await self._clock.sleep(_RETRY_S)
