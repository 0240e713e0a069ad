"""Moving what the journal holds into the entry logs and the index.

The order is the safety argument (docs/failure-model.md#collection-and-checkpoints); a crash between any two steps loses
nothing, because the journal is replayed from the last mark and putting an entry twice changes nothing:

1. swap the caches and take, in the same instant, the journal sequence and the changed ledger states they stand for;
2. page by page: entry log durable, then the index entries that name it;
3. in one atomic index write: ledger states and the mark;
4. drop the flushed cache; only now may journal files go (the caller trims).

A flush that fails on a full disk is kept, and continued in a new file after the entries in the index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.fault_points import fault_point
from bookie.storage.disks.index_format import MARK_KEY, CheckpointMark, pack_entry_key
from bookie.storage.entry_logs.entry_log import EntryLogs, EntryLogWriter
from bookie.storage.ledger_state import LedgerStates
from bookie.storage.port import DiskFullError, EntryIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.write_cache import CachedEntry, Caches, WriteCache

_Item = tuple[LedgerId, EntryId, CachedEntry]


@dataclass(slots=True)
class _Flush:
    """What one checkpoint has to make durable.

    ``named``: how many entries, in order, the index names already. ``log_id``: the last log that it may name.
    """

    sequence: int
    ledger_count: int
    states: list[tuple[bytes, bytes]] = field(repr=False)
    named: int = 0
    log_id: int = 0


@dataclass(slots=True)
class Checkpointer:
    """Checkpoints of one store, one at a time.

    Attributes:
        mark: the last one in the index.
    """

    caches: Caches
    states: LedgerStates
    logs: EntryLogs
    index: EntryIndex
    settings: StorageSettings
    mark: CheckpointMark
    _pending: _Flush | None = None
    _running: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, durable_sequence: Callable[[], int]) -> int:
        """Make a checkpoint of everything durable at the call or later, and return the sequence it covers.

        Raises:
            DiskFullError: not done; nothing is lost and it can be called again.
            DiskError: any other failure.
        """
        async with self._running:
            if self._pending is not None:
                await self._finish(self._pending)
            self._pending = self._begin(durable_sequence())
            return await self._finish(self._pending)

    def exclusive(self) -> asyncio.Lock:
        """To hold during a change of an entry's index record: no checkpoint runs at the same time."""
        return self._running

    def drop(self, ledger_id: LedgerId) -> None:
        """Forget a ledger's entries that are not in the index yet. To be called under ``exclusive``."""
        self.caches.active.drop(ledger_id)
        if self._pending is not None and self.caches.flushing is not None:
            self._pending.named -= self.caches.flushing.drop(ledger_id, self._pending.named)

    async def settled(self) -> None:
        """Wait until no checkpoint is running."""
        async with self._running:
            return

    def _begin(self, sequence: int) -> _Flush:
        self.caches.swap()
        return _Flush(sequence, self.states.count, self.states.take_changed())

    async def _finish(self, flush: _Flush) -> int:
        assert self.caches.flushing is not None
        if flush.sequence > self.mark.sequence or flush.states:
            await self._write_entries(flush, self.caches.flushing)
            mark = CheckpointMark(flush.sequence, self.logs.next_id, flush.ledger_count)
            await self.index.write([*flush.states, (MARK_KEY, mark.encode())])
            self.mark = mark
            self.states.saved()
        self.caches.flushing, self._pending = None, None
        return flush.sequence

    async def _write_entries(self, flush: _Flush, cache: WriteCache) -> None:
        log: EntryLogWriter | None = None
        puts: list[tuple[bytes, bytes]] = []
        try:
            for page in self._pages(islice(cache.ordered(), flush.named, None)):
                log = log or await self.logs.create()
                puts += await _append_page(log, page)
                if (
                    len(puts) >= self.settings.flush_sync_entries
                    or log.unsynced_bytes >= self.settings.flush_sync_bytes
                ):
                    await self._name_entries(flush, log, puts)
                    puts = []
            if log is not None and puts:
                await self._name_entries(flush, log, puts)
        except DiskFullError:
            if log is not None and log.log_id != flush.log_id:
                await self.logs.discard(log)  # or the attempts would add up and leave no space for any
            raise
        finally:
            if log is not None:
                await log.file.close()

    async def _name_entries(self, flush: _Flush, log: EntryLogWriter, puts: list[tuple[bytes, bytes]]) -> None:
        """The index names an entry only after the log that holds it is durable."""
        await log.sync()
        flush.log_id = log.log_id
        await self.index.write(puts)
        flush.named += len(puts)

    def _pages(self, items: Iterable[_Item]) -> Iterator[list[_Item]]:
        page, size = [], 0
        for item in items:
            page.append(item)
            size += len(item[2].data)
            is_full = size >= self.settings.flush_page_bytes or len(page) >= self.settings.flush_page_entries
            if is_full or fault_point("checkpoint.tiny_page"):
                yield page
                page, size = [], 0
        if page:
            yield page


async def _append_page(log: EntryLogWriter, page: list[_Item]) -> list[tuple[bytes, bytes]]:
    """Append entries and return the index pairs that name them."""
    keys = [pack_entry_key(ledger_id, entry_id) for ledger_id, entry_id, _ in page]
    return list(zip(keys, await log.append([(entry.data, entry.crc) for _, _, entry in page]), strict=True))
