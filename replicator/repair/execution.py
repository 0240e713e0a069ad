"""Carrying out one round's plan: reserve it, let the targets pin the ledger, copy, and install what is ready.

Problems with bookies go into the log of the turn. If a lost bookie registers again while its copy is under way, the
round ends early (R55): the next one asks the bookie what it has, and continues the copy if the bookie lacks more than
the target.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from bookie.client.placement.groups import note_targets
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.port import Operation
from bookie.model.availability import EntryRuns
from bookie.model.errors import PermanentError, TransientError
from bookie.model.ids import BookieId, EntryId
from bookie.runtime.fault_points import fault_point
from bookie.wire.port import Status
from replicator.copying.copier import REPORTED_MAX, Copier, CopyOutcome
from replicator.knowledge.damage import KnownDamage, without
from replicator.knowledge.evidence import Answer, describe
from replicator.knowledge.holdings import Holdings, Shortfall
from replicator.knowledge.returns import Returns
from replicator.plan.planner import Plan, PositionKey
from replicator.plan.steps import Cause, CopyPosition, Step, SwapMember
from replicator.ports import RepairPorts
from replicator.repair.debt_notes import note_debts
from replicator.repair.install import CopiedStep, Installer
from replicator.repair.lease import Lease
from replicator.repair.reservation_holder import ReservationHolder
from replicator.repair.turn_log import TurnLog
from replicator.telemetry.events import EventSink

_log = logging.getLogger(__name__)

INSTALL_BYTES: Final = 64 << 20
"""Copied bytes after which what is ready is installed, so that an interruption costs no more than these."""
STEPS_MAX: Final = 1000
"""Steps of one round, as their reservation is one node: a ledger may have many thousand fragments. The next round plans
what is left."""


class Execution:
    """What one turn of one task does to the cluster, over all its rounds."""

    def __init__(
        self,
        ports: RepairPorts,
        copier: Copier,
        lease: Lease,
        events: EventSink,
        damage: KnownDamage,
        holdings: Holdings,
        reserving: ReservationHolder,
        log: TurnLog,
        returns: Returns,
        rank: int,
    ) -> None:
        self._log = log
        self._returns = returns
        self._rank = rank
        self._ports = ports
        self._placement = ports.placement
        self._recent = ports.recent
        self._copier = copier
        self._lease = lease
        self._events = events
        self._damage = damage
        self._holdings = holdings
        self._reserving = reserving
        self._installer = Installer(ports, copier, holdings, lease)
        self._copied: dict[tuple[PositionKey, BookieId, EntryId], CopiedStep] = {}
        self._returned: set[BookieId] = set()
        """Lost bookies that ended a copy of this round by their return, even if they have left again."""
        self.is_completed = False
        """Whether the last installation deleted the task, its lock and the reservation as well."""

    async def run(self, plan: Plan, shortfall: Shortfall, completing: Sequence[Operation] | None = None) -> bool:
        """Copy and install ``STEPS_MAX`` steps; False if the worker may not go on.

        Args:
            plan: what to do.
            shortfall: what incomplete members hold.
            completing: if nothing is missing after the plan: what must hold for the task to be deleted with the last
                installation (``is_completed``).

        Raises:
            MetadataConflictError, PreconditionFailedError, NoSuchLedgerError, LeaseLostError: see ``Installer``.
            TransientError, OutcomeUnknownError: the store did not answer.
        """
        ledger, steps = plan.ledger, plan.steps[:STEPS_MAX]
        self._log.silence.clear()
        self._returned.clear()
        fresh = [step.target for step in steps if step.target != step.old]
        note_targets(self._placement, ledger.ledger_id, ledger.metadata, fresh)
        incarnations = await self._prepare(ledger, steps)
        swaps = [step for step in steps if isinstance(step, SwapMember) and step.target not in self._log.failed_targets]
        ready = [CopiedStep(step) for step in swaps]
        left = len(plan.steps)
        for step in steps:
            if isinstance(step, SwapMember) or step.target in self._log.failed_targets:
                continue
            copied = await self._copy(ledger, step, shortfall, incarnations[step.target])
            if copied is not None:
                ready.append(copied)
            elif not await self._lease.may_continue():
                return False
            elif step.old in self._returned:
                self._returns.note(step.old)
                _log.info(
                    "a lost bookie has returned, its copy is ended",
                    extra={"ledger_id": ledger.ledger_id, "bookie_id": step.old, "target": step.target},
                )
                break  # another look asks the bookie what it has
            is_early = bool(ready) and fault_point("replicator.install_early")
            if is_early or sum(copy.bytes for copy in ready) >= INSTALL_BYTES:
                ledger = await self._install(ledger, ready)
                left -= len(ready)
                ready = []
        if ready and not fault_point("replicator.look_again"):
            is_last = len(ready) == left and self._is_without_damage(ledger)
            await self._install(ledger, ready, completing if is_last else None)
        return True

    def _is_without_damage(self, ledger: Versioned) -> bool:
        """Whether no damaged copy is left that another round would have to replace."""
        return not self._damage.of(ledger.ledger_id)

    async def _prepare(self, ledger: Versioned, steps: Sequence[Step]) -> dict[BookieId, str]:
        """Reserve the plan, then let each target pin the ledger; return the incarnations of the targets."""
        incarnations: dict[BookieId, str] = {}
        for target in dict.fromkeys(step.target for step in steps):
            incarnation = await self._recent.incarnation(target)
            if incarnation is None:
                self._log.failed_targets[target] = Answer(target, Status.UNRESOLVED, "not registered any more")
            else:
                incarnations[target] = incarnation
        there = [(step, incarnations[step.target]) for step in steps if step.target in incarnations]
        await self._reserving.reserve(ledger, there)
        # Also if nothing is copied: a collector that has started with the ledger must not end up with a member of it.
        fresh = dict.fromkeys(s.target for s, _ in there if isinstance(s, SwapMember) or not s.is_in_place)
        for refusal in await asyncio.gather(*(self._holdings.pin(ledger.ledger_id, target) for target in fresh)):
            if refusal is not None:
                self._log.failed_targets[refusal.bookie] = refusal
        return incarnations

    async def _copy(
        self, ledger: Versioned, step: CopyPosition, shortfall: Shortfall, incarnation: str
    ) -> CopiedStep | None:
        """Copy one position; None if it did not work, with the reason noted for the next plan."""
        key = _key(ledger, step)
        before = self._copied.get((key, step.target, step.last))
        overwritten = tuple(sorted(self._damage.of(ledger.ledger_id).get(key, ()))) if step.is_in_place else ()
        if before is not None and before.incarnation == incarnation and not overwritten:
            return replace(before, step=step)  # copied by an earlier round whose write met a conflict
        note = partial(self._reserving.note_progress, ledger, step, incarnation)
        held = self._held_before(ledger, step, shortfall, incarnation, overwritten)
        goes_on = partial(self._is_wanted, step)
        outcome = await self._copier.copy(ledger, step, goes_on, held, incarnation, self._rank, note)
        self._note_damage(ledger, outcome)
        if outcome.is_complete:
            copied = CopiedStep(step, incarnation, outcome.entries, outcome.bytes, overwritten)
            self._copied[key, step.target, step.last] = copied
            return copied
        if outcome.target_failure is not None:
            self._log.failed_targets[step.target] = outcome.target_failure
        elif outcome.unreadable_count:
            evidence = describe(outcome.unreadable, outcome.unreadable_count)
            if outcome.is_hopeless:
                self._log.unreadable[key] = evidence
            else:
                self._log.silence.append(f"fragment {step.fragment_index} position {step.position}: {evidence}")
        return None

    async def _is_wanted(self, step: CopyPosition) -> bool:
        """Whether the next chunk may start: the worker may go on, and the lost bookie has not returned (R55).

        Raises:
            StoreUnavailableError: see ``Lease.may_continue``.
        """
        if not await self._lease.may_continue():
            return False
        if step.cause is Cause.UNREGISTERED and await self._is_back(step.old):
            self._returned.add(step.old)
        return step.old not in self._returned

    async def _is_back(self, bookie: BookieId) -> bool:
        """Whether a lost bookie is registered, as all turns of this process see it; False if that is not known."""
        try:
            return bookie in (await self._recent.bookies()).registered
        except (TransientError, PermanentError) as error:
            _log.info("copy goes on without a list of bookies", extra={"error": str(error)})
            return False

    def _note_damage(self, ledger: Versioned, outcome: CopyOutcome) -> None:
        """Report damaged copies, and note those with a good copy elsewhere for the next plan."""
        known = self._damage.copies(ledger.ledger_id) if outcome.corrupt else frozenset()
        fresh = [copy for copy in outcome.corrupt if (copy.bookie, copy.entry_id) not in known]
        for corrupt in fresh[:REPORTED_MAX]:
            self._events.copy_corrupt(ledger.ledger_id, corrupt)
        without_good = {entry.entry_id for entry in outcome.unreadable}
        for bookie in self._damage.note(ledger, [copy for copy in fresh if copy.entry_id not in without_good]):
            self._log.failed_targets[bookie] = Answer(bookie, Status.CORRUPT, "too many damaged copies")

    def _held_before(
        self,
        ledger: Versioned,
        step: CopyPosition,
        shortfall: Shortfall,
        incarnation: str,
        overwritten: Collection[EntryId],
    ) -> EntryRuns:
        """What the target has already and need not get again: of its own copies, or of a copy that was interrupted."""
        if step.is_in_place:
            return without(_held(step, shortfall), overwritten)
        end = self._reserving.end_entry_id(ledger, step, incarnation)
        return self._holdings.already_copied(step.target, step.first, end)

    async def _install(
        self, ledger: Versioned, ready: Sequence[CopiedStep], completing: Sequence[Operation] | None = None
    ) -> Versioned:
        await note_debts(self._ports, ledger, [copy.step for copy in ready])
        installed = await self._installer.install(ledger, ready, self._reserving.current, completing)
        if installed.is_completed:
            self._reserving.note_deleted()
            self.is_completed = True
        for refusal in installed.refusals:
            self._log.failed_targets[refusal.bookie] = refusal
            self._reserving.forget_progress(refusal.bookie)
        for copy in installed.done:
            self._log.fragments.add(ledger.metadata.fragments[copy.step.fragment_index].first_entry_id)
            self._log.entries += copy.entries
            self._log.bytes += copy.bytes
            self._log.moved_copies += copy.step.cause is Cause.MISPLACED
            self._log.replaced_copies += self._damage.replaced(ledger.ledger_id, _key(ledger, copy.step))
        return installed.ledger


def _held(step: CopyPosition, shortfall: Shortfall) -> EntryRuns:
    """What the target has, whether or not its copies are good."""
    is_all = step.cause is Cause.DAMAGED and step.is_in_place and step.target not in dict(shortfall.held)
    return EntryRuns(((step.first, step.last),)) if is_all else shortfall.held_by(step.target)


def _key(ledger: Versioned, step: Step) -> PositionKey:
    return PositionKey(ledger.metadata.fragments[step.fragment_index].first_entry_id, step.position, step.old)
