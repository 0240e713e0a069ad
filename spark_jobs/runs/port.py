"""What a run requires of its caller: a gate, at which it is paused and stopped, and a receiver of its progress.

The gate is passed between phases, chunks and batches. During a Spark job, it is polled for the reason to stop.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from bookie.model.errors import ConflictError


class RunStoppedError(ConflictError):
    """The run must stop: it was cancelled, or its process may no longer run it.

    Existing marks stay.
    """


class Gate(Protocol):
    """Passed before each phase, each chunk of a long phase, and each batch of marking."""

    def pass_through(self) -> None:
        """Return immediately, or at the end of a pause.

        It is called in the run's own thread, and blocks during a pause.

        Raises:
            RunStoppedError: the run must stop now; the text has the reason.
        """
        ...

    def stop_reason(self) -> str | None:
        """Return why the run must end now; None: it may continue. It never blocks, not even during a pause.

        It is called twice a second from a helper thread during a Spark job, so a job of minutes is cancelled within
        seconds. After it has returned a reason once, it must always return one.
        """
        ...


class OpenGate(Gate):
    """Never pauses and never stops."""

    @override
    def pass_through(self) -> None:
        pass

    @override
    def stop_reason(self) -> str | None:
        return None


class Phase(enum.Enum):
    """The phases of an audit.

    A bookie check marks before it writes its report, the other checks mark afterwards. A scan is repeated if a bookie
    leaves during it.
    """

    WAIT = "waiting for the end of another run"
    PLAN = "planning"
    IMAGE = "marking ledgers that the image names"
    SCAN = "reading ledger metadata"
    CHECK = "checking"
    ASK = "asking bookies"
    REPORT = "writing the report"
    PUBLISH = "marking ledgers"
    COMPARE = "comparing with the existing tasks"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """The start or progress of a phase."""

    phase: Phase
    done: int = 0
    total: int | None = None
    """The unit is that of ``done``: Spark tasks in SCAN and CHECK, ledgers in ASK and PUBLISH. None: unknown."""


Progress = Callable[[ProgressEvent], None]
"""It is called in the audit's own thread and, during Spark jobs, in a helper thread, but never in both at the same
time."""
