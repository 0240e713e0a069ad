"""A small cluster in memory for the tests of repair: real storage and transport twins, faults on demand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from typing_extensions import override

from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.ledgers.ledgers import LedgerStore, Versioned
from bookie.metadata.nodes import parent_of
from bookie.metadata.port import NoNodeError
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.tasks.doubts import DoubtedMembers
from bookie.metadata.tasks.failures import FailedTasks
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkedTasks
from bookie.metadata.tasks.reservations import Reservations
from bookie.metadata.tasks.standby import StandbyWorkers
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.digest import master_key
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, LedgerMetadata
from bookie.model.packet import packet_ids
from bookie.runtime.tasks import guarded
from bookie.server.copying import Copying
from bookie.storage.store import LedgerStorage
from bookie.wire.batching import batches
from bookie.wire.circuits import Circuits, CircuitTransport
from bookie.wire.handler import BookieHandler
from bookie.wire.memory import MemoryNetwork, MemoryTransport
from bookie.wire.port import (
    AddBatch,
    AddReply,
    CopyReply,
    EntryResult,
    ListReply,
    ReadReply,
    Reply,
    ReplyT,
    Request,
    Status,
)
from bookie.wire.requests import Copy, ListEntries, Read, ReadLast
from bookie.wire.resolver import BookieAddress
from replicator.knowledge.evidence import CorruptCopy
from replicator.ports import RepairPorts
from replicator.settings import ReplicatorSettings
from replicator.telemetry.events import Ending, QueueState, TaskResult
from replicator.worker import RunEnd, Worker
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import PORT, MemoryCluster, open_bookie
from tests.worlds.ledgers import LEDGER, PASSWORD, make_packets, names, should_hold

Tamper = Callable[[EntryResult], EntryResult]


@dataclass(slots=True)
class Tampering(BookieHandler):
    """A handler that passes requests on to a bookie and changes its replies for a test."""

    inner: BookieHandler
    results: dict[EntryId, Tamper] = field(default_factory=dict)
    """Changes to the read results of entries."""
    last: Tamper = lambda result: result
    """The change to the result of the last entry."""
    unreadable: set[EntryId] = field(default_factory=set)
    """Entries that it cannot read until they are stored again."""
    read_status: Status | None = None
    """The status of every read as a whole."""
    add_replies: list[Status] = field(default_factory=list)
    """The answers to the next adds, instead of the bookie's."""
    list_replies: list[ListReply] = field(default_factory=list)
    has_no_lists: bool = False
    """Whether it answers as a transport does for an Apache bookie: it has no lists, and an I/O error is its only answer
    for an entry that it cannot read."""
    before_add: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Called once, before the next add takes effect."""
    before_list: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Called once, before the next listing."""
    reads: list[tuple[EntryId, ...]] = field(default_factory=list)
    adds: list[AddBatch] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    copy_replies: list[Status] = field(default_factory=list)
    """Answers to the next requests for copies by this bookie, instead of its own."""
    before_copy: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Called once, before the next copy takes effect."""

    @override
    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        self.adds.append(batch)
        before, self.before_add = self.before_add, None
        if before is not None:
            await before()
        if self.add_replies and (status := self.add_replies.pop(0)) is not Status.OK:
            return AddReply(status, "as the test wants")
        self.unreadable.difference_update(packet_ids(packet)[1] for packet in batch.entries)
        return await self.inner.add(incarnation, batch)

    @override
    async def answer(self, incarnation: str, request: Request[ReplyT]) -> ReplyT:
        reply: Reply
        match request:
            case Read():
                reply = await self._read(incarnation, request)
            case ReadLast():
                last = await self.inner.answer(incarnation, request)
                reply = replace(last, results=[self.last(result) for result in last.results])
            case ListEntries():
                reply = await self._list(incarnation, request)
            case Copy():
                reply = await self._copy(incarnation, request)
            case _:
                reply = await self.inner.answer(incarnation, request)
        return cast(ReplyT, reply)

    async def _read(self, incarnation: str, read: Read) -> ReadReply:
        self.reads.append(tuple(read.entry_ids))
        if self.has_no_lists and self.read_status is Status.IO_ERROR:
            return ReadReply(Status.OK, [EntryResult(entry_id, Status.IO_ERROR) for entry_id in read.entry_ids])
        if self.read_status is not None:
            return ReadReply(self.read_status)
        reply = await self.inner.answer(incarnation, read)
        results = [self._with_damage(each) for each in reply.results]
        return replace(reply, results=[self.results.get(each.entry_id, _as_it_is)(each) for each in results])

    def _with_damage(self, result: EntryResult) -> EntryResult:
        is_damaged = result.status is Status.CORRUPT or result.entry_id in self.unreadable
        damage = Status.IO_ERROR if self.has_no_lists else Status.CORRUPT
        return EntryResult(result.entry_id, damage) if is_damaged else result

    async def _copy(self, incarnation: str, copy: Copy) -> CopyReply:
        self.copies.append(copy)
        before, self.before_copy = self.before_copy, None
        if before is not None:
            await before()
        if self.copy_replies and (status := self.copy_replies.pop(0)) is not Status.OK:
            return CopyReply(status, detail="as the test wants")
        return await self.inner.answer(incarnation, copy)

    async def _list(self, incarnation: str, listing: ListEntries) -> ListReply:
        before, self.before_list = self.before_list, None
        if before is not None:
            await before()
        if self.list_replies:
            return self.list_replies.pop(0)
        if self.has_no_lists:
            last = await self.inner.answer(incarnation, ReadLast(listing.ledger_id))
            status = last.results[0].status if last.results else last.status
            return ListReply(status if status.is_absent or status is Status.LIMBO else Status.UNSUPPORTED)
        return await self.inner.answer(incarnation, listing)


def _as_it_is(result: EntryResult) -> EntryResult:
    return result


def answers(status: Status) -> Tamper:
    """Return a function that replaces the result of an entry by this status."""
    return lambda result: EntryResult(result.entry_id, status)


def flipped(result: EntryResult) -> EntryResult:
    """Return the result with one wrong bit in the payload, which the bookie has not noticed."""
    packet = bytearray(result.packet)
    packet[-1] ^= 1
    return EntryResult(result.entry_id, result.status, bytes(packet))


@dataclass(slots=True)
class Node:
    """One bookie of the world."""

    storage: LedgerStorage
    tampering: Tampering
    incarnation: str

    async def holds(self, ledger_id: LedgerId) -> list[EntryId]:
        return list((await self.storage.list_entries(ledger_id)).entries)


class Bookies:
    """Bookies with real storage on memory disks, reachable through a memory transport. Also the resolver."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.network = MemoryNetwork()
        self.nodes: dict[BookieId, Node] = {}
        self.transport = MemoryTransport(self, self.network)
        self.between = MemoryTransport(self, self.network)
        """The connections of bookies to each other."""

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        node = self.nodes.get(bookie)
        return None if node is None else BookieAddress(bookie, PORT, incarnation=node.incarnation)

    async def start(self, names: Iterable[str], incarnation: str = "1") -> None:
        """Start bookies, each with empty disks."""
        for name in names:
            copying = Copying(self.between, self.clock)
            bookie = await open_bookie(self.clock, incarnation=incarnation, copying=copying)
            node = Node(bookie.storage, Tampering(bookie.service), incarnation)
            self.nodes[BookieId(name)] = node
            self.listen(name)

    def __getitem__(self, name: str) -> Tampering:
        return self.nodes[BookieId(name)].tampering

    def listen(self, name: str) -> None:
        """Make the bookie reachable."""
        self.network.listen(name, PORT, self[name])

    def stop_listening(self, name: str) -> None:
        """Make the bookie unreachable."""
        self.network.stop_listening(name, PORT)

    async def close(self) -> None:
        await self.transport.close()
        await self.between.close()
        for node in self.nodes.values():
            await node.storage.close()

    async def fill(self, ledger: Versioned, packets: Mapping[EntryId, bytes]) -> None:
        """Store ``packets`` on exactly the bookies that the metadata names for them, as the writer does."""
        for bookie in sorted(ledger.metadata.members()):
            mine = should_hold(ledger.metadata, bookie, packets)
            await self.put(bookie, ledger.ledger_id, [packets[entry_id] for entry_id in mine])

    async def put(self, bookie: str, ledger_id: LedgerId, packets: Sequence[bytes]) -> None:
        """Store any packets on one bookie."""
        for entries in batches(packets):
            batch = AddBatch(ledger_id, master_key(PASSWORD), entries, is_recovery=True)
            reply = await self.nodes[BookieId(bookie)].storage.add(batch)
            assert reply.status is Status.OK, reply


class Recorder:
    """A sink that keeps every event together with the value that ``look`` then returns."""

    def __init__(self, look: Callable[[LedgerId], Any] = lambda _: None) -> None:
        self.results: list[TaskResult] = []
        self.looks: list[Any] = []
        self.corrupt: list[CorruptCopy] = []
        self.queue_state = QueueState()
        self._look = look

    def tasks_listed(self, queue_state: QueueState) -> None:
        self.queue_state = queue_state

    def task_ended(self, result: TaskResult) -> None:
        self.results.append(result)
        self.looks.append(self._look(result.ledger_id))

    def copy_corrupt(self, ledger_id: LedgerId, copy: CorruptCopy) -> None:
        self.corrupt.append(copy)

    def endings(self) -> list[Ending]:
        return [result.ending for result in self.results]


class RepairWorld(MemoryCluster):
    """A cluster of bookies with changeable replies, and any number of workers."""

    parked: ParkedTasks
    reservations: Reservations

    def __init__(self) -> None:
        super().__init__()
        self.bookies = Bookies()
        self.network = self.bookies.network
        self.has_circuits = True
        """Whether workers use circuit breakers for silent bookies, as real processes do."""

    async def start(self, bookies: str) -> None:
        await self.found(seed=0)
        self.parked = ParkedTasks(self.store, self.cluster.root)
        self.reservations = Reservations(self.store, self.cluster.root)
        await self.add_bookies(bookies)

    def ports(self, store: MemoryStore, seed: int = 0) -> RepairPorts:
        circuits = Circuits()
        transport = self.bookies.transport
        return RepairPorts(
            store=store,
            cluster=self.cluster,
            ledgers=LedgerStore(store, self.cluster, random.Random(seed)),
            registrations=Registrations(store, self.cluster),
            tasks=UnderReplication(store, self.cluster, self.clock),
            parked=ParkedTasks(store, self.cluster.root),
            doubts=DoubtedMembers(store, self.cluster.root),
            reservations=Reservations(store, self.cluster.root),
            standby=StandbyWorkers(store, self.cluster.root),
            failures=FailedTasks(store, self.cluster.root),
            transport=CircuitTransport(transport, circuits, self.clock) if self.has_circuits else transport,
            clock=self.clock,
            rng=random.Random(seed),
            circuits=circuits,
        )

    @override
    async def add_bookies(self, bookies: str, *, incarnation: str = "1") -> None:
        """Start bookies with empty disks and register them."""
        await self.bookies.start(bookies.split(), incarnation)
        await self.register(*bookies.split())

    @override
    async def register(self, *names: str, incarnation: str = "", is_read_only: bool = False) -> None:
        """Register bookies on their present disks and make them reachable."""
        for name in names:
            disks = incarnation or self.bookies.nodes[BookieId(name)].incarnation
            await super().register(name, incarnation=disks, is_read_only=is_read_only)
            self.bookies.listen(name)

    async def kill(self, *bookies: str) -> None:
        """End bookies: unregister them and make them unreachable. Their disks stay."""
        for name in bookies:
            await self.unregister(name)
            self.bookies.stop_listening(name)

    async def lose(self, *bookies: str) -> None:
        """End bookies, and mark ``LEDGER`` as missing them."""
        await self.kill(*bookies)
        await self.tasks.marking.mark(LEDGER, names(" ".join(bookies)))

    async def ledger(
        self, ledger_id: int, metadata: LedgerMetadata, count: int, *, payload_bytes: int = 10
    ) -> dict[EntryId, bytes]:
        """Create a ledger with ``count`` entries, stored on their bookies."""
        created = await self.ledgers.create(LedgerId(ledger_id), metadata)
        digest_type = metadata.digest_type or DigestType.CRC32C
        packets = make_packets(created.ledger_id, count, payload_bytes=payload_bytes, digest_type=digest_type)
        await self.bookies.fill(created, packets)
        return packets

    async def reserved(self) -> list[str]:
        """Return the ledgers with a reservation."""
        try:
            found = (await self.store.children(parent_of(self.reservations.path(LEDGER)))).names
        except NoNodeError:
            return []
        return sorted(found)

    def worker(self, *, once: bool = True, seed: int = 0, **settings: Any) -> Running:
        """Return a worker with its own session."""
        store = self.session()
        recorder = Recorder(self.version)
        chosen = ReplicatorSettings("zk://memory/ledgers", once=once, **settings)
        return Running(Worker(self.ports(store, seed), chosen, recorder, f"worker-{seed}"), store, recorder)

    @asynccontextmanager
    async def running(self, running: Running) -> AsyncIterator[None]:
        """Run a worker during the block, and stop it at the end."""
        async with asyncio.TaskGroup() as group:
            group.create_task(running.worker.run())
            yield
            running.worker.stop()

    async def heal(self, **settings: Any) -> Recorder:
        """Run one worker until every task is repaired or parked."""
        running = self.worker(**settings)
        assert await running.worker.run() is RunEnd.SETTLED
        return running.recorder

    def version(self, ledger_id: LedgerId) -> int | None:
        """Return the present version of the ledger's metadata."""
        stat = self.cell.stat(self.ledgers.path(ledger_id))
        return None if stat is None else stat.version

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return (await self.ledgers.read(LedgerId(ledger_id))).metadata

    async def task(self, ledger_id: LedgerId) -> Task | None:
        return await self.tasks.read(ledger_id)

    async def is_clean(self) -> bool:
        """Check that no task, lock, parked repair or reservation is left."""
        tasks, locked = await self.tasks.list(), await self.tasks.locks.locked()
        return not (tasks or locked or await self.parked.list() or await self.reserved())

    async def assert_whole(self, ledger_id: int, packets: Mapping[EntryId, bytes], *new: str) -> None:
        """Check that members are distinct and hold their entries, byte for byte; ``new`` ones hold no others."""
        metadata = await self.metadata(ledger_id)
        for fragment in metadata.fragments:
            assert len(set(fragment.members)) == metadata.ensemble_size
        for bookie in sorted(metadata.members()):
            node = self.bookies.nodes[bookie]
            expected = should_hold(metadata, bookie, packets)
            held = await node.holds(LedgerId(ledger_id))
            assert set(expected) <= set(held), f"{bookie} lacks {sorted(set(expected) - set(held))[:5]}"
            if bookie in new:
                assert held == expected
            for start in range(0, len(expected), 1000):
                reply = await node.storage.read(LedgerId(ledger_id), expected[start : start + 1000])
                assert all(result.packet == packets[result.entry_id] for result in reply.results)

    @override
    async def close(self) -> None:
        await self.bookies.close()
        await super().close()


@dataclass(slots=True)
class Running:
    """A worker, its session and its events."""

    worker: Worker
    store: MemoryStore
    recorder: Recorder
    run: asyncio.Task[RunEnd] | None = None
    """The worker task, after its start."""

    def start(self) -> Self:
        self.run = guarded("worker", self.worker.run())
        return self

    async def stop(self) -> RunEnd:
        assert self.run is not None
        self.worker.stop()
        return await self.run


@asynccontextmanager
async def a_world(bookies: str) -> AsyncIterator[RepairWorld]:
    world = RepairWorld()
    await world.start(bookies)
    try:
        yield world
    finally:
        await world.close()
