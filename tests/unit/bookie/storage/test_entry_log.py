"""Entry logs: a read returns what was written, or an error."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bookie.storage.disks.index_format import Location, unpack_location
from bookie.storage.disks.memory import MemoryDisk, Operation
from bookie.storage.entry_logs.entry_log import (
    DIRECTORY,
    EntryLogs,
    _coalesce,
    cut,
    decode_records,
    is_entry,
    log_ids,
    log_path,
)
from bookie.storage.port import DiskError, DiskFile, DiskFullError
from tests.worlds.entries import raw_entry


def entry(entry_id: int, payload: bytes = b"payload", ledger_id: int = 7) -> bytes:
    return raw_entry(ledger_id, entry_id, payload, last_add_confirmed=-1)


async def logs_with(disk: MemoryDisk, *files: list[bytes], open_max: int = 10) -> tuple[EntryLogs, list[Location]]:
    await disk.make_directory(DIRECTORY)
    logs = EntryLogs(disk, 1, open_max)
    locations: list[Location] = []
    for bodies in files:
        writer = await logs.create(logs.take_id())
        values = await writer.append([(body, crc32c(body)) for body in bodies])
        await writer.sync()
        await writer.file.close()
        locations += map(unpack_location, values)
    return logs, locations


async def test_entries_are_returned_in_the_order_requested() -> None:
    bodies = [entry(number, b"x" * number) for number in range(20)]
    logs, locations = await logs_with(MemoryDisk(), bodies[:10], bodies[10:])
    order = [3, 15, 0, 19, 3, 10, 9]
    assert await logs.read([locations[place] for place in order]) == [bodies[place] for place in order]
    assert await logs.read([]) == []


class _Copied(bytes):
    """Bytes that count how many bytes are copied out of them."""

    copied_bytes = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        self.copied_bytes += len(part)
        return part


def test_reading_entries_copies_their_bytes_and_not_those_of_their_block() -> None:
    block = _Copied(bytes(1 << 20))
    parts = [(0, start, 100) for start in range(0, (1 << 20) - 100, 108)]
    assert {len(part) for part in cut([block], parts)} == {100}
    assert block.copied_bytes == 100 * len(parts)


async def test_appends_continue_where_the_last_ended() -> None:
    disk = MemoryDisk()
    await disk.make_directory(DIRECTORY)
    writer = await EntryLogs(disk, 1, 10).create(1)
    first = await writer.append([(entry(1), crc32c(entry(1)))])
    second = await writer.append([(entry(2), crc32c(entry(2)))])
    assert await EntryLogs(disk, 2, 10).read(list(map(unpack_location, first + second))) == [entry(1), entry(2)]


async def test_synced_log_survives_power_loss() -> None:
    disk = MemoryDisk()
    _, locations = await logs_with(disk, [entry(1)])
    for seed in range(20):
        logs = EntryLogs(disk.crash(random.Random(seed)), 2, 10)
        assert await logs.read(locations) == [entry(1)]


async def test_any_flipped_bit_of_an_entry_is_detected() -> None:
    disk = MemoryDisk()
    logs, [location] = await logs_with(disk, [entry(1)])
    for bit in range(location.offset * 8, (location.offset + location.size) * 8):
        disk.flip_bit(log_path(1), bit)
        [data] = await logs.read([location])
        assert isinstance(data, bytes)
        assert not is_entry(location, data, 7, 1), f"bit {bit}"
        disk.flip_bit(log_path(1), bit)


def test_intact_bytes_of_another_entry_are_detected() -> None:
    for stored in (entry(2), entry(1, ledger_id=8)):
        location = Location(1, 0, len(stored), crc32c(stored))
        assert not is_entry(location, stored, 7, 1)


async def test_truncated_log_gives_short_bytes_which_do_not_verify() -> None:
    disk = MemoryDisk()
    logs, locations = await logs_with(disk, [entry(1), entry(2)])
    disk.cut(log_path(1), locations[1].offset + 3)
    first, second = await logs.read(locations)
    assert first == entry(1)
    assert isinstance(second, bytes)
    assert not is_entry(locations[1], second, 7, 2)


async def test_lost_log_has_its_own_error_and_the_others_are_read() -> None:
    disk = MemoryDisk()
    logs, locations = await logs_with(disk, [entry(1)], [entry(2)])
    disk.lose(log_path(1))
    assert await logs.read(locations) == [None, entry(2)]


async def test_unreadable_log_is_an_error_and_the_others_are_read() -> None:
    disk = MemoryDisk()
    logs, locations = await logs_with(disk, [entry(1)], [entry(2)])

    async def bad_sector(operation: Operation, path: str) -> None:
        if operation is Operation.READ and path == log_path(1):
            raise DiskError("input/output error")

    disk.before = bad_sector
    first, second = await logs.read(locations)
    assert isinstance(first, DiskError)
    assert second == entry(2)


async def test_open_files_are_bounded_and_reopened_when_needed() -> None:
    disk = MemoryDisk()
    opened: list[str] = []

    async def count(operation: Operation, path: str) -> None:
        if operation is Operation.OPEN:
            opened.append(path)

    logs, locations = await logs_with(disk, *([entry(number)] for number in range(6)), open_max=2)
    disk.before = count
    for _ in range(3):
        assert await logs.read(locations) == [entry(number) for number in range(6)]
    assert len(logs._open) == 2
    opened.clear()
    for _ in range(5):
        assert await logs.read(locations[-2:]) == [entry(4), entry(5)]
    assert opened == []


async def test_a_file_that_cannot_be_read_is_closed_like_the_others() -> None:
    disk = MemoryDisk()
    logs, locations = await logs_with(disk, *([entry(number)] for number in range(6)), open_max=1)

    async def fail(operation: Operation, path: str) -> None:
        if operation is Operation.READ:
            raise DiskError("input/output error")

    disk.before = fail
    for place in locations:
        with pytest.raises(DiskError):
            await logs.read_range(place.log_id, place.offset, place.size)
    disk.before = MemoryDisk().before
    assert await logs.read(locations) == [entry(number) for number in range(6)]
    assert len(logs._open) == 1


async def test_files_in_use_by_concurrent_readers_are_never_closed() -> None:
    logs, locations = await logs_with(MemoryDisk(), *([entry(number)] for number in range(6)), open_max=1)
    shuffled = [random.Random(seed).sample(locations, 6) for seed in range(30)]
    for places, results in zip(shuffled, await asyncio.gather(*map(logs.read, shuffled)), strict=True):
        assert results == [entry(location.log_id - 1) for location in places]
    assert all(log.uses == 0 for log in logs._open.values())
    assert len(logs._open) == 1


async def test_files_are_closed_although_the_reader_that_closes_them_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs, locations = await logs_with(MemoryDisk(), *([entry(number)] for number in range(6)), open_max=6)
    await logs.read(locations)
    opened: list[Any] = [log.file for log in logs._open.values()]
    logs._open_max, gate = 1, asyncio.Event()

    async def close(file: DiskFile) -> None:
        await gate.wait()
        monkeypatch.undo()
        await file.close()

    monkeypatch.setattr(type(opened[0]), "close", close)
    reading = asyncio.create_task(logs.read(locations[-1:]))
    for _ in range(10):
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    monkeypatch.undo()
    assert await logs.read(locations[-1:]) == [entry(5)]
    assert [file.is_closed for file in opened[1:]] == [True] * 4 + [False]


async def test_full_disk_at_creation_leaves_no_file_and_its_id_is_not_reused() -> None:
    disk = MemoryDisk(capacity_bytes=10)
    await disk.make_directory(DIRECTORY)
    logs = EntryLogs(disk, 5, 10)
    with pytest.raises(DiskFullError):
        await logs.create(logs.take_id())
    assert await log_ids(disk) == []
    disk.capacity_bytes = 1000
    writer = await logs.create(logs.take_id())
    assert await log_ids(disk) == [6]
    await logs.discard(writer)
    assert await log_ids(disk) == []


@given(st.lists(st.binary(min_size=32, max_size=90), max_size=10), st.integers(0, 1000))
def test_records_are_decoded_up_to_the_first_incomplete_one(bodies: list[bytes], cut: int) -> None:
    data = b"".join(struct.pack(">II", len(body), crc32c(body)) + body for body in bodies)
    ends = [sum(len(body) + 8 for body in bodies[: count + 1]) for count in range(len(bodies))]
    records = decode_records(data[:cut])
    assert [body for _, body in records] == bodies[: sum(end <= cut for end in ends)]
    assert all(data[at.offset : at.offset + at.size] == body for at, body in records)


def test_hole_of_zeros_contains_no_records() -> None:
    assert decode_records(bytes(1000)) == []


def test_record_with_any_flipped_bit_ends_the_decoding() -> None:
    data = b"".join(
        struct.pack(">II", 40, crc32c(body)) + body for body in (entry(0, b"12345678"), entry(1, b"12345678"))
    )
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert len(decode_records(bytes(damaged))) == bit // 8 // 48, f"bit {bit}"


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 5000)), max_size=30))
def test_a_few_ranges_cover_every_location(places: list[tuple[int, int]]) -> None:
    locations = [Location(1, offset, size, 0) for offset, size in places]
    ranges, chosen = _coalesce(locations)
    for location, place in zip(locations, chosen, strict=True):
        first, size = ranges[place]
        assert first <= location.offset
        assert location.offset + location.size <= first + size
    ends = [first + size for first, size in ranges]
    assert all(end < first for end, (first, _) in zip(ends, ranges[1:], strict=False))


async def test_a_bad_sector_fails_only_the_entries_on_it() -> None:
    disk = MemoryDisk()
    logs, locations = await logs_with(disk, [entry(number) for number in range(1000)], [entry(1000)])
    bad = {3, 4, 998}
    disk.bad_sectors = {(log_path(1), locations[place].offset + 5) for place in bad}
    found = await logs.read(locations)
    assert {place for place, data in enumerate(found) if isinstance(data, DiskError)} == bad
    assert all(data == entry(place) for place, data in enumerate(found) if place not in bad)


async def test_the_attempts_on_a_failing_disk_are_bounded() -> None:
    disk = MemoryDisk()
    logs, locations = await logs_with(disk, [entry(number) for number in range(1000)])
    disk.bad_sectors = {(log_path(1), location.offset) for location in locations}
    reads = 0

    async def count(operation: Operation, path: str) -> None:
        nonlocal reads
        reads += operation is Operation.READ

    disk.before = count
    assert all(isinstance(data, DiskError) for data in await logs.read(locations))
    assert reads < 100
