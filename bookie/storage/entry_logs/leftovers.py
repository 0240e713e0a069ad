"""Entry logs of flushes that were interrupted by a crash.

Entries of such a flush that are already in the index must be kept. The journal may have lost them, if they were never
synced there: a killed process leaves them in the page cache, and a later power loss discards them. A file is therefore
removed only if all of it can be read and the index refers to no entry in it; otherwise it stays until compaction moves
its entries.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookie.model.packet import packet_ids
from bookie.storage.disks.index_format import Location, dead_key, pack_dead, pack_entry_key, unpack_location
from bookie.storage.entry_logs.entry_log import (
    DIRECTORY,
    HEADER_SIZE,
    RECORD_HEADER_SIZE,
    decode_records,
    log_path,
)
from bookie.storage.port import Disk, DiskFile, EntryIndex

_log = logging.getLogger(__name__)

_WINDOW_BYTES: Final = 8 << 20
"""Read at a time; several times the largest entry."""


async def remove_leftovers(disk: Disk, index: EntryIndex, log_ids: Sequence[int]) -> None:
    """Remove each of the logs to which the index does not refer. The store must not write yet.

    In a log that stays, the bytes of the entries to which the index does not refer are counted as dead, so that
    compaction can give the space back. A log that cannot be read to its end stays without a count.

    Raises:
        DiskError: a file or the index cannot be read or written, or a removal cannot be made durable.
    """
    for log_id in log_ids:
        file = await disk.open(log_path(log_id))
        try:
            found = await _contents(file, log_id, index)
        finally:
            await file.close()
        if found is not None and not found.live_entries:
            await disk.unlink(log_path(log_id))
            continue
        _log.warning("entry log of an unfinished flush kept", extra={"log_id": log_id})
        if found is not None:
            await index.write([(dead_key(log_id), pack_dead(found.dead_bytes))])
    if log_ids:
        await disk.sync_directory(DIRECTORY)


@dataclass(slots=True)
class _Contents:
    live_entries: int = 0
    """Entries whose place in the index is in this log."""
    dead_bytes: int = 0


async def _contents(file: DiskFile, log_id: int, index: EntryIndex) -> _Contents | None:
    """Return what a log holds; None if it cannot be read to its end."""
    found = _Contents()
    offset, end = HEADER_SIZE, await file.size()
    while offset < end:
        [window] = await file.read([(offset, _WINDOW_BYTES)])
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
