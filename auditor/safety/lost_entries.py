"""Which entries of a ledger have no copy left, and which other copies of it are missing. Pure functions.

Fragments that may still grow are left out, because their end is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.decisions import LOST_GROUPS_MAX, Denial, LostFragment, shared_positions
from bookie.model.availability import EntryRuns, finished
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.model.schedule import Stripe


@dataclass(frozen=True, slots=True)
class JudgedLosses:
    """The losses of a ledger, judged at one version of its metadata."""

    ledger: Versioned
    lost: tuple[LostFragment, ...]
    other: int
    """Positions that lack copies of other entries; a worker has to repair them."""
    other_without_ids: int
    """Positions that lack copies, except those that store a lost entry: for a record without room for entry ids, for
    which nothing is copied there."""

    def without_ids(self) -> JudgedLosses:
        """Return the losses as whole positions."""
        lost = tuple(replace(part, entries=(), shared=()) for part in self.lost)
        return replace(self, lost=lost, other=self.other_without_ids)


def lost_fragments(
    metadata: LedgerMetadata, gone: Collection[BookieId], held: Mapping[BookieId, EntryRuns] | None = None
) -> tuple[LostFragment, ...]:
    """Return the fragments with entries without a copy, with the positions of these entries. Pure.

    Fragments that may still grow are left out. A fragment with too many groups of lost entries has no entry ids.

    Args:
        metadata: the metadata of the ledger.
        gone: bookies without any copies left.
        held: the entries of each bookie that denied all others. A bookie that is neither here nor in ``gone`` is
            assumed to have all its entries.
    """
    held = held or {}
    stripe = metadata.stripe
    found: list[LostFragment] = []
    for index, last in final_fragments(metadata):
        fragment = metadata.fragments[index]
        first, members = fragment.first_entry_id, fragment.members
        lacking: set[int] = set()
        lists = [held[member] for member in dict.fromkeys(members) if member in held]
        for begin, end in stripe.uniform_ranges(lists, first, last):
            lacks = [member in gone or (member in held and begin not in held[member]) for member in members]
            for start in stripe.starts(begin, end):
                write_set = stripe.write_set(start)
                if all(lacks[position] for position in write_set):
                    lacking.update(write_set)
        if lacking:
            everything = EntryRuns(((first, last),))
            kept = [EntryRuns() if member in gone else held.get(member, everything) for member in members]
            lost = stripe.entries_without_copy(kept, first, last, LOST_GROUPS_MAX) or EntryRuns()
            positions = tuple(position for position in sorted(lacking) if members[position] in gone)
            denials = tuple(
                Denial(position, members[position], _lacking(stripe, position, held[members[position]], first, last))
                for position in sorted(lacking)
                if members[position] not in gone
            )
            bookies = tuple(members[position] for position in positions)
            shared = shared_positions(stripe, positions, lost, first, last) if lost else ()
            found.append(LostFragment(first, last, positions, bookies, denials, lost.groups, shared))
    return tuple(found)


def judged_losses(
    ledger: Versioned,
    lost: tuple[LostFragment, ...],
    missing: AbstractSet[BookieId],
    registered: AbstractSet[BookieId],
    held: Mapping[BookieId, EntryRuns],
) -> JudgedLosses:
    """Count the positions that lack copies of entries that are not lost. Pure.

    Args:
        ledger: the ledger, as it was read.
        lost: its fragments with entries without a copy.
        missing: the bookies that its task names.
        registered: the registered bookies.
        held: the entries of each bookie that denied all others.
    """
    needing = [
        (index, position)
        for index, fragment in enumerate(ledger.metadata.fragments)
        for position, member in enumerate(fragment.members)
        if member in missing or member not in registered
    ]
    by_first = {part.first_entry_id: part for part in lost}
    complete = _complete_positions(ledger.metadata, held, by_first)
    other = other_without_ids = 0
    for index, position in needing:
        first = ledger.metadata.fragments[index].first_entry_id
        part = by_first.get(first)
        is_lost = part is not None and part.bookie_at(position) is not None
        is_whole = part is not None and position in part.positions and position not in part.shared
        other += not is_whole and (first, position) not in complete
        other_without_ids += not is_lost and (first, position) not in complete
    return JudgedLosses(ledger, lost, other, other_without_ids)


def final_fragments(metadata: LedgerMetadata) -> Iterator[tuple[int, EntryId]]:
    """Yield the indexes of the fragments that cannot grow any more, with their last entries. Pure."""
    for index in range(len(metadata.fragments)):
        last = metadata.final_last_entry_id(index)
        if last is not None:
            yield index, last


def _complete_positions(
    metadata: LedgerMetadata, held: Mapping[BookieId, EntryRuns], lost: Mapping[EntryId, LostFragment]
) -> set[tuple[EntryId, int]]:
    """Return the positions whose bookie has all their entries that are not lost, with the first entry of the fragment.

    Args:
        metadata: the metadata of the ledger.
        held: the entries of each bookie.
        lost: the lost entries of each fragment, by its first entry.
    """
    complete: set[tuple[EntryId, int]] = set()
    for index, last in final_fragments(metadata):
        first = metadata.fragments[index].first_entry_id
        without_copy = lost[first].lost_entries if first in lost else EntryRuns()
        for position, member in enumerate(metadata.fragments[index].members):
            if member in held:
                entries = finished(EntryRuns.union_with_pauses(held[member].between(first, last), without_copy))
                if not _lacking(metadata.stripe, position, entries, first, last):
                    complete.add((first, position))
    return complete


def _lacking(stripe: Stripe, position: int, held: EntryRuns, first: EntryId, last: EntryId) -> int:
    return stripe.count(position, first, last) - stripe.held_count(position, held, first, last)
