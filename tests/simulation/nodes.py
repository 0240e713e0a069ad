"""Processes of a history: bookies with real storage on simulated disks, and clients of any kind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from bookie.client.bookkeeper import BookKeeper
from bookie.client.placement.placement import Placement
from bookie.client.ports import ClientPorts
from bookie.client.resolve import RegistrationResolver
from bookie.client.settings import ClientSettings
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.server.copying import Copying, Store
from bookie.server.joining.admission import RoleDirectory
from bookie.server.joining.directories import DirectoryRole
from bookie.server.service import BookieIdentity, BookieService
from bookie.server.upkeep.registration_keeper import RegistrationKeeper, service_info
from bookie.storage.disks.memory import Before, MemoryDisk, MemoryIndex, Operation
from bookie.storage.entry_logs.collection import CollectionMark
from bookie.storage.port import Disk, DiskError, DiskFullError
from bookie.storage.store import LedgerStorage
from bookie.wire.handler import BookieHandler
from bookie.wire.port import (
    AddBatch,
    AddReply,
    CopyReply,
    EntryResult,
    FenceReply,
    ListReply,
    ReadReply,
    Reply,
    ReplyT,
    Request,
    Status,
    Transport,
)
from bookie.wire.requests import Copy, Fence, ListEntries, Read
from tests.simulation import journals
from tests.simulation.apache import LikeApache, served_unverified
from tests.simulation.late_disk import LateDisk
from tests.simulation.loop import Process
from tests.simulation.network import PORT, SimTransport
from tests.simulation.store import SimStore, StoreFaults
from tests.worlds.clocks import VirtualClock

if TYPE_CHECKING:
    from tests.simulation.world import SimWorld

SESSION_S: Final = 3.0
"""The session timeout of the metadata store, on the time scale of small settings."""
_INDEX_SPARE_BYTES: Final = 1200  # the space that the index on the ledger disk needs for one write
_CAPACITY_BYTES: Final = 1 << 40
"""The capacity of each disk. Later ledger directories have a byte more, so that they get an entry log first."""
_FAILING_SHARE: Final = 0.4
"""The share of adds that fail during a fault of adds."""
_WRITES: Final = frozenset(
    {
        Operation.CREATE,
        Operation.APPEND,
        Operation.SYNC,
        Operation.REPLACE,
        Operation.MAKE_DIRECTORY,
        Operation.UNLINK,
        Operation.SYNC_DIRECTORY,
    }
)
"""The operations that write to a disk."""


class Witnessed(BookieHandler):
    """The handler of a bookie. The oracles see its answers immediately."""

    def __init__(self, node: SimBookie, inner: BookieHandler) -> None:
        self._node = node
        self._world = node.world
        self._truth = node.world.truth
        self._bookie = node.bookie
        self._inner = inner

    @override
    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        return await self.store(batch, lambda batch: self._inner.add(incarnation, batch))

    async def store(self, batch: AddBatch, store: Store) -> AddReply:
        """Store a batch, either received or copied from another bookie."""
        faults = self._node.faults
        if faults.refuses_copies and batch.is_recovery:
            return AddReply(Status.UNAUTHORIZED, "refused")
        if faults.busy_until_s > self._world.loop.time():
            return AddReply(Status.TOO_MANY_REQUESTS)
        was_fenced = self._truth.is_fenced(self._bookie, batch.ledger_id)
        failure = self._failure()
        if failure is not None and failure < _FAILING_SHARE / 2:
            return AddReply(Status.IO_ERROR, "not stored")
        reply = await store(batch)
        if failure is not None and failure < _FAILING_SHARE:
            return AddReply(Status.IO_ERROR, "perhaps stored")
        if reply.status is Status.OK:
            self._truth.stored(self._bookie, batch, was_fenced=was_fenced)
            if batch.is_recovery:
                self._world.happened("copied", batch.ledger_id, self._bookie)
        return reply

    def _failure(self) -> float | None:
        """Return a random number for an add during a fault of adds; None: there is no such fault."""
        harsh = self._world.harshness
        if harsh is None or self._node.faults.adds_fail_until_s <= self._world.loop.time():
            return None
        return harsh.rng.random()

    @override
    async def answer(self, incarnation: str, request: Request[ReplyT]) -> ReplyT:
        if self._node.faults.reads_refused_until_s > self._world.loop.time():
            return request.failed(Status.TOO_MANY_REQUESTS, detail="too many reads")
        held: frozenset[EntryId] = frozenset()
        if isinstance(request, Read | ListEntries):
            held = self._truth.holds(self._bookie, request.ledger_id)
        reply = await self._inner.answer(incarnation, request)
        self._witness(request, held, reply)
        if self._node.is_apache and isinstance(request, Read) and isinstance(reply, ReadReply):
            packets = self._truth.of(request.ledger_id).packets
            return replace(reply, results=[served_unverified(each, packets) for each in reply.results])
        return reply

    def _witness(self, request: Request[Any], held: frozenset[EntryId], reply: Reply) -> None:
        match request, reply:
            case Read(ledger_id=ledger_id, fence_key=fence_key), ReadReply():
                is_fencing = fence_key is not None
                if reply.status is Status.OK and is_fencing:
                    self._truth.fenced(self._bookie, ledger_id)
                self._truth.answered(self._bookie, ledger_id, held, reply.results, is_fencing=is_fencing)
            case Fence(ledger_id=ledger_id), FenceReply(status=Status.OK):
                self._truth.fenced(self._bookie, ledger_id)
                self._world.happened("fenced", ledger_id, self._bookie)
            case ListEntries(ledger_id=ledger_id), ListReply():
                self._truth.listed(self._bookie, ledger_id, held, reply)


class WitnessedCopying(Copying):
    """The copies that a bookie makes from others. The oracles see each batch like a received one."""

    def __init__(self, node: SimBookie, sources: Transport) -> None:
        super().__init__(sources, node.clock)
        self._node = node

    @override
    async def copy(self, copy: Copy, store: Store) -> CopyReply:
        async def witnessed(batch: AddBatch) -> AddReply:
            reply = await self._node.handler.store(batch, store)
            if reply.status is Status.OK:
                self._node.world.repairs.pulled(self._node.bookie, batch)
            return reply

        return await super().copy(copy, witnessed)


class Flipping(Transport):
    """A transport that damages entries which a bookie reads from others, so that no check at the source finds it."""

    def __init__(self, inner: Transport, rng: random.Random, share: float) -> None:
        self._inner = inner
        self._rng = rng
        self._share = share

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        return await self._inner.add(bookie, batch, timeout_s)

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        reply = await self._inner.ask(bookie, request, timeout_s)
        if isinstance(reply, ReadReply):
            return replace(reply, results=[self._arrived(result) for result in reply.results])
        return reply

    @override
    async def close(self) -> None:
        await self._inner.close()

    def _arrived(self, result: EntryResult) -> EntryResult:
        if not result.packet or self._rng.random() >= self._share:
            return result
        return replace(result, packet=result.packet[:-1] + bytes([result.packet[-1] ^ 1]))


@dataclass(slots=True)
class DiskFaults:
    """The faults of a bookie's disks, which may change at any time."""

    sync_fails: int = 0
    """How many of the next syncs fail."""
    failing_directory: int = 0
    """The ledger directory whose writes fail, by its place in the settings; 0: none. A bookie cannot run without the
    first one."""
    hanging_directory: int = 0
    """The ledger directory on a hanging disk, by its place in the settings; 0: none."""
    hang_ended: asyncio.Event = field(default_factory=asyncio.Event)
    has_failed_sync: bool = False
    """Whether such a sync has failed. A start that fails because of it is tried again."""
    replace_is_full: int = 0
    """How many of the next replacements of a file fail because the disk is full, after the file was renamed."""
    sync_is_full: int = 0
    """How many of the next syncs fail because the disk is full."""
    busy_until_s: float = 0.0
    reads_refused_until_s: float = 0.0
    adds_fail_until_s: float = 0.0
    refuses_copies: bool = False
    """Whether the bookie refuses every copy with a permanent reason."""
    stall_share: float = 0.0
    stall_s: float = 0.5

    def end_hang(self) -> None:
        """End the hang of every disk."""
        self.hanging_directory = 0
        self.hang_ended.set()
        self.hang_ended = asyncio.Event()


class SimBookie:
    """A bookie id with its disks, across all lives of its process."""

    def __init__(self, world: SimWorld, name: str, *, is_apache: bool = False) -> None:
        self.world = world
        self.bookie = BookieId(name)
        self.is_apache = is_apache
        self.interrupted_until_s = 0.0
        """Until this time the bookie has no connection to the store, even if the cluster heals."""
        self.was_wiped = False
        """Whether it got new disks after an operator last marked its ledgers. Only for Apache's bookies."""
        self.process = Process(name)
        self.process.is_alive = False
        self.clock = VirtualClock()
        self.faults = DiskFaults()
        self.is_listening = False
        self.is_serving = False
        """Whether its start has ended, so that it is registered and its collector belongs to this life."""
        self.is_retired = False
        self.is_new_incarnation = False
        self.is_journal_to_be_damaged = False
        """Whether the next start finds a damaged journal."""
        self.was_journal_damaged = False
        """Whether an operator may have salvaged its journal, which happens only after such a fault."""
        self.handler: Witnessed
        self.storage: LedgerStorage
        self.store: SimStore
        self._rng = random.Random(world.rng.getrandbits(64))
        self._journals = self._empty_journals()
        self._ledgers = self._empty_ledgers()
        self.missing_directory = 0
        """The place of the ledger directory that is missing at the next start; 0: none."""
        self.lost_directories: set[int] = set()
        """The places of the ledger directories with new, empty disks, which are not used."""
        self.spread: Disk = self.ledgers
        """The ledger directories of this life, as one directory."""
        self._index = MemoryIndex(before=self._before, is_full=self._is_index_full)
        self.keeper: RegistrationKeeper
        self.service: BookieService
        self.collecting: asyncio.Task[None]
        self.collect: Callable[[], Awaitable[object]]
        """Runs one pass of its collector."""

    @property
    def index(self) -> MemoryIndex:
        """The index on the ledger disk."""
        return self._index

    @property
    def journals(self) -> tuple[MemoryDisk, ...]:
        """The disk of each journal."""
        return self._journals

    @property
    def ledgers(self) -> MemoryDisk:
        """The disk of the first ledger directory."""
        return self._ledgers[0]

    @property
    def ledger_disks(self) -> tuple[MemoryDisk, ...]:
        """The disk of each ledger directory. The entry logs are spread over them."""
        return self._ledgers

    @property
    def is_directory_out_of_use(self) -> bool:
        """Whether the running process does not use one of its ledger directories."""
        return self.spread.out_of_use_count > 0

    @property
    def disks(self) -> tuple[MemoryDisk, ...]:
        """The disks of the journals and of the ledger directories."""
        return *self._journals, *self._ledgers

    def begin(self) -> asyncio.Task[None]:
        """Start the process."""
        self.process.is_alive = True
        return self.process.run("start", self._start(self.process.generation))

    def crash(self, *, is_power_lost: bool) -> None:
        """End the process as SIGKILL does, or the whole machine."""
        if not self.process.is_alive:
            return
        world = self.world
        world.trace.event(self.process.name, "loses power" if is_power_lost else "is killed")
        self.is_listening = self.is_serving = False
        world.network.break_connections(self.process.name)
        if hasattr(self, "store"):
            store = self.store
            store.cut_off()
            world.loop.call_later(world.rng.random() * world.session_s, store.forget_session)
        self.process.die()
        if is_power_lost:
            self._journals = tuple(journal.crash(self._rng) for journal in self._journals)
            self._ledgers = tuple(disk.crash(self._rng) for disk in self._ledgers)
            self._index = self._index.crash(self._rng)
        else:
            self._journals = tuple(journal.restarted() for journal in self._journals)
            self._ledgers = tuple(disk.restarted() for disk in self._ledgers)
            self._index = self._index.restarted()
        parts: tuple[MemoryDisk | MemoryIndex, ...] = (*self._journals, self._index)
        for part in parts:
            part.before = self._before
        for number, disk in enumerate(self._ledgers):
            disk.before = self._before_in(number)
        self._index.is_full = self._is_index_full

    def wipe(self) -> None:
        """Put empty disks into a dead bookie; its next start is a new incarnation."""
        assert not self.process.is_alive
        self.world.trace.event(self.process.name, "gets empty disks")
        self._journals = self._empty_journals()
        self._ledgers, self.missing_directory = self._empty_ledgers(), 0
        self.lost_directories.clear()
        self._index = MemoryIndex(before=self._before, is_full=self._is_index_full)
        self.is_new_incarnation, self.was_wiped = True, True
        self.world.truth.wiped(self.bookie, is_recorded=not self.is_apache)

    def lose_directory(self, number: int) -> None:
        """Replace the disk of a ledger directory of a dead bookie with an empty one."""
        assert not self.process.is_alive
        self.world.trace.event(self.process.name, f"gets an empty disk for its ledger directory {number}")
        disks = list(self._ledgers)
        disks[number] = self._empty_ledgers()[number]
        self._ledgers = tuple(disks)
        self.lost_directories.add(number)

    async def damage_journal(self) -> None:
        """Damage one journal of this bookie before its start."""
        self.is_journal_to_be_damaged = False
        if (damaged := await journals.damage(self, self._rng)) is None:
            return
        self.world.trace.event(self.process.name, "has a damaged journal")
        self._journals, self.was_journal_damaged = damaged, True
        for journal in damaged:
            journal.before = self._before
        self.world.truth.wiped(self.bookie)

    def resume_session(self) -> None:
        """Connect to the store again after the end of a session."""
        if self.process.is_alive:
            self.store.resume()
            self.world.truth.roles[self.store.session.session_id] = self.process.name

    def end_faults(self) -> None:
        """End all faults of this bookie."""
        self.process.held_until_s = 0.0
        self.faults.end_hang()
        self.faults = DiskFaults()
        self.free_space()
        if self.process.is_alive and hasattr(self, "store"):
            faults = self.store.faults
            faults.lose_share = faults.slow_share = faults.lag_s = faults.fail_share = 0.0
            if self.interrupted_until_s <= self.world.loop.time():
                self.resume_session()

    def free_space(self) -> None:
        """Free space on the disks again."""
        for disk in self._journals:
            disk.capacity_bytes = _CAPACITY_BYTES
        for number, disk in enumerate(self._ledgers):
            disk.capacity_bytes = _CAPACITY_BYTES + number

    def _empty_journals(self) -> tuple[MemoryDisk, ...]:
        count = 1 if self.is_apache else self.world.variation.journals_of(self.process.name)
        return tuple(
            MemoryDisk(before=self._before, replaced=self._replaced, has_holes=self._has_holes) for _ in range(count)
        )

    def _empty_ledgers(self) -> tuple[MemoryDisk, ...]:
        count = 1 if self.is_apache else self.world.variation.ledger_directories_of(self.process.name)
        return tuple(
            MemoryDisk(
                before=self._before_in(number),
                capacity_bytes=_CAPACITY_BYTES + number,
                replaced=self._replaced,
                has_holes=self._has_holes,
            )
            for number in range(count)
        )

    async def _start(self, generation: int) -> None:
        while True:
            try:
                await self._start_once()
                break
            except (BkhealError, TimeoutError) as error:
                self.world.trace.event(self.process.name, f"does not start: {error}")
                if isinstance(error, DiskError) and not isinstance(error, DiskFullError):
                    if self.faults.has_failed_sync:
                        self.faults.has_failed_sync = False
                        self.world.bookie_failed(self)
                        return
                    self.world.bookie_is_broken(self, error)
                    return
                await asyncio.sleep((0.5 + self._rng.random()) * self.world.variation.scale)
        self.is_new_incarnation = False
        self.is_listening = self.is_serving = True
        self.process.run("fatal watch", self._watch_fatal(self.process.generation))
        self.world.trace.event(self.process.name, "serves")
        if self.is_apache and self.was_wiped:
            self.world.bookie_lost_its_disks(self)

    async def _start_once(self) -> None:
        world = self.world
        self.store = world.session(self.process, self._rng)
        self.store.on_ended = self.resume_session
        self.storage, incarnation = await world.open_storage(self)
        self._witness_collection()
        await self._compare_with_truth()
        registrations = Registrations(self.store, world.cluster)
        sources: Transport = SimTransport(world.network, self.process, RegistrationResolver(registrations, self.clock))
        if world.flip_share:
            sources = Flipping(sources, random.Random(f"flips {self.process.name}"), world.flip_share)
        identity = BookieIdentity(incarnation, "sim")
        service = BookieService(self.storage, self.spread, identity, copying=WitnessedCopying(self, sources))
        self.service = service
        self.handler = Witnessed(self, LikeApache(service, self.clock) if self.is_apache else service)
        world.read_only_since_s.pop(self.bookie, None)
        world.network.listen(self.process.name, self)
        self.is_listening = True
        keeper = RegistrationKeeper(
            self.store,
            registrations,
            self.bookie,
            service_info(self.process.name, PORT, incarnation, can_copy=not self.is_apache),
            self.clock,
            takeover_deadline_s=3 * world.session_s,
        )
        self.keeper = keeper
        await keeper.start(is_read_only=False)
        world.start_collector(self)

    def _witness_collection(self) -> None:
        storage, truth, bookie = self.storage, self.world.truth, self.bookie
        collect, mark_one = storage.collect, storage.mark

        def marked(ledger_id: LedgerId) -> CollectionMark:
            self.world.happened("marked", ledger_id, bookie)
            return mark_one(ledger_id)

        async def witnessed(ledger_id: LedgerId, mark: CollectionMark) -> bool:
            before = truth.begins_to_collect(bookie, ledger_id)
            is_collected = await collect(ledger_id, mark)
            truth.collected(bookie, ledger_id, before, is_collected=is_collected, is_apache=self.is_apache)
            if is_collected and self.is_apache:
                self.world.repairs.collected_by_apache(bookie, ledger_id)
            return is_collected

        for name, method in (("collect", witnessed), ("mark", marked)):
            setattr(storage, name, method)

    def _is_index_full(self) -> bool:
        return self.ledgers.used_bytes() + _INDEX_SPARE_BYTES > self.ledgers.capacity_bytes

    async def _compare_with_truth(self) -> None:
        truth = self.world.truth
        for ledger_id in sorted(truth.held.get(self.bookie, ())):
            reply = await self.storage.list_entries(ledger_id)
            if reply.status is Status.CORRUPT and self.storage.directories_out_of_use:
                continue  # the list lacks the entries that the missing directory may have
            truth.restarted(self.bookie, ledger_id, list(reply.entries))

    async def _watch_fatal(self, generation: int) -> None:
        await asyncio.wait([self.storage.fatal])
        if self.process.generation == generation:
            self.world.bookie_failed(self)

    @property
    def _has_holes(self) -> bool:
        return self.world.harshness is not None and self.world.harshness.leaves_holes

    def _replaced(self, path: str) -> None:
        if self.faults.replace_is_full:
            self.faults.replace_is_full -= 1
            self.world.trace.event(self.process.name, f"has no space for the new name of {path}")
            raise DiskFullError(f"sync of the directory of {path} failed")

    def _before_in(self, number: int) -> Before:
        """Return a hook that runs before each operation on the ledger directory at this place in the settings."""

        async def before(operation: Operation, path: str) -> None:
            await self._before(operation, path)
            if number and number == self.faults.failing_directory and operation in _WRITES:
                raise DiskError(f"{operation.value} of {path} failed in ledger directory {number}")

        return before

    async def _before(self, operation: Operation, path: str) -> None:
        draw = self._rng.random()
        if draw < 0.1:
            await asyncio.sleep(0)
        elif draw < 0.15:
            await asyncio.sleep(self._rng.random() * 0.004)
        if operation in (Operation.SYNC, Operation.INDEX_WRITE):
            self.world.happened("storing", None, self.process.name)
        faults = self.faults
        if faults.stall_share and self._rng.random() < faults.stall_share:
            await asyncio.sleep(self._rng.random() * faults.stall_s)
        if faults.sync_fails and operation is Operation.SYNC:
            faults.sync_fails -= 1
            faults.has_failed_sync = True
            self.world.trace.event(self.process.name, "sync fails")
            raise DiskError(f"sync of {path} failed")
        if faults.sync_is_full and operation is Operation.SYNC:
            faults.sync_is_full -= 1
            self.world.trace.event(self.process.name, "sync fails because the disk is full")
            raise DiskFullError(f"sync of {path} failed")
        held_s = self.process.held_until_s - self.world.loop.time()
        if held_s > 0:
            await asyncio.sleep(held_s)


class SimClient:
    """A client process of the store and of bookies: an application, a worker, an auditor."""

    def __init__(self, world: SimWorld, name: str) -> None:
        self.world = world
        self.process = Process(name)
        self.rng = random.Random(world.rng.getrandbits(64))
        self.clock = VirtualClock(self.rng.randrange(-2000, 2000))
        self.faults = StoreFaults()
        self.store = world.session(self.process, self.rng, self.faults)
        self.store.on_ended = self._resume
        registrations = Registrations(self.store, world.cluster)
        self.transport = SimTransport(world.network, self.process, RegistrationResolver(registrations, self.clock))
        self.ports = ClientPorts(
            ledgers=LedgerStore(self.store, world.cluster, self.rng),
            registrations=registrations,
            tasks=UnderReplication(self.store, world.cluster, self.clock),
            transport=self.transport,
            clock=self.clock,
            rng=self.rng,
            settings=world.variation.client(),
        )
        self.client = BookKeeper(self.ports)

    def use(self, settings: ClientSettings) -> None:
        """Use other settings from now on."""
        self.ports = replace(self.ports, settings=settings)
        self.client = BookKeeper(self.ports)

    def place_by(self, placement: Placement) -> None:
        """Choose bookies by their racks from now on."""
        self.ports = replace(self.ports, placement=placement)
        self.client = BookKeeper(self.ports)

    def end_faults(self) -> None:
        """End all faults of this process."""
        self.process.held_until_s = 0.0
        self.faults.lose_share = self.faults.slow_share = self.faults.lag_s = self.faults.fail_share = 0.0
        self.faults.lost_next.clear()
        self._resume()

    def kill(self) -> None:
        """End the process. The store ends its session later."""
        if not self.process.is_alive:
            return
        self.world.trace.event(self.process.name, "is killed")
        self.transport.cut_off()
        self.store.cut_off()
        self.world.loop.call_later(self.world.rng.random() * self.world.session_s, self.store.forget_session)
        self.process.die()

    def freeze(self, seconds: float) -> None:
        """Stop all input and output of the process for a while."""
        self.world.trace.event(self.process.name, f"is frozen for {seconds:.3f} s")
        self.process.held_until_s = self.world.loop.time() + seconds
        self.store.hold(self.process.held_until_s)

    def lose_session(self, back_after_s: float) -> None:
        """End the session with the store. A new one begins later."""
        if self.process.is_alive:
            self.world.trace.event(self.process.name, "loses its session")
            self.store.expire()
            self.world.loop.call_later(back_after_s, self._resume)

    def interrupt_session(self, seconds: float) -> None:
        """Interrupt the connection to the store for a while. The session survives."""
        if self.process.is_alive:
            self.world.trace.event(self.process.name, f"has no connection to the store for {seconds:.3f} s")
            self.store.suspend()
            self.world.loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if self.process.is_alive:
            self.store.resume()
            self.world.truth.roles[self.store.session.session_id] = self.process.name


def places_of(node: SimBookie) -> list[RoleDirectory]:
    """Return the directories in the cookie, with their disks."""
    home = Path("/sim") / node.process.name
    names = ("journal", *(f"journal-{number}" for number in range(2, len(node.journals) + 1)))
    journals = [
        RoleDirectory(DirectoryRole.JOURNAL, home / name, disk) for name, disk in zip(names, node.journals, strict=True)
    ]
    places = [RoleDirectory(DirectoryRole.LEDGERS, home / "ledgers", node.ledgers)]
    for number, disk in enumerate(node.ledger_disks[1:], 1):
        is_missing = number == node.missing_directory
        where = home / f"ledgers-{number + 1}"
        late = LateDisk(node, number, disk)
        places.append(
            RoleDirectory(DirectoryRole.LEDGERS, where, None if is_missing else late, "not mounted" * is_missing)
        )
    return [*journals, *places]
