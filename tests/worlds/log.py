"""Bookies in memory, many clients with their own sessions, and a check of what logs must never show (T13)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from bookie.client.bookkeeper import BookKeeper
from bookie.client.log.values import LOG_METADATA_KEY, LogEntry, LogOptions, LogPosition
from bookie.client.log.writer import LogWriter
from bookie.client.options import LedgerOptions
from bookie.client.ports import ClientPorts
from bookie.client.settings import ClientSettings
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError, Versioned
from bookie.metadata.ledgers.serde import decode
from bookie.metadata.logs.log_store import ListedLog, LogLists, listed_log
from bookie.metadata.port import NoNodeError
from bookie.metadata.store.memory import Fault, MemoryStore
from bookie.model.ids import LedgerId
from bookie.wire.memory import MemoryTransport
from tests.worlds.cluster import ROOT, MemoryCluster
from tests.worlds.ledgers import names

NAME = "orders/eu"
BOOKIES = names("b0 b1 b2 b3")
SETTINGS = ClientSettings(add_timeout_s=2, read_timeout_s=2, close_timeout_s=4, busy_backoff_s=0.001)
SMALL = LogOptions(LedgerOptions(3, 3, 2), ledger_bytes_max=100, ledger_age_s_max=60)

decoded = functools.lru_cache(maxsize=1024)(decode)
"""A cache: the world is checked after every request, so the same bytes would be decoded many times."""

FaultHook = Callable[[str, str], Awaitable[Fault | None]]


class Client(BookKeeper):
    """A client with its own session and connections."""

    def __init__(self, ports: ClientPorts, store: MemoryStore, transport: MemoryTransport) -> None:
        super().__init__(ports)
        self.store = store
        self.transport = transport

    async def close(self) -> None:
        await self.transport.close()
        await self.store.close()


class LogWorld(MemoryCluster):
    """Bookies in memory, clients with their own sessions, and a check of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.open_at_once_max = 0

    async def start(self) -> None:
        await self.found()
        await self.add_bookies(" ".join(BOOKIES))

    def client(self, seed: int = 1, faults: FaultHook | None = None) -> Client:
        async def hook(operation: str, path: str) -> Fault | None:
            self.check()
            return None if faults is None else await faults(operation, path)

        store = self.session(hook)
        transport = self.memory_transport(store)
        return Client(self.client_ports(transport, SETTINGS, store, seed=seed), store, transport)

    def check(self) -> None:
        """Check now that at most one ledger is open (the property OnlyOneLedgerOpenAtATime)."""
        listed = self.listed_now()
        if listed is not None:
            states = [self.ledger_now(ledger_id) for ledger_id in listed.list.ledgers]
            open_ones = [ledger for ledger in states if ledger is None or not ledger.metadata.is_closed]
            assert not open_ones[:-1] or len(open_ones) <= 1, "two ledgers of a log are open"
            assert all(ledger is not None and ledger.metadata.is_closed for ledger in states[:-1])
            self.open_at_once_max = max(self.open_at_once_max, len(open_ones))

    def listed_now(self) -> ListedLog | None:
        try:
            return listed_log(NAME, self.cell.get(LogLists(self.store, ROOT).path(NAME)))
        except NoNodeError:
            return None

    def ledger_now(self, ledger_id: LedgerId) -> Versioned | None:
        try:
            node = self.cell.get(self.ledgers.path(ledger_id))
        except NoNodeError:
            return None
        return Versioned(ledger_id, decoded(node.data), node.stat.version)

    async def log_ledgers(self) -> list[LedgerId]:
        """Return every ledger in the store that was made for the log."""
        client = self.client(99)
        return [ledger_id async for ledger_id in client.ledgers(custom={LOG_METADATA_KEY: NAME.encode()})]


@asynccontextmanager
async def log_world() -> AsyncIterator[LogWorld]:
    world = LogWorld()
    await world.start()
    try:
        yield world
    finally:
        await world.close()


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
