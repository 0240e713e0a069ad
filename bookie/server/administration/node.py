"""The state of a running bookie, and operators' changes to it. The gRPC interface checks the caller's permissions.

Every method is short or bounded: a change only starts background work, and an inventory has limits of ledgers, bytes
and time. A change is completed even if its caller is cancelled: otherwise its write, which continues in a thread, could
overtake a later write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bookie.model.errors import PermanentError, TransientError
from bookie.model.ids import LEDGER_ID_MAX, BookieId, LedgerId
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import guarded
from bookie.server.service import BookieIdentity, BookieService
from bookie.server.upkeep.collector import Collector, CollectorReport
from bookie.server.upkeep.disk_watch import DiskWatch
from bookie.server.upkeep.drain_watch import DrainWatch
from bookie.server.upkeep.operator_read_only import OperatorReadOnly, ReadOnlyRequest
from bookie.server.upkeep.scrubber import Scrubber, ScrubPhase
from bookie.storage.disks.spread import SpreadDisk
from bookie.storage.inspection import LedgerEnds, LedgerStatus
from bookie.storage.port import Disk, DiskError
from bookie.storage.store import LedgerStorage
from bookie.wire import administration_pb2 as pb

INVENTORY_LEDGERS_MAX: Final = 10_000
"""The most ledgers that one call returns."""
_BATCH_LEDGERS: Final = 200
_BATCH_BYTES: Final = 1 << 20
_ENDS_PER_BATCH: Final = 8
"""The number of ledgers whose ends are read concurrently: small, to keep the index free for client requests."""
_INVENTORY_S: Final = 60.0
"""Time limit of one call. A list that is in progress at the limit is completed."""
_INVENTORIES_MAX: Final = 2
"""The most concurrent calls. Each holds the list of one ledger in memory."""
_UNREPAIRED_LISTED_MAX: Final = 1000
_CHECK_TIMEOUT_S: Final = 5.0
"""Deadline for a disk to report its space."""

_PHASES: Final = {
    ScrubPhase.WAITING: pb.ScrubState.WAITING,
    ScrubPhase.RUNNING: pb.ScrubState.RUNNING,
    ScrubPhase.STOPPED: pb.ScrubState.STOPPED,
}


class UnacceptableRequestError(PermanentError):
    """The request can never succeed. Nothing was changed."""


class TemporarilyRefusedError(TransientError):
    """The bookie cannot do this in its current state. Nothing was changed."""


class TooManyInventoriesError(TransientError):
    """Too many inventories are in progress."""


@dataclass(slots=True, kw_only=True)
class ServingBookie:
    """One running bookie."""

    bookie: BookieId
    identity: BookieIdentity
    storage: LedgerStorage
    service: BookieService
    disks: Mapping[str, Disk]
    """The disks by role: ``journal``, ``journal-2`` and so on for more journals, and ``ledgers``."""
    watch: DiskWatch
    drain: DrainWatch
    read_only: OperatorReadOnly
    collector: Collector
    scrubber: Scrubber | None
    """None if scrubs are disabled."""
    unsent_bytes: Callable[[], int]
    clock: Clock
    journal_paths: Mapping[str, Path]
    """The directories of the journals by role, in their order."""
    begun_s: float
    """Start of the process in the monotonic time of ``clock``."""
    begun_ms: int = field(init=False)
    """Start of the process in epoch milliseconds."""
    _inventories: int = 0
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _forcing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _next_force: asyncio.Task[pb.ForceResponse] | None = None
    """A force that has not begun yet. All calls until its start share it."""

    def __post_init__(self) -> None:
        self.begun_ms = self.clock.epoch_ms()

    async def status(self) -> pb.NodeStatus:
        """Return the activity and content of the process."""
        load, memory = self.service.load, self.storage.memory
        return pb.NodeStatus(
            bookie_id=self.bookie,
            incarnation=self.identity.incarnation,
            version=self.identity.version,
            ledgers=self.storage.ledger_count,
            queues=pb.Queues(
                add_bytes=load.add_bytes,
                journal_bytes=memory.journal_bytes,
                write_cache_bytes=memory.cache_bytes,
                is_flushing=memory.is_flushing,
                reads_running=load.reads_running,
                reads_waiting=load.reads_waiting,
                requests=load.requests,
                unsent_bytes=self.unsent_bytes(),
            ),
            disks=[space for role, disk in self.disks.items() for space in await self._spaces(role, disk)],
            read_only=self._read_only(),
            scrub=self._scrub(),
            collection=self._collection(),
            uptime_ms=int((self.clock.monotonic_s() - self.begun_s) * 1000),
        )

    async def _spaces(self, role: str, disk: Disk) -> list[pb.DiskSpace]:
        if role in self.journal_paths:
            number = list(self.journal_paths).index(role)
            path = str(self.journal_paths[role]) if len(self.journal_paths) > 1 else ""
            return [await self._disk_space(role, disk, path, self.watch.journal_problem(number))]
        if not isinstance(disk, SpreadDisk):
            return [await self._disk_space(role, disk, problem=self.watch.ledger_problem)]
        return [
            pb.DiskSpace(role=role, path=each.path, problem=each.problem)
            if each.disk is None or each.problem
            else await self._disk_space(role, each.disk, each.path, "" if number else self.watch.ledger_problem)
            for number, each in enumerate(disk.directories)
        ]

    async def _disk_space(self, role: str, disk: Disk, path: str = "", problem: str = "") -> pb.DiskSpace:
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                total, free = await disk.space()
        except (DiskError, TimeoutError) as error:
            text = str(error) or f"does not answer within {_CHECK_TIMEOUT_S:g} s"
            return pb.DiskSpace(role=role, path=path, problem=problem or text)
        return pb.DiskSpace(role=role, total_bytes=total, free_bytes=free, path=path, problem=problem)

    async def inventory(self, request: pb.InventoryRequest) -> AsyncGenerator[pb.InventoryBatch, None]:
        """Yield the ledgers selected by the request; see the ``.proto`` file.

        Raises:
            UnacceptableRequestError: an id or a limit is out of range.
            TooManyInventoriesError: ``_INVENTORIES_MAX`` calls are in progress.
            DiskError: the index cannot be read.
        """
        is_one = request.HasField("ledger_id")
        is_in_range = -1 <= request.after <= LEDGER_ID_MAX and 0 <= request.ledger_id <= LEDGER_ID_MAX
        if not is_in_range:
            raise UnacceptableRequestError("the ledger id is out of range")
        if request.limit > INVENTORY_LEDGERS_MAX:
            raise UnacceptableRequestError(f"the limit is {request.limit}, allowed are {INVENTORY_LEDGERS_MAX}")
        if self._inventories >= _INVENTORIES_MAX:
            raise TooManyInventoriesError(f"{self._inventories} inventories are under way: try again later")
        self._inventories += 1
        try:
            async for batch in self._inventory(request, is_one=is_one):
                yield batch
        finally:
            self._inventories -= 1

    async def _inventory(
        self, request: pb.InventoryRequest, *, is_one: bool
    ) -> AsyncGenerator[pb.InventoryBatch, None]:
        end_s = self.clock.monotonic_s() + _INVENTORY_S
        left = 1 if is_one else request.limit or INVENTORY_LEDGERS_MAX
        batch, size, after, is_more = pb.InventoryBatch(), 0, request.after, True
        while is_more:
            ids = [LedgerId(request.ledger_id)] if is_one else await self._page(after, left, request.only_limbo)
            is_more = bool(ids) and not is_one
            async with aclosing(self._messages(ids, only_ends=request.only_ends)) as found:
                async for ledger_id, messages in found:
                    for message in messages:
                        if size >= _BATCH_BYTES or len(batch.ledgers) >= _BATCH_LEDGERS:
                            yield batch
                            batch, size = pb.InventoryBatch(), 0
                        batch.ledgers.append(message)
                        size += len(message.availability)
                    after, left = ledger_id, left - 1
                    if not is_one and (left <= 0 or self.clock.monotonic_s() >= end_s):
                        is_more = False
                        if await self._page(after, 1, request.only_limbo):
                            batch.next_after = after
                        break
        batch.is_last = True
        yield batch

    async def _messages(
        self, ids: Sequence[LedgerId], *, only_ends: bool
    ) -> AsyncGenerator[tuple[LedgerId, Sequence[pb.InventoryLedger]], None]:
        """Yield each ledger with its messages. Ends are small, so they are read for a few ledgers concurrently."""
        if not only_ends:
            for ledger_id in ids:
                yield ledger_id, _ledger_messages(await self.storage.ledger(ledger_id))
            return
        for start in range(0, len(ids), _ENDS_PER_BATCH):
            for ends in await asyncio.gather(*map(self.storage.ledger_ends, ids[start : start + _ENDS_PER_BATCH])):
                yield ends.ledger_id, [_ends_message(ends)]

    async def _page(self, after: int, limit: int, only_limbo: bool) -> list[LedgerId]:
        pages = self.storage.limbo_ids if only_limbo else self.storage.ledger_ids
        return (await pages(after, min(limit, _BATCH_LEDGERS)))[:limit]

    async def force(self) -> pb.ForceResponse:
        """Move everything acknowledged before the call to the entry logs and the index, and sync both.

        Raises:
            DiskFullError: nothing was moved or lost.
            DiskError: a disk failed; the process ends.
        """
        if self._next_force is None:
            self._next_force = guarded("force", self._force())
        return await asyncio.shield(self._next_force)

    async def _force(self) -> pb.ForceResponse:
        begun_s = self.clock.monotonic_s()
        async with self._forcing:
            self._next_force = None
            await self.storage.checkpoint()
        return pb.ForceResponse(took_ms=int((self.clock.monotonic_s() - begun_s) * 1000))

    def scrub(self, request: pb.ScrubRequest) -> pb.ScrubState:
        """Start or interrupt the scrub, or return its state.

        Raises:
            UnacceptableRequestError: an unknown action.
            TemporarilyRefusedError: scrubs are disabled.
        """
        if request.action not in (pb.ScrubRequest.SHOW, pb.ScrubRequest.START, pb.ScrubRequest.STOP):
            raise UnacceptableRequestError(f"action {request.action} is unknown")
        if request.from_beginning and request.action != pb.ScrubRequest.START:
            raise UnacceptableRequestError("only the start of a scrub can be from the beginning")
        if request.action != pb.ScrubRequest.SHOW:
            if self.scrubber is None:
                raise TemporarilyRefusedError("scrubs are disabled: start the bookie with --scrub-interval above 0")
            if request.action == pb.ScrubRequest.START:
                self.scrubber.start(from_beginning=request.from_beginning)
            else:
                self.scrubber.stop()
        return self._scrub()

    def collect(self, request: pb.CollectRequest) -> pb.CollectionState:
        """Start a garbage collection, or return the last one.

        Raises:
            UnacceptableRequestError: an unknown action.
            TemporarilyRefusedError: a collection is already running.
        """
        if request.action not in (pb.CollectRequest.SHOW, pb.CollectRequest.MINOR, pb.CollectRequest.MAJOR):
            raise UnacceptableRequestError(f"action {request.action} is unknown")
        if request.action != pb.CollectRequest.SHOW and not self.collector.start(
            is_major=request.action == pb.CollectRequest.MAJOR
        ):
            raise TemporarilyRefusedError("a garbage collection is already running")
        return self._collection()

    async def set_read_only(self, request: pb.SetReadOnlyRequest, who: str) -> pb.ReadOnlyState:
        """Record and apply an operator's request, or return the state.

        When the call returns, clients already get answers accordingly.

        Raises:
            UnacceptableRequestError: an unknown action.
            DiskError: the request could not be recorded; nothing has changed.
        """
        if request.action not in (pb.SetReadOnlyRequest.SHOW, pb.SetReadOnlyRequest.SET, pb.SetReadOnlyRequest.CLEAR):
            raise UnacceptableRequestError(f"action {request.action} is unknown")
        if request.action != pb.SetReadOnlyRequest.SHOW:
            is_set = request.action == pb.SetReadOnlyRequest.SET
            wish = ReadOnlyRequest(who, self.clock.epoch_ms()) if is_set else None
            await asyncio.shield(guarded("read-only mode", self._follow(wish)))
        return self._read_only()

    async def _follow(self, wish: ReadOnlyRequest | None) -> None:
        async with self._changing:
            await self.read_only.set(wish)
            await self.watch.check()

    def _read_only(self) -> pb.ReadOnlyState:
        wish = self.read_only.wish
        return pb.ReadOnlyState(
            is_read_only=self.service.is_read_only,
            reasons=self.watch.reasons,
            asked_by="" if wish is None else wish.asked_by,
            asked_ms=0 if wish is None else wish.asked_ms,
        )

    def _scrub(self) -> pb.ScrubState:
        damaged = self.service.damaged
        state = pb.ScrubState(
            phase=pb.ScrubState.DISABLED,
            unrepaired=[
                pb.DamagedLedger(ledger_id=ledger_id, entry_ids=entry_ids)
                for ledger_id, entry_ids in damaged.ledgers(_UNREPAIRED_LISTED_MAX)
            ],
            unrepaired_count=damaged.count,
        )
        if self.scrubber is None:
            return state
        state.phase = _PHASES[self.scrubber.phase]
        progress = self.scrubber.progress
        if progress is not None:
            state.begun_ms, state.finished_ms = progress.begun_ms, progress.finished_ms
            state.entries, state.bytes = progress.entries, progress.bytes
            state.damaged, state.replaced = progress.damaged, progress.replaced
            if progress.after is not None:
                state.ledger_id, state.entry_id = progress.after
        return state

    def _collection(self) -> pb.CollectionState:
        present, last = self.collector.present, self.collector.last
        state = pb.CollectionState(
            is_running=self.collector.is_pending,
            is_scheduled=self.collector.is_scheduled,
            process_begun_ms=self.begun_ms,
        )
        if last is not None:
            _fill(state, last)
        if present is not None:
            state.begun_ms, state.finished_ms, state.is_major = present.begun_ms, 0, present.is_major
        elif (asked := self.collector.asked) is not None:
            state.begun_ms, state.finished_ms, state.is_major = 0, 0, asked
        return state


def _fill(state: pb.CollectionState, last: CollectorReport) -> None:
    state.begun_ms, state.finished_ms, state.is_major = last.begun_ms, last.ended_ms, last.is_major
    state.known, state.suspects, state.collected = last.known, last.suspects, last.collected
    state.kept, state.locked, state.unknown, state.held = last.kept, last.locked, last.unknown, last.held
    state.stopped = last.stopped
    if last.compacted is not None:
        state.removed_logs, state.freed_bytes = last.compacted.removed_logs, last.compacted.freed_bytes
        state.copied_bytes = last.compacted.copied_bytes


def _ends_message(found: LedgerEnds) -> pb.InventoryLedger:
    message = pb.InventoryLedger(
        ledger_id=found.ledger_id,
        is_complete=True,
        is_known=found.is_known,
        is_fenced=found.is_fenced,
        is_limbo=found.is_limbo,
        is_collected=found.is_collected,
    )
    if found.entries is not None:
        message.first_entry_id, message.last_entry_id = found.entries
    return message


def _ledger_messages(found: LedgerStatus) -> Sequence[pb.InventoryLedger]:
    """Return the messages of one ledger, in pieces of about 120 KB."""
    pieces = [
        pb.InventoryLedger(
            ledger_id=found.ledger_id,
            availability=piece,
            is_known=found.is_known,
            is_fenced=found.is_fenced,
            is_limbo=found.is_limbo,
            is_collected=found.is_collected,
        )
        for piece in found.entries.encoded()
    ]
    pieces[-1].is_complete = True
    return pieces
