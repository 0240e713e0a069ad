"""The checks of an add request: its sizes, and the ids in the entries' own headers."""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from bookie.model.ids import LEDGER_ID_MAX, EntryId
from bookie.model.packet import HEADER_SIZE, PACKET_BYTES_MAX
from bookie.storage.write_cache import CachedEntry
from bookie.wire.port import AddBatch

ENTRY_BYTES_MAX: Final = PACKET_BYTES_MAX
ADD_BYTES_MAX: Final = 8 << 20
"""Largest request, in bytes; a client's batch stays below a third of this."""
MASTER_KEY_BYTES_MAX: Final = 1 << 10
"""Longest master key, in bytes. Our keys have 20; the bound keeps journal batches and ledger states small."""

_IDS: Final = struct.Struct(">qq")


def check_add(batch: AddBatch) -> dict[EntryId, CachedEntry] | str:
    """Return the entries of a batch by id, with their checksums, or a description of the batch's problem.

    If an id occurs twice, the later entry replaces the earlier one.
    """
    if (problem := check_ledger(batch.ledger_id, batch.master_key)) is not None:
        return problem
    if not batch.entries:
        return "no entries"
    entries: dict[EntryId, CachedEntry] = {}
    ids_of, ledger_id, size = _IDS.unpack_from, batch.ledger_id, 0
    for data in batch.entries:
        if not HEADER_SIZE <= len(data) <= ENTRY_BYTES_MAX:
            return f"entry of {len(data)} bytes, allowed are {HEADER_SIZE} to {ENTRY_BYTES_MAX}"
        found_ledger, entry_id = ids_of(data)
        if found_ledger != ledger_id or entry_id < 0:
            return f"the header of the entry names {found_ledger}/{entry_id}, in an add to ledger {ledger_id}"
        entries[entry_id] = CachedEntry(data, crc32c(data))
        size += len(data)
    return entries if size <= ADD_BYTES_MAX else f"{size} bytes in one add, allowed are {ADD_BYTES_MAX}"


def check_ledger(ledger_id: int, master_key: bytes = b"") -> str | None:
    """Return a description of the problem with a ledger id or master key, or None if both are valid."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        return f"not a ledger id: {ledger_id}"
    if len(master_key) > MASTER_KEY_BYTES_MAX:
        return f"master key of {len(master_key)} bytes, allowed are {MASTER_KEY_BYTES_MAX}"
    return None
