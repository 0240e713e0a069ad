"""The cluster of one history: the store, the network, bookies and clients, and the oracles."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from bookie.client.placement.placement import Placement
from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.layout import bookie_path, locks_path
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.tasks.copy_limits import CopyLimits
from bookie.metadata.tasks.locks import HeldLock
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, LedgerId
from bookie.model.topology import Topology
from bookie.server.joining.admission import AdmittedBookie, RoleDirectory, admit
from bookie.server.joining.directories import DirectoryRole
from bookie.server.joining.limbo import finish_start
from bookie.server.upkeep.collector import Collector
from bookie.storage.disks.spread import SpreadDirectory, SpreadDisk
from bookie.storage.errors import DamagedJournalError
from bookie.storage.port import Disk
from bookie.storage.store import LedgerStorage
from tests.simulation import apache, journals
from tests.simulation.harshness import Harshness
from tests.simulation.loop import Process, SimLoop
from tests.simulation.network import SimNetwork
from tests.simulation.nodes import SESSION_S, SimBookie, SimClient, places_of
from tests.simulation.repairs import Repairs
from tests.simulation.store import SimCell, SimStore, StoreFaults
from tests.simulation.trace import Trace
from tests.simulation.truth import ROOT, Truth
from tests.simulation.variation import Variation
from tests.worlds.clocks import VirtualClock

if TYPE_CHECKING:
    from tests.simulation.history import FaultPoints

RESTART_S: Final = 2.0


class SimWorld:
    """The cluster of one history.

    Attributes:
        faults_fired: how many faults took effect, by name.
        is_healing: whether no new faults occur.
    """

    def __init__(self, loop: SimLoop, rng: random.Random, trace: Trace, variation: Variation) -> None:
        self.loop = loop
        self.variation = variation
        self.session_s = SESSION_S * variation.scale
        self.rng = rng
        self.trace = trace
        self.truth = Truth(trace)
        self.cell = SimCell(loop, self.truth.changed)
        self.truth.cell = self.cell
        self.network = SimNetwork(loop, random.Random(rng.getrandbits(64)), trace)
        self.harshness = (
            None
            if variation.harshness is None
            else Harshness(variation.harshness, has_more=variation.has_more_harshness)
        )
        if self.harshness is not None and self.harshness.breaks_connections:
            self.network.breaking = self.harshness.rng
        if self.harshness is not None and self.harshness.cuts_answers:
            self.network.cutting = self.harshness.rng
        self.cluster: Cluster
        self.process = Process("world")
        self.bookies: dict[str, SimBookie] = {}
        self.clients: list[SimClient] = []
        self.faults_fired: dict[str, int] = {}
        self.is_healing = False
        self.collect_s = 2.5
        self.open_ledgers: list[LedgerId] = []
        self.repairs = Repairs(self)
        self.truth.on_change = self.repairs.changed
        self.drained: frozenset[BookieId] = frozenset()
        """The bookies whose drain was started, even if it was withdrawn later."""
        self.read_only_since_s: dict[BookieId, float] = {}
        self.disabled_since_s = 0.0
        self.bytes_per_second = 0
        """The copy rate of each worker; 0: no limit."""
        self.limits: CopyLimits | None = None
        """The copy limits of the whole cluster; None: there are none."""
        self.limits_changed_s = 0.0
        self.counts_cost = False
        """Whether the history has enough small tasks to judge their mean cost."""
        self.topology = Topology()
        """The racks of the bookies, including future ones; empty without racks."""
        self.flip_share = 0.0
        """The share of entries that are damaged on their way from one bookie to another."""
        self.marks_misplaced = False
        """Whether auditors mark ledgers for better placement."""
        self.points: FaultPoints
        self._fault_times_s: list[float] = []
        self.on_lost_disks: Callable[[SimBookie], None] = lambda node: None
        """Called if an operator notices that a bookie lost its disks."""
        self.on_event: Callable[[str, LedgerId | None, str], None] = lambda kind, ledger_id, where: None

    async def found(self, bookie_names: list[str]) -> None:
        """Format the cluster and start its first bookies."""
        store = MemoryStore(self.cell)
        await format_cluster(store, ROOT, rng=self.rng)
        self.cluster = await open_cluster(store, ROOT)
        await UnderReplication(store, self.cluster, VirtualClock()).initialize()
        await store.close()
        for name in bookie_names:
            self.bookies[name] = SimBookie(self, name, is_apache=self.variation.is_apache(self.rng))
            await self.bookies[name].begin()

    async def join(self, name: str) -> None:
        """Start a new bookie."""
        self.bookies[name] = SimBookie(self, name, is_apache=self.variation.is_apache(self.rng))
        await self.bookies[name].begin()

    def placement(self) -> Placement:
        """Return the placement policy of a process."""
        return Placement(topology=self.topology)

    def session(self, process: Process, rng: random.Random, faults: StoreFaults | None = None) -> SimStore:
        """Return a new session of ``process`` with the store."""
        store = SimStore(
            self.cell,
            process,
            self.loop,
            rng,
            faults or StoreFaults(),
            self.trace,
            self.harshness,
            self.session_s,
        )
        self.truth.roles[store.session.session_id] = process.name
        return store

    def client(self, name: str) -> SimClient:
        """Create a process other than a bookie."""
        client = SimClient(self, name)
        self.clients.append(client)
        return client

    async def open_storage(self, node: SimBookie) -> tuple[LedgerStorage, str]:
        """Decide the identity of a starting bookie and open its disks, as the real process does.

        Returns:
            Its storage and its incarnation.
        """
        if node.is_journal_to_be_damaged:
            await node.damage_journal()
        name = node.process.name
        if node.is_apache:
            await apache.join(node, self.cluster)
            return await self._open_storage(node, node.ledgers), ""
        places = places_of(node)

        async def admitted_now() -> AdmittedBookie:
            return await admit(
                node.store,
                self.cluster,
                places,
                name,
                name,
                node.clock,
                self.rng,
                takeover_deadline_s=60.0,
                may_be_new_incarnation=node.is_new_incarnation,
                speaks_apache=True,
            )

        admitted = await admitted_now()
        try:
            storage = await self._open_disks(node, places, admitted)
        except DamagedJournalError:
            if not node.was_journal_damaged:
                raise
            await journals.salvage(node, places, self.rng)
            admitted = await admitted_now()
            storage = await self._open_disks(node, places, admitted)
            await self._note_salvaged(node, storage)
        await finish_start(
            node.store,
            self.cluster,
            places,
            admitted,
            storage,
            node.clock,
            self.rng,
            takeover_deadline_s=3 * self.session_s,
        )
        return storage, admitted.incarnation

    async def _open_disks(
        self, node: SimBookie, places: Sequence[RoleDirectory], admitted: AdmittedBookie
    ) -> LedgerStorage:
        parts = []
        for place in (place for place in places if place.role is DirectoryRole.LEDGERS):
            path = str(place.path.resolve())
            problem = admitted.out_of_use.get(path, "")
            parts.append(SpreadDirectory(path, None if problem else place.disk, problem))
        spread = (
            node.ledgers
            if len(parts) == 1
            else await SpreadDisk.over(parts, node.clock, silent_s=self.variation.silent_s)
        )
        return await self._open_storage(node, spread)

    async def _open_storage(self, node: SimBookie, ledgers: Disk) -> LedgerStorage:
        node.spread = ledgers
        journal, *more = node.journals
        settings = self.variation.storage
        return await LedgerStorage.open(journal, ledgers, node.index, settings, node.clock, more_journals=more)

    async def _note_salvaged(self, node: SimBookie, storage: LedgerStorage) -> None:
        """Note that the bookie must have the entries that are left after a salvage."""
        after = -1
        while ledger_ids := await storage.ledger_ids(after):
            for ledger_id in ledger_ids:
                self.truth.listed(node.bookie, ledger_id, frozenset(), await storage.list_entries(ledger_id))
            after = ledger_ids[-1]

    def start_collector(self, node: SimBookie) -> None:
        """Let a bookie collect unneeded ledgers, far more often than in production."""
        if node.is_apache:
            other = apache.ApacheCollector(node, self.cluster, node.storage, self.rng)
            node.collect = other.run_pass
            node.collecting = node.process.run("collect", other.run(self.collect_s))
            return
        pace = self.variation.collector(self.collect_s, self.session_s + 1.0)
        collector = Collector(node.store, self.cluster, node.storage, node.bookie, node.clock, self.rng, pace)
        self._witness_locks(collector, node)
        node.collect = collector.run_pass
        node.collecting = node.process.run("collect", collector.run())

    def _witness_locks(self, collector: Collector, node: SimBookie) -> None:
        locks = collector._tasks.locks
        lock_unmarked = locks.lock_unmarked

        async def locked(ledger_id: LedgerId, owner: str) -> HeldLock | None:
            held = await lock_unmarked(ledger_id, owner)
            if held is not None:
                self.happened("locked", ledger_id, node.bookie)
            return held

        setattr(locks, "lock_unmarked", locked)  # noqa: B010 (mypy refuses the assignment to a method)

    def happened(self, kind: str, ledger_id: LedgerId | None, where: str = "") -> None:
        """Handle an event, perhaps of a bookie, at which a fault may strike."""
        if not self.is_healing:
            self.on_event(kind, ledger_id, where)

    def about_to_mark(self, who: str, known: frozenset[BookieId], registered: frozenset[BookieId]) -> None:
        """Check I24: nothing is published while more bookies are missing than a cluster loses at once."""
        missing = known - registered
        if 2 * len(missing) > len(known):
            self.truth.fail("I24", f"{who} marks ledgers while {len(missing)} of {len(known)} bookies are missing")

    def remove(self, path: str) -> None:
        """Delete a node if it exists, as an operator may."""
        if self.cell.stat(path) is not None and not self.is_healing:
            self.cell.delete(path, ANY_VERSION)

    def lose_kind(self, host: str, kind: str, seconds: float) -> None:
        """Lose every message of one kind to a bookie for a while, from every sender."""
        self.network.lost_kinds.add((host, kind))
        self.loop.call_later(seconds, self.network.lost_kinds.discard, (host, kind))

    def note_limits(self, limits: CopyLimits | None) -> None:
        """Note a change of the cluster's copy limits. Requests for limits do not count as the cost of a task."""
        self.limits, self.limits_changed_s = limits, self.loop.time()
        self.counts_cost = False
        self.repairs.limits.changed()

    def note_fault(self, name: str) -> None:
        """Note that a fault took effect."""
        self.faults_fired[name] = self.faults_fired.get(name, 0) + 1
        self._fault_times_s.append(self.loop.time())

    def note_return(self) -> None:
        """Note that a permanently lost bookie returned, which stops the copies that replace it, as a fault does."""
        self._fault_times_s.append(self.loop.time())

    def faults_since(self, time_s: float) -> int:
        """Return how many faults took effect since then. A lasting fault counts when it begins."""
        return len(self._fault_times_s) - bisect_left(self._fault_times_s, time_s)

    @property
    def has_fault_points(self) -> bool:
        """Whether unlikely branches of the code are forced."""
        return self.points.is_on

    def points_fired(self, name: str) -> int:
        """Return how often a fault point was taken."""
        return self.points.fired.get(name, 0)

    def lock_names(self) -> tuple[str, ...]:
        """Return the names of the present ledger locks."""
        return self.cell.children(locks_path(ROOT)).names

    def collector_confirm_s(self) -> float:
        """Return the pause of a collector between its two checks of a ledger."""
        return self.variation.collector(1.0, self.session_s + 1.0).confirm_after_s

    def is_reachable(self, who: str) -> bool:
        """Whether a process is alive and the store answers it."""
        if who in self.bookies:
            node = self.bookies[who]
            faults, session, process = node.store.faults, node.store.session, node.process
        else:
            found = next((client for client in self.clients if client.process.name == who), None)
            if found is None:
                return True
            faults, session, process = found.faults, found.store.session, found.process
        is_slow = bool(faults.lose_share or faults.slow_share or faults.lag_s or faults.fail_share)
        is_held = process.held_until_s > self.loop.time()
        return process.is_alive and session.is_connected and not is_slow and not is_held

    def registered_since_s(self, bookie: BookieId) -> float:
        """Return the time when a bookie registered, from its node; infinity if it is not registered."""
        paths = [bookie_path(ROOT, bookie, is_read_only=is_read_only) for is_read_only in (False, True)]
        stats = [self.cell.stat(path) for path in paths]
        return max((self.cell.created_s(stat) for stat in stats if stat is not None), default=float("inf"))

    def bookie_failed(self, node: SimBookie) -> None:
        """Handle the stop of a bookie's storage: its process exits and restarts."""
        node.crash(is_power_lost=False)
        self.start_later(node, self.rng.random() * RESTART_S * self.variation.scale)

    def operator(self) -> SimClient:
        """Return the client process of the operator."""
        found = next((client for client in self.clients if client.process.name == "operator"), None)
        return found or self.client("operator")

    async def set_read_only(self, node: SimBookie, *, is_read_only: bool) -> None:
        """Let a bookie refuse new entries and register as read-only, or make it writable again."""
        if not node.is_listening:
            return
        self.trace.event(node.process.name, "is read-only" if is_read_only else "is writable")
        self.read_only_since_s.pop(node.bookie, None)
        node.service.is_read_only = is_read_only
        is_done = await node.keeper.switch(is_read_only=is_read_only, deadline_s=5.0)
        if is_read_only and is_done and node.service.is_read_only:  # a later call may have finished before this one
            self.read_only_since_s[node.bookie] = self.loop.time()

    def bookie_lost_its_disks(self, node: SimBookie) -> None:
        """Handle an Apache bookie with new disks, which the store does not show. An operator may notice it."""
        if self.rng.random() < 0.6:
            self.on_lost_disks(node)

    def bookie_is_broken(self, node: SimBookie, error: BkhealError) -> None:
        """Record as a violation that a bookie refuses its disks."""
        self.truth.fail("J", f"{node.process.name} does not start any more: {error}")

    def start_later(self, node: SimBookie, seconds: float) -> None:
        """Start a dead bookie after a while."""
        self.loop.call_later(seconds, self._start_now, node)

    def _start_now(self, node: SimBookie) -> None:
        if not node.process.is_alive and not node.is_retired:
            node.begin()

    def living_bookies(self) -> list[SimBookie]:
        """Return the bookies with a running process."""
        return [node for node in self.bookies.values() if node.process.is_alive]
