"""Several directories as one ``Disk``: the entry logs are spread over them, and everything else is in the first one.

A new entry log is created in the directory with the most free space. A full directory gets no new logs while another
one has room. So the bookie is full only if all of its directories are.

The first directory also holds the index and the identity files. If a write to it fails, the error is the same as for
any disk, and the bookie ends (J6). If a write to another one fails, that directory is out of use until the next start:

- the writer gets a ``DirectoryFailedError``, and repeats the write in a new file in another directory;
- nothing more is written to the directory or removed from it. Its files can be read as long as the device returns their
  data, which the caller verifies;
- if the files of this directory are unknown, a file that no other directory has is never reported as absent (R130),
  because it may be in this one (S6).

A disk may also hang without an error. If an operation on a directory other than the first lasts for
``DISK_SILENCE_S_MAX``, the directory is out of use and is not read either, because each operation could last as long
and would occupy a thread.

A failed read does not by itself take a directory out of use, because one bad sector damages only some entries. It
triggers a probe: the directory is taken out of use if a write to it fails, or if it no longer lists the file, as after
an unmount.

Names of entry logs are unique over all directories, because their ids come from one counter.

Source: docs/failure-model.md#R114, and docs/decisions/0105-several-ledger-directories.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from typing_extensions import override

from bookie.runtime.clock import Clock
from bookie.runtime.open_files import is_open_files_limit_error
from bookie.runtime.waiting import within_running_time
from bookie.storage.disks.removed_files import RemovedFiles
from bookie.storage.port import (
    DISK_SILENCE_S_MAX,
    PROBE_FILE,
    DirectoryFailedError,
    DirectoryFullError,
    Disk,
    DiskError,
    DiskFile,
    DiskFullError,
)

_log = logging.getLogger(__name__)

SPREAD: Final = "entries"
"""The subdirectory whose files are spread: that of the entry logs."""
_PROBE_INTERVAL_S: Final = 10.0
"""The shortest time between two probes of one directory."""
_REGAINED_BYTES: Final = 1 << 20
"""A full directory gets new files again after its free space has grown by more than this."""

T = TypeVar("T")


@dataclass(slots=True)
class SpreadDirectory:
    """One of the directories.

    Attributes:
        path: its path, for messages.
        disk: its disk; None if it could not be opened, or belongs to another bookie.
        problem: why it is out of use; empty if it is in use.
        is_silent: whether it is out of use because it does not answer; it is not read then.
        is_listed: whether its files are known.
        syncing: held during a sync of its names.
    """

    path: str
    disk: Disk | None
    problem: str = ""
    is_silent: bool = False
    is_listed: bool = False
    syncing: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _full_at_bytes: int | None = None
    """Its free space when it was found full."""
    _probed_s: float | None = None

    def check(self) -> None:
        """Raise DirectoryFailedError if it is out of use."""
        if self.problem:
            raise DirectoryFailedError(f"{self.path} is out of use: {self.problem}")

    def note_full(self, free_bytes: int) -> None:
        """Record that a write found no space."""
        self._full_at_bytes = free_bytes

    def has_room(self, free_bytes: int) -> bool:
        """Return whether a new file may be created here, with this much free space."""
        if self._full_at_bytes is not None and free_bytes > self._full_at_bytes + _REGAINED_BYTES:
            self._full_at_bytes = None
        return self._full_at_bytes is None

    def begin_probe_if_due(self, now_s: float) -> bool:
        """Return whether a new probe is due, and if so, record it."""
        if self._probed_s is not None and now_s - self._probed_s < _PROBE_INTERVAL_S:
            return False
        self._probed_s = now_s
        return True


class SpreadDisk(Disk):
    """The directories of one bookie. Create it with ``over``."""

    def __init__(
        self, directories: Sequence[SpreadDirectory], first: Disk, clock: Clock | None, silent_s: float
    ) -> None:
        self.directories = tuple(directories)
        """All directories, in the order of the settings."""
        self._first = first
        self._clock = clock
        self._silent_s = silent_s
        self._places: dict[str, SpreadDirectory] = {}
        """The directory of each spread file, by its path."""
        self._removed: RemovedFiles[str] = RemovedFiles()
        """Files that this process has removed or is removing."""
        self._unsynced = {directory.path for directory in directories}
        """Directories in which files may have been created or removed since the last sync."""

    @classmethod
    async def over(
        cls, directories: Sequence[SpreadDirectory], clock: Clock | None, *, silent_s: float = DISK_SILENCE_S_MAX
    ) -> SpreadDisk:
        """Combine several directories into one disk, and list their files.

        Args:
            directories: the first one must have a disk. Another one without a disk must have a ``problem``.
            clock: time; None: directories are not probed after a failed read.
            silent_s: how long an operation on a directory other than the first may last.

        Raises:
            DiskError: the first directory cannot be read.
        """
        first = directories[0].disk
        assert first is not None, "the first directory is always in use"
        disk = cls(directories, first, clock, silent_s)
        await disk.names(SPREAD)
        return disk

    @override
    async def create(self, path: str) -> DiskFile:
        if not _is_spread(path):
            return await self._first.create(path)
        if path in self._places:
            raise DiskError(f"cannot create {path}: it exists")
        directory, disk = await self._directory_with_most_room()
        with self._changing_names(directory):
            try:
                file = await self.answer(directory, disk.create(path))
            except DiskError as error:
                raise await self.noted(directory, error) from error
        self._places[path] = directory
        return _SpreadFile(self, directory, path, file)

    @override
    async def open(self, path: str) -> DiskFile:
        if not _is_spread(path):
            return await self._first.open(path)
        directory = self._places.get(path)
        if directory is None or directory.disk is None:
            if self.is_out_of_use(path):
                problems = "; ".join(f"{each.path}: {each.problem}" for each in self.directories if each.problem)
                raise DirectoryFailedError(
                    f"cannot open {path}: it may be in a directory that is out of use ({problems})"
                )
            raise FileNotFoundError(path)
        try:
            file = await self.answer(directory, directory.disk.open(path))
        except DiskFullError:  # too many open files: nothing is known about the directory
            raise
        except (FileNotFoundError, DiskError) as error:
            await self.suspect(directory, path)
            if path in self._removed:
                raise
            directory.check()
            raise DiskError(f"cannot open {path} in {directory.path}: {error}") from error
        return _SpreadFile(self, directory, path, file)

    @override
    async def replace(self, path: str, data: bytes) -> None:
        if _is_spread(path):
            self._places.setdefault(path, self.directories[0])
        await self._first.replace(path, data)

    @override
    async def names(self, directory: str) -> list[str]:
        """Return the names. Except for the first one, a directory that cannot be listed is taken out of use."""
        if directory != SPREAD:
            return await self._first.names(directory)
        for each in self.directories:
            if each.disk is None or each.problem:
                continue
            try:
                found = await self.answer(each, each.disk.names(SPREAD))
            except DiskError as error:
                self._raise_or_take_out_of_use(each, error)
                continue
            for name in found:
                self._places.setdefault(f"{SPREAD}/{name}", each)
            each.is_listed = True
        return sorted(path.removeprefix(f"{SPREAD}/") for path in self._places if path not in self._removed)

    @override
    async def make_directory(self, path: str) -> None:
        if path != SPREAD:
            await self._first.make_directory(path)
            return
        for each in self.directories:
            if each.disk is not None and not each.problem:
                try:
                    await self.answer(each, each.disk.make_directory(path))
                except DiskError as error:
                    self._raise_or_take_out_of_use(each, error)

    @override
    async def unlink(self, path: str) -> None:
        if not _is_spread(path):
            await self._first.unlink(path)
            return
        directory = self._places.get(path)
        if directory is None or directory.disk is None:
            return
        directory.check()
        self._removed.add(path)
        with self._changing_names(directory):
            try:
                await self.answer(directory, directory.disk.unlink(path))
            except DiskError as error:
                self._removed.discard(path)
                raise await self.noted(directory, error) from error
        self._places.pop(path, None)

    @override
    async def sync_directory(self, directory: str) -> None:
        """Sync ``directory``. A failing directory of the disk is taken out of use, unless it is the first one.

        Files removed from it may reappear as entry logs to which the index does not refer.
        """
        if directory != SPREAD:
            await self._first.sync_directory(directory)
            return
        for each in self.directories:
            if each.disk is not None:
                await self._sync(each, each.disk)

    @override
    async def space(self) -> tuple[int, int]:
        """Return the sums of the total and the free bytes of all directories in use."""
        found = await self._spaces()
        return sum(total for _, total, _ in found), sum(free for *_, free in found)

    @override
    async def room(self) -> int:
        return max(free for *_, free in await self._spaces())

    @property
    @override
    def out_of_use_count(self) -> int:
        return sum(bool(directory.problem) for directory in self.directories)

    @property
    @override
    def oldest_change(self) -> int | None:
        return self._first.oldest_change

    @override
    def is_out_of_use(self, path: str) -> bool:
        if not _is_spread(path) or path in self._removed:
            return False
        directory = self._places.get(path)
        if directory is not None:
            return bool(directory.problem)
        return any(each.problem and not each.is_listed for each in self.directories)

    async def suspect(self, directory: SpreadDirectory, path: str) -> None:
        """Take a directory out of use if it no longer lists the file ``path``, or cannot be written.

        To be called after a read of a file failed. Nothing is done for the first directory, or shortly after another
        probe.
        """
        disk = directory.disk
        if disk is None or disk is self._first or directory.problem or path in self._removed:
            return
        if self._clock is None or not directory.begin_probe_if_due(self._clock.monotonic_s()):
            return
        try:
            names = await self.answer(directory, disk.names(SPREAD))
            if path.removeprefix(f"{SPREAD}/") not in names and path not in self._removed:
                self._take_out_of_use(directory, f"its file {path} is missing: is the disk mounted?")
                return
            await self.answer(directory, disk.replace(PROBE_FILE, b"written after a failed read\n"))
        except DiskFullError:
            return
        except DiskError as error:
            self._take_out_of_use(directory, str(error))

    async def answer(self, directory: SpreadDirectory, work: Coroutine[Any, Any, T]) -> T:
        """Await an operation on a directory, with a deadline unless it is the first directory.

        Only time during which this process is running counts.

        Raises:
            DirectoryFailedError: the directory does not answer, and is out of use.
            DiskError: from the operation.
        """
        if directory.disk is self._first:
            return await work
        if directory.is_silent:
            work.close()
            raise DirectoryFailedError(f"{directory.path} is out of use: {directory.problem}")
        try:
            return await within_running_time(self._silent_s, work)
        except TimeoutError as error:
            directory.is_silent = True
            self._take_out_of_use(directory, f"its disk did not answer for {self._silent_s:g} s")
            raise DirectoryFailedError(f"{directory.path} is out of use: {directory.problem}") from error

    async def noted(self, directory: SpreadDirectory, error: DiskError) -> DiskError:
        """Record a failed write to a directory, and return the error to raise."""
        if is_open_files_limit_error(error):  # this says nothing about the directory
            return error
        if isinstance(error, DiskFullError):
            free = 0
            if directory.disk is not None:
                with suppress(DiskError):
                    free = (await self.answer(directory, directory.disk.space()))[1]
            directory.note_full(free)
            others = [free for each, _, free in await self._spaces() if each is not directory and each.has_room(free)]
            return DirectoryFullError(str(error)) if any(others) else error
        if directory.disk is self._first:
            return error
        self._take_out_of_use(directory, str(error))
        return DirectoryFailedError(str(error))

    def _raise_or_take_out_of_use(self, directory: SpreadDirectory, error: DiskError) -> None:
        if directory.disk is self._first or isinstance(error, DiskFullError):
            raise error
        self._take_out_of_use(directory, str(error))

    def _take_out_of_use(self, directory: SpreadDirectory, problem: str) -> None:
        if not directory.problem:
            directory.problem = problem
            _log.error("ledger directory out of use", extra={"directory": directory.path, "problem": problem})

    @contextmanager
    def _changing_names(self, directory: SpreadDirectory) -> Iterator[None]:
        """Require a sync after the creation or removal in the block. One during the block may be too early."""
        try:
            yield
        finally:
            self._unsynced.add(directory.path)

    async def _sync(self, directory: SpreadDirectory, disk: Disk) -> None:
        """Sync a directory in use if necessary. A caller whose changes a running sync may contain waits for its end."""
        async with directory.syncing:
            if directory.problem or directory.path not in self._unsynced:
                return
            self._unsynced.discard(directory.path)  # now, because a file may be created during the sync
            is_synced = False
            try:
                await self.answer(directory, disk.sync_directory(SPREAD))
                is_synced = True
            except DiskError as error:
                self._raise_or_take_out_of_use(directory, error)
            finally:
                if not is_synced:
                    self._unsynced.add(directory.path)

    async def _spaces(self) -> list[tuple[SpreadDirectory, int, int]]:
        """Return the total and free bytes of each directory in use."""
        found = []
        for each in self.directories:
            if each.disk is not None and not each.problem:
                try:
                    found.append((each, *await self.answer(each, each.disk.space())))
                except DiskError as error:
                    self._raise_or_take_out_of_use(each, error)
        return found

    async def _directory_with_most_room(self) -> tuple[SpreadDirectory, Disk]:
        found = [(each.has_room(free), free, each) for each, _, free in await self._spaces()]
        _, _, chosen = max(found, key=lambda candidate: candidate[:2])
        assert chosen.disk is not None
        return chosen, chosen.disk


@dataclass(slots=True)
class _SpreadFile(DiskFile):
    """A file of one of the directories. It refuses writes after its directory was taken out of use."""

    disk: SpreadDisk
    directory: SpreadDirectory
    path: str
    file: DiskFile

    @override
    async def append(self, parts: Sequence[bytes]) -> int:
        return await self._writing(lambda: self.file.append(parts))

    @override
    async def sync(self) -> None:
        await self._writing(self.file.sync)

    @override
    async def append_and_sync(self, parts: Sequence[bytes]) -> int:
        return await self._writing(lambda: self.file.append_and_sync(parts))

    @override
    async def reserve(self, ahead: int) -> None:
        await self.disk.answer(self.directory, self.file.reserve(ahead))

    @override
    async def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return await self._reading(lambda: self.file.read(ranges))

    @override
    def read_cached(self, offset: int, size: int) -> bytes | None:
        return None if self.directory.is_silent else self.file.read_cached(offset, size)

    @override
    async def size(self) -> int:
        return await self._reading(self.file.size)

    @override
    async def close(self) -> None:
        if not self.directory.is_silent:
            await self.file.close()

    async def _writing(self, write: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self.directory.check()
        try:
            done = await self.disk.answer(self.directory, write())
        except DiskError as error:
            raise await self.disk.noted(self.directory, error) from error
        self.directory.check()  # the name of the file may not be durable
        return done

    async def _reading(self, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await self.disk.answer(self.directory, read())
        except DiskError:
            await self.disk.suspect(self.directory, self.path)
            raise


def _is_spread(path: str) -> bool:
    return path.rpartition("/")[0] == SPREAD
