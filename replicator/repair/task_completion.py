"""End a turn whose ledger lacks nothing or was deleted: delete the task, then its other records.

The invariant: the task is deleted only if the conditions of the verdict still hold in the transaction that deletes it
(I18), and only after the reservation was removed. So if a former holder of the lock still has a write in flight, this
write is refused.

Doubts about members are deleted in the same transaction. The record of a parked task, the record of failures and the
placement debt are deleted after the task: if a crash prevents this, the next listing (``queue.task_queue``) deletes
them.

R rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from bookie.metadata.tasks.debts import PlacementDebt
from bookie.metadata.tasks.locks import SeenNode
from bookie.model.errors import ConflictError, OutcomeUnknownError, TransientError
from replicator.queue.task_queue import Turn
from replicator.repair.accepted_loss import AcceptedLoss
from replicator.repair.conditions import Conditions
from replicator.repair.context import RepairContext
from replicator.repair.inspection import View
from replicator.repair.lease import Lease
from replicator.repair.reservation_holder import ReservationHolder
from replicator.repair.unclosed_ledger import UnclosedLedgerRepair
from replicator.telemetry.events import Ending

_log = logging.getLogger(__name__)


class TaskCompletion:
    """Completes the task of one turn."""

    def __init__(
        self,
        context: RepairContext,
        lease: Lease,
        turn: Turn,
        reservation: ReservationHolder,
        unclosed: UnclosedLedgerRepair,
        accepted: AcceptedLoss,
    ) -> None:
        self._context = context
        self._ports = context.ports
        self._lease = lease
        self._turn = turn
        self._ledger_id = lease.held.task.ledger_id
        self._reservation = reservation
        self._unclosed = unclosed
        self._accepted = accepted
        self.paid: PlacementDebt | None = None
        """The debt that ends with the task, because the ledger then adheres to the policy. A debt that was recorded
        after it was read stays: a repair may have put a copy in a bad place since."""

    async def complete(self, ending: Ending, view: View | None) -> Ending:
        """Delete the task unless the verdict that is based on ``view`` is outdated (None: the ledger was deleted).

        The record of doubted members is deleted too, unless a member of an unclosed ledger is awaited. This member may
        be the only one with entries that a doubted member acknowledged and lost (S6).

        Return ``ending``, or that the ledger was marked again.

        Raises:
            LeaseLostError: the lock is no longer ours.
            TransientError, OutcomeUnknownError: the store did not answer.
        """
        await self._reservation.release()
        conditions = Conditions() if view is None else view.conditions
        are_doubts_kept = view is not None and not view.ledger.metadata.is_closed and bool(view.bookies.awaited)
        doubts = None if are_doubts_kept else await self._unclosed.doubts_deletion()
        unreserved = SeenNode(self._ports.reservations.path(self._ledger_id), None)
        deleted = [SeenNode(self._ports.ledgers.path(self._ledger_id), None)] if view is None else []  # R170
        relied = () if view is None else self._accepted.checks()
        operations = (*conditions.checks, *relied, *([] if doubts is None else [doubts]))
        if not await self._lease.complete(operations, seen=[unreserved, *deleted, *conditions.seen]):
            return Ending.MARKED_AGAIN
        await self.forget_ledger()
        return ending

    async def forget_ledger(self) -> None:
        """Forget a ledger whose task was deleted, and delete its other records. Best effort."""
        self.forget_copies()
        other_nodes = self._lease.other_nodes
        # A record that cannot be decoded is deleted too. The queue deletes records that are written later.
        if self._turn.is_parked or (other_nodes is not None and other_nodes.parked is not None):
            await self._best_effort(
                self._ports.parked.unpark(self._ledger_id), "record of a parked task could not be removed yet"
            )
        await self.forget_failures()
        if self.paid is not None:
            end = self._ports.debts.end_if_unchanged(self.paid)
            await self._best_effort(end, "placement debt could not be removed yet")

    def forget_copies(self) -> None:
        """Forget what this process knows about the copies of the ledger."""
        self._context.damage.forget(self._ledger_id)
        self._context.use.forget(self._ledger_id)

    async def forget_failures(self) -> None:
        """Delete the record of earlier failures, if any. Best effort, because a listing deletes it later."""
        if self._lease.other_nodes is None or self._lease.other_nodes.failure is None:
            return
        await self._best_effort(
            self._ports.failures.forget(self._ledger_id), "record of failures could not be removed yet"
        )

    async def note_moved(self, started_ms: int) -> None:
        """Record for all workers that copies were moved since ``started_ms``, against endless moves back and forth.
        Best effort.
        """
        await self._best_effort(self._ports.moves.note(self._ledger_id, started_ms), "move is not recorded")

    async def _best_effort(self, change: Awaitable[None], problem: str) -> None:
        try:
            await change
        except (TransientError, OutcomeUnknownError, ConflictError) as error:  # such as a node with children
            _log.info(problem, extra={"ledger_id": self._ledger_id, "error": str(error)})
