"""What one turn of one task has learned and done, over all its rounds.

The steps of a turn write it. The next plan, the reason of a parked ledger and the result of the turn are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie.model.ids import BookieId
from replicator.knowledge.evidence import Answer
from replicator.plan.planner import PositionKey


@dataclass(slots=True)
class TurnLog:
    """Empty at the start of a turn."""

    failed_targets: dict[BookieId, Answer] = field(default_factory=dict)
    """Bookies which refused copies, with their last answers."""
    unreadable: dict[PositionKey, str] = field(default_factory=dict)
    """Positions with an entry denied by every live holder, and the evidence."""
    silence: list[str] = field(default_factory=list)
    """Entries which the last round could not read, and a later one may."""
    fragments: set[int] = field(default_factory=set)
    """First entries of the repaired fragments."""
    entries: int = 0
    bytes: int = 0
    replaced_copies: int = 0
    """Damaged copies replaced by good ones."""
    moved_copies: int = 0
    """Positions moved to another bookie for better placement."""
    is_recovered: bool = False
    """Whether this turn closed the ledger."""
    recovery_failure: str = ""
    """Why the ledger could not be recovered in this turn; empty without a failed attempt."""
    is_recovery_hopeless: bool = False
    """Whether another attempt has no point before the bookies change."""
