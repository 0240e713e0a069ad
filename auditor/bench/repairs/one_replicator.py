"""One replicator that restores the copies of a killed bookie, compared with a synced file copy of the same bytes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from auditor.bench.process_time import cpu_s, process_cpu_s
from auditor.bench.zookeeper_counters import counters
from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.embedded.cluster import EmbeddedBookie, EmbeddedCluster
from bookie.model.digest import digest_for
from bookie.model.errors import TransientError
from bookie.model.ids import LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import HEADER_SIZE

LEDGERS: Final = 4
"""Default number of ledgers. It is more than one, because a worker repairs ledgers concurrently."""
SHAPE: Final = (3, 3, 2)
DIGEST: Final = DigestType.CRC32C
_WRITERS_MAX: Final = 32
"""Ledgers written at a time."""
_CHUNK_BYTES: Final = 1 << 20
_GONE_DEADLINE_S: Final = 60.0
_REPAIR_DEADLINE_S: Final = 1800.0


SUITE_BYTES: Final = 1_000_000_000
"""Bytes lost in each case of the suite that measures the cost of bytes."""
_SUITE_ENTRY_BYTES: Final = (100, 1024, 16 << 10, 128 << 10)
_SUITE_LEDGERS: Final = 5_000
"""Ledgers in the cases that measure the cost of a ledger."""
_SMALL_ENTRIES: Final = 10

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RepairCase:
    """The loss of a bookie in one measurement."""

    name: str
    entries: int
    """Entries in all ledgers together."""
    entry_bytes: int
    ledgers: int


def entries_for(lost_bytes: int, entry_bytes: int, ledgers: int = LEDGERS) -> int:
    """Return the number of entries with at least ``lost_bytes`` of payload, and at least one for each ledger."""
    return max(ledgers, -(-lost_bytes // entry_bytes))


def suite(lost_bytes: int = SUITE_BYTES) -> list[RepairCase]:
    """Return cases for the cost of a byte, with ``lost_bytes`` of payload each, and for the cost of a ledger."""
    large = [
        RepairCase(f"entries of {size:,} B", entries_for(lost_bytes, size, LEDGERS), size, LEDGERS)
        for size in _SUITE_ENTRY_BYTES
    ]
    small = RepairCase(f"ledgers of {_SMALL_ENTRIES} entries", _SMALL_ENTRIES * _SUITE_LEDGERS, 1024, _SUITE_LEDGERS)
    return [*large, small, RepairCase("empty ledgers", 0, 1024, _SUITE_LEDGERS)]


async def run_cases(cases: Sequence[RepairCase], say: Say, *, is_pulling: bool = False) -> list[dict[str, Any]]:
    """Measure each case in a cluster of its own; ``say`` receives progress messages.

    Returns:
        The figures of ``run`` for each case, with its name as ``case``.

    Raises:
        RepairBenchmarkError: something was not repaired.
    """
    found = []
    for number, case in enumerate(cases, 1):
        say(f"case {number} of {len(cases)}: {case.name}, {case.entries:,} entries in {case.ledgers:,} ledgers")
        figures = await run(case.entries, case.entry_bytes, case.ledgers, is_pulling=is_pulling)
        found.append({"case": case.name, **figures})
    return found


class RepairBenchmarkError(TransientError):
    """The repair did not complete as expected, so there is nothing to measure."""


@dataclass(frozen=True, slots=True)
class _Repaired:
    """The report of a replicator, and its cost."""

    entries: int
    bytes: int
    seconds: float
    cpu_s: float
    """Processor time of the whole process, its start included."""
    work_cpu_s: float
    """Processor time without its start, unless the process had ended before its first report was read."""
    first_s: float
    """Seconds from its start of work to its first repaired ledger; they include the list of all tasks."""
    running_cpu_s: float
    """Processor time from its first repaired ledger on."""
    bookies_cpu_s: float
    """Processor time of all bookies during the repair."""
    requests: int
    """Packets that ZooKeeper received during the repair, including a few pings."""


async def run(entries: int, entry_bytes: int, ledgers: int = LEDGERS, *, is_pulling: bool = False) -> dict[str, Any]:
    """Write ``entries`` in ``ledgers`` ledgers of three copies, kill a bookie, and let one replicator copy its entries.

    Many ledgers with few entries, or none, measure the cost of a ledger instead of the cost of its bytes. The time is
    from the replicator's start of work to its last completed ledger. Each copy is verified by digest, synced on the
    target, listed again and named by the metadata. The "running" figures begin with the first completed ledger, so they
    exclude the list of all tasks, which the replicator reads before.

    Args:
        entries: number of entries in all ledgers together.
        entry_bytes: the payload of each entry.
        ledgers: number of ledgers.
        is_pulling: whether copies go from bookie to bookie, instead of through the replicator.

    Returns:
        Figures: ledgers/s, entries/s and MB/s of stored bytes, bytes copied for each byte lost, requests to ZooKeeper
        for each ledger, processor seconds of the replicator and of source and target bookies for each GB, their
        processor milliseconds for each ledger (without the replicator's start), ledgers/s and milliseconds of the
        running replicator, MB/s of the file copy, and the ratio.

    Raises:
        RepairBenchmarkError: a ledger was not repaired.
    """
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as directory:
        async with await EmbeddedCluster.start(Path(directory) / "cluster", bookies=SHAPE[0]) as cluster:
            async with await connect(cluster.metadata_uri) as client:
                ids = await _write_all(client, entries, entry_bytes, ledgers)
                await cluster.add_bookies(1)
                await _kill_and_wait(client, cluster.bookies[0], ids)
            done = await _repair(cluster, ledgers, ["--pull"] if is_pulling else [])
        copy_s = await time_file_copy(Path(directory), done.bytes)
    lost_bytes = entries * (entry_bytes + HEADER_SIZE + digest_for(DIGEST, b"").size)
    return {
        "entries": done.entries,
        "entry_bytes": entry_bytes,
        "ledgers": ledgers,
        "shape": "/".join(map(str, SHAPE)),
        "copies": "from bookie to bookie" if is_pulling else "through the worker",
        "ledgers_per_second": round(ledgers / done.seconds, 1),
        "running_ledgers_per_second": rate_after_first(ledgers, done.seconds - done.first_s),
        "seconds_to_first_ledger": round(done.first_s, 2),
        "entries_per_second": round(done.entries / done.seconds),
        "repair_mb_per_second": round(done.bytes / done.seconds / 1e6, 1),
        "bytes_copied_per_byte_lost": round(done.bytes / lost_bytes, 3) if lost_bytes else 0.0,
        "metadata_requests_per_ledger": round(done.requests / ledgers, 1),
        "cpu_seconds_per_gb": round(done.cpu_s / done.bytes * 1e9, 1) if done.bytes else 0.0,
        "bookies_cpu_seconds_per_gb": round(done.bookies_cpu_s / done.bytes * 1e9, 1) if done.bytes else 0.0,
        "cpu_ms_per_ledger": round(done.work_cpu_s / ledgers * 1e3, 2),
        "running_cpu_ms_per_ledger": round(done.running_cpu_s / max(1, ledgers - 1) * 1e3, 2),
        "bookies_cpu_ms_per_ledger": round(done.bookies_cpu_s / ledgers * 1e3, 2),
        "baseline": "the same bytes copied from file to file, fdatasync each MiB",
        "baseline_mb_per_second": round(done.bytes / copy_s / 1e6, 1),
        "ratio_to_baseline": round(copy_s / done.seconds, 3),
    }


async def _write_all(client: ConnectedBookKeeper, entries: int, entry_bytes: int, ledgers: int) -> list[LedgerId]:
    free = asyncio.Semaphore(_WRITERS_MAX)

    async def one(count: int) -> LedgerId:
        async with free:
            return await _write(client, count, entry_bytes)

    share, rest = divmod(entries, ledgers)
    return list(await asyncio.gather(*(one(share + (index < rest)) for index in range(ledgers))))


async def _write(client: ConnectedBookKeeper, entries: int, entry_bytes: int) -> LedgerId:
    payload = random.Random(1).randbytes(entry_bytes)
    async with await client.create_ledger(LedgerOptions(*SHAPE, digest_type=DIGEST)) as writer:
        for _ in range(entries):
            await writer.submit(payload)
    return writer.ledger_id


async def _kill_and_wait(client: ConnectedBookKeeper, victim: EmbeddedBookie, ids: list[LedgerId]) -> None:
    """Kill the bookie, wait until its registration has expired, and mark its ledgers as an audit would."""
    await victim.kill9()
    async with asyncio.timeout(_GONE_DEADLINE_S):
        seen = await client.ports.registrations.list()
        while victim.bookie_id in seen.registered:
            seen = await client.ports.registrations.wait_changed(seen)
    await client.ports.tasks.initialize()
    await client.ports.tasks.marking.mark_many([(ledger_id, [victim.bookie_id]) for ledger_id in ids])


async def _repair(cluster: EmbeddedCluster, ledgers: int, options: Sequence[str]) -> _Repaired:
    """Run a replicator process to its end, and return the sums of its reported repairs."""
    arguments = ["-m", "replicator", "--metadata-uri", cluster.metadata_uri, "--once", "--output", "json", *options]
    requests, cpu_s = (await counters(cluster.zookeeper.port)).received, _children_cpu_s()
    bookies_before_s = bookies_cpu_s(cluster)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    started_s = first_s = ended_s = begun_cpu_s = first_cpu_s = 0.0
    repaired: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(_REPAIR_DEADLINE_S):
            async for line in process.stdout:
                event = json.loads(line)
                if event["event"] == "ready":
                    started_s, begun_cpu_s = time.perf_counter(), process_cpu_s(process.pid)
                elif event.get("ending") == "repaired":
                    ended_s = time.perf_counter()
                    if not repaired:
                        first_s, first_cpu_s = ended_s, process_cpu_s(process.pid)
                    repaired.append(event)
            exit_code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if exit_code or len(repaired) != ledgers:
        raise RepairBenchmarkError(f"the replicator ended with {exit_code} and {len(repaired)} of {ledgers} ledgers")
    cpu_s = _children_cpu_s() - cpu_s
    return _Repaired(
        sum(each["entries"] for each in repaired),
        sum(each["bytes"] for each in repaired),
        ended_s - started_s,
        cpu_s,
        cpu_s - begun_cpu_s,
        first_s - started_s,
        cpu_s - first_cpu_s,
        bookies_cpu_s(cluster) - bookies_before_s,
        (await counters(cluster.zookeeper.port)).received - requests,
    )


def rate_after_first(ledgers: int, seconds: float) -> float:
    """Return the ledgers per second in an interval that begins after the first ledger; 0 if there was only one."""
    return round((ledgers - 1) / seconds, 1) if seconds > 0 else 0.0


def _children_cpu_s() -> float:
    """Return the processor time of all ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def bookies_cpu_s(cluster: EmbeddedCluster) -> float:
    """Return the processor time of the running bookies."""
    return sum(cpu_s(bookie.running) for bookie in cluster.bookies)


async def time_file_copy(directory: Path, total_bytes: int) -> float:
    """Copy a file, with a sync after each megabyte, and return the elapsed seconds. Can be cancelled at any time."""
    source, target = directory / "source", directory / "target"
    chunk = os.urandom(_CHUNK_BYTES)
    with source.open("wb") as file:
        for start in range(0, total_bytes, _CHUNK_BYTES):
            file.write(chunk[: total_bytes - start])
            await asyncio.sleep(0)
    started_s = time.perf_counter()
    with source.open("rb") as reading, target.open("wb", buffering=0) as writing:
        while data := reading.read(_CHUNK_BYTES):
            writing.write(data)
            os.fdatasync(writing.fileno())
            await asyncio.sleep(0)
    return time.perf_counter() - started_s
