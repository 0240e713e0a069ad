"""The adapter of the ``Disk`` port for a directory of the file system, with threads for blocking calls.

After a failed write or sync, a file is never written or synced again (J6): the kernel may have dropped the unsynced
pages, and would report success for the next sync.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from typing_extensions import override

from bookie.runtime.threads import started_threads
from bookie.runtime.waiting import within_running_time
from bookie.storage.disks.changes import RunningChanges
from bookie.storage.disks.directory_lock import lock_directory
from bookie.storage.port import DISK_SILENCE_S_MAX, Disk, DiskError, DiskFile, DiskFullError, StalledDiskError

THREAD_NAME: Final = "disk-"
"""Prefix of the names of the threads that wait for a disk."""
_CLOSE_S: Final = 5.0
"""Longest wait of ``close`` for running operations."""
_CHANGE_THREADS: Final = 6
"""Threads per disk for changes, as of the journal, a flush, a compaction, and removals. With three, the storage alone
added entries of 16 KiB at 0.6 times the rate, with twice the processor time."""
_READ_THREADS: Final = 5
"""Threads per disk for reads. Reads do not wait for a sync, and changes do not wait for reads of bad sectors, each of
which can take half a minute."""
_PARTS_MAX: Final = 64
"""If a write has more parts than this, and they are small on average, the parts are joined first: writing a part
costs as much as copying a few hundred bytes."""
_SMALL_BYTES: Final = 4096
_IOV_MAX: Final = 1024
"""The most parts that the kernel accepts in one call (IOV_MAX)."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
"""No space, or no more open files in this process or system (R134)."""
_REMEDIES: Final = {
    errno.ENOSPC: "free space, or inodes, on its disk",
    errno.EDQUOT: "free space, or raise the quota",
    errno.EMFILE: "allow this process more open files, as with ulimit -n",
    errno.ENFILE: "allow more open files on this machine",
    errno.EIO: "its disk fails: see the log of the kernel",
    errno.EFBIG: "raise the limit of the size of files, as with ulimit -f",
    errno.EROFS: "mount its file system for writing; if an error ended this, see the log of the kernel",
    errno.EACCES: "give the user of this process access to it",
}
"""What a person can do about an error, for its message."""
_FREE_INODES_MIN: Final = 64
"""With fewer free inodes, the file system counts as full. They are kept for entry logs, journals and the files of the
index until an operator has made space."""
_FREE_FOR_RESERVED: Final = 64
"""A file reserves space only if this many times as much is free, so that reservations do not use up a small or full
disk."""
_NOWAIT_FLAG: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
"""The flag that makes Linux read only from the page cache; None on other systems."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class FileDisk(Disk):
    """A directory, locked for this object. Paths are relative to it. Create it with ``acquire``."""

    def __init__(self, root: Path, lock: int, threads: _Threads) -> None:
        self._root = root
        self._lock: int | None = lock
        self._threads = threads
        self._changes = RunningChanges()
        self._replacing = threading.Lock()
        """Held by the thread that replaces a file. The thread of a cancelled caller continues, and would otherwise use
        the same temporary file as the next replacement."""

    @classmethod
    async def acquire(
        cls, root: Path, *, silent_s: float = DISK_SILENCE_S_MAX, may_be_read_only: bool = False
    ) -> FileDisk:
        """Create the directory if needed, and lock it until ``close``.

        With ``may_be_read_only``, an existing directory whose file system is mounted read-only can be read, and each
        change fails.

        Raises:
            DirectoryInUseError: another process uses the directory.
            StalledDiskError: the disk did not answer for ``silent_s``.
            DiskError: the directory cannot be created or locked.
        """
        with _disk_errors("use", root):
            threads = _Threads.started(root.name)
        try:
            locking = _in_thread(threads.changes, _make_and_lock, root, may_be_read_only)
            lock = await within_running_time(silent_s, locking)
        except BaseException as error:
            threads.shutdown(wait=False)
            if isinstance(error, TimeoutError):
                raise StalledDiskError(f"cannot lock {root}: its disk did not answer for {silent_s:g} s") from error
            raise
        return cls(root, lock, threads)

    @override
    async def create(self, path: str) -> DiskFile:
        with self._changes.one():
            return await self._opened(self._threads.changes, path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    @override
    async def open(self, path: str) -> DiskFile:
        return await self._opened(self._threads.reads, path, os.O_RDONLY)

    @override
    async def replace(self, path: str, data: bytes) -> None:
        await self._change(self._replace, self._root / path, data)

    @override
    async def names(self, directory: str) -> list[str]:
        return await _in_thread(self._threads.changes, _names, self._root / directory)

    @override
    async def make_directory(self, path: str) -> None:
        await self._change(_make_directory, self._root / path)

    @override
    async def unlink(self, path: str) -> None:
        await self._change(_unlink, self._root / path)

    @override
    async def sync_directory(self, directory: str) -> None:
        await self._change(_sync_directory, self._root / directory)

    @override
    async def space(self) -> tuple[int, int]:
        """Return the total bytes, and the free bytes available to an unprivileged user."""
        return await _in_thread(self._threads.changes, file_system_space, self._root)

    @property
    @override
    def oldest_change(self) -> int | None:
        return self._changes.oldest

    async def close(self) -> None:
        """Wait for running operations and unlock the directory. Idempotent.

        If the disk does not answer, the directory stays locked until the process ends.
        """
        if not await _ended(self._threads):
            _log.error("disk does not answer, its directory stays locked", extra={"directory": str(self._root)})
            return
        if self._lock is not None:
            lock, self._lock = self._lock, None
            os.close(lock)

    def _replace(self, path: Path, data: bytes) -> None:
        with self._replacing:
            _replace(path, data)

    async def _opened(self, threads: ThreadPoolExecutor, path: str, flags: int) -> DiskFile:
        opening = _Opening()
        try:
            return await _in_thread(threads, opening.open, self._root / path, flags, self._threads, self._changes)
        except asyncio.CancelledError:
            opening.abandon()
            raise

    async def _change(self, work: Callable[..., T], *arguments: object) -> T:
        with self._changes.one():
            return await _in_thread(self._threads.changes, work, *arguments)


@dataclass(frozen=True, slots=True)
class _Threads:
    """The threads of one disk."""

    changes: ThreadPoolExecutor
    """For changes, and for what changes and probes of the disk need: its space, its names and the sizes of files."""
    reads: ThreadPoolExecutor

    @classmethod
    def started(cls, name: str) -> _Threads:
        """Start the threads.

        Raises:
            OSError: they cannot be started.
        """
        changes = started_threads(_CHANGE_THREADS, f"{THREAD_NAME}{name}")
        try:
            return cls(changes, started_threads(_READ_THREADS, f"{THREAD_NAME}{name}-read"))
        except OSError:
            changes.shutdown(wait=False)
            raise

    def shutdown(self, *, wait: bool = True) -> None:
        """Accept no more work. ``wait``: return after the end of all work."""
        for each in (self.changes, self.reads):
            each.shutdown(wait=wait)


class _Opening:
    """One file being opened by a thread for a caller. If the caller was cancelled, the file is closed again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._file: _File | None = None

    def open(self, path: Path, flags: int, threads: _Threads, changes: RunningChanges) -> _File:
        """Open the file, in a thread."""
        file = _open_file(path, flags, threads, changes)
        with self._lock:
            self._file = file
            if self._is_abandoned:
                file.discard()
        return file

    def abandon(self) -> None:
        """Close the file, now or as soon as it is open: its caller was cancelled, and does not get it."""
        with self._lock:
            self._is_abandoned = True
            if self._file is not None:
                self._file.discard()


class _File(DiskFile):
    """One open file.

    The thread lock prevents ``close`` from closing the descriptor while a write of a cancelled caller is still running.
    """

    def __init__(
        self, path: Path, descriptor: int, size: int, threads: _Threads, changes: RunningChanges, *, is_read: bool
    ) -> None:
        self._path = path
        self._descriptor: int | None = descriptor
        self._size = size
        self._ahead = 0
        self._reserved_to = 0
        """The next append that ends after this offset attempts to reserve again."""
        self._threads = threads
        self._own_threads = threads.reads if is_read else threads.changes
        """Those that close the file: a read that its caller no longer waits for may delay the close."""
        self._changes = changes
        self._is_broken = False
        self._busy = threading.Lock()

    @override
    async def append(self, parts: Sequence[bytes]) -> int:
        return await self._change(self._append, parts)

    @override
    async def sync(self) -> None:
        await self._change(self._sync)

    @override
    async def append_and_sync(self, parts: Sequence[bytes]) -> int:
        return await self._change(self._append_and_sync, parts)

    @override
    async def reserve(self, ahead: int) -> None:
        await _in_thread(self._threads.changes, self._reserve, ahead)

    @override
    async def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return await _in_thread(self._threads.reads, self._read, ranges)

    @override
    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Return the bytes if they are in the page cache, else None; always None if the system has no such reads."""
        if _NOWAIT_FLAG is None or not self._busy.acquire(blocking=False):
            return None
        try:
            if self._descriptor is None:
                return None
            data = bytearray(size)
            return bytes(data) if os.preadv(self._descriptor, [data], offset, _NOWAIT_FLAG) == size else None
        except OSError:  # not in memory, not supported, or an error that ``read`` reports
            return None
        finally:
            self._busy.release()

    @override
    async def size(self) -> int:
        return await _in_thread(self._own_threads, self._stat_size)

    @override
    async def close(self) -> None:
        if self._descriptor is not None:
            await _in_thread(self._own_threads, self._close)

    def discard(self) -> None:
        """Close the file, from which nothing was read and to which nothing was written."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    async def _change(self, work: Callable[..., T], *arguments: object) -> T:
        with self._changes.one():
            return await _in_thread(self._threads.changes, work, *arguments)

    def _append(self, parts: Sequence[bytes]) -> int:
        with self._writing("append to") as descriptor:
            size = sum(map(len, parts))
            is_joined = len(parts) > _PARTS_MAX and size < len(parts) * _SMALL_BYTES
            pieces = [memoryview(part) for part in ([b"".join(parts)] if is_joined else parts)]
            if self._ahead and self._size + size > self._reserved_to:
                self._reserve_from(descriptor, self._size + size)
            while pieces:
                written = os.pwritev(descriptor, pieces[:_IOV_MAX], self._size)  # may be short (J9)
                self._size += written
                pieces = _remaining(pieces, written)
            return self._size

    def _sync(self) -> None:
        with self._writing("sync") as descriptor:
            os.fdatasync(descriptor)

    def _append_and_sync(self, parts: Sequence[bytes]) -> int:
        size = self._append(parts)
        self._sync()
        return size

    def _reserve(self, ahead: int) -> None:
        with self._open_descriptor("reserve space for") as descriptor:
            self._ahead = ahead
            if self._is_broken:
                return
            if ahead:
                self._reserve_from(descriptor, self._size)
            elif os.fstat(descriptor).st_size > self._size:
                with suppress(OSError):  # the file then ends with zeros, as after a crash
                    os.ftruncate(descriptor, self._size)

    def _reserve_from(self, descriptor: int, end: int) -> None:
        self._reserved_to = end + self._ahead
        found = os.fstatvfs(descriptor)
        if found.f_bavail * found.f_frsize >= _FREE_FOR_RESERVED * self._ahead:
            _allocate(descriptor, self._size, self._reserved_to - self._size)

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with self._open_descriptor("read") as descriptor:
            return [_read_range(descriptor, offset, size) for offset, size in ranges]

    def _stat_size(self) -> int:
        with self._open_descriptor("stat") as descriptor:
            return os.fstat(descriptor).st_size

    def _close(self) -> None:
        with self._busy, _disk_errors("close", self._path):
            if self._descriptor is not None:
                descriptor, self._descriptor = self._descriptor, None
                os.close(descriptor)

    @contextmanager
    def _open_descriptor(self, verb: str) -> Iterator[int]:
        with self._busy, _disk_errors(verb, self._path):
            if self._descriptor is None:
                raise DiskError(f"cannot {verb} {self._path}: it is closed")
            yield self._descriptor

    @contextmanager
    def _writing(self, verb: str) -> Iterator[int]:
        with self._open_descriptor(verb) as descriptor:
            if self._is_broken:
                raise DiskError(f"cannot {verb} {self._path}: an earlier write or sync of it failed")
            self._is_broken = True  # reset after success
            yield descriptor
            self._is_broken = False


@contextmanager
def _disk_errors(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _disk_error(verb, path, error) from error


def _disk_error(verb: str, path: Path, error: OSError) -> DiskError:
    remedy = _REMEDIES.get(error.errno or 0)
    kind = DiskFullError if error.errno in _FULL else DiskError
    return kind(f"cannot {verb} {path}: {error.strerror or error}{f' ({remedy})' if remedy else ''}")


async def _in_thread(threads: ThreadPoolExecutor, work: Callable[..., T], *arguments: object) -> T:
    try:
        running = asyncio.get_running_loop().run_in_executor(threads, work, *arguments)
    except RuntimeError as error:  # raised by an executor after its shutdown
        raise DiskError("the disk was closed") from error
    return await running


async def _ended(threads: _Threads) -> bool:
    """Wait up to ``_CLOSE_S`` for all operations to end, and return whether they have ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wait() -> None:
        threads.shutdown()
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, daemon=True).start()
    with suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), _CLOSE_S)
    return ended.is_set()


def is_thread_waiting() -> bool:
    """Return whether a thread may still wait for a disk after ``close``. The interpreter waits for it at exit."""
    return any(thread.name.startswith(THREAD_NAME) for thread in threading.enumerate())


def _make_and_lock(root: Path, may_be_read_only: bool) -> int:
    if not (may_be_read_only and _is_directory(root) and _is_read_only(root)):
        make_durable_directory(root)
    with _disk_errors("lock", root):
        return lock_directory(root, may_be_read_only=may_be_read_only)


def _is_directory(path: Path) -> bool:
    """Return whether ``path`` is a directory.

    Raises:
        DiskError: its disk cannot tell.
    """
    with _disk_errors("stat", path):
        return path.is_dir()


def _is_read_only(directory: Path) -> bool:
    with _disk_errors("stat", directory):
        return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)


def make_durable_directory(path: Path) -> None:
    """Create ``path`` with its parents, and make its name durable, even if it already exists.

    An earlier process may have died before it synced the parent directory. Without this sync, a power loss soon after
    the first start could remove the directory with all its synced files.

    Raises:
        DiskError: it cannot be created or synced.
    """
    _make_directory(path)
    if os.access(path.parent, os.R_OK):  # otherwise another user created it, and is responsible for it
        _sync_directory(path.parent)


def _open_file(path: Path, flags: int, threads: _Threads, changes: RunningChanges) -> _File:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        if flags & os.O_CREAT:
            raise DiskError(f"cannot create {path}: its directory does not exist") from None
        raise
    except OSError as error:
        raise _disk_error("open", path, error) from error
    try:
        size = os.fstat(descriptor).st_size
    except OSError as error:
        os.close(descriptor)
        raise _disk_error("stat", path, error) from error
    return _File(path, descriptor, size, threads, changes, is_read=not flags & os.O_CREAT)


def _allocate(descriptor: int, offset: int, size: int) -> None:
    """Extend the file to at least ``offset + size`` and allocate the space, if the file system supports that.

    ``os.posix_fallocate`` is not used, because it writes to each block if the file system has no such support. Failures
    are ignored: the next append then allocates its space itself, and reports the error if it cannot.
    """
    if _fallocate is not None:
        _fallocate(descriptor, 0, offset, size)


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    found = getattr(ctypes.CDLL(None), "fallocate", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)  # off_t is a long
    return found


_fallocate: Final = _find_fallocate()


def _remaining(pieces: list[memoryview], written: int) -> list[memoryview]:
    while pieces and written >= len(pieces[0]):
        written -= len(pieces.pop(0))
    if written:
        pieces[0] = pieces[0][written:]
    return pieces


def _read_range(descriptor: int, offset: int, size: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


def _replace(path: Path, data: bytes) -> None:
    aside = path.with_name(path.name + ".tmp")
    with _disk_errors("replace", path):
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            pieces = [memoryview(data)]
            while pieces:
                pieces = _remaining(pieces, os.writev(descriptor, pieces))
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                aside.unlink()
            raise
        finally:
            os.close(descriptor)
        aside.rename(path)
    _sync_directory(path.parent)


def _names(directory: Path) -> list[str]:
    with _disk_errors("list", directory):
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []


def _make_directory(path: Path) -> None:
    if _is_directory(path):
        return
    _make_directory(path.parent)
    with _disk_errors("make directory", path):
        path.mkdir(exist_ok=True)
    _sync_directory(path.parent)


def _unlink(path: Path) -> None:
    with _disk_errors("remove", path):
        path.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    with _disk_errors("sync directory", directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def file_system_space(directory: Path) -> tuple[int, int]:
    """Return the total bytes of a file system, and the free bytes available to an unprivileged user.

    If hardly any inodes are free, no byte counts as free, because the file system accepts no new files (R134). Some
    file systems have no fixed number of inodes, and report a total of 0.

    Raises:
        DiskError: the file system cannot be queried.
    """
    with _disk_errors("stat", directory):
        found = os.statvfs(directory)
    has_inodes = not found.f_files or found.f_favail >= _FREE_INODES_MIN
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize if has_inodes else 0
