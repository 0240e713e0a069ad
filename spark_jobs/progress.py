"""Progress of an audit, for a progress bar or a log. Importable without Spark."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


class Phase(enum.Enum):
    """Phases of an audit. A bookie check marks before it writes its report, the others after; a scan is repeated when a
    bookie leaves meanwhile.
    """

    WAIT = "waiting for the end of another run"
    PLAN = "planning"
    SCAN = "reading ledger metadata"
    CHECK = "checking"
    ASK = "asking bookies"
    REPORT = "writing the report"
    PUBLISH = "marking ledgers"
    COMPARE = "comparing with the tasks that are there"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """A phase began, or moved on."""

    phase: Phase
    done: int = 0
    total: int | None = None
    """Of the same unit as ``done``: Spark tasks in SCAN and CHECK, ledgers in ASK and PUBLISH; None: not known."""


Progress = Callable[[ProgressEvent], None]
"""Called in the audit's own thread and, during Spark jobs, in a helper thread; never in two at once."""
