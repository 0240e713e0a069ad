"""The directories of a stopped bookie, opened to look into them. The bookie cannot be started at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bookie.model.errors import PermanentError
from bookie.server.joining.directories import CURRENT, INDEX_DIRECTORY, LocalDirectory, Role, look
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.errors import LostIndexError
from bookie.storage.inspection import StoppedStorage, inspect
from bookie.storage.settings import StorageSettings


class NoBookieError(PermanentError):
    """A directory is not that of a bookie."""


@dataclass(frozen=True, slots=True)
class StoppedDisks:
    """The locked directories of a stopped bookie, and their identity files."""

    journal: FileDisk
    ledgers: FileDisk
    current: Path
    """``current`` of the ledger directory."""
    directories: Sequence[LocalDirectory]


@asynccontextmanager
async def stopped_disks(journal_dir: Path, ledger_dir: Path) -> AsyncIterator[StoppedDisks]:
    """Lock the directories of a stopped bookie.

    Raises:
        NoBookieError: one of them is not that of a bookie; nothing was created.
        DirectoryInUseError: the bookie runs.
        DiskError: a directory cannot be read.
    """
    for directory in (journal_dir, ledger_dir):
        if not (directory / CURRENT).is_dir():
            raise NoBookieError(f"{directory} has no directory {CURRENT}: it is not that of a bookie")
    async with AsyncExitStack() as stack:
        journal = await FileDisk.acquire(journal_dir / CURRENT)
        stack.push_async_callback(journal.close)
        ledgers = await FileDisk.acquire(ledger_dir / CURRENT)
        stack.push_async_callback(ledgers.close)
        yield await opened_disks(journal, ledgers, journal_dir, ledger_dir)


async def opened_disks(journal: FileDisk, ledgers: FileDisk, journal_dir: Path, ledger_dir: Path) -> StoppedDisks:
    """Look at directories that this process has locked, and in which no storage is open.

    Raises:
        DiskError: a directory cannot be read.
    """
    directories = [
        await look(Role.JOURNAL, str(journal_dir), journal),
        await look(Role.LEDGERS, str(ledger_dir), ledgers),
    ]
    return StoppedDisks(journal, ledgers, ledger_dir / CURRENT, directories)


@asynccontextmanager
async def stopped_storage(disks: StoppedDisks) -> AsyncIterator[StoppedStorage]:
    """Open the storage on these disks to look into it.

    Raises:
        LostIndexError: there is no index, or it is not that of the other files.
        BkhealError: see ``inspect``.
    """
    path = disks.current / INDEX_DIRECTORY
    if not await asyncio.to_thread(path.is_dir):
        raise LostIndexError(f"there is no index in {disks.current}: `bkheal bookie rebuild-index` makes it again")
    async with AsyncExitStack() as stack:
        index = await RocksIndex.open(path)
        stack.push_async_callback(index.close)
        storage = await inspect(disks.journal, disks.ledgers, index, StorageSettings())
        stack.push_async_callback(storage.close)
        yield storage
