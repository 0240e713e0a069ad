"""A bookie's answers: the checks that come before the storage, and the limits around it. Knows no network.

Checked in this order: shutting down, incarnation, the request's own shape, read-only, room. What needs a look at the
entries or at the ledger (sizes, ids, master keys, fences, limbo) is the storage's business. A request that reached the
storage runs to its end, also after its caller was cancelled; a long poll ends with its caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from typing_extensions import override

from bookie.model.errors import BkhealError
from bookie.model.ids import NO_ENTRY, EntryId, LedgerId
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import guarded
from bookie.server.lac_board import LacBoard, check_packet, proven_lac
from bookie.storage.port import Disk
from bookie.storage.store import LedgerStorage
from bookie.wire.handler import BookieHandler
from bookie.wire.port import (
    AddBatch,
    AddReply,
    BookieInfo,
    EntryResult,
    FenceReply,
    InfoReply,
    LacReply,
    ListReply,
    ReadReply,
    Status,
)
from bookie.wire.request_shape import batch_size_problem, entry_ids_problem

_log = logging.getLogger(__name__)

Reply = TypeVar("Reply")


class RunningRequests:
    """Requests that have reached the storage. Each runs to its end and is answered, even if its caller is cancelled."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def to_the_end(self, work: Coroutine[Any, Any, Reply], failed: Callable[[Status, str], Reply]) -> Reply:
        """Run ``work`` so that a caller who is cancelled does not stop it half-way; what it raises becomes IO_ERROR."""
        task = guarded("bookie request", _answered(work, failed))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def drain(self, deadline_s: float) -> bool:
        """Wait for those that run now; whether they ended in time."""
        if not self._running:
            return True
        _, late = await asyncio.wait(self._running, timeout=deadline_s)
        return not late


async def _answered(work: Coroutine[Any, Any, Reply], failed: Callable[[Status, str], Reply]) -> Reply:
    try:
        return await work
    except BkhealError as error:
        _log.warning("request failed", extra={"error": str(error)})
        return failed(Status.IO_ERROR, str(error))
    except Exception:  # noqa: BLE001 (task boundary: a bug in one request must answer it, and end no other)
        _log.exception("request failed unexpectedly")
        return failed(Status.IO_ERROR, "internal error of the bookie, see its log")


_MAY_CHANGE: Final = frozenset((Status.OK, Status.NO_ENTRY, Status.NO_LEDGER, Status.LIMBO))
"""The object of a long poll: the bookie answered, and may have more later."""


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Bounds of one bookie's work."""

    add_bytes_max: int = 256 << 20
    """Bytes of adds that may be with the storage at once; beyond, TOO_MANY_REQUESTS."""
    reads_max: int = 32
    """Reads that may be with the storage at once; later ones wait. Each may hold ``READ_BYTES_MAX`` in memory."""
    lac_wait_s_max: float = 30.0
    """Longest wait of a long poll, for any requested time."""
    lac_waiters_max: int = 128
    """Long polls at once, half of what one connection may carry; later ones are answered without a wait."""
    explicit_lacs_max: int = 10_000
    """Explicit LACs remembered, some 300 bytes each."""


@dataclass(frozen=True, slots=True)
class BookieIdentity:
    """The bookie's description of itself."""

    incarnation: str
    version: str


class BookieService(BookieHandler):
    """``bookie.wire.handler.BookieHandler`` on a ledger storage."""

    def __init__(
        self, storage: LedgerStorage, ledgers: Disk, identity: BookieIdentity, limits: ServiceLimits | None = None
    ) -> None:
        self.is_read_only = False
        """True if plain adds are refused; set by the disk watch."""
        self._storage = storage
        self._ledgers = ledgers
        self._identity = identity
        self._limits = limits or ServiceLimits()
        self._is_shutting_down = False
        self._running = RunningRequests()
        self._add_bytes = 0
        self._reads = asyncio.Semaphore(self._limits.reads_max)
        self._lacs = LacBoard(ledgers_max=self._limits.explicit_lacs_max, waiters_max=self._limits.lac_waiters_max)

    @override
    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        refusal = self._refusal(incarnation)
        if refusal is not None:
            return AddReply(*refusal)
        size = sum(map(len, batch.entries))
        refusal = _bad_request(batch_size_problem(batch, size)) or self._no_room(batch, size)
        if refusal is not None:
            return AddReply(*refusal)
        self._add_bytes += size
        return await self._running.to_the_end(self._add(batch, size), AddReply)

    async def _add(self, batch: AddBatch, size: int) -> AddReply:
        try:
            reply = await self._storage.add(batch)
        finally:
            self._add_bytes -= size
        if reply.status is Status.OK:
            self._lacs.stored(batch.ledger_id, batch.entries)
        return reply

    @override
    async def read(
        self, incarnation: str, ledger_id: LedgerId, entry_ids: Sequence[EntryId], fence_key: bytes | None = None
    ) -> ReadReply:
        refusal = self._refusal(incarnation) or _bad_request(entry_ids_problem(entry_ids))
        if refusal is not None:
            return ReadReply(refusal[0], detail=refusal[1])
        if fence_key is not None:
            fenced = await self.fence(incarnation, ledger_id, fence_key)
            if fenced.status is not Status.OK:
                return ReadReply(fenced.status, detail=fenced.detail)
        return await self._entries(ledger_id, entry_ids[:1] if fault_point("service.short_read") else entry_ids)

    async def _entries(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> ReadReply:
        return await self._in_turn(
            lambda: self._storage.read(ledger_id, entry_ids), lambda status, detail: ReadReply(status, detail=detail)
        )

    @override
    async def read_last(self, incarnation: str, ledger_id: LedgerId) -> ReadReply:
        if (refusal := self._refusal(incarnation)) is not None:
            return ReadReply(refusal[0], detail=refusal[1])
        return await self._last(ledger_id)

    async def _last(self, ledger_id: LedgerId) -> ReadReply:
        return await self._in_turn(
            lambda: self._storage.read_last(ledger_id), lambda status, detail: ReadReply(status, detail=detail)
        )

    @override
    async def fence(self, incarnation: str, ledger_id: LedgerId, master_key: bytes) -> FenceReply:
        """A read-only bookie fences as well: that takes bytes, not kilobytes."""
        if (refusal := self._refusal(incarnation)) is not None:
            return FenceReply(refusal[0], detail=refusal[1])
        return await self._running.to_the_end(
            self._storage.fence(ledger_id, master_key), lambda status, detail: FenceReply(status, detail=detail)
        )

    @override
    async def read_lac(self, incarnation: str, ledger_id: LedgerId) -> LacReply:
        if (refusal := self._refusal(incarnation)) is not None:
            return LacReply(refusal[0], detail=refusal[1])
        read = await self._last(ledger_id)
        if read.status is not Status.OK:
            return LacReply(read.status, detail=read.detail)
        last, explicit = read.results[0], self._lacs.explicit(ledger_id)
        if last.status.is_absent:
            return LacReply(last.status, explicit)
        return LacReply(Status.LIMBO if last.status is Status.LIMBO else Status.OK, explicit, last)

    @override
    async def wait_lac(self, incarnation: str, ledger_id: LedgerId, beyond: EntryId, wait_s: float) -> LacReply:
        """Waits for ``lac_wait_s_max`` at most, and not while shutting down."""
        if beyond < NO_ENTRY:
            return LacReply(Status.BAD_REQUEST, detail=f"not a last add confirmed: {beyond}")
        bounded_s = min(wait_s, self._limits.lac_wait_s_max) if wait_s > 0 else 0.0
        until_s = asyncio.get_running_loop().time() + bounded_s
        with self._lacs.waiting(ledger_id, beyond) as waiter:  # first the place, then the look: nothing is missed
            reply = await self.read_lac(incarnation, ledger_id)
            while reply.status in _MAY_CHANGE and proven_lac(reply) <= beyond and await waiter.woken(until_s):
                reply = await self.read_lac(incarnation, ledger_id)
        if reply.status not in _MAY_CHANGE or proven_lac(reply) <= beyond:
            return reply
        return replace(reply, entry=await self._entry(ledger_id, EntryId(beyond + 1)))

    async def _entry(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryResult | None:
        """An entry that is stored here and whole; None otherwise."""
        found = await self._entries(ledger_id, [entry_id])
        return next((result for result in found.results if result.status is Status.OK), None)

    @override
    async def write_lac(self, incarnation: str, ledger_id: LedgerId, master_key: bytes, explicit: bytes) -> AddReply:
        """A read-only bookie takes it as well."""
        if (refusal := self._refusal(incarnation)) is not None:
            return AddReply(*refusal)
        if (problem := check_packet(ledger_id, explicit)) is not None:
            return AddReply(Status.BAD_REQUEST, problem)
        return await self._in_turn(lambda: self._write_lac(ledger_id, master_key, explicit), AddReply)

    async def _write_lac(self, ledger_id: LedgerId, master_key: bytes, explicit: bytes) -> AddReply:
        status = await self._storage.check_key(ledger_id, master_key)
        if status is Status.OK:
            self._lacs.write(ledger_id, explicit)
        return AddReply(status)

    @override
    async def list_entries(self, incarnation: str, ledger_id: LedgerId) -> ListReply:
        if (refusal := self._refusal(incarnation)) is not None:
            return ListReply(refusal[0], detail=refusal[1])
        return await self._in_turn(
            lambda: self._storage.list_entries(ledger_id), lambda status, detail: ListReply(status, detail=detail)
        )

    @override
    async def info(self, incarnation: str) -> InfoReply:
        if (refusal := self._refusal(incarnation)) is not None:
            return InfoReply(refusal[0], detail=refusal[1])
        return await self._running.to_the_end(self._info(), lambda status, detail: InfoReply(status, detail=detail))

    async def _info(self) -> InfoReply:
        total, free = await self._ledgers.space()
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
        self, read: Callable[[], Coroutine[Any, Any, Reply]], failed: Callable[[Status, str], Reply]
    ) -> Reply:
        """Run ``read`` once there is room among the reads. It keeps its place to its own end, not to its caller's."""
        await self._reads.acquire()

        async def placed() -> Reply:
            try:
                return await read()
            finally:
                self._reads.release()

        return await self._running.to_the_end(placed(), failed)

    def refuse_everything(self) -> None:
        """From now on each new request answers SHUTTING_DOWN, and each long poll that still waits."""
        self._is_shutting_down = True
        self._lacs.close()

    async def drain(self, deadline_s: float) -> bool:
        """Wait for the requests that are with the storage; whether they ended in time."""
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

    def _no_room(self, batch: AddBatch, size: int) -> tuple[Status, str] | None:
        if self.is_read_only and not batch.is_recovery:
            return Status.READ_ONLY, "this bookie is drained, or its disks are nearly full: it takes recovery adds only"
        is_over = self._add_bytes and self._add_bytes + size > self._limits.add_bytes_max
        if is_over or fault_point("service.no_room"):
            return Status.TOO_MANY_REQUESTS, f"{self._add_bytes} bytes of adds wait for the disk"
        return None


def _bad_request(problem: str | None) -> tuple[Status, str] | None:
    return None if problem is None else (Status.BAD_REQUEST, problem)
