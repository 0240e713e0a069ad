"""The read cache: entries that were read from the entry logs before they are requested.

The invariant: an entry in this cache has the bytes to which the index refers. Only verified entries are added. Every
write or deletion of an entry's place in the index goes through ``WatchedIndex``: after it ends, the ledger's entries
are removed from the cache, and loads of the ledger that started before add nothing (R106). The write caches take
precedence, and an entry leaves them only after it was written to the index, so a superseded copy is never served.
Compaction moves entries without changing them.

The memory is bounded; the block that was loaded first is evicted first. R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie.model.ids import EntryId, LedgerId
from bookie.storage.disks.changes import RunningChanges
from bookie.storage.disks.index_format import ledger_ids_of
from bookie.storage.port import EntryIndex
from bookie.storage.write_cache import ENTRY_OVERHEAD_BYTES

_NOTHING: Final[Mapping[EntryId, bytes]] = {}


@dataclass(slots=True, eq=False)
class Load:
    """One load into the cache.

    Attributes:
        ledger_id: the ledger being read.
        first: the first entry to load.
        is_valid: False after the ledger's entries changed in the index; nothing is added to the cache then.
        done: set when the load has ended.
    """

    ledger_id: LedgerId
    first: EntryId
    is_valid: bool = True
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class _Block:
    ledger_id: LedgerId
    entry_ids: Sequence[EntryId]
    size: int


@dataclass(slots=True)
class _Ledger:
    entries: dict[EntryId, bytes] = field(default_factory=dict)
    blocks: list[_Block] = field(default_factory=list)


class ReadCache:
    """The read cache of one store.

    Attributes:
        size: its bytes, including an overhead for each entry.
        hits: the number of requested entries that were found here.
        misses: the number of requested entries that were in no cache.
        read_ahead_bytes: the bytes of all verified entries that were loaded.
    """

    def __init__(self, bytes_max: int) -> None:
        self.size = 0
        self.hits = 0
        self.misses = 0
        self.read_ahead_bytes = 0
        self._bytes_max = bytes_max
        self._ledgers: dict[LedgerId, _Ledger] = {}
        self._blocks: dict[_Block, None] = {}
        """All blocks, in the order in which they were loaded."""
        self._loads: dict[LedgerId, Load] = {}
        self._is_closed = False

    def entries(self, ledger_id: LedgerId) -> Mapping[EntryId, bytes]:
        """Return the cached entries of a ledger, valid until the next yield.

        The caller must look in the write caches first, without a yield before this call.
        """
        found = self._ledgers.get(ledger_id)
        return _NOTHING if found is None else found.entries

    def loading(self, ledger_id: LedgerId) -> Load | None:
        """Return the running load of a ledger, or None."""
        return self._loads.get(ledger_id)

    def begin(self, ledger_id: LedgerId, first: EntryId) -> Load:
        """Begin a load, before reading the index. ``end`` must always follow. A ledger has one load at a time."""
        assert ledger_id not in self._loads, "a load of this ledger is running"
        load = self._loads[ledger_id] = Load(ledger_id, first)
        return load

    def end(self, load: Load, entries: dict[EntryId, bytes]) -> None:
        """End a load, and add the verified entries that it found: none if it failed."""
        self._loads.pop(load.ledger_id)
        load.done.set()
        loaded = sum(map(len, entries.values()))
        self.read_ahead_bytes += loaded
        size = loaded + len(entries) * ENTRY_OVERHEAD_BYTES
        if not entries or not load.is_valid or self._is_closed or size > self._bytes_max:
            return
        block = _Block(load.ledger_id, list(entries), size)
        ledger = self._ledgers.setdefault(load.ledger_id, _Ledger())
        ledger.entries.update(entries)
        ledger.blocks.append(block)
        self._blocks[block] = None
        self.size += size
        while self.size > self._bytes_max:
            self._evict(next(iter(self._blocks)))

    def forget(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Remove the entries of ledgers, and invalidate their running loads."""
        for ledger_id in ledger_ids:
            if (load := self._loads.get(ledger_id)) is not None:
                load.is_valid = False
            if (ledger := self._ledgers.pop(ledger_id, None)) is not None:
                for block in ledger.blocks:
                    del self._blocks[block]
                    self.size -= block.size

    def close(self) -> None:
        """Remove everything, and accept no more entries."""
        self._is_closed = True
        self.forget([*self._ledgers, *self._loads])

    @property
    def is_unused(self) -> bool:
        """Whether the cache is empty and no load is running."""
        return not self._ledgers and not self._loads

    def _evict(self, block: _Block) -> None:
        """Remove a block and all its entries, including those that a later block also has."""
        del self._blocks[block]
        self.size -= block.size
        ledger = self._ledgers[block.ledger_id]
        ledger.blocks.remove(block)
        if not ledger.blocks:
            del self._ledgers[block.ledger_id]
            return
        for entry_id in block.entry_ids:
            ledger.entries.pop(entry_id, None)


class WatchedIndex:
    """An ``EntryIndex`` whose writes invalidate the entries of a read cache (R106)."""

    def __init__(self, index: EntryIndex, cache: ReadCache) -> None:
        self.changes = RunningChanges()
        """The running writes."""
        self._index = index
        self._write = index.write
        self._cache = cache
        self.get_many = index.get_many
        self.get_cached = index.get_cached
        self.range = index.range
        self.keys = index.keys
        self.last = index.last
        self.reopen = index.reopen
        self.close = index.close

    @property
    def needs_reopen(self) -> bool:
        """Whether every write fails until ``reopen``, as ``EntryIndex.needs_reopen``."""
        return self._index.needs_reopen

    async def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        """Apply changes as ``EntryIndex.write`` does. Their ledgers leave the cache, even if the write fails."""
        try:
            with self.changes.one():
                await self._write(puts, deletes)
        except asyncio.CancelledError:
            if ledger_ids_of(_keys(puts, deletes)):
                self._cache.close()  # the write may still happen at any later moment
            raise
        finally:
            if not self._cache.is_unused:
                self._cache.forget(ledger_ids_of(_keys(puts, deletes)))


def _keys(puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> Iterator[bytes]:
    yield from (key for key, _ in puts)
    yield from deletes
