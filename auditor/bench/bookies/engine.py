"""The storage of a bookie alone, without a network and without a client, compared with the bare disk.

It runs in the process of the benchmark. Each size has directories of its own.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from auditor.bench.bookies.disk import PlainFile, drop_caches, written_bytes
from auditor.bench.bookies.load import LoadFailedError, LoadSize
from bookie.model.ids import EntryId, LedgerId
from bookie.model.packet import HEADER_SIZE
from bookie.runtime.clock import SystemClock
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.journal.format import used_size
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status

Say = Callable[[str], None]

SINGLE_LEDGER: Final = LedgerId(1)
"""The ledger of all written entries."""
SINGLE_LEDGER_KEY: Final = bytes(20)
_HEADER: Final = struct.Struct(">qqqq")
_BATCH_BYTES: Final = 256 << 10
_BATCH_ENTRIES: Final = 500
_IN_FLIGHT: Final = 8
_READ_AT_ONCE: Final = 512
"""Entries of one read request; bkheal's client requests as many."""
_RANDOM_READS: Final = 500
_GIB: Final = 1 << 30


async def measure_engine(directory: Path, load: LoadSize, say: Say) -> list[dict[str, Any]]:
    """Measure each size of payload: adds, bytes written for each byte stored, reads, a scrub, and a recovery.

    Raises:
        DiskError: a disk failed.
    """
    figures = []
    for payload_bytes in load.payloads:
        say(f"storage alone: {load.entries(payload_bytes):,} entries of {payload_bytes:,} B")
        place = directory / f"engine-{payload_bytes}"
        figures.append(await _measure(place, payload_bytes, load.entries(payload_bytes), load.rounds))
        shutil.rmtree(place)
    return figures


def packets(start: int, end: int, payload: bytes) -> list[bytes]:
    """Return the entries from ``start`` to before ``end``, each with the same payload."""
    return [_HEADER.pack(SINGLE_LEDGER, number, -1, 0) + payload for number in range(start, end)]


async def _measure(place: Path, payload_bytes: int, entries: int, rounds: int) -> dict[str, Any]:
    stored_bytes = entries * (payload_bytes + HEADER_SIZE)
    figures: dict[str, Any] = {"payload_bytes": payload_bytes, "entries": entries, "stored_bytes": stored_bytes}
    before = written_bytes()
    async with opened_store(place / "first") as store:
        began_s = time.process_time()
        seconds = await _add_all(store, payload_bytes, entries)
        figures["adds"] = _speed(seconds, entries, stored_bytes) | _used(began_s, stored_bytes)
        await store.checkpoint()
    after = written_bytes()
    if before is not None and after is not None:
        figures["bytes_written_per_byte_stored"] = round((after - before) / stored_bytes, 3)
    (place / "plain").mkdir()
    plain = PlainFile(place / "plain" / "file", stored_bytes)
    figures |= await _cold_reads(place / "first", plain, entries, stored_bytes, rounds)
    drop_caches(place)
    async with opened_store(place / "first") as store:
        count = min(_RANDOM_READS, entries)
        seconds = await _read_at_random(store, entries, count)
        figures["cold random"] = _speed(seconds, count, count * (payload_bytes + HEADER_SIZE))
        figures["scrub"] = await _measure_scrub(store, entries)
    figures["recovery"] = await _recovered(place / "second", payload_bytes, entries)
    seconds = plain.random_s(count, payload_bytes + HEADER_SIZE, random.Random(1))
    figures["plain random"] = _speed(seconds, count, count * (payload_bytes + HEADER_SIZE))
    return figures


async def _cold_reads(
    place: Path, plain: PlainFile, entries: int, stored_bytes: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """Read everything in order, alternating with a plain file. Return the medians of time and of processor time."""
    ways = {"cold sequential": _READ_AT_ONCE, "cold sequential, one by one": 1}
    seconds: dict[str, list[float]] = {name: [] for name in ("plain sequential", *ways)}
    used_s: dict[str, list[float]] = {name: [] for name in seconds}
    for _ in range(rounds):
        took_s, took_cpu_s = plain.sequential_s()
        seconds["plain sequential"].append(took_s)
        used_s["plain sequential"].append(took_cpu_s)
        for name, at_once in ways.items():
            drop_caches(place)
            async with opened_store(place) as store:
                began_s = time.process_time()
                seconds[name].append(await _read_all(store, entries, at_once))
                used_s[name].append(time.process_time() - began_s)
    return {
        name: _speed(statistics.median(those), entries, stored_bytes)
        | {"cpu_seconds_per_gb": round(statistics.median(used_s[name]) / stored_bytes * 1e9, 3)}
        for name, those in seconds.items()
    }


@asynccontextmanager
async def opened_store(
    place: Path, settings: StorageSettings | None = None, *, is_closed: bool = True
) -> AsyncIterator[LedgerStorage]:
    """Open a store, and close it after use, or abandon it as in a crash of the process."""
    journal, ledgers = await FileDisk.acquire(place / "journal"), await FileDisk.acquire(place / "ledgers")
    index = await RocksIndex.open(place / "ledgers" / "index")
    try:
        store = await LedgerStorage.open(journal, ledgers, index, settings or StorageSettings(), SystemClock())
        try:
            yield store
        finally:
            await (store.close() if is_closed else store.abort())
    finally:
        await index.close()
        await journal.close()
        await ledgers.close()


async def _add_all(store: LedgerStorage, payload_bytes: int, entries: int) -> float:
    payload = random.Random(1).randbytes(payload_bytes)
    step = max(1, min(_BATCH_ENTRIES, _BATCH_BYTES // (payload_bytes + HEADER_SIZE)))
    starts = iter(range(0, entries, step))

    async def add() -> None:
        for start in starts:
            batch = AddBatch(SINGLE_LEDGER, SINGLE_LEDGER_KEY, packets(start, min(start + step, entries), payload))
            while (reply := await store.add(batch)).status is Status.TOO_MANY_REQUESTS:
                await store.checkpoint()
            if reply.status is not Status.OK:
                raise LoadFailedError(f"an add was answered with {reply.status.name}: {reply.detail}")

    started_s = time.perf_counter()
    await asyncio.gather(*(add() for _ in range(_IN_FLIGHT)))
    return time.perf_counter() - started_s


async def _read_all(store: LedgerStorage, entries: int, at_once: int) -> float:
    first, started_s = 0, time.perf_counter()
    while first < entries:
        wanted = [EntryId(number) for number in range(first, min(first + at_once, entries))]
        first += await _read(store, wanted)
    return time.perf_counter() - started_s


async def _read_at_random(store: LedgerStorage, entries: int, count: int) -> float:
    wanted = random.Random(2).sample(range(entries), count)
    started_s = time.perf_counter()
    for number in wanted:
        await _read(store, [EntryId(number)])
    return time.perf_counter() - started_s


async def _read(store: LedgerStorage, wanted: list[EntryId]) -> int:
    reply = await store.read(SINGLE_LEDGER, wanted)
    if not reply.results or any(result.status is not Status.OK for result in reply.results):
        raise LoadFailedError(f"a read of {len(wanted)} entries from {wanted[0]} on failed: {reply.detail}")
    return len(reply.results)


async def _measure_scrub(store: LedgerStorage, entries: int) -> dict[str, Any]:
    count, size, started_s, began_s = 0, 0, time.perf_counter(), time.process_time()
    async for step in store.scrub():
        count, size = count + step.entries, size + step.bytes
    if count != entries:
        raise LoadFailedError(f"the scrub verified {count} of {entries} entries")
    figures = _speed(time.perf_counter() - started_s, count, size)
    return figures | _used(began_s, size)


async def _recovered(place: Path, payload_bytes: int, entries: int) -> dict[str, Any]:
    """Leave the files as after a kill of the process, and measure the next start."""
    async with opened_store(place, is_closed=False) as store:
        await _add_all(store, payload_bytes, entries)
    size = sum(used_size(path.read_bytes()) for path in (place / "journal").rglob("*.journal"))
    drop_caches(place)
    started_s, began_s = time.perf_counter(), time.process_time()
    async with opened_store(place):
        seconds, used_s = time.perf_counter() - started_s, time.process_time() - began_s
    return {
        "journal_bytes": size,
        "seconds": round(seconds, 3),
        "seconds_per_gib": round(seconds / size * _GIB, 2),
        "cpu_seconds_per_gib": round(used_s / size * _GIB, 2),
    }


def _speed(seconds: float, entries: int, size: int) -> dict[str, Any]:
    return {"per_second": round(entries / seconds, 1), "mb_per_second": round(size / seconds / 1e6, 2)}


def _used(began_s: float, size: int) -> dict[str, float]:
    """Return the processor time of this process since ``began_s``, which hardly depends on other programs."""
    return {"cpu_seconds_per_gb": round((time.process_time() - began_s) / size * 1e9, 2)}
