"""One suite for the ``Disk`` port: files of the operating system, and the twin in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.runtime.clock import SystemClock
from bookie.runtime.fault_points import inject_faults
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.memory import MemoryDisk
from bookie.storage.disks.spread import SpreadDirectory, SpreadDisk
from bookie.storage.port import Disk, DiskError


@pytest.fixture(params=["files", "memory", "several"])
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Disk]:
    if request.param == "memory":
        yield MemoryDisk()
        return
    if request.param == "several":
        yield await SpreadDisk.over([SpreadDirectory(f"/{n}", MemoryDisk()) for n in range(3)], SystemClock())
        return
    files = await FileDisk.acquire(tmp_path / "root")
    yield files
    await files.close()


@pytest.fixture
async def directory(disk: Disk) -> str:
    await disk.make_directory("entries")
    return "entries"


async def content(disk: Disk, path: str) -> bytes:
    file = await disk.open(path)
    try:
        return (await file.read([(0, await file.size())]))[0]
    finally:
        await file.close()


async def test_appended_parts_are_read_back_in_order(disk: Disk, directory: str) -> None:
    file = await disk.create("entries/a")
    assert await file.append([b"one", b"", b"two"]) == 6
    assert await file.append([b"three"]) == 11
    await file.sync()
    assert await file.size() == 11
    assert await file.read([(0, 11), (3, 3), (6, 2)]) == [b"onetwothree", b"two", b"th"]
    await file.close()
    assert await content(disk, "entries/a") == b"onetwothree"


async def test_append_and_sync_appends_and_syncs(disk: Disk, directory: str) -> None:
    file = await disk.create("entries/a")
    assert await file.append_and_sync([b"one"]) == 3
    assert await file.append_and_sync([b"two"]) == 6
    assert await file.read([(0, 10)]) == [b"onetwo"]
    await file.close()


async def test_a_file_opened_for_reading_can_be_synced(disk: Disk, directory: str) -> None:
    await (await disk.create("entries/a")).append([b"one"])
    file = await disk.open("entries/a")
    await file.sync()
    await file.close()
    assert await content(disk, "entries/a") == b"one"


async def test_reserved_space_reads_as_zeros_and_changes_nothing_else(disk: Disk, directory: str) -> None:
    file = await disk.create("entries/a")
    assert await file.append_and_sync([b"one"]) == 3
    await file.reserve(100)
    assert await file.append_and_sync([b"two"]) == 6
    assert await content(disk, "entries/a") == b"onetwo" + bytes(97)
    assert await file.append_and_sync([b"x" * 200]) == 206
    assert await content(disk, "entries/a") == b"onetwo" + b"x" * 200 + bytes(100)
    await file.reserve(0)
    assert await content(disk, "entries/a") == b"onetwo" + b"x" * 200
    assert await file.append_and_sync([b"y"]) == 207
    await file.close()
    assert await content(disk, "entries/a") == b"onetwo" + b"x" * 200 + b"y"
    with pytest.raises(DiskError):
        await file.reserve(100)


async def test_more_large_parts_than_one_system_call_accepts_are_one_append(disk: Disk, directory: str) -> None:
    parts = [b"%04d" % number * 1024 for number in range(1030)]
    file = await disk.create("entries/a")
    assert await file.append(parts) == 1030 * 4096
    assert await file.read([(0, 1030 * 4096)]) == [b"".join(parts)]
    await file.close()


async def test_thousands_of_small_parts_are_one_append(disk: Disk, directory: str) -> None:
    parts = [b"%05d" % number for number in range(3000)]
    file = await disk.create("entries/a")
    assert await file.append(parts) == 15_000
    assert await file.read([(0, 15_000)]) == [b"".join(parts)]
    await file.close()


async def test_read_past_the_end_is_short_not_an_error(disk: Disk, directory: str) -> None:
    file = await disk.create("entries/a")
    await file.append([b"abc"])
    assert await file.read([(1, 10), (3, 1), (50, 2)]) == [b"bc", b"", b""]
    assert await file.read([]) == []
    await file.close()


async def test_an_immediate_read_returns_the_same_as_a_read(disk: Disk, directory: str) -> None:
    with inject_faults(lambda name: name == "disk.in_memory"):
        file = await disk.create("entries/a")
        await file.append([b"one", b"two"])
        assert file.read_cached(1, 4) in (b"netw", None)  # not every system supports this read
        assert file.read_cached(4, 2) in (b"wo", None)
        assert file.read_cached(4, 3) is None
        assert file.read_cached(6, 1) is None
        await file.close()
        assert file.read_cached(0, 1) is None


async def test_existing_file_is_not_created_again(disk: Disk, directory: str) -> None:
    await (await disk.create("entries/a")).close()
    with pytest.raises(DiskError):
        await disk.create("entries/a")


async def test_file_needs_its_directory(disk: Disk) -> None:
    with pytest.raises(DiskError):
        await disk.create("nowhere/a")


async def test_a_missing_file_has_its_own_error(disk: Disk, directory: str) -> None:
    with pytest.raises(FileNotFoundError):
        await disk.open("entries/a")


async def test_a_file_opened_for_reading_contains_what_was_appended(disk: Disk, directory: str) -> None:
    writer = await disk.create("entries/a")
    reader = await disk.open("entries/a")
    await writer.append([b"abc"])
    assert await reader.read([(0, 3)]) == [b"abc"]
    assert await reader.size() == 3
    with pytest.raises(DiskError):
        await reader.append([b"no"])
    await reader.close()
    await writer.close()


async def test_a_file_opened_for_reading_can_be_synced_and_not_changed(disk: Disk, directory: str) -> None:
    file = await disk.create("entries/a")
    await file.append([b"one"])
    reader = await disk.open("entries/a")
    await reader.sync()
    with pytest.raises(DiskError):
        await reader.append([b"two"])
    await reader.close()
    await file.close()
    assert await content(disk, "entries/a") == b"one"


async def test_closed_file_refuses_everything(disk: Disk, directory: str) -> None:
    file = await disk.create("entries/a")
    await file.close()
    await file.close()
    for attempt in (file.append([b"x"]), file.sync(), file.append_and_sync([b"x"]), file.read([(0, 1)]), file.size()):
        with pytest.raises(DiskError):
            await attempt


async def test_replace_creates_and_replaces(disk: Disk, directory: str) -> None:
    await disk.replace("entries/a", b"first, and longer")
    await disk.replace("entries/a", b"second")
    assert await content(disk, "entries/a") == b"second"
    assert await disk.names("entries") == ["a"]
    await disk.replace("entries/empty", b"")
    assert await content(disk, "entries/empty") == b""


async def test_only_names_of_that_directory_are_listed_and_sorted(disk: Disk) -> None:
    await disk.make_directory("entries/deeper")
    await disk.make_directory("e")
    for path in ("entries/b", "entries/a", "entries/deeper/c", "e/x"):
        await (await disk.create(path)).close()
    assert await disk.names("entries") == ["a", "b", "deeper"]
    assert await disk.names("entries/deeper") == ["c"]
    assert await disk.names("nowhere") == []


async def test_making_a_directory_twice_is_fine(disk: Disk) -> None:
    await disk.make_directory("entries/e/f")
    await disk.make_directory("entries/e/f")
    await (await disk.create("entries/e/f/a")).close()
    assert await disk.names("entries/e/f") == ["a"]


async def test_removed_file_is_gone_and_removing_again_is_fine(disk: Disk, directory: str) -> None:
    await (await disk.create("entries/a")).close()
    await disk.unlink("entries/a")
    await disk.unlink("entries/a")
    await disk.sync_directory("entries")
    assert await disk.names("entries") == []
    with pytest.raises(FileNotFoundError):
        await disk.open("entries/a")


async def test_a_removed_file_is_still_readable_through_an_open_handle(disk: Disk, directory: str) -> None:
    file = await disk.create("entries/a")
    await file.append([b"abc"])
    await disk.unlink("entries/a")
    assert await file.read([(0, 3)]) == [b"abc"]
    await file.close()


async def test_reads_run_in_parallel_with_each_other_and_with_appends(disk: Disk, directory: str) -> None:
    file = await disk.create("entries/a")
    await file.append([b"abc"])
    reader = await disk.open("entries/a")
    reads = [reader.read([(0, 3)]) for _ in range(20)]
    results, _ = await asyncio.gather(asyncio.gather(*reads), file.append_and_sync([b"entries" * 100_000]))
    assert results == [[b"abc"]] * 20
    await reader.close()
    await file.close()


async def test_space_is_plausible(disk: Disk) -> None:
    total, free = await disk.space()
    assert 0 < free <= total
