"""One replicator restoring the copies of a killed bookie, beside a plain, synced file copy of the same bytes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.embedded.cluster import EmbeddedBookie, EmbeddedCluster
from bookie.model.errors import TransientError
from bookie.model.ids import LedgerId

LEDGERS: Final = 4
"""Several, because a lost bookie leaves many behind and a worker repairs them concurrently."""
SHAPE: Final = (3, 3, 2)
_CHUNK_BYTES: Final = 1 << 20
_GONE_DEADLINE_S: Final = 60.0
_REPAIR_DEADLINE_S: Final = 600.0


class RepairBenchmarkError(TransientError):
    """The repair did not go as it should, so there is nothing to measure."""


async def run(entries: int, entry_bytes: int, ledgers: int = LEDGERS) -> dict[str, Any]:
    """Write ``entries`` in ``ledgers`` ledgers of three copies, kill a bookie, let one replicator copy them all.

    Measured from the replicator's start of work to its last completed ledger, each copy verified by digest, synced on
    the target, listed again and named by the metadata.

    Returns:
        Figures: entries/s and MB/s of stored bytes, MB/s of the file copy, and the ratio.

    Raises:
        RepairBenchmarkError: something was not repaired.
    """
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as directory:
        async with await EmbeddedCluster.start(Path(directory) / "cluster", bookies=SHAPE[0]) as cluster:
            async with await connect(cluster.metadata_uri) as client:
                ids = [await _write(client, entries // ledgers, entry_bytes) for _ in range(ledgers)]
                await cluster.add_bookies(1)
                await _lose(client, cluster.bookies[0], ids)
            copied_bytes, copied_entries, repair_s = await _repair(cluster.metadata_uri, ledgers)
        copy_s = _copy_file(Path(directory), copied_bytes)
    return {
        "entries": copied_entries,
        "entry_bytes": entry_bytes,
        "ledgers": ledgers,
        "shape": "/".join(map(str, SHAPE)),
        "entries_per_second": round(copied_entries / repair_s),
        "repair_mb_per_second": round(copied_bytes / repair_s / 1e6, 1),
        "baseline": "the same bytes copied from file to file, fdatasync each MiB",
        "baseline_mb_per_second": round(copied_bytes / copy_s / 1e6, 1),
        "ratio_to_baseline": round(copy_s / repair_s, 3),
    }


async def _write(client: ConnectedBookKeeper, entries: int, entry_bytes: int) -> LedgerId:
    payload = random.Random(1).randbytes(entry_bytes)
    async with await client.create_ledger(LedgerOptions(*SHAPE)) as writer:
        for _ in range(entries):
            await writer.submit(payload)
    return writer.ledger_id


async def _lose(client: ConnectedBookKeeper, victim: EmbeddedBookie, ids: list[LedgerId]) -> None:
    """Kill the bookie, wait until its registration has expired, and mark its ledgers as an audit would."""
    await victim.kill9()
    async with asyncio.timeout(_GONE_DEADLINE_S):
        seen = await client.ports.registrations.list()
        while victim.bookie_id in seen.registered:
            seen = await client.ports.registrations.wait_changed(seen)
    await client.ports.tasks.initialize()
    await client.ports.tasks.marking.mark_many([(ledger_id, [victim.bookie_id]) for ledger_id in ids])


async def _repair(metadata_uri: str, ledgers: int) -> tuple[int, int, float]:
    """Run a replicator process to its end; bytes, entries and seconds of its reported repairs."""
    arguments = ["-m", "replicator", "--metadata-uri", metadata_uri, "--once", "--output", "json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    started_s = ended_s = 0.0
    repaired = []
    try:
        async with asyncio.timeout(_REPAIR_DEADLINE_S):
            async for line in process.stdout:
                event = json.loads(line)
                if event["event"] == "ready":
                    started_s = time.perf_counter()
                elif event.get("ending") == "repaired":
                    ended_s = time.perf_counter()
                    repaired.append(event)
            exit_code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if exit_code or len(repaired) != ledgers:
        raise RepairBenchmarkError(f"the replicator ended with {exit_code} and {len(repaired)} of {ledgers} ledgers")
    return sum(each["bytes"] for each in repaired), sum(each["entries"] for each in repaired), ended_s - started_s


def _copy_file(directory: Path, total_bytes: int) -> float:
    source, target = directory / "source", directory / "target"
    chunk = os.urandom(_CHUNK_BYTES)
    with source.open("wb") as file:
        for start in range(0, total_bytes, _CHUNK_BYTES):
            file.write(chunk[: total_bytes - start])
    started_s = time.perf_counter()
    with source.open("rb") as reading, target.open("wb", buffering=0) as writing:
        while data := reading.read(_CHUNK_BYTES):
            writing.write(data)
            os.fdatasync(writing.fileno())
    return time.perf_counter() - started_s
