"""Bounds of the storage core. Sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

READ_CACHE_BYTES: Final = 32 << 20
"""Default size of the read cache: sixteen times the size of one read-ahead."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The limits of one store. The defaults suit a bookie with a few hundred megabytes of memory to spare."""

    journal_batch_bytes: int = 4 << 20
    """Largest group commit: large enough to amortise the sync, small enough to delay the next waiting group by at most
    a few milliseconds."""
    journal_file_bytes: int = 64 << 20
    """Size at which a journal file is closed; space is freed file by file."""
    journal_reserve_bytes: int = 0
    """Space that the journal reserves after its end, so that a sync seldom writes more than the batch; 0: none. Do not
    use it on ext4, where it caused the loss of an acknowledged batch
    (docs/decisions/0106-journals-reserve-no-space-by-default.md)."""
    journal_queue_bytes_max: int = 64 << 20
    """The most bytes of records that wait for the disk; further requests are answered with TOO_MANY_REQUESTS."""
    journal_mark_after_s: float = 1.0
    """Time after a batch within which the durable end of the journal is recorded outside of it."""
    cache_bytes_max: int = 64 << 20
    """Size at which a write cache is flushed. During a flush there are two caches."""
    read_cache_bytes_max: int = READ_CACHE_BYTES
    """Size of the read cache, with 256 bytes for each entry; 0: no read-ahead. Only sequential reads fill it."""
    read_ahead_bytes: int = 2 << 20
    """The most bytes of one read-ahead: large enough for the full speed of a disk."""
    read_ahead_entries: int = 1000
    """The most entries of one read-ahead. They are verified without a pause, which takes about a millisecond."""
    flush_page_bytes: int = 1 << 20
    """Size of one write to an entry log. A flush yields to other work between pages, so a page must take only about a
    millisecond."""
    flush_page_entries: int = 1000
    flush_sync_bytes: int = 4 << 20
    """Bytes after which an entry log is synced and the index is written: large enough that a flush needs few syncs,
    which compete with the journal's if both use one disk, and small enough that no sync delays the journal for long."""
    flush_sync_entries: int = 4000
    entry_log_bytes: int = 128 << 20
    """Size at which an entry log is ended, checked after each of its syncs. A flush usually fills less, but after a
    start with a full ledger disk it may contain many caches. A log is compacted as a whole, so its size bounds the
    space that compaction needs."""
    flush_retry_s: float = 5.0
    """Pause before a flush is retried after the disk was full."""
    ledgers_in_memory: int = 100_000
    """The most unused ledger states kept in memory."""
    open_logs: int = 256
    """The most entry log files kept open for reading."""
    list_page_keys: int = 10_000
    """The number of index keys read at a time for the list of a ledger's entries."""
    delete_page_keys: int = 4000
    """The number of index entries deleted at a time when a ledger is collected. Checkpoints wait for one such page."""
    compact_below: float = 0.5
    """Share of live bytes below which an entry log is compacted: at worst, one byte is copied for each freed byte."""
    compact_bytes_per_s: int = 50 << 20
    """Speed at which compaction reads entry logs: a fraction of a disk's speed, so it hardly slows down requests."""
