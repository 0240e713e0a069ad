"""The write caches: entries that are durable in the journal but not yet in the entry logs.

There are two caches: one accepts entries, and the other is being flushed or None. Reads check both caches before the
index, and an entry leaves a cache only after it is in the index, so it can be found at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bookie.model.ids import NO_ENTRY, EntryId, LedgerId

ENTRY_OVERHEAD_BYTES: Final = 256
"""Memory per entry in addition to its bytes (objects, dictionary slot). Because of it, the bound also limits empty
entries."""


class CachedEntry(NamedTuple):
    """The stored form of an entry and its CRC32C. It is a named tuple, which is fast to create on the hot path."""

    data: bytes
    crc: int


@dataclass(slots=True)
class WriteCache:
    """One cache. ``size`` counts every put entry, so repeated adds of the same entry also fill the cache."""

    size: int = 0
    _ledgers: dict[LedgerId, dict[EntryId, CachedEntry]] = field(default_factory=dict)
    _last: dict[LedgerId, EntryId] = field(default_factory=dict)

    def put(self, ledger_id: LedgerId, entries: Mapping[EntryId, CachedEntry], size: int) -> None:
        """Add entries of ``size`` bytes in total; they replace existing ones with the same id."""
        self._ledgers.setdefault(ledger_id, {}).update(entries)
        self._last[ledger_id] = max(self._last.get(ledger_id, NO_ENTRY), *entries)
        self.size += size + len(entries) * ENTRY_OVERHEAD_BYTES

    def count_non_entry(self) -> None:
        """Count a record other than an entry, so that the cache also fills up, and is flushed, by fences alone."""
        self.size += ENTRY_OVERHEAD_BYTES

    def get(self, ledger_id: LedgerId, entry_id: EntryId) -> CachedEntry | None:
        """Return an entry, or None if it is not in this cache."""
        return self._ledgers.get(ledger_id, {}).get(entry_id)

    def has(self, ledger_id: LedgerId) -> bool:
        """Return whether there is an entry of a ledger in this cache."""
        return ledger_id in self._ledgers

    def last(self, ledger_id: LedgerId) -> EntryId | None:
        """Return the greatest entry id of a ledger, or None."""
        return self._last.get(ledger_id)

    def entry_ids(self, ledger_id: LedgerId) -> list[EntryId]:
        """Return the ids of a ledger's entries, in the order of their arrival."""
        return list(self._ledgers.get(ledger_id, ()))

    def drop(self, ledger_id: LedgerId, counted: int = 0) -> int:
        """Drop a ledger's entries, and return how many of them are among the first ``counted`` of ``ordered``."""
        entries = self._ledgers.pop(ledger_id, {})
        self._last.pop(ledger_id, None)
        if not counted or not entries:
            return 0
        before = sum(len(others) for other, others in self._ledgers.items() if other < ledger_id)
        return min(max(counted - before, 0), len(entries))

    def ordered(self) -> Iterator[tuple[LedgerId, EntryId, CachedEntry]]:
        """Yield all entries, sorted by ledger and entry id."""
        for ledger_id in sorted(self._ledgers):
            entries = self._ledgers[ledger_id]
            for entry_id in sorted(entries):
                yield ledger_id, entry_id, entries[entry_id]


@dataclass(slots=True)
class Caches:
    """The pair of caches. Newer entries hide older ones with the same id."""

    active: WriteCache = field(default_factory=WriteCache)
    flushing: WriteCache | None = None

    def get(self, ledger_id: LedgerId, entry_id: EntryId) -> CachedEntry | None:
        """Return the newest version of an entry, or None if it is in neither cache."""
        found = self.active.get(ledger_id, entry_id)
        return found if found is not None or self.flushing is None else self.flushing.get(ledger_id, entry_id)

    def has(self, ledger_id: LedgerId) -> bool:
        """Return whether there is an entry of a ledger in either cache."""
        return any(cache.has(ledger_id) for cache in self._present())

    def last(self, ledger_id: LedgerId) -> EntryId | None:
        """Return the greatest entry id of a ledger in either cache, or None."""
        found = [cache.last(ledger_id) for cache in self._present()]
        return max((entry_id for entry_id in found if entry_id is not None), default=None)

    def entry_ids(self, ledger_id: LedgerId) -> list[EntryId]:
        """Return the ids of a ledger's entries in both caches, in any order and perhaps with duplicates."""
        return [entry_id for cache in self._present() for entry_id in cache.entry_ids(ledger_id)]

    def swap(self) -> None:
        """Start a flush: the active cache becomes the flushing one, and an empty cache takes its place."""
        assert self.flushing is None, "the previous cache is still being flushed"
        self.active, self.flushing = WriteCache(), self.active

    def _present(self) -> list[WriteCache]:
        return [self.active] if self.flushing is None else [self.active, self.flushing]
