"""The answers of a bookie: the checks before the storage and the limits around it, without network code.

The order of the checks is: shutting down, incarnation, the request's own shape, read-only, room. The storage checks
everything about entries and ledgers (sizes, ids, master keys, fences, limbo). A request in the storage is completed
even if its caller is cancelled. A long poll ends with its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never, cast

from typing_extensions import override

from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.fault_points import fault_point
from bookie.server.copying import Copying
from bookie.server.damaged_entries import DamagedEntries
from bookie.server.lac_board import LacBoard, check_packet, proven_lac
from bookie.server.read_places import ReadPlaces
from bookie.server.running_requests import RunningRequests
from bookie.storage.port import Disk
from bookie.storage.store import LedgerStorage
from bookie.wire.handler import BookieHandler
from bookie.wire.port import (
    READ_ENTRIES_MAX,
    AddBatch,
    AddReply,
    BookieInfo,
    CopyReply,
    EntryResult,
    Failed,
    InfoReply,
    LacReply,
    ListReply,
    ReadReply,
    Reply,
    ReplyT,
    Request,
    Status,
)
from bookie.wire.request_shape import batch_size_problem, beyond_problem, copy_problem, entry_ids_problem
from bookie.wire.requests import AnyRequest, Copy, Fence, Info, ListEntries, Read, ReadLac, ReadLast, WaitLac, WriteLac

_CHANGEABLE_STATUSES: Final = frozenset((Status.OK, Status.NO_ENTRY, Status.NO_LEDGER, Status.LIMBO))
"""The statuses after which a long poll continues, because the bookie may have more later."""
_ADDABLE_STATUSES: Final = frozenset((Status.OK, Status.NO_LEDGER, Status.LIMBO))
"""The results of the comparison of a master key that allow adds. An unknown ledger accepts any key."""


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """The bounds of one bookie's work."""

    add_bytes_max: int = 256 << 20
    """The most bytes of concurrent adds in the storage. Beyond it, the answer is TOO_MANY_REQUESTS."""
    reads_max: int = 32
    """The most concurrent reads in the storage. Further ones wait, recoveries first (``bookie.server.read_places``).
    Each may hold ``READ_BYTES_MAX`` in memory."""
    lac_wait_s_max: float = 30.0
    """The longest wait of a long poll, whatever time it requests."""
    lac_waiters_max: int = 128
    """The most concurrent long polls, half the capacity of one connection. Further ones are answered without a wait."""
    explicit_lacs_max: int = 10_000
    """The most explicit LACs in memory, about 300 bytes each."""


@dataclass(frozen=True, slots=True)
class BookieIdentity:
    """What a bookie reports about itself."""

    incarnation: str
    version: str


@dataclass(frozen=True, slots=True)
class ServiceLoad:
    """The requests in the storage."""

    add_bytes: int
    """The bytes of the entries in adds."""
    reads_running: int
    reads_waiting: int
    """The number of reads that wait for their turn."""
    requests: int
    """The number of all requests."""


class BookieService(BookieHandler):
    """``bookie.wire.handler.BookieHandler`` on a ledger storage."""

    def __init__(
        self,
        storage: LedgerStorage,
        ledger_disk: Disk,
        identity: BookieIdentity,
        limits: ServiceLimits | None = None,
        copying: Copying | None = None,
    ) -> None:
        self.damaged = DamagedEntries()
        """The known damaged entries, which are omitted from lists."""
        self.is_read_only = False
        """True if plain adds are refused; set by the disk watch."""
        self._storage = storage
        self._ledger_disk = ledger_disk
        self._identity = identity
        self._limits = limits or ServiceLimits()
        self._copying = copying
        self._is_shutting_down = False
        self._running = RunningRequests()
        self._add_bytes = 0
        self._reads = ReadPlaces(self._limits.reads_max)
        self._lacs = LacBoard(ledgers_max=self._limits.explicit_lacs_max, waiters_max=self._limits.lac_waiters_max)

    @override
    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        refusal = self._refusal(incarnation)
        if refusal is not None:
            return AddReply(*refusal)
        size = sum(map(len, batch.entries))
        refusal = _bad_request(batch_size_problem(batch, size)) or self._capacity_refusal(batch, size)
        if refusal is not None:
            return AddReply(*refusal)
        self._add_bytes += size
        return await self._running.run_uncancelled(self._add(batch, size), AddReply)

    async def _add(self, batch: AddBatch, size: int) -> AddReply:
        try:
            reply = await self._storage.add(batch)
        finally:
            self._add_bytes -= size
        if reply.status is Status.OK:
            self._lacs.stored(batch.ledger_id, batch.entries)
            self.damaged.stored(batch.ledger_id, batch.entries)
        return reply

    @override
    async def answer(self, incarnation: str, request: Request[ReplyT]) -> ReplyT:
        refusal = self._refusal(incarnation) or _bad_request(_shape_problem(request))
        if refusal is not None:
            return request.failed(refusal[0], detail=refusal[1])
        return cast(ReplyT, await self._answer(incarnation, cast(AnyRequest, request)))

    async def _answer(self, incarnation: str, request: AnyRequest) -> Reply:
        match request:
            case Read():
                return await self._read(incarnation, request)
            case ReadLast():
                return await self._last(request.ledger_id)
            case Fence():
                fencing = self._storage.fence(request.ledger_id, request.master_key)
                return await self._running.run_uncancelled(fencing, request.failed)
            case ReadLac():
                return await self._read_lac(request.ledger_id)
            case WaitLac():
                return await self._wait_lac(incarnation, request)
            case WriteLac():
                return await self._in_turn(lambda: self._write_lac(request), request.failed)
            case ListEntries():
                return await self._in_turn(lambda: self._list(request.ledger_id), request.failed)
            case Copy():
                return await self._running.run_uncancelled(self._copy(incarnation, request), request.failed)
            case Info():
                return await self._running.run_uncancelled(self._info(), request.failed)
            case _:
                assert_never(request)

    async def _copy(self, incarnation: str, copy: Copy) -> CopyReply:
        """Copy from another bookie, for a caller who may add to the ledger."""
        if self._copying is None:
            return CopyReply(Status.BAD_REQUEST, detail="this bookie does not copy from others")
        known = await self._storage.check_key(copy.ledger_id, copy.master_key)
        if known not in _ADDABLE_STATUSES:
            return CopyReply(known, detail="not the master key of this ledger")
        return await self._copying.copy(copy, lambda batch: self.add(incarnation, batch))

    async def _read(self, incarnation: str, read: Read) -> ReadReply:
        if read.fence_key is not None:
            fenced = await self.answer(incarnation, Fence(read.ledger_id, read.fence_key))
            if fenced.status is not Status.OK:
                return ReadReply(fenced.status, detail=fenced.detail)
        entry_ids = read.entry_ids[:1] if fault_point("service.short_read") else read.entry_ids
        return await self._entries(read.ledger_id, entry_ids, is_urgent=read.is_urgent)

    async def _entries(
        self,
        ledger_id: LedgerId,
        entry_ids: Sequence[EntryId],
        *,
        is_urgent: bool = False,
        are_errors_damage: bool = False,
    ) -> ReadReply:
        """Read entries, and note the damaged ones."""

        async def read() -> ReadReply:
            with self.damaged.reading(ledger_id) as stored:
                reply = await self._storage.read(ledger_id, entry_ids)
                self.damaged.read(ledger_id, reply.results, stored, are_errors_damage=are_errors_damage)
            return reply

        return await self._in_turn(read, ReadReply, is_urgent=is_urgent)

    async def _list(self, ledger_id: LedgerId) -> ListReply:
        """List the available entries."""
        return self.damaged.without_damaged_entries(ledger_id, await self._storage.list_entries(ledger_id))

    async def verify(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> None:
        """Read entries from the disk, note the damaged and unreadable ones, and remove the notes of the others."""
        self._storage.read_cache.forget((ledger_id,))  # it may have the bytes from before the damage (R106)
        for start in range(0, len(entry_ids), READ_ENTRIES_MAX):
            rest = entry_ids[start : start + READ_ENTRIES_MAX]
            while rest and (reply := await self._entries(ledger_id, rest, are_errors_damage=True)).results:
                rest = rest[len(reply.results) :]

    async def _last(self, ledger_id: LedgerId) -> ReadReply:
        return await self._in_turn(lambda: self._storage.read_last(ledger_id), ReadReply)

    async def _read_lac(self, ledger_id: LedgerId) -> LacReply:
        read = await self._last(ledger_id)
        if read.status is not Status.OK:
            return LacReply(read.status, detail=read.detail)
        last, explicit = read.results[0], self._lacs.explicit(ledger_id)
        if last.status.is_absent:
            return LacReply(last.status, explicit)
        return LacReply(Status.LIMBO if last.status is Status.LIMBO else Status.OK, explicit, last)

    async def _wait_lac(self, incarnation: str, poll: WaitLac) -> LacReply:
        """Wait for at most ``lac_wait_s_max``, and never during the shutdown."""
        bounded_s = min(poll.wait_s, self._limits.lac_wait_s_max) if poll.wait_s > 0 else 0.0
        until_s, beyond = asyncio.get_running_loop().time() + bounded_s, poll.beyond
        read_lac = ReadLac(poll.ledger_id)
        with self._lacs.waiting(poll.ledger_id, beyond) as waiter:  # entered before the first read: nothing is missed
            reply = await self.answer(incarnation, read_lac)
            while reply.status in _CHANGEABLE_STATUSES and proven_lac(reply) <= beyond and await waiter.woken(until_s):
                reply = await self.answer(incarnation, read_lac)
        if reply.status not in _CHANGEABLE_STATUSES or proven_lac(reply) <= beyond:
            return reply
        return replace(reply, entry=await self._entry(poll.ledger_id, EntryId(beyond + 1)))

    async def _entry(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryResult | None:
        """Return an entry if it is stored here undamaged, else None."""
        found = await self._entries(ledger_id, [entry_id])
        return next((result for result in found.results if result.status is Status.OK), None)

    async def _write_lac(self, hint: WriteLac) -> AddReply:
        status = await self._storage.check_key(hint.ledger_id, hint.master_key)
        if status is Status.OK:
            self._lacs.write(hint.ledger_id, hint.explicit)
        return AddReply(status)

    async def _info(self) -> InfoReply:
        total, free = await self._ledger_disk.space()
        info = BookieInfo(
            incarnation=self._identity.incarnation,
            version=self._identity.version,
            is_read_only=self.is_read_only,
            disk_total_bytes=total,
            disk_free_bytes=free,
            ledger_count=self._storage.ledger_count,
        )
        return InfoReply(Status.OK, info)

    async def _in_turn(
        self, read: Callable[[], Coroutine[Any, Any, ReplyT]], failed: Failed[ReplyT], *, is_urgent: bool = False
    ) -> ReplyT:
        """Run ``read`` when it gets a place, which it holds until it ends, even if its caller ends earlier."""
        await self._reads.take(is_urgent=is_urgent)

        async def placed() -> ReplyT:
            try:
                return await read()
            finally:
                self._reads.release()

        return await self._running.run_uncancelled(placed(), failed)

    @property
    def load(self) -> ServiceLoad:
        """The current requests in the storage."""
        return ServiceLoad(self._add_bytes, self._reads.taken, self._reads.waiting, self._running.count)

    @property
    def polls_refused(self) -> int:
        """The number of long polls since the start that were answered at once because too many waited."""
        return self._lacs.refused

    def refuse_everything(self) -> None:
        """From now on, answer new requests, waiting long polls and waiting adds with SHUTTING_DOWN."""
        self._is_shutting_down = True
        self._lacs.close()
        self._storage.end_waits()

    async def drain(self, deadline_s: float) -> bool:
        """Wait for the requests in the storage. Return whether they ended in time."""
        return await self._running.drain(deadline_s)

    def _refusal(self, incarnation: str) -> tuple[Status, str] | None:
        if self._is_shutting_down:
            return Status.SHUTTING_DOWN, "this bookie is shutting down"
        if incarnation and incarnation != self._identity.incarnation:
            return (
                Status.WRONG_INCARNATION,
                f"asked for incarnation {incarnation[:64]}, the disks here are {self._identity.incarnation}",
            )
        return None

    def _capacity_refusal(self, batch: AddBatch, size: int) -> tuple[Status, str] | None:
        if self.is_read_only and not batch.is_recovery:
            return Status.READ_ONLY, "this bookie is read-only, and its log says why: it takes recovery adds only"
        is_over = self._add_bytes and self._add_bytes + size > self._limits.add_bytes_max
        if is_over or fault_point("service.no_room"):
            return Status.TOO_MANY_REQUESTS, f"{self._add_bytes} bytes of adds wait for the disk"
        return None


def _bad_request(problem: str | None) -> tuple[Status, str] | None:
    return None if problem is None else (Status.BAD_REQUEST, problem)


def _shape_problem(request: Request[Any]) -> str | None:
    match request:
        case Read():
            return entry_ids_problem(request.entry_ids)
        case WaitLac():
            return beyond_problem(request.beyond)
        case WriteLac():
            return check_packet(request.ledger_id, request.explicit)
        case Copy():
            return copy_problem(request)
        case _:
            return None
