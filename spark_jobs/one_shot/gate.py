"""The gate of a one-shot run: open until the run must stop."""

from __future__ import annotations

import threading

from typing_extensions import override

from bookie.model.exit_codes import ExitCode
from spark_jobs.runs.port import Gate, RunStoppedError

SIGNAL_BASE = 128


class OneShotStoppedError(RunStoppedError):
    """A one-shot run was stopped; ``exit_code`` shows the cause to its caller."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code

    @property
    def is_cancelled(self) -> bool:
        """True if the stop was requested, by a caller or by a signal."""
        return self.exit_code == ExitCode.CANCELLED or self.exit_code > SIGNAL_BASE


class StopGate(Gate):
    """The gate of a one-shot run (``Gate``). Every method may be called from any thread, and from a signal handler."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._stop: tuple[str, int] | None = None

    def stop(self, reason: str, exit_code: int) -> None:
        """End the run within seconds. The first reason counts."""
        self._stop = self._stop or (reason, exit_code)
        self.stopped.set()

    @override
    def stop_reason(self) -> str | None:
        return None if self._stop is None else self._stop[0]

    @override
    def pass_through(self) -> None:
        if self._stop is not None:
            raise self.error()

    def error(self) -> OneShotStoppedError:
        """The error that the run ends with, once it was stopped."""
        reason, exit_code = self._stop or ("the run was stopped", ExitCode.CANCELLED)
        return OneShotStoppedError(reason, exit_code)
