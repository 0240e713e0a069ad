"""Install copies: the target lists them, the conditions are checked again, and a compare-and-set names the target.

The invariant: the metadata names a bookie for a position only if this bookie has all entries of the position on its
disks, except entries with an accepted loss that no bookie has (S11, I17, R148), and only by a write whose transaction
checks its conditions (S4, I20).

The safety follows from the order:

1. The target lists every entry.
2. After a ``sync``, one request reads the lock, the task, the registrations and the target's incarnation. A bookie that
   has returned keeps its position (R5). If a target has other disks, its entries are copied again. If a target records
   no incarnation, and its registration has changed, it must list its entries again (R136). If a bookie that counted as
   lost has returned, a copy without entries that it may have is dropped.
3. One transaction writes the metadata at the planned version, and checks the following:

   - The reservation, which was made before the first byte was copied, exists. While it does, no collector of bkheal
     deletes the listed entries (S16). An empty ledger has no reservation, because nothing is copied (R118).
   - Each target is registered as writable, and no other disks were recorded under its name (R30). A registration may
     outlive the disks by a session timeout. A bookie with new disks records them first, and only then searches the
     metadata for entries that the old disks may have had. So the search finds this write, or the write is refused.
   - If entries were left out because an operator accepted their loss (R148), the record of this is unchanged. The
     transaction replaces it by one that names the target, so that audits expect the other entries there.
   - The ledger is still locked. Apache's bookies record no disks, and only this lock stops their collectors. One of
     Apache's programs may have deleted our lock, and a collector may then have locked the ledger.

If the plan repairs everything, the same transaction deletes the task, the lock and the reservation (I18). Another round
is not needed, because it would find only what is known: the metadata that this transaction wrote, the targets that it
checked, and the other members, which the round has judged from metadata and bookies that the checks keep unchanged. If
a deletion or one of its conditions is refused, nothing is written. The steps are then installed without the deletions,
and another round inspects the ledger.

A crash before the write leaves copies that the metadata does not name: the next worker copies again, or collectors
delete them after the reservation was removed. A crash after it leaves the task, and the next worker finds nothing
missing. A step is dropped if its conditions have changed. If the transaction is refused, nothing was written.

R rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final

from bookie.client.placement.judge import EnsembleJudge
from bookie.metadata.bookies.registration import BookieObservation, Bookies, Registration
from bookie.metadata.ledgers.ledgers import PreconditionFailedError, Versioned
from bookie.metadata.port import Check, Operation, SetData
from bookie.metadata.tasks.decisions import AcceptedCopy, RecordedDecision
from bookie.metadata.tasks.locks import SeenNode
from bookie.metadata.tasks.reservations import LedgerReservations
from bookie.model.availability import EntryRuns
from bookie.model.errors import InvariantError
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.runtime.waiting import run_cooperatively
from bookie.wire.port import Status
from replicator.copying.copier import Copier
from replicator.knowledge.draining import with_draining
from replicator.knowledge.evidence import Answer
from replicator.knowledge.holdings import Holdings
from replicator.plan.steps import Cause, CopyPosition, Step, SwapMember
from replicator.ports import RepairPorts
from replicator.repair.conditions import Conditions
from replicator.repair.debt_notes import ENSEMBLES_JUDGED_PER_STEP, note_debts
from replicator.repair.lease import Lease

_log = logging.getLogger(__name__)

_TARGETS_MAX: Final = 200
"""The most targets that one write names, because each needs two checks in its transaction. The next round names the
others."""
_NOTHING: Final = EntryRuns(())


@dataclass(frozen=True, slots=True)
class CopiedStep:
    """A step whose entries the target has all acknowledged, and the target's incarnation ("" if it has none)."""

    step: Step
    _: KW_ONLY
    incarnation: str = ""
    entries: int = 0
    bytes: int = 0
    overwritten: tuple[EntryId, ...] = ()
    """Entries that were damaged on the target before. Its list contains them anyway, so they are read back."""
    left_out: EntryRuns = _NOTHING
    """Entries that the copy left out, because their loss was accepted (R148)."""
    has_accepted: bool = False
    """Whether an accepted loss names entries of the position. The copy may have found some of them."""
    absent: frozenset[BookieId] = frozenset()
    """The members of the fragment that counted as lost when entries were left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallResult:
    """The result of an installation."""

    ledger: Versioned
    """The current metadata."""
    done: tuple[CopiedStep, ...]
    """The completed steps: the metadata names their targets, or they were copied in place."""
    refusals: tuple[Answer, ...] = ()
    """The answers of targets that are incomplete, or not registered as writable."""
    is_completed: bool = False
    """Whether the task, its lock and the reservation were deleted as well."""
    accepted: RecordedDecision | None = None
    """The current record of the accepted loss."""
    lacking: frozenset[BookieId] = frozenset()
    """Members that may lack entries with an accepted loss that a target has nevertheless."""
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


class Installer:
    """Installs copies of one ledger under its lock."""

    def __init__(self, ports: RepairPorts, copier: Copier, holdings: Holdings, lease: Lease) -> None:
        self._ports = ports
        self._copier = copier
        self._holdings = holdings
        self._lease = lease

    async def install(
        self,
        ledger: Versioned,
        copied: Sequence[CopiedStep],
        reserved: LedgerReservations | None,
        targets: Mapping[BookieId, Registration],
        completing: Conditions | None = None,
        accepted: RecordedDecision | None = None,
    ) -> InstallResult:
        """Install ``copied`` by one write of the metadata, on condition that ``reserved`` still exists (S16).

        Args:
            ledger: the metadata used to plan the steps.
            copied: the steps.
            reserved: the reservation of the steps; may be None if everything was filled in place, and for an empty
                ledger (R118).
            targets: the registration of each target, read before the copies.
            completing: the conditions for deleting the task with these steps, if nothing is missing after them.
            accepted: the record of the accepted loss, for steps that concern its entries.

        Raises:
            MetadataConflictError: the metadata is no longer at ``ledger.version``; nothing was changed.
            PreconditionFailedError: the reservation no longer exists, another worker has the ledger, a target has
                other disks, or the record of the accepted loss has changed; nothing was changed.
            NoSuchLedgerError: the ledger was deleted.
            LeaseLostError: the lock is no longer ours; nothing was changed.
            TransientError: the store did not answer; nothing was changed.
            OutcomeUnknownError: the write was sent and its outcome is unknown.
        """
        complete: list[CopiedStep] = []
        refusals: list[Answer] = []
        for copy in copied:
            refusal = await self._lacking(ledger, copy)
            if refusal is None:
                complete.append(copy)
            else:
                refusals.append(refusal)
        complete, lacking = await self._without_found(ledger, complete, accepted)
        if lacking:
            completing = None
        registrations = self._ports.registrations
        names = sorted({name for copy in complete for name in (copy.step.old, copy.step.target, *copy.absent)})
        judged = () if completing is None else completing.registrations
        state = await self._lease.reread([*(each.path for each in judged), *registrations.state_paths(names)])
        is_verdict_valid = state.is_same and all(map(SeenNode.is_same, judged, state.nodes))
        seen = registrations.decode_states(names, state.nodes[len(judged) :])
        replaced = [copy.step.old for copy in complete if _replaces(copy)]
        bookies, _ = await with_draining(self._ports, seen.bookies, replaced)
        refusals.extend(_unwritable_targets(complete, bookies))
        refusals.extend(_dead_disks(complete, seen))
        again = _registered_again(complete, seen, targets)
        valid = [copy for copy in complete if copy.step.target not in again and _is_still_wanted(copy, bookies, seen)]
        few = _with_few_targets(valid)
        done = await run_cooperatively(dropping_worse_moves(ledger.metadata, few, self._ports.placement.judge()))
        changes = [copy.step for copy in done if not _is_in_place(copy.step)]
        if changes:
            metadata = with_steps(ledger.metadata, changes)
            if reserved is None and not ledger.metadata.is_empty:
                raise InvariantError(
                    f"the metadata of ledger {ledger.ledger_id} would be changed without a reservation"
                )
            await note_debts(self._ports, ledger, changes)  # the ensemble may adhere only with steps that were refused
            named = sorted({step.target for step in changes})
            checks: list[Operation] = [registrations.check_writable(target) for target in named]
            checks += [seen.latest[target].check for target in named if target in seen.latest]
            named_in_record = [copy for copy in done if copy.has_accepted and not _is_in_place(copy.step)]
            if accepted is None and any(copy.left_out for copy in named_in_record):
                raise InvariantError(f"entries of ledger {ledger.ledger_id} were left out without an accepted loss")
            if accepted is not None and named_in_record:
                accepted, change = self._record_after(ledger.metadata, accepted, named_in_record)
                checks.append(change)
            write = _Write(ledger, metadata, reserved, checks)
            if completing is not None and is_verdict_valid and len(done) == len(copied):
                ledger, is_completed = await self._write_and_complete(write, completing.checks)
            else:
                ledger, is_completed = await self._write(write), False
        else:
            is_completed = False
        return InstallResult(
            ledger=ledger,
            done=tuple(done),
            refusals=tuple(refusals),
            is_completed=is_completed,
            again=again,
            accepted=accepted,
            lacking=lacking,
        )

    async def _without_found(
        self, ledger: Versioned, copied: Sequence[CopiedStep], accepted: RecordedDecision | None
    ) -> tuple[list[CopiedStep], frozenset[BookieId]]:
        """Find the entries with an accepted loss that targets have nevertheless; return the copies to install.

        A target may have such an entry since it was a member earlier, or a source gave it. It is not lost then: the
        record names it no more, and the other copies of the fragment without it are made again, with this target as a
        source. Members that the metadata names already may lack it too; they are returned as well.
        """
        if accepted is None or not any(copy.has_accepted for copy in copied):
            return list(copied), frozenset()
        losses = {loss.first_entry_id: loss for loss in accepted.decision.lost}
        kept: list[CopiedStep] = []
        found: dict[int, list[EntryRuns]] = {}
        lacking: set[BookieId] = set()
        for copy in copied:
            index = copy.step.fragment_index
            loss = losses.get(ledger.metadata.fragments[index].first_entry_id)
            if copy.has_accepted and loss is not None and not _is_in_place(copy.step):
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

    def _record_after(
        self, metadata: LedgerMetadata, accepted: RecordedDecision, copies: Iterable[CopiedStep]
    ) -> tuple[RecordedDecision, SetData]:
        """Return the record of the accepted loss after ``copies``, and the operation that writes it (R148)."""
        changes = [
            AcceptedCopy(
                metadata.fragments[copy.step.fragment_index].first_entry_id,
                copy.step.position,
                copy.step.target,
                copy.left_out,
            )
            for copy in copies
        ]
        decision = accepted.decision.after_copies(metadata.stripe, changes)
        return RecordedDecision(decision, accepted.version + 1), self._ports.decisions.replacing(accepted, decision)

    async def _write(self, write: _Write) -> Versioned:
        self._lease.ensure_session()
        ledger, reserved = write.ledger, write.reserved
        lock = self._lease.check()
        still_reserved = [] if reserved is None else [Check(reserved.path, reserved.version)]
        checks = [lock, *still_reserved, *write.checks]
        try:
            return await self._ports.ledgers.write(ledger.ledger_id, write.metadata, ledger.version, checks=checks)
        except PreconditionFailedError as error:
            if error.path != lock.path:
                raise
            raise self._lease.lost() from error

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

    async def _lacking(self, ledger: Versioned, copy: CopiedStep) -> Answer | None:
        """Ask the target of a step for its entries; None if it has all of them, else its answer."""
        if isinstance(copy.step, SwapMember):
            return None
        if copy.overwritten:
            refusal = await self._copier.first_bad_answer(ledger, copy.step.target, copy.overwritten)
            if refusal is not None:
                return refusal
        return await self._holdings.missing_on_target(ledger, copy.step, copy.left_out)


def with_steps(metadata: LedgerMetadata, steps: Iterable[Step]) -> LedgerMetadata:
    """Return the metadata with the target of every step at its position, and nothing else changed.

    Raises:
        InvariantError: a step does not fit the metadata, or its target is already a member of the fragment (S9).
    """
    changed: dict[int, tuple[BookieId, ...]] = {}
    for step in steps:
        index, position = step.fragment_index, step.position
        members = changed.get(index, metadata.fragments[index].members)
        if members[position] != step.old or step.target in members:
            raise InvariantError(f"{step} does not fit an ensemble of {', '.join(members)}")
        changed[index] = (*members[:position], step.target, *members[position + 1 :])
    return metadata.with_members(changed)


def _dead_disks(copied: Iterable[CopiedStep], seen: BookieObservation) -> Iterator[Answer]:
    """Yield a refusal for each target whose disks were replaced and that is not registered with the new disks."""
    for copy in copied:
        target = copy.step.target
        if isinstance(copy.step, SwapMember) or (known := seen.latest.get(target)) is None:
            continue
        if known.uuid != copy.incarnation and _incarnation(target, seen) != known.uuid:
            yield Answer(target, Status.WRONG_INCARNATION, "its disks were replaced, and the new ones do not serve yet")


def _registered_again(
    copied: Iterable[CopiedStep], seen: BookieObservation, targets: Mapping[BookieId, Registration]
) -> frozenset[BookieId]:
    """Return the targets to ask again: they record no incarnation, and their registration has changed (R136)."""
    copied_to = {copy.step.target for copy in copied if isinstance(copy.step, CopyPosition)}
    return frozenset(
        target
        for target in copied_to & seen.registrations.keys() - seen.latest.keys()
        if target not in targets or seen.registrations[target].czxid != targets[target].czxid
    )


def _is_still_wanted(copy: CopiedStep, bookies: Bookies, seen: BookieObservation) -> bool:
    step = copy.step
    if _replaces(copy) and step.old in bookies.staying:
        return False  # R5: it returned with its copies, or its drain was withdrawn
    if copy.left_out and not copy.absent.isdisjoint(bookies.registered):
        return False  # R148: a bookie that counted as lost is back, and may have the entries that were left out
    if step.target not in bookies.writable:
        return False
    if isinstance(step, SwapMember):
        return True
    # R30: if the target has other disks now, they do not have the copies.
    known = seen.latest.get(step.target)
    return copy.incarnation == (_incarnation(step.target, seen) if known is None else known.uuid)


def _incarnation(bookie: BookieId, seen: BookieObservation) -> str | None:
    found = seen.registrations.get(bookie)
    return None if found is None else found.info.incarnation


def _replaces(copy: CopiedStep) -> bool:
    """Whether the step replaces a lost or draining bookie."""
    return copy.step.is_of_lost_bookie


def _unwritable_targets(copied: Iterable[CopiedStep], bookies: Bookies) -> Iterable[Answer]:
    return (
        Answer(copy.step.target, Status.UNRESOLVED, "not registered as writable any more")
        for copy in copied
        if copy.step.target not in bookies.writable
    )


def _with_few_targets(copied: Sequence[CopiedStep]) -> list[CopiedStep]:
    targets = list(dict.fromkeys(copy.step.target for copy in copied))
    few = frozenset(targets[:_TARGETS_MAX])
    return [copy for copy in copied if copy.step.target in few]


def dropping_worse_moves(
    metadata: LedgerMetadata, copied: Sequence[CopiedStep], judge: EnsembleJudge
) -> Generator[None, None, list[CopiedStep]]:
    """Return ``copied`` without moves in fragments whose placement would become worse (R57), with pauses.

    Moves that were planned together may depend on each other, and some of them may have failed.
    """
    moved = {copy.step.fragment_index for copy in copied if copy.step.cause is Cause.MISPLACED}
    if not moved:
        return list(copied)
    changed = with_steps(metadata, [copy.step for copy in copied if not _is_in_place(copy.step)])
    worse = set()
    for number, index in enumerate(sorted(moved), start=1):
        before, after = metadata.fragments[index].members, changed.fragments[index].members
        costs = [judge.faults(each, metadata.write_quorum, metadata.custom).cost for each in (before, after)]
        if costs[1] > costs[0]:
            worse.add(index)
        if number % ENSEMBLES_JUDGED_PER_STEP == 0:
            yield
    return [copy for copy in copied if copy.step.cause is not Cause.MISPLACED or copy.step.fragment_index not in worse]


def _is_in_place(step: Step) -> bool:
    return isinstance(step, CopyPosition) and step.is_in_place
