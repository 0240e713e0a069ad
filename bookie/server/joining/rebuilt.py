"""Rebuilding the lost index of a stopped bookie (docs/failure-model.md#lost-index).

The invariant: a rebuilt index is never served by the incarnation that lost it. The content of the index other than
places (keys, fences, limbo) is lost, as with lost disks. So the disks become a new incarnation and keep their data: its
start puts every ledger that names the bookie in limbo, and copies and acknowledgements of the earlier incarnation no
longer count.

The order of the steps makes this safe. After a crash between any two of them, the bookie finds no mark in its index,
does not start, and advises to run this again. Only a usable index (``may_replace``) can be served after a crash before
step 3. The new incarnation serves it, which is safe too.

1. make the new index completely, next to the current one;
2. write ``rebuilt-from`` to each directory, then ``limbo-pending``, then ``incarnation``, durably;
3. rename the current index, then the new one.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bookie.runtime.clock import Clock
from bookie.server.joining.directories import CURRENT, INDEX_DIRECTORY
from bookie.server.joining.stopped import stopped_disks
from bookie.server.joining.succession import OfflineRepairRefusedError, predecessor, succeed
from bookie.storage.disks.directory_lock import DirectoryInUseError
from bookie.storage.disks.index_format import MARK_KEY
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.port import DiskError
from bookie.storage.rebuilding import RebuiltIndex, rebuild

_UNFINISHED: Final = "index.rebuilding"
_SET_ASIDE: Final = "index.lost"


async def rebuild_index(
    journal_dirs: Sequence[Path],
    ledger_dirs: Sequence[Path],
    clock: Clock,
    rng: random.Random,
    *,
    may_replace: bool = False,
) -> RebuiltIndex:
    """Rebuild the index of a stopped bookie. The current index is kept as ``index.lost-…``.

    Args:
        journal_dirs: the bookie's journal directories.
        ledger_dirs: the bookie's ledger directories.
        clock: time.
        rng: makes the UUID of the new incarnation.
        may_replace: whether a usable index may be replaced as well.

    Raises:
        NoBookieError, OfflineRepairRefusedError: these are not the directories of one bookie, or the index is not lost.
        DirectoryInUseError: the bookie is running.
        DiskError: a disk failed, or has no space for a second index.
    """
    async with stopped_disks(journal_dirs, ledger_dirs) as disks:
        journals, ledgers, current = disks.journals, disks.ledgers, disks.current
        before, resumed = predecessor(disks.directories)
        if not may_replace:
            await _check_no_index(ledger_dirs)
        unfinished = current / _UNFINISHED
        await asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True)
        index = await RocksIndex.open(unfinished)
        try:
            result = await rebuild(journals, ledgers, index)
        finally:
            await index.close()
        await succeed((*journals, *disks.ledger_disks), before, resumed, rng)
        await asyncio.to_thread(_swap_index, current, clock.epoch_ms())
        await ledgers.sync_directory("")
    return result


async def _check_no_index(ledger_dirs: Sequence[Path]) -> None:
    """Check that no directory has a usable index. If one other than the first has it, the disks are mounted wrongly.

    Raises:
        OfflineRepairRefusedError: one has.
        DirectoryInUseError: a process uses it.
    """
    for number, directory in enumerate(ledger_dirs):
        current = directory / CURRENT
        if not await _is_usable(current / INDEX_DIRECTORY):
            continue
        remedy = "start the bookie"
        if number:
            remedy = f"its disk belongs at the place of {ledger_dirs[0]}. Mount it there, and start the bookie"
        raise OfflineRepairRefusedError(
            f"the index in {current} can be used: {remedy}. If it is damaged nevertheless, --replace rebuilds it"
        )


async def _is_usable(path: Path) -> bool:
    """Return whether there is an index with a mark."""
    if not await asyncio.to_thread(path.is_dir):
        return False
    try:
        index = await RocksIndex.open(path)
    except DirectoryInUseError:
        raise
    except DiskError:
        return False
    try:
        return (await index.get_many([MARK_KEY]))[0] is not None
    except DiskError:
        return False
    finally:
        await index.close()


def _swap_index(current: Path, now_ms: int) -> None:
    index = current / INDEX_DIRECTORY
    if index.exists():
        index.rename(current / f"{_SET_ASIDE}-{now_ms}")
    (current / _UNFINISHED).rename(index)
