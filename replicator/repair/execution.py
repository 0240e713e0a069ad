"""Carry out one round's plan: make its targets ready, copy, and install completed steps.

All positions of a fragment are copied together, so an entry of several positions is read once (``copying.copier``). A
few fragments are copied concurrently, because a small one has too few chunks to keep a bookie busy. An installation may
run during the copies of other fragments, because it changes only the members of finished positions.

The parts of a round have modules of their own: ``round_targets`` reserves the plan, ``return_watch`` ends the round if
a lost bookie returns, ``ledger_watch`` if the ledger is deleted, ``lacking_sources`` marks sources without good copies,
``turn_damage`` decides which damaged copies are overwritten, and ``accepted_loss`` which entries may be left out.
Problems with bookies are recorded in the findings of the turn.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from bookie.client.placement.groups import log_targets_outside_groups
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from bookie.runtime.fault_points import fault_point
from bookie.runtime.waiting import results_as_completed, run_cooperatively
from replicator.copying.outcome import CopyOutcome
from replicator.copying.receiver import PositionCopy
from replicator.knowledge.damage import without
from replicator.knowledge.holdings import HoldingsReader, Shortfall
from replicator.plan.acceptance import NOTHING_ACCEPTED, Acceptance
from replicator.plan.installable import CopiedStep
from replicator.plan.planner import Plan
from replicator.plan.steps import Cause, CopyPosition, PositionKey, Step, SwapMember
from replicator.repair.accepted_loss import AcceptedLoss
from replicator.repair.conditions import Conditions
from replicator.repair.context import RepairContext
from replicator.repair.install import Installer, InstallResult
from replicator.repair.lacking_sources import LackingSources
from replicator.repair.lease import Lease
from replicator.repair.ledger_watch import LedgerWatch
from replicator.repair.reservation_holder import ReservationHolder
from replicator.repair.return_watch import ReturnWatch
from replicator.repair.round_targets import RoundTargets, ready_targets
from replicator.repair.turn_damage import TurnDamage
from replicator.repair.turn_findings import TurnFindings

_log = logging.getLogger(__name__)

FRAGMENTS_AT_ONCE: Final = 4
"""The fragments of one ledger that are copied concurrently: as many as a large fragment has chunks in flight."""
INSTALL_BYTES: Final = 64 << 20
"""The copied bytes between two installations, which is also the most that an interruption leaves uninstalled."""
STEPS_MAX: Final = 1000
"""The most steps of one round: their reservation is one node, and a ledger may have thousands of fragments. The next
round plans the others."""


@dataclass(slots=True)
class CopyingRound:
    """One round while its plan is carried out. All its copies are made from the metadata of the plan."""

    ledger: Versioned
    steps: Sequence[Step]
    shortfall: Shortfall
    """The entries that incomplete members have."""
    acceptance: Acceptance
    """The entries that copies may leave out."""
    targets: RoundTargets
    returns: ReturnWatch
    watch: LedgerWatch
    is_any_lacking: bool = False
    """Whether a source served no good copy of some entry."""

    def key(self, step: Step) -> PositionKey:
        """Return the position that a step repairs."""
        return PositionKey.of(self.ledger.metadata, step)


class Execution:
    """The changes that one turn of a task makes to the cluster, over all its rounds."""

    def __init__(
        self,
        context: RepairContext,
        lease: Lease,
        rank: int,
        holdings: HoldingsReader,
        reservation: ReservationHolder,
        found: TurnFindings,
        accepted: AcceptedLoss,
    ) -> None:
        """Prepare the execution for a turn of this ``rank`` (``queue.ordering.rank``); add its results to ``found``."""
        self._ports = context.ports
        self._placement = context.ports.placement
        self._recent = context.ports.recent
        self._copier = context.copier
        self._returns = context.returns
        self._use = context.use
        self._lease = lease
        self._rank = rank
        self._holdings = holdings
        self._reservation = reservation
        self._found = found
        self._accepted = accepted
        self._damage = TurnDamage(context.damage, context.stored_again, context.events)
        self._lacking = LackingSources(context.ports)
        self._installer = Installer(context.ports, context.copier, holdings, lease, accepted)
        self._copied: dict[tuple[PositionKey, BookieId, EntryId], CopiedStep] = {}
        """The completed copies of the turn. If the write of one is refused, a later round need not copy it again."""
        self.is_completed = False
        """Whether the last installation also deleted the task, its lock and the reservation."""

    def note_shown_damage(self, ledger: Versioned, shortfall: Shortfall) -> None:
        """Note the damaged copies that bookies showed when they were asked for their entries in this round."""
        self._found.note_refusals(self._damage.note_shown(ledger, shortfall))

    async def run(
        self,
        plan: Plan,
        shortfall: Shortfall,
        completing: Conditions | None = None,
        acceptance: Acceptance = NOTHING_ACCEPTED,
    ) -> bool:
        """Copy and install up to ``STEPS_MAX`` steps; return False if the worker may not continue.

        Args:
            plan: the plan to carry out.
            shortfall: the entries that incomplete members have.
            completing: the conditions for deleting the task with the last installation (``is_completed``), if nothing
                is missing after the plan; None if another round must check.
            acceptance: the entries that copies may leave out.

        Raises:
            MetadataConflictError, PreconditionFailedError, NoSuchLedgerError, LeaseLostError: see ``Installer``.
            TransientError, OutcomeUnknownError: the store did not answer.
        """
        ledger, steps = plan.ledger, plan.steps[:STEPS_MAX]
        keys = ((PositionKey.of(ledger.metadata, step), step) for step in steps if isinstance(step, CopyPosition))
        chosen = {(key.first_entry_id, key.position): step.target for key, step in keys}
        with self._use.copying(ledger.ledger_id, chosen):
            self._found.unreadable_for_now.clear()
            fresh = [step.target for step in steps if step.target != step.old]
            log_targets_outside_groups(self._placement, ledger.ledger_id, ledger.metadata, fresh)
            targets = await ready_targets(ledger, steps, self._recent, self._holdings, self._reservation, self._found)
            returns = ReturnWatch(self._lease, self._recent, self._returns)
            watch = LedgerWatch(self._ports, ledger)
            copying = CopyingRound(ledger, steps, shortfall, acceptance, targets, returns, watch)
            if await self._try_damaged_bookies(copying):
                return True  # another check asks these bookies again
            return await self._copy_and_install(copying, len(plan.steps), completing)

    async def _copy_and_install(self, copying: CopyingRound, left: int, completing: Conditions | None) -> bool:
        """Copy the steps of a round and install them; ``left`` is the number of steps of the whole plan."""
        ledger = copying.ledger  # as last written
        failed = self._found.failed_targets
        ready = [
            CopiedStep(step) for step in copying.steps if isinstance(step, SwapMember) and step.target not in failed
        ]
        async with aclosing(results_as_completed(self._copies(copying), FRAGMENTS_AT_ONCE)) as fragments:
            async for are_all_copied, copied in fragments:
                ready.extend(copied)
                if not are_all_copied and not await self._lease.may_continue():
                    return False
                if copying.watch.has_ended_round:
                    return True
                if copying.returns.has_ended_round:
                    copying.returns.count_returns(ledger.ledger_id)
                    break  # another round asks the bookies for their entries
                is_early = bool(ready) and fault_point("replicator.install_early")
                if is_early or sum(copy.bytes for copy in ready) >= INSTALL_BYTES:
                    installed = await self._install(copying, ledger, ready)
                    ledger, left = installed.ledger, left - len(installed.done)
                    ready = []
        if ready and not fault_point("replicator.look_again"):
            is_last = len(ready) == left and not self._is_another_round_needed(copying)
            await self._install(copying, ledger, ready, completing if is_last else None)
        return True

    def _is_another_round_needed(self, copying: CopyingRound) -> bool:
        """Whether a source served a damaged copy or none, so that another round must ask the bookies in the task.

        If the task already named this source, the mark did not change it, and would not prevent its deletion.
        """
        return copying.is_any_lacking or self._damage.is_any_known(copying.ledger.ledger_id)

    def _copies(self, copying: CopyingRound) -> Iterator[Coroutine[Any, Any, tuple[bool, list[CopiedStep]]]]:
        """Yield the copies of each fragment in turn, without targets that have failed before."""
        fragments: dict[int, list[CopyPosition]] = {}
        for step in copying.steps:
            if isinstance(step, CopyPosition):
                fragments.setdefault(step.fragment_index, []).append(step)
        for positions in fragments.values():
            wanted = [step for step in positions if step.target not in self._found.failed_targets]
            if wanted:
                yield self._copy(copying, wanted)

    async def _copy(self, copying: CopyingRound, steps: Sequence[CopyPosition]) -> tuple[bool, list[CopiedStep]]:
        """Copy positions of one fragment together. Return whether all were copied, and those that were.

        Why the others were not copied is recorded for the next plan.
        """
        done: list[CopiedStep] = []
        wanted: list[tuple[CopyPosition, tuple[EntryId, ...]]] = []
        for step in steps:
            damaged = self._damage.entries(copying.ledger, copying.key(step)) if step.is_in_place else ()
            overwritten = tuple(sorted(damaged))
            before = None if overwritten else self._copied_before(copying, step)
            if before is not None:
                done.append(before)
            else:
                wanted.append((step, overwritten))
        if not wanted:
            return True, done
        copies = [await self._position_copy(copying, step, overwritten) for step, overwritten in wanted]
        outcomes = await self._run_copies(copying, [step for step, _ in wanted], steps, copies)
        self._found.note_refusals(self._damage.note_read(copying.ledger, outcomes))
        for (step, overwritten), outcome in zip(wanted, outcomes, strict=True):
            key = copying.key(step)
            if outcome.is_complete:
                copied = self._copied_step(copying, step, overwritten, outcome)
                self._copied[key, step.target, step.last] = copied
                done.append(copied)
            else:
                self._found.note_failure(key, step, self._damage.with_own_evidence(step, outcome))
        return len(done) == len(steps), done

    def _copied_before(self, copying: CopyingRound, step: CopyPosition) -> CopiedStep | None:
        """Return the copy that an earlier round made of a position on the same disks, without leaving out entries."""
        before = self._copied.get((copying.key(step), step.target, step.last))
        if before is None or before.incarnation != copying.targets.incarnation(step.target) or before.left_out:
            return None
        return replace(before, step=step)

    async def _position_copy(
        self, copying: CopyingRound, step: CopyPosition, overwritten: Collection[EntryId]
    ) -> PositionCopy:
        incarnation = copying.targets.incarnation(step.target)
        return PositionCopy(
            step,
            await self._entries_already_held(copying, step, overwritten),
            incarnation,
            partial(self._reservation.note_progress, copying.ledger, step, incarnation),
            self._may_leave_out(copying, step),
            self._accepted.entries(step.first),
        )

    def _copied_step(
        self, copying: CopyingRound, step: CopyPosition, overwritten: Sequence[EntryId], outcome: CopyOutcome
    ) -> CopiedStep:
        entries = self._accepted.entries(step.first)
        return CopiedStep(
            step,
            incarnation=copying.targets.incarnation(step.target),
            entries=outcome.entries,
            bytes=outcome.bytes,
            overwritten=tuple(entry for entry in overwritten if entry not in outcome.left_out),
            left_out=outcome.left_out,
            has_accepted=step.stripe.held_count(step.position, entries, step.first, step.last) > 0,
            absent=copying.acceptance.absent(step.first),
        )

    async def _run_copies(
        self,
        copying: CopyingRound,
        wanted: Sequence[CopyPosition],
        filled: Sequence[CopyPosition],
        copies: Sequence[PositionCopy],
    ) -> list[CopyOutcome]:
        """Copy ``wanted``, positions of a fragment of which this round fills ``filled``."""
        return await self._copier.copy(
            copying.ledger,
            copies,
            partial(self._may_copy_chunk, copying, wanted),
            self._rank,
            partial(self._mark_lacking, copying),
            partial(self._note_found, copying, filled),
        )

    async def _may_copy_chunk(self, copying: CopyingRound, steps: Sequence[CopyPosition]) -> bool:
        """Whether the next chunk of ``steps`` may start.

        Raises:
            StoreUnavailableError: see ``Lease.may_continue``.
        """
        return await copying.returns.may_copy_chunk(steps) and await copying.watch.is_same()

    def _may_leave_out(self, copying: CopyingRound, step: CopyPosition) -> EntryRuns:
        """Return the entries that a copy may leave out, except those that its own bookie could not read (R148)."""
        entries = copying.acceptance.entries(step.first)
        unread = self._damage.unread_by(step.old) if step.is_in_place else None
        return entries.without(unread) if entries and unread else entries

    async def _entries_already_held(
        self, copying: CopyingRound, step: CopyPosition, overwritten: Collection[EntryId]
    ) -> EntryRuns:
        """Return the entries that the target already has: its own, or those of an interrupted copy."""
        if step.is_in_place:
            return without(_held(step, copying.shortfall), overwritten)
        if self._may_leave_out(copying, step) and not self._holdings.is_listing(step.target):
            return EntryRuns(())  # the record of the progress includes entries that were left out
        ledger, incarnation = copying.ledger, copying.targets.incarnation(step.target)
        end = self._reservation.end_entry_id(ledger, step, incarnation)
        own = self._holdings.already_copied(step.target, step.first, end)
        other = self._reservation.other_position(ledger, step, incarnation)
        if other is None:
            return own
        shared = self._holdings.already_copied_for(other[0], step, other[1])
        return await run_cooperatively(EntryRuns.union_with_pauses(own, shared))

    async def _try_damaged_bookies(self, copying: CopyingRound) -> bool:
        """Store one damaged entry again on each bookie with several of them, and read it back (R139).

        Return whether the bookies must be asked again for that reason.
        """
        is_one_restored = False
        registered = [step for step in copying.steps if step.target in copying.targets]
        for step, entry_id in self._damage.to_try_first(copying.ledger, registered):
            is_one_restored |= await self._restore(copying, step, entry_id)
        return is_one_restored

    async def _restore(self, copying: CopyingRound, step: CopyPosition, entry_id: EntryId) -> bool:
        """Store an entry in place and read it back; return whether the bookie can read it now and could not before."""
        target, key = step.target, copying.key(step)
        others = without(EntryRuns(((step.first, step.last),)), [entry_id])
        incarnation, recorded_lost = copying.targets.incarnation(target), self._accepted.entries(step.first)
        copies = [PositionCopy(step, others, incarnation, recorded_lost=recorded_lost)]
        [outcome] = await self._run_copies(copying, [step], [step], copies)
        refusal = outcome.target_failure
        if outcome.is_complete:
            refusal = await self._copier.first_bad_answer(copying.ledger, target, [entry_id], self._rank)
        if refusal is not None:
            self._found.note_refusals([refusal])
        if refusal is not None or not outcome.is_complete:  # the copy of all entries shows other reasons
            return False
        self._damage.note_tried(target)
        if not self._damage.is_shown(copying.ledger, key, entry_id):
            return False
        self._found.note_restored(key, outcome)
        return True

    async def _mark_lacking(self, copying: CopyingRound, sources: Set[BookieId]) -> None:
        copying.is_any_lacking = True
        await self._lacking.mark(copying.ledger, sources)

    async def _note_found(
        self, copying: CopyingRound, filled: Sequence[CopyPosition], served_by: Mapping[EntryId, BookieId]
    ) -> None:
        """Remove entries that sources served from the record of the accepted loss (R148).

        The other members that the record names for these entries lack them, so they are marked before.

        Raises:
            PreconditionFailedError, LeaseLostError, TransientError, OutcomeUnknownError: see ``AcceptedLoss.remove``.
        """
        targets = {step.target for step in filled}

        async def mark_lacking(members: Set[BookieId]) -> None:
            if lacking := members - targets:
                await self._mark_lacking(copying, lacking)

        await self._accepted.remove(copying.ledger, filled[0].first, served_by, mark_lacking)

    async def _install(
        self,
        copying: CopyingRound,
        ledger: Versioned,
        ready: Sequence[CopiedStep],
        completing: Conditions | None = None,
    ) -> InstallResult:
        """Install ``ready`` in ``ledger``, the metadata as last written, and record what was installed or refused."""
        reserved = self._reservation.current
        targets = copying.targets.registrations
        mark_lacking = partial(self._mark_lacking, copying)
        installed = await self._installer.install(ledger, ready, reserved, targets, mark_lacking, completing)
        for bookie in installed.again:  # the next round asks it again for the same entries
            self._recent.note_another_registration(bookie)
        if installed.is_completed:
            self._reservation.note_deleted()
            self.is_completed = True
        for refusal in installed.refusals:
            self._recent.note_listing(refusal.bookie, is_answered=False)
            self._reservation.forget_progress(refusal.bookie)
        self._found.note_refusals(installed.refusals)
        for copy in installed.done:
            if isinstance(copy.step, CopyPosition):
                self._recent.note_listing(copy.step.target, is_answered=True)
            key = copying.key(copy.step)
            if copy.left_out:
                _log.info("entries with an accepted loss were left out of a copy", extra=_left_out_fields(ledger, copy))
                if copy.step.is_in_place:
                    self._accepted.note_left_out(key, copy.left_out)
            self._found.note_installed(key, copy, self._damage.note_installed(ledger, copy))
        return installed


def _left_out_fields(ledger: Versioned, copy: CopiedStep) -> dict[str, object]:
    return {"ledger_id": ledger.ledger_id, "bookie_id": copy.step.target, "entries": len(copy.left_out)}


def _held(step: CopyPosition, shortfall: Shortfall) -> EntryRuns:
    """Return the entries that the target of a copy in place has, including damaged copies."""
    is_all = step.cause is Cause.DAMAGED and step.is_in_place and step.target not in dict(shortfall.held)
    return EntryRuns(((step.first, step.last),)) if is_all else shortfall.held_by(step.target)
