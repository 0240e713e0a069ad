"""Which entry logs of an unfinished flush go, and which stay."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from bookie.storage.disks.index_format import dead_key, pack_entry_key, unpack_dead
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex
from bookie.storage.entry_logs.entry_log import DIRECTORY, RECORD_HEADER_SIZE, EntryLogs, log_ids, log_path
from bookie.storage.entry_logs.leftovers import remove_leftovers
from bookie.storage.port import DiskFullError

COUNT = 5


def entry(entry_id: int) -> bytes:
    return struct.pack(">qqqq", 7, entry_id, -1, 0) + b"payload"


async def disk_with_log() -> tuple[MemoryDisk, list[bytes]]:
    """A disk with one log of a few entries, and the index values that would name them."""
    disk = MemoryDisk()
    await disk.make_directory(DIRECTORY)
    writer = await EntryLogs(disk, 1, 10).create()
    values = await writer.append([(entry(number), crc32c(entry(number))) for number in range(COUNT)])
    await writer.sync()
    return disk, values


async def test_log_that_the_index_does_not_name_goes() -> None:
    disk, _ = await disk_with_log()
    await remove_leftovers(disk, MemoryIndex(), [1])
    assert await log_ids(disk) == []


@pytest.mark.parametrize("number", range(COUNT))
async def test_log_stays_if_the_index_names_any_of_its_entries(number: int) -> None:
    disk, values = await disk_with_log()
    index = MemoryIndex()
    await index.write([(pack_entry_key(7, number), values[number])])
    for _ in range(2):
        await remove_leftovers(disk, index, [1])
        assert await log_ids(disk) == [1]
        [dead] = await index.get_many([dead_key(1)])
        assert unpack_dead(dead) == (COUNT - 1) * (len(entry(0)) + RECORD_HEADER_SIZE)


async def test_log_goes_if_the_index_names_its_entries_elsewhere() -> None:
    disk, values = await disk_with_log()
    index = MemoryIndex()
    elsewhere = [struct.pack(">Q", 2) + value[8:] for value in values]
    await index.write([(pack_entry_key(7, number), value) for number, value in enumerate(elsewhere)])
    await remove_leftovers(disk, index, [1])
    assert await log_ids(disk) == []


async def test_log_that_cannot_be_read_to_its_end_stays() -> None:
    disk, _ = await disk_with_log()
    size = len(disk.content(log_path(1)))
    disk.flip_bit(log_path(1), size * 8 - 1)
    await remove_leftovers(disk, MemoryIndex(), [1])
    assert await log_ids(disk) == [1]
    disk.cut(log_path(1), size - 1)
    await remove_leftovers(disk, MemoryIndex(), [1])
    assert await log_ids(disk) == [1]


@pytest.mark.parametrize("size", [0, 5, 24])
async def test_log_without_records_goes(size: int) -> None:
    disk, _ = await disk_with_log()
    disk.cut(log_path(1), size)
    await remove_leftovers(disk, MemoryIndex(), [1])
    assert await log_ids(disk) == []


async def test_full_disk_gives_the_space_of_a_failed_log_back() -> None:
    disk, _ = await disk_with_log()
    disk.capacity_bytes = disk.used_bytes() + 100
    logs = EntryLogs(disk, 2, 10)
    for _ in range(20):
        writer = await logs.create()
        with pytest.raises(DiskFullError):
            await writer.append([(b"x" * 200, 0)])
        await logs.discard(writer)
    assert await log_ids(disk) == [1]
