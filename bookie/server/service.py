"""A bookie's answers: the checks that come before the storage, and the limits around it. Knows no network.

Checked in this order: shutting down, incarnation, the request's own shape, read-only, room. What needs a look at the
entries or at the ledger (sizes, ids, master keys, fences, limbo) is the storage's business. A request that reached the
storage runs to its end, whoever stops waiting for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from operator import lt
from typing import Any, TypeVar

from bookie.model.errors import BkhealError
from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.tasks import guarded
from bookie.storage.port import Disk
from bookie.storage.store import LedgerStorage
from bookie.wire.port import (
    BATCH_BYTES_MAX,
    BATCH_ENTRIES_MAX,
    READ_ENTRIES_MAX,
    AddBatch,
    AddReply,
    BookieInfo,
    FenceReply,
    InfoReply,
    ListReply,
    ReadReply,
    Status,
)

_log = logging.getLogger(__name__)

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Bounds of one bookie's work."""

    add_bytes_max: int = 256 << 20
    """Bytes of adds that may be with the storage at once; beyond, TOO_MANY_REQUESTS."""
    reads_max: int = 32
    """Reads that may be with the storage at once; later ones wait. Each may hold ``READ_BYTES_MAX`` in memory."""


@dataclass(frozen=True, slots=True)
class BookieIdentity:
    """What a bookie says of itself."""

    incarnation: str
    version: str


class BookieService:
    """``bookie.wire.handler.BookieHandler`` on a ledger storage. See the module docstring."""

    def __init__(
        self, storage: LedgerStorage, ledgers: Disk, identity: BookieIdentity, limits: ServiceLimits | None = None
    ) -> None:
        self.is_read_only = False
        """Whether plain adds are refused; set by whoever watches the disks."""
        self._storage = storage
        self._ledgers = ledgers
        self._identity = identity
        self._limits = limits or ServiceLimits()
        self._is_shutting_down = False
        self._running: set[asyncio.Task[Any]] = set()
        self._add_bytes = 0
        self._reads = asyncio.Semaphore(self._limits.reads_max)

    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        """See ``Transport.add``."""
        refusal = self._refusal(incarnation)
        if refusal is not None:
            return AddReply(*refusal)
        size = sum(map(len, batch.entries))
        refusal = _misshapen(batch, size) or self._no_room(batch, size)
        if refusal is not None:
            return AddReply(*refusal)
        self._add_bytes += size
        return await self._to_the_end(self._add(batch, size), AddReply)

    async def _add(self, batch: AddBatch, size: int) -> AddReply:
        try:
            return await self._storage.add(batch)
        finally:
            self._add_bytes -= size

    async def read(self, incarnation: str, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> ReadReply:
        """See ``Transport.read``."""
        refusal = self._refusal(incarnation) or _unreadable(entry_ids)
        if refusal is not None:
            return ReadReply(refusal[0], detail=refusal[1])
        async with self._reads:
            return await self._to_the_end(
                self._storage.read(ledger_id, entry_ids), lambda status, detail: ReadReply(status, detail=detail)
            )

    async def read_last(self, incarnation: str, ledger_id: LedgerId) -> ReadReply:
        """See ``Transport.read_last``."""
        if (refusal := self._refusal(incarnation)) is not None:
            return ReadReply(refusal[0], detail=refusal[1])
        async with self._reads:
            return await self._to_the_end(
                self._storage.read_last(ledger_id), lambda status, detail: ReadReply(status, detail=detail)
            )

    async def fence(self, incarnation: str, ledger_id: LedgerId, master_key: bytes) -> FenceReply:
        """See ``Transport.fence``. A read-only bookie fences as well: that takes bytes, not kilobytes."""
        if (refusal := self._refusal(incarnation)) is not None:
            return FenceReply(refusal[0], detail=refusal[1])
        return await self._to_the_end(
            self._storage.fence(ledger_id, master_key), lambda status, detail: FenceReply(status, detail=detail)
        )

    async def list_entries(self, incarnation: str, ledger_id: LedgerId) -> ListReply:
        """See ``Transport.list_entries``."""
        if (refusal := self._refusal(incarnation)) is not None:
            return ListReply(refusal[0], detail=refusal[1])
        async with self._reads:
            return await self._to_the_end(
                self._storage.list_entries(ledger_id), lambda status, detail: ListReply(status, detail=detail)
            )

    async def info(self, incarnation: str) -> InfoReply:
        """See ``Transport.info``."""
        if (refusal := self._refusal(incarnation)) is not None:
            return InfoReply(refusal[0], detail=refusal[1])
        return await self._to_the_end(self._info(), lambda status, detail: InfoReply(status, detail=detail))

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

    def refuse_everything(self) -> None:
        """From now on each new request answers SHUTTING_DOWN."""
        self._is_shutting_down = True

    async def drain(self, deadline_s: float) -> bool:
        """Wait for the requests that are with the storage; whether they ended in time."""
        if not self._running:
            return True
        _, late = await asyncio.wait(self._running, timeout=deadline_s)
        return not late

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
            return Status.READ_ONLY, "this bookie's disks are nearly full: it takes recovery adds only"
        if self._add_bytes and self._add_bytes + size > self._limits.add_bytes_max:
            return Status.TOO_MANY_REQUESTS, f"{self._add_bytes} bytes of adds wait for the disk"
        return None

    async def _to_the_end(self, work: Coroutine[Any, Any, Reply], failed: Callable[[Status, str], Reply]) -> Reply:
        """Run ``work`` so that a caller who is cancelled does not stop it half-way."""
        task = guarded("bookie request", _answered(work, failed))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)


async def _answered(work: Coroutine[Any, Any, Reply], failed: Callable[[Status, str], Reply]) -> Reply:
    try:
        return await work
    except BkhealError as error:
        _log.warning("request failed", extra={"error": str(error)})
        return failed(Status.IO_ERROR, str(error))
    except Exception:  # noqa: BLE001 (task boundary: a bug in one request must answer it, and end no other)
        _log.exception("request failed unexpectedly")
        return failed(Status.IO_ERROR, "internal error of the bookie, see its log")


def _misshapen(batch: AddBatch, size: int) -> tuple[Status, str] | None:
    count = len(batch.entries)
    if not 0 < count <= BATCH_ENTRIES_MAX:
        return Status.BAD_REQUEST, f"a batch of {count} entries, 1 to {BATCH_ENTRIES_MAX} are allowed"
    if size - max(map(len, batch.entries)) > BATCH_BYTES_MAX:
        return Status.BAD_REQUEST, f"a batch of {size} bytes, at most {BATCH_BYTES_MAX} and one entry are allowed"
    return None


def _unreadable(entry_ids: Sequence[EntryId]) -> tuple[Status, str] | None:
    if not 0 < len(entry_ids) <= READ_ENTRIES_MAX:
        return Status.BAD_REQUEST, f"a read of {len(entry_ids)} entries, 1 to {READ_ENTRIES_MAX} are allowed"
    if entry_ids[0] < 0 or not all(map(lt, entry_ids, entry_ids[1:])):
        return Status.BAD_REQUEST, "entry ids must ascend from 0 on, without repetition"
    return None
