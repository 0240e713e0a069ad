"""Measuring at the two edges of a bookie: the requests it answers, and the commits of its journal.

Each wraps a port and changes nothing of what passes, so that neither the service nor the storage knows of metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.clock import Clock
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.server import metrics as names
from bookie.storage.port import Disk, DiskFile
from bookie.wire.handler import BookieHandler
from bookie.wire.port import (
    AddBatch,
    AddReply,
    EntryResult,
    FenceReply,
    InfoReply,
    LacReply,
    ListReply,
    ReadReply,
    Status,
)

Reply = TypeVar("Reply", AddReply, ReadReply, FenceReply, LacReply, ListReply, InfoReply)


class _Operation:
    """The figures of one operation, looked up once: requests come by the thousand each second."""

    def __init__(self, metrics: MetricSet, clock: Clock, operation: str) -> None:
        def of(status: str) -> Callable[[], None]:
            return metrics.counter(names.REQUESTS, operation=operation, status=status).inc

        self._clock = clock
        self._seconds = metrics.histogram(names.REQUEST_DURATION, operation=operation)
        self._count = {status: of(status.name.lower()) for status in Status if status < Status.UNREACHABLE}
        self._count_cancelled = of(names.CANCELLED)

    async def __call__(self, answer: Awaitable[Reply]) -> Reply:
        begun_s = self._clock.monotonic_s()
        try:
            reply = await answer
        except asyncio.CancelledError:
            self._count_cancelled()
            raise
        self._seconds.observe(self._clock.monotonic_s() - begun_s)
        self._count[reply.status]()
        return reply


class MeasuredService:
    """A ``BookieHandler`` that counts and times another one."""

    def __init__(self, service: BookieHandler, metrics: MetricSet, clock: Clock) -> None:
        def operation(name: str) -> _Operation:
            return _Operation(metrics, clock, name)

        self._service = service
        self._add, self._read, self._read_last = operation("add"), operation("read"), operation("read_last")
        self._fence, self._list, self._info = operation("fence"), operation("list_entries"), operation("info")
        self._read_lac, self._wait_lac = operation("read_lac"), operation("wait_lac")
        self._write_lac = operation("write_lac")
        self._added_entries = metrics.counter(names.ADDED_ENTRIES)
        self._added_bytes = metrics.counter(names.ADDED_BYTES)
        self._read_entries = metrics.counter(names.READ_ENTRIES)
        self._read_bytes = metrics.counter(names.READ_BYTES)

    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        """Store a batch."""
        reply = await self._add(self._service.add(incarnation, batch))
        if reply.status is Status.OK:
            self._added_entries.inc(len(batch.entries))
            self._added_bytes.inc(sum(map(len, batch.entries)))
        return reply

    async def read(
        self, incarnation: str, ledger_id: LedgerId, entry_ids: Sequence[EntryId], fence_key: bytes | None = None
    ) -> ReadReply:
        """Read entries."""
        return self._sent(await self._read(self._service.read(incarnation, ledger_id, entry_ids, fence_key)))

    async def read_last(self, incarnation: str, ledger_id: LedgerId) -> ReadReply:
        """Read the entry with the greatest id."""
        return self._sent(await self._read_last(self._service.read_last(incarnation, ledger_id)))

    async def fence(self, incarnation: str, ledger_id: LedgerId, master_key: bytes) -> FenceReply:
        """Fence a ledger, and read."""
        return await self._fence(self._service.fence(incarnation, ledger_id, master_key))

    async def read_lac(self, incarnation: str, ledger_id: LedgerId) -> LacReply:
        """The last add confirmed and the last entry."""
        return await self._read_lac(self._service.read_lac(incarnation, ledger_id))

    async def wait_lac(self, incarnation: str, ledger_id: LedgerId, beyond: EntryId, wait_s: float) -> LacReply:
        """Wait for a greater last add confirmed."""
        return await self._wait_lac(self._service.wait_lac(incarnation, ledger_id, beyond, wait_s))

    async def write_lac(self, incarnation: str, ledger_id: LedgerId, master_key: bytes, explicit: bytes) -> AddReply:
        """Write a last add confirmed."""
        return await self._write_lac(self._service.write_lac(incarnation, ledger_id, master_key, explicit))

    async def list_entries(self, incarnation: str, ledger_id: LedgerId) -> ListReply:
        """List the entries of a ledger."""
        return await self._list(self._service.list_entries(incarnation, ledger_id))

    async def info(self, incarnation: str) -> InfoReply:
        """Information about the bookie."""
        return await self._info(self._service.info(incarnation))

    def _sent(self, reply: ReadReply) -> ReadReply:
        sent: list[EntryResult] = [result for result in reply.results if result.status is Status.OK]
        if sent:
            self._read_entries.inc(len(sent))
            self._read_bytes.inc(sum(len(result.packet) for result in sent))
        return reply


class TimedDisk:
    """A ``Disk`` that times each group commit (``append_and_sync``) of files it creates. Failures are not timed."""

    def __init__(self, disk: Disk, metrics: MetricSet, clock: Clock) -> None:
        self._disk = disk
        self._observe = metrics.histogram(names.SYNC_DURATION).observe
        self._clock = clock
        self.open = disk.open
        self.replace = disk.replace
        self.names = disk.names
        self.make_directory = disk.make_directory
        self.unlink = disk.unlink
        self.sync_directory = disk.sync_directory
        self.space = disk.space

    async def create(self, path: str) -> DiskFile:
        """A ``Disk`` with its operations measured."""
        return _TimedFile(await self._disk.create(path), self._observe, self._clock)


class _TimedFile:
    def __init__(self, file: DiskFile, observe: Callable[[float], None], clock: Clock) -> None:
        self._append_and_sync = file.append_and_sync
        self._observe = observe
        self._clock = clock
        self.append = file.append
        self.sync = file.sync
        self.read = file.read
        self.size = file.size
        self.close = file.close

    async def append_and_sync(self, parts: Sequence[bytes]) -> int:
        begun_s = self._clock.monotonic_s()
        size = await self._append_and_sync(parts)
        self._observe(self._clock.monotonic_s() - begun_s)
        return size
