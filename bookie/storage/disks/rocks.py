"""The adapter of the ``EntryIndex`` port for RocksDB.

After a write fails for lack of space, RocksDB keeps the error, and every later write fails with the same text. The
database accepts writes only after it was opened again (``reopen``). Without space to open it, it is opened for reading
only, which writes nothing.

Two properties of the ``rocksdict`` binding (0.3) shape this file. First, ``write`` holds the interpreter lock until
RocksDB returns, even while RocksDB waits for a sync or for compaction. Batches are therefore written without sync and
with "no slowdown", and ``flush_wal``, which releases the lock, syncs the log. Second, the key and item iterators treat
a read error like the end of the range. Ranges therefore use the raw iterator and check its status.

RocksDB keeps any readable prefix of its log after a crash. A missing synced write can then be detected by the journal's
mark, which is always older than the index's mark (J4).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)
from typing_extensions import override

from bookie.runtime.open_files import can_open_files
from bookie.runtime.tasks import guarded
from bookie.runtime.threads import started_threads
from bookie.storage.disks.directory_lock import DirectoryInUseError
from bookie.storage.disks.files import THREAD_NAME, file_system_space, make_durable_directory
from bookie.storage.disks.rocks_logs import BLOCK_BYTES, endless_record_at
from bookie.storage.port import DiskError, DiskFullError, EntryIndex

_log = logging.getLogger(__name__)

_THREADS: Final = 4
"""Threads for reads, and as many for writes. Writes do not wait for reads of bad sectors, each of which can take half a
minute: after 15 s of one write, the bookie would be read-only."""
_CACHE_BYTES: Final = 64 << 20
_WRITE_BUFFER_BYTES: Final = 16 << 20
"""The size of one write buffer. Up to four of them are in memory, together as large as the block cache."""
_OPEN_FILES_MAX: Final = 512
_STALL_S_MAX: Final = 60.0
"""The longest time, in seconds, for which compaction may delay a write; after it the write fails."""
_STALL_PAUSE_S: Final = 0.005
_STALLED: Final = "Write stall"
_LOG_FILES: Final = "*.log"
_COMPRESSED_LOG: Final = Path(__file__).with_name("compressed_log")
"""A file with options that the binding can only read from a file, with raw keys and values. With them, a page of
entries takes 10 bytes of the log per entry instead of 43. Uncompressed logs can still be read."""
_REOPEN_TABLES_FACTOR: Final = 2
"""The free space that opening needs, relative to the size of the log. Opening writes the log to tables and then removes
it. An entry takes 10 bytes in the log, and 15 in the tables."""
_REOPEN_SPARE_BYTES: Final = 1 << 20
"""The free space that opening needs in addition to these tables."""
_REOPEN_FILES: Final = 64
"""The number of file descriptors that must be available for opening: more than its own files and the tables that it
reads."""
_DAMAGED: Final = "Corruption"
_REBUILD_HINT: Final = ". If the bookie does not start, rebuild the index with `bkheal bookie rebuild-index --replace`"
_IO_ERROR: Final = "IO error"
_MISSING: Final = "No such file or directory"
_REBUILD_OR_REPLACE_HINT: Final = (
    ". Rebuild it with `bkheal bookie rebuild-index`, or replace this bookie's disks as a new incarnation"
)
_FULL: Final = ("No space left on device", "Disk quota exceeded", "Too many open files")
_MAKE_SPACE_HINT: Final = ". Free space on its disk, or allow more open files"
_LOCKED: Final = ("lock hold by current process", "While lock file")
_MANIFESTS: Final = "MANIFEST-*"
_DATA_SUFFIXES: Final = (".log", ".sst")
_CURRENT: Final = "CURRENT"
"""The file that names the manifest in use. RocksDB writes it before the first log and the first table."""

T = TypeVar("T")
OpenDatabase = Callable[[Path, int], Any]
"""A function that opens the database at a path with this many bytes of cache, as ``open_database`` does."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """An open database. ``full``: the reason why it is open for reading only; None if it accepts writes."""

    database: Any
    full: DiskFullError | None


@dataclass(frozen=True, slots=True)
class _Threads:
    """The threads of one index."""

    writes: ThreadPoolExecutor
    """For writes, and for opening and closing the database."""
    reads: ThreadPoolExecutor

    @classmethod
    def started(cls) -> _Threads:
        """Start the threads.

        Raises:
            OSError: they cannot be started.
        """
        writes = started_threads(_THREADS, f"{THREAD_NAME}index")
        try:
            return cls(writes, started_threads(_THREADS, f"{THREAD_NAME}index-read"))
        except OSError:
            writes.shutdown(wait=False)
            raise

    def shutdown(self, *, wait: bool = True) -> None:
        """Accept no more work. ``wait``: return after the end of all work."""
        for each in (self.writes, self.reads):
            each.shutdown(wait=wait)


class RocksIndex(EntryIndex):
    """One RocksDB database. Create it with ``open``."""

    def __init__(
        self, path: Path, opened: _Opened, threads: _Threads, cache_bytes: int, open_again: OpenDatabase
    ) -> None:
        self._path = path
        self._database = opened.database
        self._full = opened.full
        """The reason why the database is open for reading only; None if it accepts writes."""
        self._threads = threads
        self._cache_bytes = cache_bytes
        self._open_again = open_again
        self._needs_reopen = opened.full is not None
        """True if the database is open for reading only, and after a write found the disk full, or too many files open.
        Every later write then fails."""
        self._running = 0
        """The number of operations in threads, including those of cancelled callers."""
        self._is_idle = asyncio.Event()
        """Set when the last running operation ends."""
        self._changed = asyncio.Condition()
        """Notified after the database was opened again."""
        self._is_reopening = False
        self._not_open: DiskError | None = None
        """The reason why the database could not be opened again. Nothing can be read until a later attempt succeeds."""
        self._is_closed = False
        self._unsynced = WriteOptions()
        self._unsynced.no_slowdown = True

    @classmethod
    async def open(
        cls, path: Path, *, cache_bytes: int = _CACHE_BYTES, opening: OpenDatabase | None = None
    ) -> RocksIndex:
        """Open the database at ``path``, or create it. ``opening`` replaces ``open_database``.

        Opening writes the log to tables. Without space for them, the database can be read, and ``needs_reopen`` is
        true.

        Raises:
            DirectoryInUseError: another process uses the database.
            DiskFullError: there is no space to create the database, or too many files are open.
            DiskError: the database cannot be opened.
        """
        opening = opening or open_database
        try:
            threads = _Threads.started()
        except OSError as error:
            raise DiskError(f"cannot open the index {path}: {error}") from error
        try:
            opened = await asyncio.get_running_loop().run_in_executor(
                threads.writes, _open_or_read, opening, path, cache_bytes
            )
        except BaseException:
            threads.shutdown(wait=False)
            raise
        return cls(path, opened, threads, cache_bytes, opening)

    @override
    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._run("read", self._threads.reads, self._get_many, keys) if keys else []

    @override
    def get_cached(self, keys: Sequence[bytes]) -> list[bytes] | None:
        """Return the values, if the buffers and the block cache have all of them.

        RocksDB also reports "does not exist" for a key whose lookup failed, so only found values are trusted.
        """
        if self._is_reopening or self._database is None:
            return None
        found: list[bytes] = []
        for key in keys:
            _, value = self._database.key_may_exist(key, fetch=True)
            if value is None:
                return None
            found.append(value)
        return found

    @override
    async def range(self, first_key: bytes, end_key: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return await self._run("read", self._threads.reads, self._range, first_key, end_key, limit)

    @override
    async def keys(self, first_key: bytes, end_key: bytes, limit: int) -> list[bytes]:
        return await self._run("read", self._threads.reads, self._keys, first_key, end_key, limit)

    @override
    async def last(self, first_key: bytes, end_key: bytes) -> tuple[bytes, bytes] | None:
        return await self._run("read", self._threads.reads, self._last, first_key, end_key)

    @override
    async def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        """Apply all changes or none, durably. It holds the interpreter lock for about 0.4 ms per thousand pairs."""
        try:
            await self._run("write", self._threads.writes, self._write, puts, deletes)
        except DiskFullError:
            self._needs_reopen = True
            raise

    @property
    @override
    def needs_reopen(self) -> bool:
        return self._needs_reopen

    @override
    async def reopen(self) -> None:
        if not self._is_reopen_due():
            return
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_reopening)
            if not self._is_reopen_due():
                return
            self._is_reopening = True
        error = await asyncio.shield(guarded("reopen index", self._reopen()))
        if error is not None:
            raise error

    def _is_reopen_due(self) -> bool:
        return self._needs_reopen and not self._is_closed

    async def _reopen(self) -> DiskError | None:
        """Close the database and open it again, while no other operation runs. Return the error, or None."""
        run = asyncio.get_running_loop().run_in_executor
        try:
            while self._running:
                self._is_idle.clear()
                await self._is_idle.wait()
            if wanted := await run(self._threads.writes, self._missing_room):
                raise DiskFullError(f"cannot open the index {self._path} again: it needs {wanted}")
            database, self._database = self._database, None
            if database is not None:
                await run(self._threads.writes, _close, database)
            opened = await run(self._threads.writes, _open_or_read, self._open_again, self._path, self._cache_bytes)
            self._database, self._full, self._not_open = opened.database, opened.full, None
            self._needs_reopen = opened.full is not None
            return opened.full
        except DiskError as error:
            self._not_open = error
            return error
        finally:
            async with self._changed:
                self._is_reopening = False
                self._changed.notify_all()

    def _missing_room(self) -> str:
        """Return what opening needs and is not available; empty if nothing is missing."""
        if not can_open_files(_REOPEN_FILES):
            return f"{_REOPEN_FILES} more open files"
        try:
            logs = sum(path.stat().st_size for path in self._path.glob(_LOG_FILES))
        except OSError as error:  # the free space is unknown: keep the database as it is
            return f"its log: {error}"
        needed = _REOPEN_TABLES_FACTOR * logs + _REOPEN_SPARE_BYTES
        return "" if file_system_space(self._path)[1] >= needed else f"{needed} bytes of free space"

    @override
    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_reopening)
        database, self._database = self._database, None
        await asyncio.to_thread(self._threads.shutdown)
        if database is not None:
            await asyncio.to_thread(_close, database)

    async def _run(self, verb: str, threads: ThreadPoolExecutor, work: Callable[..., T], *arguments: object) -> T:
        if self._is_reopening:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._is_reopening)
        if self._is_closed or self._database is None:
            why = DiskError("it is closed") if self._is_closed or self._not_open is None else self._not_open
            raise type(why)(f"cannot {verb} the index {self._path}: {why}")
        running: Future[T] | None = None
        self._running += 1
        try:
            running = threads.submit(work, *arguments)
            return await asyncio.wrap_future(running)
        except DiskError:
            raise
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # as long as a cursor exists, RocksDB keeps its lock
            is_full = any(text in str(error) for text in _FULL)
            kind = DiskFullError if is_full else DiskError
            remedy = _MAKE_SPACE_HINT if is_full else _REBUILD_HINT if _DAMAGED in str(error) else ""
            raise kind(f"cannot {verb} the index {self._path}: {error}{remedy}") from error
        finally:
            if running is None or running.done():
                self._count_end()
            else:  # the caller was cancelled: the database must not be closed before the thread has ended
                running.add_done_callback(partial(self._on_thread_end, asyncio.get_running_loop()))

    def _on_thread_end(self, loop: asyncio.AbstractEventLoop, _: Future[Any]) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(self._count_end)

    def _count_end(self) -> None:
        self._running -= 1
        if not self._running:
            self._is_idle.set()

    def _get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._database.get(list(keys))
        return found

    def _range(self, first_key: bytes, end_key: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        cursor = self._database.iter(_below(end_key))
        cursor.seek(first_key)
        found: list[tuple[bytes, bytes]] = []
        is_valid, key_of, value_of, advance, append = cursor.valid, cursor.key, cursor.value, cursor.next, found.append
        while len(found) < limit and is_valid():
            append((key_of(), value_of()))
            advance()
        cursor.status()
        return found

    def _keys(self, first_key: bytes, end_key: bytes, limit: int) -> list[bytes]:
        cursor = self._database.iter(_below(end_key))
        cursor.seek(first_key)
        found: list[bytes] = []
        is_valid, key_of, advance, append = cursor.valid, cursor.key, cursor.next, found.append
        while len(found) < limit and is_valid():
            append(key_of())
            advance()
        cursor.status()
        return found

    def _last(self, first_key: bytes, end_key: bytes) -> tuple[bytes, bytes] | None:
        cursor = self._database.iter(_below(end_key))
        cursor.seek(first_key)
        cursor.status()
        if not cursor.valid():
            return None  # searching backwards would pass over all deleted keys before the range
        cursor.seek_to_last()
        cursor.status()
        if not cursor.valid() or cursor.key() < first_key:
            return None
        return cursor.key(), cursor.value()

    def _write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        if self._full is not None:
            raise DiskFullError(f"the index is open for reading only: {self._full}")
        batch = WriteBatch(raw_mode=True)
        for key, value in puts:
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        give_up_s = time.monotonic() + _STALL_S_MAX
        while True:
            try:
                self._database.write(batch, self._unsynced)
                break
            except Exception as error:
                if _STALLED not in str(error) or time.monotonic() > give_up_s:
                    raise
            time.sleep(_STALL_PAUSE_S)
        self._database.flush_wal(True)


def _below(end_key: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(end_key)
    return options


def _close(database: Any) -> None:
    """Close a database. Every write is in the synced log, so no data is lost if the flush at closing fails."""
    try:
        database.close()
    except Exception as error:  # noqa: BLE001 (what the binding raises, for example on a full disk)
        _log.warning("index closed without a flush, its log keeps the writes", extra={"error": str(error)})


def _open_or_read(opening: OpenDatabase, path: Path, cache_bytes: int) -> _Opened:
    """Open a database; without the space for that, open it for reading only.

    Raises:
        DirectoryInUseError, DiskFullError, DiskError: see ``RocksIndex.open``.
    """
    try:
        return _Opened(opening(path, cache_bytes), None)
    except DiskFullError as full:
        try:
            return _Opened(_open(path, cache_bytes, AccessType.read_only()), full)
        except DiskError:
            raise full from None


def open_database(path: Path, cache_bytes: int) -> Any:
    """Open a database, or create it.

    Raises:
        DirectoryInUseError, DiskFullError, DiskError: see ``RocksIndex.open``.
    """
    make_durable_directory(path)
    return _open(path, cache_bytes, AccessType.read_write())


def _open(path: Path, cache_bytes: int, access: AccessType) -> Any:
    options = _options(cache_bytes)
    _check_not_in_part(path)
    _check_logs(path)
    try:
        # Without the third argument, a re-opened database would use the options of its creation, and its own cache.
        return Rdict(str(path), options, {"default": options}, access)
    except Exception as error:
        if any(text in str(error) for text in _LOCKED):
            raise DirectoryInUseError(f"the index {path} is in use by another process: stop it") from error
        raise _open_failure(path, str(error)) from error


def _check_not_in_part(path: Path) -> None:
    """Check that ``CURRENT`` exists if there is data: without it, RocksDB begins a new index, and deletes the old one.

    Raises:
        DiskError: the file is missing, or the directory cannot be listed.
    """
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _open_failure(path, f"{_IO_ERROR}: {error}") from error
    if _CURRENT not in names and any(name.endswith(_DATA_SUFFIXES) for name in names):
        raise _open_failure(path, f"{_DAMAGED}: its file {_CURRENT} is missing, and its data is not")


def _check_logs(path: Path) -> None:
    """Check that RocksDB can finish opening the index (``rocks_logs``).

    Raises:
        DiskError: a damaged log would keep RocksDB in an endless loop, or a log cannot be read.
    """
    try:
        for log in [*path.glob(_MANIFESTS), *path.glob(_LOG_FILES)]:
            with log.open("rb") as file:
                offset = endless_record_at(iter(lambda: file.read(BLOCK_BYTES), b""))
            if offset is not None:
                raise _open_failure(
                    path, f"Corruption: a record of {log.name} at offset {offset} has an impossible type"
                )
    except OSError as error:
        raise _open_failure(path, f"{_IO_ERROR}: {error}") from error


def _open_failure(path: Path, why: str) -> DiskError:
    if any(text in why for text in _FULL):
        return DiskFullError(f"cannot open the index {path}: {why}{_MAKE_SPACE_HINT}")
    is_damaged = _IO_ERROR not in why or any(text in why for text in (_DAMAGED, _MISSING))
    return DiskError(f"cannot open the index {path}: {why}{_REBUILD_OR_REPLACE_HINT if is_damaged else ''}")


def _options(cache_bytes: int) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(Cache(cache_bytes))
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)  # otherwise they would grow without bound, with the data
    options, _ = Options.load_latest(str(_COMPRESSED_LOG))
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(4)
    options.set_max_background_jobs(2)
    options.set_max_open_files(_OPEN_FILES_MAX)
    options.set_compression_type(DBCompressionType.zstd())  # 14 bytes per entry; 21 with lz4
    options.set_bytes_per_sync(1 << 20)  # avoids large bursts that would delay the journal's syncs
    options.set_max_log_file_size(4 << 20)
    options.set_keep_log_file_num(4)
    return options
