"""A process that stores entries and prints each acknowledgement, until it is killed. Run by test_storage_kill9."""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path

from bookie.model.ids import LedgerId
from bookie.runtime.clock import SystemClock
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status

SETTINGS = StorageSettings(cache_bytes_max=1 << 20, journal_file_bytes=1 << 20)
"""Small, so that flushes and new journal files are always under way."""
PAYLOAD = b"x" * 700
ENTRIES = 10


def entry(ledger_id: int, entry_id: int) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + PAYLOAD


async def open_store(root: Path) -> LedgerStorage:
    journal, ledgers = await FileDisk.acquire(root / "journal"), await FileDisk.acquire(root / "ledgers")
    index = await RocksIndex.open(root / "ledgers" / "index")
    return await LedgerStorage.open(journal, ledgers, index, SETTINGS, SystemClock())


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


async def main(root: Path, life: int) -> None:
    store = await open_store(root)
    first = life * 1_000_000
    writers = [write(store, LedgerId(ledger_id), first) for ledger_id in range(4)]
    await asyncio.gather(*writers, fence(store, 1_000_000 + first))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
