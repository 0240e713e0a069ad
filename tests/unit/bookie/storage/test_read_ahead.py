"""The read cache: large reads for sequential readers, limited memory, and never outdated bytes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from bookie.model.ids import LEDGER_ID_MAX, EntryId, LedgerId
from bookie.storage import reading
from bookie.storage.disks.index_format import pack_entry_key
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation
from bookie.storage.read_cache import ReadCache, WatchedIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import READ_BYTES_MAX, AddBatch, Status
from tests.worlds.clocks import ManualClock
from tests.worlds.entries import raw_entry

LEDGER = LedgerId(7)
OTHER = LedgerId(8)
KEY = b"key"
PAYLOAD = 1000


def entry(entry_id: int, mark: bytes = b"a", ledger_id: int = LEDGER) -> bytes:
    return raw_entry(ledger_id, entry_id, mark * PAYLOAD, last_add_confirmed=-1)


class CountedIndex(MemoryIndex):
    """Count the keys that are looked up."""

    looked_up = 0

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.looked_up += len(keys)
        return await super().get_many(keys)


class World:
    """A store on in-memory twins that counts the reads of entry logs, and can block them."""

    def __init__(self, **settings: int) -> None:
        self.reads = 0
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.is_reading = asyncio.Event()
        self.pauses: random.Random | None = None
        """The number of loop turns before each operation of the disk and of the index."""
        self.settings = StorageSettings(**settings)
        self.ledgers = MemoryDisk(before=self._before)
        self.index = CountedIndex(before=self._before)
        self.store: LedgerStorage

    async def _before(self, operation: Operation, path: str) -> None:
        for _ in range(self.pauses.randrange(5) if self.pauses else 0):
            await asyncio.sleep(0)
        if operation is Operation.READ:
            self.reads += 1
            self.is_reading.set()
            await self.may_read.wait()

    async def start(self, count: int, *more: LedgerId) -> None:
        self.store = await LedgerStorage.open(
            MemoryDisk(), self.ledgers, self.index, self.settings, ManualClock(turns=1)
        )
        for ledger_id in (LEDGER, *more):
            await self.add(*(entry(number, ledger_id=ledger_id) for number in range(count)), ledger_id=ledger_id)
        await self.store.checkpoint()
        self.reads = 0

    async def add(self, *entries: bytes, ledger_id: LedgerId = LEDGER) -> None:
        assert (await self.store.add(AddBatch(ledger_id, KEY, entries, is_recovery=True))).status is Status.OK

    async def read(self, *entry_ids: int, ledger_id: LedgerId = LEDGER) -> list[bytes | Status]:
        reply = await self.store.read(ledger_id, [EntryId(number) for number in entry_ids])
        return [result.packet or result.status for result in reply.results]

    async def read_on(self, numbers: Sequence[int]) -> list[bytes | Status]:
        """Read the entries one after another."""
        return [result for number in numbers for result in await self.read(number)]

    @property
    def path(self) -> str:
        [path] = [path for path in self.ledgers.paths() if path.startswith("entries/")]
        return path


async def test_sequential_reads_become_a_few_large_reads() -> None:
    world = World()
    await world.start(2000)
    assert await world.read_on(range(2000)) == [entry(number) for number in range(2000)]
    assert world.reads < 10
    assert world.store.read_cache.hits > 1900


async def test_read_ahead_works_for_a_member_of_a_wide_ensemble() -> None:
    world = World()
    await world.start(2000)
    await world.read_on(range(0, 2000, 5))
    assert world.reads < 10


async def test_random_reads_cause_no_read_ahead() -> None:
    world = World()
    await world.start(500)
    await world.read_on([400, 100, 300, 0, 200, 450, 50])
    assert world.reads == 7
    assert world.store.read_cache.size == world.store.read_cache.read_ahead_bytes == 0


async def test_entries_that_do_not_fit_into_an_answer_are_not_looked_up() -> None:
    world = World()
    await world.start(1)
    large = b"x" * (1 << 20)
    for number in range(20):
        await world.add(raw_entry(LEDGER, number, large, last_add_confirmed=-1))
    await world.store.checkpoint()
    world.index.looked_up = 0
    found = await world.read(*range(20))
    assert 0 < len(found) <= READ_BYTES_MAX // len(large)
    assert world.index.looked_up <= 1
    assert world.store.read_cache.misses == len(found)


async def test_one_load_is_bounded_for_entries_of_any_size() -> None:
    world = World(read_ahead_bytes=5 * PAYLOAD)
    await world.start(60)
    assert await world.read_on(range(2)) == [entry(0), entry(1)]
    for _ in range(20):
        await asyncio.sleep(0)  # let the background load finish
    assert 0 < world.store.read_cache.read_ahead_bytes <= 2 * 5 * PAYLOAD


async def test_no_more_is_read_for_a_request_than_fits_into_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_BYTES_MAX", 10 * PAYLOAD)
    world = World(read_ahead_bytes=5 * PAYLOAD)
    await world.start(60)
    assert await world.read(*range(60)) == [entry(number) for number in range(9)]
    for _ in range(20):
        await asyncio.sleep(0)  # let the background load finish
    assert world.store.read_cache.read_ahead_bytes <= (10 + 2 * 5) * PAYLOAD


async def test_the_memory_is_bounded_and_the_oldest_entries_are_evicted_first() -> None:
    world = World(read_cache_bytes_max=100_000, read_ahead_bytes=30_000)
    await world.start(1000, OTHER)
    for number in range(1000):
        assert await world.read(number) == [entry(number)]
        assert await world.read(number, ledger_id=OTHER) == [entry(number, ledger_id=OTHER)]
        assert world.store.read_cache.size <= 100_000
    assert world.reads < 150


async def test_entries_larger_than_the_cache_are_served() -> None:
    world = World(read_cache_bytes_max=1000)
    await world.start(20)
    assert await world.read_on(range(20)) == [entry(number) for number in range(20)]
    assert world.store.read_cache.size == 0


async def test_without_a_cache_nothing_is_read_ahead() -> None:
    world = World(read_cache_bytes_max=0)
    await world.start(20)
    assert await world.read_on(range(20)) == [entry(number) for number in range(20)]
    assert world.reads == 20


async def test_a_superseded_entry_is_not_served() -> None:
    world = World()
    await world.start(100)
    await world.read_on(range(3))
    await world.add(entry(50, b"b"))
    assert await world.read(50, 51) == [entry(50, b"b"), entry(51)]
    await world.store.checkpoint()
    assert await world.read(50, 51) == [entry(50, b"b"), entry(51)]
    assert await world.read_on(range(49, 52)) == [entry(49), entry(50, b"b"), entry(51)]


async def test_an_entry_superseded_during_its_load_is_not_served() -> None:
    world = World()
    await world.start(100)
    await world.read(0)
    world.may_read.clear()
    world.is_reading.clear()
    reading = asyncio.ensure_future(world.read(1))
    await world.is_reading.wait()  # the load has read the index
    await world.add(entry(2, b"b"))
    await world.store.checkpoint()
    world.may_read.set()
    assert await reading == [entry(1)]
    assert await world.read(2) == [entry(2, b"b")]


async def test_a_collected_ledger_is_removed_from_the_cache() -> None:
    world = World()
    await world.start(100, OTHER)
    await world.read_on(range(3))
    await world.read(0, ledger_id=OTHER)
    await world.read(1, ledger_id=OTHER)
    assert await world.store.collect(LEDGER, world.store.mark(LEDGER))
    assert set(await world.read_on(range(5))) == {Status.NO_ENTRY}
    reads = world.reads
    assert await world.read(2, ledger_id=OTHER) == [entry(2, ledger_id=OTHER)]
    assert world.reads == reads, "the other ledger was dropped from the cache"


async def test_compaction_moves_entries_between_two_reads() -> None:
    world = World(compact_bytes_per_s=1 << 40)
    await world.start(100, OTHER, LedgerId(9))
    await world.read_on(range(3))
    for ledger_id in (OTHER, LedgerId(9)):
        assert await world.store.collect(ledger_id, world.store.mark(ledger_id))
    assert (await world.store.compact()).removed_logs == 1
    assert await world.read_on(range(3, 100)) == [entry(number) for number in range(3, 100)]


@pytest.mark.parametrize("seed", range(4))
async def test_no_reader_sees_an_older_version_than_the_last_acknowledged_one(seed: int) -> None:
    rng = random.Random(seed)
    world = World(read_cache_bytes_max=60_000, read_ahead_bytes=9_000, flush_page_entries=3, flush_sync_entries=5)
    world.pauses = rng
    await world.start(40)
    acknowledged = [0] * 40

    async def write() -> None:
        for version in range(1, 40):
            numbers = rng.sample(range(40), 5)
            await world.add(*(entry(number, bytes([version])) for number in numbers))
            for number in numbers:
                acknowledged[number] = version
            if rng.random() < 0.4:
                await world.store.checkpoint()
            if rng.random() < 0.1:
                await world.store.compact()

    async def read(step: int) -> None:
        while not writing.done():
            for number in range(0, 40, step):
                before = acknowledged[number]
                [found] = await world.read(number)
                assert isinstance(found, bytes)
                version = 0 if found == entry(number) else found[-1]
                assert version >= before
                assert found == entry(number, bytes([version]) if version else b"a")
                await asyncio.sleep(0)

    writing = asyncio.ensure_future(write())
    await asyncio.gather(read(1), read(1), read(3), writing)
    assert world.store.read_cache.hits > 20


async def test_damaged_entries_are_not_cached_and_their_neighbours_are() -> None:
    world = World()
    await world.start(100)
    place = world.ledgers.content(world.path).index(entry(50))
    world.ledgers.flip_bit(world.path, place * 8 + 300)
    found = await world.read_on(range(100))
    assert found == [entry(number) if number != 50 else Status.CORRUPT for number in range(100)]
    assert world.reads < 10
    world.ledgers.flip_bit(world.path, place * 8 + 300)
    assert await world.read(50) == [entry(50)]


async def test_a_bad_sector_in_the_range_fails_only_its_entry() -> None:
    world = World()
    await world.start(100)
    place = world.ledgers.content(world.path).index(entry(50))
    world.ledgers.bad_sectors = {(world.path, place)}
    found = await world.read_on(range(100))
    assert found == [entry(number) if number != 50 else Status.IO_ERROR for number in range(100)]
    numbers = range(20, 80)
    assert await world.read(*numbers) == [entry(number) if number != 50 else Status.IO_ERROR for number in numbers]


async def test_two_readers_of_one_ledger_share_a_load() -> None:
    world = World()
    await world.start(100)
    await world.read(0)
    world.may_read.clear()
    world.is_reading.clear()
    readers = [asyncio.ensure_future(world.read(number)) for number in (1, 2, 3)]
    await world.is_reading.wait()
    reads = world.reads
    world.may_read.set()
    assert await asyncio.gather(*readers) == [[entry(1)], [entry(2)], [entry(3)]]
    assert world.reads == reads


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_the_next_window_is_loaded_while_the_answer_is_sent() -> None:
    world = World()
    await world.start(300)
    assert await world.read(*range(64)) == [entry(number) for number in range(64)]
    await settle()
    reads = world.reads
    assert await world.read(*range(64, 128)) == [entry(number) for number in range(64, 128)]
    assert world.reads == reads


async def test_background_loads_are_few_and_end_with_the_store() -> None:
    world = World()
    ledgers = [LedgerId(number) for number in range(20, 30)]
    await world.start(200, *ledgers)
    for ledger_id in ledgers:
        for number in (0, 1, 17, 33, 49):  # the first load read 64 entries
            await world.read(number, ledger_id=ledger_id)
    reads = world.reads
    world.may_read.clear()
    for ledger_id in ledgers:
        assert await world.read(64, ledger_id=ledger_id) == [entry(64, ledger_id=ledger_id)]
    await settle()
    assert world.reads == reads + 4
    await world.store.close()
    assert world.store.read_cache.loading(ledgers[0]) is None


async def test_the_greatest_entry_id_is_read_without_a_next_one() -> None:
    world = World()
    await world.start(1)
    await world.add(*(entry(LEDGER_ID_MAX - number) for number in (1, 0)))
    await world.store.checkpoint()
    assert await world.read_on([LEDGER_ID_MAX - 1, LEDGER_ID_MAX]) == [entry(LEDGER_ID_MAX - 1), entry(LEDGER_ID_MAX)]
    await settle()


@pytest.mark.parametrize("key", [pack_entry_key(LEDGER, 1), b"\xff"])
async def test_after_a_cancelled_write_of_an_entry_nothing_is_cached(key: bytes) -> None:
    cache, started = ReadCache(1 << 20), asyncio.Event()

    class Index(MemoryIndex):
        async def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
            started.set()
            await asyncio.Event().wait()

    writing = asyncio.ensure_future(WatchedIndex(Index(), cache).write([(key, b"")]))
    await started.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    cache.end(cache.begin(LEDGER, EntryId(0)), {EntryId(0): entry(0)})
    assert (not cache.entries(LEDGER)) == (key != b"\xff")
