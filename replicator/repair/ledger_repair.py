"""Repair one ledger under its lock, in rounds until nothing is left: inspect, plan, reserve, copy and install.

The invariant: the task is deleted only by a round that found no ledger, found nothing missing, or repairs everything
that is missing. The transaction that deletes it checks the versions, as the round read them, of the ledger, of the
bookies in the task and of their disks (I18). The usual repair of a closed ledger ends with its last installation, in
the same transaction (``install``). A partial repair, and the repair of an open ledger, are always followed by another
round.

A round has these steps, each in a module of its own. The safety follows from their order:

1. ``inspection`` reads the metadata under the lock, then the bookies, and then asks the members for their entries (R2).
2. ``plan.planner`` decides what to copy. If nothing is missing and the task requests better placement, ``plan.moves``
   does.
3. ``unclosed_ledger`` recovers a ledger whose writer is dead, if the plan needs that.
4. ``execution`` carries out the plan: ``round_targets`` reserves it, ``copying.copier`` copies, ``install`` changes the
   metadata.
5. ``task_completion`` deletes the task if nothing is missing. ``unfinished_turn`` lets it fail or parks it if nothing
   can be copied now.

- Incomplete members of an unclosed ledger are recorded as doubted before anything is copied to them, because a copy
  hides the loss, and a recovery must not accept their denials (S6).
- The plan is reserved before the first copy, so no collector deletes a copy before the metadata names it (S16).
- The metadata names a target only after the target has listed its entries (S11).
- The reservation is removed before the task is deleted. So if a former holder of the lock still has a write in flight,
  this write is refused.

An entry whose loss an operator accepted, and that no bookie has, is left out of the copies; every other entry of its
positions is copied (R148). The transactions that name a target or delete the task then check the record of this.

An empty ledger has no copies, so nothing is reserved or listed for it (R118).

A crash releases the lock with the session (S14) and leaves the task. The next worker replaces or removes the
reservation, plans from the current metadata, and copies the entries again whose copies the metadata does not name;
collectors delete the copies on bookies that are not chosen again.

The next plan uses the results of a round: refusals of targets, unserved entries, incomplete bookies, damaged copies.

A task without a bookie requests better placement. If its ledger lacks nothing, its copies are moved by the same steps,
in a separate turn after all ledgers with missing copies. The replaced member is a source, and stays a member until the
metadata names the other one. The task is deleted if every ensemble adheres to the policy. Without a topology the task
stays, for Apache's workers.

R rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from bookie.metadata.ledgers.ledgers import (
    LedgerReplacedError,
    MetadataConflictError,
    NoSuchLedgerError,
    PreconditionFailedError,
)
from bookie.metadata.ledgers.serde import UnreadableMetadataError
from bookie.metadata.tasks.moves import MOVES_MAX, WINDOW_MS
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.errors import InvariantError, OutcomeUnknownError, TransientError
from bookie.runtime.fault_points import fault_point
from bookie.runtime.retry import Backoff
from bookie.runtime.waiting import run_cooperatively
from replicator.knowledge.holdings import HoldingsReader
from replicator.knowledge.moving import why_not_moved
from replicator.plan.moves import planning_moves
from replicator.plan.planner import Knowledge, Plan, planning_repair
from replicator.plan.steps import CopyPosition
from replicator.plan.target_choice import target_chooser
from replicator.queue.ordering import MISPLACED
from replicator.queue.task_queue import Turn
from replicator.repair import execution
from replicator.repair.accepted_loss import AcceptedLoss
from replicator.repair.conditions import Conditions
from replicator.repair.context import RepairContext
from replicator.repair.execution import Execution
from replicator.repair.inspection import Inspection, View
from replicator.repair.lease import Lease, LeaseLostError
from replicator.repair.reservation_holder import ReservationHolder
from replicator.repair.task_completion import TaskCompletion
from replicator.repair.turn_findings import TurnFindings
from replicator.repair.unclosed_ledger import UnclosedLedgerRepair
from replicator.repair.unfinished_turn import UnfinishedTurn
from replicator.telemetry.events import Ending, TaskResult

_log = logging.getLogger(__name__)

ROUNDS_MAX: Final = 12
"""The most rounds of a turn that repair no further position. Each round adds knowledge; if these are not enough, the
ledger changes faster than it can be repaired."""
REPAIRING_ROUNDS_MAX: Final = 5000
"""The most rounds of a turn: ten times as many as five lost positions in each of 100,000 fragments need."""
STORE_PAUSES: Final = Backoff(attempts=5)
"""The pauses before a round is repeated because the store did not answer."""

_ENDING_FAILURES: Final = (Ending.PARKED, Ending.MARKED_AGAIN)
"""Endings that leave the task but end a series of failures. If the record of the failures stayed, the next listing
would start the pause again (R95)."""
_UNFINISHED: Final = (Ending.STOPPED, Ending.FAILED)
"""Endings of a turn after which another turn continues its moves, so these moves are not counted yet (R56)."""


class LedgerRepair:
    """One turn of one task. An instance is used for one turn."""

    def __init__(self, context: RepairContext, lease: Lease, turn: Turn) -> None:
        """Prepare a turn for the task locked by ``lease``."""
        self._context = context
        self._ports = context.ports
        self._lease = lease
        self._turn = turn
        self._task = lease.held.task
        self._started_ms = context.ports.clock.epoch_ms()
        self._found = TurnFindings()
        self._accepted = AcceptedLoss(context.ports, lease)
        holdings = HoldingsReader(context.ports.transport, context.ports.clock)
        self._reservation = ReservationHolder(context.ports, lease)
        self._unclosed = UnclosedLedgerRepair(context.ports, lease, context.grace_periods, holdings, self._found)
        self._inspection = Inspection(context, lease, holdings, self._reservation, self._found, self._accepted)
        self._execution = Execution(context, lease, turn.rank, holdings, self._reservation, self._found, self._accepted)
        self._completion = TaskCompletion(context, lease, turn, self._reservation, self._unclosed, self._accepted)
        self._unfinished = UnfinishedTurn(context.ports, lease, turn, self._found)

    async def run(self) -> TaskResult:
        """Work on the task until its turn ends. Refusals by the store and by bookies become part of the result."""
        try:
            result = await self._rounds()
            if result.ending in _ENDING_FAILURES:
                await self._completion.forget_failures()
            if self._found.moved_copies and result.ending not in _UNFINISHED:
                await self._completion.note_moved(self._started_ms)
            return result
        except InvariantError as error:  # park only this ledger: after a restart it would fail again
            _log.critical("repair broke an internal rule", extra={"ledger_id": self._task.ledger_id}, exc_info=error)
            result = await self._unfinished.park_broken(error)
            await self._completion.forget_failures()
            return result
        finally:
            await self._reservation.release_best_effort()

    async def _rounds(self) -> TaskResult:
        pauses = STORE_PAUSES.delays(self._ports.rng)
        rounds = idle = 0
        while idle < ROUNDS_MAX and rounds < REPAIRING_ROUNDS_MAX:
            before = len(self._found.repaired)
            try:
                result = await self._round()
            except LeaseLostError as error:
                return self._ended(Ending.STOPPED, detail=str(error))
            except (TransientError, OutcomeUnknownError) as error:
                pause_s = next(pauses, None)
                if pause_s is None:
                    return self._ended(Ending.FAILED, detail=str(error))
                await self._ports.clock.sleep(pause_s)  # the next round keeps the copies
                result = None
            if result is not None:
                return result
            rounds += 1
            idle += len(self._found.repaired) == before
        detail = f"not settled after {rounds} rounds, {idle} of them without a repair; the ledger keeps changing"
        return self._ended(Ending.FAILED, detail=detail)

    async def _round(self) -> TaskResult | None:
        """Inspect the ledger, plan, and take one action; return None if another round must follow."""
        if not await self._lease.wait_connected():
            return self._stopped()
        self._completion.paid = None
        try:
            await self._unfinished.recall_refusals()
            view = await self._inspect()
            knowledge = await self._inspection.knowledge(view)
            plan = await self._plan(view, knowledge)
            if self._uses_accepted_loss(plan):
                knowledge = await self._inspection.knowledge(view)
                plan = await self._plan(view, knowledge)
            wait_s = self._unclosed.remaining_s(plan, view.bookies)
            is_recovery_due = wait_s is not None and wait_s <= 0 and not self._found.recovery_failure
            if (is_recovery_due or plan.steps) and not await self._lease.may_continue():
                return self._stopped()
            if is_recovery_due and await self._unclosed.recover(view.ledger, view.bookies):
                return None
            if plan.steps:
                return await self._execute(plan, view, knowledge)
            if wait_s is not None and wait_s > 0:
                return self._ended(Ending.IN_GRACE, detail=plan.blocked[-1].detail)
            if not (plan.blocked or view.shortfall.unknown or self._task.missing):
                return await self._improve_placement(view, knowledge)
            return await self._conclude(plan, view)
        except NoSuchLedgerError:
            return await self._complete(Ending.LEDGER_DELETED)
        except LedgerReplacedError as error:
            return await self._end_replaced(str(error))
        except UnreadableMetadataError as error:
            bookies = await self._ports.registrations.list()
            return await self._unfinished.park(ParkReason.UNREADABLE_METADATA, str(error), bookies)
        except MetadataConflictError:
            return None
        except PreconditionFailedError as error:
            self._reservation.note_lost()
            if error.path == self._accepted.path:  # an audit withdrew it, for example
                await self._accepted.read_again()
            return None

    def _uses_accepted_loss(self, plan: Plan) -> bool:
        """Whether an accepted loss, which was not considered yet, may permit to copy blocked positions (R148)."""
        first_entry_ids = self._accepted.use(plan.blocked)
        self._found.forget_unreadable(first_entry_ids)
        return bool(first_entry_ids)

    async def _inspect(self) -> View:
        """Inspect the ledger. Incomplete members of an unclosed ledger are doubted before anything is copied (S6)."""
        view = await self._inspection.view()
        self._execution.note_shown_damage(view.ledger, view.shortfall)
        if not view.ledger.metadata.is_closed:
            await self._unclosed.doubt(view.shortfall.incomplete_members())
        return view

    async def _plan(self, view: View, knowledge: Knowledge) -> Plan:
        """Plan from the view and from what this turn knows."""
        ledger, bookies = view.ledger, view.bookies
        ledger_id, write_quorum, placement = ledger.ledger_id, ledger.metadata.write_quorum, self._ports.placement
        chosen, positions = self._context.use.chosen(ledger_id), self._context.use.positions
        choose = target_chooser(ledger_id, write_quorum, placement, chosen, positions)
        plan = await run_cooperatively(
            planning_repair(ledger, bookies, choose, knowledge, steps_max=execution.STEPS_MAX)
        )
        if all(step.target == step.old for step in plan.steps):
            return plan
        begun = await self._reservation.begun()
        if not begun:
            return plan
        choose = target_chooser(ledger_id, write_quorum, placement, {**chosen, **begun}, positions)
        return await run_cooperatively(
            planning_repair(ledger, bookies, choose, knowledge, steps_max=execution.STEPS_MAX)
        )

    async def _improve_placement(self, view: View, knowledge: Knowledge) -> TaskResult | None:
        """Move copies of a healthy ledger, or end the turn; return None if another round must follow."""
        why = await why_not_moved(self._ports, self._context.absences, view.bookies)
        if why:
            return self._ended(Ending.LEFT, detail=f"a placement mark, which is left to Apache's workers: {why}")
        if self._turn.rank != MISPLACED:
            return self._ended(Ending.MARKED_AGAIN, detail="copies are moved after all ledgers that lack some")
        self._completion.paid = await self._ports.debts.read(self._task.ledger_id)
        begun = await self._reservation.begun()
        planning = planning_moves(
            view.ledger, view.bookies, self._ports.placement, knowledge, begun, steps_max=execution.STEPS_MAX
        )
        plan = await run_cooperatively(planning)
        if plan.steps and not self._found.moved_copies and await self._is_moved_too_often():
            detail = (
                f"its copies were moved {MOVES_MAX} times in {WINDOW_MS // 86_400_000} days, and it is marked again: "
            )
            detail += "compare the policy and the topology of all programs that check or repair placement"
            return await self._unfinished.park(ParkReason.MISPLACED, detail, view.bookies)
        if plan.steps:
            is_ready = await self._lease.may_continue()
            return await self._execute(plan, view, knowledge, is_move=True) if is_ready else self._stopped()
        if plan.blocked:
            if self._uses_accepted_loss(plan):
                return None
            return await self._unfinished.end_blocked(plan.blocked, view.bookies)
        return await self._complete(Ending.MOVED if self._found.moved_copies else Ending.NOTHING_MISSING, view)

    async def _is_moved_too_often(self) -> bool:
        """Whether another move could be part of an endless series, because programs use different policies."""
        return await self._ports.moves.count(self._task.ledger_id, self._started_ms) >= MOVES_MAX

    async def _execute(
        self, plan: Plan, view: View, knowledge: Knowledge, *, is_move: bool = False
    ) -> TaskResult | None:
        """Copy and install the steps of the plan; return None if another round must follow."""
        if not view.ledger.metadata.is_closed:  # a copy hides missing entries (S6)
            in_place = (step for step in plan.steps if isinstance(step, CopyPosition) and step.is_in_place)
            await self._unclosed.doubt({step.target for step in in_place})
        completing = self._completing(plan, view, is_move)
        if not await self._execution.run(plan, view.shortfall, completing, knowledge.acceptance):
            return self._stopped()
        if self._execution.is_completed:
            ending = Ending.MOVED if is_move else Ending.REPAIRED
            await self._completion.forget_ledger()
            return self._ended(ending)
        if not self._found.unreadable_for_now:
            return None
        detail = "; ".join(self._found.unreadable_for_now)
        return await self._unfinished.fail_or_park(ParkReason.UNREACHABLE_BOOKIES, detail, view.bookies)

    def _completing(self, plan: Plan, view: View, is_move: bool) -> Conditions | None:
        """Return the conditions for deleting the task with the plan's last step; None if another round must follow.

        Another round must inspect an open ledger, because its members may lack entries that the writer has added.
        Another round must also follow if a task without a bookie requests better placement and this plan makes no
        moves, or if a position is blocked, a bookie did not answer, or the plan is partial.
        """
        if plan.is_partial or plan.blocked or view.shortfall.unknown or not view.ledger.metadata.is_closed:
            return None
        if not self._task.missing and not is_move:
            return None
        if self._unclosed.has_doubts or self._found.unreadable or fault_point("replicator.complete_apart"):
            return None
        own = self._ports.ledgers.path(view.ledger.ledger_id)  # the write itself checks this version
        checks = (*view.conditions.checks, *self._accepted.checks())
        return replace(view.conditions, checks=tuple(check for check in checks if check.path != own))

    async def _conclude(self, plan: Plan, view: View) -> TaskResult:
        """End a turn that has nothing left to copy: park or fail, or complete the task because nothing is missing."""
        if plan.blocked:
            return await self._unfinished.end_blocked(plan.blocked, view.bookies)
        if view.shortfall.unknown:
            who = ", ".join(map(str, view.shortfall.unknown))
            detail = f"not all entries of these bookies are known: {who}"
            return await self._unfinished.fail_or_park(ParkReason.UNREACHABLE_BOOKIES, detail, view.bookies)
        is_repaired = self._found.fragments or self._found.is_recovered
        return await self._complete(Ending.REPAIRED if is_repaired else Ending.NOTHING_MISSING, view)

    async def _complete(self, ending: Ending, view: View | None = None) -> TaskResult:
        """Delete the task unless the verdict that is based on ``view`` is outdated (None: the ledger was deleted)."""
        return self._ended(await self._completion.complete(ending, view))

    async def _end_replaced(self, detail: str) -> TaskResult:
        """End the turn because another ledger has the id.

        All that this turn has read and copied belongs to the deleted ledger.
        """
        await self._reservation.release()
        self._completion.forget_copies()
        return self._ended(Ending.MARKED_AGAIN, detail=detail)

    def _stopped(self) -> TaskResult:
        return self._ended(Ending.STOPPED, detail="repair is disabled, or the session with the store has ended")

    def _ended(self, ending: Ending, *, detail: str = "") -> TaskResult:
        return self._found.result(self._task, ending, detail=detail)
