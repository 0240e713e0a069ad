"""A bookie counts its answers, measures its syncs, and reports the space on its disks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.runtime.clock import SystemClock
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.server import metrics as names
from bookie.server.collection_figures import record_collection
from bookie.server.copying import Copying
from bookie.server.measured import MeasuredService, TimedDisk
from bookie.server.metrics import Sampler, bookie_metrics
from bookie.server.service import BookieIdentity, BookieService
from bookie.server.upkeep.collector import CollectorReport
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation, yield_control
from bookie.storage.entry_logs.compaction import CompactionResult
from bookie.storage.port import DiskError
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.memory import MemoryNetwork, MemoryTransport
from bookie.wire.port import AddBatch, Status
from bookie.wire.requests import Copy, Fence, Info, ListEntries, Read, ReadLac, ReadLast, WaitLac, WriteLac
from bookie.wire.resolver import BookieAddress
from tests.deadlines import STATE_S
from tests.worlds.clocks import VirtualClock
from tests.worlds.entries import packed_entry
from tests.worlds.virtual_time import in_virtual_time

LEDGER = LedgerId(3)
KEY = b"key"


def entry(entry_id: int) -> bytes:
    return packed_entry(LEDGER, entry_id, bytes(10))


class Bookie:
    def __init__(self, metrics: MetricSet, storage: LedgerStorage, journal: MemoryDisk, ledgers: MemoryDisk) -> None:
        self.metrics, self.storage, self.journal, self.ledgers = metrics, storage, journal, ledgers
        network = MemoryNetwork()
        copying = Copying(MemoryTransport(self, network), SystemClock())
        self.plain = BookieService(storage, ledgers, BookieIdentity("uuid", "1"), copying=copying)
        network.listen("here", 1, self.plain)
        self.service = MeasuredService(self.plain, metrics, SystemClock())

    async def resolve(self, bookie: BookieId) -> BookieAddress:
        return BookieAddress("here", 1)

    def value(self, name: str, **labels: str) -> float:
        found = self.metrics.registry.get_sample_value(name, labels)
        assert found is not None, (name, labels)
        return found

    def answered(self, operation: str, status: str) -> float:
        return self.value(names.REQUESTS, operation=operation, status=status)


@pytest.fixture
async def bookie() -> AsyncIterator[Bookie]:
    metrics, journal, ledgers = bookie_metrics("1"), MemoryDisk(), MemoryDisk()
    timed = TimedDisk(journal, metrics, SystemClock())
    storage = await LedgerStorage.open(timed, ledgers, MemoryIndex(), StorageSettings(), SystemClock())
    yield Bookie(metrics, storage, journal, ledgers)
    journal.before = yield_control
    await storage.abort()


async def test_adds_are_counted_by_batches_entries_and_bytes(bookie: Bookie) -> None:
    entries = [entry(n) for n in range(5)]
    assert (await bookie.service.add("uuid", AddBatch(LEDGER, KEY, entries))).status is Status.OK
    assert (await bookie.service.add("other", AddBatch(LEDGER, KEY, entries))).status is Status.WRONG_INCARNATION
    assert (bookie.answered("add", "ok"), bookie.answered("add", "wrong_incarnation")) == (1, 1)
    assert bookie.value(names.ADDED_ENTRIES) == 5
    assert bookie.value(names.ADDED_BYTES) == sum(map(len, entries))
    assert bookie.value(f"{names.REQUEST_DURATION}_count", operation="add") == 2
    assert bookie.value(f"{names.SYNC_DURATION}_count") >= 1
    assert (bookie.value(f"{names.ADD_BATCH}_count"), bookie.value(f"{names.ADD_BATCH}_sum")) == (1, 5)
    assert bookie.value(f"{names.JOURNAL_BATCH}_count") == bookie.value(f"{names.SYNC_DURATION}_count")
    assert bookie.value(f"{names.JOURNAL_BATCH}_sum") >= sum(map(len, entries))


async def test_copies_are_counted_with_the_entries_they_add(bookie: Bookie) -> None:
    entries = [entry(n) for n in range(3)]
    await bookie.service.add("uuid", AddBatch(LEDGER, KEY, entries))
    ids = [EntryId(n) for n in range(5)]
    reply = await bookie.service.answer("uuid", Copy(LEDGER, ids, BookieId("itself"), KEY, DigestType.CRC32C))
    assert (reply.status, reply.stored_count) == (Status.OK, 3)
    assert bookie.answered("copy", "ok") == 1
    assert bookie.value(names.ADDED_ENTRIES) == 6
    assert bookie.value(names.ADDED_BYTES) == 2 * sum(map(len, entries))


async def test_reads_are_counted_by_the_entries_sent(bookie: Bookie) -> None:
    await bookie.service.add("uuid", AddBatch(LEDGER, KEY, [entry(0), entry(1)]))
    await bookie.service.answer("uuid", Read(LEDGER, [EntryId(0), EntryId(1), EntryId(7)]))
    await bookie.service.answer("uuid", ReadLast(LEDGER))
    assert bookie.value(names.READ_ENTRIES) == 3
    assert bookie.value(names.READ_BYTES) == 3 * len(entry(0))


async def test_every_operation_is_counted(bookie: Bookie) -> None:
    service = bookie.service
    await service.add("", AddBatch(LEDGER, KEY, [entry(0)]))
    await service.answer("", Read(LEDGER, [EntryId(0)]))
    await service.answer("", ReadLast(LEDGER))
    await service.answer("", ReadLac(LEDGER))
    await service.answer("", WaitLac(LEDGER, EntryId(0), 0.0))
    await service.answer("", WriteLac(LEDGER, KEY, b"no packet"))
    await service.answer("", ListEntries(LEDGER))
    await service.answer("", Copy(LEDGER, [EntryId(0)], BookieId("itself"), KEY, DigestType.CRC32C))
    await service.answer("", Info())
    await service.answer("", Fence(LEDGER, KEY))
    assert bookie.answered("write_lac", "bad_request") == 1
    others = set(names.OPERATIONS) - {"write_lac"}
    assert {operation for operation in others if bookie.answered(operation, "ok") == 1} == others


async def test_a_disconnected_caller_is_counted_separately(bookie: Bookie) -> None:
    reached = asyncio.Event()

    async def hold(operation: Operation, path: str) -> None:
        if operation is Operation.SYNC:
            reached.set()
            await asyncio.Event().wait()

    bookie.journal.before = hold
    add = asyncio.create_task(bookie.service.add("uuid", AddBatch(LEDGER, KEY, [entry(0)])))
    await reached.wait()
    add.cancel()
    with pytest.raises(asyncio.CancelledError):
        await add
    assert (bookie.answered("add", "cancelled"), bookie.answered("add", "ok")) == (1, 0)
    assert bookie.value(names.ADDED_ENTRIES) == 0


async def test_disks_and_limbo_are_shown(bookie: Bookie) -> None:
    clock = SystemClock()
    await bookie.storage.set_limbo([LedgerId(n) for n in range(2500)])
    sampler = Sampler(bookie.metrics, {"journal": bookie.journal, "ledgers": bookie.ledgers}, bookie.storage, clock)
    await sampler.update()
    assert bookie.value(names.LIMBO) == 2500
    total, free = await bookie.ledgers.space()
    assert bookie.value(names.DISK_TOTAL, disk="ledgers") == total
    assert bookie.value(names.DISK_FREE, disk="ledgers") == free


async def test_refused_polls_are_counted(bookie: Bookie) -> None:
    refused = 3
    sampler = Sampler(bookie.metrics, {}, bookie.storage, SystemClock(), polls_refused=lambda: refused)
    await sampler.update()
    refused = 5
    await sampler.update()
    assert bookie.value(names.POLLS_REFUSED) == 5


async def test_the_read_cache_is_counted(bookie: Bookie) -> None:
    entries = [entry(number) for number in range(20)]
    await bookie.service.add("uuid", AddBatch(LEDGER, KEY, entries))
    await bookie.storage.checkpoint()
    sampler = Sampler(bookie.metrics, {"ledgers": bookie.ledgers}, bookie.storage, SystemClock())
    for number in range(20):  # from the second read on, the reads count as sequential
        await bookie.storage.read(LEDGER, [EntryId(number)])
        await sampler.update()
    assert (bookie.value(names.CACHE_HITS), bookie.value(names.CACHE_MISSES)) == (18, 2)
    assert bookie.value(names.READ_AHEAD_BYTES) == sum(map(len, entries[1:]))


async def test_a_disk_that_does_not_answer_keeps_its_last_values(
    bookie: Bookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = Sampler(
        bookie.metrics, {"journal": bookie.journal, "ledgers": bookie.ledgers}, bookie.storage, SystemClock()
    )
    await sampler.update()
    before = bookie.value(names.DISK_TOTAL, disk="ledgers")

    async def gone(disk: MemoryDisk) -> tuple[int, int]:
        raise DiskError("the device is gone")

    monkeypatch.setattr(MemoryDisk, "space", gone)
    await sampler.update()
    assert bookie.value(names.DISK_TOTAL, disk="ledgers") == before > 0


def test_limbo_is_counted_again_until_there_is_none() -> None:
    @in_virtual_time
    async def run() -> None:
        clock, metrics, journal, ledgers = VirtualClock(), bookie_metrics("1"), MemoryDisk(), MemoryDisk()
        storage = await LedgerStorage.open(journal, ledgers, MemoryIndex(), StorageSettings(), clock)
        await storage.set_limbo([LEDGER])
        looking = asyncio.create_task(Sampler(metrics, {"ledgers": ledgers}, storage, clock).run())
        await clock.sleep(1)
        assert metrics.registry.get_sample_value(names.LIMBO) == 1
        await storage.clear_limbo(LEDGER)
        await clock.sleep(100)
        assert metrics.registry.get_sample_value(names.LIMBO) == 0
        looking.cancel()
        await asyncio.wait([looking])
        await storage.abort()

    run()


def test_a_collection_is_shown_with_the_results_of_compaction() -> None:
    metrics = bookie_metrics("1")
    compacted = CompactionResult(removed_logs=1, freed_bytes=1000, copied_bytes=300)
    record_collection(metrics, CollectorReport(collected_deleted=2, held=7, compacted=compacted, ended_ms=5000))
    record_collection(metrics, CollectorReport(stopped="the session with ZooKeeper was lost", ended_ms=6000))

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name)

    assert (value(names.COLLECTED), value(names.COLLECTION_HELD), value(names.COLLECTION_STOPPED)) == (2, 0, 1)
    assert (value(names.COLLECTION_FREED), value(names.COLLECTION_COPIED)) == (1000, 300)
    assert value(names.COLLECTION_FINISHED) == 6.0


async def test_waiting_requests_are_shown_while_a_disk_does_not_answer(bookie: Bookie) -> None:
    is_open = asyncio.Event()

    async def wait(operation: Operation, path: str) -> None:
        await is_open.wait()

    bookie.journal.before = wait
    adding = asyncio.ensure_future(bookie.service.add("uuid", AddBatch(LEDGER, KEY, [entry(0)])))
    more = asyncio.ensure_future(bookie.service.add("uuid", AddBatch(LEDGER, KEY, [entry(1)])))
    async with asyncio.timeout(STATE_S):
        while not bookie.storage.memory.journal_bytes:  # noqa: ASYNC110 (another task)
            await asyncio.sleep(0)
    load = bookie.plain.load
    assert (load.add_bytes, load.requests, load.reads_running) == (2 * len(entry(0)), 2, 0)
    is_open.set()
    assert [(await each).status for each in (adding, more)] == [Status.OK, Status.OK]
    assert (bookie.plain.load.add_bytes, bookie.storage.memory.journal_bytes) == (0, 0)
    assert bookie.storage.memory.cache_bytes > 0
