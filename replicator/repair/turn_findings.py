"""The results of one turn of one task, over all its rounds.

The steps of a turn write them. They determine the next plan, the reason of a parked ledger and the result of the turn.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie.metadata.tasks.decisions import RecordedDecision
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId
from replicator.knowledge.evidence import Answer
from replicator.plan.planner import PositionKey
from replicator.telemetry.events import Ending, TaskResult


@dataclass(slots=True)
class TurnFindings:
    """The findings and results of one turn, empty at its start."""

    failed_targets: dict[BookieId, Answer] = field(default_factory=dict)
    """Bookies that refused copies, with their last answers."""
    unreadable: dict[PositionKey, str] = field(default_factory=dict)
    """Positions with an entry that every live holder denied, each with the evidence."""
    record: RecordedDecision | None = None
    """The record of the accepted loss of the ledger, as last known; None if there is none."""
    is_record_used: bool = False
    """Whether plans use the record, because one of them was blocked without it (R148)."""
    left_out: dict[PositionKey, EntryRuns] = field(default_factory=dict)
    """Positions filled in place, with the entries that were left out there because their loss was accepted."""
    unreadable_for_now: list[str] = field(default_factory=list)
    """The evidence of entries that could not be read in the last round, but may be readable later."""
    fragments: set[int] = field(default_factory=set)
    """The first entries of the repaired fragments."""
    repaired: set[PositionKey] = field(default_factory=set)
    """Positions whose bookie was replaced or filled in place. Repairing one again does not count as progress."""
    entries: int = 0
    bytes: int = 0
    replaced_copies: int = 0
    """The number of damaged copies that were replaced by good ones."""
    moved_copies: int = 0
    """The number of positions that were moved to another bookie for better placement."""
    is_recovered: bool = False
    """Whether this turn closed the ledger."""
    recovery_failure: str = ""
    """Why a recovery failed in this turn; empty if none did."""
    is_recovery_failure_permanent: bool = False
    """Whether another recovery would fail too unless the bookies change."""

    @property
    def accepted(self) -> RecordedDecision | None:
        """The record of the accepted loss, if plans use it."""
        return self.record if self.is_record_used else None

    def result(self, task: Task, ending: Ending, *, reason: ParkReason | None = None, detail: str = "") -> TaskResult:
        """Return the result of the turn of ``task`` with this ending."""
        return TaskResult(
            task.ledger_id,
            ending,
            fragments=len(self.fragments),
            entries=self.entries,
            bytes=self.bytes,
            is_recovered=self.is_recovered,
            reason=reason,
            detail=detail,
            replaced_copies=self.replaced_copies,
            marked_ms=task.ctime_ms,
            moved_copies=self.moved_copies,
        )
