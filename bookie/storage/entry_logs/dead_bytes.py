"""The number of dead bytes of each entry log: bytes of entries that were collected or stored again elsewhere.

Compaction chooses logs by these numbers, so the space of uncounted bytes is never freed. The invariant: a number
changes in the same atomic index write as the change that makes the bytes dead, under the checkpointer's lock. A crash
therefore leaves both or neither.

Source: docs/failure-model.md#collection-and-checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from bookie.storage.disks.index_format import (
    dead_key,
    ledger_of_entry_key,
    pack_dead,
    unpack_dead,
    unpack_location,
)
from bookie.storage.entry_logs.entry_log import RECORD_HEADER_SIZE
from bookie.storage.port import EntryIndex

_LEDGERS_PROBED_MAX: Final = 32
"""For batches with at most this many ledgers, checking once per ledger whether any of its entries is in the index is
cheaper than looking up each entry."""


async def increased(index: EntryIndex, dead: Mapping[int, int]) -> list[tuple[bytes, bytes]]:
    """Return the index records that increase the numbers of dead bytes.

    Args:
        index: the index.
        dead: the bytes to add, by log id; negative to subtract. A number never falls below 0.

    Raises:
        DiskError: the index cannot be read.
    """
    keys = [dead_key(log_id) for log_id in dead]
    before = [unpack_dead(value) for value in await index.get_many(keys)]
    return [(key, pack_dead(max(old + new, 0))) for key, old, new in zip(keys, before, dead.values(), strict=True)]


async def superseded(index: EntryIndex, puts: Sequence[tuple[bytes, bytes]]) -> dict[int, int]:
    """Return the number of bytes, by log id, that become dead when new places of entries are written to the index.

    Args:
        index: the index before the write.
        puts: the keys of entries, ascending, and their new places.

    Raises:
        DiskError: the index cannot be read.
    """
    by_ledger = [[key for key, _ in pairs] for _, pairs in groupby(puts, lambda put: ledger_of_entry_key(put[0]))]
    if len(by_ledger) <= _LEDGERS_PROBED_MAX:
        by_ledger = [keys for keys in by_ledger if await index.keys(keys[0], keys[-1] + b"\0", 1)]
    return dead_bytes(await index.get_many([key for keys in by_ledger for key in keys]))


def dead_bytes(places: Iterable[bytes | None]) -> dict[int, int]:
    """Return the number of bytes of the entries at these places, by log id, including the record headers."""
    dead: dict[int, int] = {}
    for value in places:
        if value is not None:
            location = unpack_location(value)
            dead[location.log_id] = dead.get(location.log_id, 0) + location.size + RECORD_HEADER_SIZE
    return dead
