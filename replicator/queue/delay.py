"""The delay queue: unclosed ledgers with a lost member wait here before they are taken from their writer.

A writer that lives replaces a lost bookie itself, so a ledger is recovered only after one of its positions was missing
for a whole grace period (R3, R37). The period is counted by this process's clock from the moment when the position was
first seen missing, and starts again if it was whole for a time. Waiting is a note in memory: no worker sleeps over it
and no lock is held. A worker that dies takes its notes along, and the next one waits the full period.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.clock import Clock
from replicator.plan.planner import Choose, PositionKey, plan_repair
from replicator.queue.parking import Seen


@dataclass(slots=True)
class _Waiting:
    lost: dict[PositionKey, float] = field(default_factory=dict)
    """Positions with an unregistered bookie, each with the time it was first seen."""
    doubtful: dict[PositionKey, float] = field(default_factory=dict)
    """Positions whose bookie is registered and may lack entries; listings omit them, because only a close look can find
    them."""
    rests_on: Seen | None = None
    """The circumstances under which its last turn ended."""
    failed_with: frozenset[BookieId] | None = None
    """Bookies registered at the time of a failed recovery."""


class Delays:
    """Ledgers waiting for the end of their grace period, with its start. At most one record per task."""

    def __init__(self, clock: Clock, grace_s: float) -> None:
        self._clock = clock
        self._grace_s = grace_s
        self._waiting: dict[LedgerId, _Waiting] = {}

    def observe(self, ledger_id: LedgerId, lost: Iterable[PositionKey]) -> None:
        """Note which positions of an unclosed ledger a listing showed as lost; it does not show doubtful ones."""
        known = self._waiting.setdefault(ledger_id, _Waiting())
        known.lost = self._noted(known.lost, lost)

    def remaining_s(self, ledger_id: LedgerId, lost: Iterable[PositionKey], doubtful: Iterable[PositionKey]) -> float:
        """Record the result of a close look; return the seconds until a recovery is allowed, 0 or less for now."""
        known = self._waiting.setdefault(ledger_id, _Waiting())
        known.lost, known.doubtful = self._noted(known.lost, lost), self._noted(known.doubtful, doubtful)
        return self.due_in_s(ledger_id)

    def rest(self, ledger_id: LedgerId, circumstances: Seen) -> None:
        """Record the end of a turn because of the delay, under these circumstances."""
        self._waiting.setdefault(ledger_id, _Waiting()).rests_on = circumstances

    def is_resting(
        self, ledger_id: LedgerId, circumstances: Seen, ledger: Versioned | Unreadable | None, choose: Choose
    ) -> bool:
        """Whether its last turn ended because of the delay, the grace period goes on, and a turn would do nothing new.

        Bookies that come and go elsewhere are no reason for a turn; a member that is back, or a bookie that can take
        a copy of an older fragment, is.
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
        plan = plan_repair(ledger, circumstances.bookies, choose)
        if plan.steps or plan.is_nothing_missing:
            return False
        known.rests_on = circumstances
        return True

    def due_in_s(self, ledger_id: LedgerId) -> float:
        """Seconds until the end of the grace period of the position missing for the longest time."""
        known = self._waiting.get(ledger_id)
        since_s = min((*known.lost.values(), *known.doubtful.values()), default=None) if known is not None else None
        return 0.0 if since_s is None else since_s + self._grace_s - self._clock.monotonic_s()

    def recovery_failed(self, ledger_id: LedgerId, bookies: Bookies) -> None:
        """Record a failed recovery of the ledger with these bookies."""
        self._waiting.setdefault(ledger_id, _Waiting()).failed_with = bookies.registered

    def has_new_bookie(self, ledger_id: LedgerId, bookies: Bookies) -> bool:
        """Return whether a failed recovery is worth another attempt before the end of its pause."""
        known = self._waiting.get(ledger_id)
        return known is not None and known.failed_with is not None and bool(bookies.registered - known.failed_with)

    def forget(self, ledger_id: LedgerId) -> None:
        """The ledger is closed, gone, or misses nothing."""
        self._waiting.pop(ledger_id, None)

    def keep_only(self, ledger_ids: Collection[LedgerId]) -> None:
        """Forget every ledger without a task."""
        self._waiting = {i: known for i, known in self._waiting.items() if i in ledger_ids}

    def _noted(self, known: dict[PositionKey, float], keys: Iterable[PositionKey]) -> dict[PositionKey, float]:
        now_s = self._clock.monotonic_s()
        return {key: known.get(key, now_s) for key in keys}
