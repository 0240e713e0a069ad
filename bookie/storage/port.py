"""Ports of the storage core: files that can be made durable, and an ordered index.

The core (journal, entry log, store) uses the disk only through these ports. ``Disk`` paths are relative to the root of
the adapter. Written data is guaranteed to survive a crash only after the corresponding sync has returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from bookie.model.errors import FatalError

DISK_SILENCE_S_MAX: Final = 60.0
"""A disk that does not answer for this time counts as failed. The retries of a disk driver, or of a network volume that
fails over, take up to about 30 s."""

PROBE_FILE: Final = ".probe"
"""The file that a probe writes to a directory, to see whether its disk can be written and answers."""


class DiskError(FatalError):
    """A write or sync failed: the content of the disk is unknown, so the process must stop acknowledging (J6)."""


class DiskFullError(DiskError):
    """No space left, or no more files may be opened. The process may continue read-only, unlike after other errors.

    Both conditions may end without a restart, and neither means that the content of the disk is damaged.
    """


class StalledDiskError(DiskError):
    """A disk does not answer. The threads that wait for it cannot be stopped."""


class DirectoryFullError(DiskFullError):
    """One of several directories is full, and another one has room: write to a new file (R114)."""


class DirectoryFailedError(DiskError):
    """One of several directories failed and is out of use: write to a new file, in another directory (R114).

    Unsynced writes to files of the failed directory may be lost.
    """


class DiskFile(Protocol):
    """One open file."""

    async def append(self, parts: Sequence[bytes]) -> int:
        """Write ``parts`` at the end of the file and return its new size.

        Raises:
            DiskFullError: no space left; the file may end with a part of the data.
            DiskError: any other failure.
        """
        ...

    async def sync(self) -> None:
        """Make all content durable (fdatasync), including data of an earlier process if the file was only opened.

        Raises:
            DiskError: the kernel reported a failure; never call this again for this file.
        """
        ...

    async def append_and_sync(self, parts: Sequence[bytes]) -> int:
        """Do ``append``, then ``sync``, as one request, for a group commit.

        An adapter with threads saves one thread switch (about 0.1 ms, nearly half of the time of the sync itself).

        Raises:
            DiskFullError: no space left; the file may end with a part of the data.
            DiskError: any other failure.
        """
        ...

    async def reserve(self, ahead: int) -> None:
        """From now on, keep up to ``ahead`` bytes of space reserved after the last append; 0 releases it.

        A sync after an append into reserved space has less to write: neither the size of the file nor its list of
        blocks changes. Until the space is released, readers find zeros after the last append, even after a crash. This
        is best effort: nothing is reserved if the file system does not support it, or the disk is nearly full.

        Raises:
            DiskError: the file is closed.
        """
        ...

    async def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (offset, size) range; fewer at the end of the file.

        Raises:
            DiskError: the file cannot be read.
        """
        ...

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Return the ``size`` bytes at ``offset`` if they are in memory, without waiting for the disk or a thread.

        None means that the result is not known without a ``read``.
        """
        return None

    async def size(self) -> int:
        """Return the current size in bytes.

        Raises:
            DiskError: the size cannot be determined.
        """
        ...

    async def close(self) -> None:
        """Close without syncing. Idempotent.

        Raises:
            DiskError: a network file system failed to write data that was not synced. The file is closed.
        """
        ...


class Disk(Protocol):
    """One directory tree."""

    async def create(self, path: str) -> DiskFile:
        """Create a new file for appending and reading. Its name is durable after ``sync_directory``.

        Raises:
            DiskError: the file exists or cannot be created.
        """
        ...

    async def open(self, path: str) -> DiskFile:
        """Open an existing file for reading.

        Raises:
            FileNotFoundError: the file does not exist.
            DiskError: the file cannot be opened.
        """
        ...

    async def replace(self, path: str, data: bytes) -> None:
        """Atomically and durably replace the content of ``path`` (write a new file, sync, rename, sync directory).

        Raises:
            DiskFullError: no space left; the file has the old content.
            DiskError: any other failure; the file has the old or the new content.
        """
        ...

    async def names(self, directory: str) -> list[str]:
        """Return the sorted names of files and directories in a directory; empty if it does not exist.

        Raises:
            DiskError: the directory cannot be read.
        """
        ...

    async def make_directory(self, path: str) -> None:
        """Create a directory and its parents durably; no error if it exists."""
        ...

    async def unlink(self, path: str) -> None:
        """Remove a file; no error if it does not exist."""
        ...

    async def sync_directory(self, directory: str) -> None:
        """Make creations and removals in ``directory`` durable."""
        ...

    async def space(self) -> tuple[int, int]:
        """Return the total and the free bytes of the device, or of all devices."""
        ...

    async def room(self) -> int:
        """Return the free bytes for one new file: those of the device with the most free space."""
        return (await self.space())[1]

    @property
    def out_of_use_count(self) -> int:
        """The number of directories that are out of use; 0 for a disk of one directory."""
        return 0

    @property
    def oldest_change(self) -> int | None:
        """The number of the oldest running change; None if there is none, or if changes are not counted.

        If there are several directories, only changes of the first one count.
        """
        return None

    def is_out_of_use(self, path: str) -> bool:
        """Return whether a file is in a directory that is out of use, or may be in it.

        Such a file may be unreadable, and cannot be removed. It never counts as absent (R114).
        """
        return False


class EntryIndex(Protocol):
    """An ordered map of bytes to bytes with atomic, durable batches."""

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys``, with None for each absent key.

        Raises:
            DiskError: the index cannot be read.
        """
        ...

    def get_cached(self, keys: Sequence[bytes]) -> list[bytes] | None:
        """Return the values of ``keys`` if all of them are in memory, without waiting for the disk or a thread.

        None means that the result is not known without ``get_many``.
        """
        return None

    async def range(self, first_key: bytes, end_key: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` pairs with ``first_key <= key < end_key``, ascending.

        Raises:
            DiskError: the index cannot be read; a range is never silently truncated.
        """
        ...

    async def keys(self, first_key: bytes, end_key: bytes, limit: int) -> list[bytes]:
        """Return the keys of ``range`` without reading the values.

        Raises:
            DiskError: the index cannot be read; a range is never silently truncated.
        """
        ...

    async def last(self, first_key: bytes, end_key: bytes) -> tuple[bytes, bytes] | None:
        """Return the pair with the greatest key in ``first_key <= key < end_key``, or None if there is none.

        Raises:
            DiskError: the index cannot be read.
        """
        ...

    async def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        """Apply all changes or none; they are durable on return.

        Raises:
            DiskFullError: no space; every later write fails as well, until ``reopen`` (``needs_reopen``).
            DiskError: the changes could not be made durable.
        """
        ...

    @property
    def needs_reopen(self) -> bool:
        """True if every write fails with ``DiskFullError`` until ``reopen``."""
        return False

    async def reopen(self) -> None:
        """Make writes possible again after ``DiskFullError``. Nothing happens if ``needs_reopen`` is false.

        Raises:
            DiskFullError: there is not enough space yet. If the space ended while the index was being opened, reads
                may fail with this error, too, until a later call succeeds.
            DiskError: the index cannot be opened.
        """
        ...

    async def close(self) -> None:
        """Close. Idempotent."""
        ...
