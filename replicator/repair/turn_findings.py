"""The results of one turn of one task, over all its rounds.

The steps of a turn write them. They determine the next plan, the reason of a parked ledger and the result of the turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId, EntryId
from replicator.copying.outcome import CopyOutcome
from replicator.knowledge.evidence import BookieAnswer, describe
from replicator.plan.installable import CopiedStep
from replicator.plan.steps import Cause, CopyPosition, PositionKey
from replicator.telemetry.events import Ending, TaskResult


@dataclass(slots=True)
class TurnFindings:
    """The findings and results of one turn, empty at its start."""

    failed_targets: dict[BookieId, BookieAnswer] = field(default_factory=dict)
    """Bookies that refused copies, with their last answers."""
    unreadable: dict[PositionKey, str] = field(default_factory=dict)
    """Positions with an entry that every live holder denied, each with the evidence."""
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

    def note_refusals(self, answers: Iterable[BookieAnswer]) -> None:
        """Record refusals of copies, and other answers of bookies to avoid for the rest of the turn."""
        self.failed_targets.update((answer.bookie, answer) for answer in answers)

    def note_failure(self, key: PositionKey, step: CopyPosition, outcome: CopyOutcome) -> None:
        """Record why a position was not copied, for the next plan."""
        if outcome.target_failure is not None:
            self.note_refusals([outcome.target_failure])
        elif outcome.unreadable_count:
            evidence = describe(outcome.unreadable, outcome.unreadable_count)
            if outcome.is_permanent_failure:
                self.unreadable[key] = evidence
            else:
                self.unreadable_for_now.append(f"fragment {step.fragment_index} position {step.position}: {evidence}")

    def note_installed(self, key: PositionKey, copy: CopiedStep, replaced_copies: int) -> None:
        """Count an installed step, and the damaged copies that it has replaced."""
        self.repaired.add(key)
        self._count(key, copy.entries, copy.bytes, replaced_copies)
        self.moved_copies += copy.step.cause is Cause.MISPLACED

    def note_restored(self, key: PositionKey, outcome: CopyOutcome) -> None:
        """Count a damaged copy that was stored again before the copy of its whole position."""
        self._count(key, outcome.entries, outcome.bytes, replaced_copies=1)

    def _count(self, key: PositionKey, entries: int, size_bytes: int, replaced_copies: int) -> None:
        self.fragments.add(key.first_entry_id)
        self.entries += entries
        self.bytes += size_bytes
        self.replaced_copies += replaced_copies

    def forget_unreadable(self, first_entry_ids: Collection[EntryId]) -> None:
        """Forget the evidence about fragments, because another copy may leave out their unreadable entries."""
        for key in [key for key in self.unreadable if key.first_entry_id in first_entry_ids]:
            del self.unreadable[key]

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
