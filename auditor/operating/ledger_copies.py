"""The copies of a ledger by what reading them showed: counts, and the first ranges of the bad ones. Pure.

Only entries of final fragments are judged (``LedgerMetadata.final_last_entry_id``). They are looked at in windows of
consecutive entries, so memory depends neither on the length of the ledger nor on the number of its bad copies.

S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.bookies.registration import Bookies, BookieState, state_of
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.wire.port import READ_ENTRIES_MAX

WINDOW_ENTRIES: Final = READ_ENTRIES_MAX
"""Entries of a ledger looked at together: as many as one request can name."""
RANGES_MAX: Final = 20
"""Ranges kept of each kind. More are only counted."""


@dataclass(slots=True)
class EntryRange:
    """Entries placed on a bookie (or in the ledger) without another one of them in between."""

    first: EntryId
    last: EntryId
    """Inclusive."""
    entries: int = 1
    """Fewer than ``last - first + 1`` if the ledger is striped."""


@dataclass(slots=True)
class EntryRanges:
    """The number of some entries, and the first ranges of them."""

    count: int = 0
    kept: list[EntryRange] = field(default_factory=list)
    is_cut: bool = False
    """Whether there are more ranges than the kept ones."""
    _next: int = -1
    """The number of the entry that would continue the last range."""

    def add(self, number: int, entry_id: EntryId) -> None:
        """Add an entry. Entries ascend, and so do their numbers, which are consecutive within a range."""
        self.count += 1
        is_next, self._next = number == self._next, number + 1
        if is_next:
            if not self.is_cut:
                self.kept[-1].last = entry_id
                self.kept[-1].entries += 1
        elif len(self.kept) < RANGES_MAX:
            self.kept.append(EntryRange(entry_id, entry_id))
        else:
            self.is_cut = True


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive entries, in one or several fragments."""

    entries: Sequence[EntryId]
    placed: Mapping[BookieId, Sequence[EntryId]]
    """The entries placed on each bookie, ascending, each once."""


@dataclass(frozen=True, slots=True)
class Found:
    """Entries in a window by the answers of a bookie. The other entries placed on it are unknown (S6)."""

    good: AbstractSet[EntryId] = frozenset()
    damaged: AbstractSet[EntryId] = frozenset()
    absent: AbstractSet[EntryId] = frozenset()
    detail: str = ""
    """Why some are unknown."""
    is_damage_listed: bool = False
    """Whether the bookie lists a damaged entry as one that it can serve."""


@dataclass(slots=True)
class BookieCopies:
    """The copies of the ledger on one bookie."""

    bookie: BookieId
    state: str
    """As in the list of bookies: ``writable``, ``read_only``, ``draining`` or ``lost``."""
    expected: int = 0
    good: int = 0
    damaged: EntryRanges = field(default_factory=EntryRanges)
    absent: EntryRanges = field(default_factory=EntryRanges)
    unknown: int = 0
    detail: str = ""
    """Why the first unknown ones are unknown."""
    is_damage_listed: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether the bookie is not registered."""
        return self.state == BookieState.UNREGISTERED.label

    @property
    def is_bad(self) -> bool:
        """Whether the bookie itself showed a damaged copy, or denied one."""
        return bool(self.damaged.count or self.absent.count)

    def add(self, placed: Sequence[EntryId], found: Found) -> None:
        """Add the copies of a window."""
        before, self.expected = self.expected, self.expected + len(placed)
        self.good += len(found.good)
        unknown = len(placed) - len(found.good) - len(found.damaged) - len(found.absent)
        self.unknown += unknown
        if unknown:
            self.detail = self.detail or found.detail
        self.is_damage_listed |= found.is_damage_listed
        if found.damaged or found.absent:
            for number, entry_id in enumerate(placed, before):
                if entry_id in found.damaged:
                    self.damaged.add(number, entry_id)
                elif entry_id in found.absent:
                    self.absent.add(number, entry_id)


@dataclass(slots=True)
class LedgerCopies:
    """The copies of a ledger on all bookies that its final fragments name."""

    bookies: dict[BookieId, BookieCopies] = field(default_factory=dict)
    entries: int = 0
    """The judged entries."""
    without_good: EntryRanges = field(default_factory=EntryRanges)
    """Entries without a good copy on a bookie that answered."""
    perhaps_on: set[BookieId] = field(default_factory=set)
    """Bookies that may have copies of ``without_good``: lost ones, and those with an unknown answer."""

    @property
    def is_bad(self) -> bool:
        """Whether a copy is damaged or absent."""
        return any(copies.is_bad for copies in self.bookies.values())

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known of a copy."""
        return any(copies.unknown for copies in self.bookies.values())

    def add(self, window: Window, found: Mapping[BookieId, Found], states: Mapping[BookieId, str]) -> None:
        """Add the copies of a window. Bookies that are not in ``found`` were not asked."""
        for bookie, placed in window.placed.items():
            copies = self.bookies.setdefault(bookie, BookieCopies(bookie, states[bookie]))
            copies.add(placed, found.get(bookie, Found()))
        without = set(window.entries).difference(*(each.good for each in found.values()))
        if without:
            for number, entry_id in enumerate(window.entries, self.entries):
                if entry_id in without:
                    self.without_good.add(number, entry_id)
            for bookie in window.placed.keys() - self.perhaps_on:
                seen = found.get(bookie, Found())
                if not without.intersection(window.placed[bookie]) <= seen.damaged | seen.absent:
                    self.perhaps_on.add(bookie)
        self.entries += len(window.entries)


def states(metadata: LedgerMetadata, bookies: Bookies, drained: AbstractSet[BookieId]) -> dict[BookieId, str]:
    """Return the state of each member, as in the list of bookies."""
    return {
        bookie: "draining" if bookie in drained and bookie in bookies.registered else state_of(bookie, bookies).label
        for bookie in metadata.members()
    }


def judged_end(metadata: LedgerMetadata, *, is_tail_written: bool) -> EntryId | None:
    """Return the first entry that is not judged; None if all are: the ledger is closed."""
    for index, fragment in enumerate(metadata.fragments):
        if metadata.final_last_entry_id(index, is_tail_written=is_tail_written) is None:
            return fragment.first_entry_id
    return None


def copies_count(metadata: LedgerMetadata, bookies: AbstractSet[BookieId], *, is_tail_written: bool) -> int:
    """Return how many copies on ``bookies`` are judged."""
    count = 0
    for index, fragment in enumerate(metadata.fragments):
        last = metadata.final_last_entry_id(index, is_tail_written=is_tail_written)
        if last is not None:
            count += sum(
                metadata.stripe.count(position, fragment.first_entry_id, last)
                for position, member in enumerate(fragment.members)
                if member in bookies
            )
    return count


def windows(metadata: LedgerMetadata, *, is_tail_written: bool) -> Iterator[Window]:
    """Yield the judged entries in their order."""
    judged = _judged(metadata, is_tail_written=is_tail_written)
    while part := list(itertools.islice(judged, WINDOW_ENTRIES)):
        placed: dict[BookieId, list[EntryId]] = {}
        for entry_id, members in part:
            for member in members:
                placed.setdefault(member, []).append(entry_id)
        yield Window([entry_id for entry_id, _ in part], placed)


def _judged(metadata: LedgerMetadata, *, is_tail_written: bool) -> Iterator[tuple[EntryId, tuple[BookieId, ...]]]:
    """Yield each judged entry with the distinct bookies of its write set."""
    for index, fragment in enumerate(metadata.fragments):
        last = metadata.final_last_entry_id(index, is_tail_written=is_tail_written)
        if last is None:
            return
        write_sets = [
            tuple(dict.fromkeys(fragment.members[position] for position in positions))
            for positions in metadata.stripe.write_sets()
        ]
        for entry_id in range(fragment.first_entry_id, last + 1):
            yield EntryId(entry_id), write_sets[entry_id % len(write_sets)]
