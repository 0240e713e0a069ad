"""Entry logs of flushes that were interrupted by a crash.

Entries of such a flush that are already in the index must be kept. The journal may have lost them, if they were never
synced there: a killed process leaves them in the page cache, and a later power loss discards them. A file is therefore
removed only if all of it can be read and the index refers to no entry in it; otherwise it stays, at the cost of its
space.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from bookie.model.packet import packet_ids
from bookie.storage.disks.index_format import Location, pack_entry_key, unpack_location
from bookie.storage.entry_logs.entry_log import (
    DIRECTORY,
    HEADER_SIZE,
    decode_records,
    log_path,
)
from bookie.storage.port import Disk, DiskFile, EntryIndex

_log = logging.getLogger(__name__)

_WINDOW_BYTES: Final = 8 << 20
"""Read at a time; several times the largest entry."""


async def remove_leftovers(disk: Disk, index: EntryIndex, log_ids: Sequence[int]) -> None:
    """Remove each of the logs to which the index does not refer. The store must not write yet.

    Raises:
        DiskError: a file or the index cannot be read, or a removal cannot be made durable.
    """
    for log_id in log_ids:
        file = await disk.open(log_path(log_id))
        try:
            is_needed = await _may_be_named(file, log_id, index)
        finally:
            await file.close()
        if is_needed:
            _log.warning("entry log of an unfinished flush kept", extra={"log_id": log_id})
        else:
            await disk.unlink(log_path(log_id))
    if log_ids:
        await disk.sync_directory(DIRECTORY)


async def _may_be_named(file: DiskFile, log_id: int, index: EntryIndex) -> bool:
    offset, end = HEADER_SIZE, await file.size()
    while offset < end:
        [window] = await file.read([(offset, _WINDOW_BYTES)])
        records = decode_records(window)
        if not records or await _are_named(records, log_id, offset, index):
            return True
        last = records[-1][0]
        offset += last.offset + last.size
    return False


async def _are_named(records: list[tuple[Location, bytes]], log_id: int, offset: int, index: EntryIndex) -> bool:
    places = [(log_id, offset + location.offset) for location, _ in records]
    values = await index.get_many([pack_entry_key(*packet_ids(body)) for _, body in records])
    found = (None if value is None else unpack_location(value) for value in values)
    return any(
        location is not None and (location.log_id, location.offset) == place
        for location, place in zip(found, places, strict=True)
    )
