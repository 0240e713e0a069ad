"""The recorded ends of entry logs that end before their files do.

Bytes after a recorded end were never part of the store. A power loss can cut off a log or leave junk after its last
synced entry, and a full disk leaves a part of a page. The bytes of such a log look like those of a damaged one. So the
index has a record of the end of each log that is being written. The invariant: the index refers to nothing after the
recorded end, because the end is written in the same atomic write as each entry's place. Everything before the end was
synced before this write; if a part of it cannot be read, the log is damaged.

A log has a record from before its creation until it is complete, or permanently if a full disk ended it early. A record
that is not counted yet when a bookie starts belongs to a log of a flush or compaction that a crash interrupted.

A record can belong to an earlier file with the same id. Releases without these records do not change them, and reuse an
id if its file was never created or was removed. Such a record makes a complete log look cut off, so it must not decide
which logs are removed:

- this release gives no log an id for which the index already has a record (``last_recorded_log_id``), so a new log has
  a record of its own;
- the header of each log shows whether its end was recorded. The record of a log without this flag is ignored;
- readable entries after a recorded end are looked up in the index, before the log is removed. If the index refers to an
  entry there, the record is ignored.

Source: docs/failure-model.md#collection-and-checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bookie.storage.disks.index_format import LogEnd, dead_range, end_key, end_range, log_id_of_dead, log_id_of_end
from bookie.storage.port import EntryIndex

_PAGE_KEYS: Final = 10_000

Put = tuple[bytes, bytes]


def log_end_put(log_id: int, offset: int, *, is_counted: bool = False) -> Put:
    """Return the index record of a log's end."""
    return end_key(log_id), LogEnd(offset, is_counted).encode()


async def read_log_end(index: EntryIndex, log_id: int) -> LogEnd | None:
    """Return the recorded end of a log, or None if the log ends where its file ends.

    Raises:
        DiskError: the index cannot be read.
    """
    [value] = await index.get_many([end_key(log_id)])
    return None if value is None else LogEnd.decode(value)


async def uncounted(index: EntryIndex) -> list[int]:
    """Return the ids of the logs whose end is recorded but not counted, ascending.

    Raises:
        DiskError: the index cannot be read.
    """
    found: list[int] = []
    first, end = end_range()
    while page := await index.range(first, end, _PAGE_KEYS):
        found += [log_id_of_end(key) for key, value in page if not LogEnd.decode(value).is_counted]
        first = page[-1][0] + b"\0"
    return found


async def last_recorded_log_id(index: EntryIndex) -> int:
    """Return the greatest log id for which the index has an end or a number of dead bytes; 0 if there is none.

    Raises:
        DiskError: the index cannot be read.
    """
    ended, dead = await index.last(*end_range()), await index.last(*dead_range())
    return max(0 if ended is None else log_id_of_end(ended[0]), 0 if dead is None else log_id_of_dead(dead[0]))


def end_keys(log_ids: Sequence[int]) -> list[bytes]:
    """Return the keys of the ends of logs, for their deletion."""
    return [end_key(log_id) for log_id in log_ids]
