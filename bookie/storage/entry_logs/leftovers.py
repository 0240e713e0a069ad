"""Entry logs of flushes that were interrupted by a crash.

Entries of such a flush that are already in the index must be kept. The journal may have lost them, if they were never
synced there: a killed process leaves them in the page cache, and a later power loss discards them. A file is therefore
removed only if all of it can be read up to its end and the index refers to no entry in it; otherwise it stays until
compaction moves its entries. The end is recorded in the index (``bookie.storage.entry_logs.log_ends``): what a power
loss left behind it was never in the index. A log of a release that recorded no end must be readable to the end of its
file.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookie.model.packet import packet_ids
from bookie.storage.disks.index_format import (
    Location,
    dead_key,
    end_key,
    pack_dead,
    pack_entry_key,
    unpack_location,
)
from bookie.storage.entry_logs.entry_log import (
    DIRECTORY,
    HEADER_SIZE,
    RECORD_HEADER_SIZE,
    decode_records,
    log_path,
)
from bookie.storage.entry_logs.log_ends import end_of, ends_at, uncounted
from bookie.storage.port import Disk, DiskFile, EntryIndex

_log = logging.getLogger(__name__)

_WINDOW_BYTES: Final = 8 << 20
"""Read at a time; several times the largest entry."""


async def remove_leftovers(disk: Disk, index: EntryIndex, log_ids: Sequence[int]) -> None:
    """Remove each of the logs to which the index does not refer. The store must not write yet.

    This concerns the given logs and those whose end is recorded and not counted.

    In a log that stays, the bytes of the entries to which the index does not refer are counted as dead, so that
    compaction can give the space back. A log that cannot be read to its end stays without a count.

    Raises:
        DiskError: a file or the index cannot be read or written, or a removal cannot be made durable.
    """
    removed: list[int] = []
    for log_id in sorted({*log_ids, *await uncounted(index)}):
        end = await end_of(index, log_id)
        try:
            file = await disk.open(log_path(log_id))
        except FileNotFoundError:
            removed.append(log_id)  # before it was created, or after it was removed
            continue
        try:
            found = await _contents(file, log_id, index, None if end is None else end.offset)
        finally:
            await file.close()
        if found is not None and not found.live_entries:
            await disk.unlink(log_path(log_id))
            removed.append(log_id)
            continue
        _log.warning("entry log of an unfinished flush kept", extra={"log_id": log_id})
        if found is not None:
            ends = [] if end is None else [ends_at(log_id, end.offset, is_counted=True)]
            await index.write([(dead_key(log_id), pack_dead(found.dead_bytes)), *ends])
    if removed:
        await disk.sync_directory(DIRECTORY)
        await index.write((), [key for log_id in removed for key in (dead_key(log_id), end_key(log_id))])


@dataclass(slots=True)
class _Contents:
    live_entries: int = 0
    """Entries whose place in the index is in this log."""
    dead_bytes: int = 0


async def _contents(file: DiskFile, log_id: int, index: EntryIndex, recorded_end: int | None) -> _Contents | None:
    """Return what a log holds; None if it cannot be read to its end. What is behind a recorded end is dead."""
    size = await file.size()
    offset, end = HEADER_SIZE, size if recorded_end is None else recorded_end
    found = _Contents(dead_bytes=max(size - end, 0))
    while offset < end:
        [window] = await file.read([(offset, min(_WINDOW_BYTES, end - offset))])
        records = decode_records(window)
        if not records:
            return None
        await _count(found, records, log_id, offset, index)
        last = records[-1][0]
        offset += last.offset + last.size
    return found


async def _count(
    found: _Contents, records: list[tuple[Location, bytes]], log_id: int, offset: int, index: EntryIndex
) -> None:
    values = await index.get_many([pack_entry_key(*packet_ids(body)) for _, body in records])
    for (location, _), value in zip(records, values, strict=True):
        named = None if value is None else unpack_location(value)
        if named is not None and (named.log_id, named.offset) == (log_id, offset + location.offset):
            found.live_entries += 1
        else:
            found.dead_bytes += location.size + RECORD_HEADER_SIZE
