"""The shape that a request must have, before anything looks into it: counts, sizes, order."""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt

from bookie.model.ids import EntryId
from bookie.wire.port import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, READ_ENTRIES_MAX, AddBatch, Status


def check_batch(batch: AddBatch, size: int) -> tuple[Status, str] | None:
    """Why a batch of ``size`` bytes of entries is refused, None if its shape is right."""
    count = len(batch.entries)
    if not 0 < count <= BATCH_ENTRIES_MAX:
        return Status.BAD_REQUEST, f"a batch of {count} entries, 1 to {BATCH_ENTRIES_MAX} are allowed"
    if size - max(map(len, batch.entries)) > BATCH_BYTES_MAX:
        return Status.BAD_REQUEST, f"a batch of {size} bytes, at most {BATCH_BYTES_MAX} and one entry are allowed"
    return None


def check_entry_ids(entry_ids: Sequence[EntryId]) -> tuple[Status, str] | None:
    """Why a read of these entries is refused, None if their list is right."""
    if not 0 < len(entry_ids) <= READ_ENTRIES_MAX:
        return Status.BAD_REQUEST, f"a read of {len(entry_ids)} entries, 1 to {READ_ENTRIES_MAX} are allowed"
    if entry_ids[0] < 0 or not all(map(lt, entry_ids, entry_ids[1:])):
        return Status.BAD_REQUEST, "entry ids must ascend from 0 on, without repetition"
    return None
