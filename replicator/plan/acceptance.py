"""The entries that a copy may leave out, because an operator accepted their loss (R148). Pure.

The invariant: an entry is left out of a copy only if the record of an accepted loss names it by its id and names every
bookie of its write set, and each of these, if it is registered, denies it or has a damaged copy at the time of the
copy. Everything else is unknown: a bookie that is awaited or fails to answer may have a copy (S6), and a program that
does not change the record gave another bookie to a position only with all its entries.

Whether an entry may be left out at all is decided here, by the metadata, the record and the registered bookies. The
copier then asks the bookies (``UnreadableEntry.proves_loss``), and the installation checks that no bookie that counted
as lost is registered again, and that the record is unchanged.

R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.tasks.decisions import Decision, LostFragment
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata

_NOTHING: Final = EntryRuns(())


@dataclass(frozen=True, slots=True)
class AcceptedFragment:
    """The accepted loss of a fragment, if it fits the metadata and the bookies."""

    entries: EntryRuns
    """The entries that a copy may leave out."""
    lost_positions: frozenset[int]
    """The positions that store no other entries, whose bookies were lost when the loss was accepted. Nothing is copied
    for them. A bookie that denied the entries has nothing to return with, so it is replaced if it is lost later."""
    absent: frozenset[BookieId]
    """The unregistered members of the fragment. If one of them returns, nothing may be left out."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The accepted loss of a ledger, as far as it fits the metadata and the bookies."""

    fragments: Mapping[EntryId, AcceptedFragment] = field(default_factory=dict)
    """By the first entry of the fragment."""

    def entries(self, first_entry_id: EntryId) -> EntryRuns:
        """Return the entries that copies of a fragment may leave out."""
        found = self.fragments.get(first_entry_id)
        return _NOTHING if found is None else found.entries

    def is_lost(self, first_entry_id: EntryId, position: int) -> bool:
        """Whether a position of a lost bookie stores only accepted entries."""
        found = self.fragments.get(first_entry_id)
        return found is not None and position in found.lost_positions

    def absent(self, first_entry_id: EntryId) -> frozenset[BookieId]:
        """Return the members of a fragment that counted as lost."""
        found = self.fragments.get(first_entry_id)
        return frozenset() if found is None else found.absent


NOTHING_ACCEPTED: Final = Acceptance()


def acceptance(metadata: LedgerMetadata, bookies: Bookies, decision: Decision) -> Acceptance:
    """Return what a decision permits for a ledger with this metadata while these bookies are registered."""
    if not decision.is_accepted or not decision.is_of(metadata) or not decision.is_valid(bookies.registered):
        return NOTHING_ACCEPTED
    by_first = {fragment.first_entry_id: index for index, fragment in enumerate(metadata.fragments)}
    found: dict[EntryId, AcceptedFragment] = {}
    for loss in decision.lost:
        index = by_first.get(loss.first_entry_id)
        if index is not None and loss.entries and metadata.final_last_entry_id(index) == loss.last_entry_id:
            accepted = _fitting(metadata, index, bookies, loss)
            if accepted is not None:
                found[loss.first_entry_id] = accepted
    return Acceptance(found)


def _fitting(metadata: LedgerMetadata, index: int, bookies: Bookies, loss: LostFragment) -> AcceptedFragment | None:
    """Return the accepted loss of a fragment; None if a member is awaited, or is not the one that the record names."""
    stripe, members, entries = metadata.stripe, metadata.fragments[index].members, loss.lost_entries
    first, last = loss.first_entry_id, loss.last_entry_id
    lost_positions: set[int] = set()
    for position, member in enumerate(members):
        count = stripe.held_count(position, entries, first, last)
        if not count:
            continue
        if member in bookies.awaited or loss.bookie_at(position) != member:
            return None
        if member in bookies.registered:
            continue
        if count == stripe.count(position, first, last) and position in loss.positions:
            lost_positions.add(position)
    return AcceptedFragment(entries, frozenset(lost_positions), frozenset(members) - bookies.registered)
