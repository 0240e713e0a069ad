"""Bounds of the storage core. Sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """What the store may use. The defaults suit a bookie with a few hundred megabytes to spare."""

    journal_batch_bytes: int = 4 << 20
    """One group commit takes queued records up to this size; large enough that one sync is amortised, small enough
    that it does not delay the next waiting group by more than a few milliseconds."""
    journal_file_bytes: int = 64 << 20
    """A journal file is closed once it holds this much; space is given back file by file."""
    journal_queue_bytes_max: int = 64 << 20
    """Records waiting for the disk; beyond it callers are answered TOO_MANY_REQUESTS."""
    cache_bytes_max: int = 64 << 20
    """A write cache is flushed when it holds this much. Two exist while one is being flushed."""
    flush_page_bytes: int = 1 << 20
    """One write to an entry log; also the unit in which a flush gives way to other work, so a page must stay in the
    order of a millisecond."""
    flush_page_entries: int = 1000
    flush_sync_bytes: int = 4 << 20
    """One sync of an entry log and the index write after it: large enough that a flush costs the journal's disk few
    syncs, small enough that none of them holds the journal up for long."""
    flush_sync_entries: int = 4000
    flush_retry_s: float = 5.0
    """Pause before a flush that met a full disk is tried again."""
    ledgers_in_memory: int = 100_000
    """Ledger states kept in memory without a user."""
    open_logs: int = 256
    """Entry log files kept open for reading."""
    list_page_keys: int = 10_000
    """Index keys fetched at a time when a ledger is listed."""
    delete_page_keys: int = 4000
    """Index entries deleted at a time when a ledger is collected; checkpoints wait for one such page."""
    compact_below: float = 0.5
    """An entry log is compacted when less than this part of it is live: at worst each live byte is copied once for
    each byte that is given back."""
    compact_bytes_per_s: int = 50 << 20
    """How fast entry logs are read for that: a fraction of what a disk gives, so that requests hardly notice."""
