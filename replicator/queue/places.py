"""The places of one worker: which kinds of tasks may start now, beside the turns in flight.

The invariant: neither large ledgers nor ledgers that fail again and again stop the repair of all others (R40). Each of
the two kinds may use only a part of the places; while that part is in use, the next task of another kind starts. A task
more urgent than all those in flight need not wait for a place.

Nothing is started here, and nothing is read or written.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from bookie.model.ids import LedgerId
from replicator.queue.ordering import FAILING_KINDS, LARGE_KINDS, Candidate, QueueKind
from replicator.queue.task_queue import Turn

FAILING_SHARE: Final = 4
"""One of so many places is for ledgers that fail again and again. They may have the fewest copies left, and their
attempts may take minutes, so without this limit a few hundred of them would stop the repair of all others."""
LARGE_IN_FLIGHT_MAX: Final = 16
"""The most large ledgers repaired at a time. More of them would hold locks while they wait for memory."""


class WaitingTasks(Protocol):
    """The tasks that wait for a turn."""

    def first(self, passed_over: Collection[QueueKind] = ()) -> Candidate | None:
        """Return the next task that is not of the kinds ``passed_over``; None if there is none."""
        ...


class TurnPlaces:
    """The turns in flight of one worker, and the limits on them."""

    def __init__(self, queue: WaitingTasks, places: int) -> None:
        """Start without turns; at most ``places`` run at a time, except for urgent ones."""
        self._queue = queue
        self._places = places
        self._turns: dict[LedgerId, Turn] = {}
        """The turns in flight."""
        self._was_last_failing = False
        """Whether the last turn that started was of a failing ledger."""

    @property
    def large_places(self) -> int:
        """The number of places for large ledgers."""
        return min(self._places, LARGE_IN_FLIGHT_MAX)

    @property
    def failing_count(self) -> int:
        """The number of failing ledgers in flight."""
        return self._count(FAILING_KINDS)

    def kinds_to_pass_over(self) -> Collection[QueueKind] | None:
        """Return the kinds of tasks that must wait, for ``TaskQueue.take``; None if no task may start now."""
        passed_over = self._with_large_kinds(self._failing_kinds())
        candidate = self._queue.first(passed_over)
        return passed_over if candidate is not None and self._has_place(candidate) else None

    def take(self, turn: Turn) -> None:
        """Give a place to a turn that starts."""
        self._was_last_failing = turn.kind in FAILING_KINDS
        self._turns[turn.ledger_id] = turn

    def free(self, ledger_id: LedgerId) -> None:
        """Free the place of a turn that has ended."""
        del self._turns[ledger_id]

    def _failing_kinds(self) -> Collection[QueueKind]:
        """Return the kinds of failing ledgers that must wait: their places are in use, or another ledger is next.

        A failing ledger and another one start in turn, which matters if there are few places.
        """
        if self._was_last_failing:
            other = self._queue.first(self._with_large_kinds(FAILING_KINDS))
            if other is not None and self._has_place(other):
                return FAILING_KINDS
        if self.failing_count >= max(1, self._places // FAILING_SHARE):
            return FAILING_KINDS
        large = self._count((QueueKind.FAILING_LARGE,))
        return (QueueKind.FAILING_LARGE,) if large >= max(1, self.large_places // FAILING_SHARE) else ()

    def _with_large_kinds(self, passed_over: Collection[QueueKind]) -> Collection[QueueKind]:
        """Return ``passed_over``, and the large kinds if the next task is large and their places are in use.

        A large ledger may hold its place for hours, and until then small ones use the other places.
        """
        candidate = self._queue.first(passed_over)
        if candidate is None or not candidate.is_large or self._has_large_place(candidate):
            return passed_over
        return {*passed_over, *LARGE_KINDS}

    def _has_place(self, candidate: Candidate) -> bool:
        return _is_admitted(candidate, [turn.rank for turn in self._turns.values()], self._places)

    def _has_large_place(self, candidate: Candidate) -> bool:
        ranks = [turn.rank for turn in self._turns.values() if turn.is_large]
        return _is_admitted(candidate, ranks, self.large_places)

    def _count(self, kinds: Collection[QueueKind]) -> int:
        return sum(turn.kind in kinds for turn in self._turns.values())


def _is_admitted(candidate: Candidate, ranks: Collection[int], places: int) -> bool:
    """Return whether a place is free, or the candidate is more urgent than all turns in flight, which have ``ranks``.

    Urgent tasks may use up to ``places`` more places. Their copies also go first in the queues for the copy rate and
    for memory.
    """
    return len(ranks) < places or (len(ranks) < 2 * places and candidate.rank < min(ranks))
