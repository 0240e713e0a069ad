"""Damaged copies found by repairs of this process and not replaced yet.

A copy is damaged if its bytes do not verify, or if its bookie reports the damage itself. It is noted here only if
another bookie served a good copy of the same entry. The plan then treats the entry as missing on the bookie: a good
copy is stored there, and read back. An add replaces an entry with the same id, on our bookies and on Apache's. If the
bookie still serves the damaged copy, or refuses the add, another bookie replaces it. An Apache bookie may serve wrong
bytes again after such an add, so another bookie replaces it immediately, if there is one (decision 130).

A damaged entry without a good copy is not noted. It parks its position (R23).

An entry that an Apache bookie could not read is found by asking the bookie again, so it is kept for one round only
(``repair.turn_damage``, R139).

The notes outlive a turn, because a turn may end before it can act on them: a bookie may be unreachable, or a recovery
may come first. They do not outlive the process. They are hints: if a note is outdated, a good copy is replaced by an
equal one.

Source: R41, docs/failure-model.md#R41.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from replicator.knowledge.evidence import CorruptCopy
from replicator.plan.steps import PositionKey

LEDGER_COPIES_MAX: Final = 10_000
"""The most damaged copies noted per ledger. Bookies with further ones are replaced completely."""
COPIES_MAX: Final = 100_000
"""The most damaged copies noted in total, about 10 MB. If there are more, the oldest ledgers are forgotten."""

_Positions = dict[PositionKey, set[EntryId]]


class KnownDamage:
    """The damaged copies that a process knows. Shared by all its turns."""

    def __init__(self) -> None:
        self._ledgers: dict[LedgerId, _Positions] = {}

    def note(self, ledger: Versioned, copies: Collection[CorruptCopy]) -> frozenset[BookieId]:
        """Note damaged copies whose entries have good copies elsewhere; return the bookies with too many of them."""
        if not copies:
            return frozenset()
        noted = self._ledgers.pop(ledger.ledger_id, {})
        count = _count(noted)
        for copy in copies:
            for key in _positions(ledger.metadata, copy):
                entries = noted.setdefault(key, set())
                if count < LEDGER_COPIES_MAX or not entries:
                    count += copy.entry_id not in entries
                    entries.add(copy.entry_id)
        if noted:
            self._ledgers[ledger.ledger_id] = noted
        self._shrink()
        return frozenset(copy.bookie for copy in copies) if count >= LEDGER_COPIES_MAX else frozenset()

    def of(self, ledger_id: LedgerId) -> Mapping[PositionKey, Collection[EntryId]]:
        """Return the damaged entries of a ledger by position; positions without damage are omitted."""
        return self._ledgers.get(ledger_id, {})

    def copies(self, ledger_id: LedgerId) -> frozenset[tuple[BookieId, EntryId]]:
        """Return the damaged copies of a ledger."""
        positions = self._ledgers.get(ledger_id, {}).items()
        return frozenset((key.bookie, entry_id) for key, entries in positions for entry_id in entries)

    def replaced(self, ledger_id: LedgerId, key: PositionKey, entry_ids: Collection[EntryId]) -> None:
        """Forget damaged copies of a position that good copies, in place or on another bookie, have replaced."""
        positions = self._ledgers.get(ledger_id, {})
        left = positions.pop(key, set()).difference(entry_ids)
        if left:
            positions[key] = left
        if not positions:
            self._ledgers.pop(ledger_id, None)

    def forget(self, ledger_id: LedgerId) -> None:
        """Forget a ledger whose task has ended."""
        self._ledgers.pop(ledger_id, None)

    def _shrink(self) -> None:
        total = sum(map(_count, self._ledgers.values()))
        while total > COPIES_MAX:
            oldest = next(iter(self._ledgers))
            total -= _count(self._ledgers.pop(oldest))


def without(held: EntryRuns, entry_ids: Iterable[EntryId]) -> EntryRuns:
    """Return ``held`` without ``entry_ids``."""
    return held.without(EntryRuns.of(sorted(entry_ids)))


def _positions(metadata: LedgerMetadata, copy: CorruptCopy) -> Iterator[PositionKey]:
    """Yield the positions at which the bookie stores the copy; none if it is no longer a member of the fragment."""
    fragment = metadata.fragments[metadata.fragment_index(copy.entry_id)]
    for position, member in enumerate(fragment.members):
        if member == copy.bookie and metadata.stripe.stores(position, copy.entry_id):
            yield PositionKey(fragment.first_entry_id, position, member)


def _count(positions: _Positions) -> int:
    return sum(map(len, positions.values()))
