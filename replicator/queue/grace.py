"""Grace periods: how long unclosed ledgers with a lost member wait before their recovery.

A live writer replaces a lost bookie itself, so a ledger is recovered only after one of its positions was missing for a
whole grace period (R3, R37). The period is measured by this process's clock. It starts when the process first finds the
position missing, and starts again if the position was healthy during the period. A waiting ledger is only a record in
memory: no worker blocks and no lock is held. If a worker dies, its records are lost, and the next worker waits the full
period.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass, field

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.clock import Clock
from replicator.plan.planner import planning_repair
from replicator.plan.steps import PositionKey
from replicator.plan.target_choice import Choose
from replicator.queue.parking import Circumstances


@dataclass(slots=True)
class _Waiting:
    lost: dict[PositionKey, float] = field(default_factory=dict)
    """Positions whose bookie is not registered, each with the time when this was first found."""
    doubtful: dict[PositionKey, float] = field(default_factory=dict)
    """Positions whose registered bookie may lack entries, in the same way. Only a turn finds them, not a listing."""
    rests_on: Circumstances | None = None
    """The circumstances when the ledger's last turn ended."""
    failed_with: frozenset[BookieId] | None = None
    """The bookies that were registered when a recovery failed."""


class GracePeriods:
    """The ledgers in their grace periods. At most one record per task."""

    def __init__(self, clock: Clock, grace_s: float) -> None:
        self._clock = clock
        self._grace_s = grace_s
        self._waiting: dict[LedgerId, _Waiting] = {}

    def observe(self, ledger_id: LedgerId, lost: Iterable[PositionKey]) -> None:
        """Record the lost positions of an unclosed ledger that a listing found. Doubtful positions stay unchanged."""
        known = self._waiting.setdefault(ledger_id, _Waiting())
        known.lost = self._noted(known.lost, lost)

    def remaining_s(self, ledger_id: LedgerId, lost: Iterable[PositionKey], doubtful: Iterable[PositionKey]) -> float:
        """Record the positions that a turn found; return the seconds until a recovery is allowed (0 or less: now)."""
        known = self._waiting.setdefault(ledger_id, _Waiting())
        known.lost, known.doubtful = self._noted(known.lost, lost), self._noted(known.doubtful, doubtful)
        return self.due_in_s(ledger_id)

    def record_grace_rest(self, ledger_id: LedgerId, circumstances: Circumstances) -> None:
        """Record that a turn ended within the grace period under these circumstances."""
        self._waiting.setdefault(ledger_id, _Waiting()).rests_on = circumstances

    def judging_rest(
        self, ledger_id: LedgerId, circumstances: Circumstances, ledger: Versioned | Unreadable | None, choose: Choose
    ) -> Generator[None, None, bool]:
        """Return whether the last turn ended within the grace period, and a new turn in this period can do nothing.

        Changes of unrelated bookies are no reason for a turn. A turn is useful if a member has returned, or if a bookie
        can now take a copy of an older fragment. Pauses while it plans a ledger with many fragments.
        """
        known = self._waiting.get(ledger_id)
        before = known.rests_on if known is not None else None
        if known is None or before is None or self.due_in_s(ledger_id) <= 0:
            return False
        if before == circumstances:
            return True
        is_same_ledger = (before.task_version, before.ledger_version) == (
            circumstances.task_version,
            circumstances.ledger_version,
        )
        if not is_same_ledger or not isinstance(ledger, Versioned):
            return False
        plan = yield from planning_repair(ledger, circumstances.bookies, choose, steps_max=1)
        if plan.steps or plan.is_nothing_missing:
            return False
        known.rests_on = circumstances
        return True

    def due_in_s(self, ledger_id: LedgerId) -> float:
        """Return the seconds until the end of the grace period: that of the position that is missing for longest."""
        known = self._waiting.get(ledger_id)
        since_s = min((*known.lost.values(), *known.doubtful.values()), default=None) if known is not None else None
        return 0.0 if since_s is None else since_s + self._grace_s - self._clock.monotonic_s()

    def record_failed_recovery(self, ledger_id: LedgerId, bookies: Bookies) -> None:
        """Record that a recovery of the ledger failed while these bookies were registered."""
        self._waiting.setdefault(ledger_id, _Waiting()).failed_with = bookies.registered

    def has_new_bookie(self, ledger_id: LedgerId, bookies: Bookies) -> bool:
        """Return whether a bookie has registered after a failed recovery, so that another attempt need not wait."""
        known = self._waiting.get(ledger_id)
        return known is not None and known.failed_with is not None and bool(bookies.registered - known.failed_with)

    def forget(self, ledger_id: LedgerId) -> None:
        """Forget a ledger after it was closed, deleted or found healthy."""
        self._waiting.pop(ledger_id, None)

    def keep_only(self, ledger_ids: Collection[LedgerId]) -> None:
        """Forget every ledger without a task."""
        self._waiting = {i: known for i, known in self._waiting.items() if i in ledger_ids}

    def _noted(self, known: dict[PositionKey, float], keys: Iterable[PositionKey]) -> dict[PositionKey, float]:
        now_s = self._clock.monotonic_s()
        return {key: known.get(key, now_s) for key in keys}
