"""Durable adds with one writer, compared with a plain file of the same bytes, written and synced in the same run."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import connect
from bookie.embedded.cluster import EmbeddedCluster

_RAW_CHUNK_BYTES: Final = 1 << 20


async def run(entries: int, entry_bytes: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Write ``entries`` through one writer of ``shape`` (E, Qw, Qa) and the same bytes to a plain file.

    Returns:
        Figures: entries/s and MB/s of both, and the ratio of adds to the raw write.

    Raises:
        InvalidQuorumError: there are no such ledgers; nothing was written.
    """
    options = LedgerOptions(*shape)
    options.check()
    payload = random.Random(1).randbytes(entry_bytes)
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as directory:
        raw_s = await raw_write(
            Path(directory) / "raw", payload * (_RAW_CHUNK_BYTES // entry_bytes or 1), entries * entry_bytes
        )
        async with (
            await EmbeddedCluster.start(Path(directory) / "cluster", bookies=shape[0]) as cluster,
            await connect(cluster.metadata_uri) as client,
        ):
            await _write(client, options, payload, min(entries, 20_000))  # warms up
            add_s = await _write(client, options, payload, entries)
    total = entries * entry_bytes
    return {
        "entries": entries,
        "entry_bytes": entry_bytes,
        "shape": "/".join(map(str, shape)),
        "adds_per_second": round(entries / add_s),
        "add_mb_per_second": round(total / add_s / 1e6, 1),
        "baseline": "the same bytes written to one file, fdatasync each MiB",
        "baseline_mb_per_second": round(total / raw_s / 1e6, 1),
        "ratio_to_baseline": round(raw_s / add_s, 3),
    }


async def _write(client: Any, options: LedgerOptions, payload: bytes, entries: int) -> float:
    writer = await client.create_ledger(options)
    started_s = time.perf_counter()
    waiter = None
    for _ in range(entries):
        waiter = await writer.submit(payload)
    if waiter is not None:
        await waiter  # acknowledgements are in order, so the last one ends the measurement
    seconds = time.perf_counter() - started_s
    await writer.close()
    return seconds


async def raw_write(path: Path, chunk: bytes, total_bytes: int) -> float:
    """Write a file, with a sync after each chunk, and return the elapsed seconds. Can be cancelled at any time."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        started_s = time.perf_counter()
        for _ in range(-(-total_bytes // len(chunk))):
            os.write(file, chunk)
            os.fdatasync(file)
            await asyncio.sleep(0)
        return time.perf_counter() - started_s
    except OSError as error:
        error.filename = str(path)  # a write does not name its file
        raise
    finally:
        os.close(file)
