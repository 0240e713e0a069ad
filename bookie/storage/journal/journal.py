"""Durable appends with group commit (rules J1, J3 to J6, J8 and J10 in docs/failure-model.md).

The invariant: a record is acknowledged only after the sync of its batch, and a batch is written only after all earlier
ones were synced. So each batch can record up to which sequence the journal is durable, and a replay can distinguish a
torn tail, which was never acknowledged, from the loss of acknowledged records (J3, J4).

While one batch is being written and synced, new records queue, and the next batch contains all of them. One sync thus
covers many callers, and a single caller does not wait. Callbacks run in the order of the journal, before any caller
resumes.

The steps of beginning a file are: sync its header, sync its name in the directory, write the mark, reserve space if
configured, write the first batch (J5). A crash before the first batch leaves a file without records. A crash during a
batch leaves a torn tail, and any crash leaves reserved space, which reads as zeros. Nothing is appended after either:
each start begins a new file with a higher epoch (J8). A file is deleted only after a checkpoint that covers it is
durable; the mark is written last, because on a full disk it needs the space freed by the deletion.

Each batch records that the one before it was durable. The last batch has no successor, and if the end of a file is cut
off, these records are lost with it. So a second task writes the mark within ``journal_mark_after_s`` of each batch.
From then on, an unreadable batch is damage, not a torn tail (J12).

If the disk is full, all queued records fail and the file is closed; the next records begin a new file with a higher
epoch. Any other disk error stops the journal: nothing more is acknowledged, and ``fatal`` makes the process exit (J6).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from bookie.model.errors import FatalError, TransientError
from bookie.runtime.clock import Clock
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import cancel, guarded
from bookie.storage.disks.changes import RunningChanges
from bookie.storage.journal.format import (
    RECORD_HEADER_SIZE,
    BatchHeader,
    FileHeader,
    RecordKind,
    encode_batch,
    encode_entries,
    encode_file_header,
    encode_record,
)
from bookie.storage.journal.mark import JournalMark, MarkSlots
from bookie.storage.journal.replay import DIRECTORY, ClosedFile, file_path
from bookie.storage.port import Disk, DiskError, DiskFile, DiskFullError
from bookie.storage.settings import StorageSettings

_log = logging.getLogger(__name__)


class JournalBusyError(TransientError):
    """The queue for the disk is full."""


class JournalStoppedError(FatalError):
    """The journal was closed or has failed."""


@dataclass(slots=True)
class Records:
    """The encoded records of one caller, which become durable together or not at all."""

    parts: list[bytes] = field(default_factory=list, repr=False)
    count: int = 0
    size: int = 0

    def add_entries(self, ledger_id: int, entries: Collection[tuple[bytes, int]]) -> int:
        """Add (entry, its CRC32C) pairs, and return the number of bytes of the entries without record headers."""
        self.parts += encode_entries(ledger_id, entries)
        entry_bytes = sum(len(body) for body, _ in entries)
        self.count += len(entries)
        self.size += entry_bytes + len(entries) * RECORD_HEADER_SIZE
        return entry_bytes

    def add(self, kind: RecordKind, ledger_id: int, body: bytes = b"") -> None:
        """Add one record."""
        record = encode_record(kind, ledger_id, body)
        self.parts.append(record)
        self.count += 1
        self.size += len(record)


@dataclass(slots=True, eq=False)
class _Request:
    records: Records
    on_durable: Callable[[], None]
    on_failed: Callable[[FatalError], None]
    done: asyncio.Future[FatalError | None]

    def finish(self, error: FatalError | None) -> None:
        """Resolve the caller's future and run the callback. The caller resumes after it, unless it was cancelled."""
        if not self.done.done():
            self.done.set_result(error)
        if error is None:
            self.on_durable()
        else:
            self.on_failed(error)


class Journal:
    """The writer of a journal. One task owns the file; ``enqueue`` never waits.

    Attributes:
        durable_sequence: the sequence of the last synced batch; its callbacks have run before any other task sees it.
        fatal: completes with the error when the journal has stopped permanently.
        is_full: whether the disk had no space for the last change, as far as is known.
    """

    def __init__(
        self,
        disk: Disk,
        settings: StorageSettings,
        slots: MarkSlots,
        clock: Clock,
        *,
        epoch: int,
        sequence: int,
        files: list[ClosedFile],
        fatal: asyncio.Future[FatalError] | None = None,
    ) -> None:
        """Prepare to write.

        Args:
            disk: the journal's disk.
            settings: the limits of the store.
            slots: the slot files with the mark.
            clock: time.
            epoch: greater than any epoch on the disk.
            sequence: the sequence of the last batch on the disk.
            files: the files on the disk.
            fatal: a future shared with other journals, so that all of them stop if one fails; None: a new one.
        """
        self.durable_sequence = sequence
        self.is_full = False
        self.fatal: asyncio.Future[FatalError] = fatal or asyncio.get_running_loop().create_future()
        self._disk = disk
        self._settings = settings
        self._slots = slots
        self._clock = clock
        self._epoch = epoch
        # Skip one number: a torn batch of the previous epoch may have used it.
        self._attempted = sequence + 1
        self._closed_files = list(files)
        self._number = max((file.number for file in files), default=0)
        self._file: DiskFile | None = None
        self._offset = 0
        self._queue: deque[_Request] = deque()
        self._group: deque[_Request] = deque()
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._is_closing = False
        self._writer: asyncio.Task[None] | None = None
        self._marker: asyncio.Task[None] | None = None
        self._has_new_end = asyncio.Event()
        self._changes = RunningChanges()

    def start(self) -> None:
        """Start the writer task, and the task that writes the mark."""
        self._writer = guarded("journal writer", self._run())
        self._marker = guarded("journal mark", self._mark_ends())

    async def repeat(self, records: Records, durable_sequence: int) -> None:
        """Write the last batch on the disk again, before anything declares it durable. Call this before ``start``.

        Args:
            records: the records of the batch.
            durable_sequence: the sequence up to which the files are known to be durable.

        Raises:
            DiskFullError: the disk has no space for it; the journal can be used.
            DiskError: any other failure.
        """
        last, self.durable_sequence = self.durable_sequence, durable_sequence
        self.enqueue(records, lambda: None, lambda _: None)
        self._take_group()
        try:
            with self._changing():
                await self._commit(self._group)
        except DiskFullError as error:
            await self._abandon_file(error)
            self.durable_sequence = last
            raise
        await self._mark_end()  # otherwise each start without space for a checkpoint would repeat it

    def enqueue(
        self, records: Records, on_durable: Callable[[], None], on_failed: Callable[[FatalError], None]
    ) -> asyncio.Future[FatalError | None]:
        """Queue records, and return a future that completes with None once they are durable, or with the error.

        Exactly one of the callbacks runs, in journal order and before the caller resumes, even if the caller was
        cancelled.

        Raises:
            JournalBusyError: the queue is full; nothing was queued.
            JournalStoppedError: the journal was closed or has failed; nothing was queued.
        """
        if self._is_closing or self.fatal.done():
            raise JournalStoppedError("the journal accepts no more records: it is closing or its disk failed")
        if self._waiting_bytes and self._waiting_bytes + records.size > self._settings.journal_queue_bytes_max:
            raise JournalBusyError(f"{self._waiting_bytes} bytes wait for the journal disk: try again later")
        done: asyncio.Future[FatalError | None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Request(records, on_durable, on_failed, done))
        self._waiting_bytes += records.size
        self._wake.set()
        return done

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the records that wait for the disk."""
        return self._waiting_bytes

    @property
    def oldest_change(self) -> int | None:
        """The number of the oldest running write, sync or removal; None if there is none."""
        return self._changes.oldest

    async def trim(self, sequence: int) -> None:
        """Remove the files covered by a durable checkpoint at ``sequence``. May be called concurrently.

        Raises:
            DiskError: the mark or the removal could not be made durable.
        """
        covered = [file for file in self._closed_files if file.last_sequence <= sequence]
        for file in covered:
            with self._changing():
                await self._disk.unlink(file.path)
        if covered:
            self._closed_files = [file for file in self._closed_files if file not in covered]
            with self._changing():
                await self._disk.sync_directory(DIRECTORY)
        # This is last because, on a full disk, it needs the space of the removed files.
        with self._changing():
            await self._slots.write(JournalMark(self.durable_sequence, self._epoch))

    def stop(self, error: Exception) -> None:
        """Stop acknowledging: fail the queued records and complete ``fatal``."""
        fatal = error if isinstance(error, FatalError) else JournalStoppedError(f"stopped by a failure: {error!r}")
        defect = None if isinstance(error, DiskError) else error  # where a disk failed is in its message
        _log.critical("storage stopped, nothing more is acknowledged", extra={"error": str(error)}, exc_info=defect)
        if not self.fatal.done():
            self.fatal.set_result(fatal)
        self._fail(fatal)
        self._wake.set()

    def refuse(self) -> None:
        """Accept no more records."""
        self._is_closing = True

    async def close(self) -> None:
        """Accept no more records, write the queued ones, and close the file."""
        self._is_closing = True
        self._wake.set()
        if self._writer is not None:
            await asyncio.wait([self._writer])
        await cancel(self._marker)
        await self._end_file()

    async def abort(self) -> None:
        """Stop without writing the queued records, as in a crash."""
        self._is_closing = True
        await cancel(self._writer)
        await cancel(self._marker)
        self._fail(JournalStoppedError("the journal was stopped before this was durable"))
        await self._close_file()

    async def _run(self) -> None:
        try:
            while await self._has_work():
                self._take_group()
                with self._changing():
                    try:
                        await self._commit(self._group)
                        self.is_full = False
                    except DiskFullError as error:
                        await self._abandon_file(error)
        except Exception as error:  # noqa: BLE001 (task boundary: without the writer nothing may be acknowledged)
            self.stop(error)

    async def _mark_ends(self) -> None:
        """Record the durable end of the journal within ``journal_mark_after_s`` of each batch."""
        try:
            while True:
                await self._has_new_end.wait()
                await self._clock.sleep(self._settings.journal_mark_after_s)
                self._has_new_end.clear()
                if not self.fatal.done():
                    await self._mark_end()
        except Exception as error:  # noqa: BLE001 (task boundary: a disk that cannot be synced must stop the journal)
            self.stop(error)

    async def _mark_end(self) -> None:
        try:
            with self._changing():
                await self._slots.write(JournalMark(self.durable_sequence, self._epoch))
        except DiskFullError as error:  # no data is lost: the next batch or checkpoint records the end
            _log.warning("journal mark not written", extra={"error": str(error)})

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Count the work in the block as one change of the disk, so a hanging disk is detected."""
        with self._changes.one():
            try:
                yield
            except DiskFullError:
                self.is_full = True
                raise

    async def _has_work(self) -> bool:
        while not self._queue:
            if self._is_closing or self.fatal.done():
                return False
            self._wake.clear()
            await self._wake.wait()
        return True

    def _take_group(self) -> None:
        size = 0
        while self._queue and (not size or size + self._queue[0].records.size <= self._settings.journal_batch_bytes):
            if size and fault_point("journal.tiny_batch"):
                return
            size += self._queue[0].records.size
            self._group.append(self._queue.popleft())

    async def _commit(self, group: deque[_Request]) -> None:
        if self._file is None:
            self._file = await self._begin_file()
        self._attempted += 1
        parts = [part for request in group for part in request.records.parts]
        size = sum(request.records.size for request in group)
        count = sum(request.records.count for request in group)
        header = BatchHeader(self._epoch, self._attempted, self.durable_sequence, self._offset, size, count)
        self._offset = await self._file.append_and_sync(encode_batch(header, parts))
        self.durable_sequence = self._attempted
        self._has_new_end.set()
        self._waiting_bytes -= size
        while group:
            group.popleft().finish(None)
        if self._offset >= self._settings.journal_file_bytes or fault_point("journal.roll_early"):
            await self._end_file()

    async def _begin_file(self) -> DiskFile:
        """Create a file. Its name and header are durable before the first batch is written (J5)."""
        self._number += 1
        file = await self._disk.create(file_path(self._number))
        header = FileHeader(self._epoch, self._number, self.durable_sequence)
        try:
            self._offset = await file.append_and_sync([encode_file_header(header)])
            await self._disk.sync_directory(DIRECTORY)
            await self._slots.write(JournalMark(self.durable_sequence, self._epoch))
            if self._settings.journal_reserve_bytes:
                await file.reserve(min(self._settings.journal_reserve_bytes, self._settings.journal_file_bytes))
        except DiskFullError:
            await file.close()
            with suppress(DiskError):
                await self._disk.unlink(file_path(self._number))
            raise
        return file

    async def _abandon_file(self, error: DiskFullError) -> None:
        """Close the file, so no batch is ever written after an incomplete one. The next one uses a new file and epoch.

        All queued records fail as well, because they may depend on the failed ones (as on a ledger's key).
        """
        _log.error("journal disk full", extra={"durable_sequence": self.durable_sequence, "error": str(error)})
        self.is_full = True
        self._epoch += 1
        self._fail(error)
        await self._end_file()

    async def _end_file(self) -> None:
        """Release the reserved space of the file, and close it."""
        if self._file is not None and self._settings.journal_reserve_bytes:
            await self._file.reserve(0)
        await self._close_file()

    async def _close_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            self._closed_files.append(ClosedFile(self._number, self.durable_sequence))
            await file.close()

    def _fail(self, error: FatalError) -> None:
        failed = [*self._group, *self._queue]
        self._group.clear()
        self._queue.clear()
        self._waiting_bytes = 0
        for request in failed:
            request.finish(error)
