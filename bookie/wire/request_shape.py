"""The shape of a request: counts, sizes, ids and order. Pure.

Our bookies check it when a request arrives. A client checks it before it sends a request to one of Apache's bookies,
which check less than ``bookie.wire.port.Transport`` promises. Each function returns the problem, or None.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import lt
from typing import Final

from bookie.model.digest import DIGEST_KEY_SIZE
from bookie.model.ids import LEDGER_ID_MAX, NO_ENTRY, EntryId, InvalidIdError, LedgerId, bookie_id
from bookie.model.metadata import DigestType
from bookie.model.packet import HEADER_SIZE
from bookie.wire.port import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, JOINT_LEDGERS_MAX, READ_ENTRIES_MAX, AddBatch
from bookie.wire.requests import Copy

_IDS: Final = struct.Struct(">qq")
"""Ledger and entry at the start of an entry; ledger and last add confirmed at the start of a LAC."""
_LAC_PACKET_BYTES_MAX: Final = _IDS.size + 20
"""Size with the longest digest."""
_MASTER_KEY_BYTES_MAX: Final = 4096


def batch_size_problem(batch: AddBatch, size_bytes: int) -> str | None:
    """Return what is wrong with the count and the sizes of a batch of ``size_bytes`` bytes of entries."""
    count = len(batch.entries)
    if not 0 < count <= BATCH_ENTRIES_MAX:
        return f"a batch of {count} entries, 1 to {BATCH_ENTRIES_MAX} are allowed"
    if size_bytes - max(map(len, batch.entries)) > BATCH_BYTES_MAX:
        return f"a batch of {size_bytes} bytes, at most {BATCH_BYTES_MAX} and one entry are allowed"
    return None


def batch_ids_problem(batch: AddBatch) -> str | None:
    """Return what is wrong with a batch's ledger id, its master key or the ids in its entries' headers."""
    if (problem := ledger_problem(batch.ledger_id, batch.master_key)) is not None:
        return problem
    if (shortest := min(map(len, batch.entries), default=HEADER_SIZE)) < HEADER_SIZE:
        return f"entry of {shortest} bytes, shorter than its header"
    for ledger_id, entry_id in map(_IDS.unpack_from, batch.entries):
        if ledger_id != batch.ledger_id or entry_id < 0:
            return f"entry {entry_id} of ledger {ledger_id} in a batch for ledger {batch.ledger_id}"
    return None


def ledgers_problem(ledger_ids: Sequence[LedgerId]) -> str | None:
    """Return what is wrong with the ledgers of a joint request; each ledger's id is checked separately."""
    if not 0 < len(ledger_ids) <= JOINT_LEDGERS_MAX:
        return f"{len(ledger_ids)} ledgers, 1 to {JOINT_LEDGERS_MAX} are allowed"
    return None if len(set(ledger_ids)) == len(ledger_ids) else "a ledger is named twice"


def ledger_problem(ledger_id: LedgerId, master_key: bytes = b"") -> str | None:
    """Return what is wrong with a ledger id or a master key."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        return f"not a ledger id: {ledger_id}"
    if len(master_key) > _MASTER_KEY_BYTES_MAX:
        return f"a master key of {len(master_key)} bytes, at most {_MASTER_KEY_BYTES_MAX} are allowed"
    return None


def entry_ids_problem(entry_ids: Sequence[EntryId]) -> str | None:
    """Return what is wrong with the list of entries of a read."""
    if not 0 < len(entry_ids) <= READ_ENTRIES_MAX:
        return f"a read of {len(entry_ids)} entries, 1 to {READ_ENTRIES_MAX} are allowed"
    if entry_ids[0] < 0 or entry_ids[-1] > LEDGER_ID_MAX or not all(map(lt, entry_ids, entry_ids[1:])):
        return "entry ids must ascend from 0 on, without repetition"
    return None


def copy_problem(copy: Copy) -> str | None:
    """Return what is wrong with a request to copy entries."""
    if len(copy.entry_ids) > BATCH_ENTRIES_MAX:
        return f"a copy of {len(copy.entry_ids)} entries, 1 to {BATCH_ENTRIES_MAX} are allowed"
    if copy.digest_type is DigestType.DUMMY:
        return "entries without a digest, or with one that is not known here, cannot be verified"
    if len(copy.digest_key) != (DIGEST_KEY_SIZE if copy.digest_type is DigestType.HMAC else 0):
        return f"a key of {len(copy.digest_key)} bytes for a {copy.digest_type.name} digest"
    try:
        bookie_id(copy.source)
    except InvalidIdError as error:
        return str(error)
    if not copy.source.strip("."):  # it becomes a part of a path
        return f"no bookie has the id {copy.source}"
    return ledger_problem(copy.ledger_id, copy.master_key) or entry_ids_problem(copy.entry_ids)


def beyond_problem(beyond: EntryId) -> str | None:
    """Return what is wrong with the ``beyond`` of a long poll."""
    return None if beyond >= NO_ENTRY else f"not a last add confirmed: {beyond}"


def explicit_lac(ledger_id: LedgerId, packet: bytes) -> int | str:
    """Return the last add confirmed in an explicit LAC packet, unverified; or what is wrong with the packet."""
    if not _IDS.size <= len(packet) <= _LAC_PACKET_BYTES_MAX:
        return f"explicit LAC of {len(packet)} bytes, allowed are {_IDS.size} to {_LAC_PACKET_BYTES_MAX}"
    found_ledger, lac = _IDS.unpack_from(packet)
    if found_ledger != ledger_id:
        return f"explicit LAC of ledger {found_ledger}, sent to ledger {ledger_id}"
    return int(lac) if lac >= 0 else f"not an entry id: {lac}"
