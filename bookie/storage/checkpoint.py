"""Checkpoints, which move data from the journal into the entry logs and the index.

The order of the steps makes this safe (docs/failure-model.md#collection-and-checkpoints). A crash between any two steps
loses nothing, because the journal is replayed from the last mark and storing an entry twice has no effect:

1. swap the caches and read, without yielding, the matching sequence of each journal and the changed ledger states;
2. page by page: make the entry log durable, then write the index entries that refer to it;
3. in one atomic index write: the ledger states, and the mark with their number (a replay counts only ledgers without
   a state in the index, so states written before the mark would never be counted);
4. drop the flushed cache; only now may journal files be deleted (the caller trims the journal).

A flush that fails because the disk is full stays pending. The next attempt continues in a new file, after the entries
that are already in the index. The bytes that the failed attempt wrote after these entries are counted as dead in the
last step (``bookie.storage.entry_logs.log_ends``).

If one of several ledger directories is full, the flush continues in another one at once. If a directory fails, all
entries of the flush are written again to the other directories, because the entries written to the failed one may be
lost. The journal keeps them until the last step (R114).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.fault_points import fault_point
from bookie.storage.disks.index_format import EPOCHS_KEY, MARK_KEY, CheckpointMark, pack_entry_key, pack_epochs
from bookie.storage.entry_logs.dead_bytes import increased, superseded
from bookie.storage.entry_logs.entry_log import HEADER_SIZE, EntryLogs, EntryLogWriter
from bookie.storage.entry_logs.log_ends import end_keys, log_end_put, read_log_end
from bookie.storage.ledger_state import ChangedStates, LedgerStates
from bookie.storage.port import DirectoryFailedError, DirectoryFullError, DiskFullError, EntryIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.write_cache import CachedEntry, Caches, WriteCache

_DIRECTORIES_TRIED_MAX: Final = 64
"""The most full or failing directories that one attempt of a flush skips; no bookie has as many."""

_Item = tuple[LedgerId, EntryId, CachedEntry]


@dataclass(slots=True)
class _Flush:
    """The work of one checkpoint.

    ``named``: how many of the entries, in order, are already in the index. ``log_id``: the last log to which the index
    may refer. ``complete``: the logs that were written completely. ``cut_off``: the file sizes of the logs that a full
    disk cut off and to which the index may refer. ``failed``: other logs that a full disk cut off.
    """

    sequences: tuple[int, ...]
    ledger_count: int
    states: ChangedStates = field(repr=False)
    named: int = 0
    log_id: int = 0
    complete: list[int] = field(default_factory=list)
    cut_off: dict[int, int] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Checkpointer:
    """The checkpoints of one store, one at a time.

    Attributes:
        mark: the last mark in the index.
        on_flushed: called after each checkpoint, when the flushed cache has been dropped.
        journal_epochs: returns the epoch in the durable mark of each journal; None: they are not recorded.
    """

    caches: Caches
    states: LedgerStates
    logs: EntryLogs
    index: EntryIndex
    settings: StorageSettings
    mark: CheckpointMark
    on_flushed: Callable[[], None] | None = None
    journal_epochs: Callable[[], Sequence[int]] | None = None
    _pending: _Flush | None = None
    _running: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, durable_sequences: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        """Checkpoint at least everything that is durable now, and return the covered sequence of each journal.

        Raises:
            DiskFullError: not done; nothing is lost, and the caller may try again.
            DiskError: any other failure.
        """
        async with self._running:
            if self._pending is not None:
                await self._finish(self._pending)
            self._pending = self._begin(durable_sequences())
            return await self._finish(self._pending)

    def exclusive(self) -> asyncio.Lock:
        """Return the lock to hold while changing an entry's index record; no checkpoint runs while it is held."""
        return self._running

    def drop(self, ledger_id: LedgerId) -> None:
        """Drop the entries of a ledger that are not in the index yet. The caller must hold ``exclusive``."""
        self.caches.active.drop(ledger_id)
        if self._pending is not None and self.caches.flushing is not None:
            self._pending.named -= self.caches.flushing.drop(ledger_id, self._pending.named)

    async def settled(self) -> None:
        """Wait until no checkpoint is running."""
        async with self._running:
            return

    def _begin(self, sequences: tuple[int, ...]) -> _Flush:
        self.caches.swap()
        return _Flush(sequences, self.states.count, self.states.take_changed())

    async def _finish(self, flush: _Flush) -> tuple[int, ...]:
        assert self.caches.flushing is not None
        if flush.sequences != self.mark.sequences or flush.states:
            await self._write_to_usable_directory(flush, self.caches.flushing)
            mark = CheckpointMark(flush.sequences, self.logs.next_id, flush.ledger_count)
            puts, deletes = await self._counted(flush)
            puts += [*await _state_pairs(flush.states), (MARK_KEY, mark.encode())]
            if self.journal_epochs is not None:
                puts.append((EPOCHS_KEY, pack_epochs(self.journal_epochs())))
            await self.index.write(puts, deletes)
            self.mark = mark
            self.states.saved()
        self.caches.flushing, self._pending = None, None
        if self.on_flushed is not None:
            self.on_flushed()
        return flush.sequences

    async def _write_to_usable_directory(self, flush: _Flush, cache: WriteCache) -> None:
        """Write the entries to logs; if a directory is full or fails, use another directory."""
        for _ in range(_DIRECTORIES_TRIED_MAX):
            try:
                await self._write_entries(flush, cache)
            except DirectoryFullError:
                continue
            except DirectoryFailedError:
                flush.named = 0
                continue
            return
        raise DiskFullError("no ledger directory has space for the entries: free space in one of them")

    async def _write_entries(self, flush: _Flush, cache: WriteCache) -> None:
        log: EntryLogWriter | None = None
        puts: list[tuple[bytes, bytes]] = []
        try:
            for page in self._pages(islice(cache.ordered(), flush.named, None)):
                log = log or await self._create(flush)
                puts += await _append_page(log, page)
                if (
                    len(puts) >= self.settings.flush_sync_entries
                    or log.unsynced_bytes >= self.settings.flush_sync_bytes
                ):
                    await self._index_entries(flush, log, puts)
                    puts = []
                    if log.size >= self.settings.entry_log_bytes:
                        flush.complete.append(log.log_id)
                        ended, log = log, None
                        await ended.file.close()
            if log is not None and puts:
                await self._index_entries(flush, log, puts)
            if log is not None:
                flush.complete.append(log.log_id)
        except DiskFullError:
            if log is not None and log.log_id == flush.log_id:
                flush.cut_off[log.log_id] = await log.file.size()
            elif log is not None:
                flush.failed.append(log.log_id)
                await self.logs.discard(log)  # otherwise failed attempts would fill the disk
            raise
        finally:
            if log is not None:
                await log.file.close()

    async def _create(self, flush: _Flush) -> EntryLogWriter:
        log_id = self.logs.take_id()
        await self.index.write([log_end_put(log_id, HEADER_SIZE)])
        try:
            return await self.logs.create(log_id)
        except DiskFullError:
            flush.failed.append(log_id)
            raise

    async def _index_entries(self, flush: _Flush, log: EntryLogWriter, puts: list[tuple[bytes, bytes]]) -> None:
        """Make the log durable, then write the index entries that refer to it. Count replaced entries as dead."""
        await log.sync()
        flush.log_id = log.log_id
        dead = await superseded(self.index, puts)
        more = await increased(self.index, dead) if dead else []
        await self.index.write([*puts, *more, log_end_put(log.log_id, log.size)])
        flush.named += len(puts)

    async def _counted(self, flush: _Flush) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Return the index records to write and to delete when all logs of a flush have ended."""
        puts: list[tuple[bytes, bytes]] = []
        dead: dict[int, int] = {}
        for log_id, size in flush.cut_off.items():
            if (end := await read_log_end(self.index, log_id)) is not None:
                dead[log_id] = size - end.offset
                puts.append(log_end_put(log_id, end.offset, is_counted=True))
        if dead:
            puts += await increased(self.index, dead)
        present = set(await self.logs.present()) if flush.failed else set()
        return puts, end_keys([*flush.complete, *(log_id for log_id in flush.failed if log_id not in present)])

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


async def _state_pairs(states: ChangedStates) -> list[tuple[bytes, bytes]]:
    """Return the index pairs of states. Yield to other tasks between the parts of a long list."""
    pairs: list[tuple[bytes, bytes]] = []
    for part in states.parts():
        if pairs:
            await asyncio.sleep(0)
        pairs += part
    return pairs


async def _append_page(log: EntryLogWriter, page: list[_Item]) -> list[tuple[bytes, bytes]]:
    """Append entries to the log and return their index pairs."""
    keys = [pack_entry_key(ledger_id, entry_id) for ledger_id, entry_id, _ in page]
    return list(zip(keys, await log.append([(entry.data, entry.crc) for _, _, entry in page]), strict=True))
