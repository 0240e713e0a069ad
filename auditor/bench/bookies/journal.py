"""The gain from reserved space of the journal: alternating lone adds to two stores, one with and one without it.

A plain file is also written and synced with and without reserved space, which shows the file system's part.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from auditor.bench.bookies.engine import SINGLE_LEDGER, SINGLE_LEDGER_KEY, opened_store, packets
from auditor.bench.bookies.load import LoadFailedError, percentiles
from bookie.storage.disks.files import FileDisk
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status

Say = Callable[[str], None]

RESERVED: Final = "reserved"
NOT_RESERVED: Final = "not reserved"
_RESERVED_BYTES: Final = 4 << 20
_TURNS: Final = 300
_PAYLOAD_BYTES: Final = 100


async def measure_reserved(directory: Path, say: Say, turns: int = _TURNS) -> dict[str, Any]:
    """Time lone adds of 100 B to both stores, alternating with bare writes and syncs of the same size.

    Raises:
        DiskError: a disk failed.
        LoadFailedError: an add was refused.
    """
    say(f"storage alone: {turns} lone adds of {_PAYLOAD_BYTES} B with and without reserved space")
    ahead = {RESERVED: _RESERVED_BYTES, NOT_RESERVED: 0}
    adds: dict[str, list[float]] = {name: [] for name in ahead}
    syncs: dict[str, list[float]] = {name: [] for name in ahead}
    payload = random.Random(1).randbytes(_PAYLOAD_BYTES)
    async with AsyncExitStack() as stack:
        disk = await FileDisk.acquire(directory / "bare")
        stack.push_async_callback(disk.close)
        stores, files = {}, {}
        for name, size in ahead.items():
            store = opened_store(directory / name.replace(" ", "-"), StorageSettings(journal_reserve_bytes=size))
            stores[name] = await stack.enter_async_context(store)
            files[name] = await disk.create(name)
            await files[name].append_and_sync([payload])
            await files[name].reserve(size)
        for number in range(turns + 1):
            [packet] = packets(number, number + 1, payload)
            for name in ahead:
                adds[name].append(await _timed_add(stores[name], packet))
                started_s = time.perf_counter()
                await files[name].append_and_sync([packet])
                syncs[name].append(time.perf_counter() - started_s)
    # The first add of a store begins its file.
    return {
        "payload_bytes": _PAYLOAD_BYTES,
        "adds": {name: percentiles(those[1:]) for name, those in adds.items()},
        "syncs": {name: percentiles(those[1:]) for name, those in syncs.items()},
    }


async def _timed_add(store: LedgerStorage, packet: bytes) -> float:
    started_s = time.perf_counter()
    reply = await store.add(AddBatch(SINGLE_LEDGER, SINGLE_LEDGER_KEY, [packet]))
    if reply.status is not Status.OK:
        raise LoadFailedError(f"an add was answered with {reply.status.name}: {reply.detail}")
    return time.perf_counter() - started_s
