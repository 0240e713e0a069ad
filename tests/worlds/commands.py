"""A cluster in memory. Its commands run in this process, each with its own session."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from auditor.service.watch.repairs import RepairWatch
from bookie.client.ports import ClientPorts
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.store.memory import MemoryCell, MemoryStore, ReadableTree
from bookie.metadata.tasks.boosts import Boosts
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks, ParkReason
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.clock import Clock, SystemClock
from bookie.wire.memory import MemoryNetwork, MemoryTransport
from tests.worlds.cluster import ROOT, formatted, service_info
from tests.worlds.ledgers import make_metadata, names
from tests.worlds.pulsar_nodes import Custom
from tests.worlds.repair import Bookies, RepairWorld


class BehindStore(MemoryStore):
    """A session with a lagging server: until its first ``sync``, it shows the state of ``past``."""

    def __init__(self, cell: MemoryCell, past: MemoryCell) -> None:
        super().__init__(cell)
        self._past: MemoryCell | None = past

    @override
    def view(self) -> ReadableTree:
        return self._past or super().view()

    @override
    async def sync(self, path: str) -> None:
        await super().sync(path)
        self._past = None


class CommandCluster:
    """A cluster with the bookies c and d. Ledgers 7 and 8 lost every copy and are parked; 9 is marked, not parked."""

    def __init__(self) -> None:
        self.cell = MemoryCell()
        self.clock: Clock = SystemClock()
        self.keeper = MemoryStore(self.cell)
        """A session with the registrations, which outlives the commands."""
        self._past: MemoryCell | None = None

    @asynccontextmanager
    async def connected(self, uri: str, **_: Any) -> AsyncIterator[Any]:
        """Connect as ``auditor.cli.changing.connected`` does."""
        store = MemoryStore(self.cell) if self._past is None else BehindStore(self.cell, self._past)
        cluster = await open_cluster(store, ROOT)
        ports = ClientPorts(
            ledgers=LedgerStore(store, cluster, random.Random(1)),
            registrations=Registrations(store, cluster),
            tasks=UnderReplication(store, cluster, self.clock),
            transport=MemoryTransport(Bookies(), MemoryNetwork()),
            clock=self.clock,
            rng=random.Random(1),
        )
        yield SimpleNamespace(ports=ports, store=store, cluster=cluster, parked=ParkedTasks(store, cluster.root))
        await store.close()

    def copy(self) -> MemoryCell:
        """Return the present state."""
        made = MemoryCell()
        made._nodes = deepcopy(self.cell._nodes)
        return made

    @contextmanager
    def behind(self, past: MemoryCell) -> Iterator[None]:
        """Let the commands that start in the context use a server that shows the state of ``past`` until a ``sync``."""
        self._past = past
        try:
            yield
        finally:
            self._past = None

    async def fill(self) -> None:
        """Create everything."""
        cluster = await formatted(self.keeper)
        registrations = Registrations(self.keeper, cluster)
        for name in ("c", "d"):
            await registrations.register(BookieId(name), service_info(name), is_read_only=False, takeover_deadline_s=1)
        async with self.connected("") as client:
            await client.ports.tasks.initialize()
            for number in (7, 8, 9):
                await client.ports.ledgers.create(LedgerId(number), make_metadata((0, "a b"), quorum=(2, 2), last=9))
                await client.ports.tasks.marking.mark(LedgerId(number), names("a b"))
            for number in (7, 8):
                park = ParkedTask(
                    ledger_id=LedgerId(number),
                    reason=ParkReason.NO_LIVE_COPY,
                    detail="evidence",
                    since_ms=1,
                    bookies_seen=frozenset(),
                    task_version=0,
                )
                await client.parked.park(park)

    async def add_marked(self, ledger_id: int, custom: Custom, *, is_parked: bool = False) -> None:
        """Create a ledger with custom metadata, and mark it."""
        async with self.connected("") as client:
            metadata = replace(make_metadata((0, "a b"), quorum=(2, 2), last=9), custom=custom)
            await client.ports.ledgers.create(LedgerId(ledger_id), metadata)
            await client.ports.tasks.marking.mark(LedgerId(ledger_id), names("a b"))
            if is_parked:
                why = ParkReason.NO_LIVE_COPY
                await client.parked.park(
                    ParkedTask(
                        ledger_id=LedgerId(ledger_id),
                        reason=why,
                        detail="evidence",
                        since_ms=1,
                        bookies_seen=frozenset(),
                        task_version=0,
                    )
                )

    async def marked(self) -> list[int]:
        """The ids of the marked ledgers."""
        async with self.connected("") as client:
            return [task.ledger_id for task in await client.ports.tasks.list()]

    async def lock(self, ledger_id: int) -> None:
        """Lock a ledger as a worker does, and keep the lock."""
        tasks = UnderReplication(self.keeper, await open_cluster(self.keeper, ROOT), self.clock)
        assert await tasks.locks.lock(LedgerId(ledger_id), "worker-1") is not None


def repair_watch(world: RepairWorld) -> RepairWatch:
    """A watch on the session of the test."""
    store = world.store
    drains, boosts = Drains(store, ROOT), Boosts(store, ROOT)
    return RepairWatch(
        world.tasks, world.ledgers, world.registrations, world.parked, world.reservations, drains, boosts, world.clock
    )


async def marked_ledger(
    world: RepairWorld, ledger_id: int, members: str, missing: str, *, last: int | None = 9
) -> None:
    """Create a ledger with entries of 100 bytes, and mark it."""
    metadata = make_metadata((0, members), quorum=(2, 2), last=last, length=0 if last is None else 100 * (last + 1))
    await world.ledgers.create(LedgerId(ledger_id), metadata)
    await world.tasks.marking.mark(LedgerId(ledger_id), names(missing))
