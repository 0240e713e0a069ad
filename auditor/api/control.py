"""The control interface of the service for its APIs (HTTP, gRPC), the tab in the Spark UI, and metrics.

Every method is called on the service's event loop. Only the leader starts runs; every other process answers with the
leader's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bookie.metadata.bookies.maintenance import MaintenanceWindow
from bookie.metadata.runs.notes import KindPause
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.errors import ConflictError, PermanentError
from bookie.model.run import RunCause, RunKind, RunRecord
from bookie.model.severity import Severity
from bookie.runtime.human import duration


class RunBusyError(ConflictError):
    """A run of this kind is active, in this process or another one; ``run_id`` is its id if known.

    A dry run does not block a run with marks, and a run with marks does not block a dry run.
    """

    def __init__(self, kind: RunKind, run_id: str, where: str, *, is_dry_run: bool = False) -> None:
        what = f"dry run of kind {kind.value}" if is_dry_run else f"{kind.value} run"
        super().__init__(f"a {what} is already under way: {run_id or 'id unknown'} in {where}")
        self.kind = kind
        self.run_id = run_id


class NotLeaderError(ConflictError):
    """This process is not the leader; ``leader`` is the leader, empty if unknown."""

    def __init__(self, leader: str) -> None:
        super().__init__(f"this auditor is not the leader; the leader is {leader or 'unknown'}")
        self.leader = leader


class UnknownRunError(PermanentError):
    """There is no run of this id."""


class RunEndedError(ConflictError):
    """The run has ended, so it cannot be paused, resumed or cancelled."""


@dataclass(frozen=True, slots=True)
class SeverityBacklog:
    """Marked ledgers of one severity."""

    ledgers: int = 0
    bytes_estimate: int = 0
    oldest_ms: int = 0
    """When the oldest of them was marked, epoch milliseconds; 0: not known."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The ledgers marked for repair, counted in the store at ``counted_ms``; not the result of the last audit."""

    counted_ms: int = 0
    severities: Mapping[Severity, SeverityBacklog] = field(default_factory=dict)
    """Only severities that occur. A ledger counts once, at its worst severity."""
    healthy: SeverityBacklog = SeverityBacklog()
    """Marked ledgers that lack nothing (any more), or were deleted: the next worker deletes the task."""
    unreadable: int = 0
    """Marked ledgers whose metadata or mark cannot be read."""
    parked: Mapping[ParkReason, int] = field(default_factory=dict)
    locked: int = 0
    """Marked ledgers that are being repaired now."""
    repairable: Mapping[Severity, SeverityBacklog] = field(default_factory=dict)
    """The part of ``severities`` that workers can repair in the present cluster: not parked, with a live copy."""
    by_bookie: Mapping[str, int] = field(default_factory=dict)
    """Marked ledgers by the bookie whose copy is missing or has to move; see ``by_rack`` for the bound."""
    by_rack: Mapping[str, int] = field(default_factory=dict)
    """The same by the rack of those bookies. Both have the largest counts, and the sum of all others as ``other``."""
    named_ms: Mapping[str, int] = field(default_factory=dict)
    """The bookies that marks name, and the time of the newest mark of each, epoch milliseconds; 0: none of its marks
    has a time. Their number is bounded. A mark names the lost bookie; ``by_bookie`` shows the present state."""

    @property
    def ledgers(self) -> int:
        """All marked ledgers."""
        return sum(part.ledgers for part in (*self.severities.values(), self.healthy)) + self.unreadable


@dataclass(frozen=True, slots=True)
class LostBookie:
    """A known bookie (it has a cookie) without a registration."""

    bookie_id: str
    first_seen_down_ms: int
    audit_due_ms: int
    """When its ledgers are no longer held back; 0: an audit has covered it."""
    critical_due_ms: int = 0
    """When its critical ledgers may be marked; at most ``audit_due_ms``."""
    hold_reason: str = ""
    """The reason for holding its ledgers back until then (``HoldReason``); empty: none."""
    hold_detail: str = ""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The state of the service and its cluster at one moment."""

    version: str
    process: str
    is_leader: bool
    leader: str
    """The leader's name in the election: a bookie id or a host name; empty: there is none."""
    is_store_connected: bool
    metadata_uri: str
    instance_id: str
    is_recovery_enabled: bool
    lost_bookie_delay_s: int
    writable: Sequence[str] = ()
    read_only: Sequence[str] = ()
    lost: Sequence[LostBookie] = ()
    held_because: str = ""
    """Why the mass-loss brake holds; empty: it does not hold."""
    windows: Sequence[MaintenanceWindow] = ()
    """The open maintenance windows."""
    problems: Sequence[str] = ()
    """Operations that the store refused. This process cannot be an auditor until an operator removes the cause."""
    backlog: Backlog = field(default_factory=Backlog)
    running: Sequence[RunRecord] = ()
    last: Mapping[RunKind, RunRecord] = field(default_factory=dict)
    """The newest completed run of each kind, with any result. Dry runs and runs of some ledgers are left out."""
    last_complete: Mapping[RunKind, RunRecord] = field(default_factory=dict)
    """The newest complete run of each kind."""
    results: Mapping[RunKind, Sequence[RunRecord]] = field(default_factory=dict)
    """The runs with the results of each kind: the newest complete one, after a newer one that was not complete. A run
    of everything is also in the results of each check that it contains (``RunRecord.by_check``)."""
    ended: Sequence[RunRecord] = ()
    """The newest completed runs of all kinds, and some of each kind, the newest first; a bounded number."""
    last_success_ms: Mapping[RunKind, int] = field(default_factory=dict)
    """Start of the last complete run of each kind that checked every ledger, under any leader."""
    period_s: Mapping[RunKind, float] = field(default_factory=dict)
    """Longest time between two scheduled runs of each kind; absent: off."""
    schedules: Mapping[RunKind, str] = field(default_factory=dict)
    """The schedules in this process's settings, such as ``24h``; absent: off. The leader uses its own."""
    next_run_ms: Mapping[RunKind, int] = field(default_factory=dict)
    """The next scheduled run of each kind; empty unless this process leads, because only the leader has these times."""
    paused_kinds: Mapping[RunKind, KindPause] = field(default_factory=dict)
    """Kinds whose schedule is paused, and until when."""


def why_no_next_run(status: ServiceStatus, kind: RunKind) -> str:
    """Return the text that is shown instead of a time if ``next_run_ms`` has none."""
    schedule = status.schedules.get(kind)
    if schedule is None:
        return "not scheduled"
    if status.is_leader:
        return f"{schedule}, no run planned yet"
    return f"{schedule} on the leader, next time unknown here" if status.leader else f"{schedule} once an auditor leads"


def why_not_counted(status: ServiceStatus) -> str:
    """Return why the number of marked ledgers is not known here; empty: it is known."""
    if status.backlog.counted_ms:
        return ""
    if not status.is_leader:
        return "Only the leader counts the ledgers that are marked for repair."
    return "The ledgers that are marked for repair have not been counted yet."


def lost_text(bookie: LostBookie, now_ms: int) -> str:
    """Return a lost bookie with the time for which it has been missing, and how long its ledgers are held back."""
    parts = []
    if bookie.first_seen_down_ms > 0:
        parts.append(f"missing for {duration(now_ms - bookie.first_seen_down_ms)}")
    held_ms = bookie.audit_due_ms - now_ms
    if held_ms > 0:
        why = f": {bookie.hold_reason.replace('_', ' ')}" if bookie.hold_reason else ""
        parts.append(f"held back for {duration(held_ms)}{why}")
    return f"{bookie.bookie_id} ({', '.join(parts)})" if parts else bookie.bookie_id


class Control(Protocol):
    """The control of a service: its runs and its status.

    An operator's request is recorded before it is carried out (``/bkheal/changes``): ``owner`` is the requester, and
    ``via`` (of a start: ``cause``) is the interface used. If the record cannot be confirmed, nothing is changed.
    """

    def status(self) -> ServiceStatus:
        """Return the last known state of the service; it never waits, so the state may be some seconds old."""
        ...

    async def runs(self, limit: int = 50) -> Sequence[RunRecord]:
        """Return the runs of all processes, running ones included, the newest first.

        Raises:
            StoreUnavailableError: no answer.
        """
        ...

    async def refusal_reason(self, kind: RunKind) -> str:
        """Return why a run of this kind could only fail; empty if it could succeed.

        It is also empty if what the run needs cannot be read, because a run then ends with that reason.

        Raises:
            StoreUnavailableError: no answer.
        """
        ...

    async def run(self, run_id: str) -> RunRecord:
        """Return one run.

        Raises:
            UnknownRunError: there is no run with this id.
            StoreUnavailableError: no answer.
        """
        ...

    async def start_run(
        self, kind: RunKind, *, cause: RunCause, owner: str, is_dry_run: bool = False, options: Mapping[str, Any] = {}
    ) -> RunRecord:
        """Begin a run and return its record. The run continues in the background.

        Raises:
            NotLeaderError: only the leader starts runs.
            RunBusyError: a run of this kind is under way, or a dry run if a dry run is requested.
            RefusedError: a placement run was requested, not scheduled, and there is no topology.
            StoreUnavailableError: no answer.
        """
        ...

    async def cancel_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        """Ask a run of this process to end; it ends within seconds. Its marks remain.

        Raises:
            UnknownRunError, RunEndedError, NotLeaderError: see their documentation.
        """
        ...

    async def pause_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        """Pause a run at its next gate for the time of the option ``pause_s``. Pausing again restarts that time.

        Raises:
            UnknownRunError, RunEndedError, NotLeaderError: see their documentation.
        """
        ...

    async def resume_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        """Let a paused run continue.

        Raises:
            UnknownRunError, RunEndedError, NotLeaderError: see their documentation.
        """
        ...

    async def pause_kind(self, kind: RunKind, *, owner: str, via: str) -> KindPause:
        """Let no scheduled run of a kind begin for the time of ``pause_s``. Pausing again restarts that time.

        If runs are due during the pause, one run begins after it. The pause does not affect requested runs and the
        reaction to a lost bookie.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; pausing again is safe.
        """
        ...

    async def resume_kind(self, kind: RunKind, *, owner: str, via: str) -> None:
        """Undo ``pause_kind``. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; resuming again is safe.
        """
        ...

    async def wait_changed(self, run_id: str, seen: RunRecord) -> RunRecord:
        """Wait until the run differs from ``seen``, and return it.

        Raises:
            UnknownRunError: there is no run with this id.
        """
        ...
