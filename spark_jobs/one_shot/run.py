"""A one-shot run from a command line: the same check as in the service, beside it, under the same lock.

It does not vote for the leadership. One run of a kind is active at a time, in any process; see ``RunKeeper``. SIGTERM,
SIGINT and a request to cancel stop it within seconds, between two batches of marking, and leave a record and no lock.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from bookie.metadata.runs.records import RunLockedError
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode, audit_exit_code
from bookie.model.run import RunCause, RunKind, RunRecord, RunState, new_run_id
from bookie.runtime.clock import SystemClock
from spark_jobs.one_shot.gate import SIGNAL_BASE, OneShotStoppedError, StopGate
from spark_jobs.one_shot.keeper import RunKeeper
from spark_jobs.report.summary import PublishOutcome, RunSummary
from spark_jobs.runs.port import Gate, Progress, ProgressEvent, RunStoppedError
from spark_jobs.session import SessionSettings, spark_session
from spark_jobs.settings import AuditSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.runs.run import AuditResult

WAIT_S_MAX: Final = 7 * 86_400.0
"""Longest wait for the run before: nothing waits for ever."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_MARKED_ALL: Final = (PublishOutcome.PUBLISHED, PublishOutcome.NOTHING_TO_PUBLISH)


@dataclass(frozen=True, slots=True)
class OneShot:
    """What to run."""

    kind: RunKind
    settings: AuditSettings
    session: SessionSettings
    owner: str
    """Who asked."""
    wait_s: float = 0.0
    """How long to wait for a run of this kind that is under way."""


def run_one_shot(
    shot: OneShot,
    progress: Progress | None = None,
    ended: Callable[[RunRecord], None] | None = None,
    then: Callable[[SparkSession, AuditResult, Gate], None] | None = None,
) -> AuditResult:
    """Run one check once. In the main thread of a process, it handles SIGTERM, SIGINT and SIGHUP during the run.

    Args:
        shot: what to run.
        progress: receives the phases and their progress.
        ended: receives the run's record after its end, with any result.
        then: called with the result while Spark is still there and the run still holds its lock; what it raises is how
            the run ended.

    Raises:
        RunLockedError: a run of this kind is under way.
        OneShotStoppedError: it was cancelled, or its lock was lost.
        BkhealError: any error of ``run_check``.
    """
    clock, gate = SystemClock(), StopGate()
    run_id = new_run_id(clock.epoch_ms(), random.SystemRandom())
    started = RunRecord(
        run_id,
        shot.kind,
        RunCause.COMMAND,
        shot.owner,
        f"{socket.gethostname()}:{os.getpid()}",
        RunState.RUNNING,
        shot.settings.is_dry_run,
        started_ms=clock.epoch_ms(),
    )
    keeper = RunKeeper(shot.settings, started, gate, clock, progress)

    def on_progress(event: ProgressEvent) -> None:
        keeper.on_progress(event)
        if progress is not None:
            progress(event)

    with _signals(gate) as take_over:
        keeper.begin(shot.wait_s)
        record, is_success = replace(started, state=RunState.FAILED, exit_code=ExitCode.INTERNAL), False
        try:
            with spark_session(shot.session) as spark:
                take_over()  # Spark's own handler of SIGINT is installed by now
                from spark_jobs.runs.run import run_check

                result = run_check(spark, shot.kind, shot.settings, on_progress, gate=gate, run_id=run_id)
                if then is not None:
                    then(spark, result, gate)
            record, is_success = _done(started, result), _is_success(result.summary)
            return result
        except RunStoppedError as error:
            stopped = gate.error()
            state = RunState.CANCELLED if stopped.is_cancelled else RunState.ABANDONED
            record = replace(started, state=state, exit_code=stopped.exit_code, detail=str(stopped))
            raise stopped from error
        except BkhealError as error:
            record = replace(record, exit_code=exit_code_of(error), detail=str(error))
            raise
        finally:
            over = replace(record, finished_ms=clock.epoch_ms())
            keeper.end(over, is_success=is_success)
            if ended is not None:
                ended(over)


def exit_code_of(error: BkhealError) -> int:
    """Exit code of a run that an error ended."""
    match error:
        case OneShotStoppedError():
            return error.exit_code
        case RunLockedError():
            return ExitCode.BUSY
        case _:
            return audit_exit_code(error)


def _done(started: RunRecord, result: AuditResult) -> RunRecord:
    summary = result.summary
    return replace(
        started,
        state=RunState.DONE,
        verdict=summary.verdict.value,
        exit_code=int(summary.exit_code()),
        ledgers=summary.counts.ledgers,
        findings={count.severity.name.lower(): count.ledgers for count in summary.severities if count.ledgers},
        tasks_changed=summary.published.tasks_changed,
        report=str(Path(result.summary_path).resolve()),
        detail=summary.held_because or "; ".join(summary.problems),
    )


def _is_success(summary: RunSummary) -> bool:
    is_complete = summary.is_complete and summary.held_because is None
    is_marked = summary.published.outcome in _MARKED_ALL or summary.kind is not RunKind.BOOKIES
    return is_complete and is_marked and not summary.is_dry_run


@contextlib.contextmanager
def _signals(gate: StopGate) -> Iterator[Callable[[], None]]:
    """Stop the run on a signal, and at once on a second one; yields how to take the signals over again."""

    def stop(number: int, frame: FrameType | None) -> None:
        if gate.stopped.is_set():
            raise KeyboardInterrupt
        gate.stop(f"ended by {signal.Signals(number).name}; what was marked stays", SIGNAL_BASE + number)

    def take_over() -> None:
        for number in before:
            signal.signal(number, stop)

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _SIGNALS} if is_main else {}
    take_over()
    try:
        yield take_over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
