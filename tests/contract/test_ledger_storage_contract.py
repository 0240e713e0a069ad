"""The guarantees of a bookie's store: on the twins in memory, on files with RocksDB, and with restarts at each step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from bookie.model.availability import EntryRuns
from bookie.model.digest import digest_for
from bookie.model.ids import LEDGER_ID_MAX, NO_ENTRY, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import ENTRY_PAYLOAD_MAX, PACKET_BYTES_MAX, pack
from bookie.runtime.clock import SystemClock
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.disks.spread import SpreadDirectory, SpreadDisk
from bookie.storage.port import Disk, EntryIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import (
    READ_BYTES_MAX,
    READ_ENTRIES_MAX,
    AddBatch,
    AddReply,
    EntryResult,
    FenceReply,
    ListReply,
    ReadReply,
    Status,
)
from tests.contract.restarting_store import RestartingStore
from tests.worlds.entries import raw_entry

RESTARTED = ", restarted at each step"
SPREAD = "memory, three ledger directories"
FILES_SPREAD = "files, two ledger directories"
LEDGER = LedgerId(7)
KEY = b"k" * 20
DUMMY = digest_for(DigestType.DUMMY, b"")


def entry(entry_id: int, payload: bytes = b"payload", ledger_id: int = LEDGER) -> bytes:
    return raw_entry(ledger_id, entry_id, payload)


def batch(*entry_ids: int, ledger_id: int = LEDGER, key: bytes = KEY, is_recovery: bool = False) -> AddBatch:
    entries = [entry(entry_id, b"payload of %d" % entry_id, ledger_id) for entry_id in entry_ids]
    return AddBatch(LedgerId(ledger_id), key, entries, is_recovery)


def ids(numbers: Sequence[int]) -> list[EntryId]:
    return [EntryId(number) for number in numbers]


@dataclass
class Bookie:
    """A restartable store: it is closed, or aborted as a crash would."""

    kind: str
    root: Path
    settings: StorageSettings
    store: LedgerStorage = field(init=False)
    disks: list[FileDisk] = field(default_factory=list)
    twins: tuple[MemoryDisk, MemoryDisk, MemoryIndex] = field(
        default_factory=lambda: (MemoryDisk(), MemoryDisk(), MemoryIndex())
    )
    more: list[MemoryDisk] = field(default_factory=lambda: [MemoryDisk(), MemoryDisk()])
    """Further ledger directories; the first one is among the twins."""

    async def start(self) -> None:
        store = await self._open()
        if self.kind.endswith(RESTARTED):
            self.store = cast("LedgerStorage", RestartingStore(store, self._next))
        else:
            self.store = store

    async def _open(self) -> LedgerStorage:
        if self.kind.startswith("memory"):
            journal, ledgers, index = self.twins
            self.twins = journal.restarted(), ledgers.restarted(), index.restarted()
            if self.kind.startswith(SPREAD):
                self.more = [disk.restarted() for disk in self.more]
                return await self._open_spread(*self.twins, self.more)
            return await LedgerStorage.open(*self.twins, self.settings, SystemClock())
        self.disks = [await FileDisk.acquire(self.root / name) for name in ("journal", "ledgers")]
        rocks = await RocksIndex.open(self.root / "ledgers" / "index")
        if self.kind.startswith(FILES_SPREAD):
            self.disks.append(await FileDisk.acquire(self.root / "more"))
            return await self._open_spread(self.disks[0], self.disks[1], rocks, self.disks[2:])
        return await LedgerStorage.open(self.disks[0], self.disks[1], rocks, self.settings, SystemClock())

    async def _open_spread(
        self, journal: Disk, ledgers: Disk, index: EntryIndex, more: Sequence[Disk]
    ) -> LedgerStorage:
        parts = [SpreadDirectory(f"/{number}", disk) for number, disk in enumerate([ledgers, *more])]
        spread = await SpreadDisk.over(parts, SystemClock())
        return await LedgerStorage.open(journal, spread, index, self.settings, SystemClock())

    async def _next(self, store: LedgerStorage, cleanly: bool) -> LedgerStorage:
        await (store.close() if cleanly else store.abort())
        for disk in self.disks:
            await disk.close()
        return await self._open()

    async def stop(self, *, cleanly: bool = True) -> None:
        await (self.store.close() if cleanly else self.store.abort())
        for disk in self.disks:
            await disk.close()

    async def restart(self, *, cleanly: bool) -> None:
        await self.stop(cleanly=cleanly)
        await self.start()

    async def add(self, *entry_ids: int, is_recovery: bool = False) -> Status:
        return (await self.store.add(batch(*entry_ids, is_recovery=is_recovery))).status

    async def add_patiently(self, entries: list[bytes]) -> None:
        """Add entries, and repeat adds that are refused because of small caches and a late flush."""
        while (reply := await self.store.add(AddBatch(LEDGER, KEY, entries))).status is Status.TOO_MANY_REQUESTS:
            await self.store.checkpoint()
        assert reply.status is Status.OK

    async def statuses(self, *entry_ids: int, ledger_id: int = LEDGER) -> list[Status]:
        reply = await self.store.read(LedgerId(ledger_id), ids(entry_ids))
        assert reply.status is Status.OK
        assert [result.entry_id for result in reply.results] == list(entry_ids)
        for result in reply.results:
            is_ok = result.status is Status.OK
            assert result.packet == (batch(result.entry_id, ledger_id=ledger_id).entries[0] if is_ok else b"")
        return [result.status for result in reply.results]


@pytest.fixture(
    params=[
        "memory",
        "files",
        f"memory{RESTARTED}",
        f"{SPREAD}{RESTARTED}",
        pytest.param(SPREAD, marks=pytest.mark.long),
        pytest.param(f"files{RESTARTED}", marks=pytest.mark.long),
        pytest.param(FILES_SPREAD, marks=pytest.mark.long),
    ]
)
async def bookie(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bookie]:
    settings = StorageSettings(cache_bytes_max=1 << 20, journal_file_bytes=1 << 20, list_page_keys=50)
    bookie = Bookie(request.param, tmp_path, settings)
    await bookie.start()
    yield bookie
    await bookie.stop()


@pytest.fixture(params=["in memory", "in the logs", "after a restart", "after a crash"])
async def place(request: pytest.FixtureRequest) -> str:
    """The place of the entries under test."""
    return str(request.param)


async def move(bookie: Bookie, place: str) -> None:
    match place:
        case "in the logs":
            await bookie.store.checkpoint()
        case "after a restart":
            await bookie.restart(cleanly=True)
        case "after a crash":
            await bookie.restart(cleanly=False)


async def test_added_entries_are_read_back_byte_for_byte(bookie: Bookie, place: str) -> None:
    assert await bookie.add(0, 1, 2) is Status.OK
    assert await bookie.add(4) is Status.OK
    await move(bookie, place)
    assert await bookie.statuses(4, 0, 2, 1) == [Status.OK] * 4


async def test_a_missing_entry_and_a_missing_ledger_have_different_statuses(bookie: Bookie, place: str) -> None:
    await bookie.add(0)
    await move(bookie, place)
    assert await bookie.statuses(1, 0) == [Status.NO_ENTRY, Status.OK]
    assert await bookie.statuses(0, 1, ledger_id=8) == [Status.NO_LEDGER] * 2


async def test_entries_may_come_in_any_order_and_leave_holes(bookie: Bookie, place: str) -> None:
    for entry_id in (5, 1, 9, 0):
        assert await bookie.add(entry_id) is Status.OK
    await move(bookie, place)
    reply = await bookie.store.list_entries(LEDGER)
    assert (reply.status, reply.entries) == (Status.OK, EntryRuns(((0, 1), (5, 5), (9, 9))))


async def test_an_entry_added_again_replaces_the_first_wherever_it_is_stored(bookie: Bookie, place: str) -> None:
    for payload in (b"first", b"second", b"third"):
        reply = await bookie.store.add(AddBatch(LEDGER, KEY, [entry(3, payload)]))
        assert reply.status is Status.OK
        if payload != b"third":
            await move(bookie, place)
    [result] = (await bookie.store.read(LEDGER, ids([3]))).results
    assert result.packet == entry(3, b"third")
    assert len((await bookie.store.list_entries(LEDGER)).entries) == 1
    await move(bookie, place)
    [result] = (await bookie.store.read(LEDGER, ids([3]))).results
    assert result.packet == entry(3, b"third")


async def test_an_id_twice_in_a_batch_counts_once_and_the_later_entry_wins(bookie: Bookie, place: str) -> None:
    await bookie.store.add(AddBatch(LEDGER, KEY, [entry(3, b"first"), entry(3, b"second")]))
    await move(bookie, place)
    [result] = (await bookie.store.read(LEDGER, ids([3]))).results
    assert result.packet == entry(3, b"second")


async def test_wrong_master_key_stores_nothing(bookie: Bookie, place: str) -> None:
    await bookie.add(0)
    await move(bookie, place)
    for is_recovery in (False, True):
        reply = await bookie.store.add(batch(1, key=b"other", is_recovery=is_recovery))
        assert reply.status is Status.UNAUTHORIZED
        assert b"other".decode() not in reply.detail
    assert (await bookie.store.fence(LEDGER, b"other")).status is Status.UNAUTHORIZED
    assert await bookie.statuses(0, 1) == [Status.OK, Status.NO_ENTRY]
    assert await bookie.add(1) is Status.OK


async def test_a_fence_permanently_refuses_ordinary_adds_and_accepts_recovery_adds(bookie: Bookie, place: str) -> None:
    await bookie.add(0, 1)
    reply = await bookie.store.fence(LEDGER, KEY)
    assert reply.status is Status.OK
    assert reply.last_entry == EntryResult(EntryId(1), Status.OK, batch(1).entries[0])
    await move(bookie, place)
    assert await bookie.add(2) is Status.FENCED
    assert await bookie.add(3, is_recovery=True) is Status.OK
    assert await bookie.statuses(2, 3) == [Status.NO_ENTRY, Status.OK]
    again = await bookie.store.fence(LEDGER, KEY)
    assert again.status is Status.OK
    assert again.last_entry is not None
    assert again.last_entry.entry_id == 3


async def test_fence_of_an_unknown_ledger_creates_it_with_its_key(bookie: Bookie, place: str) -> None:
    reply = await bookie.store.fence(LEDGER, KEY)
    assert (reply.status, reply.last_entry) == (Status.OK, None)
    await move(bookie, place)
    assert await bookie.add(0) is Status.FENCED
    assert (await bookie.store.add(batch(0, key=b"other", is_recovery=True))).status is Status.UNAUTHORIZED
    assert await bookie.statuses(0) == [Status.NO_ENTRY]
    assert bookie.store.ledger_count == 1


async def test_other_ledgers_are_not_fenced(bookie: Bookie) -> None:
    await bookie.store.fence(LEDGER, KEY)
    assert (await bookie.store.add(batch(0, ledger_id=8))).status is Status.OK


async def test_last_entry_is_the_greatest_wherever_it_is(bookie: Bookie, place: str) -> None:
    await bookie.add(0, 5)
    await bookie.store.checkpoint()
    await bookie.add(3)
    await move(bookie, place)
    [result] = (await bookie.store.read_last(LEDGER)).results
    assert result == EntryResult(EntryId(5), Status.OK, batch(5).entries[0])
    await bookie.add(6)
    [result] = (await bookie.store.read_last(LEDGER)).results
    assert result.entry_id == 6


async def test_the_last_entry_of_an_empty_or_absent_ledger_is_a_negative_answer(bookie: Bookie) -> None:
    [result] = (await bookie.store.read_last(LEDGER)).results
    assert result == EntryResult(NO_ENTRY, Status.NO_LEDGER)
    await bookie.store.fence(LEDGER, KEY)
    [result] = (await bookie.store.read_last(LEDGER)).results
    assert result == EntryResult(NO_ENTRY, Status.NO_ENTRY)


async def test_in_limbo_no_entry_is_reported_as_absent(bookie: Bookie, place: str) -> None:
    await bookie.add(0)
    await bookie.store.set_limbo([LEDGER, LedgerId(8)])
    await move(bookie, place)
    assert await bookie.statuses(0, 1) == [Status.OK, Status.LIMBO]
    assert await bookie.statuses(0, ledger_id=8) == [Status.LIMBO]
    for ledger_id, last in ((LEDGER, 0), (LedgerId(8), -1)):
        assert (await bookie.store.read_last(ledger_id)).results == [EntryResult(EntryId(last), Status.LIMBO)]
        fenced = await bookie.store.fence(ledger_id, KEY)
        assert (fenced.status, fenced.last_entry) == (Status.OK, EntryResult(EntryId(last), Status.LIMBO))
    listed = await bookie.store.list_entries(LEDGER)
    assert (listed.status, listed.entries) == (Status.LIMBO, EntryRuns(((0, 0),)))
    assert await bookie.statuses(0, ledger_id=9) == [Status.NO_LEDGER]


async def test_a_ledger_in_limbo_refuses_writers_and_accepts_repair_copies(bookie: Bookie, place: str) -> None:
    await bookie.store.set_limbo([LEDGER])
    await move(bookie, place)
    assert await bookie.add(0) is Status.LIMBO
    await bookie.store.fence(LEDGER, KEY)
    assert await bookie.add(0) is Status.LIMBO
    assert await bookie.add(0, is_recovery=True) is Status.OK
    await bookie.store.clear_limbo(LEDGER)
    assert await bookie.add(1) is Status.FENCED
    assert await bookie.statuses(0) == [Status.OK]
    assert (await bookie.store.add(batch(1, key=b"other", is_recovery=True))).status is Status.UNAUTHORIZED


async def test_thousands_of_ledgers_are_put_in_limbo(bookie: Bookie) -> None:
    await bookie.store.set_limbo([LedgerId(number) for number in range(2500)])
    await bookie.restart(cleanly=False)
    assert bookie.store.ledger_count == 2500
    assert await bookie.statuses(0, ledger_id=2499) == [Status.LIMBO]


async def test_ledgers_are_counted_once(bookie: Bookie, place: str) -> None:
    for ledger_id in (1, 2, 1):
        await bookie.store.add(batch(0, ledger_id=ledger_id))
    await bookie.store.fence(LedgerId(3), KEY)
    await bookie.store.set_limbo([LedgerId(4), LedgerId(1)])
    await move(bookie, place)
    assert bookie.store.ledger_count == 4
    await bookie.store.read(LedgerId(5), ids([0]))
    assert bookie.store.ledger_count == 4


async def test_entries_with_an_empty_payload_or_dummy_digest_are_stored(bookie: Bookie, place: str) -> None:
    entries = [pack(DUMMY, LEDGER, EntryId(number), number - 1, 0, b"") for number in range(3)]
    assert (await bookie.store.add(AddBatch(LEDGER, KEY, entries))).status is Status.OK
    await move(bookie, place)
    reply = await bookie.store.read(LEDGER, ids(range(3)))
    assert [result.packet for result in reply.results] == entries


async def test_the_largest_entry_is_accepted(bookie: Bookie, place: str) -> None:
    large = entry(0, b"x" * (PACKET_BYTES_MAX - 36))
    assert (await bookie.store.add(AddBatch(LEDGER, KEY, [large]))).status is Status.OK
    await move(bookie, place)
    [result] = (await bookie.store.read(LEDGER, ids([0]))).results
    assert result.packet == large


async def test_extreme_ids_are_accepted(bookie: Bookie, place: str) -> None:
    last = LEDGER_ID_MAX
    assert (await bookie.store.add(batch(0, last, ledger_id=last))).status is Status.OK
    assert (await bookie.store.add(batch(0, last, ledger_id=0))).status is Status.OK
    await move(bookie, place)
    for ledger_id in (0, last):
        assert await bookie.statuses(0, last, ledger_id=ledger_id) == [Status.OK] * 2
        reply = await bookie.store.list_entries(LedgerId(ledger_id))
        assert reply.entries == EntryRuns(((0, 0), (last, last)))
        assert (await bookie.store.read_last(LedgerId(ledger_id))).results[0].entry_id == last


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([], "no entries"),
        ([entry(0)[:31]], "31 bytes"),
        ([entry(0), entry(1, ledger_id=8)], "8/1"),
        ([entry(-1)], "7/-1"),
        ([entry(0, b"x" * PACKET_BYTES_MAX)], "allowed are 32 to"),
        ([entry(number, b"x" * (1 << 20)) for number in range(8)], "in one add"),
    ],
)
async def test_bad_batch_is_refused_as_a_whole(bookie: Bookie, entries: list[bytes], says: str) -> None:
    reply = await bookie.store.add(AddBatch(LEDGER, KEY, [entry(50), *entries] if entries else []))
    assert reply.status is Status.BAD_REQUEST
    assert says in reply.detail
    assert await bookie.statuses(50) == [Status.NO_LEDGER]
    assert bookie.store.ledger_count == 0


async def test_bad_ids_and_keys_are_refused(bookie: Bookie) -> None:
    store, bad = bookie.store, LedgerId(-1)
    replies: list[AddReply | FenceReply | ReadReply | ListReply] = [
        await store.add(AddBatch(bad, KEY, [entry(0, ledger_id=-1)])),
        await store.add(AddBatch(LEDGER, b"k" * 2000, [entry(0)])),
        await store.fence(bad, KEY),
        await store.fence(LEDGER, b"k" * 2000),
        await store.read(bad, ids([0])),
        await store.read(LEDGER, ids([0, -1])),
        await store.read(LEDGER, ids([LEDGER_ID_MAX + 1])),
        await store.read(LEDGER, ids(range(READ_ENTRIES_MAX + 1))),
        await store.read_last(LedgerId(LEDGER_ID_MAX + 1)),
        await store.list_entries(bad),
    ]
    assert [reply.status for reply in replies] == [Status.BAD_REQUEST] * len(replies)


async def test_a_read_covers_a_prefix_within_its_byte_limit(bookie: Bookie, place: str) -> None:
    size = ENTRY_PAYLOAD_MAX
    for first in range(0, 12, 4):
        entries = [entry(number, b"x" * size) for number in range(first, first + 4)]
        await bookie.add_patiently(entries)
    await move(bookie, place)
    wanted, seen = list(range(12)), []
    while wanted:
        reply = await bookie.store.read(LEDGER, ids(wanted))
        assert reply.results
        assert sum(len(result.packet) for result in reply.results) <= READ_BYTES_MAX
        seen += [result.entry_id for result in reply.results]
        wanted = wanted[len(reply.results) :]
    assert seen == list(range(12))


async def test_a_read_of_no_entries_has_no_results(bookie: Bookie) -> None:
    assert (await bookie.store.read(LEDGER, [])).results == []


async def test_long_ledger_is_listed_page_by_page(bookie: Bookie, place: str) -> None:
    await bookie.add(*range(300))
    await bookie.store.checkpoint()
    await bookie.add(*range(290, 350), 400)
    await move(bookie, place)
    reply = await bookie.store.list_entries(LEDGER)
    assert reply.entries == EntryRuns(((0, 349), (400, 400)))


async def test_unknown_ledger_lists_nothing(bookie: Bookie) -> None:
    reply = await bookie.store.list_entries(LEDGER)
    assert (reply.status, len(reply.entries)) == (Status.NO_LEDGER, 0)


async def test_concurrent_adds_to_many_ledgers_are_all_stored(bookie: Bookie, place: str) -> None:
    batches = [
        batch(*range(first, first + 10), ledger_id=ledger_id) for first in range(0, 100, 10) for ledger_id in range(20)
    ]
    replies = await asyncio.gather(*map(bookie.store.add, batches))
    assert set(replies) == {AddReply(Status.OK)}
    await move(bookie, place)
    for ledger_id in range(20):
        assert await bookie.statuses(*range(100), ledger_id=ledger_id) == [Status.OK] * 100
    assert bookie.store.ledger_count == 20


async def test_adds_beyond_the_cache_size_are_flushed_in_the_background(bookie: Bookie) -> None:
    payload = b"x" * 10_000
    for first in range(0, 600, 20):
        entries = [entry(number, payload) for number in range(first, first + 20)]
        await bookie.add_patiently(entries)
    await bookie.restart(cleanly=False)
    assert len((await bookie.store.list_entries(LEDGER)).entries) == 600
    for first in range(0, 600, 100):
        reply = await bookie.store.read(LEDGER, ids(range(first, first + 100)))
        assert [result.packet for result in reply.results] == [entry(n, payload) for n in range(first, first + 100)]


async def test_reads_see_entries_while_they_move_to_the_logs(bookie: Bookie) -> None:
    await bookie.add(*range(200))
    flushing = asyncio.create_task(bookie.store.checkpoint())
    while not flushing.done():
        assert await bookie.statuses(0, 100, 199) == [Status.OK] * 3
        assert len((await bookie.store.list_entries(LEDGER)).entries) == 200
        assert (await bookie.store.read_last(LEDGER)).results[0].entry_id == 199
    await flushing


async def test_empty_checkpoints_change_nothing(bookie: Bookie) -> None:
    for _ in range(3):
        await bookie.store.checkpoint()
    await bookie.add(0)
    for _ in range(3):
        await bookie.store.checkpoint()
        await bookie.restart(cleanly=True)
    assert await bookie.statuses(0) == [Status.OK]


async def test_closed_store_answers_that_it_is_shutting_down(bookie: Bookie) -> None:
    await bookie.add(0)
    await bookie.store.close()
    await bookie.store.close()
    assert await bookie.add(1) is Status.SHUTTING_DOWN
    assert (await bookie.store.fence(LEDGER, KEY)).status is Status.SHUTTING_DOWN
    assert (await bookie.store.read(LEDGER, ids([0]))).status in (Status.OK, Status.SHUTTING_DOWN)
    assert (await bookie.store.list_entries(LEDGER)).status is Status.SHUTTING_DOWN
    await bookie.restart(cleanly=True)


async def test_close_waits_for_accepted_requests(bookie: Bookie) -> None:
    adds = [asyncio.create_task(bookie.store.add(batch(number))) for number in range(50)]
    await asyncio.sleep(0)
    await bookie.store.close()
    replies = await asyncio.gather(*adds)
    await bookie.restart(cleanly=True)
    accepted = [number for number, reply in enumerate(replies) if reply.status is Status.OK]
    assert await bookie.statuses(*accepted) == [Status.OK] * len(accepted)
    assert {reply.status for reply in replies} <= {Status.OK, Status.SHUTTING_DOWN}
