"""From locked directories to an open storage: the disks belong to this bookie id before anything is read from them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookie.runtime.clock import Clock
from bookie.runtime.waiting import within_running_time
from bookie.server.joining.admission import AdmittedBookie, RoleDirectory, admit
from bookie.server.joining.directories import CURRENT, INDEX_DIRECTORY, DirectoryRole
from bookie.server.joining.limbo import finish_start
from bookie.server.joining.salvaged import salvage_at_start
from bookie.server.measured import TimedDisk
from bookie.server.settings import BookieSettings
from bookie.server.start.context import Context, Listeners, Metadata
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.disks.spread import SpreadDirectory, SpreadDisk
from bookie.storage.errors import DamagedJournalError
from bookie.storage.port import Disk, DiskError, StalledDiskError
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage

_log = logging.getLogger(__name__)

_INDEX_OPEN_TIMEOUT_S: Final = 600.0
"""The longest time to open the index, which includes the replay of its log of up to 64 MiB."""


@dataclass(frozen=True, slots=True)
class Disks:
    """The directories that this process has locked. A ledger directory other than the first may be unusable."""

    journals: Sequence[FileDisk]
    ledgers: Sequence[FileDisk | DiskError]


async def open_disks(context: Context) -> Disks:
    """Lock the directories for this process. The first ledger directory must be usable."""
    settings, stack = context.settings, context.stack
    journals = [await _open_disk(directory, stack) for directory in settings.journal_dirs]
    ledgers: list[FileDisk | DiskError] = [await _open_disk(settings.ledger_dirs[0], stack)]
    for directory in settings.ledger_dirs[1:]:
        try:
            ledgers.append(await _open_disk(directory, stack, may_be_read_only=True))
        except DiskError as error:
            ledgers.append(error)
    return Disks(journals, ledgers)


async def _open_disk(directory: Path, stack: AsyncExitStack, *, may_be_read_only: bool = False) -> FileDisk:
    disk = await FileDisk.acquire(directory / CURRENT, may_be_read_only=may_be_read_only)
    stack.push_async_callback(disk.close)
    return disk


def journal_roles(disks: Sequence[FileDisk]) -> dict[str, FileDisk]:
    """Name the journals' disks ``journal``, ``journal-2``, and so on."""
    return {"journal" if number == 1 else f"journal-{number}": disk for number, disk in enumerate(disks, 1)}


async def join_cluster(
    context: Context, listeners: Listeners, disks: Disks, metadata: Metadata
) -> tuple[AdmittedBookie, Disk, LedgerStorage]:
    """Check that the disks belong to this bookie id, and open them. Also return all ledger directories as one disk."""
    settings, clock, rng = context.settings, context.clock, context.rng
    store, cluster = metadata.store, metadata.cluster
    directories = (
        *(
            RoleDirectory(DirectoryRole.JOURNAL, *each)
            for each in zip(settings.journal_dirs, disks.journals, strict=True)
        ),
        *(_ledger_directory(*each) for each in zip(settings.ledger_dirs, disks.ledgers, strict=True)),
    )
    port = listeners.port if listeners.apache_port is None else listeners.apache_port

    async def admitted() -> AdmittedBookie:
        return await admit(
            store,
            cluster,
            directories,
            settings.bookie_id or "",
            f"{settings.advertised}:{port}",
            clock,
            rng,
            may_be_new_incarnation=settings.is_new_incarnation,
            speaks_apache=listeners.apache_port is not None,
            takeover_deadline_s=settings.takeover_deadline_s,
        )

    admission = await admitted()
    journals = [TimedDisk(disk, context.metrics, clock) for disk in disks.journals]
    ledger_disk = await _ledger_disk(directories, admission, clock)
    try:
        storage = await _open_storage(settings, journals, ledger_disk, clock, context.stack)
    except DamagedJournalError as error:
        if not settings.may_salvage_journal:
            raise
        await salvage_at_start(
            disks.journals, disks.ledgers, settings.journal_dirs, settings.ledger_dirs, error, rng, clock
        )
        admission = await admitted()
        ledger_disk = await _ledger_disk(directories, admission, clock)
        storage = await _open_storage(settings, journals, ledger_disk, clock, context.stack)
    await finish_start(
        store, cluster, directories, admission, storage, clock, rng, takeover_deadline_s=settings.takeover_deadline_s
    )
    return admission, ledger_disk, storage


def _ledger_directory(path: Path, disk: FileDisk | DiskError) -> RoleDirectory:
    if isinstance(disk, DiskError):
        return RoleDirectory(DirectoryRole.LEDGERS, path, None, str(disk))
    return RoleDirectory(DirectoryRole.LEDGERS, path, disk)


async def _ledger_disk(directories: Sequence[RoleDirectory], admission: AdmittedBookie, clock: Clock) -> Disk:
    """Return the ledger directories as one disk."""
    parts = []
    for directory in (directory for directory in directories if directory.role is DirectoryRole.LEDGERS):
        path = str(directory.path.resolve())
        problem = admission.out_of_use.get(path, "")
        if problem:
            _log.error("ledger directory out of use", extra={"directory": path, "problem": problem})
        parts.append(SpreadDirectory(path, None if problem else directory.disk, problem))
    if len(parts) > 1:
        return await SpreadDisk.over(parts, clock)
    assert parts[0].disk is not None
    return parts[0].disk


async def _open_storage(
    settings: BookieSettings, journals: Sequence[Disk], ledger_disk: Disk, clock: Clock, stack: AsyncExitStack
) -> LedgerStorage:
    path = settings.ledger_dirs[0] / CURRENT / INDEX_DIRECTORY
    try:
        index = await within_running_time(_INDEX_OPEN_TIMEOUT_S, RocksIndex.open(path))
    except TimeoutError as error:
        what = f"the index {path} has not been opened within {_INDEX_OPEN_TIMEOUT_S:g} s: its disk does not answer"
        raise StalledDiskError(what) from error
    try:
        bounds = StorageSettings(read_cache_bytes_max=settings.read_cache_bytes)
        first, *others = journals
        storage = await LedgerStorage.open(first, ledger_disk, index, bounds, clock, more_journals=others)
    except BaseException:
        await index.close()
        raise
    stack.push_async_callback(index.close)
    stack.push_async_callback(storage.close)
    return storage
