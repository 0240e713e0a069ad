"""The tab's requests to the service, and the values on the page.

All methods are called from threads of the JVM's web server, several at once perhaps, so an implementation is
thread-safe. It should answer within milliseconds: the tab puts a bound on each call, shows an older state while an
answer is late, and never lets an error reach a page of Spark.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bookie.model.run import RunRecord


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the headline, such as ``leader: auditor-0``."""

    label: str
    value: str
    is_bad: bool = False
    """Shown in red: needs attention."""


@dataclass(frozen=True, slots=True)
class BacklogRow:
    """Ledgers marked for repair, of one severity."""

    severity: str
    """Lower-case name of a ``Severity``, or ``healthy`` or ``unreadable``."""
    ledgers: int
    bytes_estimate: int = 0
    oldest_ms: int = 0
    """When the oldest was marked, epoch milliseconds; 0: not known."""


@dataclass(frozen=True, slots=True)
class KindRow:
    """One kind of audit, and whether it may be started now."""

    kind: str
    """Value of a ``RunKind``."""
    is_startable: bool = True
    why_not: str = ""
    """Why it cannot be started; shown in place of the button."""
    next_ms: int = 0
    """Next scheduled start, epoch milliseconds; 0: none is scheduled, or its time is not known here."""
    last_success_ms: int = 0
    """Start of the last run that came to a complete end; 0: never, or not known."""
    why_no_next: str = "not scheduled"
    """Shown instead of the next start if there is none."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, and the address of its report for a person."""

    record: RunRecord
    report_url: str = ""
    """``http(s)://...`` or a path on the same host; anything else is not made a link."""


@dataclass(frozen=True, slots=True)
class TabState:
    """All values shown by the tab, at one moment."""

    taken_ms: int
    """When this was true, epoch milliseconds."""
    facts: Sequence[Fact] = ()
    kinds: Sequence[KindRow] = ()
    backlog: Sequence[BacklogRow] = ()
    runs: Sequence[RunView] = ()
    """Newest first, running ones included."""


class ActionOutcome(enum.Enum):
    """How a request of a person ended."""

    ACCEPTED = "accepted"
    BUSY = "busy"
    """A run of this kind is under way."""
    REFUSED = "refused"
    """The state does not allow it: the run has ended, or this process does not lead."""
    UNKNOWN = "unknown"
    """No such run exists."""
    UNAVAILABLE = "unavailable"
    """The service does not answer; try again later."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """Answer to a request of a person."""

    outcome: ActionOutcome
    text: str
    """For people, one sentence."""
    run_id: str = ""


class TabActions(Protocol):
    """The actions of the tab. ``user`` is empty for an anonymous person; ``address`` is the address of the request."""

    def snapshot(self) -> TabState:
        """Return the present state."""
        ...

    def run(self, kind: str, user: str, address: str) -> ActionResult:
        """Start an audit of a kind (value of a ``RunKind``), and return while it runs."""
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
