"""Entries that are durable in the journal and not yet in the entry logs.

Two caches: one takes entries, the other is being flushed or None. Reads look in both before they look in the index;
an entry leaves a cache only after the index names it, so there is no moment at which it cannot be found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bookie.model.availability import EntryRuns
from bookie.model.ids import NO_ENTRY, EntryId, LedgerId

ENTRY_OVERHEAD_BYTES: Final = 256
"""What an entry costs in memory beside its bytes (objects, dictionary slot); keeps empty entries bounded too."""


class CachedEntry(NamedTuple):
    """Stored form and its CRC32C. A named tuple, because one is made per entry on the hot path."""

    data: bytes
    crc: int


@dataclass(slots=True)
class WriteCache:
    """One cache. ``size`` counts everything ever put, so re-adding the same entry for ever fills it as well."""

    size: int = 0
    _ledgers: dict[LedgerId, dict[EntryId, CachedEntry]] = field(default_factory=dict)
    _last: dict[LedgerId, EntryId] = field(default_factory=dict)

    def put(self, ledger_id: LedgerId, entries: Mapping[EntryId, CachedEntry], size: int) -> None:
        """Add entries of ``size`` bytes together; an existing one is replaced."""
        self._ledgers.setdefault(ledger_id, {}).update(entries)
        self._last[ledger_id] = max(self._last.get(ledger_id, NO_ENTRY), *entries)
        self.size += size + len(entries) * ENTRY_OVERHEAD_BYTES

    def count_other(self) -> None:
        """Count a record that is no entry, so that fences alone fill the cache too, and are flushed and trimmed."""
        self.size += ENTRY_OVERHEAD_BYTES

    def get(self, ledger_id: LedgerId, entry_id: EntryId) -> CachedEntry | None:
        """An entry, if it is here."""
        return self._ledgers.get(ledger_id, {}).get(entry_id)

    def last(self, ledger_id: LedgerId) -> EntryId | None:
        """Greatest entry id of a ledger."""
        return self._last.get(ledger_id)

    def runs(self, ledger_id: LedgerId) -> EntryRuns:
        """Entries of a ledger."""
        return EntryRuns.of(sorted(self._ledgers.get(ledger_id, ())))

    def drop(self, ledger_id: LedgerId, counted: int = 0) -> int:
        """Forget a ledger's entries; returns how many of them are among the first ``counted`` of ``ordered``."""
        entries = self._ledgers.pop(ledger_id, {})
        self._last.pop(ledger_id, None)
        if not counted or not entries:
            return 0
        before = sum(len(others) for other, others in self._ledgers.items() if other < ledger_id)
        return min(max(counted - before, 0), len(entries))

    def ordered(self) -> Iterator[tuple[LedgerId, EntryId, CachedEntry]]:
        """Everything, by ledger and entry."""
        for ledger_id in sorted(self._ledgers):
            entries = self._ledgers[ledger_id]
            for entry_id in sorted(entries):
                yield ledger_id, entry_id, entries[entry_id]


@dataclass(slots=True)
class Caches:
    """The pair. Newer entries hide older ones of the same id."""

    active: WriteCache = field(default_factory=WriteCache)
    flushing: WriteCache | None = None

    def get(self, ledger_id: LedgerId, entry_id: EntryId) -> CachedEntry | None:
        """The newest version of an entry, if either cache has it."""
        found = self.active.get(ledger_id, entry_id)
        return found if found is not None or self.flushing is None else self.flushing.get(ledger_id, entry_id)

    def last(self, ledger_id: LedgerId) -> EntryId | None:
        """Greatest entry id of a ledger in either."""
        found = [cache.last(ledger_id) for cache in self._present()]
        return max((entry_id for entry_id in found if entry_id is not None), default=None)

    def runs(self, ledger_id: LedgerId) -> list[tuple[int, int]]:
        """Runs of a ledger's entries in both, possibly overlapping."""
        return [run for cache in self._present() for run in cache.runs(ledger_id).runs]

    def swap(self) -> None:
        """Start a flush: what was active is to be flushed, an empty cache takes its place."""
        assert self.flushing is None, "the cache before is still being flushed"
        self.active, self.flushing = WriteCache(), self.active

    def _present(self) -> list[WriteCache]:
        return [self.active] if self.flushing is None else [self.active, self.flushing]
