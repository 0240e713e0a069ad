"""Opening the directories of a stopped bookie for inspection. The bookie cannot start at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from bookie.metadata.bookies.cookies import InvalidCookieError, decode_cookie
from bookie.model.errors import PermanentError
from bookie.server.joining.directories import CURRENT, INDEX_DIRECTORY, DirectoryRole, LocalDirectory, read_directory
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.disks.spread import SpreadDirectory, SpreadDisk
from bookie.storage.errors import LostIndexError
from bookie.storage.inspection import StoppedStorage, inspect
from bookie.storage.port import Disk, DiskError
from bookie.storage.settings import StorageSettings


class NoBookieError(PermanentError):
    """A directory does not belong to a bookie."""


@dataclass(frozen=True, slots=True)
class StoppedDisks:
    """The locked directories of a stopped bookie, and their identity files."""

    journals: Sequence[FileDisk]
    ledgers: Disk
    """All ledger directories as one disk."""
    ledger_disks: Sequence[FileDisk]
    """The disk of each ledger directory that could be opened."""
    current: Path
    """The path of ``current`` in the first ledger directory."""
    directories: Sequence[LocalDirectory]


@asynccontextmanager
async def stopped_disks(journal_dirs: Sequence[Path], ledger_dirs: Sequence[Path]) -> AsyncIterator[StoppedDisks]:
    """Lock the directories of a stopped bookie. A ledger directory other than the first may be lost.

    Raises:
        NoBookieError: another directory does not belong to a bookie, or the directories were given in a different
            order. Nothing was created.
        DirectoryInUseError: the bookie is running.
        DiskError: another directory cannot be read.
    """
    for directory in (*journal_dirs, ledger_dirs[0]):
        if not (directory / CURRENT).is_dir():
            raise NoBookieError(f"{directory} has no directory {CURRENT}: it is not that of a bookie")
    async with AsyncExitStack() as stack:
        journals = []
        for directory in journal_dirs:
            journals.append(await FileDisk.acquire(directory / CURRENT))
            stack.push_async_callback(journals[-1].close)
        ledgers: list[FileDisk | DiskError] = []
        for directory in ledger_dirs:
            disk = await _acquire_disk(directory, is_needed=directory == ledger_dirs[0])
            if isinstance(disk, FileDisk):
                stack.push_async_callback(disk.close)
            ledgers.append(disk)
        yield await opened_disks(journals, ledgers, journal_dirs, ledger_dirs)


async def _acquire_disk(directory: Path, *, is_needed: bool) -> FileDisk | DiskError:
    try:
        if not is_needed and not (directory / CURRENT).is_dir():
            return DiskError(f"{directory} has no directory {CURRENT}: is its disk mounted?")
        return await FileDisk.acquire(directory / CURRENT)
    except (DiskError, OSError) as error:
        if is_needed:
            raise
        return DiskError(str(error))


async def opened_disks(
    journals: Sequence[FileDisk],
    ledgers: Sequence[FileDisk | DiskError],
    journal_dirs: Sequence[Path],
    ledger_dirs: Sequence[Path],
) -> StoppedDisks:
    """Read the identity files of directories that this process has locked and that have no open storage.

    Raises:
        NoBookieError: the directories were given in a different order than the bookie uses them.
        DiskError: a journal directory, or the first ledger directory, cannot be read.
    """
    directories = []
    for path, journal in zip(journal_dirs, journals, strict=True):
        directories.append(await read_directory(DirectoryRole.JOURNAL, str(path.resolve()), journal))
    parts = []
    for path, disk in zip(ledger_dirs, ledgers, strict=True):
        name = str(path.resolve())
        if isinstance(disk, DiskError):
            directories.append(LocalDirectory(DirectoryRole.LEDGERS, name, problem=str(disk)))
            parts.append(SpreadDirectory(str(path), None, str(disk)))
            continue
        try:
            found = await read_directory(DirectoryRole.LEDGERS, name, disk)
        except DiskError as error:
            if not parts:
                raise
            found = LocalDirectory(DirectoryRole.LEDGERS, name, problem=str(error))
        directories.append(found)
        is_lost = bool(parts) and found.version is None and not _is_being_added(found, directories[len(journals)])
        problem = (found.problem or "it has no file VERSION: is its disk mounted?") if is_lost else ""
        parts.append(SpreadDirectory(str(path), None if is_lost else disk, problem))
    _check_directory_order(directories)
    opened = [disk for disk in ledgers if isinstance(disk, FileDisk)]
    whole = opened[0] if len(parts) == 1 else await SpreadDisk.over(parts, None)
    return StoppedDisks(journals, whole, opened, ledger_dirs[0] / CURRENT, directories)


def _is_being_added(directory: LocalDirectory, first: LocalDirectory) -> bool:
    """Return whether a ledger directory without ``VERSION`` is one whose addition to these disks was interrupted."""
    ours = {first.incarnation, first.rebuilt_from} - {None}
    return directory.incarnation in ours


def _check_directory_order(directories: Sequence[LocalDirectory]) -> None:
    """Check the roles and the order of the given directories by the paths in the cookies.

    A path that no cookie names is accepted: the disks may be mounted elsewhere.
    """
    given = {role: [each.path for each in directories if each.role is role] for role in DirectoryRole}
    for directory in directories:
        try:
            cookie = None if directory.version is None else decode_cookie(directory.version)
        except InvalidCookieError:
            continue  # the commands that need it report the damage
        if cookie is None:
            continue
        known = {DirectoryRole.JOURNAL: cookie.journal_dirs, DirectoryRole.LEDGERS: cookie.ledger_dirs}
        paths = {*cookie.journal_dirs, *cookie.ledger_dirs}
        for role in DirectoryRole:
            for path, place in zip_longest(given[role], known[role]):
                if path in paths and path != place:
                    raise NoBookieError(
                        f"{path} is in the wrong place: bookie {cookie.bookie_id} has the journal directories "
                        f"{', '.join(cookie.journal_dirs)} and the ledger directories {', '.join(cookie.ledger_dirs)}, "
                        "in this order"
                    )


@asynccontextmanager
async def stopped_storage(disks: StoppedDisks) -> AsyncIterator[StoppedStorage]:
    """Open the storage on these disks for inspection.

    Raises:
        LostIndexError: there is no index, or it does not belong to the other files.
        BkhealError: see ``inspect``.
    """
    path = disks.current / INDEX_DIRECTORY
    if not await asyncio.to_thread(path.is_dir):
        raise LostIndexError(f"there is no index in {disks.current}: rebuild it with `bkheal bookie rebuild-index`")
    async with AsyncExitStack() as stack:
        index = await RocksIndex.open(path)
        stack.push_async_callback(index.close)
        storage = await inspect(disks.journals, disks.ledgers, index, StorageSettings())
        stack.push_async_callback(storage.close)
        yield storage
