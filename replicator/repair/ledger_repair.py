"""Repair one ledger under its lock, in rounds until nothing is left: inspect, plan, reserve, copy and install.

The invariant: the task is deleted only by a round that found no ledger, found nothing missing, or repairs everything
that is missing. The transaction that deletes it checks the versions, as the round read them, of the ledger, of the
bookies in the task and of their disks (I18). The usual repair of a closed ledger ends with its last installation, in
the same transaction (``install``). A partial repair, and the repair of an open ledger, are always followed by another
round.

Each round reads the metadata under the lock and then lists the bookies (R2). The first round uses the metadata that was
read together with the task, and each round uses a list of bookies that is recent enough for R2 (``recent``). The safety
follows from the order of the steps:

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
collectors delete the copies on bookies that are not chosen again. Doubts and the parked record are deleted after the
task. If a crash prevents this, the next listing (``queue.task_queue``) deletes them.

The results of a round (targets that refused, entries that no bookie served, incomplete bookies, damaged copies) are
used in the next plan.

A task without a bookie requests better placement. If its ledger lacks nothing, its copies are moved by the same steps,
in a separate turn after all ledgers with missing copies. The replaced member is a source, and stays a member until the
metadata names the other one. The task is deleted if every ensemble adheres to the policy. If there is no topology to
judge by, the task stays, so that Apache's workers can act on it.

R rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Final

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import (
    MetadataConflictError,
    NoSuchLedgerError,
    PreconditionFailedError,
    Versioned,
)
from bookie.metadata.ledgers.serde import UnreadableMetadataError
from bookie.metadata.tasks.locks import SeenNode
from bookie.metadata.tasks.moves import MOVES_MAX, WINDOW_MS
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.availability import EntryRuns
from bookie.model.errors import ConflictError, InvariantError, OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId
from bookie.runtime.fault_points import fault_point
from bookie.runtime.retry import Backoff
from bookie.runtime.waiting import paced, run_cooperatively
from replicator.knowledge.absence import absent_members_not_in_task, awaiting
from replicator.knowledge.draining import with_draining
from replicator.knowledge.holdings import (
    FRAGMENTS_COMPARED_PER_STEP,
    Holdings,
    Shortfall,
    lacking_count,
    lacking_write_sets,
)
from replicator.knowledge.moving import why_not_moved
from replicator.plan.moves import planning_moves
from replicator.plan.planner import (
    Knowledge,
    Plan,
    PositionKey,
    needs_tail_evidence,
    planning_repair,
    target_chooser,
)
from replicator.plan.steps import CopyPosition
from replicator.queue.ordering import MISPLACED
from replicator.queue.task_queue import Turn
from replicator.repair import execution
from replicator.repair.accepted_loss import AcceptedLoss
from replicator.repair.conditions import Conditions, verdict_conditions
from replicator.repair.context import RepairContext
from replicator.repair.execution import Execution
from replicator.repair.lease import Lease, LeaseLostError
from replicator.repair.reservation_holder import ReservationHolder
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


@dataclass(frozen=True, slots=True)
class View:
    """What a round is based on, read under the lock."""

    ledger: Versioned
    bookies: Bookies
    conditions: Conditions
    """The conditions for deleting the task after a verdict that is based on this view (I18)."""
    shortfall: Shortfall


class LedgerRepair:
    """One turn of one task. An instance is used for one turn."""

    def __init__(self, context: RepairContext, lease: Lease, turn: Turn) -> None:
        """Prepare a turn for the task locked by ``lease``."""
        self._context = context
        self._ports = context.ports
        self._lease = lease
        self._turn = turn
        self._task = lease.held.task
        self._is_first_look = lease.other_nodes is not None
        self._started_ms = context.ports.clock.epoch_ms()
        self._found = TurnFindings()
        self._accepted = AcceptedLoss(context.ports, lease)
        self._holdings = Holdings(context.ports.transport, context.ports.clock)
        self._reservation = ReservationHolder(context.ports, lease)
        self._unfinished = UnfinishedTurn(context.ports, lease, turn, self._found)
        self._unclosed = UnclosedLedgerRepair(context.ports, lease, context.grace_periods, self._holdings, self._found)
        self._execution = Execution(
            context, lease, turn.rank, self._holdings, self._reservation, self._found, self._accepted
        )

    async def run(self) -> TaskResult:
        """Work on the task until its turn ends. Refusals by the store and by bookies become part of the result."""
        try:
            result = await self._rounds()
            if result.ending in _ENDING_FAILURES:
                await self._forget_failures()
            if self._found.moved_copies and result.ending not in _UNFINISHED:
                await self._note_moved()
            return result
        except InvariantError as error:  # park only this ledger: after a restart it would fail again
            _log.critical("repair broke an internal rule", extra={"ledger_id": self._task.ledger_id}, exc_info=error)
            result = await self._unfinished.park_broken(error)
            await self._forget_failures()
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
        try:
            await self._unfinished.recall_refusals()
            view = await self._inspect()
            knowledge = await self._knowledge(view)
            plan = await self._plan(view, knowledge)
            if self._uses_accepted_loss(plan):
                knowledge = await self._knowledge(view)
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
        """Read the metadata, then the bookies, then the members' entries.

        In this order, the data about bookies is never older than the metadata (R2).
        """
        ledger = await self._read()
        if fault_point("replicator.reread"):
            ledger = await self._ports.ledgers.read(self._task.ledger_id)
        members, named = ledger.metadata.members(), set(self._task.missing)
        listed = await self._ports.recent.bookies(expected=members - named)
        bookies, drain_checks = await with_draining(self._ports, listed, members & named)
        absent = absent_members_not_in_task(ledger.metadata, self._task.missing, bookies)
        bookies = awaiting(bookies, absent, await self._context.absences.lost(bookies, absent))
        conditions = await verdict_conditions(self._ports, ledger, self._task, bookies)
        conditions = replace(conditions, checks=(*conditions.checks, *drain_checks))
        shortfall = await self._holdings.shortfall(ledger, self._task.missing, bookies)
        self._execution.note_shown_damage(ledger, shortfall)
        if not ledger.metadata.is_closed:
            await self._unclosed.doubt(shortfall.incomplete_members())
        return View(ledger, bookies, conditions, shortfall)

    async def _read(self) -> Versioned:
        """Return the current metadata; the first time, return that which was read together with the task."""
        if self._is_first_look and self._lease.other_nodes is not None:
            self._is_first_look = False
            return self._ports.ledgers.versioned(self._task.ledger_id, self._lease.other_nodes.metadata)
        return await self._ports.ledgers.read(self._task.ledger_id)

    async def _knowledge(self, view: View) -> Knowledge:
        """Return what this turn knows, for a plan."""
        ledger, bookies, shortfall = view.ledger, view.bookies, view.shortfall
        permitted = self._accepted.acceptance(ledger.metadata, bookies)
        lacking = dict(shortfall.lacking)
        complete: set[PositionKey] = set()
        for key in shortfall.positions if permitted.fragments else ():
            if entries := permitted.entries(key.first_entry_id):
                lacking[key], is_complete = await self._lacking_others(view, key, entries)
                complete |= {key} if is_complete else set()
        damaged = {
            key: max(entries)
            for key, entries in self._context.damage.of(ledger.ledger_id).items()
            if key.bookie in bookies.staying
        }
        # These positions are of a closed ledger, for which the last damaged entry does not matter.
        on_apache = [key for key in damaged if await self._ports.recent.incarnation(key.bookie) == ""]
        damaged = {key: key.first_entry_id for key in shortfall.damaged_positions - complete} | damaged
        incomplete = shortfall.positions - complete
        asked_of = shortfall.doubtful | incomplete | damaged.keys()
        is_asked = needs_tail_evidence(ledger.metadata, bookies, asked_of)
        absent = ledger.metadata.members() - bookies.registered
        self._context.returns.note_absent(absent)
        return Knowledge(
            is_tail_written=is_asked and await self._holdings.is_tail_written(ledger, bookies),
            incomplete=incomplete,
            doubtful=shortfall.doubtful,
            lagging=shortfall.lagging,
            lacking=lacking,
            damaged=damaged,
            with_wrong_bytes=shortfall.wrong_byte_positions.union(on_apache),
            unreadable=dict(self._found.unreadable),
            failed_targets=frozenset(self._found.failed_targets),
            flapping=self._context.returns.flapping(absent),
            acceptance=permitted,
            continued=await self._continued(view),
            avoided=self._ports.circuits.avoided(bookies.writable, self._ports.clock.monotonic_s()),
        )

    async def _lacking_others(self, view: View, key: PositionKey, accepted: EntryRuns) -> tuple[frozenset[int], bool]:
        """Compare a position with its bookie's entries and those with an accepted loss (R148).

        Return the write sets of the entries that are in neither of them, and whether the bookie lacks only entries that
        were left out of a copy to it in this turn.
        """
        metadata = view.ledger.metadata
        last = metadata.final_last_entry_id(metadata.fragment_index(key.first_entry_id))
        if last is None:
            return metadata.stripe.starts(key.first_entry_id, last), False
        listed = view.shortfall.held_by(key.bookie).between(key.first_entry_id, last)
        stripe, position, first = metadata.stripe, key.position, key.first_entry_id
        known = await run_cooperatively(EntryRuns.union_with_pauses(listed, accepted))
        others = frozenset[int]()
        if await lacking_count(stripe, position, known, first, last):
            others = await lacking_write_sets(stripe, position, known, first, last)
        left_out = self._accepted.left_out(key)
        if others or left_out is None:
            return others, False
        held = await run_cooperatively(EntryRuns.union_with_pauses(listed, left_out))
        return others, not await lacking_count(stripe, position, held, first, last)

    async def _continued(self, view: View) -> dict[PositionKey, BookieId]:
        """Return incomplete positions for which a begun copy has more entries than their bookie (R44, R55)."""
        found: dict[PositionKey, BookieId] = {}
        metadata = view.ledger.metadata
        if not view.shortfall.positions or not await self._reservation.begun():
            return found
        recorded = self._reservation.recorded()
        async for key in paced(view.shortfall.positions, FRAGMENTS_COMPARED_PER_STEP):
            first = key.first_entry_id
            last = metadata.final_last_entry_id(metadata.fragment_index(first))
            if (first, key.position) not in recorded or last is None:
                continue
            copy, end = recorded[first, key.position]
            if copy.target == key.bookie or copy.incarnation != await self._ports.recent.incarnation(copy.target):
                continue
            listed = view.shortfall.held_by(key.bookie)
            lacking = await lacking_count(metadata.stripe, key.position, listed, first, last)
            if metadata.stripe.count(key.position, end, last) < lacking:
                found[key] = copy.target
        return found

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
            return await self._completed(Ending.MOVED if is_move else Ending.REPAIRED)
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
        """Delete the task unless the verdict that is based on ``view`` is outdated (None: the ledger was deleted).

        The record of doubted members is deleted too, unless a member of an unclosed ledger is awaited. This member may
        be the only one with entries that a doubted member acknowledged and lost (S6).
        """
        await self._reservation.release()
        conditions = Conditions() if view is None else view.conditions
        are_doubts_kept = view is not None and not view.ledger.metadata.is_closed and bool(view.bookies.awaited)
        doubts = None if are_doubts_kept else await self._unclosed.doubts_deletion()
        unreserved = SeenNode(self._ports.reservations.path(self._task.ledger_id), None)
        relied = () if view is None else self._accepted.checks()
        operations = (*conditions.checks, *relied, *([] if doubts is None else [doubts]))
        if not await self._lease.complete(operations, seen=[unreserved, *conditions.registrations]):
            return self._ended(Ending.MARKED_AGAIN)
        return await self._completed(ending)

    async def _completed(self, ending: Ending) -> TaskResult:
        """Forget a ledger whose task was deleted, and delete its other records."""
        self._context.damage.forget(self._task.ledger_id)
        self._context.use.forget(self._task.ledger_id)
        other_nodes = self._lease.other_nodes
        # A record that cannot be decoded is deleted too. The queue deletes records that are written later.
        if self._turn.is_parked or (other_nodes is not None and other_nodes.parked is not None):
            await self._best_effort(
                self._ports.parked.unpark(self._task.ledger_id), "record of a parked task could not be removed yet"
            )
        await self._forget_failures()
        if self._turn.rank == MISPLACED and ending is not Ending.LEDGER_DELETED:
            await self._best_effort(
                self._ports.debts.end(self._task.ledger_id), "placement debt could not be removed yet"
            )
        return self._ended(ending)

    async def _note_moved(self) -> None:
        """Record for all workers that copies were moved, so that they are not moved back and forth. Best effort."""
        note = self._ports.moves.note(self._task.ledger_id, self._started_ms)
        await self._best_effort(note, "move is not recorded")

    async def _best_effort(self, change: Awaitable[None], problem: str) -> None:
        try:
            await change
        except (TransientError, OutcomeUnknownError, ConflictError) as error:  # such as a node with children
            _log.info(problem, extra={"ledger_id": self._task.ledger_id, "error": str(error)})

    async def _forget_failures(self) -> None:
        """Delete the record of earlier failures, if any. Best effort, because a listing deletes it later."""
        if self._lease.other_nodes is None or self._lease.other_nodes.failure is None:
            return
        await self._best_effort(
            self._ports.failures.forget(self._task.ledger_id), "record of failures could not be removed yet"
        )

    def _stopped(self) -> TaskResult:
        return self._ended(Ending.STOPPED, detail="repair is disabled, or the session with the store has ended")

    def _ended(self, ending: Ending, *, detail: str = "") -> TaskResult:
        return self._found.result(self._task, ending, detail=detail)
