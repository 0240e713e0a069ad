"""Install copies: the target lists them, the conditions are checked again, and a compare-and-set names the target.

The invariant: the metadata names a bookie for a position only if this bookie has all entries of the position on its
disks, except entries with an accepted loss that no bookie has (S11, I17, R148), and only by a write whose transaction
checks its conditions (S4, I20).

The safety follows from the order:

1. The target lists every entry.
2. After a ``sync``, one request reads the lock, the task, the ledger, the registrations and the target's incarnation.
   From these, ``plan.installable`` decides which steps may still be installed; the others are dropped, and the next
   round plans again. If another ledger has the id now, nothing is written (R170).
3. One transaction writes the metadata at the planned version, and checks the following:

   - The reservation, which was made before the first byte was copied, exists. While it does, no collector of bkheal
     deletes the listed entries (S16). An empty ledger has no reservation, because nothing is copied (R118).
   - Each target is registered as writable, and no other disks were recorded under its name (R30). A registration may
     outlive the disks by a session timeout. A bookie with new disks records them first, and only then searches the
     metadata for entries that the old disks may have had. So the search finds this write, or the write is refused.
   - If entries were left out because an operator accepted their loss (R148), the record of this is unchanged. The
     transaction replaces it by a record with the target, so audits expect the other entries there.
   - The ledger is still locked. Apache's bookies record no disks, and only this lock stops their collectors. One of
     Apache's programs may have deleted our lock, and a collector may then have locked the ledger.

If the plan repairs everything, the same transaction deletes the task, the lock and the reservation (I18). Another round
is not needed, because it would find only what is known: the metadata and the targets of this transaction, and the other
members. The round has judged these from metadata and bookies, and the checks keep both unchanged. If a deletion or one
of its conditions is refused, nothing is written. The steps are then installed without the deletions, and another round
inspects the ledger.

A crash before the write leaves copies that the metadata does not name: the next worker copies again, or collectors
delete them after the reservation was removed. A crash after it leaves the task, and the next worker finds nothing
missing. A step is dropped if its conditions have changed. If the transaction is refused, nothing was written.

R rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bookie.metadata.bookies.registration import BookieObservation, Registration
from bookie.metadata.ledgers.ledgers import LedgerReplacedError, PreconditionFailedError, Versioned
from bookie.metadata.port import Check, Operation, SetData
from bookie.metadata.tasks.locks import SeenNode
from bookie.metadata.tasks.reservations import LedgerReservations
from bookie.model.availability import EntryRuns
from bookie.model.errors import InvariantError
from bookie.model.ids import BookieId
from bookie.model.metadata import LedgerMetadata
from bookie.runtime.waiting import run_cooperatively
from bookie.wire.port import Status
from replicator.copying.copier import Copier
from replicator.knowledge.draining import with_draining
from replicator.knowledge.evidence import BookieAnswer
from replicator.knowledge.holdings import HoldingsReader
from replicator.plan.installable import CopiedStep, dropping_worse_moves, installable, with_few_targets, with_steps
from replicator.plan.steps import SwapMember
from replicator.ports import RepairPorts
from replicator.repair.accepted_loss import AcceptedLoss, MarkLacking, RecordChange
from replicator.repair.conditions import Conditions
from replicator.repair.debt_notes import note_debts
from replicator.repair.lease import Lease

_log = logging.getLogger(__name__)

_NOT_WRITABLE: Final = "not registered as writable any more"
_OTHER_DISKS: Final = "its disks were replaced, and the new ones do not serve yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallResult:
    """The result of an installation."""

    ledger: Versioned
    """The current metadata."""
    done: tuple[CopiedStep, ...]
    """The completed steps: the metadata names their targets, or they were copied in place."""
    refusals: tuple[BookieAnswer, ...] = ()
    """The answers of targets that are incomplete, or not registered as writable."""
    is_completed: bool = False
    """Whether the task, its lock and the reservation were deleted as well."""
    again: frozenset[BookieId] = frozenset()
    """Targets whose registration has changed, so their list may come from other disks."""


@dataclass(frozen=True, slots=True)
class _Write:
    """A change of the metadata, with the conditions of its transaction."""

    ledger: Versioned
    """The metadata to replace."""
    metadata: LedgerMetadata
    reserved: LedgerReservations | None
    checks: Sequence[Operation]
    record: RecordChange | None
    """The change of the record of the accepted loss, which is one of ``checks``; None if there is none."""


class Installer:
    """Installs copies of one ledger under its lock."""

    def __init__(
        self, ports: RepairPorts, copier: Copier, holdings: HoldingsReader, lease: Lease, accepted: AcceptedLoss
    ) -> None:
        self._ports = ports
        self._accepted = accepted
        self._copier = copier
        self._holdings = holdings
        self._lease = lease

    async def install(
        self,
        ledger: Versioned,
        copied: Sequence[CopiedStep],
        reserved: LedgerReservations | None,
        targets: Mapping[BookieId, Registration],
        mark_lacking: MarkLacking,
        completing: Conditions | None = None,
    ) -> InstallResult:
        """Install ``copied`` by one write of the metadata, on condition that ``reserved`` still exists (S16).

        Args:
            ledger: the metadata used to plan the steps.
            copied: the steps.
            reserved: the reservation of the steps; may be None if everything was filled in place, and for an empty
                ledger (R118).
            targets: the registration of each target, read before the copies.
            mark_lacking: is called with members that may lack entries with an accepted loss that a target has, before
                the record of the loss is changed.
            completing: the conditions for deleting the task with these steps, if nothing is missing after them.

        Raises:
            MetadataConflictError: the metadata is no longer at ``ledger.version``; nothing was changed.
            PreconditionFailedError: the reservation no longer exists, another worker has the ledger, a target has
                other disks, or the record of the accepted loss has changed; nothing was changed.
            NoSuchLedgerError: the ledger was deleted.
            LedgerReplacedError: another ledger has its id now (R170); nothing was changed.
            LeaseLostError: the lock is no longer ours; nothing was changed.
            TransientError: the store did not answer; nothing was changed.
            OutcomeUnknownError: the write was sent and its outcome is unknown.
        """
        async with self._accepted.lock:  # the write may change the record of the accepted loss
            return await self._install(ledger, copied, reserved, targets, mark_lacking, completing)

    async def _install(
        self,
        ledger: Versioned,
        copied: Sequence[CopiedStep],
        reserved: LedgerReservations | None,
        targets: Mapping[BookieId, Registration],
        mark_lacking: MarkLacking,
        completing: Conditions | None,
    ) -> InstallResult:
        complete: list[CopiedStep] = []
        refusals: list[BookieAnswer] = []
        for copy in copied:
            refusal = await self._lacking(ledger, copy)
            if refusal is None:
                complete.append(copy)
            else:
                refusals.append(refusal)
        complete, lacking = await self._without_found(ledger, complete)
        if lacking:
            completing = None
            await mark_lacking(lacking)
        registrations = self._ports.registrations
        names = sorted({name for copy in complete for name in copy.bookies})
        judged = () if completing is None else completing.seen
        own = self._ports.ledgers.path(ledger.ledger_id)
        state = await self._lease.reread([own, *(each.path for each in judged), *registrations.state_paths(names)])
        if ledger.is_other_ledger(state.nodes[0]):
            raise LedgerReplacedError(ledger.ledger_id)
        is_verdict_valid = state.is_same and all(map(SeenNode.is_same, judged, state.nodes[1:]))
        seen = registrations.decode_states(names, state.nodes[1 + len(judged) :])
        replaced = [copy.step.old for copy in complete if copy.step.is_of_lost_bookie]
        bookies, _ = await with_draining(self._ports, seen.bookies, replaced)
        judgement = installable(complete, bookies, seen, targets)
        refusals.extend(BookieAnswer(target, Status.UNRESOLVED, _NOT_WRITABLE) for target in judgement.unwritable)
        refusals.extend(
            BookieAnswer(target, Status.WRONG_INCARNATION, _OTHER_DISKS) for target in judgement.without_disks
        )
        few = with_few_targets(judgement.steps)
        done = await run_cooperatively(dropping_worse_moves(ledger.metadata, few, self._ports.placement.judge()))
        is_completed = False
        if not all(copy.step.is_in_place for copy in done):
            is_everything_done = is_verdict_valid and len(done) == len(copied)
            write = await self._prepare_write(ledger, done, reserved, seen)
            ledger, is_completed = await self._write_all(write, completing if is_everything_done else None)
        return InstallResult(
            ledger=ledger,
            done=tuple(done),
            refusals=tuple(refusals),
            is_completed=is_completed,
            again=judgement.again,
        )

    async def _prepare_write(
        self,
        ledger: Versioned,
        done: Sequence[CopiedStep],
        reserved: LedgerReservations | None,
        seen: BookieObservation,
    ) -> _Write:
        """Return the write that names the targets of ``done``; record the placement debts that it causes."""
        changes = [copy.step for copy in done if not copy.step.is_in_place]
        metadata = with_steps(ledger.metadata, changes)
        if reserved is None and not ledger.metadata.is_empty:
            raise InvariantError(f"the metadata of ledger {ledger.ledger_id} would be changed without a reservation")
        await note_debts(self._ports, ledger, changes)  # the ensemble may adhere only with steps that were refused
        named = sorted({step.target for step in changes})
        checks: list[Operation] = [self._ports.registrations.check_writable(target) for target in named]
        checks += [seen.latest[target].check for target in named if target in seen.latest]
        record = self._accepted.after_copies(
            ledger.metadata, [copy for copy in done if copy.has_accepted and not copy.step.is_in_place]
        )
        return _Write(ledger, metadata, reserved, checks if record is None else [*checks, record.operation], record)

    async def _write_all(self, write: _Write, completing: Conditions | None) -> tuple[Versioned, bool]:
        """Write the metadata, with the deletion of the task if ``completing`` permits it; return whether it is deleted.

        See ``install`` for the errors.
        """
        if completing is None:
            ledger, is_completed = await self._write(write), False
        else:
            ledger, is_completed = await self._write_and_complete(write, completing.checks)
        if write.record is not None:
            self._accepted.note_written(write.record.after)
        return ledger, is_completed

    async def _without_found(
        self, ledger: Versioned, copied: Sequence[CopiedStep]
    ) -> tuple[list[CopiedStep], frozenset[BookieId]]:
        """Find the entries with an accepted loss that targets have nevertheless; return the copies to install.

        A target may have such an entry since it was a member earlier, or a source gave it. It is not lost then: the
        record names it no more, and the other copies of the fragment without it are made again, with this target as a
        source. Members that the metadata names already may lack it too; they are returned as well.
        """
        accepted = self._accepted.current
        if accepted is None or not any(copy.has_accepted for copy in copied):
            return list(copied), frozenset()
        losses = {loss.first_entry_id: loss for loss in accepted.decision.lost}
        kept: list[CopiedStep] = []
        found: dict[int, list[EntryRuns]] = {}
        lacking: set[BookieId] = set()
        for copy in copied:
            index = copy.step.fragment_index
            loss = losses.get(ledger.metadata.fragments[index].first_entry_id)
            if copy.has_accepted and loss is not None and not copy.step.is_in_place:
                if copy.left_out:
                    own = await self._holdings.found_on_target(ledger, copy.step.target, copy.left_out)
                    copy = replace(copy, left_out=copy.left_out.without(own))
                if others := loss.found_by(ledger.metadata.stripe, copy.step.position, copy.left_out):
                    found.setdefault(index, []).append(others)
                    lacking.update(ledger.metadata.fragments[index].members)
            kept.append(copy)

        def is_outdated(copy: CopiedStep) -> bool:
            return any(
                entry_id in copy.left_out for runs in found.get(copy.step.fragment_index, ()) for entry_id in runs
            )

        return [copy for copy in kept if not is_outdated(copy)], frozenset(lacking)

    async def _write(self, write: _Write) -> Versioned:
        self._lease.ensure_session()
        ledger, reserved = write.ledger, write.reserved
        lock = self._lease.check()
        still_reserved = [] if reserved is None else [Check(reserved.path, reserved.version)]
        checks = [lock, *still_reserved, *write.checks]
        try:
            written = await self._ports.ledgers.write(ledger.ledger_id, write.metadata, ledger.version, checks=checks)
        except PreconditionFailedError as error:
            if error.path != lock.path:
                raise
            raise self._lease.lost() from error
        return replace(written, czxid=ledger.czxid)

    async def _write_and_complete(self, write: _Write, completing: Sequence[Operation]) -> tuple[Versioned, bool]:
        """Write the metadata and delete the task, its lock and reservation; if refused, only write the metadata."""
        self._lease.ensure_session()
        ledger, reserved = write.ledger, write.reserved
        deletes = [] if reserved is None else self._ports.reservations.deletes(reserved)
        changed = {operation.path for operation in write.checks if isinstance(operation, SetData)}  # checks its version
        completion = [*self._lease.completion(), *(each for each in completing if each.path not in changed)]
        try:
            written = await self._ports.ledgers.write(
                ledger.ledger_id, write.metadata, ledger.version, checks=[*deletes, *write.checks, *completion]
            )
        except PreconditionFailedError as error:
            if error.path not in {operation.path for operation in completion}:
                raise
            _log.info("task is not completed yet", extra={"ledger_id": ledger.ledger_id, "error": str(error)})
            await self._lease.ensure_ours()
            return await self._write(write), False
        self._lease.note_completed()
        return written, True

    async def _lacking(self, ledger: Versioned, copy: CopiedStep) -> BookieAnswer | None:
        """Ask the target of a step for its entries; None if it has all of them, else its answer."""
        if isinstance(copy.step, SwapMember):
            return None
        if copy.overwritten:
            refusal = await self._copier.first_bad_answer(ledger, copy.step.target, copy.overwritten)
            if refusal is not None:
                return refusal
        return await self._holdings.missing_on_target(ledger, copy.step, copy.left_out)
