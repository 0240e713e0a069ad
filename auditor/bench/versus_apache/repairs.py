"""Repair of one lost bookie: Apache's replication worker and our replicator, each in a process of its own.

All bookies are Apache's. Each contestant has ledgers of its own, written in the same way to the same bookies before one
of these is killed; a single spare bookie is the target of every copy. Auto-recovery is disabled during the start of a
contestant. Its time is from enabling it to the last deleted task, by the contestant's own rules for deletion. A few
small ledgers are repaired first to warm up, because in production such a process runs for weeks.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from auditor.bench.versus_apache.processes import ContestantError, ContestantProcess, JavaPrograms
from auditor.bench.versus_apache.settings import BOOKIE_HEAP_MIB, bookie_options
from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.client.resolve import RegistrationResolver
from bookie.embedded.apache import ApacheBookie, ApacheCluster
from bookie.model.ids import BookieId, LedgerId
from bookie.wire.port import Status, Transport
from bookie.wire.requests import ListEntries
from bookie.wire.routing import open_transport

Shape = tuple[int, int, int]
SHAPES: Final[tuple[Shape, ...]] = ((3, 3, 2), (3, 2, 2), (5, 2, 2))
ENTRY_BYTES: Final = (1024,)
_LEDGERS: Final = 8
_SMALL_ENTRIES: Final = 10
_SMALL_ENTRY_BYTES: Final = 1024
_WARM_LEDGERS: Final = 4
_WARM_ENTRIES: Final = 2000
_GONE_DEADLINE_S: Final = 60.0
_REPAIR_DEADLINE_S: Final = 900.0
_LIST_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.02
"""Interval of polling, because no event of both contestants reports the end of a task.

One task is read at a time, which does not disturb the measured programs.
"""

DEFAULTS: Final[Mapping[str, str]] = {}
TUNED: Final[Mapping[str, str]] = {
    "rereplicationEntryBatchSize": "1000",
    "useV2WireProtocol": "true",
    "batchReadEnabled": "true",
    "recoveryBatchReadEnabled": "true",
    "openLedgerRereplicationGracePeriod": "1000",
    "rwRereplicateBackoffMs": "100",
}
"""The documented settings for faster repair; reads in batches are used if the ensemble equals the write quorum."""
_JVM: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=10")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RepairContest:
    """The ledgers that lose a bookie, for each contestant."""

    name: str
    shape: Shape
    entry_bytes: int
    ledgers: int
    entries: int
    """Entries in each ledger: a multiple of the ensemble size, so that each bookie has the same number."""


def large_ledgers(shape: Shape, entry_bytes: int, lost_bytes: int) -> RepairContest:
    """Return a case with few ledgers, of which a bookie has about ``lost_bytes``."""
    ensemble_size, write_quorum, _ = shape
    entries = int(lost_bytes / entry_bytes * ensemble_size / write_quorum) // _LEDGERS
    name = f"{_shown(shape)}, entries of {entry_bytes:,} B"
    return RepairContest(name, shape, entry_bytes, _LEDGERS, rounded(entries, ensemble_size))


def small_ledgers(shape: Shape, ledgers: int) -> RepairContest:
    """Return a case with ledgers of about ten entries, which measures the cost of a ledger."""
    name = f"{_shown(shape)}, {ledgers:,} ledgers of about {_SMALL_ENTRIES} entries"
    return RepairContest(name, shape, _SMALL_ENTRY_BYTES, ledgers, rounded(_SMALL_ENTRIES, shape[0]))


def empty_ledgers(shape: Shape, ledgers: int) -> RepairContest:
    """Return a case with closed ledgers without entries."""
    return RepairContest(f"{_shown(shape)}, {ledgers:,} empty ledgers", shape, 0, ledgers, 0)


def _shown(shape: Shape) -> str:
    return "/".join(map(str, shape))


@dataclass(frozen=True, slots=True)
class RepairResult:
    """One contestant's repair."""

    seconds: float
    ledgers: int
    lost_bytes: int
    """Stored bytes of these ledgers on the lost bookie."""
    lost_entries: int
    written_entries: int
    """Number of their entries that the target lists afterwards."""
    unrepaired_ledgers: int
    """Ledgers without a task whose metadata still names the lost bookie. Only empty ledgers may be among them."""

    def figures(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "seconds": round(self.seconds, 3),
            "mb_per_second": round(self.lost_bytes / self.seconds / 1e6, 2),
            "ledgers_per_second": round(self.ledgers / self.seconds, 2),
            "lost_mb": round(self.lost_bytes / 1e6, 1),
            "written_per_lost": round(self.written_entries / self.lost_entries, 3) if self.lost_entries else 1.0,
            "unrepaired_ledgers": self.unrepaired_ledgers,
        }


class RepairComparison:
    """A comparison with a cluster of Apache's for each case, which loses one of its bookies."""

    def __init__(self, java: JavaPrograms, directory: Path, say: Say) -> None:
        self._java = java
        self._directory = directory
        self._say = say
        self._cases = 0

    async def run(self, case: RepairContest, *, is_tuned: bool = True) -> dict[str, Any]:
        """Lose the ledgers of ``case`` for each contestant, and measure how each repairs them.

        Raises:
            ContestantError: one of them failed, or did not repair everything.
            EmbeddedProcessError: a bookie did not start.
        """
        self._cases += 1
        where = self._directory / f"repair-{self._cases}"
        async with await ApacheCluster.start(
            where,
            bookies=case.shape[0],
            options=bookie_options(),
            is_formatted_by_apache=False,
            heap_mib=BOOKIE_HEAP_MIB,
            java=self._java.java,
            lib=self._java.lib,
        ) as cluster:
            contestants = self._contestants(cluster.metadata_uri, where, is_tuned)
            async with await connect(cluster.metadata_uri) as client:
                self._say(f"repair of {case.name}: writing them for each contestant")
                work = [(each, *await _write_both(client, case)) for each in contestants]
                spare = (await cluster.add_bookies(1))[0]
                await _kill_and_wait(client, cluster.bookies[0])
                results = {}
                for (who, command), warm, measured in work:
                    self._say(f"repair of {case.name}: {who}")
                    site = _Site(client, cluster.bookies[0].bookie_id, spare.bookie_id)
                    results[who] = await self._repair(who, command, where, site, (warm, measured))
                    self._say(f"repair of {case.name}: {who} took {results[who].seconds:.2f} s")
        figures = {who: each.figures() for who, each in results.items()}
        return {"case": case.name, "shape": _shown(case.shape), "entry_bytes": case.entry_bytes, "results": figures}

    def _contestants(self, uri: str, where: Path, is_tuned: bool) -> list[tuple[str, list[str]]]:
        variants = [("apache", DEFAULTS), ("apache tuned", TUNED)]
        found = []
        for name, settings in variants[: 2 if is_tuned else 1]:
            directory = where / name.replace(" ", "-")
            found.append(
                (
                    name,
                    self._java.command(
                        "RunReplicationWorker", {"metadataServiceUri": uri, **settings}, directory, _JVM
                    ),
                )
            )
        ours = [sys.executable, "-m", "replicator", "--metadata-uri", uri, "--output", "json", "--grace", "1"]
        return [*found, ("ours", ours)]

    async def _repair(
        self, who: str, command: Sequence[str], where: Path, site: _Site, sets: Sequence[_Set]
    ) -> RepairResult:
        tasks = site.client.ports.tasks
        await tasks.switches.disable()
        async with await ContestantProcess.start(who, command, where / who.replace(" ", "-")) as contestant:
            for each in sets:
                await tasks.marking.mark_many([(ledger_id, [site.lost]) for ledger_id in each.ids])
                started_s = time.perf_counter()
                await tasks.switches.enable()
                await site.wait_repaired(who, each.ids)
                seconds = time.perf_counter() - started_s
                await tasks.switches.disable()
            contestant.terminate()
        await tasks.switches.enable()
        return await site.outcome(who, each, seconds)


@dataclass(frozen=True, slots=True)
class _Set:
    ids: tuple[LedgerId, ...]
    entries: int
    """Entries in all ledgers."""
    packet_bytes: int
    share: float
    """Share of the entries that each bookie has."""


@dataclass(frozen=True, slots=True)
class _Site:
    client: ConnectedBookKeeper
    lost: BookieId
    spare: BookieId

    async def wait_repaired(self, who: str, ledger_ids: Sequence[LedgerId]) -> None:
        tasks = self.client.ports.tasks
        try:
            async with asyncio.timeout(_REPAIR_DEADLINE_S):
                for ledger_id in ledger_ids:
                    while await tasks.read(ledger_id) is not None:  # noqa: ASYNC110 (see _POLL_S)
                        await asyncio.sleep(_POLL_S)
        except TimeoutError:
            pass
        if left := [task.ledger_id for task in await tasks.list_all()]:
            raise ContestantError(f"{who} has not repaired {left} after {_REPAIR_DEADLINE_S:g} s")

    async def outcome(self, who: str, repaired: _Set, seconds: float) -> RepairResult:
        """Count the target's entries; only metadata of empty ledgers may still name the lost bookie.

        This needs lists of entries, because nothing else shows needless copies. Each list takes memory of the bookie
        (``bookie.wire.apache.listing``), which is enough for these few.
        """
        resolver = RegistrationResolver(self.client.ports.registrations, self.client.ports.clock)
        transport = open_transport(resolver, uses_apache_lists=True)
        try:
            return await self._outcome(transport, who, repaired, seconds)
        finally:
            await transport.close()

    async def _outcome(self, transport: Transport, who: str, repaired: _Set, seconds: float) -> RepairResult:
        written = unrepaired = 0
        for ledger_id in repaired.ids:
            ledger = await self.client.ports.ledgers.read(ledger_id)
            is_named = self.lost in ledger.metadata.members()
            unrepaired += is_named
            if not repaired.entries:  # a bookie may not know of an empty ledger
                continue
            if is_named:
                raise ContestantError(f"{who} deleted the task of ledger {ledger_id}, which still names {self.lost}")
            reply = await transport.ask(self.spare, ListEntries(ledger_id), _LIST_TIMEOUT_S)
            if reply.status is not Status.OK:
                raise ContestantError(f"{self.spare} does not list ledger {ledger_id}: {reply.status} {reply.detail}")
            written += sum(last - first + 1 for first, last in reply.entries.runs)
        lost = round(repaired.entries * repaired.share)
        return RepairResult(seconds, len(repaired.ids), lost * repaired.packet_bytes, lost, written, unrepaired)


async def _write_both(client: ConnectedBookKeeper, case: RepairContest) -> tuple[_Set, _Set]:
    warm_entries = rounded(min(case.entries, _WARM_ENTRIES), case.shape[0])
    warm = await _write(client, case, _WARM_LEDGERS, warm_entries if case.entries else 0)
    return warm, await _write(client, case, case.ledgers, case.entries)


async def _write(client: ConnectedBookKeeper, case: RepairContest, ledgers: int, entries: int) -> _Set:
    payload = random.Random(1).randbytes(case.entry_bytes)
    ids = []
    for _ in range(ledgers):
        async with client.create_ledger(LedgerOptions(*case.shape)) as writer:
            for _ in range(entries):
                await writer.submit(payload)
        ids.append(writer.ledger_id)
    share = case.shape[1] / case.shape[0]
    return _Set(tuple(ids), ledgers * entries, PACKET_OVERHEAD + case.entry_bytes, share)


def rounded(entries: int, ensemble_size: int) -> int:
    """Return the next multiple of the ensemble size, at least the size itself."""
    return max(1, -(-entries // ensemble_size)) * ensemble_size


PACKET_OVERHEAD: Final = 36
"""Header and CRC32C (docs/formats.md#entries)."""


async def _kill_and_wait(client: ConnectedBookKeeper, victim: ApacheBookie) -> None:
    await victim.kill9()
    async with asyncio.timeout(_GONE_DEADLINE_S):
        seen = await client.ports.registrations.list()
        while victim.bookie_id in seen.registered:
            seen = await client.ports.registrations.wait_changed(seen)
    await client.ports.tasks.initialize()
