"""A process that stores entries and prints each acknowledgement until it is killed. ``test_storage_kill9.py`` runs it.

Arguments: the folder of the store, the number of this life, the number of journals and of ledger directories.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from typing_extensions import override

from bookie.model.ids import LedgerId
from bookie.runtime.clock import SystemClock
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.disks.spread import SpreadDirectory, SpreadDisk
from bookie.storage.port import Disk
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.worlds.entries import raw_entry

SETTINGS = StorageSettings(cache_bytes_max=1 << 20, journal_file_bytes=1 << 20)
"""Small settings, so that there are always flushes and new journal files."""
PAYLOAD = b"x" * 700
ENTRIES = 10


def entry(ledger_id: int, entry_id: int) -> bytes:
    return raw_entry(ledger_id, entry_id, PAYLOAD)


class LedgerDirectory(FileDisk):
    """A directory that counts each entry log as 1 MiB, so that logs are spread within one file system."""

    @override
    async def space(self) -> tuple[int, int]:
        total, _ = await super().space()
        return total, total - (len(await self.names("entries")) << 20)


@asynccontextmanager
async def opened_store(root: Path, journals: int, ledger_dirs: int) -> AsyncIterator[LedgerStorage]:
    """Open the store in ``root``. The store and its disks are closed at the end of the block."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:

        async def acquired(kind: type[FileDisk], name: str, number: int) -> FileDisk:
            disk = await kind.acquire(root / (name if number == 1 else f"{name}-{number}"))
            stack.push_async_callback(disk.close)
            return disk

        first, *others = [await acquired(FileDisk, "journal", number + 1) for number in range(journals)]
        places = [await acquired(LedgerDirectory, "ledgers", number + 1) for number in range(ledger_dirs)]
        ledgers: Disk = places[0]
        if ledger_dirs > 1:
            ledgers = await SpreadDisk.over([SpreadDirectory(str(n), disk) for n, disk in enumerate(places)], clock)
        index = await RocksIndex.open(root / "ledgers" / "index")
        store = await LedgerStorage.open(first, ledgers, index, SETTINGS, clock, more_journals=others)
        stack.push_async_callback(store.close)
        yield store


async def write(store: LedgerStorage, ledger_id: LedgerId, first: int) -> None:
    key = b"key of %d" % ledger_id
    while True:
        batch = AddBatch(ledger_id, key, [entry(ledger_id, number) for number in range(first, first + ENTRIES)])
        reply = await store.add(batch)
        if reply.status is Status.TOO_MANY_REQUESTS:
            await asyncio.sleep(0.001)
            continue
        assert reply.status is Status.OK, reply
        sys.stdout.write(f"added {ledger_id} {first}\n")
        sys.stdout.flush()
        first += ENTRIES


async def fence(store: LedgerStorage, first: int) -> None:
    for number in range(first, first + 1_000_000):
        reply = await store.fence(LedgerId(number), b"key of %d" % number)
        assert reply.status is Status.OK, reply
        sys.stdout.write(f"fenced {number}\n")
        sys.stdout.flush()


async def main(root: Path, life: int, journals: int, ledger_dirs: int) -> None:
    async with opened_store(root, journals, ledger_dirs) as store:
        first = life * 1_000_000
        writers = [write(store, LedgerId(ledger_id), first) for ledger_id in range(4)]
        await asyncio.gather(*writers, fence(store, 1_000_000 + first))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
