"""A cluster in virtual time whose bookies the test scripts, and a check of all acknowledged entries."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from typing_extensions import override

from bookie.client.bookkeeper import BookKeeper
from bookie.client.options import LedgerOptions, WriterOptions
from bookie.client.ports import ClientPorts
from bookie.client.settings import ClientSettings
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.ledgers.serde import decode
from bookie.metadata.store.memory import Fault
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata, LedgerState
from bookie.model.packet import packet_ids
from bookie.wire.port import AddBatch, AddReply, ReplyT, Request, Status, Transport
from bookie.wire.requests import WriteLac
from tests.worlds.cluster import MemoryCluster
from tests.worlds.virtual_time import run_virtual

SETTINGS = ClientSettings(add_timeout_s=10, close_timeout_s=30, degraded_retry_s=5, failed_bookie_quarantine_s=30)


@dataclass
class ScriptedBookie:
    """A bookie that stores every add by default."""

    incarnation: str = ""
    refusal: Status | None = None
    """If set, the bookie answers this and stores nothing."""
    is_silent: bool = False
    """Whether the bookie neither stores nor answers."""
    is_reply_lost: bool = False
    """Whether the bookie stores but does not answer."""
    latency_s: float = 0.001
    busy_left: int = 0
    """How many of the next adds are refused because the bookie is too busy."""
    stored: dict[tuple[LedgerId, EntryId], bytes] = field(default_factory=dict)
    batches: list[AddBatch] = field(default_factory=list)
    """Every received batch."""
    reported: list[bytes] = field(default_factory=list)
    """Every received explicit LAC."""

    async def add(self, batch: AddBatch) -> AddReply:
        await asyncio.sleep(self.latency_s)
        if self.is_silent:
            await asyncio.Event().wait()
        self.batches.append(batch)
        if batch.incarnation and batch.incarnation != self.incarnation:
            return AddReply(Status.WRONG_INCARNATION)
        if self.busy_left:
            self.busy_left -= 1
            return AddReply(Status.TOO_MANY_REQUESTS)
        if self.refusal is not None:
            return AddReply(self.refusal)
        for packet in batch.entries:
            assert self.stored.setdefault(packet_ids(packet), packet) == packet, "an entry was sent with other bytes"
        if self.is_reply_lost:
            await asyncio.Event().wait()
        return AddReply(Status.OK)


class ScriptedTransport(Transport):
    """A transport for adds and explicit LACs to scripted bookies."""

    def __init__(self, bookies: Mapping[BookieId, ScriptedBookie]) -> None:
        self._bookies = bookies

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._bookies[bookie].add(batch)
        except TimeoutError:
            return AddReply(Status.TIMEOUT)

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        assert isinstance(request, WriteLac)
        target = self._bookies[bookie]
        if target.refusal is None:
            target.reported.append(request.explicit)
        return cast(ReplyT, AddReply(target.refusal or Status.OK))

    @override
    async def close(self) -> None:
        pass


class WriterWorld(MemoryCluster):
    """A cluster of registered bookies ``b0`` to ``b<n-1>``, and a client."""

    ports: ClientPorts
    client: BookKeeper

    def __init__(self) -> None:
        super().__init__()
        self.bookies: dict[BookieId, ScriptedBookie] = {}
        self.acknowledged: dict[EntryId, bytes] = {}
        self.violations: list[str] = []

    async def start(self, count: int, *, seed: int = 1, settings: ClientSettings = SETTINGS) -> None:
        await self.found()
        for index in range(count):
            await self.join(f"b{index}")
        self.ports = self.client_ports(ScriptedTransport(self.bookies), settings, self.store, seed=seed)
        self.client = BookKeeper(self.ports)

    async def join(self, name: str, *, incarnation: str | None = None, is_read_only: bool = False) -> BookieId:
        """Register a bookie (again), on the disks of its name."""
        bookie = BookieId(name)
        uuid = f"{name}-disks" if incarnation is None else incarnation
        self.bookies.setdefault(bookie, ScriptedBookie()).incarnation = uuid
        await self.register(name, incarnation=uuid, is_read_only=is_read_only)
        return bookie

    async def leave(self, *bookies: BookieId) -> None:
        for bookie in bookies:
            await self.registrations.unregister(bookie)

    async def writer(
        self, ensemble: int = 3, write: int = 3, ack: int = 2, options: WriterOptions | None = None, **settings: float
    ) -> LedgerWriter:
        changed = dataclasses.replace(self.ports.settings, **settings)  # type: ignore[arg-type]  # the fields' own
        client = BookKeeper(dataclasses.replace(self.ports, settings=changed))
        return await client.create_ledger(LedgerOptions(ensemble, write, ack), writer_options=options)

    def stored(self, writer: LedgerWriter) -> LedgerMetadata:
        """Return the present metadata in the store."""
        return decode(self.cell.get(self.ports.ledgers.path(writer.ledger_id)).data)

    def member(self, writer: LedgerWriter, position: int) -> ScriptedBookie:
        return self.bookies[writer.metadata.last_fragment.members[position]]

    def watch(self, writer: LedgerWriter, waiter: asyncio.Future[EntryId], payload: bytes) -> asyncio.Future[EntryId]:
        """Check at the acknowledgement of the entry that ``Qa`` members of the stored ensemble have it (I1)."""

        def check(done: asyncio.Future[EntryId]) -> None:
            if done.cancelled() or done.exception() is not None:
                return
            entry_id = done.result()
            self.acknowledged[entry_id] = payload
            metadata = self.stored(writer)
            members = metadata.fragments[metadata.fragment_index(entry_id)].members
            positions = metadata.stripe.write_set(entry_id)
            copies = [self.bookies[members[p]].stored.get((writer.ledger_id, entry_id)) for p in positions]
            if sum(copy is not None and copy.endswith(payload) for copy in copies) < metadata.ack_quorum:
                self.violations.append(f"entry {entry_id} acknowledged with too few copies in {members}")
            if metadata.is_closed and (metadata.last_entry_id or 0) < entry_id:
                self.violations.append(f"entry {entry_id} acknowledged beyond the end {metadata.last_entry_id}")

        waiter.add_done_callback(check)
        return waiter

    async def submit(self, writer: LedgerWriter, payload: bytes = b"x") -> asyncio.Future[EntryId]:
        return self.watch(writer, await writer.submit(payload), payload)

    async def fill(self, writer: LedgerWriter, count: int) -> list[EntryId]:
        """Append entries and wait until all are acknowledged."""
        return list(await asyncio.gather(*[await self.submit(writer, b"payload") for _ in range(count)]))

    async def set_state(self, writer: LedgerWriter, change: Callable[[LedgerMetadata], LedgerMetadata]) -> Versioned:
        """Change the metadata as another client would."""
        ledgers = self.ports.ledgers
        found = await ledgers.read(writer.ledger_id)
        return await ledgers.write(writer.ledger_id, change(found.metadata), found.version)

    async def marked(self, writer: LedgerWriter) -> tuple[BookieId, ...]:
        task = await self.ports.tasks.read(writer.ledger_id)
        return () if task is None else task.missing

    def hold_writes(self, writer: LedgerWriter) -> asyncio.Event:
        """Hold writes of the ledger's metadata until the event is set."""
        may_write, ledger_path = asyncio.Event(), self.ports.ledgers.path(writer.ledger_id)

        async def hold(operation: str, path: str) -> Fault | None:
            if operation == "set" and path == ledger_path:
                await may_write.wait()
            return None

        self.store.fault_hook = hold
        return may_write

    def lose_answers(self, writer: LedgerWriter) -> None:
        """Lose the answers to writes of the ledger's metadata, and let its reads fail."""
        ledger_path = self.ports.ledgers.path(writer.ledger_id)

        async def lose(operation: str, path: str) -> Fault | None:
            if path != ledger_path:
                return None
            return Fault.LOSE_ANSWER if operation == "set" else Fault.FAIL_BEFORE

        self.store.fault_hook = lose

    def on_writes(self, writer: LedgerWriter, *faults: Fault | None) -> list[Fault | None]:
        """Set the faults of the next writes of the ledger's metadata, in turn. Return the list of those left."""
        left, ledger_path = list(faults), self.ports.ledgers.path(writer.ledger_id)

        async def hook(operation: str, path: str) -> Fault | None:
            return left.pop(0) if operation == "set" and path == ledger_path and left else None

        self.store.fault_hook = hook
        return left


def recovering(metadata: LedgerMetadata) -> LedgerMetadata:
    return dataclasses.replace(metadata, state=LedgerState.IN_RECOVERY)


def in_world(count: int) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run a coroutine test with a world of ``count`` bookies, and check the copies of every acknowledged entry."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        async def main(**kwargs: Any) -> None:
            world = WriterWorld()
            await world.start(count)
            await test(world, **kwargs)
            assert world.violations == []

        @functools.wraps(test)
        def run(**kwargs: Any) -> None:
            run_virtual(main(**kwargs))

        # pytest must not see the world as a fixture
        del run.__wrapped__
        return run

    return decorate
