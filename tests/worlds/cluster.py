"""One cluster for the tests: metadata and disks in memory, bookies in this process, and a network between them.

``MemoryCluster`` is the whole cluster. ``formatted`` and ``open_bookie`` are parts of it for smaller tests. Tests with
larger needs derive their own world.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Self

from bookie.client.ports import ClientPorts
from bookie.client.resolve import RegistrationResolver
from bookie.client.settings import ClientSettings
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.service_info import PROPERTY_CAN_COPY, PROPERTY_INCARNATION, Endpoint, ServiceInfo
from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.layout import LayoutKind
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.logs.log_store import LogLists
from bookie.metadata.port import MetadataStore
from bookie.metadata.store.memory import FaultHook, MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock, SystemClock
from bookie.server.copying import Copying
from bookie.server.service import BookieIdentity, BookieService, ServiceLimits
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.memory import MemoryNetwork, MemoryTransport
from bookie.wire.port import Transport
from tests.worlds.clocks import VirtualClock

ROOT = "/ledgers"
PORT = 3181
VERSION = "1.2.3"
"""The version reported by every bookie."""


async def formatted(
    store: MetadataStore, root: str = ROOT, kind: LayoutKind = LayoutKind.HIERARCHICAL, *, seed: int = 1
) -> Cluster:
    """Make a cluster on the store. ``seed`` determines its instance id."""
    await format_cluster(store, root, kind, rng=random.Random(seed))
    return await open_cluster(store, root)


def service_info(name: str, incarnation: str = "", *, can_copy: bool = False) -> ServiceInfo:
    """Return the registration of a bookie of this name. Without an incarnation, it reports no disks."""
    properties = ((PROPERTY_INCARNATION, incarnation),) if incarnation else ()
    if can_copy:
        properties = ((PROPERTY_CAN_COPY, "true"), *properties)
    return ServiceInfo((Endpoint("bookie", name, PORT, "bookie-grpc"),), properties)


@dataclass(slots=True)
class MemoryBookie:
    """A bookie on disks in memory, neither registered nor reachable."""

    journal: MemoryDisk
    ledgers: MemoryDisk
    index: MemoryIndex
    storage: LedgerStorage
    service: BookieService


async def open_bookie(
    clock: Clock | None = None,
    *,
    incarnation: str = "uuid",
    settings: StorageSettings | None = None,
    limits: ServiceLimits | None = None,
    copying: Copying | None = None,
) -> MemoryBookie:
    """Open a bookie on empty disks. With ``copying``, it can copy from other bookies."""
    journal, ledgers, index = MemoryDisk(), MemoryDisk(), MemoryIndex()
    storage = await LedgerStorage.open(journal, ledgers, index, settings or StorageSettings(), clock or SystemClock())
    service = BookieService(storage, ledgers, BookieIdentity(incarnation, VERSION), limits or ServiceLimits(), copying)
    return MemoryBookie(journal, ledgers, index, storage, service)


class MemoryCluster:
    """A cluster without bookies. Call ``found`` first and ``close`` last.

    Attributes:
        store: the test's own session with the metadata store; the services of the cluster use it.
        storages: the storages of the running bookies.
        services: the services of the same bookies, for the network.
    """

    cluster: Cluster
    registrations: Registrations
    ledgers: LedgerStore
    tasks: UnderReplication

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = VirtualClock() if clock is None else clock
        self.cell = MemoryCell(self.clock.epoch_ms)
        self.network = MemoryNetwork()
        self.storages: dict[BookieId, LedgerStorage] = {}
        self.services: dict[BookieId, BookieService] = {}
        self.copying: set[str] = set()
        """The bookies that register as able to copy from others."""
        self._sessions: list[MemoryStore] = []
        self._transports: list[MemoryTransport] = []
        self.store = self.session()

    async def found(self, *, seed: int = 1) -> Self:
        """Make the cluster. ``seed`` determines the ids proposed by ``ledgers``."""
        self.cluster = await formatted(self.store)
        self.registrations = Registrations(self.store, self.cluster)
        self.ledgers = LedgerStore(self.store, self.cluster, random.Random(seed))
        self.tasks = UnderReplication(self.store, self.cluster, self.clock)
        await self.tasks.initialize()
        return self

    def session(self, fault_hook: FaultHook | None = None) -> MemoryStore:
        """Return another session with the metadata store."""
        self._sessions.append(MemoryStore(self.cell, fault_hook=fault_hook))
        return self._sessions[-1]

    async def add_bookies(self, bookies: str, *, incarnation: str = "") -> None:
        """Start bookies, with their names separated by spaces, and register them."""
        for name in bookies.split():
            await self.start_bookie(name, incarnation=incarnation)
            await self.register(name, incarnation=incarnation)

    async def start_bookie(self, name: str, *, incarnation: str = "") -> None:
        """Start a bookie on empty disks. If it runs already, the empty disks replace its present ones."""
        bookie_id = BookieId(name)
        if (before := self.storages.get(bookie_id)) is not None:
            await before.close()
        bookie = await open_bookie(self.clock, incarnation=incarnation)
        self.storages[bookie_id], self.services[bookie_id] = bookie.storage, bookie.service
        self.listen(name)

    def listen(self, name: str) -> None:
        """Make a bookie reachable."""
        self.network.listen(name, PORT, self.services[BookieId(name)])

    def stop_listening(self, *names: str) -> None:
        """Make bookies unreachable. They stay registered."""
        for name in names:
            self.network.stop_listening(name, PORT)

    async def register(self, *names: str, incarnation: str = "", is_read_only: bool = False) -> None:
        for name in names:
            info = service_info(name, incarnation, can_copy=name in self.copying)
            await self.registrations.register(BookieId(name), info, is_read_only=is_read_only, takeover_deadline_s=1)

    async def unregister(self, *names: str) -> None:
        for name in names:
            await self.registrations.unregister(BookieId(name))

    def memory_transport(self, store: MemoryStore) -> MemoryTransport:
        """Return separate connections for a client."""
        resolver = RegistrationResolver(Registrations(store, self.cluster), self.clock)
        self._transports.append(MemoryTransport(resolver, self.network))
        return self._transports[-1]

    def client_ports(
        self, transport: Transport, settings: ClientSettings, store: MemoryStore, *, seed: int = 0
    ) -> ClientPorts:
        """Return the ports of a client with the session ``store``. ``seed`` determines its random choices."""
        rng = random.Random(seed)
        return ClientPorts(
            ledgers=LedgerStore(store, self.cluster, rng),
            registrations=Registrations(store, self.cluster),
            tasks=UnderReplication(store, self.cluster, self.clock),
            transport=transport,
            clock=self.clock,
            rng=rng,
            settings=settings,
            logs=LogLists(store, self.cluster.root),
        )

    def break_bookie(self, bookie: BookieId, *, is_broken: bool = True) -> None:
        """Make a bookie unreachable for all present clients, or reachable again."""
        for transport in self._transports:
            transport.faults(bookie).is_unreachable = is_broken

    async def close(self) -> None:
        for transport in self._transports:
            await transport.close()
        for storage in self.storages.values():
            await storage.close()
        for session in self._sessions:
            await session.close()
