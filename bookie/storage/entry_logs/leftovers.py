"""The treatment of entry logs of flushes that a crash interrupted.

Entries of such a flush must be kept if they are already in the index. The journal may have lost them if they were never
synced there: a killed process leaves them in the page cache, and a later power loss discards them. A file is therefore
removed only if it can be read completely, up to its end, and the index refers to no entry in it. Otherwise it stays
until compaction moves its entries. The end is recorded in the index (``bookie.storage.entry_logs.log_ends``); the index
never referred to bytes that a power loss left after it. A log of a release without recorded ends must be readable to
the end of its file.

If the index locates an entry in a log that does not exist, its place is corrected to the leftover log that contains it.
The index has then lost writes, because compaction removes a log only after it has written the new places of its
entries.

The record of the end can belong to an earlier file with the same id, after a downgrade. So the record decides only
which part of a log may be unreadable. It never decides which entries are in the index: the whole log is read, including
the part after the end, and each entry is looked up. A record is deleted if the log's header shows that the end of this
file was not recorded, or if the index refers to an entry after it. A log with a damaged header is kept, because its
record may belong to it or to an earlier file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from bookie.model.packet import packet_ids
from bookie.storage.disks.index_format import (
    Location,
    dead_key,
    end_key,
    pack_dead,
    pack_entry_key,
    pack_location,
    unpack_location,
)
from bookie.storage.entry_logs.entry_log import (
    DIRECTORY,
    HEADER_SIZE,
    RECORD_HEADER_SIZE,
    decode_header,
    decode_records,
    log_path,
)
from bookie.storage.entry_logs.entry_log import log_ids as entry_log_ids
from bookie.storage.entry_logs.log_ends import log_end_put, read_log_end, uncounted
from bookie.storage.port import DirectoryFailedError, Disk, DiskError, DiskFile, DiskFullError, EntryIndex

_log = logging.getLogger(__name__)

_WINDOW_BYTES: Final = 8 << 20
"""Bytes read at a time: several times the size of the largest entry."""


async def remove_leftovers(disk: Disk, index: EntryIndex, log_ids: Sequence[int]) -> None:
    """Remove leftover logs to which the index does not refer. The store must not write yet.

    Leftover logs are the given ones and those whose end is recorded but not counted.

    In a log that stays, the bytes of the entries to which the index does not refer are counted as dead, so compaction
    can free the space. In a log that cannot be read to its end, nothing is counted.

    If a directory fails before the removals are durable, the records of the logs stay for a later start.

    Raises:
        DiskFullError: no more files may be opened.
        DiskError: the index cannot be read or written, or a removal cannot be made durable.
    """
    removed: list[int] = []
    before = disk.out_of_use_count
    leftovers = sorted({*log_ids, *await uncounted(index)})
    present = frozenset(await entry_log_ids(disk)) if leftovers else frozenset()

    def is_gone(log_id: int) -> bool:
        return log_id not in present and not disk.is_out_of_use(log_path(log_id))

    for log_id in leftovers:
        if disk.is_out_of_use(log_path(log_id)):
            continue  # keep its records for a later start with its directory
        end = await read_log_end(index, log_id)
        try:
            with _file_errors():
                file = await disk.open(log_path(log_id))
            try:
                found = await _read_contents(file, log_id, index, None if end is None else end.offset, is_gone)
            finally:
                await file.close()
        except FileNotFoundError:
            removed.append(log_id)  # the crash was before its creation or after its removal
            continue
        except _FileError as error:  # its records stay for the next start
            _log.error("entry log of an unfinished flush kept", extra={"log_id": log_id, "error": str(error)})
            continue
        if found.is_readable and not found.live_end:
            try:
                with _file_errors(), suppress(DirectoryFailedError):
                    await disk.unlink(log_path(log_id))
                    removed.append(log_id)
            except _FileError as error:  # for example a damaged inode; its records stay for the next start
                _log.error("entry log not removed", extra={"log_id": log_id, "error": str(error)})
            continue
        _log.warning("entry log of an unfinished flush kept", extra={"log_id": log_id})
        puts = [(dead_key(log_id), pack_dead(found.dead_bytes))] if found.is_readable else []
        if end is not None and found.is_readable and found.is_end_right:
            puts.append(log_end_put(log_id, end.offset, is_counted=True))
        await index.write(puts, () if found.is_end_right else [end_key(log_id)])
    if removed:
        await disk.sync_directory(DIRECTORY)
    if removed and disk.out_of_use_count == before:
        await index.write((), [key for log_id in removed for key in (dead_key(log_id), end_key(log_id))])


class _FileError(Exception):
    """The device cannot read or remove a log. Not raised outside this module."""


@contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except DiskFullError:
        raise
    except DiskError as error:
        raise _FileError(str(error)) from error


@dataclass(slots=True)
class _Contents:
    """The content of a log.

    Attributes:
        is_readable: whether it can be read to its end.
        is_end_right: whether its recorded end belongs to this file, as far as is known.
        live_end: the end of the last entry to which the index refers; 0 if there is none.
    """

    is_readable: bool = True
    is_end_right: bool = True
    live_end: int = 0
    dead_bytes: int = 0


async def _read_contents(
    file: DiskFile, log_id: int, index: EntryIndex, recorded_end: int | None, is_gone: Callable[[int], bool]
) -> _Contents:
    """Read the readable part of a log. Unreadable bytes after its recorded end are dead.

    Raises:
        _FileError: the device reports an error.
        DiskError: the index cannot be read or written.
    """
    found = _Contents()
    with _file_errors():
        offset, size = HEADER_SIZE, await file.size()
    end = size if recorded_end is None else recorded_end
    if recorded_end is not None and size > HEADER_SIZE:
        with _file_errors():
            [data] = await file.read([(0, HEADER_SIZE)])
        header = decode_header(data)
        if header is None or header.log_id != log_id:
            found.is_readable = False
            return found
        if not header.is_end_recorded:
            found.is_end_right, end = False, size
    while offset < size:
        with _file_errors():
            [window] = await file.read([(offset, min(_WINDOW_BYTES, size - offset))])
        records = decode_records(window)
        if not records:
            break
        await _count(found, records, log_id, offset, index, is_gone)
        last = records[-1][0]
        offset += last.offset + last.size
    if found.live_end > end:
        found.is_end_right, end = False, size
    found.is_readable = offset >= end
    found.dead_bytes += max(size - offset, 0)
    return found


async def _count(
    found: _Contents,
    records: list[tuple[Location, bytes]],
    log_id: int,
    offset: int,
    index: EntryIndex,
    is_gone: Callable[[int], bool],
) -> None:
    keys = [pack_entry_key(*packet_ids(body)) for _, body in records]
    puts = []
    for key, (location, _), value in zip(keys, records, await index.get_many(keys), strict=True):
        here = Location(log_id, offset + location.offset, location.size, location.crc)
        named = None if value is None else unpack_location(value)
        if named is not None and is_gone(named.log_id):
            puts.append((key, pack_location(here.log_id, here.offset, here.size, here.crc)))
            named = here
        if named is not None and (named.log_id, named.offset) == (log_id, here.offset):
            found.live_end = named.offset + location.size
        else:
            found.dead_bytes += location.size + RECORD_HEADER_SIZE
    if puts:
        extra = {"log_id": log_id, "entries": len(puts)}
        _log.error("the index lost the places of entries that are in an unfinished entry log", extra=extra)
        await index.write(puts)
