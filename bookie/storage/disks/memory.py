"""In-memory twins of the storage adapters, with simulated power loss. For simulations and tests.

A file has durable bytes and appends that are not durable yet; a name is durable after its directory was synced.
``crash`` returns the state after a power loss: each unsynced append is lost, kept or torn, and each unsynced name
change has happened or not. Every operation first awaits ``before``, in which a test can let time pass, stop everything,
or raise any error. Not modelled: a disk that acknowledges a sync and loses the data, and misdirected writes (use
``overwrite``).
"""

from __future__ import annotations

import asyncio
import enum
import random
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import override

from bookie.runtime.fault_points import fault_point
from bookie.storage.disks.changes import RunningChanges
from bookie.storage.port import Disk, DiskError, DiskFile, DiskFullError, EntryIndex


class Operation(enum.Enum):
    """An operation of the port."""

    CREATE = "create"
    OPEN = "open"
    APPEND = "append"
    SYNC = "sync"
    READ = "read"
    REPLACE = "replace"
    LIST = "list"
    MAKE_DIRECTORY = "make directory"
    UNLINK = "unlink"
    SYNC_DIRECTORY = "sync directory"
    INDEX_READ = "index read"
    INDEX_WRITE = "index write"


_RESERVED_MAX: Final = 512
_FREE_FOR_RESERVED: Final = 64
"""As in ``FileDisk``: a file reserves space only if this many times as much is free."""

Before = Callable[[Operation, str], Awaitable[None]]
"""Awaited with the operation and its path, before the operation has any effect. A ``DiskFullError`` raised at APPEND
leaves half of the data in the file. After a ``DiskError`` raised at SYNC, the next crash loses the unsynced data, even
if the file is synced again: as on Linux, the data can be read until then, and the later sync reports success."""


Replaced = Callable[[str], None]
"""Called with the path after a file was replaced, and before its name is durable. A test can raise an error."""


def accept(path: str) -> None:
    """Do nothing; the default of ``replaced``."""


async def yield_control(operation: Operation, path: str) -> None:
    """Yield to other tasks; the default of ``before``."""
    await asyncio.sleep(0)


@dataclass(slots=True)
class _Content:
    """A file's bytes. The first ``durable_size`` survive a crash; ``unsynced`` lists the sizes of the later appends.

    ``dropped`` lists the ranges (first, end) among the former that no disk has, because their sync failed; ascending.
    ``reserved`` is the number of zeros that readers see after these bytes.
    """

    data: bytearray = field(default_factory=bytearray)
    durable_size: int = 0
    unsynced: list[int] = field(default_factory=list)
    dropped: list[tuple[int, int]] = field(default_factory=list)
    has_failed_sync: bool = False
    ahead: int = 0
    reserved: int = 0

    def append(self, data: bytes) -> None:
        self.data += data
        self.unsynced.append(len(data))
        self.reserved = self.reserved - len(data) if len(data) <= self.reserved else self.ahead

    def copy(self) -> _Content:
        return _Content(
            bytearray(self.data), self.durable_size, list(self.unsynced), list(self.dropped), reserved=self.reserved
        )

    def visible(self) -> bytes:
        return bytes(self.data) + bytes(self.reserved)

    def materialized_bytes(self) -> bytearray:
        """Return all bytes so that any of them can be changed; reserved zeros become part of the content."""
        self.data += bytes(self.reserved)
        self.durable_size += self.reserved if not self.unsynced else 0
        self.reserved = 0
        return self.data

    def sync(self) -> None:
        self.durable_size = len(self.data)
        self.unsynced.clear()

    def fail_sync(self) -> None:
        """Drop the unsynced bytes: they can be read, and no later sync writes them."""
        self.has_failed_sync = True
        if self.unsynced:
            self.dropped.append((self.durable_size, len(self.data)))
        self.sync()

    def after_power_loss(self, rng: random.Random, *, has_holes: bool = False) -> _Content:
        survived, end, offset = self.data[: self.durable_size], self.durable_size, self.durable_size
        for first, last in self.dropped:
            survived[first:last] = _lost(last - first, rng)
        if self.dropped and self.dropped[-1][1] == end:
            end = self.dropped[-1][0]
        for size in self.unsynced:
            kept = rng.choice((0, size, rng.randint(0, size)))
            filler = _lost(size - kept, rng)
            written = self.data[offset : offset + kept]
            if has_holes and kept and rng.random() < 0.5:  # the kernel writes pages in any order
                start, stop = sorted((rng.randrange(kept), rng.randrange(kept)))
                written[start:stop] = bytes(stop - start)
            survived += written + filler
            offset += size
            end = offset - size + kept if kept else end
        # Lost bytes become a hole or junk if later ones were kept; otherwise the file may be shorter.
        size = len(survived) if rng.random() < 0.2 else end
        if self.reserved and len(self.data) % 2:  # the reservation may be durable without the data in it
            survived = survived[:size] + bytes(len(self.data) + self.reserved - size)
            size = len(survived)
        return _Content(survived[:size], size)


def _lost(size: int, rng: random.Random) -> bytes:
    """Return the bytes in place of lost ones."""
    return bytes(size) if rng.random() < 0.5 else rng.randbytes(size)


@dataclass(slots=True)
class MemoryDisk(Disk):
    """The in-memory twin of ``FileDisk``.

    Attributes:
        before: awaited before every operation, with the operation and its path.
        capacity_bytes: appends beyond this size raise ``DiskFullError``.
        syncs_after_failure: the number of times a file was synced again after a failed sync (a breach of J6).
        bad_sectors: the bytes, as (path, offset), that cannot be read: a read of a range that contains one of them
            fails.
        replaced: called when a file was replaced, before its name is durable.
        has_holes: whether a power loss may leave zeros inside an unsynced append of which a later part was kept.
    """

    before: Before = yield_control
    capacity_bytes: int = 1 << 40
    syncs_after_failure: int = 0
    bad_sectors: set[tuple[str, int]] = field(default_factory=set)
    replaced: Replaced = accept
    has_holes: bool = False
    _files: dict[str, _Content] = field(default_factory=dict)
    _durable_files: dict[str, _Content] = field(default_factory=dict)
    _directories: set[str] = field(default_factory=lambda: {""})
    _changes: RunningChanges = field(default_factory=RunningChanges)

    @override
    async def create(self, path: str) -> DiskFile:
        await self.begin(Operation.CREATE, path)
        if path in self._files or _parent(path) not in self._directories:
            raise DiskError(f"cannot create {path}: it exists, or its directory does not")
        self._files[path] = _Content()
        return _MemoryFile(self, path, self._files[path])

    @override
    async def open(self, path: str) -> DiskFile:
        await self.before(Operation.OPEN, path)
        if path not in self._files:
            raise FileNotFoundError(path)
        return _MemoryFile(self, path, self._files[path], is_writable=False)

    @override
    async def replace(self, path: str, data: bytes) -> None:
        await self.begin(Operation.REPLACE, path)
        self.check_space(len(data))
        self._files[path] = content = _Content(bytearray(data), len(data))
        self.replaced(path)
        self._durable_files[path] = content

    @override
    async def names(self, directory: str) -> list[str]:
        await self.before(Operation.LIST, directory)
        paths = self._files.keys() | self._directories
        return sorted(path.rpartition("/")[2] for path in paths if path and _parent(path) == directory)

    @override
    async def make_directory(self, path: str) -> None:
        await self.begin(Operation.MAKE_DIRECTORY, path)
        while path not in self._directories:
            self._directories.add(path)
            path = _parent(path)

    @override
    async def unlink(self, path: str) -> None:
        await self.begin(Operation.UNLINK, path)
        self._files.pop(path, None)

    @override
    async def sync_directory(self, directory: str) -> None:
        await self.begin(Operation.SYNC_DIRECTORY, directory)
        for path in self._files.keys() | self._durable_files.keys():
            if _parent(path) == directory:
                _copy_name(path, self._files, self._durable_files)

    @override
    async def space(self) -> tuple[int, int]:
        return self.capacity_bytes, max(self.capacity_bytes - self.used_bytes(), 0)

    @property
    @override
    def oldest_change(self) -> int | None:
        return self._changes.oldest

    async def begin(self, operation: Operation, path: str) -> None:
        """Await ``before`` at the start of a change."""
        with self._changes.one():
            await self.before(operation, path)

    def used_bytes(self) -> int:
        """Return the number of bytes in all files."""
        return sum(len(content.data) + content.reserved for content in self._files.values())

    def check_space(self, size: int) -> None:
        """Raise DiskFullError if ``size`` more bytes do not fit."""
        if self.used_bytes() + size > self.capacity_bytes:
            raise DiskFullError("no space left")

    def crash(self, rng: random.Random) -> MemoryDisk:
        """Return the disk after a power loss; this one should no longer be used."""
        names = dict(self._durable_files)
        for path in sorted(self._files.keys() | self._durable_files.keys()):
            if rng.random() < 0.5:
                _copy_name(path, self._files, names)
        disk = self._empty_copy()
        disk._files = {path: content.after_power_loss(rng, has_holes=self.has_holes) for path, content in names.items()}
        disk._durable_files = dict(disk._files)
        disk._directories = set(self._directories)
        return disk

    def restarted(self) -> MemoryDisk:
        """Return the disk after a kill of only the process.

        All written data can be read. Unsynced data is still not durable, and never becomes durable after a failed sync,
        which the next process cannot know.
        """
        copies = {id(content): content.copy() for content in [*self._files.values(), *self._durable_files.values()]}
        disk = self._empty_copy()
        disk._files = {path: copies[id(content)] for path, content in self._files.items()}
        disk._durable_files = {path: copies[id(content)] for path, content in self._durable_files.items()}
        disk._directories = set(self._directories)
        return disk

    def _empty_copy(self) -> MemoryDisk:
        return MemoryDisk(
            capacity_bytes=self.capacity_bytes,
            bad_sectors=set(self.bad_sectors),
            replaced=self.replaced,
            has_holes=self.has_holes,
        )

    def paths(self) -> list[str]:
        """Return the paths of all files, sorted."""
        return sorted(self._files)

    def content(self, path: str) -> bytes:
        """Return the bytes of a file, without the reserved space."""
        return bytes(self._files[path].data)

    def overwrite(self, path: str, offset: int, data: bytes) -> None:
        """Change stored bytes, as bit rot or a misdirected write does."""
        self._files[path].materialized_bytes()[offset : offset + len(data)] = data

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip one stored bit; ``bit`` counts from the start of the file."""
        self._files[path].materialized_bytes()[bit // 8] ^= 1 << bit % 8

    def cut(self, path: str, size: int) -> None:
        """Truncate a file to ``size`` bytes, as after the loss of its end."""
        self._files[path] = self._durable_files[path] = _Content(self._files[path].data[:size], size)

    def lose(self, path: str) -> None:
        """Remove a file without a trace."""
        self._files.pop(path)
        self._durable_files.pop(path, None)


@dataclass(slots=True)
class _MemoryFile(DiskFile):
    disk: MemoryDisk
    path: str
    content: _Content
    is_writable: bool = True
    is_broken: bool = False
    """True after a write or sync has failed."""
    is_closed: bool = False

    @override
    async def append(self, parts: Sequence[bytes]) -> int:
        data = b"".join(parts)
        try:
            await self._begin(Operation.APPEND)
            self.disk.check_space(len(data))
        except DiskFullError:
            self.content.append(data[: len(data) // 2])
            self.is_broken = True
            raise
        self.content.append(data)
        return len(self.content.data)

    @override
    async def sync(self) -> None:
        if self.content.has_failed_sync:
            self.disk.syncs_after_failure += 1
        try:
            await self._begin(Operation.SYNC)
        except DiskError:
            self.content.fail_sync()
            self.is_broken = True
            raise
        self.content.sync()

    @override
    async def append_and_sync(self, parts: Sequence[bytes]) -> int:
        size = await self.append(parts)
        await self.sync()
        return size

    @override
    async def reserve(self, ahead: int) -> None:
        """Reserve at most ``_RESERVED_MAX`` bytes, at once: simulated disks are small."""
        if self.is_closed:
            raise DiskError(f"cannot reserve space for {self.path}: closed")
        fits = self.disk.capacity_bytes - self.disk.used_bytes() >= _FREE_FOR_RESERVED * ahead
        self.content.ahead = self.content.reserved = min(ahead, _RESERVED_MAX) if fits else 0

    @override
    async def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        await self._begin(Operation.READ)
        if any(self._has_bad_sector(offset, size) for offset, size in ranges):
            raise DiskError(f"cannot read {self.path}: input/output error")
        data = self.content.visible() if self.content.reserved else self.content.data
        return [bytes(data[offset : offset + size]) for offset, size in ranges]

    @override
    def read_cached(self, offset: int, size: int) -> bytes | None:
        if self.is_closed or self._has_bad_sector(offset, size) or not fault_point("disk.in_memory"):
            return None
        data = bytes(self.content.data[offset : offset + size])
        return data if len(data) == size else None

    def _has_bad_sector(self, offset: int, size: int) -> bool:
        return any(path == self.path and offset <= bad < offset + size for path, bad in self.disk.bad_sectors)

    @override
    async def size(self) -> int:
        await self._begin(Operation.READ)
        return len(self.content.data) + self.content.reserved

    @override
    async def close(self) -> None:
        self.is_closed = True

    async def _begin(self, operation: Operation) -> None:
        self._check_usable(operation)
        if operation is Operation.READ:
            await self.disk.before(operation, self.path)
        else:
            await self.disk.begin(operation, self.path)
        self._check_usable(operation)

    def _check_usable(self, operation: Operation) -> None:
        is_write = operation in (Operation.APPEND, Operation.SYNC)
        is_refused = (is_write and self.is_broken) or (operation is Operation.APPEND and not self.is_writable)
        if self.is_closed or is_refused:
            raise DiskError(f"cannot {operation.value} {self.path}: closed, read-only, or a write to it failed")


@dataclass(slots=True)
class MemoryIndex(EntryIndex):
    """The in-memory twin of ``RocksIndex``. A write is durable on return; a crash during it keeps all or nothing.

    After a write that failed for lack of space, every write fails until ``reopen``, which fails while ``is_full``. If
    ``reopen`` fails while the index is being opened (``index.full_at_opening``), nothing can be read until it succeeds.
    """

    before: Before = yield_control
    is_full: Callable[[], bool] = lambda: False
    _needs_reopen: bool = False
    _is_open: bool = True
    _pairs: dict[bytes, bytes] = field(default_factory=dict)
    _ordered: list[bytes] | None = None
    _under_way: dict[int, tuple[list[tuple[bytes, bytes]], list[bytes]]] = field(default_factory=dict)
    _writes: int = 0
    _is_closed: bool = False

    @override
    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._begin(Operation.INDEX_READ)
        return [self._pairs.get(key) for key in keys]

    @override
    def get_cached(self, keys: Sequence[bytes]) -> list[bytes] | None:
        if self._is_closed or not self._is_open or not fault_point("index.in_memory"):
            return None
        found = [value for key in keys if (value := self._pairs.get(key)) is not None]
        return found if len(found) == len(keys) else None

    @override
    async def range(self, first_key: bytes, end_key: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return [(key, self._pairs[key]) for key in await self.keys(first_key, end_key, limit)]

    @override
    async def keys(self, first_key: bytes, end_key: bytes, limit: int) -> list[bytes]:
        await self._begin(Operation.INDEX_READ)
        ordered = self._in_order()
        first, end = bisect_left(ordered, first_key), bisect_left(ordered, end_key)
        return ordered[first : min(end, first + limit)]

    @override
    async def last(self, first_key: bytes, end_key: bytes) -> tuple[bytes, bytes] | None:
        await self._begin(Operation.INDEX_READ)
        ordered = self._in_order()
        end = bisect_left(ordered, end_key)
        if end == 0 or ordered[end - 1] < first_key:
            return None
        return ordered[end - 1], self._pairs[ordered[end - 1]]

    @override
    async def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        self._writes += 1
        number, self._under_way[self._writes] = self._writes, (list(puts), list(deletes))
        try:
            if self._needs_reopen:
                raise DiskFullError("no space left, and the index was not opened again")
            await self._begin(Operation.INDEX_WRITE)
            if self.is_full():
                raise DiskFullError("no space left for the index")
        except DiskError as error:
            del self._under_way[number]
            self._needs_reopen |= isinstance(error, DiskFullError)
            raise
        self._apply(*self._under_way.pop(number))

    @property
    @override
    def needs_reopen(self) -> bool:
        return self._needs_reopen

    @override
    async def reopen(self) -> None:
        await asyncio.sleep(0)
        if self._needs_reopen and self.is_full():
            self._is_open = self._is_open and not fault_point("index.full_at_opening")
            raise DiskFullError("no space left to open the index again")
        self._needs_reopen, self._is_open = False, True

    @override
    async def close(self) -> None:
        self._is_closed = True

    def crash(self, rng: random.Random) -> MemoryIndex:
        """Return the index after a crash; this one should no longer be used."""
        index = self.restarted()
        for puts, deletes in self._under_way.values():
            if rng.random() < 0.5:
                index._apply(puts, deletes)
        return index

    def restarted(self) -> MemoryIndex:
        """Return the index as a new process reads it."""
        return MemoryIndex(_pairs=dict(self._pairs))

    def _apply(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        self._pairs.update(puts)
        for key in deletes:
            self._pairs.pop(key, None)
        self._ordered = None

    def _in_order(self) -> list[bytes]:
        if self._ordered is None:
            self._ordered = sorted(self._pairs)
        return self._ordered

    async def _begin(self, operation: Operation) -> None:
        if self._is_closed:
            raise DiskError("the index is closed")
        if not self._is_open:
            raise DiskFullError("no space left to open the index again")
        await self.before(operation, "index")


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _copy_name(path: str, source: dict[str, _Content], target: dict[str, _Content]) -> None:
    if path in source:
        target[path] = source[path]
    else:
        target.pop(path, None)
