"""Adds to the storage of a bookie with one journal and with two, alternating in one run.

There is no network and no client. In both cases the same writers add to the same ledgers, each of them one entry after
the other. Each of the two journals is used by half of the ledgers. A measurement begins with the first add and ends
with the last answer.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from auditor.bench.bookies.load import LoadFailedError
from bookie.model.ids import LedgerId
from bookie.model.packet import HEADER_SIZE
from bookie.runtime.clock import SystemClock
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status

_JOURNALS: Final = 2
_KEY: Final = bytes(20)


async def run(
    journal_dirs: Sequence[Path], entries: int, entry_bytes: int, writers: int, rounds: int
) -> dict[str, Any]:
    """Add ``entries`` in each round, divided among ``writers``, each with a ledger of its own.

    Args:
        journal_dirs: two existing directories, on the disks to measure; a journal is made in each, and removed. The
            first directory is also used for the single journal. Empty: both are in the temporary directory, so on one
            disk.
        entries: number of entries in each round.
        entry_bytes: payload of each entry.
        writers: number of writers; at least two, so that both journals are used.
        rounds: number of pairs of rounds.

    Returns:
        Figures: adds/s with one journal and with two, the median of the ratios of each pair of rounds, and how many
        devices the directories are on.

    Raises:
        DiskError: a disk failed.
        LoadFailedError: an add was refused.
    """
    seconds: dict[int, list[float]] = {1: [], _JOURNALS: []}
    async with AsyncExitStack() as stack:
        homes = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bkheal-bench-", dir=directory)))
            for directory in (journal_dirs or (None, None))
        ]
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bkheal-bench-")))
        stores = {
            count: await stack.enter_async_context(
                _opened([each / f"of-{count}" for each in homes[:count]], home / f"ledgers-{count}")
            )
            for count in seconds
        }
        payload = random.Random(1).randbytes(entry_bytes)
        for number in range(-1, rounds):
            for count, store in stores.items():
                took_s = await _round(store, number + 1, entries // writers, payload, writers)
                if number >= 0:  # the first pair warms up
                    seconds[count].append(took_s)
        devices = {each.stat().st_dev for each in homes}
    written = entries // writers * writers
    ratios = [one / two for one, two in zip(seconds[1], seconds[_JOURNALS], strict=True)]
    return {
        "entry_bytes": entry_bytes,
        "writers": writers,
        "devices": len(devices),
        "one_journal_adds_per_second": round(written / statistics.median(seconds[1])),
        "two_journals_adds_per_second": round(written / statistics.median(seconds[_JOURNALS])),
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
    }


@asynccontextmanager
async def _opened(journals: Sequence[Path], ledgers: Path) -> AsyncIterator[LedgerStorage]:
    async with AsyncExitStack() as stack:
        disks = []
        for path in (*journals, ledgers):
            disks.append(await FileDisk.acquire(path))
            stack.push_async_callback(disks[-1].close)
        index = await RocksIndex.open(ledgers / "index")
        stack.push_async_callback(index.close)
        first, *more, logs = disks
        store = await LedgerStorage.open(first, logs, index, StorageSettings(), SystemClock(), more_journals=more)
        stack.push_async_callback(store.close)
        yield store


async def _round(store: LedgerStorage, number: int, entries: int, payload: bytes, writers: int) -> float:
    async def write(ledger_id: LedgerId) -> None:
        for entry_id in range(number * entries, (number + 1) * entries):
            head = b"".join(part.to_bytes(8, "big", signed=True) for part in (ledger_id, entry_id, -1, 0))
            assert len(head) == HEADER_SIZE
            reply = await store.add(AddBatch(ledger_id, _KEY, [head + payload]))
            if reply.status is not Status.OK:
                raise LoadFailedError(f"an add was answered with {reply.status.name}: {reply.detail}")

    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for writer in range(writers):
            group.create_task(write(LedgerId(writer)))
    return time.perf_counter() - started_s
