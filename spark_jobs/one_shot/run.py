"""A one-shot run from a command line: the same check as in the service, under the same lock.

It does not stand for election. Only one run of a kind is active at a time, among all processes; see ``RunKeeper``.
SIGTERM, SIGINT and a request to cancel stop it within seconds, between two batches of marking, and leave a record and
no lock.
"""

from __future__ import annotations

import contextlib
import functools
import logging
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
from spark_jobs.one_shot.keeper import RunKeeper
from spark_jobs.runs.gate import RunGate, Stop
from spark_jobs.runs.life_cycle import RunOutcome, outcome_of, outcome_of_error
from spark_jobs.runs.port import Gate, Progress, ProgressEvent, RunStoppedError
from spark_jobs.session import SessionSettings, starting_session
from spark_jobs.settings import AuditSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.runs.run import AuditResult

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SIGNAL_BASE: Final = 128


class OneShotStoppedError(RunStoppedError):
    """A one-shot run was stopped; ``exit_code`` shows the cause to its caller."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class OneShot:
    """What to run."""

    kind: RunKind
    settings: AuditSettings
    session: SessionSettings
    owner: str
    """Who requested the run."""
    wait_s: float = 0.0
    """How long to wait for a run of this kind that is already active."""
    is_scheduled: bool = False
    """Whether a schedule started the run. The start is then not recorded as a change by an operator."""
    is_shadow: bool = False
    """Whether the run belongs to shadow mode, which changes only the records of runs."""


def run_one_shot(
    shot: OneShot,
    progress: Progress | None = None,
    ended: Callable[[RunRecord], None] | None = None,
    then: Callable[[SparkSession, AuditResult, Gate], None] | None = None,
) -> AuditResult:
    """Run one check once.

    In the main thread of a process, this handles SIGTERM, SIGINT and SIGHUP during the run, except for signals that the
    process ignores.

    Args:
        shot: what to run.
        progress: receives the phases and their progress. If it raises an ``OSError``, the run continues: its output may
            be a closed terminal or pipe.
        ended: receives the run's record after its end, whatever the result.
        then: called with the result while Spark still runs and the run still holds its lock; an error that it raises
            becomes the result of the run.

    Raises:
        RunLockedError: a run of this kind is under way.
        OneShotStoppedError: it was cancelled or ended by signals, or its lock was lost.
        BkhealError: any error of ``run_check``.
    """
    clock, gate = SystemClock(), RunGate()
    run_id, now_ms = new_run_id(clock.epoch_ms(), random.SystemRandom()), clock.epoch_ms()
    record = RunRecord(
        run_id,
        shot.kind,
        RunCause.SCHEDULE if shot.is_scheduled else RunCause.COMMAND,
        shot.owner,
        f"{socket.gethostname()}:{os.getpid()}",
        RunState.RUNNING,
        shot.settings.is_dry_run,
        started_ms=now_ms,
    )
    shown = _best_effort(progress)
    keeper = RunKeeper(shot.settings, record, gate, clock, shown, is_change=not shot.is_shadow)

    def on_progress(event: ProgressEvent) -> None:
        keeper.on_progress(event)
        shown(event)

    with without_lost_connections_after_stop(gate), _signals(gate) as install_handlers:
        try:
            run_id = keeper.begin(shot.wait_s)
        except RunStoppedError as error:
            raise _stopped(gate) from error
        outcome = RunOutcome(RunState.FAILED, ExitCode.INTERNAL)
        try:
            with starting_session(shot.session) as started:
                # The modules are imported while Java starts. In a small cluster, the driver may also mark ledgers in
                # this time.
                from spark_jobs.runs.run import run_check

                @functools.cache
                def spark() -> SparkSession:
                    session = started()
                    install_handlers()  # Spark has installed its own handler of SIGINT
                    return session

                result = run_check(spark, shot.kind, shot.settings, on_progress, gate=gate, run_id=run_id)
                if then is not None:
                    then(spark(), result, gate)
            path, limit = Path(result.summary_path).resolve(), shot.settings.namespaces_in_metrics
            outcome = outcome_of(result.summary, path, result.report_problem, namespaces_max=limit)
            return result
        except BaseException as error:
            is_second_signal = isinstance(error, KeyboardInterrupt)
            if gate.stopped is None and not is_second_signal and not isinstance(error, RunStoppedError):
                outcome = outcome_of_error(error, None)
                raise
            stopped = _stopped(gate)  # a signal to the process group also makes Spark fail
            outcome = replace(outcome_of_error(stopped, gate.stopped), detail=str(stopped))
            raise stopped from error
        finally:
            over = keeper.end(outcome)
            if ended is not None:
                ended(over)


def _best_effort(progress: Progress | None) -> Progress:
    def show(event: ProgressEvent) -> None:
        with contextlib.suppress(OSError):
            if progress is not None:
                progress(event)

    return show


def _stopped(gate: RunGate) -> OneShotStoppedError:
    stop = gate.stopped
    if stop is None:
        return OneShotStoppedError("the run was stopped", ExitCode.CANCELLED)
    advice = "; what was marked stays, run again" if stop.state is RunState.ABANDONED else ""
    return OneShotStoppedError(f"{stop.reason}{advice}", stop.exit_code)


def exit_code_of(error: BkhealError) -> int:
    """Return the exit code for an error of a run."""
    match error:
        case OneShotStoppedError():
            return error.exit_code
        case RunLockedError():
            return ExitCode.BUSY
        case _:
            return audit_exit_code(error)


@contextlib.contextmanager
def without_lost_connections_after_stop(gate: RunGate) -> Iterator[None]:
    """Log no lost connection to Java after the run was stopped.

    A signal to the whole process group, such as from ``timeout`` or systemd, also ends Java, in the middle of a call.
    py4j logs this with the root logger.
    """

    def is_logged(record: logging.LogRecord) -> bool:
        return gate.stopped is None or record.module != "java_gateway"

    root = logging.getLogger()
    root.addFilter(is_logged)
    try:
        yield
    finally:
        root.removeFilter(is_logged)


@contextlib.contextmanager
def _signals(gate: RunGate) -> Iterator[Callable[[], None]]:
    """Stop the run on a signal, and immediately on a second one; yields a function to install the handlers again.

    A signal that the process ignores, such as SIGHUP under ``nohup``, stays ignored.

    Raises:
        OneShotStoppedError: there was a second signal.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if gate.stopped is not None:
            raise KeyboardInterrupt
        reason = f"ended by {signal.Signals(number).name}; what was marked stays"
        gate.stop(Stop(reason, RunState.CANCELLED, _SIGNAL_BASE + number))

    def install_handlers() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler is signal.SIG_IGN else stop)

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _SIGNALS} if is_main else {}
    install_handlers()
    try:
        yield install_handlers
    except KeyboardInterrupt as error:
        raise _stopped(gate) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
