"""Make the targets of one round ready for copies: reserve the plan, then let targets pin the ledger (S16).

The invariant: nothing is copied to a target, and no bookie becomes a member, before the plan is reserved and no pending
mark of a collector can delete the ledger there. A bookie pins a ledger by listing its entries
(``knowledge.holdings``). A target that gets the first entries of a small ledger, and has recently listed another
ledger, needs no pin: each add clears the mark of a collector as a list does, and the list that proves the copy follows
the last add.

An empty ledger needs neither (R118), because it has no copies that a collector could delete.

R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bookie.metadata.bookies.registration import Registration
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.ids import BookieId
from bookie.wire.port import Status
from replicator.knowledge.evidence import BookieAnswer
from replicator.knowledge.holdings import HoldingsReader
from replicator.knowledge.recent import Recent
from replicator.plan.steps import Step, SwapMember
from replicator.queue.ordering import is_large
from replicator.repair.reservation_holder import ReservationHolder
from replicator.repair.turn_findings import TurnFindings


@dataclass(frozen=True, slots=True)
class RoundTargets:
    """The registered targets of one round, each with its registration as read before the copies."""

    registrations: Mapping[BookieId, Registration]

    def __contains__(self, bookie: BookieId) -> bool:
        """Whether a target was registered."""
        return bookie in self.registrations

    def incarnation(self, bookie: BookieId) -> str:
        """Return the disks that a registered target serves; "" if it records none."""
        return self.registrations[bookie].info.incarnation


async def ready_targets(
    ledger: Versioned,
    steps: Sequence[Step],
    recent: Recent,
    holdings: HoldingsReader,
    reservation: ReservationHolder,
    found: TurnFindings,
) -> RoundTargets:
    """Reserve ``steps`` and let their targets pin the ledger if they need it; add the refusals to ``found``.

    Raises:
        LeaseLostError, StoreUnavailableError, WriteOutcomeUnknownError: see ``ReservationHolder.reserve``.
    """
    registrations: dict[BookieId, Registration] = {}
    for target in dict.fromkeys(step.target for step in steps):
        registration = await recent.registration(target)
        if registration is None:
            found.note_refusals([BookieAnswer(target, Status.UNRESOLVED, "not registered any more")])
        else:
            registrations[target] = registration
    targets = RoundTargets(registrations)
    if ledger.metadata.is_empty and reservation.is_clear:
        return targets
    possible = [(step, targets.incarnation(step.target)) for step in steps if step.target in targets]
    await reservation.reserve(ledger, possible)

    def needs_pin(step: Step, incarnation: str) -> bool:
        """Whether the target may get no entry, or may not support lists, so that it must list the ledger first."""
        if isinstance(step, SwapMember):
            return True
        has_some = reservation.end_entry_id(ledger, step, incarnation) > step.first
        has_some = has_some or reservation.other_position(ledger, step, incarnation) is not None
        is_sure = not has_some and not is_large(ledger) and recent.has_listed(step.target)
        return not step.is_in_place and not is_sure

    # Even if nothing is copied: if a collector has begun with the ledger, its bookie must not become a member.
    fresh = dict.fromkeys(step.target for step, incarnation in possible if needs_pin(step, incarnation))
    refusals = await asyncio.gather(*(holdings.pin(ledger.ledger_id, target) for target in fresh))
    for target, refusal in zip(fresh, refusals, strict=True):
        recent.note_listing(target, is_answered=refusal is None)
    found.note_refusals(refusal for refusal in refusals if refusal is not None)
    return targets
