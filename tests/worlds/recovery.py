"""A small cluster in virtual time. The test itself places every copy of every entry."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from typing_extensions import override

from bookie.client.ports import ClientPorts
from bookie.client.recovery.recovery import recover_ledger
from bookie.client.settings import ClientSettings
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.store.memory import MemoryStore
from bookie.model.digest import digest_for, master_key
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, LedgerMetadata, LedgerState
from bookie.model.packet import Entry, pack, unpack
from bookie.wire.memory import MemoryTransport
from bookie.wire.port import AddBatch, AddReply, EntryResult, ReadReply, ReplyT, Request, Status, Transport
from bookie.wire.requests import AnyRequest
from tests.worlds.cluster import MemoryCluster
from tests.worlds.ledgers import LEDGER, PASSWORD, make_metadata

KEY = master_key(PASSWORD)
DIGEST = digest_for(DigestType.CRC32C, PASSWORD)
SETTINGS = ClientSettings(add_timeout_s=2, read_timeout_s=2, recovery_add_timeout_s=5, speculative_after_s=1)
PAYLOAD = 10

Asked = AddBatch | AnyRequest
Proceed = Callable[[], Awaitable[Any]]
Intercept = Callable[[Asked, Proceed], Awaitable[Any]]
"""Takes a request to a bookie and a function that forwards it; returns the reply."""


class Intercepting(Transport):
    """A transport that passes requests to chosen bookies through a function of the test."""

    def __init__(self, inner: MemoryTransport) -> None:
        self.inner = inner
        self.faults = inner.faults
        self.hooks: dict[str, Intercept] = {}
        self.every: Intercept | None = None
        self.calls: list[tuple[BookieId, Asked]] = []

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        reply: AddReply = await self._through(bookie, batch, lambda: self.inner.add(bookie, batch, timeout_s))
        return reply

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        asked = cast(AnyRequest, request)
        reply: ReplyT = await self._through(bookie, asked, lambda: self.inner.ask(bookie, request, timeout_s))
        return reply

    @override
    async def close(self) -> None:
        await self.inner.close()

    async def _through(self, bookie: BookieId, asked: Asked, proceed: Proceed) -> Any:
        self.calls.append((bookie, asked))
        hook = self.hooks.get(bookie, self.every)
        return await proceed() if hook is None else await hook(asked, proceed)

    def count(self, kind: type[Asked]) -> int:
        return sum(isinstance(asked, kind) for _, asked in self.calls)


def packet(entry_id: int, *, lac: int | None = None, payload: bytes | None = None, length: int | None = None) -> bytes:
    """Return the stored form of an entry. By default, it is that of a writer with one entry in flight."""
    data = payload if payload is not None else bytes([65 + entry_id % 26]) * PAYLOAD
    total = (entry_id + 1) * PAYLOAD if length is None else length
    return pack(DIGEST, LEDGER, EntryId(entry_id), entry_id - 1 if lac is None else lac, total, data)


class RecoveryWorld(MemoryCluster):
    """Bookies with real storage on memory disks, and clients."""

    ports: ClientPorts
    transport: Intercepting

    async def start(self, bookies: str) -> None:
        await self.found()
        await self.add_bookies(bookies)
        self.ports = self.client(store=self.store)
        self.transport = transport_of(self.ports)

    def client(self, *, store: MemoryStore | None = None, seed: int = 0, **settings: Any) -> ClientPorts:
        """Return the ports of another client, with its own session and connections."""
        store = store or self.session()
        transport: Any = Intercepting(self.memory_transport(store))
        return self.client_ports(transport, dataclasses.replace(SETTINGS, **settings), store, seed=seed)

    async def create(
        self,
        *fragments: tuple[int, str],
        quorum: tuple[int, int],
        state: LedgerState = LedgerState.OPEN,
        ledger_id: LedgerId = LEDGER,
        filled_to: int = -1,
    ) -> Versioned:
        """Create a ledger, and store its entries up to ``filled_to`` on their bookies."""
        metadata = make_metadata(*fragments, quorum=quorum, state=state)
        ledger = await self.ledgers.create(ledger_id, metadata)
        await self.put_all(ledger, 0, filled_to)
        return ledger

    async def put(self, bookie: str, *packets: bytes) -> None:
        """Store any packets on one bookie."""
        if packets:
            batch = AddBatch(LEDGER, KEY, packets, is_recovery=True)
            assert (await self.storages[BookieId(bookie)].add(batch)).status is Status.OK

    async def put_all(self, ledger: Versioned, first: int, last: int) -> None:
        """Store the entries ``first..last`` on exactly the bookies that the metadata names for them."""
        metadata = ledger.metadata
        for entry_id in range(first, last + 1):
            fragment = metadata.fragments[metadata.fragment_index(EntryId(entry_id))]
            for i in range(metadata.write_quorum):
                await self.put(fragment.members[(entry_id + i) % metadata.ensemble_size], packet(entry_id))

    async def put_through(self, ledger: Versioned, entry_id: int) -> None:
        """Send an entry to its write set as a writer does, which answers long polls."""
        metadata = ledger.metadata
        for i in range(metadata.write_quorum):
            name = metadata.last_fragment.members[(entry_id + i) % metadata.ensemble_size]
            reply = await self.services[name].add("", AddBatch(LEDGER, KEY, [packet(entry_id)]))
            assert reply.status is Status.OK

    async def holds(self, bookie: str) -> list[EntryId]:
        return list((await self.storages[BookieId(bookie)].list_entries(LEDGER)).entries)

    async def copies(self, entry_id: int) -> dict[BookieId, bytes]:
        """Return the holders of an entry, each with its bytes."""
        found = {}
        for name, storage in self.storages.items():
            [result] = (await storage.read(LEDGER, [EntryId(entry_id)])).results
            if result.status is Status.OK:
                found[name] = result.packet
        return found

    def hang(self, *names: str) -> None:
        for name in names:
            self.transport.faults(BookieId(name)).is_request_lost = True

    async def recover(self, ports: ClientPorts | None = None, password: bytes | None = None) -> LedgerMetadata:
        return (await recover_ledger(ports or self.ports, LEDGER, password)).metadata

    async def metadata(self) -> LedgerMetadata:
        return (await self.ledgers.read(LEDGER)).metadata

    async def marked(self) -> tuple[BookieId, ...]:
        task = await self.ports.tasks.read(LEDGER)
        return () if task is None else task.missing

    async def assert_durable(self, metadata: LedgerMetadata, first: int = 0) -> None:
        """Check the length, and that each entry from ``first`` on is on at least ``Qa`` members of its write set."""
        assert metadata.last_entry_id is not None
        for entry_id in range(first, metadata.last_entry_id + 1):
            fragment = metadata.fragments[metadata.fragment_index(EntryId(entry_id))]
            write_set = {
                fragment.members[(entry_id + i) % metadata.ensemble_size] for i in range(metadata.write_quorum)
            }
            held = await self.copies(entry_id)
            assert len(write_set & held.keys()) >= metadata.ack_quorum, f"entry {entry_id} is on {sorted(held)}"
        if metadata.last_entry_id >= 0:
            last = next(iter((await self.copies(metadata.last_entry_id)).values()))
            assert self.unpacked(last).length == metadata.length
        else:
            assert metadata.length == 0

    def unpacked(self, data: bytes) -> Entry:
        return unpack(DIGEST, data, LEDGER, None)


@asynccontextmanager
async def a_world(bookies: str) -> AsyncIterator[RecoveryWorld]:
    world = RecoveryWorld()
    await world.start(bookies)
    try:
        yield world
    finally:
        await world.close()


def ends(metadata: LedgerMetadata) -> tuple[LedgerState, int | None, int | None]:
    return metadata.state, metadata.last_entry_id, metadata.length


def closed_at(last: int) -> tuple[LedgerState, int, int]:
    """Return the value of ``ends`` for a ledger with ``PAYLOAD`` bytes for each entry."""
    return LedgerState.CLOSED, last, (last + 1) * PAYLOAD


def with_wrong_bytes(reply: ReadReply, entry_ids: Iterable[int], status: Status | None = None) -> ReadReply:
    """Return the reply with some damaged results: another status, or bytes that fail the verification."""
    wanted = set(entry_ids)

    def spoil(result: EntryResult) -> EntryResult:
        if result.entry_id not in wanted:
            return result
        if status is not None:
            return EntryResult(result.entry_id, status)
        return EntryResult(result.entry_id, result.status, result.packet[:-1] + b"?")

    return ReadReply(reply.status, [spoil(result) for result in reply.results], reply.detail)


async def put_copies(world: RecoveryWorld, entry_id: int, names: Sequence[str]) -> None:
    for name in names:
        await world.put(name, packet(entry_id))


def transport_of(ports: ClientPorts) -> Intercepting:
    """Return the transport of ``RecoveryWorld.client``, for its faults and hooks."""
    transport: Any = ports.transport
    assert isinstance(transport, Intercepting)
    return transport
