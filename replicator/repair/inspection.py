"""Find out what one round needs to plan: the metadata, the bookies, and what members have and lack.

The safety follows from the order of the reads:

- The metadata is read under the lock, and the bookies are listed after it, so the list is never older than the metadata
  (R2). The first round uses the metadata that was read together with the task.
- The conditions for deleting the task are read before the members are asked for their entries (I18, R136).

``View`` has the state of the cluster. ``Knowledge``, the input of a plan, adds what this turn and earlier ones found:
damaged copies, refusals, begun copies, flapping bookies, and entries whose loss was accepted.

R rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import LedgerReplacedError, Versioned
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId
from bookie.runtime.fault_points import fault_point
from bookie.runtime.waiting import paced, run_cooperatively
from replicator.knowledge.absence import absent_members_not_in_task, awaiting
from replicator.knowledge.draining import with_draining
from replicator.knowledge.holdings import (
    FRAGMENTS_COMPARED_PER_STEP,
    HoldingsReader,
    Shortfall,
    lacking_count,
    lacking_write_sets,
)
from replicator.plan.planner import Knowledge, needs_tail_evidence
from replicator.plan.steps import PositionKey
from replicator.repair.accepted_loss import AcceptedLoss
from replicator.repair.conditions import Conditions, verdict_conditions
from replicator.repair.context import RepairContext
from replicator.repair.lease import Lease
from replicator.repair.reservation_holder import ReservationHolder
from replicator.repair.turn_findings import TurnFindings


@dataclass(frozen=True, slots=True)
class View:
    """What a round is based on, read under the lock."""

    ledger: Versioned
    bookies: Bookies
    conditions: Conditions
    """The conditions for deleting the task after a verdict that is based on this view (I18)."""
    shortfall: Shortfall


class Inspection:
    """Inspects the ledger of one turn, once in each round."""

    def __init__(
        self,
        context: RepairContext,
        lease: Lease,
        holdings: HoldingsReader,
        reservation: ReservationHolder,
        found: TurnFindings,
        accepted: AcceptedLoss,
    ) -> None:
        """Prepare the inspections of a turn; ``found`` and ``accepted`` contain what it has found."""
        self._context = context
        self._ports = context.ports
        self._task = lease.held.task
        self._holdings = holdings
        self._reservation = reservation
        self._found = found
        self._accepted = accepted
        self._first_nodes = lease.other_nodes
        """The nodes that were read with the lock; None after the first round, or if none were read."""
        self._first: Versioned | None = None
        """The ledger as first read in this turn."""

    async def view(self) -> View:
        """Read the metadata, then the bookies, then the members' entries.

        Raises:
            NoSuchLedgerError: the ledger was deleted.
            LedgerReplacedError: another ledger has its id since the last round (R170).
            UnreadableMetadataError: its metadata cannot be decoded.
            StoreUnavailableError: the store does not answer.
        """
        ledger = await self._read()
        if fault_point("replicator.reread"):
            ledger = await self._ports.ledgers.read(self._task.ledger_id)
        self._first = self._first or ledger
        if ledger.czxid != self._first.czxid:
            raise LedgerReplacedError(ledger.ledger_id)
        members, named = ledger.metadata.members(), set(self._task.missing)
        listed = await self._ports.recent.bookies(expected=members - named)
        bookies, drain_checks = await with_draining(self._ports, listed, members & named)
        absent = absent_members_not_in_task(ledger.metadata, self._task.missing, bookies)
        bookies = awaiting(bookies, absent, await self._context.absences.lost(bookies, absent))
        conditions = await verdict_conditions(self._ports, ledger, self._task, bookies)
        conditions = replace(conditions, checks=(*conditions.checks, *drain_checks))
        return View(ledger, bookies, conditions, await self._holdings.shortfall(ledger, self._task.missing, bookies))

    async def _read(self) -> Versioned:
        """Return the current metadata; the first time, return that which was read together with the task."""
        first, self._first_nodes = self._first_nodes, None
        if first is not None:
            return self._ports.ledgers.versioned(self._task.ledger_id, first.metadata)
        return await self._ports.ledgers.read(self._task.ledger_id)

    async def knowledge(self, view: View) -> Knowledge:
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
