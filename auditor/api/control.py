"""The control interface of the service for its APIs (HTTP, gRPC), the tab in the Spark UI, and metrics.

Every method is called on the service's event loop. Only the leader starts runs; every other process answers with the
leader's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bookie.metadata.bookies.maintenance import Window
from bookie.metadata.runs.notes import KindPause
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.errors import ConflictError, PermanentError
from bookie.model.run import RunCause, RunKind, RunRecord
from bookie.model.severity import Severity


class RunBusyError(ConflictError):
    """A run of this kind is active, here or elsewhere; ``run_id`` is its id if known.

    Dry runs and marking runs do not count for each other.
    """

    def __init__(self, kind: RunKind, run_id: str, where: str, *, is_dry_run: bool = False) -> None:
        what = f"dry run of kind {kind.value}" if is_dry_run else f"{kind.value} run"
        super().__init__(f"a {what} is already under way: {run_id or 'id unknown'} in {where}")
        self.kind = kind
        self.run_id = run_id


class NotLeaderError(ConflictError):
    """This process does not lead; ``leader`` is the leader, empty if unknown."""

    def __init__(self, leader: str) -> None:
        super().__init__(f"this auditor is not the leader; the leader is {leader or 'unknown'}")
        self.leader = leader


class UnknownRunError(PermanentError):
    """There is no run of this id."""


class RunOverError(ConflictError):
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
    """The ledgers marked for repair, as counted in the store at ``counted_ms``; not the result of the last audit."""

    counted_ms: int = 0
    severities: Mapping[Severity, SeverityBacklog] = field(default_factory=dict)
    """Only severities that occur. A ledger counts once, at its worst severity."""
    healthy: SeverityBacklog = SeverityBacklog()
    """Marked, and nothing is missing (any more), or the ledger was deleted: the next worker deletes the task."""
    unreadable: int = 0
    """Marked ledgers whose metadata or mark cannot be read."""
    parked: Mapping[ParkReason, int] = field(default_factory=dict)
    locked: int = 0
    """Being repaired now."""
    repairable: Mapping[Severity, SeverityBacklog] = field(default_factory=dict)
    """The part of ``severities`` repairable by a worker in the present cluster: not parked, with a live copy."""
    by_bookie: Mapping[str, int] = field(default_factory=dict)
    """Marked ledgers whose copy on this bookie is missing or has to move; see ``by_rack`` for the bound."""
    by_rack: Mapping[str, int] = field(default_factory=dict)
    """The same by the rack of those bookies. Both have the largest parts, and the sum of the others as ``other``."""
    named_ms: Mapping[str, int] = field(default_factory=dict)
    """The bookies named by marks, a bounded number, and the time of the newest mark of each, epoch milliseconds; 0:
    none of its marks has a time. A mark names the lost bookie; ``by_bookie`` shows the present state."""

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
    """Bookie id or host name in the election; empty: none."""
    is_store_connected: bool
    metadata_uri: str
    instance_id: str
    is_recovery_enabled: bool
    lost_bookie_delay_s: int
    writable: Sequence[str] = ()
    read_only: Sequence[str] = ()
    lost: Sequence[LostBookie] = ()
    held_because: str = ""
    """Why the mass-loss brake holds now; empty: it does not."""
    windows: Sequence[Window] = ()
    """The open maintenance windows."""
    problems: Sequence[str] = ()
    """Operations refused by the store. This process cannot be an auditor until a person acts."""
    backlog: Backlog = field(default_factory=Backlog)
    running: Sequence[RunRecord] = ()
    last: Mapping[RunKind, RunRecord] = field(default_factory=dict)
    """The newest completed run of each kind, with any result. Dry runs and runs of some ledgers are left out."""
    last_complete: Mapping[RunKind, RunRecord] = field(default_factory=dict)
    """The newest complete one of each kind."""
    results: Mapping[RunKind, Sequence[RunRecord]] = field(default_factory=dict)
    """The runs with the results of each kind: the newest complete one, after a newer one that was not complete. A run
    of everything is also in the results of each check that it contains (``RunRecord.by_check``)."""
    ended: Sequence[RunRecord] = ()
    """The newest completed runs of all kinds, and some of each kind, the newest first; a bounded number."""
    last_success_ms: Mapping[RunKind, int] = field(default_factory=dict)
    """Start of the last run of each kind that checked every ledger and came to a complete end; over all leaders."""
    period_s: Mapping[RunKind, float] = field(default_factory=dict)
    """Longest time between two scheduled runs of each kind; absent: off."""
    schedules: Mapping[RunKind, str] = field(default_factory=dict)
    """As this process would follow them if it led, such as ``24h``; absent: off. The leader follows its own."""
    next_run_ms: Mapping[RunKind, int] = field(default_factory=dict)
    """As this process planned them; empty unless it leads, since the leader alone knows its times."""
    paused_kinds: Mapping[RunKind, KindPause] = field(default_factory=dict)
    """Kinds whose schedule is paused, and until when."""


def why_no_next_run(status: ServiceStatus, kind: RunKind) -> str:
    """The text shown instead of a time if ``next_run_ms`` has none."""
    schedule = status.schedules.get(kind)
    if schedule is None:
        return "not scheduled"
    if status.is_leader:
        return f"{schedule}, no run planned yet"
    return f"{schedule} on the leader, next time unknown here" if status.leader else f"{schedule} once an auditor leads"


class Control(Protocol):
    """The control of a service: its runs and its status.

    An operator's request is recorded before it is carried out (``/bkheal/changes``): ``owner`` is the requester, and
    ``via`` (of a start: ``cause``) is the interface used. Without an answer to the record nothing is changed.
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

    async def has_topology(self) -> bool:
        """Return whether there is a topology to judge placement by.

        The answer is True for one that cannot be read: a run ends with the reason.

        Raises:
            StoreUnavailableError: no answer.
        """
        ...

    async def run(self, run_id: str) -> RunRecord:
        """One run.

        Raises:
            UnknownRunError: there is no run with this id.
            StoreUnavailableError: no answer.
        """
        ...

    async def start_run(
        self, kind: RunKind, *, cause: RunCause, owner: str, is_dry_run: bool = False, options: Mapping[str, Any] = {}
    ) -> RunRecord:
        """Begin a run and return its record; it goes on by itself.

        Raises:
            NotLeaderError: ask the leader.
            RunBusyError: one of this kind is under way, or a dry run of it if a dry run is asked for.
            RefusedError: a placement run that no schedule begins, without a topology.
            StoreUnavailableError: no answer.
        """
        ...

    async def cancel_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        """Ask a run of this process to end; it ends within seconds. What it marked stays.

        Raises:
            UnknownRunError, RunOverError, NotLeaderError: see there.
        """
        ...

    async def pause_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        """Hold a run at its next gate for the time of the option ``pause_s``; again: for that time from now.

        Raises:
            UnknownRunError, RunOverError, NotLeaderError: see there.
        """
        ...

    async def resume_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        """Let a paused run go on.

        Raises:
            UnknownRunError, RunOverError, NotLeaderError: see there.
        """
        ...

    async def pause_kind(self, kind: RunKind, *, owner: str, via: str) -> KindPause:
        """Let no scheduled run of a kind begin for the time of ``pause_s``; again: for that time from now.

        A run that comes due in the meantime begins afterwards, once. Runs that are asked for, and the reaction to a
        lost bookie, are not concerned.

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
        """Return the run once it differs from ``seen``.

        Raises:
            UnknownRunError: there is no run with this id.
        """
        ...
