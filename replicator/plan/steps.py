"""The steps of a repair, and the positions that they repair, as values."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.model.schedule import Stripe


class Cause(enum.Enum):
    """Why a position needs a copy."""

    UNREGISTERED = "unregistered"
    """Its bookie is not registered."""
    FLAPPING = "flapping"
    """Its bookie is not registered, and has returned and left several times, so another return is ignored (R55)."""
    INCOMPLETE = "incomplete"
    """Its bookie is registered and lists fewer entries than it should store (R31)."""
    DAMAGED = "damaged"
    """Its bookie is registered and has damaged copies, with good ones on other bookies (R41)."""
    DRAINING = "draining"
    """Its bookie is registered and healthy, and is to be taken out of the cluster."""
    MISPLACED = "misplaced"
    """Its bookie is registered and healthy, and the ensemble breaks the placement policy."""


_LOST_OR_DRAINING_CAUSES = frozenset({Cause.UNREGISTERED, Cause.DRAINING})


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPosition:
    """Copy the entries of ``position`` in ``first..last`` (inclusive) to ``target``, then make it the member there."""

    fragment_index: int
    position: int
    old: BookieId
    target: BookieId
    """The same as ``old`` for a copy in place, that is to a bookie that is incomplete or has damaged copies."""
    cause: Cause
    first: EntryId
    last: EntryId
    write_quorum: int
    sources: tuple[BookieId | None, ...]
    """For each position of the ensemble, the registered bookie to read from, or None. At ``position`` it is None unless
    the bookie is draining, misplaced or incomplete, or has damaged copies."""

    @property
    def entry_count(self) -> int:
        """The number of entries of the position."""
        return self.stripe.count(self.position, self.first, self.last)

    @property
    def stripe(self) -> Stripe:
        """How entries are distributed over the positions of the fragment."""
        return Stripe(len(self.sources), self.write_quorum)

    @property
    def is_of_lost_bookie(self) -> bool:
        """Whether the step is needed only as long as the position's bookie is lost or draining."""
        return self.cause in _LOST_OR_DRAINING_CAUSES

    @property
    def is_in_place(self) -> bool:
        """Whether the metadata stays unchanged."""
        return self.old == self.target

    def entries(self) -> Iterator[EntryId]:
        """Return the entries of the position in ascending order."""
        return self.stripe.entries(self.position, self.first, self.last)

    def holders(self, start: int) -> tuple[BookieId, ...]:
        """Return the distinct sources of entries with ``entry_id mod E == start``, from the next higher position on.

        The order starts after the step's own position, not at the first position of the write set. So neighbouring
        entries have the same first holder if possible, and one request covers a run of entries. The own position comes
        last, so a bookie that is to be replaced is read only if no other bookie has the entry.
        """
        stripe, size = self.stripe, len(self.sources)
        around = ((self.position + step) % size for step in range(1, size + 1))
        named = (self.sources[p] for p in around if stripe.stores(p, start))
        return tuple(dict.fromkeys(bookie for bookie in named if bookie is not None and bookie != self.target))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapMember:
    """Name ``target`` instead of ``old``, which has no entries of the fragment. This only changes the metadata."""

    fragment_index: int
    position: int
    old: BookieId
    target: BookieId
    cause: Cause = Cause.UNREGISTERED

    @property
    def is_of_lost_bookie(self) -> bool:
        """The same as in ``CopyPosition``."""
        return self.cause in _LOST_OR_DRAINING_CAUSES

    @property
    def is_in_place(self) -> bool:
        """The same as in ``CopyPosition``: never, because only the metadata is changed."""
        return False


Step = CopyPosition | SwapMember


@dataclass(frozen=True, slots=True)
class PositionKey:
    """Identifies a position across versions of the metadata: fragments keep their first entry, but not their index."""

    first_entry_id: EntryId
    position: int
    bookie: BookieId

    @staticmethod
    def of(metadata: LedgerMetadata, step: Step) -> PositionKey:
        """Return the position that a step repairs."""
        return PositionKey(metadata.fragments[step.fragment_index].first_entry_id, step.position, step.old)
