"""Each error of RocksDB reaches the store with its meaning (in use, unreadable, full), and never as an empty answer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from bookie.storage.disks.directory_lock import DirectoryInUseError
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.port import DiskError, DiskFullError
from tests.deadlines import STATE_S


class FullDatabase:
    """A stand-in for a database on a full device, which cannot be produced without such a device."""

    def write(self, batch: object, options: object) -> None:
        raise Exception("IO error: No space left on device: While appending to file: 000004.log")

    def close(self) -> None:
        raise Exception("IO error: No space left on device: While appending to file: 000009.sst")


class StalledDatabase:
    """A database that refuses the first two writes, as RocksDB does when its compaction is behind."""

    def __init__(self) -> None:
        self.refusals = 2
        self.written: list[object] = []
        self.is_synced = False

    def write(self, batch: object, options: object) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Exception("Result incomplete: Write stall")
        self.written.append(batch)

    def flush_wal(self, sync: bool) -> None:
        self.is_synced = sync

    def close(self) -> None:
        pass


async def with_database(path: Path, database: object) -> RocksIndex:
    index = await RocksIndex.open(path)
    real, index._database = index._database, database
    real.close()
    return index


class BadSectors:
    """A database whose reads do not end until ``may_end`` is set."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.may_end = threading.Event()

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        assert self.may_end.wait(STATE_S)
        found: list[bytes | None] = self._database.get(keys)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


async def test_writes_do_not_wait_for_reads_of_bad_sectors(tmp_path: Path) -> None:
    """Such a read takes up to half a minute, and a bookie ends if a write takes a minute."""
    index = await RocksIndex.open(tmp_path / "index")
    database = BadSectors(index._database)
    index._database = database
    reads = [asyncio.create_task(index.get_many([b"a"])) for _ in range(20)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(STATE_S / 2):
            await index.write([(b"a", b"1")])
        assert not any(read.done() for read in reads)
    finally:
        database.may_end.set()
    assert await asyncio.gather(*reads) == [[b"1"]] * 20
    await index.close()


async def test_second_user_of_a_database_is_refused(tmp_path: Path) -> None:
    index = await RocksIndex.open(tmp_path / "index")
    with pytest.raises(DirectoryInUseError, match="in use"):
        await RocksIndex.open(tmp_path / "index")
    await index.close()


async def test_damaged_database_does_not_open_as_an_empty_one(tmp_path: Path) -> None:
    index = await RocksIndex.open(tmp_path / "index")
    await index.write([(b"a", b"1")])
    await index.close()
    [manifest] = (tmp_path / "index").glob("MANIFEST-*")
    manifest.write_bytes(b"junk" * 100)
    with pytest.raises(DiskError, match=r"cannot open the index.*new incarnation"):
        await RocksIndex.open(tmp_path / "index")


async def test_damaged_table_is_an_error_not_absence(tmp_path: Path) -> None:
    index = await RocksIndex.open(tmp_path / "index")
    await index.write([(b"%06d" % number, b"v" * 50) for number in range(5000)])
    await index.close()
    for table in (tmp_path / "index").glob("*.sst"):
        data = bytearray(table.read_bytes())
        data[100 : len(data) // 2] = bytes(len(data) // 2 - 100)
        table.write_bytes(data)
    index = await RocksIndex.open(tmp_path / "index")
    for attempt in (
        index.get_many([b"000010"]),
        index.keys(b"", b"\xff", 10_000),
        index.range(b"", b"\xff", 10_000),
        index.last(b"", b"000010"),
    ):
        with pytest.raises(DiskError, match=r"cannot read the index.*rebuild-index --replace"):
            await attempt
    await index.close()


@pytest.mark.parametrize("lost", ["CURRENT", "CURRENT *.log"], ids=["with logs", "without logs"])
async def test_an_index_without_its_file_current_is_refused_and_not_deleted(tmp_path: Path, lost: str) -> None:
    """RocksDB would begin a new database, and delete the tables of the old one at this start or the next."""
    path = tmp_path / "index"
    index = await RocksIndex.open(path)
    await index.write([(b"%06d" % number, b"v" * 50) for number in range(5000)])
    await index.close()
    for pattern in lost.split():
        for file in path.glob(pattern):
            file.rename(tmp_path / file.name)
    kept = sorted(path.iterdir())
    for _ in range(2):
        with pytest.raises(DiskError, match=r"its file CURRENT is missing.*rebuild-index"):
            await RocksIndex.open(path)
    assert sorted(path.iterdir()) == kept
    for pattern in lost.split():
        for file in tmp_path.glob(pattern):
            file.rename(path / file.name)
    index = await RocksIndex.open(path)
    assert await index.get_many([b"000010"]) == [b"v" * 50]
    await index.close()


async def test_an_index_is_begun_again_after_its_first_start_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = await RocksIndex.open(path)
    await index.close()
    for file in path.iterdir():
        if not file.name.startswith("MANIFEST"):
            file.unlink()
    index = await RocksIndex.open(path)
    await index.write([(b"a", b"1")])
    assert await index.get_many([b"a"]) == [b"1"]
    await index.close()


async def test_full_device_has_its_own_error(tmp_path: Path) -> None:
    index = await with_database(tmp_path / "index", FullDatabase())
    with pytest.raises(DiskFullError, match="No space left"):
        await index.write([(b"a", b"1")])
    await index.close()


async def test_write_waits_while_compaction_is_behind(tmp_path: Path) -> None:
    database = StalledDatabase()
    index = await with_database(tmp_path / "index", database)
    await index.write([(b"a", b"1")])
    assert len(database.written) == 1
    assert database.is_synced
    await index.close()


async def test_an_index_on_a_full_disk_closes_although_it_cannot_flush(tmp_path: Path) -> None:
    """Every write is in the synced log, so nothing is lost, and a stopping process need not report an error."""
    index = await with_database(tmp_path / "index", FullDatabase())
    await index.close()
    with pytest.raises(DiskError, match="closed"):
        await index.get_many([b"key"])
