"""Durable adds to one bookie process and to several on this machine, alternating in one run.

A bookie is one process with one thread of Python, so it uses one processor, and a little more for its disks. Each
client is a process of its own, and their number is the same in both cases: all write to one bookie, or each to its own.
So the ratio shows the gain from a further bookie process on this machine, with the clients on the same processors.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from auditor.bench.repairs.one_replicator import bookies_cpu_s
from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.client.writer.writer import LedgerWriter
from bookie.embedded.cluster import EmbeddedCluster
from bookie.model.errors import FatalError

_CREATED_MAX: Final = 64
"""Largest number of ledgers that a client creates until one is on its bookie."""
_READY_TIMEOUT_S: Final = 60.0
_ROUND_TIMEOUT_S: Final = 600.0


class BenchmarkClientError(FatalError):
    """A client process failed."""


async def run(bookies: int, entries: int, entry_bytes: int, rounds: int) -> dict[str, Any]:
    """Write ``entries`` in each round, divided among ``bookies`` clients.

    Returns:
        Figures: adds/s with one bookie and with all, the median of the ratios of each pair of rounds, and processor
        seconds of the bookies for a million adds.
    """
    seconds: dict[int, list[float]] = {1: [], bookies: []}
    cpu_s: dict[int, float] = {1: 0.0, bookies: 0.0}
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as directory:
        async with await EmbeddedCluster.start(Path(directory) / "cluster", bookies=bookies) as cluster:
            names = [bookie.bookie_id for bookie in cluster.bookies]
            for number in range(-1, rounds):
                for count in (1, bookies):
                    before_s = bookies_cpu_s(cluster)
                    targets = [names[client % count] for client in range(bookies)]
                    took_s = await _round(cluster.metadata_uri, targets, entries // bookies, entry_bytes)
                    if number >= 0:  # the first pair warms up
                        seconds[count].append(took_s)
                        cpu_s[count] += bookies_cpu_s(cluster) - before_s
    written = entries // bookies * bookies
    ratios = [one / several for one, several in zip(seconds[1], seconds[bookies], strict=True)]
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "bookies": bookies,
        "clients": bookies,
        "entries": written,
        "entry_bytes": entry_bytes,
        "adds_per_second_with_one": round(written / statistics.median(seconds[1])),
        "adds_per_second_with_all": round(written / statistics.median(seconds[bookies])),
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "bookie_cpu_seconds_per_million_adds_with_one": round(cpu_s[1] / written / rounds * 1e6, 1),
        "bookie_cpu_seconds_per_million_adds_with_all": round(cpu_s[bookies] / written / rounds * 1e6, 1),
    }


async def _round(uri: str, targets: Sequence[str], entries: int, entry_bytes: int) -> float:
    """Start a client for each target, let them write concurrently, and return the duration."""
    clients = [await _started(uri, target, entries, entry_bytes) for target in targets]
    try:
        async with asyncio.timeout(_READY_TIMEOUT_S):
            for client in clients:
                await _line(client)
        begun_s = time.perf_counter()
        for client in clients:
            assert client.stdin is not None
            client.stdin.write(b"go\n")
        async with asyncio.timeout(_ROUND_TIMEOUT_S):
            for client in clients:
                await _line(client)
        return time.perf_counter() - begun_s
    finally:
        for client in clients:
            if client.returncode is None:
                client.kill()
            await client.wait()


async def _started(uri: str, target: str, entries: int, entry_bytes: int) -> asyncio.subprocess.Process:
    words = [sys.executable, "-m", "auditor.bench.bookies.several_bookies", uri, target, str(entries), str(entry_bytes)]
    return await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)


async def _line(client: asyncio.subprocess.Process) -> dict[str, Any]:
    assert client.stdout is not None
    line = await client.stdout.readline()
    if not line:
        raise BenchmarkClientError(f"a client ended with exit code {await client.wait()}")
    found: dict[str, Any] = json.loads(line)
    return found


async def client(uri: str, target: str, entries: int, entry_bytes: int) -> None:
    """Create a ledger on ``target``, write after a line of input, and print a line when all is acknowledged."""
    payload = random.Random(1).randbytes(entry_bytes)
    async with await connect(uri) as connected:
        writer = await _create_ledger_on(connected, target)
        _say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        waiter = None
        for _ in range(entries):
            waiter = await writer.submit(payload)
        if waiter is not None:
            await waiter  # acknowledgements are in order
        _say("done")
        await writer.close()


async def _create_ledger_on(connected: ConnectedBookKeeper, target: str) -> LedgerWriter:
    for _ in range(_CREATED_MAX):
        writer = await connected.create_ledger(LedgerOptions(1, 1, 1))
        metadata = (await connected.ports.ledgers.read(writer.ledger_id)).metadata
        if target in metadata.members():
            return writer
        await writer.close()
    raise BenchmarkClientError(f"no ledger was created on {target}")


def _say(what: str) -> None:
    sys.stdout.write(json.dumps({"is": what}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(client(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
