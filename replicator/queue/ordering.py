"""Which task comes first: the one closest to losing data, then the one that has waited longest.

A task that failed sinks below all that did not, by one step per failure, so that one poisoned ledger never delays the
rest. Tasks of equal rank come in random order: workers that look at the same list then rarely reach for the same lock.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.model.ids import LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.severity import fragment_health

AGE_STEP_MS: Final = 60_000
"""Ages within one minute count as equal: marks of one audit have no order among themselves."""
COPIES_UNKNOWN: Final = 1 << 30
"""Rank of a ledger that is deleted, unreadable or whole: quick to clear, and waiting costs nothing."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the order depends on."""

    ledger_id: LedgerId
    copies_min: int
    ctime_ms: int
    """When it was marked; -1 (not stored) counts as the oldest."""
    failures: int = 0


def surviving_copies(ledger: Versioned | Unreadable | None, bookies: Bookies) -> int:
    """Copies left of the entry that has the fewest, over the fragments with an unregistered member."""
    if not isinstance(ledger, Versioned):
        return COPIES_UNKNOWN
    return min(_fragment_copies(ledger.metadata, bookies), default=COPIES_UNKNOWN)


def in_order(candidates: Iterable[Candidate], rng: random.Random) -> list[LedgerId]:
    """Ledger ids in the order in which they should be repaired."""
    ranked = [(c.failures, c.copies_min, c.ctime_ms // AGE_STEP_MS, rng.random(), c.ledger_id) for c in candidates]
    ranked.sort()
    return [ledger_id for *_, ledger_id in ranked]


def _fragment_copies(metadata: LedgerMetadata, bookies: Bookies) -> Iterable[int]:
    registered = bookies.registered
    for index, fragment in enumerate(metadata.fragments):
        is_live = [member in registered for member in fragment.members]
        if not all(is_live):
            last = metadata.fragment_last_entry_id(index)
            health = fragment_health(is_live, metadata.write_quorum, metadata.ack_quorum, fragment.first_entry_id, last)
            yield health.copies_min
