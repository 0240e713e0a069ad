"""The gate of one run: pause, resume and stop, and the proof of the right to continue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunState
from spark_jobs.runs.port import Gate, RunStoppedError

_POLL_S: Final = 0.5
"""Interval at which a paused run checks whether it must stop, seconds."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The reason why a run must end, and its state and exit code after that."""

    reason: str
    state: RunState
    exit_code: int = ExitCode.CANCELLED
    """Exit code in the run's record, and of a process with only this run."""


class RunGate(Gate):
    """The gate of a run (``Gate``). Every method may be called from any thread, and from a signal handler."""

    def __init__(self, *forbidden_because: Callable[[], str]) -> None:
        """Prepare.

        Each argument returns the reason why the run may not continue, or an empty text; it must not block.
        """
        self._forbidden_because = forbidden_because
        self._condition = threading.Condition(threading.RLock())
        self._stop: Stop | None = None
        self._is_paused = False

    @property
    def is_paused(self) -> bool:
        """Whether the run is waiting, or will wait at its next gate."""
        return self._is_paused

    @property
    def stopped(self) -> Stop | None:
        """Why the run must end; None: it may continue."""
        if self._stop is None and (reason := next(filter(None, (why() for why in self._forbidden_because)), "")):
            self.stop(Stop(reason, RunState.ABANDONED, ExitCode.STORE_UNREACHABLE))
        return self._stop

    def forbid_if(self, because: Callable[[], str]) -> None:
        """Add a source of reasons to those given to the constructor."""
        self._forbidden_because = (*self._forbidden_because, because)

    @override
    def stop_reason(self) -> str | None:
        stop = self.stopped
        return None if stop is None else stop.reason

    @override
    def pass_through(self) -> None:
        with self._condition:
            while True:
                self.check()
                if not self._is_paused:
                    return
                self._condition.wait(_POLL_S)

    def check(self) -> None:
        """Pass without waiting, paused or not.

        Raises:
            RunStoppedError: the run must end now.
        """
        if (stop := self.stopped) is not None:
            raise RunStoppedError(stop.reason)

    def pause(self) -> None:
        """Hold the run at its next gate."""
        with self._condition:
            self._is_paused = True

    def resume(self) -> None:
        """Let the run continue."""
        with self._condition:
            self._is_paused = False
            self._condition.notify_all()

    def stop(self, stop: Stop) -> None:
        """End the run at its next gate, and its Spark jobs within a second. The first reason counts."""
        with self._condition:
            self._stop = self._stop or stop
            self._condition.notify_all()
