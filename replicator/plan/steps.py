"""What a repair consists of: copies of positions, and changes of metadata alone. Values, no decisions."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from bookie.model.ids import BookieId, EntryId
from bookie.model.schedule import Stripe


class Cause(enum.Enum):
    """Why a position needs a copy."""

    UNREGISTERED = "unregistered"
    """Its bookie is not registered."""
    FLAPPING = "flapping"
    """Its bookie is not registered, and returned and left again several times: its return changes nothing (R55)."""
    INCOMPLETE = "incomplete"
    """Its bookie is registered and lists fewer entries than it should store (R31)."""
    DAMAGED = "damaged"
    """Its bookie is registered and has damaged copies, of which other bookies have good ones (R41)."""
    DRAINING = "draining"
    """Its bookie is registered and whole, and is to be taken out of the cluster."""
    MISPLACED = "misplaced"
    """Its bookie is registered and whole, and the ensemble breaks the placement policy."""


_OF_LOST_BOOKIE = frozenset({Cause.UNREGISTERED, Cause.DRAINING})


@dataclass(frozen=True, slots=True)
class CopyPosition:
    """Copy to ``target`` what ``position`` stores of ``first..last`` (inclusive), then let it take the place."""

    fragment_index: int
    position: int
    old: BookieId
    target: BookieId
    """Equal to ``old`` for a copy in place, to an incomplete bookie or one with damaged copies."""
    cause: Cause
    first: EntryId
    last: EntryId
    write_quorum: int
    sources: tuple[BookieId | None, ...]
    """Per ensemble position the registered bookie to read from; None if it is missing, and at ``position`` unless its
    bookie is being drained, is misplaced, or has damaged copies."""

    @property
    def entry_count(self) -> int:
        """How many entries the position stores."""
        return self.stripe.count(self.position, self.first, self.last)

    @property
    def stripe(self) -> Stripe:
        """How the fragment spreads its entries."""
        return Stripe(len(self.sources), self.write_quorum)

    @property
    def is_of_lost_bookie(self) -> bool:
        """Whether the position lost its bookie, or is to lose it for a drain; if it is back, nothing is to be done."""
        return self.cause in _OF_LOST_BOOKIE

    @property
    def is_in_place(self) -> bool:
        """Whether the metadata stays as it is."""
        return self.old == self.target

    def entries(self) -> Iterator[EntryId]:
        """The entries of the position, ascending."""
        return self.stripe.entries(self.position, self.first, self.last)

    def holders(self, start: int) -> tuple[BookieId, ...]:
        """Who may be read for entries with ``entry_id mod E == start``: distinct, nearest position above ours first.

        The order starts after our own position, not at the first of the write set, so that neighbouring entries have
        the same first holder if possible, and one request covers a run of entries. Our own position comes last: a
        bookie that is drained or misplaced is read only if no other bookie has the entry.
        """
        stripe, size = self.stripe, len(self.sources)
        around = ((self.position + step) % size for step in range(1, size + 1))
        named = (self.sources[p] for p in around if stripe.stores(p, start))
        return tuple(dict.fromkeys(bookie for bookie in named if bookie is not None and bookie != self.target))


@dataclass(frozen=True, slots=True)
class SwapMember:
    """Name ``target`` instead of ``old``, which stores nothing of the fragment: a change of metadata alone."""

    fragment_index: int
    position: int
    old: BookieId
    target: BookieId
    cause: Cause = field(default=Cause.UNREGISTERED, kw_only=True)

    @property
    def is_of_lost_bookie(self) -> bool:
        """As of ``CopyPosition``."""
        return self.cause in _OF_LOST_BOOKIE


Step = CopyPosition | SwapMember
