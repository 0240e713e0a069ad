"""Copies with a loss accepted by an operator: there is nothing to repair, so nothing waits for them.

The rule is that of audits (R45, docs/failure-model.md): an acceptance is valid while none of its bookies is registered,
and covers only its fragments, positions and bookies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.tasks.decisions import Decisions
from bookie.model.ids import BookieId, EntryId, LedgerId

Copies: TypeAlias = AbstractSet[tuple[EntryId, int, BookieId]]
"""Copies of fragments of one ledger: the first entry, the position, and the bookie."""


async def accepted_copies(
    decisions: Decisions, registrations: Registrations, bookies: Collection[BookieId]
) -> Mapping[LedgerId, Copies]:
    """Return the copies on ``bookies`` with a valid accepted loss; at most ``ACCEPTED_MAX`` ledgers.

    Raises:
        NotAClusterError, StoreUnavailableError: no answer.
    """
    wanted, registered = frozenset(bookies), (await registrations.list()).registered
    if wanted <= registered:
        return {}
    found = {
        decision.ledger_id: frozenset(
            (fragment.first_entry_id, position, bookie)
            for fragment in decision.lost
            for position, bookie in zip(fragment.positions, fragment.bookies, strict=False)
            if bookie in wanted
        )
        for decision in await decisions.accepted()
        if decision.is_valid(registered)
    }
    return {ledger_id: copies for ledger_id, copies in found.items() if copies}
