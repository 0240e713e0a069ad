"""Two of twenty bookies are lost: the order of repair, its duration, and its effect on a writer.

One machine runs ZooKeeper, the bookies, the Spark audit, the replicators and a writer, all except the writer in
processes of their own. The ledgers have 3/3/2 and 4/4/3 copies, so the loss of two bookies leaves ledgers with one, two
and three copies. The audit marks them, the replicators repair them, and every copy of every repaired ledger is then
read and compared with the written entries.

A writer continuously appends one entry after the other. Its slowest appends during the repair, compared with those of
the idle cluster in the same run, show the effect on applications.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bookie.client.access import stored_digest
from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.embedded.cluster import EmbeddedBookie, EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.copy_limits import CopyLimits, CopyLimitsStore, CopyProfile
from bookie.model.errors import FatalError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.packet import DamagedEntry, unpack
from bookie.model.severity import health_of
from bookie.runtime.clock import Clock, SystemClock
from bookie.wire.port import READ_ENTRIES_MAX, Status
from bookie.wire.requests import Read

SHAPES: Final = ((3, 3, 2), (3, 3, 2), (3, 3, 2), (4, 4, 3))
"""Shapes that the ledgers have in turn."""
COPIES_MAX: Final = max(shape[1] for shape in SHAPES)
ENTRY_BYTES: Final = 256
APPEND_BYTES: Final = 1024
"""Payload of the writer with timed appends."""
APPEND_PAUSE_S: Final = 0.01
"""Pause between two of its appends."""
_WRITERS_MAX: Final = 32
_READS_MAX: Final = 16
_PROGRESS_EVERY_APPENDS: Final = 2_000
_GONE_DEADLINE_S: Final = 60.0
_AUDIT_DEADLINE_S: Final = 600.0
_REPAIR_DEADLINE_S: Final = 3_600.0
_READ_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.02


class ClusterBenchmarkError(FatalError):
    """A ledger was not repaired, or a copy differs from the written entry: a defect, or too small a machine."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Size of the benchmark."""

    bookies: int = 20
    lost: int = 2
    ledgers: int = 20_000
    entries: int = 10
    """Entries of each ledger."""
    replicators: int = 2
    profile: CopyProfile = CopyProfile.RECOVERY_FIRST
    """How the replicators react to a slow bookie."""
    idle_s: float = 20.0
    """How long the writer is timed before the loss."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A ledger's repair: its start, its end, and the copies left before it of the entry with the fewest."""

    began_s: float
    ended_s: float
    copies_left: int


async def run(settings: ClusterSettings, note: Callable[[str], None]) -> dict[str, Any]:
    """Build the cluster, lose bookies, audit, repair, and compare every copy.

    Args:
        settings: the size of the benchmark.
        note: receives a line of progress for each step.

    Returns:
        Figures: seconds of the audit and the repair, the order of repair by copies left, milliseconds of appends of the
        idle cluster and during audit and repair, and their ratios.

    Raises:
        ClusterBenchmarkError: a ledger was not repaired, or a copy differs from the written entry.
        EmbeddedProcessError: a process did not start, or ended.
    """
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bkheal-bench-")))
        note(f"starting ZooKeeper and {settings.bookies} bookies")
        cluster = await EmbeddedCluster.start(directory / "cluster", bookies=settings.bookies)
        await stack.enter_async_context(cluster)
        client = await stack.enter_async_context(await connect(cluster.metadata_uri))
        ids = await _write_all(client, settings, note)
        appends = Appends(client, clock)
        victims = cluster.bookies[: settings.lost]
        note(f"timing appends of the idle cluster for {settings.idle_s:g} s")
        idle_ms = await appends.during(clock.sleep(settings.idle_s))
        await _kill_and_wait(client, victims)
        copies_left = await _copies_left(client, ids)
        note(f"{settings.lost} bookies are lost, {len(copies_left)} of {len(ids)} ledgers lack copies; auditing")
        started_s = clock.monotonic_s()
        audit_ms = await appends.during(_audit(cluster, directory))
        audited_s = clock.monotonic_s()
        note(f"repairing with {settings.replicators} replicators, {settings.profile.value}")
        limits = CopyLimitsStore(client.store, client.cluster.root)
        await limits.set(CopyLimits(profile=settings.profile, by="bench"))
        finished: dict[LedgerId, Finished] = {}
        repair_ms = await appends.during(
            _repair(cluster, directory, settings.replicators, copies_left, finished, clock)
        )
        repaired_s = clock.monotonic_s() - audited_s
        note("comparing every copy of the repaired ledgers with what was written")
        copies = await _compare(client, list(copies_left), settings.entries)
        if tasks := await client.ports.tasks.list():
            raise ClusterBenchmarkError(f"{len(tasks)} tasks are left, for example of ledger {tasks[0].ledger_id}")
    return {
        "bookies": settings.bookies,
        "lost_bookies": settings.lost,
        "ledgers": len(ids),
        "profile": settings.profile.value,
        "repaired_ledgers": len(finished),
        "copies_compared": copies,
        "audit_seconds": round(audited_s - started_s, 1),
        "repair_seconds": round(repaired_s, 1),
        "repaired_ledgers_per_second": round(len(finished) / repaired_s, 1),
        "order": order(list(finished.values())),
        "append_ms": {"idle": idle_ms, "audit": audit_ms, "repair": repair_ms},
        "baseline": "appends to the idle cluster in the same run",
        "p99_ratio_to_baseline": {
            "audit": round(audit_ms["p99"] / idle_ms["p99"], 2),
            "repair": round(repair_ms["p99"] / idle_ms["p99"], 2),
        },
    }


def order(finished: Sequence[Finished]) -> dict[str, dict[str, float]]:
    """Return figures by copies left, the fewest first: the number of ledgers, when the first and the last of them were
    repaired, and how many less urgent repairs began before the last of these began.
    """
    figures = {}
    for copies in sorted({each.copies_left for each in finished}):
        urgent = [each for each in finished if each.copies_left == copies]
        last_began_s = max(each.began_s for each in urgent)
        figures["1 copy left" if copies == 1 else f"{copies} copies left"] = {
            "ledgers": len(urgent),
            "first_repaired_s": round(min(each.ended_s for each in urgent), 2),
            "last_repaired_s": round(max(each.ended_s for each in urgent), 2),
            "less_urgent_began_sooner": sum(e.copies_left > copies and e.began_s < last_began_s for e in finished),
        }
    return figures


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the milliseconds that half, 99 % and all of ``seconds`` do not exceed, and the number of values."""
    ranked = sorted(seconds)

    def at(share: float) -> float:
        return round(ranked[min(len(ranked) - 1, int(share * len(ranked)))] * 1e3, 2)

    return {"p50": at(0.5), "p99": at(0.99), "max": at(1.0), "appends": len(ranked)}


@dataclass
class Appends:
    """A writer of lone entries that times its appends."""

    client: ConnectedBookKeeper
    clock: Clock
    _seconds: list[float] = field(default_factory=list)

    async def during(self, work: Coroutine[Any, Any, None]) -> dict[str, float]:
        """Append to a new ledger, one entry after the other, until ``work`` has ended; return the percentiles."""
        self._seconds = []
        writing = asyncio.create_task(self._write())
        try:
            await work
        finally:
            writing.cancel()
            await asyncio.wait([writing])
        if not writing.cancelled() and (error := writing.exception()) is not None:
            raise error
        if not self._seconds:
            raise ClusterBenchmarkError("not a single entry was appended")
        return percentiles(self._seconds)

    async def _write(self) -> None:
        payload = random.Random(2).randbytes(APPEND_BYTES)
        async with await self.client.create_ledger(LedgerOptions(3, 3, 2)) as writer:
            while True:
                began_s = self.clock.monotonic_s()
                await writer.append(payload)
                self._seconds.append(self.clock.monotonic_s() - began_s)
                await self.clock.sleep(APPEND_PAUSE_S)


def _payloads(ledger_id: LedgerId, count: int) -> Iterator[bytes]:
    rng = random.Random(int(ledger_id))
    return (rng.randbytes(ENTRY_BYTES) for _ in range(count))


async def _write_all(
    client: ConnectedBookKeeper, settings: ClusterSettings, note: Callable[[str], None]
) -> list[LedgerId]:
    free = asyncio.Semaphore(_WRITERS_MAX)
    written: list[LedgerId] = []

    async def one(shape: tuple[int, int, int]) -> None:
        async with free, await client.create_ledger(LedgerOptions(*shape)) as writer:
            for payload in _payloads(writer.ledger_id, settings.entries):
                await writer.submit(payload)
        written.append(writer.ledger_id)
        if len(written) % _PROGRESS_EVERY_APPENDS == 0:
            note(f"{len(written)} of {settings.ledgers} ledgers written")

    async with asyncio.TaskGroup() as group:
        for shape in itertools.islice(itertools.cycle(SHAPES), settings.ledgers):
            group.create_task(one(shape))
    return written


async def _kill_and_wait(client: ConnectedBookKeeper, victims: Sequence[EmbeddedBookie]) -> None:
    """Kill bookies, and wait until none of them is registered."""
    await asyncio.gather(*(victim.kill9() for victim in victims))
    lost = {victim.bookie_id for victim in victims}
    registrations = client.ports.registrations
    async with asyncio.timeout(_GONE_DEADLINE_S):
        seen = await registrations.list()
        while lost & seen.registered:
            seen = await registrations.wait_changed(seen)


async def _copies_left(client: ConnectedBookKeeper, ids: Sequence[LedgerId]) -> Mapping[LedgerId, int]:
    """Return the copies left, by the metadata, of the entry with the fewest in each ledger that lacks copies."""
    registered = (await client.ports.registrations.list()).registered
    fewest: dict[LedgerId, int] = {}
    for ledger in await _read(client, ids):
        metadata = ledger.metadata
        for index in range(len(metadata.fragments)):
            found = health_of(metadata, index, registered)
            if found.missing_positions:
                fewest[ledger.ledger_id] = min(found.copies_min, fewest.get(ledger.ledger_id, found.copies_min))
    return fewest


async def _read(client: ConnectedBookKeeper, ids: Sequence[LedgerId]) -> list[Versioned]:
    ledgers = []
    for ledger in await client.ports.ledgers.read_many(ids):
        if not isinstance(ledger, Versioned):
            raise ClusterBenchmarkError(f"metadata of a ledger cannot be read: {ledger}")
        ledgers.append(ledger)
    return ledgers


async def _audit(cluster: EmbeddedCluster, directory: Path) -> None:
    arguments = [sys.executable, "-m", "spark_jobs.audit", "--metadata-uri", cluster.metadata_uri]
    arguments += ["--report-dir", str(directory / "reports")]
    async with ManagedProcess.start("audit", arguments, log_path=directory / "audit.log") as process:
        if code := await process.wait(_AUDIT_DEADLINE_S):
            raise ClusterBenchmarkError(f"the audit ended with exit code {code}:\n{process.log_tail()}")


async def _repair(
    cluster: EmbeddedCluster,
    directory: Path,
    replicators: int,
    copies_left: Mapping[LedgerId, int],
    finished: dict[LedgerId, Finished],
    clock: Clock,
) -> None:
    """Run replicators until every ledger of ``copies_left`` is repaired, and record the time of each repair."""
    arguments = [sys.executable, "-m", "replicator", "--metadata-uri", cluster.metadata_uri, "--once"]
    began_s = clock.monotonic_s()
    async with AsyncExitStack() as stack:
        processes = []
        for number in range(replicators):
            log = directory / f"replicator-{number + 1}.log"
            process = ManagedProcess.start(log.stem, [*arguments, "--output", "json"], log_path=log)
            processes.append(await stack.enter_async_context(process))
        offsets = dict.fromkeys((process.log_path for process in processes), 0)
        async with asyncio.timeout(_REPAIR_DEADLINE_S):
            while True:
                is_over = not any(process.is_running for process in processes)
                for path in offsets:
                    lines, offsets[path] = _new_lines(path, offsets[path])
                    ended_s = clock.monotonic_s() - began_s
                    for ledger_id, took_s in _repaired(lines):
                        if ledger_id in copies_left:
                            finished[ledger_id] = Finished(ended_s - took_s, ended_s, copies_left[ledger_id])
                if is_over:
                    break
                await clock.sleep(_POLL_S)
    if missing := copies_left.keys() - finished.keys():
        raise ClusterBenchmarkError(f"{len(missing)} ledgers were not repaired, for example {min(missing)}")


def _new_lines(path: Path, offset: int) -> tuple[Sequence[bytes], int]:
    """Return the complete lines after ``offset``, and the offset of their end."""
    with path.open("rb") as log:
        log.seek(offset)
        found = log.read()
    end = found.rfind(b"\n") + 1
    return found[:end].splitlines(), offset + end


def _repaired(lines: Sequence[bytes]) -> Iterator[tuple[LedgerId, float]]:
    """Yield the ledgers whose repair ``lines`` report, with the seconds of the repair."""
    for line in lines:
        if line.startswith(b"{"):
            event = json.loads(line)
            if event.get("ending") == "repaired":
                yield LedgerId(event["ledger_id"]), event["seconds"]


async def _compare(client: ConnectedBookKeeper, ids: Sequence[LedgerId], entries: int) -> int:
    """Read every copy from the bookie that should have it; return the number of copies."""
    free = asyncio.Semaphore(_READS_MAX)

    async def one(ledger: Versioned) -> int:
        async with free:
            return await _compare_ledger(client, ledger, list(_payloads(ledger.ledger_id, entries)))

    return sum(await asyncio.gather(*(one(ledger) for ledger in await _read(client, ids))))


async def _compare_ledger(client: ConnectedBookKeeper, ledger: Versioned, payloads: Sequence[bytes]) -> int:
    metadata, digest = ledger.metadata, stored_digest(ledger)
    if metadata.last_entry_id != len(payloads) - 1:
        raise ClusterBenchmarkError(f"ledger {ledger.ledger_id} ends at {metadata.last_entry_id}")
    asked: dict[BookieId, list[EntryId]] = defaultdict(list)
    for entry_id in map(EntryId, range(len(payloads))):
        members = metadata.fragments[metadata.fragment_index(entry_id)].members
        for position in metadata.stripe.write_set(entry_id):
            asked[members[position]].append(entry_id)
    for bookie, ids in asked.items():
        for part in (ids[start : start + READ_ENTRIES_MAX] for start in range(0, len(ids), READ_ENTRIES_MAX)):
            reply = await client.ports.transport.ask(bookie, Read(ledger.ledger_id, part), _READ_TIMEOUT_S)
            if reply.status is not Status.OK or len(reply.results) != len(part):
                raise ClusterBenchmarkError(f"{bookie} does not return ledger {ledger.ledger_id}: {reply.status.name}")
            for result in reply.results:
                where = f"ledger {ledger.ledger_id} entry {result.entry_id} on {bookie}"
                try:
                    payload = unpack(digest, result.packet, ledger.ledger_id, result.entry_id).payload
                except DamagedEntry as damage:
                    raise ClusterBenchmarkError(f"{where}: {damage}") from damage
                if payload != payloads[result.entry_id]:
                    raise ClusterBenchmarkError(f"{where} has other bytes than were written")
    return sum(map(len, asked.values()))
