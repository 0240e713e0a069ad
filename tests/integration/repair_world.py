"""A ledger on real bookies with a lost copy, and replicators that pause in the middle of its repair."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from bookie.client.bookkeeper import LedgerOptions, stored_digest
from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.cluster import LEDGERS_ROOT, EmbeddedBookie, EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.tasks.reservations import Reservations
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.packet import unpack
from bookie.wire.port import READ_ENTRIES_MAX, Status
from bookie.wire.requests import Info, ListEntries, Read
from tests.deadlines import STATE_S
from tests.integration.auditors import when
from tests.integration.clusters import connected, start_cluster
from tests.integration.served import Served
from tests.integration.stopping_replicator_child import PAUSED_LINE, Step
from tests.sessions import Killable, kill9
from tests.worlds.entries import numbered_payload
from tests.worlds.ledgers import placed_copies

BOOKIES = 6
ENTRIES = 200
SHAPE = LedgerOptions(3, 3, 3)
"""With this ack quorum, all copies are acknowledged, so a ledger lacks only copies that a test removes."""


def payload(ledger_id: LedgerId, entry: int) -> bytes:
    """Return a payload. All payloads together need several requests, so a repair can pause in the middle."""
    return numbered_payload(ledger_id, entry, 5000)


def steps(*quick: Step, long: Sequence[Step] = ()) -> list[ParameterSet]:
    """Return the parameters of a test: the steps for the gate, and those that only the long suites use."""
    return [*(pytest.param(step) for step in quick), *(pytest.param(step, marks=pytest.mark.long) for step in long)]


@dataclass
class Repair:
    """One ledger with a lost member, and the replicator that pauses in its repair."""

    ledger_id: LedgerId
    before: LedgerMetadata
    lost: EmbeddedBookie
    replicator: ManagedProcess
    gate: Path

    def resume(self) -> None:
        """Let the replicator continue. It does not pause again."""
        self.gate.touch()


@dataclass
class RepairWorld:
    """A cluster of real bookies, with ledgers and replicators for repairs."""

    cluster: EmbeddedCluster
    client: ConnectedBookKeeper
    home: Path
    processes: list[ManagedProcess] = field(default_factory=list)
    _starts: int = 0

    @property
    def uri(self) -> str:
        return self.cluster.metadata_uri

    def bookie(self, bookie_id: BookieId) -> EmbeddedBookie:
        return next(bookie for bookie in self.cluster.bookies if bookie.bookie_id == bookie_id)

    async def whole(self) -> None:
        """End every replicator, start every stopped bookie, and wait until the client reaches all bookies."""
        for process in self.processes:
            await process.stop(STATE_S)
        self.processes.clear()
        ended = [bookie for bookie in self.cluster.bookies if not bookie.running.is_running]
        for bookie in ended:
            bookie.launch()
        for bookie in ended:
            await bookie.wait_ready()
        for task in await self.client.ports.tasks.list():  # left by a failed test
            held = await self.client.ports.tasks.locks.lock(task.ledger_id, "test")
            assert held is not None
            await self.client.ports.tasks.locks.complete(held)
        for bookie in self.cluster.bookies:
            await self.reach(bookie)

    async def reach(self, bookie: EmbeddedBookie) -> None:
        """Wait until the client is connected to a restarted or paused bookie."""

        async def answers() -> bool:
            return (await self.client.ports.transport.ask(bookie.bookie_id, Info(), STATE_S)).status is Status.OK

        await when(answers, STATE_S)

    async def written(self, options: LedgerOptions = SHAPE, *, entries: int = ENTRIES) -> LedgerId:
        """Write a closed ledger."""
        async with await self.client.create_ledger(options) as writer:
            for entry in range(entries):
                await writer.submit(payload(writer.ledger_id, entry))
        return writer.ledger_id

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        return (await self.client.ports.ledgers.read(ledger_id)).metadata

    async def mark(self, ledger_id: LedgerId, *lost: EmbeddedBookie) -> None:
        await self.client.ports.tasks.initialize()
        await self.client.ports.tasks.marking.mark(ledger_id, [bookie.bookie_id for bookie in lost])

    async def kill9(self, *killed: Killable | ManagedProcess) -> None:
        """Kill these processes with SIGKILL, and return after their sessions have ended."""
        await kill9(self.cluster.zookeeper, *killed)

    def replicator(self, *options: str) -> ManagedProcess:
        """Start a replicator. ``whole`` stops it."""
        words = [sys.executable, "-m", "replicator", "--metadata-uri", self.uri, "--poll-interval", "0.2", *options]
        return self._started(words)

    def paused_replicator(self, step: Step, *options: str) -> tuple[ManagedProcess, Path]:
        """Start a replicator that pauses at this step until the file exists."""
        gate = self.home / f"gate-{self._starts}"
        module = "tests.integration.stopping_replicator_child"
        words = [sys.executable, "-m", module, step.value, str(gate), "--metadata-uri", self.uri]
        return self._started([*words, "--poll-interval", "0.2", *options]), gate

    async def repair_at(self, step: Step, *options: str, lost_count: int = 1) -> Repair:
        """Start the repair of a ledger, and return when it pauses.

        The ledger has lost ``lost_count`` members at the same time, and the replicator pauses at this step.
        """
        await self.whole()
        ledger_id = await self.written()
        before = await self.metadata(ledger_id)
        lost = [self.bookie(member) for member in before.fragments[0].members[:lost_count]]
        await self.kill9(*lost)
        await self.mark(ledger_id, *lost)
        replicator, gate = self.paused_replicator(step, *options)
        await replicator.wait_for_line(PAUSED_LINE, STATE_S)
        return Repair(ledger_id, before, lost[0], replicator, gate)

    async def held(self, bookie: EmbeddedBookie, ledger_id: LedgerId) -> int:
        """Return how many entries of a ledger a bookie lists."""
        return len((await self.client.ports.transport.ask(bookie.bookie_id, ListEntries(ledger_id), STATE_S)).entries)

    async def targets(self, repair: Repair) -> list[EmbeddedBookie]:
        """Return the bookies that the ledger's reservation names."""
        found = await self.reservations.read(repair.ledger_id)
        return [] if found is None else [self.bookie(each.target) for each in found.reservations]

    async def busiest_source(self, repair: Repair) -> EmbeddedBookie:
        """Return the member that has sent the most entries since its start."""
        others = [self.bookie(name) for name in repair.before.members() if name != repair.lost.bookie_id]
        counts = [await self.counted(bookie, "bkheal_bookie_read_entries_total") for bookie in others]
        return others[counts.index(max(counts))]

    async def counted(self, bookie: EmbeddedBookie, *metric: str) -> float:
        """Return the value of a counter of a bookie's process, by its name and the values of its labels."""
        return (await Served(bookie.running, bookie.metrics_url).values())[metric]

    async def settled(self) -> None:
        """Wait until no task, no lock and no reservation is left. A parked ledger never reaches this state.

        After a kill and a restart, ZooKeeper may not answer for some time if its disk is busy.
        """

        async def is_settled() -> bool:
            tasks = self.client.ports.tasks
            try:
                return not (await tasks.list() or await tasks.locks.locked() or await self.reservations.ledgers())
            except StoreUnavailableError:
                return False

        await when(is_settled, STATE_S)
        assert await self.client.parked.list() == []

    async def assert_repaired(self, repair: Repair, *, gone: Sequence[EmbeddedBookie]) -> None:
        """Wait for the end of the repair, and check its result.

        Every member is registered and has every entry byte for byte, the ledger has its former length, no task, lock or
        reservation is left, and nothing names a bookie of ``gone``.
        """
        await self.settled()
        after = await self.metadata(repair.ledger_id)
        assert (after.state, after.last_entry_id, after.length) == (
            repair.before.state,
            repair.before.last_entry_id,
            repair.before.length,
        )
        assert not after.members() & {bookie.bookie_id for bookie in gone}
        await self.assert_whole(repair.ledger_id)

    async def assert_whole(self, ledger_id: LedgerId, *, entries: int = ENTRIES) -> None:
        """Check that every member is registered and returns every entry of its position, as the same bytes."""
        ledger = await self.client.ports.ledgers.read(ledger_id)
        metadata, digest = ledger.metadata, stored_digest(ledger)
        assert metadata.last_entry_id == entries - 1
        registered = (await self.client.ports.registrations.list()).registered
        copies: dict[EntryId, list[bytes]] = {EntryId(entry): [] for entry in range(entries)}
        for fragment in metadata.fragments:
            assert set(fragment.members) <= registered
            assert len(set(fragment.members)) == len(fragment.members)
        for member, stored in placed_copies(metadata):
            for entry, packet in zip(stored, await self._packets(member, ledger_id, stored), strict=True):
                copies[entry].append(packet)
        for entry, packets in copies.items():
            assert len(packets) == metadata.write_quorum
            assert len(set(packets)) == 1
            assert unpack(digest, packets[0], ledger_id, entry).payload == payload(ledger_id, entry)

    @property
    def reservations(self) -> Reservations:
        """The store of reservations of running copies."""
        return Reservations(self.client.store, LEDGERS_ROOT)

    async def _packets(self, bookie: BookieId, ledger_id: LedgerId, entries: Sequence[EntryId]) -> list[bytes]:
        packets: list[bytes] = []
        async with asyncio.timeout(STATE_S):
            while len(packets) < len(entries):
                rest = entries[len(packets) : len(packets) + READ_ENTRIES_MAX]
                reply = await self.client.ports.transport.ask(bookie, Read(ledger_id, rest), STATE_S)
                if reply.status is Status.UNREACHABLE:  # it was restarted, and is not connected again yet
                    continue
                assert reply.status is Status.OK, (bookie, reply)
                assert {result.status for result in reply.results} == {Status.OK}, bookie
                packets += [result.packet for result in reply.results]
        return packets

    def _started(self, words: Sequence[str]) -> ManagedProcess:
        self._starts += 1
        name = f"replicator-{self._starts}"
        process = ManagedProcess.start(name, words, log_path=self.home / f"{name}.log")
        self.processes.append(process)
        return process


@asynccontextmanager
async def repair_world(home: Path) -> AsyncIterator[RepairWorld]:
    """Run a world with six bookies."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(await start_cluster(home, BOOKIES, serves_metrics=True))
        client = await stack.enter_async_context(await connected(cluster))
        world = RepairWorld(cluster, client, home)
        stack.push_async_callback(world.whole)
        yield world
