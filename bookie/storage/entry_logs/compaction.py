"""Compaction: the removal of entry logs in which most bytes are dead.

The order of the steps makes this safe. After a crash between any two steps, each entry is still at the place that the
index names:

1. copy the live entries to a new log, and make it durable;
2. write their new places to the index;
3. remove the old log, which the index no longer refers to. A reader with an outdated place looks it up again.

Steps 1 and 2 are made page by page, and no checkpoint or collection runs during a page. So nothing that a log contains
is older than an entry in a log with a smaller id, and a search through the logs without an index finds the last version
of each entry (``bookie.storage.rebuilding``).

A log that cannot be read to its end never counts as empty: it is kept (apache/bookkeeper #4607). A log with damaged
content is not read again until the next major collection or a restart. After an I/O error, which may be temporary, the
next run reads the log again. The end of a log is the end of its file, or the recorded end if a crash or a full disk cut
the log off (``bookie.storage.entry_logs.log_ends``). Readable entries after a recorded end are looked up in the index
like all others.

Source: docs/failure-model.md#collection-and-checkpoints.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from bookie.model.packet import packet_ids
from bookie.runtime.clock import Clock
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import guarded
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.disks.index_format import (
    Location,
    dead_key,
    dead_range,
    end_key,
    log_id_of_dead,
    pack_dead,
    pack_entry_key,
    pack_location,
    unpack_dead,
)
from bookie.storage.entry_logs.dead_bytes import dead_bytes, increased
from bookie.storage.entry_logs.entry_log import (
    DIRECTORY,
    HEADER_SIZE,
    EntryLogs,
    EntryLogWriter,
    decode_header,
    decode_records,
    log_path,
)
from bookie.storage.entry_logs.log_ends import log_end_put, read_log_end
from bookie.storage.port import (
    DirectoryFailedError,
    DirectoryFullError,
    Disk,
    DiskError,
    DiskFile,
    DiskFullError,
    EntryIndex,
)
from bookie.storage.settings import StorageSettings

_log = logging.getLogger(__name__)

_WINDOW_BYTES: Final = 8 << 20
"""Bytes read at a time: several times the size of the largest entry."""
_PAGE_KEYS: Final = 10_000
_UNFINISHED: Final = 1 << 62
"""Dead bytes recorded for a log while compaction fills it, so that it is compacted after a crash regardless of its
content."""
_UNDELETABLE_MAX: Final = 8
"""If more logs cannot be removed, the run ends: the whole disk may be failing."""


@dataclass(slots=True)
class CompactionResult:
    """The result of one run."""

    removed_logs: int = 0
    freed_bytes: int = 0
    copied_bytes: int = 0
    kept_damaged: int = 0
    """The number of logs that should be compacted, but cannot be opened, read to their end, or removed."""


@dataclass(frozen=True, slots=True)
class _Live:
    """An entry that the index locates in the old log."""

    key: bytes
    old: bytes
    body: bytes = field(repr=False)
    crc: int


class _UnreadableLogError(Exception):
    """A log cannot be read to its end. Not raised outside this module."""


class _DamagedLogError(_UnreadableLogError):
    """A log cannot be read to its end because its content is damaged."""


class _UndeletableLogError(Exception):
    """The file of a log cannot be removed. Not raised outside this module."""


@dataclass(slots=True)
class Compactor:
    """The compaction of the entry logs of one store. Only one run at a time; it may be cancelled."""

    disk: Disk
    index: EntryIndex
    logs: EntryLogs
    checkpointer: Checkpointer
    settings: StorageSettings
    clock: Clock
    _damaged: set[int] = field(default_factory=set)
    """Logs with damaged content, which the next runs do not read."""
    _completing: asyncio.Task[None] | None = None
    """The last write to the index that is completed even if its run is cancelled."""

    async def run(self, below: float | None = None) -> CompactionResult:
        """Remove or compact every log with too small a share of live bytes, smallest share first.

        Args:
            below: the share of live bytes below which a log is compacted; None: the value of the settings. If it is
                given, logs that earlier runs found damaged are read again.

        Raises:
            DiskFullError: no space for a copy, or no more files may be opened; the logs compacted before remain
                compacted.
            DiskError: a disk failed, or more than ``_UNDELETABLE_MAX`` logs cannot be removed.
        """
        if self._completing is not None:  # otherwise its target would have no live entries yet, and would be removed
            await asyncio.wait([self._completing])
        done, undeletable = CompactionResult(), 0
        if below is not None:
            self._damaged.clear()
        for log_id, size in await self._candidates(self.settings.compact_below if below is None else below, done):
            if log_id in self._damaged:
                done.kept_damaged += 1
                continue
            try:
                end = await read_log_end(self.index, log_id)
                done.copied_bytes += await self._move_live(log_id, size, size if end is None else end.offset)
            except _UnreadableLogError as error:
                _log.error("entry log kept, it cannot be read", extra={"log_id": log_id, "error": str(error)})
                if isinstance(error, _DamagedLogError):
                    self._damaged.add(log_id)
                done.kept_damaged += 1
                continue
            except (
                DirectoryFailedError,
                DirectoryFullError,
            ) as error:  # the old log stays; a later run copies the rest
                _log.error("entry log not compacted", extra={"log_id": log_id, "error": str(error)})
                continue
            try:
                is_removed = await self._remove(log_id)
            except _UndeletableLogError as error:
                _log.error("entry log not removed", extra={"log_id": log_id, "error": str(error)})
                undeletable += 1
                done.kept_damaged += 1
                if undeletable > _UNDELETABLE_MAX:
                    raise DiskError(str(error)) from error
                continue
            if not is_removed:
                continue
            done.removed_logs += 1
            done.freed_bytes += size
        return done

    async def _candidates(self, below: float, done: CompactionResult) -> list[tuple[int, int]]:
        """Return the id and the size of each log to compact, and count those that cannot be opened as kept."""
        found: list[tuple[float, int, int]] = []
        first, end = dead_range()
        while page := await self.index.range(first, end, _PAGE_KEYS):
            for key, value in page:
                log_id = log_id_of_dead(key)
                if self.logs.is_out_of_use(log_id):
                    continue
                try:
                    size = await self._size(log_id)
                except DiskFullError:
                    raise
                except DiskError as error:
                    _log.error("entry log kept, it cannot be opened", extra={"log_id": log_id, "error": str(error)})
                    done.kept_damaged += 1
                    continue
                if size is None and self.logs.is_incomplete:
                    continue  # its directory may have failed before the removal was durable
                if size is None:  # removed just before a crash, or when a disk was full
                    await self.disk.sync_directory(DIRECTORY)
                    await self.index.write((), [key, end_key(log_id)])
                    continue
                live_ratio = 1 - unpack_dead(value) / max(size - HEADER_SIZE, 1)
                if live_ratio < below or fault_point("compaction.anyway"):
                    found.append((live_ratio, log_id, size))
            first = page[-1][0] + b"\0"
        return [(log_id, size) for _, log_id, size in sorted(found)]

    async def _size(self, log_id: int) -> int | None:
        try:
            file = await self.disk.open(log_path(log_id))
        except FileNotFoundError:
            return None
        try:
            return await file.size()
        finally:
            await file.close()

    async def _move_live(self, log_id: int, size: int, end: int) -> int:
        """Copy the live entries, write their new places to the index, and return the number of copied bytes."""
        target: EntryLogWriter | None = None
        is_named = False
        copied = 0
        try:
            async with aclosing(self._live(log_id, size, end)) as pages:
                async for page in pages:
                    async with self._exclusive():
                        if not (live := await self._still_live(page)):
                            continue
                        target = target or await self._create()
                        values = await target.append([(entry.body, entry.crc) for entry in live])
                        await target.sync()
                        is_named = True  # from here on, the index may refer to the target
                        await self._complete(self._write_new_places(target.log_id, target.size, live, values))
                    copied += sum(len(entry.body) for entry in live)
            if target is not None:
                await self._complete(self._finish(target.log_id))
        except DiskFullError:
            if target is not None and not is_named:
                await self.logs.discard(target)  # otherwise failed attempts would fill the disk
            raise
        finally:
            if target is not None:
                await target.file.close()
        return copied

    async def _complete(self, work: Coroutine[Any, Any, None]) -> None:
        """Complete ``work`` even if the run is cancelled."""
        self._completing = guarded("compaction", work)
        await asyncio.shield(self._completing)

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Hold the checkpointer's lock, if the run is cancelled until the write to the index has ended."""
        lock = self.checkpointer.exclusive()
        await lock.acquire()
        try:
            yield
        finally:
            if self._completing is None or self._completing.done():
                lock.release()
            else:
                self._completing.add_done_callback(lambda _: lock.release())

    async def _still_live(self, page: Sequence[_Live]) -> list[_Live]:
        current = await self.index.get_many([entry.key for entry in page])
        return [entry for entry, now in zip(page, current, strict=True) if now == entry.old]

    async def _create(self) -> EntryLogWriter:
        log_id = self.logs.take_id()
        await self.index.write([(dead_key(log_id), pack_dead(_UNFINISHED)), log_end_put(log_id, HEADER_SIZE)])
        return await self.logs.create(log_id)

    async def _live(self, log_id: int, size: int, end: int) -> AsyncGenerator[list[_Live], None]:
        """Yield the entries of a log that are live at this moment, page by page."""
        async with aclosing(self._records(log_id, size, end)) as windows:
            async for records in windows:
                step = 1 if fault_point("compaction.tiny_page") else self.settings.flush_page_entries
                for start in range(0, len(records), step):
                    page = [_live_record(location, body) for location, body in records[start : start + step]]
                    if live := await self._still_live(page):
                        yield live

    async def _records(self, log_id: int, size: int, end: int) -> AsyncGenerator[list[tuple[Location, bytes]], None]:
        """Yield the records of a log, which may be unreadable only after its recorded end, ``end``."""
        try:
            file = await self.disk.open(log_path(log_id))
        except DiskFullError:
            raise
        except FileNotFoundError as error:
            raise _UnreadableLogError("its file has been removed since the run began") from error
        except DiskError as error:
            raise _UnreadableLogError(str(error)) from error
        try:
            header = decode_header(await _read(file, 0, HEADER_SIZE))
            if header is None or header.log_id != log_id:
                raise _DamagedLogError("its header is damaged")
            if not header.is_end_recorded:
                end = size  # the record belongs to an earlier file
            offset = HEADER_SIZE
            while offset < size:
                window = await _read(file, offset, min(_WINDOW_BYTES, size - offset))
                records = decode_records(window)
                if not records:
                    if offset >= end:
                        return
                    raise _DamagedLogError(f"no record at offset {offset}")
                yield [(_moved(location, log_id, offset), body) for location, body in records]
                offset += records[-1][0].offset + records[-1][0].size
                await self.clock.sleep(len(window) / self.settings.compact_bytes_per_s)
            if size < end:
                raise _DamagedLogError(f"its file ends at {size}, before its recorded end {end}")
        finally:
            await file.close()

    async def _write_new_places(
        self, target_id: int, target_end: int, live: Sequence[_Live], values: Sequence[bytes]
    ) -> None:
        """Write the new places of entries, and count their old places as dead. The run holds ``_exclusive``.

        Both happen in one write. So if the process ends before the old log is removed, the next run removes it.
        """
        puts = [(entry.key, value) for entry, value in zip(live, values, strict=True)]
        more = await increased(self.index, dead_bytes(entry.old for entry in live))
        await self.index.write([*puts, *more, log_end_put(target_id, target_end)])

    async def _finish(self, target_id: int) -> None:
        """Record that a target is complete."""
        async with self.checkpointer.exclusive():
            puts = await increased(self.index, {target_id: -_UNFINISHED})
            await self.index.write(puts, [end_key(target_id)])

    async def _remove(self, log_id: int) -> bool:
        """Remove a log to which the index does not refer. Return False if its directory failed and it stays.

        If a directory fails before the removal is durable, the log may return with it. Its records in the index stay,
        so that a later run removes the log.

        Raises:
            _UndeletableLogError: its file cannot be removed.
            DiskError: the removal cannot be made durable.
        """
        before = self.disk.out_of_use_count
        try:
            await self.disk.unlink(log_path(log_id))
        except DirectoryFailedError as error:
            _log.error("entry log not removed", extra={"log_id": log_id, "error": str(error)})
            return False
        except DiskFullError:
            raise
        except DiskError as error:  # for example a damaged inode: the removal of other logs may succeed
            raise _UndeletableLogError(str(error)) from error
        await self.logs.forget(log_id)
        await self.disk.sync_directory(DIRECTORY)
        if self.disk.out_of_use_count == before:
            await self.index.write((), [dead_key(log_id), end_key(log_id)])
        return True


async def _read(file: DiskFile, offset: int, size: int) -> bytes:
    try:
        return (await file.read([(offset, size)]))[0]
    except DiskFullError:
        raise
    except DiskError as error:
        raise _UnreadableLogError(str(error)) from error


def _moved(location: Location, log_id: int, offset: int) -> Location:
    return Location(log_id, offset + location.offset, location.size, location.crc)


def _live_record(location: Location, body: bytes) -> _Live:
    old = pack_location(location.log_id, location.offset, location.size, location.crc)
    return _Live(pack_entry_key(*packet_ids(body)), old, body, location.crc)
