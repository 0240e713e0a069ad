"""One suite for the ``EntryIndex`` port: RocksDB, and the twin in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from bookie.runtime.fault_points import inject_faults
from bookie.storage.disks.memory import MemoryIndex
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.port import DiskError, EntryIndex

Reopen = Callable[[], Awaitable[EntryIndex]]


@pytest.fixture(params=["rocksdb", "memory"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[EntryIndex, Reopen]]:
    current: list[EntryIndex] = []

    async def reopen() -> EntryIndex:
        if request.param == "rocksdb":
            if current:
                await current[-1].close()
            current.append(await RocksIndex.open(tmp_path / "index"))
        else:
            last = current[-1] if current else MemoryIndex()
            assert isinstance(last, MemoryIndex)
            current.append(last.restarted())
        return current[-1]

    yield await reopen(), reopen
    await current[-1].close()


@pytest.fixture
def index(opened: tuple[EntryIndex, Reopen]) -> EntryIndex:
    return opened[0]


async def fill(index: EntryIndex, *keys: bytes) -> None:
    await index.write([(key, b"value of " + key) for key in keys])


async def test_values_are_returned_in_the_requested_order(index: EntryIndex) -> None:
    await fill(index, b"a", b"b", b"\xff\x00")
    assert await index.get_many([b"\xff\x00", b"nothing", b"a", b"a"]) == [
        b"value of \xff\x00",
        None,
        b"value of a",
        b"value of a",
    ]
    assert await index.get_many([]) == []


async def test_the_last_put_wins(index: EntryIndex) -> None:
    await index.write([(b"a", b"1"), (b"a", b"2")])
    assert await index.get_many([b"a"]) == [b"2"]
    await index.write([(b"a", b"")])
    assert await index.get_many([b"a"]) == [b""]


async def test_deleted_keys_are_absent(index: EntryIndex) -> None:
    await fill(index, b"a", b"b", b"c")
    await index.write([(b"d", b"4")], [b"b", b"never there"])
    assert await index.keys(b"", b"\xff", 10) == [b"a", b"c", b"d"]
    assert await index.get_many([b"b"]) == [None]


async def test_a_range_is_ascending_and_includes_its_first_key_but_not_its_end(index: EntryIndex) -> None:
    await fill(index, b"c", b"a", b"b", b"ba", b"d")
    assert await index.range(b"b", b"d", 10) == [(key, b"value of " + key) for key in (b"b", b"ba", b"c")]
    assert await index.keys(b"b", b"d", 10) == [b"b", b"ba", b"c"]


async def test_range_is_bounded_and_can_be_continued(index: EntryIndex) -> None:
    keys = [b"%03d" % number for number in range(100)]
    await fill(index, *keys)
    first = await index.keys(b"", b"\xff", 40)
    assert first == keys[:40]
    assert await index.keys(first[-1] + b"\0", b"\xff", 1000) == keys[40:]
    assert await index.range(b"", b"\xff", 0) == []


async def test_empty_ranges_return_nothing(index: EntryIndex) -> None:
    assert await index.keys(b"a", b"z", 10) == []
    await fill(index, b"m")
    assert await index.keys(b"n", b"z", 10) == []
    assert await index.keys(b"a", b"m", 10) == []
    assert await index.last(b"n", b"z") is None
    assert await index.last(b"a", b"m") is None


async def test_last_is_the_greatest_below_the_end(index: EntryIndex) -> None:
    await fill(index, b"a", b"b", b"c")
    assert await index.last(b"a", b"c") == (b"b", b"value of b")
    assert await index.last(b"a", b"z") == (b"c", b"value of c")
    assert await index.last(b"c", b"cc") == (b"c", b"value of c")


async def test_last_of_an_empty_range_does_not_scan_deleted_keys_before_it(index: EntryIndex) -> None:
    keys = [b"%08d" % number for number in range(50_000)]
    await fill(index, *keys)
    for start in range(0, len(keys), 5000):
        await index.write([], keys[start : start + 5000])
    begun_s = time.process_time()
    assert await index.keys(b"", b"9", 1) == []
    passed_s = time.process_time() - begun_s
    for _ in range(5):
        assert await index.last(b"9", b"99") is None
    assert index.__class__ is MemoryIndex or time.process_time() - begun_s < 2 * passed_s, (
        "all deleted keys were skipped again"
    )


async def test_written_values_exist_after_reopening(opened: tuple[EntryIndex, Reopen]) -> None:
    index, reopen = opened
    await fill(index, b"a", b"b")
    await index.write([], [b"a"])
    again = await reopen()
    assert await again.range(b"", b"\xff", 10) == [(b"b", b"value of b")]


async def test_large_batch_is_applied_as_a_whole(index: EntryIndex) -> None:
    keys = [b"%06d" % number for number in range(20_000)]
    await fill(index, *keys)
    assert await index.keys(b"", b"\xff", 1 << 30) == keys


async def test_reads_and_writes_run_concurrently(index: EntryIndex) -> None:
    await fill(index, b"a")
    writes = [fill(index, b"w%02d" % number) for number in range(20)]
    reads = [index.get_many([b"a"]) for _ in range(20)]
    await asyncio.gather(*writes, *reads)
    assert len(await index.keys(b"w", b"x", 100)) == 20


async def test_values_in_memory_are_returned_immediately_but_absence_never_is(
    opened: tuple[EntryIndex, Reopen],
) -> None:
    with inject_faults(lambda name: name == "index.in_memory"):
        index, reopen = opened
        await fill(index, b"a", b"b", b"c")
        await index.write([(b"b", b"new")], [b"c"])
        assert index.get_cached([b"b", b"a"]) == [b"new", b"value of a"]
        assert index.get_cached([]) == []
        assert index.get_cached([b"a", b"nothing"]) is None
        assert index.get_cached([b"c"]) is None
        index = await reopen()
        assert await index.get_many([b"a", b"b", b"c"]) == [b"value of a", b"new", None]
        assert index.get_cached([b"a", b"b"]) in ([b"value of a", b"new"], None)
        assert index.get_cached([b"c"]) is None
        await index.close()
        assert index.get_cached([b"a"]) is None


async def test_closed_index_refuses_everything(index: EntryIndex) -> None:
    await fill(index, b"a")
    await index.close()
    await index.close()
    for attempt in (
        index.get_many([b"a"]),
        index.keys(b"", b"z", 1),
        index.last(b"", b"z"),
        index.write([(b"b", b"")]),
    ):
        with pytest.raises(DiskError, match="closed"):
            await attempt
