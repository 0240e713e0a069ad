"""If the disk of the index was full and has space again, the store opens the index again and accepts adds."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookie.model.digest import digest_for
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import pack
from bookie.runtime.fault_points import inject_faults
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex
from bookie.storage.disks.rocks import RocksIndex, open_database
from bookie.storage.port import DiskError, DiskFullError
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.deadlines import PROGRAM_S, STATE_S
from tests.worlds.clocks import ManualClock

LEDGER = LedgerId(1)


class FullDatabase:
    """A database whose device becomes full once; the error remains, even after the database is closed."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.error = ""
        """The reason why writes fail; if empty, they succeed."""
        self.during_read: Callable[[], object] = lambda: None
        """Called while a range is read."""

    def write(self, *arguments: Any) -> None:
        if self.error:
            raise Exception(f"IO error: {self.error}: While appending to file: 000004.log")
        self._database.write(*arguments)

    def iter(self, options: Any) -> Any:
        cursor = self._database.iter(options)
        self.during_read()
        return cursor

    def close(self) -> None:
        self._database.close()
        if self.error:
            raise Exception("IO error: Writer has previous error")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


class Openings:
    """Open the database of an index. Only the database that is opened first may become full."""

    def __init__(self) -> None:
        self.count = 0
        self.first: FullDatabase | None = None

    def __call__(self, path: Path, cache_bytes: int) -> Any:
        self.count += 1
        database = open_database(path, cache_bytes)
        if self.first is not None:
            return database
        self.first = FullDatabase(database)
        return self.first

    def fill(self, code: int) -> None:
        assert self.first is not None
        self.first.error = os.strerror(code)


def batch(entry_id: int) -> AddBatch:
    packet = pack(digest_for(DigestType.CRC32C, b"pw"), LEDGER, EntryId(entry_id), -1, 1, b"x")
    return AddBatch(LEDGER, b"key", [packet])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
async def test_a_database_that_keeps_failing_is_reopened(tmp_path: Path, code: int) -> None:
    openings = Openings()
    index = await RocksIndex.open(tmp_path / "index", opening=openings)
    await index.write([(b"a", b"1")])
    openings.fill(code)
    for _ in range(2):
        with pytest.raises(DiskFullError, match=os.strerror(code)):
            await index.write([(b"b", b"2")])
    await asyncio.gather(index.reopen(), index.reopen())
    await index.write([(b"b", b"2")])
    assert await index.get_many([b"a", b"b"]) == [b"1", b"2"]
    await index.close()


async def test_a_failed_read_does_not_keep_the_database_open(tmp_path: Path) -> None:
    """RocksDB keeps its lock as long as a cursor exists. Here the error of the read exists until the end."""
    openings = Openings()
    index = await RocksIndex.open(tmp_path / "index", opening=openings)
    await index.write([(b"a", b"1")])

    def fail() -> None:
        raise Exception("Corruption: block checksum mismatch")

    assert openings.first is not None
    openings.first.during_read = fail
    with pytest.raises(DiskError, match="rebuild-index") as read_error:
        await index.range(b"a", b"b", 1)
    openings.fill(errno.ENOSPC)
    with pytest.raises(DiskFullError):
        await index.write([(b"b", b"2")])
    await index.reopen()
    assert await index.get_many([b"a"]) == [b"1"]
    assert "checksum" in str(read_error.value)
    await index.close()


async def test_without_free_space_the_database_is_not_reopened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openings = Openings()
    index = await RocksIndex.open(tmp_path / "index", opening=openings)
    await index.write([(b"a", b"1")])
    await index.reopen()
    openings.fill(errno.ENOSPC)
    with pytest.raises(DiskFullError):
        await index.write([(b"b", b"2")])
    monkeypatch.setattr("bookie.storage.disks.rocks._REOPEN_SPARE_BYTES", 1 << 62)
    with pytest.raises(DiskFullError, match="bytes of free space"):
        await index.reopen()
    assert await index.get_many([b"a"]) == [b"1"]
    assert openings.count == 1
    await index.close()


async def test_the_database_is_not_closed_while_the_read_of_a_cancelled_caller_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB keeps its lock until then, so the index could not be opened again."""
    openings = Openings()
    index = await RocksIndex.open(tmp_path / "index", opening=openings)
    await index.write([(b"a", b"1")])
    is_reading, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def read() -> None:
        is_reading.set()
        assert may_end.wait(STATE_S)
        has_ended.set()

    assert openings.first is not None
    openings.first.during_read = read
    had_ended: list[bool] = []

    def can_open_files(count: int) -> bool:
        had_ended.append(has_ended.is_set())
        return True

    monkeypatch.setattr("bookie.storage.disks.rocks.can_open_files", can_open_files)
    reading = asyncio.create_task(index.range(b"a", b"b", 1))
    assert await asyncio.to_thread(is_reading.wait, STATE_S)
    reading.cancel()
    await asyncio.wait([reading])
    openings.fill(errno.ENOSPC)
    with pytest.raises(DiskFullError):
        await index.write([(b"b", b"2")])
    reopening = asyncio.create_task(index.reopen())
    for _ in range(20):
        await asyncio.to_thread(lambda: None)
    may_end.set()
    await reopening
    assert had_ended == [True]
    assert await index.get_many([b"a"]) == [b"1"]
    await index.close()


async def test_an_index_without_the_space_to_open_it_can_be_read(tmp_path: Path) -> None:
    first = await RocksIndex.open(tmp_path / "index")
    await first.write([(b"a", b"1")])
    await first.close()
    is_full = True

    def opening(path: Path, cache_bytes: int) -> Any:
        if is_full:
            raise DiskFullError("no space left")
        return open_database(path, cache_bytes)

    index = await RocksIndex.open(tmp_path / "index", opening=opening)
    for attempt in (index.write([(b"b", b"2")]), index.reopen()):
        assert index.needs_reopen
        with pytest.raises(DiskFullError, match="no space left"):
            await attempt
        assert await index.get_many([b"a", b"b"]) == [b"1", None]
        assert index.get_cached([b"a"]) == [b"1"]
    is_full = False
    await index.reopen()
    await index.write([(b"b", b"2")])
    assert await index.get_many([b"a", b"b"]) == [b"1", b"2"]
    await index.close()


async def test_a_store_opens_as_full_if_its_index_cannot_be_written() -> None:
    """The first checkpoint has nothing to write, so it does not show that. Adds would fill the journal."""
    is_full = False
    index, clock = MemoryIndex(is_full=lambda: is_full), ManualClock(turns=3)
    journal, ledgers = MemoryDisk(), MemoryDisk()
    store = await LedgerStorage.open(journal, ledgers, index, StorageSettings(), clock)
    assert (await store.add(batch(0))).status is Status.OK
    await store.close()
    index, is_full = index.restarted(), True
    index.is_full = lambda: is_full
    with pytest.raises(DiskFullError):
        await index.write([(b"a", b"1")])
    store = await LedgerStorage.open(journal, ledgers, index, StorageSettings(), clock)
    assert (await store.add(batch(1))).status is Status.READ_ONLY
    assert (await store.read(LEDGER, [EntryId(0)])).results[0].status is Status.OK
    is_full = False
    for _ in range(1000):
        await asyncio.sleep(0)
    assert (await store.add(batch(1))).status is Status.OK
    await store.close()


def test_an_index_that_could_open_no_file_is_opened_again(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, resource, sys\n"
        "from pathlib import Path\n"
        "from bookie.storage.disks.rocks import RocksIndex\n"
        "from bookie.storage.port import DiskFullError\n"
        "async def main():\n"
        "    index = await RocksIndex.open(Path(sys.argv[1]))\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 200))\n"
        "    written = 0\n"
        "    try:\n"
        "        while written < 200:\n"
        "            await index.write([(b'%06d' % written, os.urandom(1 << 20))])\n"
        "            written += 1\n"
        "    except DiskFullError as error:\n"
        "        print('Too many open files' in str(error))\n"
        "    try:\n"
        "        await index.reopen()\n"
        "    except DiskFullError:\n"
        "        print('refused')\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "    await index.reopen()\n"
        "    keys = [b'%06d' % number for number in range(written)]\n"
        "    print(written > 0, all(value and len(value) == 1 << 20 for value in await index.get_many(keys)))\n"
        "    await index.write([(b'again', b'x')])\n"
        "    await index.close()\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "index")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=True)
    assert done.stdout.split() == ["True", "refused", "True", "True"]


async def test_the_memory_index_refuses_writes_until_it_is_reopened() -> None:
    is_full = True
    index = MemoryIndex(is_full=lambda: is_full)
    with pytest.raises(DiskFullError):
        await index.write([(b"a", b"1")])
    with pytest.raises(DiskFullError):
        await index.reopen()
    is_full = False
    with pytest.raises(DiskFullError):
        await index.write([(b"a", b"1")])
    await index.reopen()
    await index.write([(b"a", b"1")])


async def test_a_store_whose_index_was_full_accepts_adds_again() -> None:
    is_full = False
    index, clock = MemoryIndex(is_full=lambda: is_full), ManualClock(turns=3)
    store = await LedgerStorage.open(MemoryDisk(), MemoryDisk(), index, StorageSettings(), clock)
    assert (await store.add(batch(0))).status is Status.OK
    is_full = True
    with pytest.raises(DiskFullError):
        await store.checkpoint()
    assert (await store.add(batch(1))).status is Status.READ_ONLY
    is_full = False
    for _ in range(1000):
        await asyncio.sleep(0)
    assert (await store.add(batch(1))).status is Status.OK
    await store.checkpoint()
    await store.close()


async def test_the_memory_index_cannot_be_read_after_a_failed_reopen() -> None:
    is_full = False
    index = MemoryIndex(is_full=lambda: is_full)
    await index.write([(b"a", b"1")])
    is_full = True
    with pytest.raises(DiskFullError):
        await index.write([(b"b", b"2")])
    with inject_faults(lambda name: name == "index.full_at_opening"), pytest.raises(DiskFullError):
        await index.reopen()
    with pytest.raises(DiskFullError):
        await index.get_many([b"a"])
    is_full = False
    await index.reopen()
    assert await index.get_many([b"a", b"b"]) == [b"1", None]


class LostIndex(MemoryIndex):
    """An index that cannot be opened again."""

    async def reopen(self) -> None:
        if self._needs_reopen:
            raise DiskError("cannot open the index: Corruption")


async def test_a_store_whose_index_cannot_be_opened_again_has_failed() -> None:
    is_full = False
    index, clock = LostIndex(is_full=lambda: is_full), ManualClock(turns=3)
    store = await LedgerStorage.open(MemoryDisk(), MemoryDisk(), index, StorageSettings(), clock)
    assert (await store.add(batch(0))).status is Status.OK
    is_full = True
    with pytest.raises(DiskFullError):
        await store.checkpoint()
    assert "Corruption" in str(await asyncio.wait_for(store.fatal, STATE_S))
    await store.abort()
