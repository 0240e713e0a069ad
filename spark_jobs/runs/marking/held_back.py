"""The ledgers and bookies that a run leaves out of its marks, and why. Pure.

The invariant: a mark names no bookie whose rule does not allow this yet. Every ledger without a mark is counted once,
for the reason that ends last. The counts are always visible: in the report, in the record of the run, and in metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from bookie.metadata.bookies.marking_times import HoldReason, MarkingTimes
from bookie.model.ids import BookieId, LedgerId
from spark_jobs.runs.marking.limits import DueLedger, MarkLimiter


@dataclass(frozen=True, slots=True)
class LedgerWithFindings:
    """A ledger with findings."""

    ledger_id: LedgerId
    missing: tuple[BookieId, ...]
    """All of its missing bookies."""
    critical_missing: tuple[BookieId, ...] = ()
    """The missing bookies of its critical fragments."""
    bytes_estimate: int = 0
    """Bytes to copy for its repair."""
    severity_rank: int = 0
    """The rank of its worst severity; a smaller one is worse."""


@dataclass(frozen=True, slots=True)
class HeldBookies:
    """The bookies that are not due yet."""

    times: Mapping[BookieId, MarkingTimes] = field(default_factory=dict)
    critical_due: AbstractSet[BookieId] = frozenset()
    """Those of these bookies that are due for critical ledgers."""
    limit_from: LedgerId | None = None
    """The first ledger, in the order of marking, that was left unmarked because the run had reached a limit."""

    def to_mark(self, ledger: LedgerWithFindings) -> tuple[BookieId, ...]:
        """Return the bookies that a mark of the ledger names; empty: the ledger is not marked."""
        if self.times.keys().isdisjoint(ledger.missing):
            return ledger.missing
        allowed = self.critical_due & set(ledger.critical_missing)
        return tuple(bookie for bookie in ledger.missing if bookie not in self.times or bookie in allowed)

    def reason(self, ledger: LedgerWithFindings) -> HoldReason:
        """Return why an unmarked ledger is held back."""
        return max((self.times[bookie] for bookie in ledger.missing), key=lambda time: time.due_ms).reason


@dataclass(slots=True)
class HeldBookieFilter:
    """Leaves held-back bookies out of markings, and counts the ledgers that have no other missing bookie."""

    held: HeldBookies
    ledgers_held: Counter[HoldReason] = field(default_factory=Counter)

    def of(self, ledgers: Iterable[LedgerWithFindings]) -> Iterator[DueLedger]:
        """Yield the markings that may be published."""
        for ledger in ledgers:
            if due := self.held.to_mark(ledger):
                yield (ledger.ledger_id, due), ledger.bytes_estimate
            else:
                self.ledgers_held[self.held.reason(ledger)] += 1


def held_back(limiter: MarkLimiter, due_only: HeldBookieFilter | None = None) -> dict[str, int]:
    """Return the numbers of ledgers left unmarked since the last call, by reason."""
    held = Counter({HoldReason.LIMIT: limiter.take_held_back_count()}) + (
        Counter() if due_only is None else due_only.ledgers_held
    )
    return {reason.value: count for reason, count in held.items()}
