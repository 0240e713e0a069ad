"""The promises of a bookie's store about collection, compaction and the end of limbo, on twins and on real files."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from crc32c import crc32c

from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.clock import SystemClock
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.entry_logs.compaction import Compactor
from bookie.storage.entry_logs.entry_log import HEADER_SIZE, RECORD_HEADER_SIZE, EntryLogWriter
from bookie.storage.entry_logs.log_ends import log_end_put
from bookie.storage.port import DiskError, DiskFullError, EntryIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.contract.test_ledger_storage_contract import KEY, LEDGER, RESTARTED, Bookie, batch, entry, ids

OTHER = LedgerId(8)
SETTINGS = StorageSettings(delete_page_keys=7, list_page_keys=5, flush_page_entries=10)


ON_ALL = pytest.mark.parametrize(
    "bookie",
    ["memory", "files", f"memory{RESTARTED}", pytest.param(f"files{RESTARTED}", marks=pytest.mark.long)],
    indirect=True,
)
"""For properties that hold across restarts. The other tests use logs, marks or caches of a store between two starts."""
ONLY_RESTARTED = pytest.mark.parametrize(
    "bookie", [f"memory{RESTARTED}", pytest.param(f"files{RESTARTED}", marks=pytest.mark.long)], indirect=True
)
PASSES_MAX = 3
"""Every second restart is a crash, after which collected ledgers may exist again until the next pass."""


@pytest.fixture(params=["memory", "files"])
async def bookie(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bookie]:
    bookie = Bookie(request.param, tmp_path, SETTINGS)
    await bookie.start()
    yield bookie
    await bookie.stop()


async def restart(bookie: Bookie, *, cleanly: bool = True) -> None:
    await bookie.stop(cleanly=cleanly)
    await bookie.start()


async def logs(bookie: Bookie) -> list[str]:
    disk = bookie.twins[1] if bookie.kind.startswith("memory") else bookie.disks[1]
    return await disk.names("entries")


async def served(bookie: Bookie, ledger_id: LedgerId, count: int) -> set[Status]:
    reply = await bookie.store.read(ledger_id, ids(range(count)))
    return {result.status for result in reply.results}


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_collected_ledger_is_deleted_and_stays_fenced(bookie: Bookie, is_flushed: bool) -> None:
    for ledger_id in (LEDGER, OTHER):
        await bookie.store.add(batch(*range(30), ledger_id=ledger_id))
    if is_flushed:
        await bookie.store.checkpoint()
        await bookie.store.add(batch(2, 40))
    assert await bookie.store.ledger_ids() == [LEDGER, OTHER]
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    for _ in range(2):
        assert await served(bookie, LEDGER, 41) == {Status.NO_ENTRY}
        assert not (await bookie.store.list_entries(LEDGER)).entries
        assert (await bookie.store.read_last(LEDGER)).results[0].entry_id == -1
        assert (await bookie.store.add(batch(1))).status is Status.FENCED
        assert (await bookie.store.add(batch(1, key=b"wrong", is_recovery=True))).status is Status.UNAUTHORIZED
        assert await served(bookie, OTHER, 30) == {Status.OK}
        assert await bookie.store.ledger_ids() == [OTHER]
        await restart(bookie)


@ONLY_RESTARTED
async def test_what_a_crash_restores_is_collected_by_the_next_run(bookie: Bookie) -> None:
    for ledger_id in (LEDGER, OTHER):
        await bookie.store.add(batch(*range(30), ledger_id=ledger_id))
    await collected_at_last(bookie, LEDGER, [OTHER])
    assert await served(bookie, LEDGER, 30) == {Status.NO_ENTRY}
    assert not (await bookie.store.list_entries(LEDGER)).entries
    assert (await bookie.store.add(batch(1))).status is Status.FENCED
    assert await served(bookie, OTHER, 30) == {Status.OK}
    await collected_at_last(bookie, OTHER, [])
    await bookie.store.compact()
    assert await logs(bookie) == []


async def collected_at_last(bookie: Bookie, ledger_id: LedgerId, left: list[LedgerId]) -> None:
    """Collect a ledger repeatedly, as a bookie does, until only other ledgers exist."""
    for _ in range(PASSES_MAX):
        assert await bookie.store.collect(ledger_id, bookie.store.mark(ledger_id))
        await bookie.store.checkpoint()
        if await bookie.store.ledger_ids() == left:
            return
    pytest.fail(f"ledger {ledger_id} still exists after {PASSES_MAX} passes")


@ON_ALL
async def test_a_collected_ledger_accepts_copies_again(bookie: Bookie) -> None:
    await bookie.store.add(batch(*range(30)))
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    await bookie.store.add(batch(3, 4, is_recovery=True))
    for _ in range(2):
        assert list((await bookie.store.list_entries(LEDGER)).entries) == [3, 4]
        assert await bookie.store.ledger_ids() == [LEDGER]
        await restart(bookie)


async def test_a_copy_added_to_a_collected_ledger_is_listed_after_a_crash(bookie: Bookie) -> None:
    await bookie.store.add(batch(*range(10)))
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    await bookie.store.checkpoint()  # the index records the ledger as collected
    assert (await bookie.store.add(batch(3, is_recovery=True))).status is Status.OK
    for is_clean in (False, True):
        await restart(bookie, cleanly=is_clean)
        assert await bookie.store.ledger_ids() == [LEDGER]
        assert list((await bookie.store.list_entries(LEDGER)).entries) == [3]


@ON_ALL
@pytest.mark.parametrize("touch", ["add", "list", "fence", "limbo", "mark", "unmark"])
async def test_a_cleared_mark_deletes_nothing(bookie: Bookie, touch: str) -> None:
    store = bookie.store
    await store.add(batch(*range(30)))
    mark = store.mark(LEDGER)
    match touch:
        case "add":
            await store.add(batch(5))
        case "list":
            await store.list_entries(LEDGER)
        case "fence":
            await store.fence(LEDGER, KEY)
        case "limbo":
            await store.set_limbo([LEDGER])
        case "mark":
            store.mark(LEDGER)
        case "unmark":
            store.unmark(LEDGER, mark)
    assert not store.is_marked(LEDGER, mark)
    assert not await store.collect(LEDGER, mark)
    assert len((await store.list_entries(LEDGER)).entries) == 30


async def test_reads_and_other_ledgers_do_not_clear_a_mark(bookie: Bookie) -> None:
    await bookie.store.add(batch(*range(30)))
    mark = bookie.store.mark(LEDGER)
    await bookie.store.read(LEDGER, ids([1]))
    await bookie.store.add(batch(1, ledger_id=OTHER))
    await bookie.store.list_entries(OTHER)
    assert await bookie.store.collect(LEDGER, mark)


class DeletingIndex(MemoryIndex):
    """Counts the deleted keys in the ranges that are read, because RocksDB passes over each of them."""

    deleted: frozenset[bytes] = frozenset()
    skipped = 0

    async def range(self, first_key: bytes, end_key: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        found = await super().range(first_key, end_key, limit)
        read_to = found[-1][0] if len(found) == limit else end_key
        self.skipped += sum(first_key <= key < read_to for key in self.deleted)
        return found

    async def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        await super().write(puts, deletes)
        self.deleted |= frozenset(deletes)


async def test_later_pages_of_a_collection_skip_nothing_after_earlier_deletions() -> None:
    index = DeletingIndex()
    store = await LedgerStorage.open(MemoryDisk(), MemoryDisk(), index, SETTINGS, SystemClock())
    await store.add(batch(*range(100)))
    await store.checkpoint()
    assert await store.collect(LEDGER, store.mark(LEDGER))
    assert len(index.deleted) >= 100
    assert index.skipped == 0
    assert not (await store.list_entries(LEDGER)).entries
    await store.close()


@ON_ALL
@pytest.mark.parametrize("turns", range(0, 40, 2))
async def test_entries_acknowledged_during_a_collection_are_kept(bookie: Bookie, turns: int) -> None:
    store = bookie.store
    await store.add(batch(*range(30)))
    await store.checkpoint()
    collecting = asyncio.ensure_future(store.collect(LEDGER, store.mark(LEDGER)))
    for _ in range(turns):
        await asyncio.sleep(0)
    reply, _ = await asyncio.gather(store.add(batch(0, 29, 50, is_recovery=True)), store.checkpoint())
    await collecting
    assert reply.status is Status.OK
    for _ in range(2):
        assert {0, 29, 50} <= set((await bookie.store.list_entries(LEDGER)).entries)
        assert await served(bookie, LEDGER, 1) == {Status.OK}
        await restart(bookie, cleanly=False)


@ON_ALL
@pytest.mark.parametrize("turns", range(0, 40, 2))
async def test_entries_in_a_listing_are_not_deleted_by_a_concurrent_collection(bookie: Bookie, turns: int) -> None:
    store = bookie.store
    await store.add(batch(*range(30)))
    await store.checkpoint()
    collecting = asyncio.ensure_future(store.collect(LEDGER, store.mark(LEDGER)))
    for _ in range(turns):
        await asyncio.sleep(0)
    listed = set((await store.list_entries(LEDGER)).entries)
    is_collected = await collecting
    assert set((await store.list_entries(LEDGER)).entries) == listed
    assert not (is_collected and listed)


async def test_ledgers_are_listed_in_pages(bookie: Bookie) -> None:
    known = [LedgerId(number * 3) for number in range(20)]
    for ledger_id in known[:10]:
        await bookie.store.add(batch(1, ledger_id=ledger_id))
    await bookie.store.checkpoint()
    for ledger_id in known[10:]:
        await bookie.store.fence(ledger_id, KEY)
    for ledger_id in known[::4]:
        assert await bookie.store.collect(ledger_id, bookie.store.mark(ledger_id))
    left = [ledger_id for ledger_id in known if ledger_id not in known[::4]]
    for _ in range(2):
        for limit in (1, 3, 1000):
            found: list[LedgerId] = []
            while page := await bookie.store.ledger_ids(found[-1] if found else -1, limit):
                found += page
            assert found == left
        await bookie.store.checkpoint()


async def test_space_is_released_and_live_entries_are_kept(bookie: Bookie) -> None:
    for number in range(6):
        for ledger_id in (LEDGER, OTHER):
            count = 40 if ledger_id == LEDGER else 5
            await bookie.store.add(batch(*range(number * 100, number * 100 + count), ledger_id=ledger_id))
        await bookie.store.checkpoint()
    live = ids([number * 100 + entry for number in range(6) for entry in range(5)])
    assert len(await logs(bookie)) == 6
    assert (await bookie.store.compact()).removed_logs == 0
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    reading = [asyncio.ensure_future(bookie.store.read(OTHER, live)) for _ in range(30)]
    done = await bookie.store.compact()
    assert done.removed_logs == 6
    assert 0 < done.copied_bytes < done.freed_bytes
    reading.append(asyncio.ensure_future(bookie.store.read(OTHER, live)))
    for reply in await asyncio.gather(*reading):
        assert {result.status for result in reply.results} == {Status.OK}
    for is_clean in (True, False):
        await restart(bookie, cleanly=is_clean)
        reply = await bookie.store.read(OTHER, live)
        assert [result.status for result in reply.results] == [Status.OK] * len(live)
    assert (await bookie.store.compact()).removed_logs == 0
    assert await bookie.store.collect(OTHER, bookie.store.mark(OTHER))
    await bookie.store.compact()
    assert await logs(bookie) == []


@pytest.mark.parametrize("ledgers", [1, 40])
async def test_the_space_of_entries_that_were_stored_again_is_released(bookie: Bookie, ledgers: int) -> None:
    """Repeated copies, recoveries and Apache's workers send entries that are stored already."""
    for number in range(5):
        for ledger_id in range(ledgers):
            await bookie.store.add(batch(*range(30 + number), ledger_id=LedgerId(100 + ledger_id)))
        await bookie.store.checkpoint()
    assert len(await logs(bookie)) == 5
    done = await bookie.store.compact()
    assert (done.removed_logs, len(await logs(bookie))) == (4, 1)
    for is_clean in (True, False):
        await restart(bookie, cleanly=is_clean)
        for ledger_id in range(ledgers):
            assert await served(bookie, LedgerId(100 + ledger_id), 34) == {Status.OK}
        assert (await bookie.store.compact()).removed_logs == 0
    for ledger_id in range(ledgers):
        assert await bookie.store.collect(LedgerId(100 + ledger_id), bookie.store.mark(LedgerId(100 + ledger_id)))
    await bookie.store.compact()
    assert await logs(bookie) == []


@ON_ALL
async def test_a_crash_between_copies_of_an_entry_wastes_no_space_permanently(bookie: Bookie) -> None:
    """The journal stores the recovered entries again; the space of the previous copies is released."""
    for _ in range(4):
        await bookie.store.add(batch(*range(30)))
        await bookie.store.checkpoint()
        await bookie.store.add(batch(*range(30)))
        await restart(bookie, cleanly=False)
    await bookie.store.checkpoint()
    await bookie.store.compact()
    assert len(await logs(bookie)) == 1
    assert await served(bookie, LEDGER, 30) == {Status.OK}
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    await bookie.store.compact()
    assert await logs(bookie) == []


@dataclass
class FlushThatFails:
    """Makes appends to entry logs fail from the given one on, after a part of the page was written."""

    error: type[DiskError]
    good_pages: int
    is_half_written: bool = True
    """If false, only some bytes of the first record are written."""

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        append = EntryLogWriter.append

        async def failing(log: EntryLogWriter, entries: Sequence[tuple[bytes, int]]) -> list[bytes]:
            self.good_pages -= 1
            if self.good_pages >= 0:
                return await append(log, entries)
            half = b"".join(struct.pack(">II", len(body), crc) + body for body, crc in entries)
            await log.file.append([half[: len(half) // 2 + 3 if self.is_half_written else 5]])
            raise self.error("planted")

        monkeypatch.setattr(EntryLogWriter, "append", failing)


async def is_all_given_back(bookie: Bookie, ledger_ids: Sequence[LedgerId]) -> bool:
    """Return whether no entry log remains after all ledgers are deleted."""
    for ledger_id in ledger_ids:
        assert await bookie.store.collect(ledger_id, bookie.store.mark(ledger_id))
    await bookie.store.checkpoint()
    await bookie.store.compact()
    return await logs(bookie) == []


async def used_bytes(bookie: Bookie) -> int:
    if bookie.kind.startswith("memory"):
        return sum(len(bookie.twins[1].content(f"entries/{name}")) for name in await logs(bookie))
    return sum(path.stat().st_size for path in (bookie.root / "ledgers" / "entries").iterdir())


@pytest.mark.parametrize("good_pages", range(6))
@pytest.mark.parametrize("torn", ["cut", "zeros", "short"])
async def test_the_space_of_a_log_cut_off_by_a_power_loss_is_released(
    bookie: Bookie, torn: str, good_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds if the power fails again before the bookie has finished. The stored entries are served."""
    await restart_with(bookie, replace(SETTINGS, flush_sync_entries=20))
    for ledger_id, count in ((LEDGER, 50), (OTHER, 6)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    with monkeypatch.context() as patch:
        FlushThatFails(DiskError, good_pages).plant(patch)
        with suppress(DiskError):
            await bookie.store.checkpoint()
        await bookie.stop(cleanly=False)
    for name in await left_logs(bookie):
        tear(bookie, name, torn)
    await bookie.start()
    for _ in range(2):
        assert await served(bookie, LEDGER, 50) == await served(bookie, OTHER, 6) == {Status.OK}
        await restart(bookie, cleanly=False)
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    await bookie.store.compact()
    live = sum(len(entry) + RECORD_HEADER_SIZE for entry in batch(*range(6), ledger_id=OTHER).entries)
    assert await used_bytes(bookie) <= live / SETTINGS.compact_below + 2 * HEADER_SIZE
    assert await served(bookie, OTHER, 6) == {Status.OK}
    assert await is_all_given_back(bookie, [OTHER])


@ON_ALL
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("good_pages", range(7))
async def test_the_space_written_by_a_flush_before_the_disk_was_full_is_released(
    bookie: Bookie, good_pages: int, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await restart_with(bookie, replace(SETTINGS, flush_sync_entries=20))
    for ledger_id, count in ((LEDGER, 50), (OTHER, 6)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    with monkeypatch.context() as patch:
        FlushThatFails(DiskFullError, good_pages).plant(patch)
        with suppress(DiskFullError):
            await bookie.store.checkpoint()
    if is_restarted:
        await restart(bookie, cleanly=False)
    await bookie.store.checkpoint()
    assert await served(bookie, LEDGER, 50) == await served(bookie, OTHER, 6) == {Status.OK}
    assert await is_all_given_back(bookie, [LEDGER, OTHER])


@ON_ALL
async def test_a_log_that_was_compacted_and_not_removed_is_removed_by_the_next_run(
    bookie: Bookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds if the required share of live entries in a log was lowered since."""
    for ledger_id, count in ((LEDGER, 10), (OTHER, 25)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    await bookie.store.checkpoint()
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    await restart_with(bookie, replace(SETTINGS, compact_below=0.9))

    async def refused(compactor: Compactor, log_id: int) -> None:
        raise DiskFullError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(Compactor, "_remove", refused)
        with pytest.raises(DiskFullError):
            await bookie.store.compact()
    assert len(await logs(bookie)) == 2
    await restart_with(bookie, SETTINGS)
    await bookie.store.compact()
    assert len(await logs(bookie)) == 1
    assert await served(bookie, OTHER, 25) == {Status.OK}


@pytest.mark.parametrize("good_pages", range(3))
async def test_the_space_of_a_compaction_stopped_by_a_full_disk_is_released(
    bookie: Bookie, good_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ledger_id, count in ((LEDGER, 100), (OTHER, 25)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    await bookie.store.checkpoint()
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    with monkeypatch.context() as patch:
        FlushThatFails(DiskFullError, good_pages).plant(patch)
        with pytest.raises(DiskFullError):
            await bookie.store.compact()
    for _ in range(2):
        assert await served(bookie, OTHER, 25) == {Status.OK}
        await bookie.store.compact()
    live = sum(len(entry) + RECORD_HEADER_SIZE for entry in batch(*range(25), ledger_id=OTHER).entries)
    assert await used_bytes(bookie) <= live / SETTINGS.compact_below + 2 * HEADER_SIZE
    assert await is_all_given_back(bookie, [OTHER])


@pytest.mark.parametrize("good_pages", range(3))
@pytest.mark.parametrize("torn", ["cut", "zeros", "short", "no record"])
async def test_the_space_of_a_compaction_cut_off_by_a_power_loss_is_released(
    bookie: Bookie, torn: str, good_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ledger_id, count in ((LEDGER, 100), (OTHER, 25)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    await bookie.store.checkpoint()
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    with monkeypatch.context() as patch:
        FlushThatFails(DiskError, good_pages, is_half_written=torn != "no record").plant(patch)
        with pytest.raises(DiskError):
            await bookie.store.compact()
    await bookie.stop(cleanly=False)
    tear(bookie, (await left_logs(bookie))[-1], "short" if torn == "no record" else torn)
    await bookie.start()
    for _ in range(2):
        await bookie.store.compact()
        assert await served(bookie, OTHER, 25) == {Status.OK}
    live = sum(len(entry) + RECORD_HEADER_SIZE for entry in batch(*range(25), ledger_id=OTHER).entries)
    assert await used_bytes(bookie) <= live / SETTINGS.compact_below + 2 * HEADER_SIZE
    assert await is_all_given_back(bookie, [OTHER])


async def test_a_cut_off_log_with_damage_before_its_end_is_kept(
    bookie: Bookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    await restart_with(bookie, replace(SETTINGS, flush_sync_entries=20))
    await bookie.store.add(batch(*range(50)))
    with monkeypatch.context() as patch:
        FlushThatFails(DiskError, 3).plant(patch)
        with suppress(DiskError):
            await bookie.store.checkpoint()
        await bookie.stop(cleanly=False)
    [name] = await left_logs(bookie)
    write_over(bookie, name, HEADER_SIZE + 12, b"\xff\xff")
    await bookie.start()
    assert name in await logs(bookie)


async def test_a_log_that_lost_its_end_is_kept(bookie: Bookie) -> None:
    """Its file ends with a complete record, so only the recorded end shows that synced entries are missing."""
    for ledger_id, count in ((LEDGER, 50), (OTHER, 6)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    await bookie.store.checkpoint()
    await bookie.stop()
    [name] = await left_logs(bookie)
    size = len(read_log(bookie, name))
    await put_into_index(bookie, log_end_put(int(name.removesuffix(".log"), 16), size, is_counted=True))
    await bookie.start()
    [last] = batch(5, ledger_id=OTHER).entries
    cut_log(bookie, name, size - len(last) - RECORD_HEADER_SIZE)
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    done = await bookie.store.compact()
    assert (done.removed_logs, done.kept_damaged) == (0, 1)


@pytest.mark.parametrize("is_older", [True, False])
@pytest.mark.parametrize("is_counted", [False, True])
async def test_an_end_that_was_recorded_for_an_earlier_log_with_the_same_id_removes_no_entry(
    bookie: Bookie, is_counted: bool, is_older: bool
) -> None:
    """An older release leaves the record of a log that was never created, and uses its id again."""
    for ledger_id, count in ((LEDGER, 50), (OTHER, 6)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    await bookie.store.checkpoint()
    await bookie.stop()
    [name] = await left_logs(bookie)
    log_id = int(name.removesuffix(".log"), 16)
    if is_older:
        write_over(bookie, name, 0, older_header(log_id))
    await put_into_index(bookie, log_end_put(log_id, HEADER_SIZE, is_counted=is_counted))
    await bookie.start()
    for _ in range(2):
        assert await served(bookie, LEDGER, 50) == await served(bookie, OTHER, 6) == {Status.OK}
        await restart(bookie)
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    assert (await bookie.store.compact()).removed_logs == 1
    for _ in range(2):
        assert await served(bookie, OTHER, 6) == {Status.OK}
        await restart(bookie, cleanly=False)
    assert await is_all_given_back(bookie, [OTHER])


@pytest.mark.parametrize("is_counted", [False, True])
async def test_an_end_of_an_earlier_log_does_not_turn_damage_into_a_torn_tail(bookie: Bookie, is_counted: bool) -> None:
    for ledger_id, count in ((LEDGER, 50), (OTHER, 6)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    await bookie.store.checkpoint()
    await bookie.stop()
    [name] = await left_logs(bookie)
    log_id = int(name.removesuffix(".log"), 16)
    write_over(bookie, name, 0, older_header(log_id))
    write_over(bookie, name, HEADER_SIZE + 12, b"\xff\xff")
    await put_into_index(bookie, log_end_put(log_id, HEADER_SIZE, is_counted=is_counted))
    await bookie.start()
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    assert (await bookie.store.compact()).kept_damaged == 1
    assert await served(bookie, OTHER, 6) == {Status.OK}


async def test_the_id_of_a_log_that_the_index_refers_to_is_not_reused(bookie: Bookie) -> None:
    await bookie.stop()
    await put_into_index(bookie, log_end_put(9, HEADER_SIZE))
    await bookie.start()
    await bookie.store.add(batch(1))
    await bookie.store.checkpoint()
    assert await logs(bookie) == [f"{10:016x}.log"]


def older_header(log_id: int) -> bytes:
    """Return the header of an entry log as written by a release without recorded ends."""
    header = struct.pack(">8sHxxQ", b"\x93bkhelog", 1, log_id)
    return header + struct.pack(">I", crc32c(header))


async def put_into_index(bookie: Bookie, pair: tuple[bytes, bytes]) -> None:
    """Write records to the index of a stopped bookie."""
    index: EntryIndex
    if bookie.kind.startswith("memory"):
        journal, ledgers, twin = bookie.twins
        index = twin.restarted()
        bookie.twins = journal, ledgers, index
    else:
        index = await RocksIndex.open(bookie.root / "ledgers" / "index")
    await index.write([pair])
    await index.close()


async def restart_with(bookie: Bookie, settings: StorageSettings) -> None:
    bookie.settings = settings
    await restart(bookie)


async def left_logs(bookie: Bookie) -> list[str]:
    """Return the entry logs of a stopped bookie."""
    if bookie.kind.startswith("memory"):
        return await logs(bookie)
    return sorted(path.name for path in (bookie.root / "ledgers" / "entries").iterdir())


def tear(bookie: Bookie, name: str, how: str) -> None:
    """Imitate a power loss in a log whose last page was not synced: its last bytes are lost, or zeros, or stay."""
    content = read_log(bookie, name)
    if how == "cut" and len(content) > HEADER_SIZE:
        cut_log(bookie, name, len(content) - min(20, len(content) - HEADER_SIZE))
    elif how == "zeros" and len(content) > HEADER_SIZE + 20:
        write_over(bookie, name, len(content) - 20, bytes(20))


def read_log(bookie: Bookie, name: str) -> bytes:
    if bookie.kind.startswith("memory"):
        return bookie.twins[1].content(f"entries/{name}")
    return (bookie.root / "ledgers" / "entries" / name).read_bytes()


def cut_log(bookie: Bookie, name: str, size: int) -> None:
    if bookie.kind.startswith("memory"):
        bookie.twins[1].cut(f"entries/{name}", size)
    else:
        os.truncate(bookie.root / "ledgers" / "entries" / name, size)


def write_over(bookie: Bookie, name: str, offset: int, data: bytes) -> None:
    if bookie.kind.startswith("memory"):
        bookie.twins[1].overwrite(f"entries/{name}", offset, data)
    else:
        content = read_log(bookie, name)
        path = bookie.root / "ledgers" / "entries" / name
        path.write_bytes(content[:offset] + data + content[offset + len(data) :])


@ON_ALL
async def test_reads_during_compaction_find_every_entry(bookie: Bookie) -> None:
    for ledger_id, count in ((LEDGER, 100), (OTHER, 20)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    await bookie.store.checkpoint()
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    compacting = asyncio.ensure_future(bookie.store.compact())
    seen: set[Status] = set()
    while not compacting.done():
        seen |= await served(bookie, OTHER, 20)
        await asyncio.sleep(0)  # answers from the read cache do not let the compaction run
    assert (await compacting).removed_logs == 1
    assert seen | await served(bookie, OTHER, 20) == {Status.OK}


async def test_a_log_that_cannot_be_read_is_kept(bookie: Bookie) -> None:
    for ledger_id, count in ((LEDGER, 100), (OTHER, 5)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    await bookie.store.checkpoint()
    [name] = await logs(bookie)
    intact = read_log(bookie, name)
    write_over(bookie, name, 3, b"\0\0")
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    for _ in range(2):
        done = await bookie.store.compact()
        assert (done.removed_logs, done.kept_damaged) == (0, 1)
    assert await served(bookie, OTHER, 5) == {Status.OK}
    write_over(bookie, name, 3, intact[3:5])
    done = await bookie.store.compact(SETTINGS.compact_below)
    assert (done.removed_logs, done.kept_damaged) == (1, 0)
    assert await served(bookie, OTHER, 5) == {Status.OK}


async def test_a_log_with_damage_between_records_is_kept_for_the_records_after_it(bookie: Bookie) -> None:
    for ledger_id, count in ((LEDGER, 100), (OTHER, 20)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    await bookie.store.checkpoint()
    [name] = await logs(bookie)
    at = HEADER_SIZE + sum(len(body) + RECORD_HEADER_SIZE for body in batch(*range(50)).entries)
    write_over(bookie, name, at, b"\xff" * RECORD_HEADER_SIZE)
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    for _ in range(2):
        done = await bookie.store.compact(SETTINGS.compact_below)
        assert (done.removed_logs, done.kept_damaged) == (0, 1)
        assert await served(bookie, OTHER, 20) == {Status.OK}
        await restart(bookie)


async def test_a_log_with_the_header_of_another_log_is_kept(bookie: Bookie) -> None:
    for ledger_id, count in ((LEDGER, 100), (OTHER, 5)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    await bookie.store.checkpoint()
    [name] = await logs(bookie)
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    write_over(bookie, name, 0, older_header(int(name.removesuffix(".log"), 16) + 1))
    done = await bookie.store.compact()
    assert (done.removed_logs, done.kept_damaged) == (0, 1)
    assert await served(bookie, OTHER, 5) == {Status.OK}


@pytest.mark.parametrize("bookie", ["files"], indirect=True)
async def test_the_file_of_a_removed_log_is_closed_when_its_readers_have_finished(bookie: Bookie) -> None:
    """The space of a removed file is released only after it is closed."""
    for ledger_id, count in ((LEDGER, 100), (OTHER, 5)):
        await bookie.store.add(batch(*range(count), ledger_id=ledger_id))
    await bookie.store.checkpoint()
    [name] = await logs(bookie)
    assert await served(bookie, OTHER, 5) == {Status.OK}
    assert any(name in path for path in open_paths())
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    assert (await bookie.store.compact()).removed_logs == 1
    assert not any(name in path for path in open_paths())


def open_paths() -> list[str]:
    """Return the paths of all open files of this process."""
    found = []
    for number in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(number))
    return found


@dataclass
class OneFailure:
    """Makes the ``number``-th operation of a kind on entry logs fail."""

    operation: Operation
    number: int
    error: Exception

    async def before(self, operation: Operation, path: str) -> None:
        if operation is self.operation and path.startswith("entries/"):
            self.number -= 1
            if self.number == 0:
                raise self.error


@pytest.mark.parametrize("bookie", ["memory"], indirect=True)
async def test_a_log_that_disappears_during_a_compaction_does_not_end_it(bookie: Bookie) -> None:
    for first in (0, 100, 200):
        await bookie.store.add(batch(*range(first, first + 40)))
        await bookie.store.add(batch(*range(first, first + 5), ledger_id=OTHER))
        await bookie.store.checkpoint()
    first_log, second_log, third_log = await logs(bookie)
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    # The run opens the three logs for their sizes, and then each of them again.
    bookie.twins[1].before = OneFailure(Operation.OPEN, 5, FileNotFoundError(second_log)).before
    done = await bookie.store.compact()
    assert (done.removed_logs, done.kept_damaged) == (2, 1)
    left = await logs(bookie)
    assert second_log in left
    assert not {first_log, third_log} & set(left)


@pytest.mark.parametrize("bookie", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("operation", "number"), [(Operation.OPEN, 1), (Operation.OPEN, 3), (Operation.READ, 3), (Operation.READ, 4)]
)
@pytest.mark.parametrize("error", [DiskError("input/output error"), DiskFullError("too many open files")])
async def test_a_disk_error_keeps_a_log_for_one_run(
    bookie: Bookie, operation: Operation, number: int, error: DiskError
) -> None:
    """Too many open files end the run, as a full disk does, but are no evidence against the log."""
    for first in (0, 100):
        await bookie.store.add(batch(*range(first, first + 40)))
        await bookie.store.add(batch(*range(first, first + 5), ledger_id=OTHER))
        await bookie.store.checkpoint()
    old = await logs(bookie)
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    bookie.twins[1].before = OneFailure(operation, number, error).before
    if isinstance(error, DiskFullError):
        with pytest.raises(DiskFullError):
            await bookie.store.compact()
    else:
        done = await bookie.store.compact()
        assert (done.removed_logs, done.kept_damaged) == (1, 1)
    left = set(await logs(bookie)) & set(old)
    assert len(left) == (2 if isinstance(error, DiskFullError) else 1)
    done = await bookie.store.compact()
    assert (done.removed_logs, done.kept_damaged) == (len(left), 0)
    assert not set(await logs(bookie)) & set(old)
    assert await served(bookie, OTHER, 5) == {Status.OK}


@pytest.mark.parametrize("bookie", ["memory"], indirect=True)
async def test_a_log_that_cannot_be_removed_does_not_keep_the_space_of_others(bookie: Bookie) -> None:
    for first in range(0, 1200, 100):
        await bookie.store.add(batch(first, first + 1))
        await bookie.store.checkpoint()
    old = await logs(bookie)
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    disk = bookie.twins[1]
    disk.before = OneFailure(Operation.UNLINK, 1, DiskError("structure needs cleaning")).before
    done = await bookie.store.compact()
    assert (done.removed_logs, done.kept_damaged) == (len(old) - 1, 1)
    assert old[0] in await logs(bookie)
    done = await bookie.store.compact()
    assert (done.removed_logs, done.kept_damaged) == (1, 0)


@pytest.mark.parametrize("bookie", ["memory"], indirect=True)
async def test_a_disk_from_which_nothing_can_be_removed_ends_a_compaction(bookie: Bookie) -> None:
    for first in range(0, 1200, 100):
        await bookie.store.add(batch(first, first + 1))
        await bookie.store.checkpoint()
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))

    async def fail(operation: Operation, path: str) -> None:
        if operation is Operation.UNLINK:
            raise DiskError("input/output error")

    bookie.twins[1].before = fail
    with pytest.raises(DiskError, match="input/output error"):
        await bookie.store.compact()


@ON_ALL
async def test_the_end_of_limbo_is_durable_and_the_ledger_stays_fenced(bookie: Bookie) -> None:
    await bookie.store.set_limbo([LEDGER, OTHER])
    await bookie.store.add(batch(1, is_recovery=True))
    assert (await bookie.store.list_entries(LEDGER)).status is Status.LIMBO
    assert await bookie.store.limbo_ids() == [LEDGER, OTHER]
    await bookie.store.clear_limbo(LEDGER)
    for is_clean in (False, True, False):
        assert (await bookie.store.list_entries(LEDGER)).status is Status.OK
        assert (await bookie.store.list_entries(OTHER)).status is Status.LIMBO
        assert (await bookie.store.add(batch(2))).status is Status.FENCED
        assert await served(bookie, LEDGER, 1) == {Status.NO_ENTRY}
        assert await bookie.store.limbo_ids() == [OTHER]
        await restart(bookie, cleanly=is_clean)


@ON_ALL
async def test_collection_does_not_end_limbo(bookie: Bookie) -> None:
    await bookie.store.set_limbo([LEDGER])
    await bookie.store.add(batch(1, is_recovery=True))
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    for _ in range(2):
        read = await bookie.store.read(LEDGER, [EntryId(1)])
        assert read.results[0].status is Status.LIMBO
        assert await bookie.store.ledger_ids() == [LEDGER]
        await restart(bookie)


async def test_a_sequential_reader_finds_replaced_collected_and_moved_entries(bookie: Bookie) -> None:
    assert await bookie.add(*range(300)) is Status.OK
    assert (await bookie.store.add(batch(*range(900), ledger_id=OTHER))).status is Status.OK
    await bookie.store.checkpoint()
    assert await bookie.statuses(*range(20)) == [Status.OK] * 20
    assert bookie.store.read_cache.read_ahead_bytes > 0
    replaced = [entry(number, b"another version") for number in range(20, 40)]
    assert (await bookie.store.add(AddBatch(LEDGER, KEY, replaced, is_recovery=True))).status is Status.OK
    for _ in range(2):  # first from the write cache, then from the logs
        reply = await bookie.store.read(LEDGER, ids(range(20, 40)))
        assert [result.packet for result in reply.results] == replaced
        await bookie.store.checkpoint()
    assert await bookie.store.collect(OTHER, bookie.store.mark(OTHER))
    assert (await bookie.store.compact()).removed_logs > 0
    for number in range(40, 300):
        assert await bookie.statuses(number) == [Status.OK]
    for number in range(20):
        assert await bookie.statuses(number, ledger_id=OTHER) == [Status.NO_ENTRY]
    hits = bookie.store.read_cache.hits
    assert hits > 200
    assert await bookie.store.collect(LEDGER, bookie.store.mark(LEDGER))
    assert await bookie.statuses(298, 299) == [Status.NO_ENTRY] * 2
    assert bookie.store.read_cache.hits == hits
