"""Measurements at the two boundaries of a bookie: its requests, and the commits of its journal.

Each class wraps a port without changing its behaviour, so the service and the storage need no code for metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from typing_extensions import override

from bookie.runtime.clock import Clock
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.server import metrics as names
from bookie.storage.port import Disk, DiskFile
from bookie.wire.handler import BookieHandler
from bookie.wire.port import AddBatch, AddReply, CopyReply, EntryResult, ReadReply, ReplyT, Request, Status


class _Operation:
    """The metrics of one operation. They are looked up once, because there are thousands of requests per second."""

    def __init__(self, metrics: MetricSet, clock: Clock, operation: str) -> None:
        def of(status: str) -> Callable[[], None]:
            return metrics.counter(names.REQUESTS, operation=operation, status=status).inc

        self._clock = clock
        self._seconds = metrics.histogram(names.REQUEST_DURATION, operation=operation)
        self._count = {status: of(status.name.lower()) for status in Status if status < Status.UNREACHABLE}
        self._count_cancelled = of(names.CANCELLED)

    async def __call__(self, answer: Awaitable[ReplyT]) -> ReplyT:
        begun_s = self._clock.monotonic_s()
        try:
            reply = await answer
        except asyncio.CancelledError:
            self._count_cancelled()
            raise
        self._seconds.observe(self._clock.monotonic_s() - begun_s)
        self._count[reply.status]()
        return reply


class MeasuredService(BookieHandler):
    """A wrapper of another handler that counts and times its requests."""

    def __init__(self, service: BookieHandler, metrics: MetricSet, clock: Clock) -> None:
        self._service = service
        self._add = _Operation(metrics, clock, names.ADD)
        self._others = {kind: _Operation(metrics, clock, name) for kind, name in names.OPERATION_OF.items()}
        self._batch_entries = metrics.histogram(names.ADD_BATCH).observe
        self._added_entries = metrics.counter(names.ADDED_ENTRIES)
        self._added_bytes = metrics.counter(names.ADDED_BYTES)
        self._read_entries = metrics.counter(names.READ_ENTRIES)
        self._read_bytes = metrics.counter(names.READ_BYTES)

    @override
    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        reply = await self._add(self._service.add(incarnation, batch))
        if reply.status is Status.OK:
            self._batch_entries(len(batch.entries))
            self._added_entries.inc(len(batch.entries))
            self._added_bytes.inc(sum(map(len, batch.entries)))
        return reply

    @override
    async def answer(self, incarnation: str, request: Request[ReplyT]) -> ReplyT:
        reply = await self._others[type(request)](self._service.answer(incarnation, request))
        if isinstance(reply, ReadReply):
            self._count_sent(reply)
        elif isinstance(reply, CopyReply) and reply.stored_count:
            self._added_entries.inc(reply.stored_count)
            self._added_bytes.inc(reply.stored_bytes)
        return reply

    def _count_sent(self, reply: ReadReply) -> None:
        sent: list[EntryResult] = [result for result in reply.results if result.status is Status.OK]
        if sent:
            self._read_entries.inc(len(sent))
            self._read_bytes.inc(sum(len(result.packet) for result in sent))


class TimedDisk:
    """A ``Disk`` that measures time and size of each successful ``append_and_sync`` on the files that it creates."""

    def __init__(self, disk: Disk, metrics: MetricSet, clock: Clock) -> None:
        self._disk = disk
        self._observe = metrics.histogram(names.SYNC_DURATION).observe
        self._observe_size = metrics.histogram(names.JOURNAL_BATCH).observe
        self._clock = clock
        self.open = disk.open
        self.replace = disk.replace
        self.names = disk.names
        self.make_directory = disk.make_directory
        self.unlink = disk.unlink
        self.sync_directory = disk.sync_directory
        self.space = disk.space
        self.room = disk.room
        self.is_out_of_use = disk.is_out_of_use

    @property
    def out_of_use_count(self) -> int:
        """The value of the measured disk."""
        return self._disk.out_of_use_count

    @property
    def oldest_change(self) -> int | None:
        """The value of the measured disk."""
        return self._disk.oldest_change

    async def create(self, path: str) -> DiskFile:
        """Create a file whose group commits are measured."""
        return _TimedFile(await self._disk.create(path), self._observe, self._observe_size, self._clock)


class _TimedFile:
    def __init__(
        self, file: DiskFile, observe: Callable[[float], None], observe_size: Callable[[float], None], clock: Clock
    ) -> None:
        self._append_and_sync = file.append_and_sync
        self._observe, self._observe_size = observe, observe_size
        self._clock = clock
        self.append = file.append
        self.sync = file.sync
        self.reserve = file.reserve
        self.read = file.read
        self.read_cached = file.read_cached
        self.size = file.size
        self.close = file.close

    async def append_and_sync(self, parts: Sequence[bytes]) -> int:
        begun_s = self._clock.monotonic_s()
        size = await self._append_and_sync(parts)
        self._observe(self._clock.monotonic_s() - begun_s)
        self._observe_size(sum(map(len, parts)))
        return size
