"""The record of the accepted loss of one ledger, as one turn reads, uses and changes it (R148).

The invariant: each transaction based on the record checks its version, and each change of it replaces the version last
read by this turn. An operator needs the lock of the ledger to write the record. An audit withdraws it without the lock,
and a copy may find an entry that is lost according to the record.

Plans use the record only after one of them was blocked without it: most turns with a record copy everything.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import PreconditionFailedError, Versioned
from bookie.metadata.port import Check, MultiFailedError, SetData
from bookie.metadata.tasks.decisions import AcceptedCopy, LostFragment, RecordedDecision
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.availability import EntryRuns
from bookie.model.errors import InvariantError
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from replicator.plan.acceptance import NOTHING_ACCEPTED, Acceptance, acceptance
from replicator.plan.installable import CopiedStep
from replicator.plan.planner import Blocked
from replicator.plan.steps import PositionKey
from replicator.ports import RepairPorts
from replicator.repair.lease import Lease

_log = logging.getLogger(__name__)

RECORD_CHANGES_MAX: Final = 10
"""How often a turn removes entries of one fragment from the record: it writes once for each chunk with such entries. If
more are found, the acceptance of the fragment ends, and an operator accepts the rest again."""
_ENDED_BY_ACCEPTANCE: Final = (ParkReason.NO_LIVE_COPY, ParkReason.UNREADABLE_ENTRIES)
"""Reasons of blocked positions that an accepted loss may end."""


MarkLacking = Callable[[Set[BookieId]], Awaitable[None]]
"""Adds members that lack entries to the task of the ledger."""


class RecordChange(NamedTuple):
    """A change of the record, as a part of a transaction."""

    after: RecordedDecision
    operation: SetData


class AcceptedLoss:
    """The record of the accepted loss of a ledger in one turn. Empty if no loss was accepted."""

    def __init__(self, ports: RepairPorts, lease: Lease) -> None:
        """Take the record that was read under the lock."""
        self._decisions = ports.decisions
        self._store = ports.store
        self._lease = lease
        self._ledger_id = lease.held.task.ledger_id
        nodes = lease.other_nodes
        known = None if nodes is None else self._decisions.recorded(self._ledger_id, nodes.decision)
        self._current = _if_accepted(known)
        self._is_used = False
        """Whether plans use the record."""
        self.lock = asyncio.Lock()
        """Held while a transaction that may change the record is in flight, because several fragments are copied at
        the same time."""
        self._changes: Counter[EntryId] = Counter()
        """How often entries were removed from the record, by the first entry of their fragment."""
        self._left_out: dict[PositionKey, EntryRuns] = {}

    @property
    def path(self) -> str:
        """The path of the record."""
        return self._decisions.path(self._ledger_id)

    def use(self, blocked: Iterable[Blocked]) -> frozenset[EntryId]:
        """Use the record from now on if it may permit to copy ``blocked`` positions, and was not used before.

        Return the first entries of the fragments whose lost entries it names by their ids.
        """
        known = self._current
        if known is None or self._is_used or not any(block.reason in _ENDED_BY_ACCEPTANCE for block in blocked):
            return frozenset()
        self._is_used = True
        return frozenset(loss.first_entry_id for loss in known.decision.lost if loss.entries)

    async def read_again(self) -> None:
        """Read the record after another process has changed it. Plans do not use it until one of them is blocked.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        self._is_used = False
        self._left_out.clear()
        self._current = _if_accepted(await self._decisions.read(self._ledger_id))

    def acceptance(self, metadata: LedgerMetadata, bookies: Bookies) -> Acceptance:
        """Return what plans and copies may leave out while these bookies are registered."""
        if self._current is None or not self._is_used:
            return NOTHING_ACCEPTED
        return acceptance(metadata, bookies, self._current.decision)

    def checks(self) -> list[Check]:
        """Return the condition that the record is unchanged, if plans use it (I18)."""
        return [Check(self.path, self._current.version)] if self._current is not None and self._is_used else []

    def entries(self, first_entry_id: EntryId) -> EntryRuns:
        """Return the entries of a fragment that the record names as lost, whether or not plans use it."""
        loss = None if self._current is None else self._current.decision.loss_of(first_entry_id)
        return EntryRuns(()) if loss is None else loss.lost_entries

    def note_left_out(self, key: PositionKey, entries: EntryRuns) -> None:
        """Note the entries that were left out of a copy in place: the bookie of the position still lacks them."""
        self._left_out[key] = entries

    def left_out(self, key: PositionKey) -> EntryRuns | None:
        """Return the entries that a copy in place to a position left out in this turn; None if there was no copy."""
        return self._left_out.get(key)

    @property
    def current(self) -> RecordedDecision | None:
        """The record as last known; None if there is none."""
        return self._current

    def after_copies(self, metadata: LedgerMetadata, copies: Sequence[CopiedStep]) -> RecordChange | None:
        """Return the change of the record with which the metadata may name the targets of ``copies``; None if none.

        So audits expect the other entries there. Hold ``lock`` from this call until ``note_written``.

        Raises:
            InvariantError: a copy left out entries without a record.
        """
        record = self._current
        if record is None:
            if any(copy.left_out for copy in copies):
                raise InvariantError(f"entries of ledger {self._ledger_id} were left out without an accepted loss")
            return None
        if not copies:
            return None
        first_ids = [metadata.fragments[copy.step.fragment_index].first_entry_id for copy in copies]
        changes = [
            AcceptedCopy(first, copy.step.position, copy.step.target, copy.left_out)
            for first, copy in zip(first_ids, copies, strict=True)
        ]
        decision = record.decision.after_copies(metadata.stripe, changes)
        after = RecordedDecision(decision, record.version + 1)
        return RecordChange(after, self._decisions.replacing(record, decision))

    def note_written(self, record: RecordedDecision) -> None:
        """Note the record that a transaction wrote."""
        self._current = record

    async def remove(
        self,
        ledger: Versioned,
        first_entry_id: EntryId,
        served_by: Mapping[EntryId, BookieId],
        mark_lacking: MarkLacking,
    ) -> None:
        """Remove entries of a fragment that sources served.

        Otherwise the record would permit to leave them out if they are lost again, and audits would accept this. The
        other members that the record names for these entries lack them, so ``mark_lacking`` is called with these before
        the record changes: after a crash, nothing else would show it.

        Raises:
            PreconditionFailedError: the record has changed.
            LeaseLostError: the lock is no longer ours.
            TransientError, OutcomeUnknownError: the store did not answer.
        """
        async with self.lock:
            record = self._current
            loss = None if record is None else record.decision.loss_of(first_entry_id)
            if record is None or loss is None:
                return
            if lacking := _members_without(ledger.metadata, loss, served_by):
                await mark_lacking(lacking)
            self._changes[first_entry_id] += 1
            if self._changes[first_entry_id] > RECORD_CHANGES_MAX:
                decision = record.decision.without_fragment(first_entry_id)
            else:
                entries = EntryRuns.of(sorted(served_by))
                decision = record.decision.after_finding(ledger.metadata.stripe, first_entry_id, entries)
            change, lock = self._decisions.replacing(record, decision), self._lease.check()
            self._lease.ensure_session()
            try:
                await self._store.multi([lock, change])
            except MultiFailedError as error:
                if error.index == 0:
                    raise self._lease.lost() from error
                raise PreconditionFailedError(self._ledger_id, change.path) from error
            self._current = RecordedDecision(decision, record.version + 1)
        _log.warning(
            "entries whose loss was accepted have a copy",
            extra={"ledger_id": self._ledger_id, "first_entry_id": min(served_by), "entries": len(served_by)},
        )


def _members_without(
    metadata: LedgerMetadata, loss: LostFragment, served_by: Mapping[EntryId, BookieId]
) -> frozenset[BookieId]:
    """Return the members that denied one of the entries according to the record, except those that served them."""
    denying = {
        denial.bookie
        for denial in loss.denials
        for entry_id, source in served_by.items()
        if metadata.stripe.stores(denial.position, entry_id) and denial.bookie != source
    }
    return metadata.members() & denying


def _if_accepted(known: RecordedDecision | None) -> RecordedDecision | None:
    return known if known is not None and known.decision.is_accepted else None
