"""The moment from which a copy counts: listed by its target, checked once more, and named by compare-and-set.

The invariant: metadata names a bookie for a position only if this bookie has all entries of the position on its disks
(S11, I17), and only by a write whose grounds were checked in the same transaction (S4, I20).

The order is the safety argument. First the target lists every entry. Then the lock, the registrations and the target's
incarnation are read: a lost bookie that has returned keeps its position (R5), and a target on other disks gets a new
copy. Last, one transaction writes the metadata at the version from which the plan was made. It also checks the
reservation, which was made before the first byte was copied: while it stands, no collector of bkheal deletes what was
listed (S16). And it checks that no other disks were recorded under the target's name (R30). A registration may outlive
its disks by a session timeout, and new disks search the metadata for what the old ones may have held only after they
were recorded; so this write is either found by the search or refused. Apache's bookies record no disks, and their
collectors are kept away by the ledger's lock.

A crash before the write leaves copies that nothing names: the next worker copies again, or their collectors delete them
once the reservation is removed. A crash after it leaves the task, and the next worker finds nothing missing. A step
whose grounds have changed is dropped; if the transaction is refused, nothing was written.

R rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.bookies.incarnations import Latest
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.port import Check
from bookie.metadata.tasks.reservations import LedgerReservations
from bookie.model.errors import InvariantError
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.wire.port import Status
from replicator.copying.copier import Copier
from replicator.knowledge.draining import with_draining
from replicator.knowledge.evidence import Answer
from replicator.knowledge.holdings import Holdings
from replicator.plan.steps import CopyPosition, Step, SwapMember
from replicator.ports import RepairPorts
from replicator.repair.lease import Lease

_TARGETS_MAX: Final = 400
"""Targets named by one write, as each needs a check in its transaction. The next round names what is left."""


@dataclass(frozen=True, slots=True)
class CopiedStep:
    """A step whose entries the target acknowledged, and the target's incarnation ("" if it has none)."""

    step: Step
    incarnation: str = ""
    entries: int = 0
    bytes: int = 0
    overwritten: tuple[EntryId, ...] = ()
    """Entries of which the target had damaged copies. It lists them in any case, so they are read back."""


@dataclass(frozen=True, slots=True)
class InstallResult:
    """What came of an installation."""

    ledger: Versioned
    """The metadata now."""
    done: tuple[CopiedStep, ...]
    """Steps that count: named by the metadata, or filled up in place."""
    refusals: tuple[Answer, ...] = ()
    """Targets that turned out not to hold everything, or not to be there any more."""


class Installer:
    """Installs copies of one ledger under its lock."""

    def __init__(self, ports: RepairPorts, copier: Copier, holdings: Holdings, lease: Lease) -> None:
        self._ports = ports
        self._copier = copier
        self._holdings = holdings
        self._lease = lease

    async def install(
        self, ledger: Versioned, copied: Sequence[CopiedStep], reserved: LedgerReservations | None
    ) -> InstallResult:
        """Make ``copied`` count, all in one write of the metadata that checks that ``reserved`` still stands (S16).

        ``reserved`` may be None if everything was filled in place.

        Raises:
            MetadataConflictError: the metadata is not at ``ledger.version`` any more; nothing was changed.
            PreconditionFailedError: the reservation does not exist any more, another worker has the ledger, or a target
                has other disks; nothing was changed.
            NoSuchLedgerError: the ledger was deleted.
            LeaseLostError: the lock is not ours any more; nothing was changed.
            TransientError: the store did not answer; nothing was changed.
            OutcomeUnknownError: the write was sent and its outcome is unknown.
        """
        whole: list[CopiedStep] = []
        refusals: list[Answer] = []
        for copy in copied:
            refusal = await self._lacking(ledger, copy)
            if refusal is None:
                whole.append(copy)
            else:
                refusals.append(refusal)
        await self._lease.ensure_ours()
        bookies, _ = await with_draining(
            self._ports, await self._ports.registrations.list(), [copy.step.old for copy in whole if _replaces(copy)]
        )
        refusals.extend(_gone_targets(whole, bookies))
        targets = sorted({copy.step.target for copy in whole if isinstance(copy.step, CopyPosition)})
        latest = await self._ports.registrations.latest_disks(targets)  # after the sync of the list
        refusals.extend([answer async for answer in self._dead_disks(whole, latest)])
        done = _with_few_targets([copy for copy in whole if await self._is_still_wanted(copy, bookies, latest)])
        changes = [copy.step for copy in done if not _is_in_place(copy.step)]
        if changes:
            wanted = with_steps(ledger.metadata, changes)
            if reserved is None:
                raise InvariantError(f"ledger {ledger.ledger_id} was to be changed without a reservation")
            self._lease.ensure_session()
            named = sorted({step.target for step in changes} & latest.keys())
            checks = [Check(reserved.path, reserved.version), *(latest[target].check for target in named)]
            ledger = await self._ports.ledgers.write(ledger.ledger_id, wanted, ledger.version, checks=checks)
        return InstallResult(ledger, tuple(done), tuple(refusals))

    async def incarnation(self, bookie: BookieId) -> str | None:
        """Incarnation that a bookie is registered with; None if it is not registered."""
        info = await self._ports.registrations.service_info(bookie)
        return None if info is None else info.incarnation

    async def _lacking(self, ledger: Versioned, copy: CopiedStep) -> Answer | None:
        if isinstance(copy.step, SwapMember):
            return None
        if copy.overwritten:
            refusal = await self._copier.not_served(ledger, copy.step.target, copy.overwritten)
            if refusal is not None:
                return refusal
        return await self._holdings.missing_on_target(ledger.ledger_id, copy.step)

    async def _dead_disks(
        self, copied: Iterable[CopiedStep], latest: Mapping[BookieId, Latest]
    ) -> AsyncIterator[Answer]:
        """Targets whose registration is all that is left of them. One that is back on new disks gets a new copy."""
        for copy in copied:
            known, target = latest.get(copy.step.target), copy.step.target
            if known is not None and known.uuid != copy.incarnation and await self.incarnation(target) != known.uuid:
                yield Answer(
                    target, Status.WRONG_INCARNATION, "its disks were replaced, and the new ones do not serve yet"
                )

    async def _is_still_wanted(self, copy: CopiedStep, bookies: Bookies, latest: Mapping[BookieId, Latest]) -> bool:
        step = copy.step
        if _replaces(copy) and step.old in bookies.staying:
            return False  # R5: it came back, with its copies; or its drain was withdrawn
        if step.target not in bookies.writable:
            return False
        if isinstance(step, SwapMember):
            return True
        # R30: other disks under the target's name would not hold what was copied.
        known = latest.get(step.target)
        return copy.incarnation == (await self.incarnation(step.target) if known is None else known.uuid)


def with_steps(metadata: LedgerMetadata, steps: Iterable[Step]) -> LedgerMetadata:
    """The metadata with every step's target in its place, and nothing else changed.

    Raises:
        InvariantError: a step does not fit the metadata, or its target is a member of the fragment already (S9).
    """
    for step in steps:
        members = metadata.fragments[step.fragment_index].members
        if members[step.position] != step.old or step.target in members:
            raise InvariantError(f"{step} does not fit an ensemble of {', '.join(members)}")
        metadata = metadata.with_member(step.fragment_index, step.position, step.target)
    return metadata


def _replaces(copy: CopiedStep) -> bool:
    """True if it replaces a bookie that was lost or that is being drained."""
    return isinstance(copy.step, SwapMember) or copy.step.is_of_lost_bookie


def _gone_targets(copied: Iterable[CopiedStep], bookies: Bookies) -> Iterable[Answer]:
    return (
        Answer(copy.step.target, Status.UNRESOLVED, "not registered as writable any more")
        for copy in copied
        if copy.step.target not in bookies.writable
    )


def _with_few_targets(copied: Sequence[CopiedStep]) -> list[CopiedStep]:
    targets = list(dict.fromkeys(copy.step.target for copy in copied))
    few = frozenset(targets[:_TARGETS_MAX])
    return [copy for copy in copied if copy.step.target in few]


def _is_in_place(step: Step) -> bool:
    return isinstance(step, CopyPosition) and step.is_in_place
