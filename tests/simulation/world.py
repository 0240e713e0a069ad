"""The cluster of one history: the store, the network, bookies and clients, and the oracles that watch them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, LedgerId
from bookie.server.joining.admission import Place, admit
from bookie.server.joining.limbo import finish_start
from bookie.server.upkeep.collector import Collector, CollectorSettings
from bookie.storage.store import LedgerStorage
from tests.simulation.loop import Process, SimLoop
from tests.simulation.network import SimNetwork
from tests.simulation.nodes import SESSION_S, STORAGE, SimBookie, SimClient, place_paths
from tests.simulation.store import SimCell, SimStore, StoreFaults
from tests.simulation.trace import Trace
from tests.simulation.truth import ROOT, Truth
from tests.worlds.clocks import VirtualClock

RESTART_S: Final = 2.0


class SimWorld:
    """See the module docstring.

    Attributes:
        faults_fired: how many faults took effect, by name.
        is_healing: no new faults from now on.
    """

    def __init__(self, loop: SimLoop, rng: random.Random, trace: Trace) -> None:
        self.loop = loop
        self.rng = rng
        self.trace = trace
        self.truth = Truth(trace)
        self.cell = SimCell(loop, self.truth.changed)
        self.truth.cell = self.cell
        self.network = SimNetwork(loop, random.Random(rng.getrandbits(64)), trace)
        self.cluster: Cluster
        self.bookies: dict[str, SimBookie] = {}
        self.clients: list[SimClient] = []
        self.faults_fired: dict[str, int] = {}
        self.is_healing = False
        self.collect_s = 2.5
        self.open_ledgers: list[LedgerId] = []
        self.on_event: Callable[[str, LedgerId | None, str], None] = lambda kind, ledger_id, where: None

    async def found(self, bookie_names: list[str]) -> None:
        """Format the cluster and start its first bookies."""
        store = MemoryStore(self.cell)
        await format_cluster(store, ROOT, rng=self.rng)
        self.cluster = await open_cluster(store, ROOT)
        await UnderReplication(store, self.cluster, VirtualClock()).initialize()
        await store.close()
        for name in bookie_names:
            self.bookies[name] = SimBookie(self, name)
            await self.bookies[name].begin()

    def session(self, process: Process, rng: random.Random, faults: StoreFaults | None = None) -> SimStore:
        """A session of ``process`` with the store."""
        store = SimStore(self.cell, process, self.loop, rng, faults or StoreFaults(), self.trace)
        self.truth.roles[store.session.session_id] = process.name
        return store

    def client(self, name: str) -> SimClient:
        """A new process beside the bookies."""
        client = SimClient(self, name)
        self.clients.append(client)
        return client

    async def open_storage(self, node: SimBookie) -> tuple[LedgerStorage, str]:
        """Decide who a starting bookie is and open its disks, as the real process does; its storage and incarnation."""
        disks = dict(zip(("journal", "ledgers"), node.disks, strict=True))
        places = [Place(role, path, disks[path.name]) for role, path in place_paths(node.process.name)]
        name = node.process.name
        admitted = await admit(
            node.store,
            self.cluster,
            places,
            name,
            name,
            node.clock,
            self.rng,
            may_be_new_incarnation=node.is_new_incarnation,
        )
        storage = await LedgerStorage.open(*node.disks, node.index, STORAGE, node.clock)
        await finish_start(
            node.store,
            self.cluster,
            places,
            admitted,
            storage,
            node.clock,
            self.rng,
            takeover_deadline_s=3 * SESSION_S,
        )
        return storage, admitted.incarnation

    def start_collector(self, node: SimBookie) -> None:
        """Let a bookie collect what nobody needs, far too often."""
        pace = CollectorSettings(interval_s=self.collect_s, confirm_after_s=SESSION_S + 1.0, suspects_per_s=20.0)
        collector = Collector(node.store, self.cluster, node.storage, node.bookie, node.clock, self.rng, pace)
        node.process.run("collect", collector.run())

    def happened(self, kind: str, ledger_id: LedgerId | None, where: str = "") -> None:
        """Something happened, maybe at a bookie, at which a fault may strike."""
        if not self.is_healing:
            self.on_event(kind, ledger_id, where)

    def about_to_mark(self, who: str, known: frozenset[BookieId], registered: frozenset[BookieId]) -> None:
        """I24: nothing is published while more bookies are gone than any cluster loses at once."""
        missing = known - registered
        if 2 * len(missing) > len(known):
            self.truth.fail("I24", f"{who} marks ledgers while {len(missing)} of {len(known)} bookies are gone")

    def remove(self, path: str) -> None:
        """Delete a node, if it is there, as an operator may."""
        if self.cell.stat(path) is not None and not self.is_healing:
            self.cell.delete(path, ANY_VERSION)

    def lose_kind(self, host: str, kind: str, seconds: float) -> None:
        """Lose every message of one kind to a bookie for a while, whoever sends it."""
        self.network.lost_kinds.add((host, kind))
        self.loop.call_later(seconds, self.network.lost_kinds.discard, (host, kind))

    def note_fault(self, name: str) -> None:
        """A fault took effect."""
        self.faults_fired[name] = self.faults_fired.get(name, 0) + 1

    def bookie_failed(self, node: SimBookie) -> None:
        """A bookie's storage stopped: its process exits, and is started again."""
        node.crash(is_power_lost=False)
        self.start_later(node, self.rng.random() * RESTART_S)

    def bookie_is_broken(self, node: SimBookie, error: BkhealError) -> None:
        """A bookie refuses its disks."""
        self.truth.fail("J", f"{node.process.name} does not start any more: {error}")

    def start_later(self, node: SimBookie, seconds: float) -> None:
        """Start a dead bookie after a while."""
        self.loop.call_later(seconds, self._start_now, node)

    def _start_now(self, node: SimBookie) -> None:
        if not node.process.is_alive and not node.is_retired:
            node.begin()

    def living_bookies(self) -> list[SimBookie]:
        """Bookies whose process runs."""
        return [node for node in self.bookies.values() if node.process.is_alive]
