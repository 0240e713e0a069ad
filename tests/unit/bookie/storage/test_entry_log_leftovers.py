"""Which entry logs of an unfinished flush are removed, and which are kept."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from bookie.storage.disks.index_format import dead_key, pack_entry_key, unpack_dead, unpack_location
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation
from bookie.storage.entry_logs import leftovers
from bookie.storage.entry_logs.entry_log import (
    DIRECTORY,
    HEADER_SIZE,
    RECORD_HEADER_SIZE,
    EntryLogs,
    log_ids,
    log_path,
)
from bookie.storage.entry_logs.leftovers import remove_leftovers
from bookie.storage.entry_logs.log_ends import log_end_put, read_log_end, uncounted
from bookie.storage.port import DiskError, DiskFullError
from tests.worlds.entries import raw_entry

COUNT = 5


def entry(entry_id: int) -> bytes:
    return raw_entry(7, entry_id, last_add_confirmed=-1)


async def disk_with_log() -> tuple[MemoryDisk, list[bytes]]:
    """Return a disk with one log of a few entries, and the index values of these entries."""
    disk = MemoryDisk()
    await disk.make_directory(DIRECTORY)
    writer = await EntryLogs(disk, 2, 10).create(1)
    values = await writer.append([(entry(number), crc32c(entry(number))) for number in range(COUNT)])
    await writer.sync()
    return disk, values


async def test_log_without_entries_in_the_index_is_removed() -> None:
    disk, _ = await disk_with_log()
    await remove_leftovers(disk, MemoryIndex(), [1])
    assert await log_ids(disk) == []


@pytest.mark.parametrize("number", range(COUNT))
async def test_log_with_any_entry_in_the_index_is_kept(number: int) -> None:
    disk, values = await disk_with_log()
    index = MemoryIndex()
    await index.write([(pack_entry_key(7, number), values[number])])
    for _ in range(2):
        await remove_leftovers(disk, index, [1])
        assert await log_ids(disk) == [1]
        [dead] = await index.get_many([dead_key(1)])
        assert unpack_dead(dead) == (COUNT - 1) * (len(entry(0)) + RECORD_HEADER_SIZE)


@pytest.mark.parametrize("is_there", [True, False])
async def test_log_is_removed_if_the_index_has_its_entries_in_an_existing_log(is_there: bool) -> None:
    disk, values = await disk_with_log()
    index = MemoryIndex()
    elsewhere = [struct.pack(">Q", 2) + value[8:] for value in values]
    await index.write([(pack_entry_key(7, number), value) for number, value in enumerate(elsewhere)])
    if is_there:
        await (await EntryLogs(disk, 3, 10).create(2)).sync()
    for _ in range(2):
        await remove_leftovers(disk, index, [1])
        assert await log_ids(disk) == ([2] if is_there else [1])
        named = await index.get_many([pack_entry_key(7, number) for number in range(COUNT)])
        assert named == (elsewhere if is_there else values)


@pytest.mark.parametrize("named", [None, *range(COUNT)])
async def test_whole_log_is_read_however_large_it_is(named: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    record = len(entry(0)) + RECORD_HEADER_SIZE
    monkeypatch.setattr(leftovers, "_WINDOW_BYTES", record * 3 // 2)
    disk, values = await disk_with_log()
    index = MemoryIndex()
    if named is not None:
        await index.write([(pack_entry_key(7, named), values[named])])
    await remove_leftovers(disk, index, [1])
    assert await log_ids(disk) == ([] if named is None else [1])
    [dead] = await index.get_many([dead_key(1)])
    assert unpack_dead(dead) == (0 if named is None else (COUNT - 1) * record)


async def test_log_that_cannot_be_read_to_its_end_is_kept() -> None:
    disk, _ = await disk_with_log()
    size = len(disk.content(log_path(1)))
    disk.flip_bit(log_path(1), size * 8 - 1)
    await remove_leftovers(disk, MemoryIndex(), [1])
    assert await log_ids(disk) == [1]
    disk.cut(log_path(1), size - 1)
    await remove_leftovers(disk, MemoryIndex(), [1])
    assert await log_ids(disk) == [1]


@pytest.mark.parametrize("operation", [Operation.OPEN, Operation.READ])
async def test_a_log_that_the_device_cannot_read_is_kept_and_does_not_prevent_the_start(operation: Operation) -> None:
    disk, values = await disk_with_log()
    index = MemoryIndex()
    await index.write([log_end_put(1, HEADER_SIZE), (pack_entry_key(7, 0), values[0])])

    async def before(now: Operation, path: str) -> None:
        if now is operation:
            raise DiskError("input/output error")

    disk.before = before
    await remove_leftovers(disk, index, [])
    disk.before = MemoryDisk().before
    assert (await log_ids(disk), await uncounted(index)) == ([1], [1])
    await remove_leftovers(disk, index, [])
    assert (await log_ids(disk), await uncounted(index)) == ([1], [])


async def test_a_log_that_cannot_be_removed_does_not_prevent_the_start() -> None:
    disk, _ = await disk_with_log()
    index = MemoryIndex()
    await index.write([log_end_put(1, HEADER_SIZE)])

    async def before(operation: Operation, path: str) -> None:
        if operation is Operation.UNLINK:
            raise DiskError("structure needs cleaning")

    disk.before = before
    await remove_leftovers(disk, index, [])
    disk.before = MemoryDisk().before
    assert (await log_ids(disk), await uncounted(index)) == ([1], [1])
    await remove_leftovers(disk, index, [])
    assert (await log_ids(disk), await uncounted(index)) == ([], [])


async def test_too_many_open_files_prevent_the_start() -> None:
    disk, _ = await disk_with_log()

    async def before(operation: Operation, path: str) -> None:
        if operation is Operation.OPEN:
            raise DiskFullError("too many open files")

    disk.before = before
    with pytest.raises(DiskFullError):
        await remove_leftovers(disk, MemoryIndex(), [1])


@pytest.mark.parametrize("size", [0, 5, 24])
async def test_log_without_records_is_removed(size: int) -> None:
    disk, _ = await disk_with_log()
    disk.cut(log_path(1), size)
    await remove_leftovers(disk, MemoryIndex(), [1])
    assert await log_ids(disk) == []


async def test_full_disk_frees_the_space_of_a_failed_log() -> None:
    disk, _ = await disk_with_log()
    disk.capacity_bytes = disk.used_bytes() + 100
    logs = EntryLogs(disk, 2, 10)
    for _ in range(20):
        writer = await logs.create(logs.take_id())
        with pytest.raises(DiskFullError):
            await writer.append([(b"x" * 200, 0)])
        await logs.discard(writer)
    assert await log_ids(disk) == [1]


@pytest.mark.parametrize("named", range(COUNT + 1))
async def test_all_bytes_after_the_recorded_end_of_a_log_are_dead(named: int) -> None:
    disk, values = await disk_with_log()
    places = [unpack_location(value) for value in values]
    end = places[named - 1].offset + places[named - 1].size if named else HEADER_SIZE
    size = len(disk.content(log_path(1)))
    disk.overwrite(log_path(1), end, bytes(size - end))
    index = MemoryIndex()
    await index.write([log_end_put(1, end), *((pack_entry_key(7, number), values[number]) for number in range(named))])
    for _ in range(2):
        await remove_leftovers(disk, index, [])
        assert await log_ids(disk) == ([1] if named else [])
        [dead] = await index.get_many([dead_key(1)])
        assert unpack_dead(dead) == (size - end if named else 0)
        assert await uncounted(index) == []


async def test_damage_before_the_recorded_end_keeps_the_log() -> None:
    disk, values = await disk_with_log()
    place = unpack_location(values[2])
    index = MemoryIndex()
    await index.write([log_end_put(1, place.offset + place.size)])
    disk.flip_bit(log_path(1), place.offset * 8)
    await remove_leftovers(disk, index, [])
    assert await log_ids(disk) == [1]


def written_by_an_older_release(disk: MemoryDisk) -> None:
    """Give the log the header of a release that did not record the ends of logs."""
    header = struct.pack(">8sHxxQ", b"\x93bkhelog", 1, 1)
    disk.overwrite(log_path(1), 0, header + struct.pack(">I", crc32c(header)))


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize("log_ids_given", [[], [1]])
@pytest.mark.parametrize(
    "offset", [HEADER_SIZE, HEADER_SIZE + 3, HEADER_SIZE + 2 * (len(entry(0)) + RECORD_HEADER_SIZE)]
)
async def test_an_end_of_an_earlier_log_with_the_same_id_removes_no_entries(
    offset: int, log_ids_given: list[int], is_older: bool
) -> None:
    disk, values = await disk_with_log()
    if is_older:
        written_by_an_older_release(disk)
    before = disk.content(log_path(1))
    index = MemoryIndex()
    await index.write([log_end_put(1, offset), (pack_entry_key(7, COUNT - 1), values[-1])])
    await remove_leftovers(disk, index, log_ids_given)
    assert disk.content(log_path(1)) == before
    assert await read_log_end(index, 1) is None
    [dead] = await index.get_many([dead_key(1)])
    assert unpack_dead(dead) == (COUNT - 1) * (len(entry(0)) + RECORD_HEADER_SIZE)


@pytest.mark.parametrize("damaged", range(COUNT))
async def test_an_end_of_an_earlier_log_does_not_turn_damage_into_a_torn_tail(damaged: int) -> None:
    disk, values = await disk_with_log()
    written_by_an_older_release(disk)
    disk.flip_bit(log_path(1), unpack_location(values[damaged]).offset * 8)
    index = MemoryIndex()
    await index.write([log_end_put(1, HEADER_SIZE), (pack_entry_key(7, COUNT - 1), values[-1])])
    await remove_leftovers(disk, index, [])
    assert (await log_ids(disk), await read_log_end(index, 1)) == ([1], None)


async def test_a_log_with_a_damaged_header_is_kept_if_an_end_is_recorded() -> None:
    disk, _ = await disk_with_log()
    disk.flip_bit(log_path(1), 90)
    index = MemoryIndex()
    await index.write([log_end_put(1, HEADER_SIZE)])
    await remove_leftovers(disk, index, [])
    assert (await log_ids(disk), await uncounted(index)) == ([1], [1])


async def test_a_log_with_the_header_of_another_is_kept_if_an_end_is_recorded() -> None:
    disk, _ = await disk_with_log()
    await EntryLogs(disk, 3, 10).create(2)
    disk.overwrite(log_path(1), 0, disk.content(log_path(2)))
    index = MemoryIndex()
    await index.write([log_end_put(1, HEADER_SIZE)])
    await remove_leftovers(disk, index, [])
    assert (await log_ids(disk), await uncounted(index)) == ([1, 2], [1])


@pytest.mark.parametrize("size", [0, 5, HEADER_SIZE])
async def test_a_log_that_lost_records_before_its_recorded_end_is_kept(size: int) -> None:
    disk, _ = await disk_with_log()
    disk.cut(log_path(1), size)
    index = MemoryIndex()
    await index.write([log_end_put(1, HEADER_SIZE + 1)])
    await remove_leftovers(disk, index, [])
    assert await log_ids(disk) == [1]


async def test_a_recorded_end_without_a_log_is_removed() -> None:
    disk, _ = await disk_with_log()
    index = MemoryIndex()
    await index.write([log_end_put(5, HEADER_SIZE)])
    await remove_leftovers(disk, index, [])
    assert (await uncounted(index), await log_ids(disk)) == ([], [1])
