"""Losses that an operator has accepted: their copies need no repair, so drains and removals do not wait for them.

The rule is that of audits (R45, docs/failure-model.md): an acceptance is valid while none of its bookies is registered,
and covers only its fragments, positions and bookies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.tasks.decisions import Decision, Decisions
from bookie.model.ids import BookieId, LedgerId


async def valid_accepted_losses(
    decisions: Decisions, registrations: Registrations, bookies: Collection[BookieId]
) -> Mapping[LedgerId, Decision]:
    """Return the valid accepted losses that name one of ``bookies``, by ledger; at most ``ACCEPTED_MAX`` ledgers.

    Raises:
        NotAClusterError, StoreUnavailableError: no answer.
    """
    wanted, registered = frozenset(bookies), (await registrations.list()).registered
    if wanted <= registered:
        return {}
    return {
        decision.ledger_id: decision
        for decision in await decisions.accepted()
        if decision.is_valid(registered) and not wanted.isdisjoint(decision.bookies)
    }
