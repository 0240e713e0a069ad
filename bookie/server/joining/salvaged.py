"""Salvaging a bookie's damaged or lost journal (docs/failure-model.md#damaged-journal).

The invariant: a bookie whose journal was damaged never serves as the incarnation that wrote it. The lost part of the
journal may have contained any acknowledged entry and any fence. So the disks become a new incarnation and keep their
data, as after the rebuilding of an index: its start puts every ledger that names the bookie in limbo and marks it for
repair, and copies and acknowledgements of the earlier incarnation no longer count.

The order of the steps makes this safe. After a crash between any two of them, the storage does not open, because there
is still the damaged journal or none, and the error advises to run this again.

1. move the readable part of the journal to the entry logs and the index, and fence every ledger of the index;
2. write ``rebuilt-from`` to each directory, then ``limbo-pending``, then ``incarnation``, durably;
3. rename the journals, durably;
4. begin new journals. The first file of each is its mark, and no store opens before all of them have one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bookie.runtime.clock import Clock
from bookie.server.joining.directories import CURRENT, INDEX_DIRECTORY, LocalDirectory
from bookie.server.joining.stopped import StoppedDisks, opened_disks, stopped_disks
from bookie.server.joining.succession import OfflineRepairRefusedError, predecessor, succeed
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.errors import DamagedJournalError, LostIndexError
from bookie.storage.journal.replay import DIRECTORY, is_of_used_journal
from bookie.storage.port import DiskError
from bookie.storage.salvaging import SalvagedJournal, begin_journals, damage_of, salvage
from bookie.storage.settings import StorageSettings

_log = logging.getLogger(__name__)

_SET_ASIDE: Final = f"{DIRECTORY}.damaged"


async def salvage_journal(
    journal_dirs: Sequence[Path],
    ledger_dirs: Sequence[Path],
    clock: Clock,
    rng: random.Random,
    *,
    is_lost: bool = False,
) -> SalvagedJournal:
    """Salvage the damaged journals of a stopped bookie. Their files are kept as ``journal.damaged-…``.

    Args:
        journal_dirs: the bookie's journal directories.
        ledger_dirs: the bookie's ledger directories.
        clock: time.
        rng: makes the UUID of the new incarnation.
        is_lost: whether a journal directory may be new and empty, because the disk of the earlier one is lost.

    Raises:
        NoBookieError, OfflineRepairRefusedError: these are not the directories of one bookie, the journal is not
            damaged, or it is lost and this was not confirmed.
        DirectoryInUseError: the bookie is running.
        LostIndexError: the index is lost as well.
        UnsupportedFormatError: a file was written by a newer version.
        DiskError: a disk failed, or has no space for the entries of the journal. Repeating the call is safe.
    """
    if is_lost and await asyncio.to_thread((ledger_dirs[0] / CURRENT).is_dir):
        for directory in journal_dirs:
            await asyncio.to_thread((directory / CURRENT).mkdir, exist_ok=True)
    async with stopped_disks(journal_dirs, ledger_dirs) as disks:
        return await _salvage(disks, [path / CURRENT for path in journal_dirs], clock, rng, is_lost=is_lost)


async def salvage_at_start(
    journals: Sequence[FileDisk],
    ledgers: Sequence[FileDisk | DiskError],
    journal_dirs: Sequence[Path],
    ledger_dirs: Sequence[Path],
    damage: DamagedJournalError,
    rng: random.Random,
    clock: Clock,
) -> None:
    """Salvage the damaged journal of the bookie that starts in this process, but only once.

    Args:
        journals: the disk of each journal.
        ledgers: the disk of each ledger directory, or the error of opening it, with which the salvage is refused.
        journal_dirs: the bookie's journal directories.
        ledger_dirs: the bookie's ledger directories.
        damage: the reason why the storage does not open.
        rng: makes the UUID of the new incarnation.
        clock: time.

    Raises:
        DamagedJournalError: the files of an earlier salvage still exist, so the disk is failing.
        BkhealError: see ``salvage_journal``.
    """
    paths = [directory / CURRENT for directory in journal_dirs]
    if await asyncio.to_thread(_has_earlier_salvage, paths):
        raise DamagedJournalError(
            f"the journal was salvaged before, and {_listed(paths)} still has the files that were set aside "
            f"then ({_SET_ASIDE}-…): the "
            f"disk may be failing. Check it, delete these files, and start again. {damage}"
        ) from damage
    _log.error("journal damaged: what can be read is kept, the rest is unknown", extra={"problem": str(damage)})
    disks = await opened_disks(journals, ledgers, journal_dirs, ledger_dirs)
    found = await _salvage(disks, paths, clock, rng, is_lost=False)
    for finding in found.findings.findings:
        _log.error(
            "damaged part of the journal",
            extra={"path": finding.path, "offset": finding.offset, "problem": finding.what},
        )
    _log.warning("journal salvaged", extra={"records": found.records, "ledgers": found.ledgers})


async def _salvage(
    disks: StoppedDisks, journal_paths: Sequence[Path], clock: Clock, rng: random.Random, *, is_lost: bool
) -> SalvagedJournal:
    before, resumed = predecessor(_with_identity(disks.directories, len(disks.journals), is_lost=is_lost))
    if not await asyncio.to_thread((disks.current / INDEX_DIRECTORY).is_dir):
        raise LostIndexError(
            f"there is no index in {disks.current}: first rebuild it with `bkheal bookie rebuild-index`"
        )
    index = await RocksIndex.open(disks.current / INDEX_DIRECTORY)
    try:
        if await damage_of(disks.journals, index) is None:
            raise OfflineRepairRefusedError(f"the journal in {_listed(journal_paths)} can be used: start the bookie")
        found = await salvage(disks.journals, disks.ledgers, index, StorageSettings())
        await succeed((*disks.journals, *disks.ledger_disks), before, resumed, rng)
        for path, disk in zip(journal_paths, disks.journals, strict=True):
            await asyncio.to_thread(_set_journal_aside, path, clock.epoch_ms())
            await disk.sync_directory("")
        await begin_journals(disks.journals, index, max(found.epoch + 1, clock.epoch_ms()))
    finally:
        await index.close()
    return found


def _with_identity(
    directories: Sequence[LocalDirectory], journal_count: int, *, is_lost: bool
) -> Sequence[LocalDirectory]:
    """Return the directories, with the identity of the first ledger directory in each empty journal directory.

    Raises:
        OfflineRepairRefusedError: a journal directory is empty, and the loss was not confirmed.
    """
    ledgers, found = directories[journal_count:], []
    for journal in directories[:journal_count]:
        if journal.version is not None or (journal.has_data and journal.rebuilt_from is None):
            found.append(journal)
            continue
        if not is_lost:
            raise OfflineRepairRefusedError(
                f"the journal directory {journal.path} is empty: mount the right disk. If the journal is lost "
                "permanently, --lost gives up the entries that only the journal held"
            )
        incarnation = journal.incarnation or ledgers[0].incarnation
        found.append(replace(journal, version=ledgers[0].version, incarnation=incarnation))
    return [*found, *ledgers]


def _listed(paths: Sequence[Path]) -> str:
    return " and ".join(map(str, paths))


def _set_journal_aside(current: Path, now_ms: int) -> None:
    journal = current / DIRECTORY
    if journal.exists():
        journal.rename(current / f"{_SET_ASIDE}-{now_ms}")


def _has_earlier_salvage(journal_paths: Sequence[Path]) -> bool:
    """Return whether an earlier salvage was completed, with new journals, and the files that it kept still exist."""
    found = []
    for path in journal_paths:
        try:
            found.append(any(entry.name.startswith(_SET_ASIDE) for entry in path.iterdir()))
            journal = path / DIRECTORY
            if not (journal.is_dir() and any(is_of_used_journal(entry.name) for entry in journal.iterdir())):
                return False
        except OSError as error:
            raise DiskError(f"{path} cannot be read: {error.strerror}") from error
    return any(found)
