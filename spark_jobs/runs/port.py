"""Where a run may be paused and stopped: between its phases, chunks and batches, and in the middle of a Spark job."""

from __future__ import annotations

from typing import Protocol

from bookie.model.errors import ConflictError


class RunStoppedError(ConflictError):
    """The run must not go on: somebody cancelled it, or whoever ran it is no leader any more. What was marked stays."""


class Gate(Protocol):
    """Passed before each phase, each chunk of a long phase, and each batch of marking."""

    def pass_through(self) -> None:
        """Return at once, or when a pause is over. Called in the run's own thread; blocks.

        Raises:
            RunStoppedError: the run must end now; the text says why.
        """
        ...

    def stop_reason(self) -> str | None:
        """Why the run must end now; None: it need not. Never blocks, also not during a pause.

        Asked twice a second from a helper thread while a Spark job runs, so that a job of minutes is cancelled within
        seconds. Once it has given a reason it must go on doing so.
        """
        ...


class OpenGate:
    """Never pauses and never stops."""

    def pass_through(self) -> None:
        """See ``Gate``."""

    def stop_reason(self) -> str | None:
        """See ``Gate``."""
        return None
