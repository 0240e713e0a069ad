"""The tab's requests to the service, and the values on the page.

Threads of the JVM's web server call the methods, possibly several at the same time, so an implementation must be
thread-safe. It should answer within milliseconds. The tab bounds each call, shows an older state while an answer is
late, and never lets an error reach a page of Spark.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bookie.model.run import RunRecord


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the headline, such as ``leader: auditor-0``."""

    label: str
    value: str
    is_bad: bool = False
    """Whether it needs attention, and is shown in red."""


@dataclass(frozen=True, slots=True)
class BacklogRow:
    """Ledgers of one severity that are marked for repair."""

    severity: str
    """Lower-case name of a ``Severity``, or ``healthy``, or ``unreadable``."""
    ledgers: int
    bytes_estimate: int = 0
    oldest_ms: int = 0
    """Time at which the oldest was marked, epoch milliseconds; 0: unknown."""


@dataclass(frozen=True, slots=True)
class KindRow:
    """One kind of audit, and whether it may be started now."""

    kind: str
    """The value of a ``RunKind``."""
    is_startable: bool = True
    why_not: str = ""
    """Why it cannot be started; shown in place of the button."""
    next_ms: int = 0
    """Next scheduled start, epoch milliseconds; 0: none is scheduled, or the time is unknown here."""
    last_success_ms: int = 0
    """Start of the last complete run, epoch milliseconds; 0: there was none, or it is unknown."""
    why_no_next: str = "not scheduled"
    """Text that is shown if there is no next start."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, and the link to its report."""

    record: RunRecord
    report_url: str = ""
    """``http(s)://...`` or a path on the same host. Any other text is not shown as a link."""


@dataclass(frozen=True, slots=True)
class TabState:
    """All values that the tab shows, as of one time."""

    taken_ms: int
    """The time of these values, epoch milliseconds."""
    facts: Sequence[Fact] = ()
    kinds: Sequence[KindRow] = ()
    backlog: Sequence[BacklogRow] = ()
    runs: Sequence[RunView] = ()
    """The runs, the newest first, including running ones."""
    why_not_counted: str = ""
    """Why the number of marked ledgers is not known; empty: it is known."""
    in_progress: int = 0
    """Marked ledgers that are being repaired now."""
    parked: Mapping[str, int] = field(default_factory=dict)
    """Parked ledgers by reason, such as ``no_live_copy``."""


class ActionOutcome(enum.Enum):
    """The result of a person's request."""

    ACCEPTED = "accepted"
    BUSY = "busy"
    """A run of this kind is under way."""
    REFUSED = "refused"
    """It is not possible now: the run has ended, or this process does not lead."""
    UNKNOWN = "unknown"
    """No such run exists."""
    UNAVAILABLE = "unavailable"
    """The service does not answer; try again later."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The answer to a person's request."""

    outcome: ActionOutcome
    text: str
    """One sentence for people."""
    run_id: str = ""


class TabActions(Protocol):
    """The actions of the tab.

    ``user`` is empty for an anonymous person; ``address`` is where the request comes from.
    """

    def snapshot(self) -> TabState:
        """Return the current state."""
        ...

    def run(self, kind: str, user: str, address: str) -> ActionResult:
        """Start an audit of a kind (the value of a ``RunKind``), and return while it runs."""
        ...

    def cancel(self, run_id: str, user: str, address: str) -> ActionResult:
        """Request the end of a run."""
        ...

    def pause(self, run_id: str, user: str, address: str) -> ActionResult:
        """Hold a run at its next gate."""
        ...

    def resume(self, run_id: str, user: str, address: str) -> ActionResult:
        """Resume a paused run."""
        ...
