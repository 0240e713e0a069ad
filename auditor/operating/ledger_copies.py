"""The copies of a ledger after they were read: counts by result, and the first ranges of bad copies. Pure.

Only entries of final fragments are judged (``LedgerMetadata.final_last_entry_id``). They are processed in windows of
consecutive entries, so the memory depends neither on the length of the ledger nor on the number of its bad copies.

S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from bookie.metadata.bookies.registration import Bookies, BookieState, state_of
from bookie.metadata.tasks.decisions import LostFragment
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.wire.port import READ_ENTRIES_MAX

WINDOW_ENTRIES: Final = READ_ENTRIES_MAX
"""Entries of a ledger in one window: as many as one request can name."""
RANGES_MAX: Final = 20
"""Ranges that are kept for each kind; the entries of further ranges are only counted."""

AcceptedEntries: TypeAlias = Sequence[tuple[AbstractSet[BookieId], EntryRuns]]
"""Accepted losses: the bookies that a record names, and the lost entries of their fragment."""


@dataclass(slots=True)
class EntryRange:
    """Entries of one kind without a gap, among the entries placed on a bookie or among all entries of the ledger."""

    first: EntryId
    last: EntryId
    """Inclusive."""
    entries: int = 1
    """Fewer than ``last - first + 1`` if the ledger is striped."""


@dataclass(slots=True)
class EntryRanges:
    """The number of entries of one kind, and their first ranges."""

    count: int = 0
    kept: list[EntryRange] = field(default_factory=list)
    is_cut: bool = False
    """Whether some ranges were not kept."""
    _next: int = -1
    """The number of the entry that would continue the last range."""

    def add(self, number: int, entry_id: EntryId) -> None:
        """Add an entry. Entries must ascend, and so must their numbers, which are consecutive within a range."""
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
class EntryWindow:
    """Consecutive entries, in one or several fragments."""

    entries: Sequence[EntryId]
    placed: Mapping[BookieId, Sequence[EntryId]]
    """The entries placed on each bookie, ascending, each once."""


@dataclass(frozen=True, slots=True)
class FoundCopies:
    """The entries of a window by the answer of a bookie. The other entries placed on it are unknown (S6)."""

    good: AbstractSet[EntryId] = frozenset()
    damaged: AbstractSet[EntryId] = frozenset()
    absent: AbstractSet[EntryId] = frozenset()
    detail: str = ""
    """Why some entries are unknown."""
    is_damage_listed: bool = False
    """Whether the bookie lists a damaged entry as one that it can serve."""


@dataclass(slots=True)
class BookieCopies:
    """The copies of the ledger on one bookie."""

    bookie: BookieId
    state: str
    """The state of the bookie: ``writable``, ``read_only``, ``draining`` or ``lost``."""
    expected: int = 0
    good: int = 0
    damaged: EntryRanges = field(default_factory=EntryRanges)
    absent: EntryRanges = field(default_factory=EntryRanges)
    unknown: int = 0
    detail: str = ""
    """The reason for the first unknown copies."""
    is_damage_listed: bool = False
    accepted: int = 0
    """Absent entries that no bookie has, and whose loss on this bookie was accepted: no repair can copy them."""

    @property
    def is_lost(self) -> bool:
        """Whether the bookie is not registered."""
        return self.state == BookieState.UNREGISTERED.label

    @property
    def is_bad(self) -> bool:
        """Whether the bookie returned a damaged copy, or denied one."""
        return bool(self.damaged.count or self.absent.count)

    def add(self, placed: Sequence[EntryId], found: FoundCopies, accepted: AbstractSet[EntryId] = frozenset()) -> None:
        """Add the copies of a window. ``accepted`` are entries whose loss on this bookie was accepted."""
        before, self.expected = self.expected, self.expected + len(placed)
        self.good += len(found.good)
        unknown = len(placed) - len(found.good) - len(found.damaged) - len(found.absent)
        self.unknown += unknown
        if unknown:
            self.detail = self.detail or found.detail
        self.is_damage_listed |= found.is_damage_listed
        self.accepted += len(found.absent & accepted)
        if found.damaged or found.absent:
            for number, entry_id in enumerate(placed, before):
                if entry_id in found.damaged:
                    self.damaged.add(number, entry_id)
                elif entry_id in found.absent:
                    self.absent.add(number, entry_id)


@dataclass(slots=True)
class LedgerCopies:
    """The copies of a ledger on all bookies that its final fragments name."""

    accepted: AcceptedEntries = ()
    """The accepted losses of the ledger that name the lost entries."""
    accepted_whole: Sequence[LostFragment] = ()
    """Those without ids: nothing is copied for a position that stores a lost entry."""
    bookies: dict[BookieId, BookieCopies] = field(default_factory=dict)
    entries: int = 0
    """The judged entries."""
    without_good: EntryRanges = field(default_factory=EntryRanges)
    """Entries of which no bookie returned a good copy."""
    perhaps_on: set[BookieId] = field(default_factory=set)
    """Bookies that may have copies of ``without_good``: lost ones, and those whose answer is unknown."""
    _denied: dict[tuple[EntryId, BookieId], int] = field(default_factory=dict)
    """Absent entries of each fragment in ``accepted_whole`` (by its first entry) on each bookie."""
    _storing_lost: set[tuple[EntryId, BookieId]] = field(default_factory=set)
    """Those of ``_denied`` with an absent entry of which no bookie returned a good copy."""

    @property
    def is_bad(self) -> bool:
        """Whether a copy is damaged or absent."""
        return any(copies.is_bad for copies in self.bookies.values())

    @property
    def is_unknown(self) -> bool:
        """Whether the state of any copy is unknown."""
        return any(copies.unknown for copies in self.bookies.values())

    def is_repairable(self, copies: BookieCopies) -> bool:
        """Whether a bookie has a bad copy other than those whose loss was accepted."""
        return copies.damaged.count > 0 or copies.absent.count > copies.accepted + self._accepted_whole(copies.bookie)

    def add(self, window: EntryWindow, found: Mapping[BookieId, FoundCopies], states: Mapping[BookieId, str]) -> None:
        """Add the copies of a window. Bookies that are not in ``found`` received no request."""
        without = set(window.entries).difference(*(each.good for each in found.values()))
        for bookie, placed in window.placed.items():
            copies = self.bookies.setdefault(bookie, BookieCopies(bookie, states[bookie]))
            seen = found.get(bookie, FoundCopies())
            copies.add(placed, seen, self._accepted(bookie, without))
            self._add_denied(bookie, seen.absent, without)
        if without:
            for number, entry_id in enumerate(window.entries, self.entries):
                if entry_id in without:
                    self.without_good.add(number, entry_id)
            for bookie in window.placed.keys() - self.perhaps_on:
                seen = found.get(bookie, FoundCopies())
                if not without.intersection(window.placed[bookie]) <= seen.damaged | seen.absent:
                    self.perhaps_on.add(bookie)
        self.entries += len(window.entries)

    def _accepted(self, bookie: BookieId, without: AbstractSet[EntryId]) -> set[EntryId]:
        losses = [entries for bookies, entries in self.accepted if bookie in bookies]
        return {entry_id for entry_id in without for entries in losses if entry_id in entries}

    def _add_denied(self, bookie: BookieId, absent: AbstractSet[EntryId], without: AbstractSet[EntryId]) -> None:
        for loss in self.accepted_whole:
            denied = [entry_id for entry_id in absent if loss.first_entry_id <= entry_id <= loss.last_entry_id]
            if denied:
                key = (loss.first_entry_id, bookie)
                self._denied[key] = self._denied.get(key, 0) + len(denied)
                if not without.isdisjoint(denied):
                    self._storing_lost.add(key)

    def _accepted_whole(self, bookie: BookieId) -> int:
        """Return the absent entries of a bookie that losses without ids accept, by the rule of an audit."""
        return sum(
            self._denied[loss.first_entry_id, bookie]
            for loss in self.accepted_whole
            if (loss.first_entry_id, bookie) in self._storing_lost and self._is_covered(loss)
        )

    def _is_covered(self, loss: LostFragment) -> bool:
        denied = {bookie: count for (first, bookie), count in self._denied.items() if first == loss.first_entry_id}
        positions = [denial.position for denial in loss.denials if denial.bookie in denied]
        return loss.covers(positions, denied, sum(denied.values()))


def accepted_entries(lost: Iterable[LostFragment]) -> AcceptedEntries:
    """Return the accepted losses that name the lost entries. One without ids permits no copy, and is left out."""
    return [
        ({*loss.bookies, *(denial.bookie for denial in loss.denials)}, loss.lost_entries)
        for loss in lost
        if loss.entries
    ]


def states(metadata: LedgerMetadata, bookies: Bookies, drained: AbstractSet[BookieId]) -> dict[BookieId, str]:
    """Return the state of each member, with the words of the list of bookies."""
    return {
        bookie: "draining" if bookie in drained and bookie in bookies.registered else state_of(bookie, bookies).label
        for bookie in metadata.members()
    }


def judged_end(metadata: LedgerMetadata, *, is_tail_written: bool) -> EntryId | None:
    """Return the first entry that is not judged; None if the ledger is closed, so that all entries are judged."""
    for index, fragment in enumerate(metadata.fragments):
        if metadata.final_last_entry_id(index, is_tail_written=is_tail_written) is None:
            return fragment.first_entry_id
    return None


def copies_count(metadata: LedgerMetadata, bookies: AbstractSet[BookieId], *, is_tail_written: bool) -> int:
    """Return the number of judged copies on ``bookies``."""
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


def windows(metadata: LedgerMetadata, *, is_tail_written: bool) -> Iterator[EntryWindow]:
    """Yield the judged entries in their order."""
    judged = _judged(metadata, is_tail_written=is_tail_written)
    while part := list(itertools.islice(judged, WINDOW_ENTRIES)):
        placed: dict[BookieId, list[EntryId]] = {}
        for entry_id, members in part:
            for member in members:
                placed.setdefault(member, []).append(entry_id)
        yield EntryWindow([entry_id for entry_id, _ in part], placed)


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
