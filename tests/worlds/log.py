"""Bookies in memory, many clients with sessions of their own, and an eye on what logs must never show (T13)."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from bookie.client.bookkeeper import BookKeeper
from bookie.client.log.values import LOG_METADATA_KEY, LogEntry, LogOptions, LogPosition
from bookie.client.log.writer import LogWriter
from bookie.client.options import LedgerOptions
from bookie.client.ports import ClientPorts
from bookie.client.resolve import RegistrationResolver
from bookie.client.settings import ClientSettings
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.service_info import Endpoint, ServiceInfo
from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore, NoSuchLedgerError, Versioned
from bookie.metadata.ledgers.serde import decode
from bookie.metadata.logs.log_store import ListedLog, LogLists, listed_log
from bookie.metadata.port import NoNodeError
from bookie.metadata.store.memory import Fault, MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, LedgerId
from bookie.server.service import BookieIdentity, BookieService
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.memory import MemoryNetwork, MemoryTransport
from tests.worlds.clocks import VirtualClock

ROOT = "/ledgers"
NAME = "orders/eu"
BOOKIES = tuple(BookieId(f"b{i}") for i in range(4))
SETTINGS = ClientSettings(add_timeout_s=2, read_timeout_s=2, close_timeout_s=4, busy_backoff_s=0.001)
SMALL = LogOptions(LedgerOptions(3, 3, 2), ledger_bytes_max=100, ledger_age_s_max=60)

decoded = functools.lru_cache(maxsize=1024)(decode)
"""Every request has the world looked at, so the same bytes are decoded many times."""

FaultHook = Callable[[str, str], Awaitable[Fault | None]]


class Client(BookKeeper):
    """A client with a session and connections of its own."""

    def __init__(self, ports: ClientPorts, store: MemoryStore, transport: MemoryTransport) -> None:
        super().__init__(ports)
        self.store = store
        self.transport = transport

    async def close(self) -> None:
        await self.transport.close()
        await self.store.close()


class LogWorld:
    """See the module docstring."""

    def __init__(self) -> None:
        self.cell = MemoryCell()
        self.network = MemoryNetwork()
        self.clock = VirtualClock()
        self.storages: list[LedgerStorage] = []
        self.clients: list[Client] = []
        self.registrar = MemoryStore(self.cell)
        self.open_at_once_max = 0
        self.cluster: Cluster
        self.ledgers: LedgerStore

    async def start(self) -> None:
        await format_cluster(self.registrar, ROOT, rng=random.Random(1))
        self.cluster = await open_cluster(self.registrar, ROOT)
        self.ledgers = LedgerStore(self.registrar, self.cluster, random.Random(1))
        registrations = Registrations(self.registrar, self.cluster)
        for port, bookie in enumerate(BOOKIES, start=1):
            disk = MemoryDisk()
            storage = await LedgerStorage.open(MemoryDisk(), disk, MemoryIndex(), StorageSettings(), self.clock)
            self.storages.append(storage)
            self.network.listen("host", port, BookieService(storage, disk, BookieIdentity("", "test")))
            info = ServiceInfo((Endpoint("bookie", "host", port, "bookie-grpc"),), ())
            await registrations.register(bookie, info, is_read_only=False, takeover_deadline_s=1)
        await UnderReplication(self.registrar, self.cluster, self.clock).initialize()

    def client(self, seed: int = 1, faults: FaultHook | None = None) -> Client:
        async def hook(operation: str, path: str) -> Fault | None:
            self.look()
            return None if faults is None else await faults(operation, path)

        store, rng = MemoryStore(self.cell, fault_hook=hook), random.Random(seed)
        registrations = Registrations(store, self.cluster)
        transport = MemoryTransport(RegistrationResolver(registrations, self.clock), self.network)
        ports = ClientPorts(
            ledgers=LedgerStore(store, self.cluster, rng),
            registrations=registrations,
            tasks=UnderReplication(store, self.cluster, self.clock),
            transport=transport,
            clock=self.clock,
            rng=rng,
            settings=SETTINGS,
            logs=LogLists(store, ROOT),
        )
        client = Client(ports, store, transport)
        self.clients.append(client)
        return client

    def look(self) -> None:
        """OnlyOneLedgerOpenAtATime, as of now."""
        listed = self.listed_now()
        if listed is not None:
            states = [self.ledger_now(ledger_id) for ledger_id in listed.list.ledgers]
            open_ones = [ledger for ledger in states if ledger is None or not ledger.metadata.is_closed]
            assert not open_ones[:-1] or len(open_ones) <= 1, "two ledgers of a log are open"
            assert all(ledger is not None and ledger.metadata.is_closed for ledger in states[:-1])
            self.open_at_once_max = max(self.open_at_once_max, len(open_ones))

    def listed_now(self) -> ListedLog | None:
        try:
            return listed_log(NAME, self.cell.get(LogLists(self.registrar, ROOT).path(NAME)))
        except NoNodeError:
            return None

    def ledger_now(self, ledger_id: LedgerId) -> Versioned | None:
        try:
            node = self.cell.get(self.ledgers.path(ledger_id))
        except NoNodeError:
            return None
        return Versioned(ledger_id, decoded(node.data), node.stat.version)

    async def log_ledgers(self) -> list[LedgerId]:
        """Every ledger in the store that was made for the log."""
        client = self.client(99)
        return [ledger_id async for ledger_id in client.ledgers(custom={LOG_METADATA_KEY: NAME.encode()})]

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        for storage in self.storages:
            await storage.close()
        await self.registrar.close()


@asynccontextmanager
async def log_world() -> AsyncIterator[LogWorld]:
    world = LogWorld()
    await world.start()
    try:
        yield world
    finally:
        await world.stop()


async def append_all(writer: LogWriter, payloads: list[bytes]) -> list[LogPosition]:
    return list(await asyncio.gather(*[await writer.submit(payload) for payload in payloads]))


async def read_all(client: BookKeeper, first: LogPosition | None = None) -> list[LogEntry]:
    return [entry async for entry in client.log(NAME).read(first)]


async def is_gone(client: BookKeeper, ledger_id: LedgerId) -> bool:
    try:
        await client.ports.ledgers.read(ledger_id)
    except NoSuchLedgerError:
        return True
    return False
