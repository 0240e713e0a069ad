"""Carry out one round's plan: reserve it, let targets pin the ledger, copy, and install completed steps.

All positions of a fragment are copied together, so an entry of several positions is read once (``copying.copier``). A
few fragments are copied concurrently, because a small one has too few chunks to keep a bookie busy. An installation may
run during the copies of other fragments, because it changes only the members of finished positions.

Problems with bookies are recorded in the findings of the turn. If a lost bookie registers again while its copies are
replaced, the round ends early (R55). The next one asks the bookie for its entries, and continues the copy if the bookie
lacks more entries than the target.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence, Set
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Final

from bookie.client.placement.groups import log_targets_outside_groups
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.format import UnreadableTaskError
from bookie.model.availability import EntryRuns
from bookie.model.errors import ConflictError, PermanentError, TransientError
from bookie.model.ids import BookieId, EntryId
from bookie.runtime.fault_points import fault_point
from bookie.runtime.waiting import results_as_completed, run_cooperatively
from bookie.wire.port import Status
from replicator.copying.copier import CopyOutcome
from replicator.copying.receiver import PositionCopy
from replicator.knowledge.damage import without
from replicator.knowledge.evidence import Answer, describe
from replicator.knowledge.holdings import Holdings, Shortfall
from replicator.plan.acceptance import NOTHING_ACCEPTED, Acceptance
from replicator.plan.planner import Plan, PositionKey
from replicator.plan.steps import Cause, CopyPosition, Step, SwapMember
from replicator.queue.ordering import is_large
from replicator.repair.accepted_loss import AcceptedLoss
from replicator.repair.conditions import Conditions
from replicator.repair.context import RepairContext
from replicator.repair.install import CopiedStep, Installer, InstallResult
from replicator.repair.lease import Lease
from replicator.repair.reservation_holder import ReservationHolder
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


class Execution:
    """The changes that one turn of a task makes to the cluster, over all its rounds."""

    def __init__(
        self,
        context: RepairContext,
        lease: Lease,
        rank: int,
        holdings: Holdings,
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
        self._installer = Installer(context.ports, context.copier, holdings, lease)
        self._copied: dict[tuple[PositionKey, BookieId, EntryId], CopiedStep] = {}
        self._registered_at: dict[BookieId, int] = {}
        """For each target of this round, the transaction that created its registration."""
        self._returned: set[BookieId] = set()
        """The lost bookies whose return ended a copy of this round, even if they have left again."""
        self._marked: set[BookieId] = set()
        """The sources found to lack entries or to have damaged copies, after they were added to the task or
        recorded."""
        self._acceptance = NOTHING_ACCEPTED
        """The entries that copies of this round may leave out."""
        self._is_any_lacking = False
        """Whether a source served no good copy of some entry in this round."""
        self.is_completed = False
        """Whether the last installation also deleted the task, its lock and the reservation."""

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
        ledger = plan.ledger
        keys = (
            (PositionKey.of(ledger.metadata, step), step)
            for step in plan.steps[:STEPS_MAX]
            if isinstance(step, CopyPosition)
        )
        targets = {(key.first_entry_id, key.position): step.target for key, step in keys}
        with self._use.copying(ledger.ledger_id, targets):
            return await self._copy_and_install(plan, shortfall, completing, acceptance)

    async def _copy_and_install(
        self, plan: Plan, shortfall: Shortfall, completing: Conditions | None, acceptance: Acceptance
    ) -> bool:
        ledger, steps = plan.ledger, plan.steps[:STEPS_MAX]
        self._found.unreadable_for_now.clear()
        self._acceptance = acceptance
        self._returned.clear()
        self._is_any_lacking = False
        fresh = [step.target for step in steps if step.target != step.old]
        log_targets_outside_groups(self._placement, ledger.ledger_id, ledger.metadata, fresh)
        incarnations = await self._prepare(ledger, steps)
        if await self._test_damaged_bookies(ledger, steps, incarnations):
            return True  # another check asks these bookies again
        swaps = [
            step for step in steps if isinstance(step, SwapMember) and step.target not in self._found.failed_targets
        ]
        ready = [CopiedStep(step) for step in swaps]
        left = len(plan.steps)  # the number of steps not installed yet
        copying = self._copies(ledger, steps, shortfall, incarnations)
        async with aclosing(results_as_completed(copying, FRAGMENTS_AT_ONCE)) as fragments:
            async for are_all_copied, copied in fragments:
                ready.extend(copied)
                if not are_all_copied and not await self._lease.may_continue():
                    return False
                if self._returned:
                    self._note_returns(ledger)
                    break  # another round asks the bookies for their entries
                is_early = bool(ready) and fault_point("replicator.install_early")
                if is_early or sum(copy.bytes for copy in ready) >= INSTALL_BYTES:
                    installed = await self._install(ledger, ready)
                    ledger, left = installed.ledger, left - len(installed.done)
                    ready = []
        if ready and not fault_point("replicator.look_again"):
            is_last = len(ready) == left and not self._is_another_round_needed(ledger)
            await self._install(ledger, ready, completing if is_last else None)
        return True

    def _is_another_round_needed(self, ledger: Versioned) -> bool:
        """Whether a source served a damaged copy or none, so that another round must ask the bookies in the task.

        If the task already named this source, the mark did not change it, and would not prevent its deletion.
        """
        return self._is_any_lacking or self._damage.is_any_known(ledger.ledger_id)

    async def _prepare(self, ledger: Versioned, steps: Sequence[Step]) -> dict[BookieId, str]:
        """Reserve the plan, then let targets pin the ledger; return the incarnations of the targets.

        An empty ledger needs neither (R118), because it has no copies that a collector could delete.

        A target that gets the first entries of a small ledger, and has recently listed another ledger, needs no pin:
        each add clears the mark of a collector as a list does, and the list that proves the copy follows the last add.
        """
        incarnations: dict[BookieId, str] = {}
        self._registered_at.clear()
        for target in dict.fromkeys(step.target for step in steps):
            registration = await self._recent.registration(target)
            if registration is None:
                self._found.failed_targets[target] = Answer(target, Status.UNRESOLVED, "not registered any more")
            else:
                incarnations[target] = registration.info.incarnation
                self._registered_at[target] = registration.czxid
        if ledger.metadata.is_empty and self._reservation.is_clear:
            return incarnations
        possible = [(step, incarnations[step.target]) for step in steps if step.target in incarnations]
        await self._reservation.reserve(ledger, possible)
        # Even if nothing is copied: if a collector has begun with the ledger, its bookie must not become a member.
        fresh = dict.fromkeys(s.target for s, incarnation in possible if self._needs_pin(ledger, s, incarnation))
        refusals = await asyncio.gather(*(self._holdings.pin(ledger.ledger_id, target) for target in fresh))
        for target, refusal in zip(fresh, refusals, strict=True):
            self._recent.note_listing(target, is_answered=refusal is None)
            if refusal is not None:
                self._found.failed_targets[target] = refusal
        return incarnations

    def _needs_pin(self, ledger: Versioned, step: Step, incarnation: str) -> bool:
        """Whether the target must list its entries before the copy: it may get no entry, or may not support lists."""
        if isinstance(step, SwapMember):
            return True
        has_some = self._reservation.end_entry_id(ledger, step, incarnation) > step.first
        has_some = has_some or self._reservation.other_position(ledger, step, incarnation) is not None
        is_sure = not has_some and not is_large(ledger) and self._recent.has_listed(step.target)
        return not step.is_in_place and not is_sure

    def _copies(
        self, ledger: Versioned, steps: Sequence[Step], shortfall: Shortfall, incarnations: Mapping[BookieId, str]
    ) -> Iterator[Coroutine[Any, Any, tuple[bool, list[CopiedStep]]]]:
        """Yield the copies of each fragment in turn, without targets that have failed before."""
        fragments: dict[int, list[CopyPosition]] = {}
        for step in steps:
            if isinstance(step, CopyPosition):
                fragments.setdefault(step.fragment_index, []).append(step)
        for positions in fragments.values():
            wanted = [step for step in positions if step.target not in self._found.failed_targets]
            if wanted:
                yield self._copy(ledger, wanted, shortfall, incarnations)

    async def _copy(
        self,
        ledger: Versioned,
        steps: Sequence[CopyPosition],
        shortfall: Shortfall,
        incarnations: Mapping[BookieId, str],
    ) -> tuple[bool, list[CopiedStep]]:
        """Copy positions of one fragment together. Return whether all were copied, and those that were.

        Why the others were not copied is recorded for the next plan.
        """
        done: list[CopiedStep] = []
        wanted: list[tuple[CopyPosition, tuple[EntryId, ...]]] = []
        for step in steps:
            key, incarnation = PositionKey.of(ledger.metadata, step), incarnations[step.target]
            before = self._copied.get((key, step.target, step.last))
            overwritten = tuple(sorted(self._damage.entries(ledger, key))) if step.is_in_place else ()
            is_usable = before is not None and before.incarnation == incarnation and not before.left_out
            if before is not None and is_usable and not overwritten:
                done.append(replace(before, step=step))  # an earlier round copied it, but its write was refused
            else:
                wanted.append((step, overwritten))
        if not wanted:
            return True, done
        copies = [
            PositionCopy(
                step,
                await self._entries_already_held(ledger, step, shortfall, incarnations[step.target], overwritten),
                incarnations[step.target],
                partial(self._reservation.note_progress, ledger, step, incarnations[step.target]),
                self._may_leave_out(step),
                self._accepted.entries(step.first),
            )
            for step, overwritten in wanted
        ]
        may_continue = partial(self._may_copy_chunk, [step for step, _ in wanted])
        notes = partial(self._mark_lacking, ledger), partial(self._note_found, ledger, steps)
        outcomes = await self._copier.copy(ledger, copies, may_continue, self._rank, *notes)
        self._found.note_refusals(self._damage.note_read(ledger, outcomes))
        for (step, overwritten), outcome in zip(wanted, outcomes, strict=True):
            if outcome.is_complete:
                entries = self._accepted.entries(step.first)
                copied = CopiedStep(
                    step,
                    incarnation=incarnations[step.target],
                    entries=outcome.entries,
                    bytes=outcome.bytes,
                    overwritten=tuple(entry for entry in overwritten if entry not in outcome.left_out),
                    left_out=outcome.left_out,
                    has_accepted=step.stripe.held_count(step.position, entries, step.first, step.last) > 0,
                    absent=self._acceptance.absent(step.first),
                )
                self._copied[PositionKey.of(ledger.metadata, step), step.target, step.last] = copied
                done.append(copied)
            else:
                self._note_failure(ledger, step, self._damage.with_own_evidence(step, outcome))
        return len(done) == len(steps), done

    def _may_leave_out(self, step: CopyPosition) -> EntryRuns:
        """Return the entries that a copy may leave out, except those that its own bookie could not read (R148)."""
        entries = self._acceptance.entries(step.first)
        unread = self._damage.unread_by(step.old) if step.is_in_place else None
        return entries.without(unread) if entries and unread else entries

    async def _note_found(
        self, ledger: Versioned, steps: Sequence[CopyPosition], served_by: Mapping[EntryId, BookieId]
    ) -> None:
        """Remove entries that sources served from the record of the accepted loss (R148).

        The other members that the record names for these entries lack them, so they are marked.

        Raises:
            PreconditionFailedError, LeaseLostError, TransientError, OutcomeUnknownError: see ``AcceptedLoss.remove``.
        """
        loss = await self._accepted.remove(ledger, steps[0].first, served_by)
        if loss is None:
            return
        _log.warning(
            "entries whose loss was accepted have a copy",
            extra={"ledger_id": ledger.ledger_id, "first_entry_id": min(served_by), "entries": len(served_by)},
        )
        stripe, filled = ledger.metadata.stripe, {step.target for step in steps}
        lacking = {
            denial.bookie
            for denial in loss.denials
            for entry_id, source in served_by.items()
            if stripe.stores(denial.position, entry_id) and denial.bookie not in {source, *filled}
        }
        if lacking := lacking & ledger.metadata.members():
            await self._mark_lacking(ledger, lacking)

    async def _test_damaged_bookies(
        self, ledger: Versioned, steps: Sequence[Step], incarnations: Mapping[BookieId, str]
    ) -> bool:
        """Store one damaged entry again on each bookie with several of them, and read it back (R139).

        Return whether the bookies must be asked again for that reason.
        """
        is_one_restored = False
        registered = [step for step in steps if step.target in incarnations]
        for step, entry_id in self._damage.to_try_first(ledger, registered):
            is_one_restored |= await self._restore(ledger, step, entry_id, incarnations[step.target])
        return is_one_restored

    async def _restore(self, ledger: Versioned, step: CopyPosition, entry_id: EntryId, incarnation: str) -> bool:
        """Store an entry in place and read it back; return whether the bookie can read it now and could not before."""
        target, key = step.target, PositionKey.of(ledger.metadata, step)
        others = without(EntryRuns(((step.first, step.last),)), [entry_id])
        may_continue = partial(self._may_copy_chunk, [step])
        notes = partial(self._mark_lacking, ledger), partial(self._note_found, ledger, [step])
        copies = [PositionCopy(step, others, incarnation, recorded_lost=self._accepted.entries(step.first))]
        [outcome] = await self._copier.copy(ledger, copies, may_continue, self._rank, *notes)
        refusal = outcome.target_failure
        if outcome.is_complete:
            refusal = await self._copier.first_bad_answer(ledger, target, [entry_id], self._rank)
        if refusal is not None:
            self._found.failed_targets[target] = refusal
        if refusal is not None or not outcome.is_complete:  # the copy of all entries shows other reasons
            return False
        self._damage.note_tried(target)
        if not self._damage.is_shown(ledger, key, entry_id):
            return False
        self._found.fragments.add(key.first_entry_id)
        self._found.entries += outcome.entries
        self._found.bytes += outcome.bytes
        self._found.replaced_copies += 1
        return True

    def note_shown_damage(self, ledger: Versioned, shortfall: Shortfall) -> None:
        """Note the damaged copies that bookies showed when they were asked for their entries in this round."""
        self._found.note_refusals(self._damage.note_shown(ledger, shortfall))

    def _note_failure(self, ledger: Versioned, step: Step, outcome: CopyOutcome) -> None:
        if outcome.target_failure is not None:
            self._found.failed_targets[step.target] = outcome.target_failure
        elif outcome.unreadable_count:
            evidence = describe(outcome.unreadable, outcome.unreadable_count)
            if outcome.is_permanent_failure:
                self._found.unreadable[PositionKey.of(ledger.metadata, step)] = evidence
            else:
                self._found.unreadable_for_now.append(
                    f"fragment {step.fragment_index} position {step.position}: {evidence}"
                )

    async def _may_copy_chunk(self, steps: Sequence[CopyPosition]) -> bool:
        """Whether the next chunk may start: the worker may continue, and no lost bookie of ``steps`` is back (R55).

        Raises:
            StoreUnavailableError: see ``Lease.may_continue``.
        """
        if not await self._lease.may_continue():
            return False
        for lost in {step.old for step in steps if step.cause is Cause.UNREGISTERED}:
            if await self._is_registered_again(lost):
                self._returned.add(lost)
        return self._returned.isdisjoint(step.old for step in steps)

    async def _is_registered_again(self, bookie: BookieId) -> bool:
        """Whether a lost bookie is registered again, according to the list that all turns share; False if unknown."""
        try:
            return bookie in (await self._recent.bookies()).registered
        except (TransientError, PermanentError) as error:
            _log.info("copy continues without a list of bookies", extra={"error": str(error)})
            return False

    def _note_returns(self, ledger: Versioned) -> None:
        for bookie in sorted(self._returned):
            self._returns.note(bookie)
            _log.info(
                "a lost bookie has returned, its copy is stopped",
                extra={"ledger_id": ledger.ledger_id, "bookie_id": bookie},
            )

    async def _mark_lacking(self, ledger: Versioned, sources: Set[BookieId]) -> None:
        """Add sources that did not serve an entry of a closed ledger, or only a damaged copy, to its task (R41, R140).

        The changed task outlives this turn, and its next turn asks these bookies for all their entries. Sources of an
        unclosed ledger are recorded, and marked after the ledger is closed.
        """
        self._is_any_lacking = True
        fresh = sources - self._marked
        if not fresh:
            return
        extra = {"ledger_id": ledger.ledger_id, "bookies": ", ".join(sorted(fresh))}
        if not ledger.metadata.is_closed:
            if not await self._ports.damage_notes.add(ledger.ledger_id, fresh):
                _log.warning("sources without good copies are not recorded: there are too many records", extra=extra)
            self._marked.update(fresh)
            return
        try:
            await self._ports.tasks.marking.mark(ledger.ledger_id, sorted(fresh))
        except (ConflictError, UnreadableTaskError) as error:  # others keep changing it, or it cannot be decoded
            _log.warning("sources without good copies are not marked", extra={**extra, "error": str(error)})
        else:
            self._marked.update(fresh)
            _log.info("sources without good copies are marked", extra=extra)

    async def _entries_already_held(
        self,
        ledger: Versioned,
        step: CopyPosition,
        shortfall: Shortfall,
        incarnation: str,
        overwritten: Collection[EntryId],
    ) -> EntryRuns:
        """Return the entries that the target already has: its own, or those of an interrupted copy."""
        if step.is_in_place:
            return without(_held(step, shortfall), overwritten)
        if self._may_leave_out(step) and not self._holdings.is_listing(step.target):
            return EntryRuns(())  # the record of the progress includes entries that were left out
        end = self._reservation.end_entry_id(ledger, step, incarnation)
        own = self._holdings.already_copied(step.target, step.first, end)
        other = self._reservation.other_position(ledger, step, incarnation)
        if other is None:
            return own
        shared = self._holdings.already_copied_for(other[0], step, other[1])
        return await run_cooperatively(EntryRuns.union_with_pauses(own, shared))

    async def _install(
        self, ledger: Versioned, ready: Sequence[CopiedStep], completing: Conditions | None = None
    ) -> InstallResult:
        reserved = self._reservation.current
        async with self._accepted.lock:
            record = self._accepted.current
            installed = await self._installer.install(ledger, ready, reserved, self._registered_at, completing, record)
            self._accepted.note_written(installed.accepted)
        if installed.lacking:
            await self._mark_lacking(ledger, installed.lacking)
        for bookie in installed.again:  # the next round asks it again for the same entries
            self._recent.note_another_registration(bookie)
        if installed.is_completed:
            self._reservation.note_deleted()
            self.is_completed = True
        for refusal in installed.refusals:
            self._recent.note_listing(refusal.bookie, is_answered=False)
            self._found.failed_targets[refusal.bookie] = refusal
            self._reservation.forget_progress(refusal.bookie)
        for copy in installed.done:
            if isinstance(copy.step, CopyPosition):
                self._recent.note_listing(copy.step.target, is_answered=True)
            self._found.repaired.add(PositionKey.of(ledger.metadata, copy.step))
            self._found.fragments.add(ledger.metadata.fragments[copy.step.fragment_index].first_entry_id)
            self._found.entries += copy.entries
            self._found.bytes += copy.bytes
            self._found.moved_copies += copy.step.cause is Cause.MISPLACED
            key = PositionKey.of(ledger.metadata, copy.step)
            if copy.left_out:
                _log.info("entries with an accepted loss were left out of a copy", extra=_left_out_fields(ledger, copy))
                if copy.step.target == copy.step.old:
                    self._accepted.note_left_out(key, copy.left_out)
            self._found.replaced_copies += self._damage.note_installed(ledger, copy)
        return installed


def _left_out_fields(ledger: Versioned, copy: CopiedStep) -> dict[str, object]:
    return {"ledger_id": ledger.ledger_id, "bookie_id": copy.step.target, "entries": len(copy.left_out)}


def _held(step: CopyPosition, shortfall: Shortfall) -> EntryRuns:
    """Return the entries that the target of a copy in place has, including damaged copies."""
    is_all = step.cause is Cause.DAMAGED and step.is_in_place and step.target not in dict(shortfall.held)
    return EntryRuns(((step.first, step.last),)) if is_all else shortfall.held_by(step.target)
