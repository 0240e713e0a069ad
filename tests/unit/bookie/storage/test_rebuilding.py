"""A lost index is rebuilt from the entry logs: no live entry is lost, and no entry is reported absent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from typing_extensions import override

from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.clock import SystemClock
from bookie.storage import findings, rebuilding
from bookie.storage.disks.index_format import dead_key, unpack_dead
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation
from bookie.storage.entry_logs.entry_log import DIRECTORY, HEADER_SIZE, RECORD_HEADER_SIZE, log_ids, log_path
from bookie.storage.errors import DamagedJournalError, LostIndexError
from bookie.storage.port import DiskError, DiskFile
from bookie.storage.rebuilding import RebuiltIndex, next_record, rebuild
from bookie.storage.salvaging import begin_journals, salvage
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.worlds.entries import raw_entry

KEY = b"key"
SETTINGS = StorageSettings(cache_bytes_max=1 << 20, journal_file_bytes=1, compact_bytes_per_s=1 << 40)
L1, L2, L3, L4 = map(LedgerId, range(1, 5))


async def opened(journal: MemoryDisk, ledgers: MemoryDisk, index: MemoryIndex) -> LedgerStorage:
    return await LedgerStorage.open(journal, ledgers, index, SETTINGS, SystemClock())


async def add(store: LedgerStorage, ledger_id: LedgerId, *entry_ids: int, is_recovery: bool = False) -> None:
    entries = [raw_entry(ledger_id, entry_id) for entry_id in entry_ids]
    assert (await store.add(AddBatch(ledger_id, KEY, entries, is_recovery))).status is Status.OK


async def collect(store: LedgerStorage, ledger_id: LedgerId) -> None:
    assert await store.collect(ledger_id, store.mark(ledger_id))


async def listed(store: LedgerStorage, ledger_id: LedgerId) -> tuple[Status, list[int]]:
    reply = await store.list_entries(ledger_id)
    return reply.status, list(reply.entries)


async def read(store: LedgerStorage, ledger_id: LedgerId, *entry_ids: int) -> list[tuple[Status, bytes]]:
    reply = await store.read(ledger_id, [EntryId(entry_id) for entry_id in entry_ids])
    return [(result.status, result.packet) for result in reply.results]


async def used() -> tuple[MemoryDisk, MemoryDisk]:
    """Return the disks of a store after writes, a fence, repeated adds, a deletion and a compaction. L2 is deleted."""
    journal, ledgers, index = MemoryDisk(), MemoryDisk(), MemoryIndex()
    store = await opened(journal, ledgers, index)
    await add(store, L1, *range(10))
    await add(store, L2, *range(10))
    await store.checkpoint()
    await add(store, L1, *range(5))  # stored again
    await add(store, L3, 0)
    assert (await store.fence(L3, KEY)).status is Status.OK
    await store.checkpoint()
    await collect(store, L2)
    assert (await store.compact()).removed_logs
    await store.checkpoint()
    await add(store, L4, *range(3))  # only in the journal
    await store.abort()
    return journal.restarted(), ledgers.restarted()


async def rebuilt(journal: MemoryDisk, ledgers: MemoryDisk) -> tuple[LedgerStorage, RebuiltIndex]:
    index = MemoryIndex()
    found = await rebuild([journal], ledgers, index)
    return await opened(journal, ledgers, index), found


async def test_all_live_entries_are_served_again_and_the_rest_is_unknown() -> None:
    journal, ledgers = await used()
    with pytest.raises(LostIndexError, match="rebuild-index"):
        await opened(journal, ledgers, MemoryIndex())
    store, found = await rebuilt(journal, ledgers)
    assert (found.entries, found.ledgers, found.finding_count) == (11, 2, 0)
    assert await listed(store, L1) == (Status.LIMBO, list(range(10)))
    assert await read(store, L1, *range(10)) == [(Status.OK, raw_entry(1, number)) for number in range(10)]
    assert await read(store, L3, 0, 1) == [(Status.OK, raw_entry(3, 0)), (Status.LIMBO, b"")]
    assert await listed(store, L4) == (Status.OK, [0, 1, 2])
    assert await listed(store, L2) == (Status.NO_LEDGER, [])  # the caller puts it in limbo if the metadata still has it
    for ledger_id in (L1, L3):
        reply = await store.add(AddBatch(ledger_id, KEY, [raw_entry(ledger_id, 20)]))
        assert reply.status is Status.LIMBO
    await store.close()


async def test_files_with_other_names_next_to_the_logs_change_nothing() -> None:
    journal, ledgers = await used()
    logs = await log_ids(ledgers)
    content = ledgers.content(log_path(logs[0]))
    others = [f"{logs[0]:016x}.damaged", f"copy-{logs[0]:016x}", "00000000000000AB", "000000000000_001", "-1", "1", ""]
    for name in others:
        await ledgers.replace(f"{DIRECTORY}/{name}.log", content)
    assert await log_ids(ledgers) == logs
    store, found = await rebuilt(journal, ledgers)
    assert (found.entries, found.ledgers, found.finding_count) == (11, 2, 0)
    await store.close()
    assert {f"{DIRECTORY}/{name}.log" for name in others} <= set(ledgers.paths())


async def test_an_entry_stored_again_while_its_log_is_compacted_has_its_last_version() -> None:
    """The flush of the last version is under way when the compaction begins, so its log has the smaller id."""
    journal, ledgers, index = MemoryDisk(), MemoryDisk(), MemoryIndex()
    store = await opened(journal, ledgers, index)
    await add(store, L1, *range(3))
    await add(store, L2, *range(10))
    await store.checkpoint()
    await collect(store, L2)
    newer, is_flushing = raw_entry(1, 1, b"newer"), asyncio.Event()
    assert (await store.add(AddBatch(L1, KEY, [newer], is_recovery=True))).status is Status.OK

    async def slow_flush(operation: Operation, path: str) -> None:
        if operation is Operation.APPEND and path == log_path(2):
            is_flushing.set()
            for _ in range(100):
                await asyncio.sleep(0)

    ledgers.before = slow_flush
    flush = asyncio.create_task(store.checkpoint())
    await is_flushing.wait()
    assert (await store.compact()).removed_logs == 1
    await flush
    await store.abort()
    store, found = await rebuilt(journal.restarted(), ledgers.restarted())
    assert await read(store, L1, *range(3)) == [(Status.OK, data) for data in (raw_entry(1, 0), newer, raw_entry(1, 2))]
    assert found.superseded == 0
    await store.close()


async def test_a_deleted_ledger_with_a_remaining_log_reappears_and_can_be_collected_again() -> None:
    journal, ledgers, index = MemoryDisk(), MemoryDisk(), MemoryIndex()
    store = await opened(journal, ledgers, index)
    await add(store, L1, *range(10))
    await add(store, L2, 0)
    await store.checkpoint()
    await collect(store, L2)
    await store.close()
    store, found = await rebuilt(journal, ledgers)
    assert (found.entries, found.ledgers) == (11, 2)
    assert await listed(store, L2) == (Status.LIMBO, [0])
    for ledger_id in (L1, L2):
        await collect(store, ledger_id)
        await store.clear_limbo(ledger_id)
    await store.compact()
    assert await log_ids(ledgers) == []  # so all dead bytes were counted
    await store.close()


async def test_the_space_of_superseded_copies_is_freed() -> None:
    journal, ledgers, index = MemoryDisk(), MemoryDisk(), MemoryIndex()
    store = await opened(journal, ledgers, index)
    for _ in range(3):
        await add(store, L1, *range(10))
        await store.checkpoint()
    await store.close()
    store, found = await rebuilt(journal, ledgers)
    assert (found.entries, found.superseded) == (10, 20)
    assert (await store.compact()).removed_logs == 2
    assert await read(store, L1, *range(10)) == [(Status.OK, raw_entry(1, number)) for number in range(10)]
    await store.close()


async def test_the_later_of_two_different_copies_is_used_and_reported() -> None:
    journal, ledgers, index = MemoryDisk(), MemoryDisk(), MemoryIndex()
    store = await opened(journal, ledgers, index)
    for payload in (b"one", b"two"):
        await store.add(AddBatch(L1, KEY, [raw_entry(1, 0, payload)]))
        await store.checkpoint()
    await store.close()
    store, found = await rebuilt(journal, ledgers)
    assert await read(store, L1, 0) == [(Status.OK, raw_entry(1, 0, b"two"))]
    assert "differs from its copy" in found.findings[0].what
    await store.close()


async def one_log() -> tuple[MemoryDisk, MemoryDisk, str]:
    journal, ledgers, index = MemoryDisk(), MemoryDisk(), MemoryIndex()
    store = await opened(journal, ledgers, index)
    await add(store, L1, *range(4))
    await store.close()
    [log_id] = await log_ids(ledgers)
    return journal, ledgers, log_path(log_id)


async def open_damaged(journal: MemoryDisk, ledgers: MemoryDisk) -> tuple[list[int], int]:
    """Return the answers for four entries and the number of findings. No entry may be wrong or absent."""
    store, found = await rebuilt(journal.restarted(), ledgers)
    results = await read(store, L1, *range(4))
    for number, (status, packet) in enumerate(results):
        assert (status, packet) in ((Status.OK, raw_entry(1, number)), (Status.LIMBO, b""), (Status.NO_LEDGER, b""))
    assert found.entries == sum(status is Status.OK for status, _ in results)
    await store.abort()
    return [number for number, (status, _) in enumerate(results) if status is Status.OK], found.finding_count


async def test_a_damaged_byte_loses_at_most_its_entry_and_is_reported() -> None:
    journal, ledgers, path = await one_log()
    size, record = len(ledgers.content(path)), RECORD_HEADER_SIZE + len(raw_entry(1, 0))
    for byte in range(size):
        damaged = ledgers.restarted()
        damaged.flip_bit(path, byte * 8)
        served, findings = await open_damaged(journal, damaged)
        hit = [(byte - HEADER_SIZE) // record] if byte >= HEADER_SIZE else []
        assert served == [number for number in range(4) if number not in hit]
        assert findings == 1


async def test_a_log_truncated_anywhere_keeps_the_entries_before_that() -> None:
    journal, ledgers, path = await one_log()
    size, record = len(ledgers.content(path)), RECORD_HEADER_SIZE + len(raw_entry(1, 0))
    for end in range(HEADER_SIZE, size):
        damaged = ledgers.restarted()
        damaged.cut(path, end)
        served, findings = await open_damaged(journal, damaged)
        assert served == list(range((end - HEADER_SIZE) // record))
        assert findings == int((end - HEADER_SIZE) % record > 0)


@pytest.mark.parametrize("window_bytes", [200, 500])
async def test_the_next_record_is_found_after_a_window_without_any(
    monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    monkeypatch.setattr(rebuilding, "WINDOW_BYTES", window_bytes)
    monkeypatch.setattr(rebuilding, "PACKET_BYTES_MAX", 100)
    journal, ledgers, index = MemoryDisk(), MemoryDisk(), MemoryIndex()
    store = await opened(journal, ledgers, index)
    await add(store, L1, *range(40))
    await store.close()
    [log_id] = await log_ids(ledgers)
    record = RECORD_HEADER_SIZE + len(raw_entry(1, 0))
    ledgers.overwrite(log_path(log_id), HEADER_SIZE + 10 * record, b"\xff" * (20 * record))
    store, found = await rebuilt(journal, ledgers)
    assert await listed(store, L1) == (Status.LIMBO, [*range(10), *range(30, 40)])
    assert [(each.offset, each.what) for each in found.findings] == [
        (HEADER_SIZE + 10 * record, f"{20 * record} bytes are not intact records")
    ]
    await store.close()


def test_a_hole_of_zeros_has_no_record() -> None:
    assert next_record(bytes(10_000)) == 10_000


async def test_a_log_with_the_header_of_another_is_not_used() -> None:
    journal, ledgers, index = MemoryDisk(), MemoryDisk(), MemoryIndex()
    store = await opened(journal, ledgers, index)
    for payload in (b"older", b"newer"):
        await store.add(AddBatch(L1, KEY, [raw_entry(1, 0, payload)], is_recovery=True))
        await store.checkpoint()
    await store.close()
    older = ledgers.content(log_path((await log_ids(ledgers))[0]))
    await (await ledgers.create(log_path(9))).append_and_sync([older])
    store, found = await rebuilt(journal, ledgers)
    assert [each.path for each in found.findings if "by its header" in each.what] == [log_path(9)]
    assert await read(store, L1, 0) == [(Status.OK, raw_entry(1, 0, b"newer"))]
    await store.close()


@pytest.mark.parametrize("damage", ["cut", "tail", "middle"])
async def test_damaged_bytes_count_as_dead_and_a_torn_tail_keeps_no_log(damage: str) -> None:
    journal, ledgers, path = await one_log()
    size, record = len(ledgers.content(path)), RECORD_HEADER_SIZE + len(raw_entry(1, 0))
    match damage:
        case "cut":
            ledgers.cut(path, size - 10)
        case "tail":
            ledgers.overwrite(path, size - 10, bytes(10))
        case "middle":
            ledgers.overwrite(path, size - 2 * record + 10, b"\xff" * 10)
    index = MemoryIndex()
    await rebuild([journal], ledgers, index)
    [log_id] = await log_ids(ledgers)
    [value] = await index.get_many([dead_key(log_id)])
    assert unpack_dead(value) == (record - 10 if damage == "cut" else record)
    store = await opened(journal, ledgers, index)
    await collect(store, L1)
    assert (await store.compact()).removed_logs == int(damage != "middle")
    await store.close()


class _BadSectors:
    """A file with a part that the device cannot read."""

    def __init__(self, file: DiskFile, begin: int, end: int) -> None:
        self._file, self._begin, self._end = file, begin, end
        self.append, self.sync, self.append_and_sync = file.append, file.sync, file.append_and_sync
        self.size, self.close, self.reserve = file.size, file.close, file.reserve

    async def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if any(offset < self._end and offset + size > self._begin for offset, size in ranges):
            raise DiskError("input/output error")
        return await self._file.read(ranges)

    def read_cached(self, offset: int, size: int) -> bytes | None:
        return None


class _FailingDisk(MemoryDisk):
    bad: tuple[int, int] = (0, 0)

    @override
    async def open(self, path: str) -> DiskFile:
        return _BadSectors(await super().open(path), *self.bad)


async def test_unreadable_sectors_lose_only_the_entries_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "_PIECE_BYTES", 16)
    journal, ledgers, index = MemoryDisk(), _FailingDisk(), MemoryIndex()
    store = await opened(journal, ledgers, index)
    await add(store, L1, *range(4))
    await store.close()
    record = RECORD_HEADER_SIZE + len(raw_entry(1, 0))
    ledgers.bad = (HEADER_SIZE + record + 20, HEADER_SIZE + record + 21)
    found = await rebuild([journal], ledgers, index := MemoryIndex())
    ledgers.bad = (0, 0)
    assert found.findings[0].what == "input/output error"
    store = await opened(journal, ledgers, index)
    assert await listed(store, L1) == (Status.LIMBO, [0, 2, 3])
    await store.close()


async def test_a_rebuild_that_is_interrupted_at_any_write_leaves_an_index_that_is_refused() -> None:
    journal, ledgers = await used()

    class StoppedError(Exception):
        pass

    for at in range(1000):
        writes = 0

        async def stop(operation: Operation, path: str, at: int = at) -> None:
            nonlocal writes
            if operation is Operation.INDEX_WRITE:
                if writes == at:
                    raise StoppedError
                writes += 1

        index = MemoryIndex(before=stop)
        try:
            await rebuild([journal], ledgers, index)
        except StoppedError:
            with pytest.raises(LostIndexError):
                await opened(journal.restarted(), ledgers.restarted(), index.restarted())
        else:
            assert at > 3
            return
    pytest.fail("the rebuild never ended")


@pytest.mark.parametrize("is_lost", [True, False])
async def test_if_the_journal_is_lost_as_well_the_store_requires_a_salvage(is_lost: bool) -> None:
    journal, ledgers = await used()
    for path in journal.paths():
        if is_lost:
            journal.lose(path)
        elif "mark" in path:
            journal.cut(path, 5)
    index = MemoryIndex()
    await rebuild([journal], ledgers, index)
    with pytest.raises(DamagedJournalError, match="salvage-journal"):
        await opened(journal, ledgers, index)
    found = await salvage([journal], ledgers, index, SETTINGS)
    for path in journal.paths():
        journal.lose(path)
    await begin_journals([journal], index, found.epoch + 1)
    store = await opened(journal, ledgers, index)
    assert await listed(store, L1) == (Status.LIMBO, list(range(10)))
    assert await listed(store, L4) == ((Status.NO_LEDGER, []) if is_lost else (Status.LIMBO, [0, 1, 2]))
    await store.close()


async def test_without_any_journal_file_the_mark_is_the_beginning() -> None:
    journal, ledgers, _ = await one_log()
    for path in journal.paths():
        if path.endswith(".journal"):
            journal.lose(path)
    index = MemoryIndex()
    await rebuild([journal], ledgers, index)
    store = await opened(journal, ledgers, index)
    assert await read(store, L1, 3) == [(Status.OK, raw_entry(1, 3))]
    await add(store, L4, 0)
    await store.abort()
    store = await opened(journal.restarted(), ledgers.restarted(), index.restarted())
    assert await read(store, L4, 0) == [(Status.OK, raw_entry(4, 0))]
    await store.close()
