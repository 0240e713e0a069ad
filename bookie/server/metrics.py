"""The metrics of a bookie process, and the code that updates them.

Requests are counted when they are answered, once per batch and never per entry. ``Sampler`` periodically queries disks
and limbo, so that a scrape never waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from bookie.model.errors import BkhealError
from bookie.runtime.clock import Clock
from bookie.runtime.telemetry.metric_definitions import REQUEST_BUCKETS_S, SYNC_BUCKETS_S, Definition, MetricType
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.storage.port import Disk
from bookie.storage.store import LedgerStorage
from bookie.wire.port import Request, Status
from bookie.wire.requests import Copy, Fence, Info, ListEntries, Read, ReadLac, ReadLast, WaitLac, WriteLac

_log = logging.getLogger(__name__)

COMPONENT: Final = "bookie"

ADD: Final = "add"
OPERATION_OF: Final[Mapping[type[Request[Any]], str]] = {
    Read: "read",
    ReadLast: "read_last",
    Fence: "fence",
    ReadLac: "read_lac",
    WaitLac: "wait_lac",
    WriteLac: "write_lac",
    ListEntries: "list_entries",
    Copy: "copy",
    Info: "info",
}
OPERATIONS: Final = (ADD, *OPERATION_OF.values())
CANCELLED: Final = "cancelled"
"""The status if the caller was cancelled before the answer."""
STATUSES: Final = (*(status.name.lower() for status in Status if status < 100), CANCELLED)
DISKS: Final = ("journal", "ledgers")

REGISTERED: Final = "bkheal_bookie_registered"
WRITABLE: Final = "bkheal_bookie_writable"
REQUESTS: Final = "bkheal_bookie_requests_total"
REQUEST_DURATION: Final = "bkheal_bookie_request_duration_seconds"
ADDED_ENTRIES: Final = "bkheal_bookie_added_entries_total"
ADDED_BYTES: Final = "bkheal_bookie_added_bytes_total"
READ_ENTRIES: Final = "bkheal_bookie_read_entries_total"
READ_BYTES: Final = "bkheal_bookie_read_bytes_total"
DISK_TOTAL: Final = "bkheal_bookie_disk_total_bytes"
DISK_FREE: Final = "bkheal_bookie_disk_free_bytes"
OUT_OF_USE: Final = "bkheal_bookie_directories_out_of_use"
LEDGERS: Final = "bkheal_bookie_ledgers"
LIMBO: Final = "bkheal_bookie_limbo_ledgers"
COLLECTED: Final = "bkheal_bookie_collected_ledgers_total"
COLLECTION_HELD: Final = "bkheal_bookie_collection_held_ledgers"
COLLECTION_FREED: Final = "bkheal_bookie_compaction_freed_bytes_total"
COLLECTION_COPIED: Final = "bkheal_bookie_compaction_copied_bytes_total"
COLLECTION_STOPPED: Final = "bkheal_bookie_collections_stopped_total"
COLLECTION_FINISHED: Final = "bkheal_bookie_collection_finished_timestamp_seconds"
ADDS_WAITING: Final = "bkheal_bookie_adds_waiting_bytes"
JOURNAL_WAITING: Final = "bkheal_bookie_journal_waiting_bytes"
WRITE_CACHE: Final = "bkheal_bookie_write_cache_bytes"
READS_RUNNING: Final = "bkheal_bookie_reads_running"
READS_WAITING: Final = "bkheal_bookie_reads_waiting"
UNSENT: Final = "bkheal_bookie_unsent_bytes"
ADD_BATCH: Final = "bkheal_bookie_add_batch_entries"
JOURNAL_BATCH: Final = "bkheal_bookie_journal_batch_bytes"
SCRUBBED_ENTRIES: Final = "bkheal_bookie_scrubbed_entries_total"
SCRUBBED_BYTES: Final = "bkheal_bookie_scrubbed_bytes_total"
DAMAGED: Final = "bkheal_bookie_damaged_entries"
REPLACED: Final = "bkheal_bookie_replaced_entries_total"
SCRUB_FINISHED: Final = "bkheal_bookie_scrub_finished_timestamp_seconds"
POLLS_REFUSED: Final = "bkheal_bookie_polls_refused_total"
CACHE_HITS: Final = "bkheal_bookie_read_cache_hits_total"
CACHE_MISSES: Final = "bkheal_bookie_read_cache_misses_total"
READ_AHEAD_BYTES: Final = "bkheal_bookie_read_ahead_bytes_total"
SYNC_DURATION: Final = "bkheal_bookie_journal_sync_duration_seconds"

BATCH_BUCKETS: Final = (1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0)
JOURNAL_BATCH_BUCKETS: Final = tuple(float(1 << power) for power in range(10, 23, 2))
"""From 1 KiB to 4 MiB, the size of the largest batch."""

_COUNTER, _GAUGE, _HISTOGRAM = MetricType.COUNTER, MetricType.GAUGE, MetricType.HISTOGRAM
_BY_OPERATION: Final[Mapping[str, tuple[str, ...]]] = {"operation": OPERATIONS}
_BY_DISK: Final[Mapping[str, tuple[str, ...]]] = {"disk": DISKS}

BOOKIE: Final = (
    Definition(
        REGISTERED,
        _GAUGE,
        "Whether clients can find this bookie in ZooKeeper (1) or not (0)",
        watch="it is 0 for longer than a restart takes",
    ),
    Definition(
        WRITABLE,
        _GAUGE,
        "Whether this bookie is registered and takes new data (1), or is read-only or not registered (0)",
        watch="it is 0 while registered is 1: a disk is nearly full, or the bookie is being drained",
    ),
    Definition(
        REQUESTS,
        _COUNTER,
        "Requests answered; a batch of adds is one request, cancelled means that the caller did not wait",
        {"operation": OPERATIONS, "status": STATUSES},
        watch="io_error or corrupt increase; too_many_requests is a large part",
    ),
    Definition(
        REQUEST_DURATION,
        _HISTOGRAM,
        "Time to answer a request, with the wait of an add for the ledger disk; wait_lac is a long poll and takes "
        "as long as the caller requested",
        _BY_OPERATION,
        REQUEST_BUCKETS_S,
        watch="the 99th percentile of add grows",
    ),
    Definition(ADDED_ENTRIES, _COUNTER, "Entries stored durably for callers that waited for the answer"),
    Definition(ADDED_BYTES, _COUNTER, "Bytes of those entries, with headers and digests"),
    Definition(READ_ENTRIES, _COUNTER, "Entries sent in answers to read and read_last"),
    Definition(READ_BYTES, _COUNTER, "Bytes of those entries, with headers and digests"),
    Definition(CACHE_HITS, _COUNTER, "Entries that were read from the read cache, because they had been read ahead"),
    Definition(CACHE_MISSES, _COUNTER, "Entries that were in no cache when they were requested"),
    Definition(READ_AHEAD_BYTES, _COUNTER, "Bytes of the entries that were read ahead, with headers and digests"),
    Definition(
        DISK_TOTAL, _GAUGE, "Size of the device that holds the directory, or of all directories in use", _BY_DISK
    ),
    Definition(
        DISK_FREE,
        _GAUGE,
        "Free space on that device, or on all of them",
        _BY_DISK,
        watch="the trend reaches the read-only threshold",
    ),
    Definition(
        OUT_OF_USE,
        _GAUGE,
        "Ledger directories, of several, that failed or were missing at the start; the bookie continues without them",
        watch="it is above 0: `bkheal bookie status --at` names the directory, and the *replicas* check finds what it "
        "held",
    ),
    Definition(LEDGERS, _GAUGE, "Ledgers that this bookie knows, by an entry, a fence or limbo"),
    Definition(
        LIMBO,
        _GAUGE,
        "Ledgers of which earlier disks may have held more than is here; repair copies it again",
        watch="it does not shrink for hours while replicators run",
    ),
    Definition(
        COLLECTED,
        _COUNTER,
        "Ledgers whose entries were garbage-collected on this bookie",
        watch="it grows although no client deletes ledgers",
    ),
    Definition(
        COLLECTION_HELD,
        _GAUGE,
        "Ledgers that the last garbage collection kept because they were implausibly many; 0 if it kept none for this",
        watch="it is above 0: see `bkheal collection list`; the space of deleted ledgers is not given back",
    ),
    Definition(COLLECTION_FREED, _COUNTER, "Bytes of entry logs that compaction removed"),
    Definition(
        COLLECTION_COPIED,
        _COUNTER,
        "Bytes of live entries that compaction copied before it removed their entry logs",
        watch="it grows faster than the freed bytes: the disk is kept busy for little space",
    ),
    Definition(
        COLLECTION_STOPPED,
        _COUNTER,
        "Garbage collections that ended early, or whose compaction failed; the log has the reason",
        watch="it increases at each collection",
    ),
    Definition(COLLECTION_FINISHED, _GAUGE, "When the last garbage collection ended; 0: none has ended"),
    Definition(
        ADDS_WAITING,
        _GAUGE,
        "Bytes of entries in adds that are not answered yet; at 256 MiB further adds are refused",
        watch="it stays near the limit: clients send more than the journal's disk can store",
    ),
    Definition(JOURNAL_WAITING, _GAUGE, "Bytes of records that wait for a write to the journal's disk"),
    Definition(
        WRITE_CACHE,
        _GAUGE,
        "Bytes of entries in memory that are in the journal and not in the entry logs yet, with their overhead",
        watch="it stays above 64 MiB: the ledger disk cannot keep up with the journal",
    ),
    Definition(READS_RUNNING, _GAUGE, "Reads and lists that are with the storage; at most 32"),
    Definition(
        READS_WAITING,
        _GAUGE,
        "Reads and lists that wait for one of these places",
        watch="it is above 0 for minutes: the ledger disk is slow, or clients read more than it can serve",
    ),
    Definition(
        POLLS_REFUSED,
        _COUNTER,
        "Long polls for the last add confirmed that were answered at once, because 128 of them waited",
        watch="it grows all the time: more readers follow open ledgers here than can wait, and ask every 0.5 s instead",
    ),
    Definition(
        UNSENT,
        _GAUGE,
        "Bytes of answers on the gRPC port that clients did not take yet; at 256 MiB further reads are refused",
    ),
    Definition(ADD_BATCH, _HISTOGRAM, "Entries in one batch of adds", buckets=BATCH_BUCKETS),
    Definition(
        JOURNAL_BATCH,
        _HISTOGRAM,
        "Bytes of one group commit of the journal; batches grow with the load, and share the time of a sync",
        buckets=JOURNAL_BATCH_BUCKETS,
    ),
    Definition(SCRUBBED_ENTRIES, _COUNTER, "Stored entries that background scrubs have verified"),
    Definition(SCRUBBED_BYTES, _COUNTER, "Bytes of those entries, with headers and digests"),
    Definition(
        DAMAGED,
        _GAUGE,
        "Damaged entries that are known, by a scrub or a read, and were not replaced yet",
        watch="it is above 0 for longer than an audit of the replicas and a repair take; `bkheal bookie scrub --at` "
        "lists the entries, and other copies are read instead",
    ),
    Definition(REPLACED, _COUNTER, "Damaged entries that the scrub replaced by copies of other bookies"),
    Definition(SCRUB_FINISHED, _GAUGE, "When the last pass of the scrub ended; 0: none has ended"),
    Definition(
        SYNC_DURATION,
        _HISTOGRAM,
        "Time of one group commit of the journal: write and sync",
        buckets=SYNC_BUCKETS_S,
        watch="the 99th percentile grows: the disk under every add is slow",
    ),
)
"""The metrics of a bookie, in addition to those of every process."""

SAMPLE_INTERVAL_S: Final = 10.0
"""Interval between two checks of the disks."""
LIMBO_INTERVAL_S: Final = 60.0
"""Interval between two counts of the ledgers in limbo. Each reads the states of all ledgers; only needed after a lost
disk."""
_LIMBO_PAGE: Final = 1000


def bookie_metrics(version: str) -> MetricSet:
    """Return the metrics of one bookie process, all of them 0."""
    return MetricSet(COMPONENT, version, BOOKIE)


class Counted:
    """A counter that follows a total which is maintained elsewhere."""

    def __init__(self, increase: Callable[[float], None]) -> None:
        self._increase = increase
        self._total = 0

    def raise_to(self, total: int) -> None:
        """Increase the counter to a total, which never falls."""
        self._increase(total - self._total)
        self._total = total


class Sampler:
    """The periodic query of values that are not available as attributes."""

    def __init__(
        self,
        metrics: MetricSet,
        disks: Mapping[str, Disk],
        storage: LedgerStorage,
        clock: Clock,
        *,
        polls_refused: Callable[[], int] = lambda: 0,
    ) -> None:
        """Prepare the gauges. ``disks`` has each of ``DISKS``, and ``journal-2`` and so on for more journals.

        If there are several journals, the gauges show the one with the least free space.
        """
        by_name: dict[str, list[Disk]] = {}
        for role, disk in disks.items():
            by_name.setdefault(role.partition("-")[0], []).append(disk)
        self._disks = [
            (those, metrics.gauge(DISK_TOTAL, disk=name), metrics.gauge(DISK_FREE, disk=name))
            for name, those in by_name.items()
        ]
        self._limbo = metrics.gauge(LIMBO)
        cache = storage.read_cache
        self._counted: list[tuple[Callable[[], int], Counted]] = [
            (polls_refused, Counted(metrics.counter(POLLS_REFUSED).inc)),
            (lambda: cache.hits, Counted(metrics.counter(CACHE_HITS).inc)),
            (lambda: cache.misses, Counted(metrics.counter(CACHE_MISSES).inc)),
            (lambda: cache.read_ahead_bytes, Counted(metrics.counter(READ_AHEAD_BYTES).inc)),
        ]
        self._storage = storage
        self._clock = clock
        self._count_again_s: float | None = clock.monotonic_s()

    async def run(self) -> None:
        """Update the metrics periodically until cancelled."""
        while True:
            await self.update()
            await self._clock.sleep(SAMPLE_INTERVAL_S)

    async def update(self) -> None:
        """Update the metrics once. If a disk does not answer, its last values stay; requests show the problem."""
        for total_of, counted in self._counted:
            counted.raise_to(total_of())
        try:
            for disks, total, free in self._disks:
                total_bytes, free_bytes = min([await disk.space() for disk in disks], key=lambda space: space[1])
                total.set(total_bytes)
                free.set(free_bytes)
            if self._count_again_s is not None and self._count_again_s <= self._clock.monotonic_s():
                await self._count_limbo()
        except BkhealError as error:
            _log.debug("a disk could not be checked", extra={"error": str(error)})

    async def _count_limbo(self) -> None:
        """Count the ledgers in limbo. A serving bookie never adds any, so counting stops when none are left."""
        count, after = 0, -1
        while page := await self._storage.limbo_ids(after, _LIMBO_PAGE):
            count, after = count + len(page), page[-1]
            await self._clock.sleep(0)
        self._limbo.set(count)
        self._count_again_s = self._clock.monotonic_s() + LIMBO_INTERVAL_S if count else None
