"""An entry in its sent and stored form: 32-byte header, digest, payload.

Bookies, repairs and recoveries pass these bytes on unchanged (safety rule S10); only a writer creates them.

Source: docs/formats.md#entries, #lac-packets, #verification.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from bookie.model.digest import Digest
from bookie.model.ids import EntryId, LedgerId

HEADER_SIZE: Final = 32
ENTRY_PAYLOAD_MAX: Final = 1 << 20
"""Largest payload accepted by a writer, in bytes."""
PACKET_BYTES_MAX: Final = 5_300_000
"""Largest stored entry accepted by our bookies, in bytes. Also the largest entry read and copied, unless longer frames
are allowed (``BookieSecurity.frame_bytes_max``). Apache's writers create larger entries than ours, up to the size of a
frame: 5 MiB by default, 5 MiB and 10 KiB under Pulsar."""

_HEADER: Final = struct.Struct(">qqqq")
_IDS: Final = struct.Struct(">qq")


@dataclass(frozen=True, slots=True)
class Entry:
    """A decoded entry. ``length`` is the ledger's payload bytes up to and including this entry."""

    ledger_id: LedgerId
    entry_id: EntryId
    last_add_confirmed: EntryId
    length: int
    payload: bytes


class DamagedEntry(ValueError):  # noqa: N818 (a finding about stored bytes, not one of the error families)
    """Bytes that are not the expected entry. Callers report them as corrupt, never as absent (S6)."""


def pack(
    digest: Digest, ledger_id: LedgerId, entry_id: EntryId, last_add_confirmed: int, length: int, payload: bytes
) -> bytes:
    """Return the stored form of an entry."""
    header = _HEADER.pack(ledger_id, entry_id, last_add_confirmed, length)
    return b"".join((header, digest.compute(header, payload), payload))


def unpack(digest: Digest, packet: bytes, ledger_id: LedgerId, entry_id: EntryId | None) -> Entry:
    """Decode and verify a stored entry.

    Args:
        digest: the ledger's digest.
        packet: bytes as returned by a bookie.
        ledger_id: the requested ledger.
        entry_id: the requested entry, or None for "last entry" reads.

    Raises:
        DamagedEntry: too short, digest mismatch, or another ledger or entry than requested.
    """
    if (found := _damage(digest, packet, ledger_id, entry_id)) is not None:
        raise DamagedEntry(found)
    _, found_entry, last_add_confirmed, length = _HEADER.unpack_from(packet)
    payload = packet[HEADER_SIZE + digest.size :]
    return Entry(ledger_id, EntryId(found_entry), EntryId(last_add_confirmed), length, payload)


def damage_of(digest: Digest, packet: bytes, ledger_id: LedgerId, entry_id: EntryId) -> str | None:
    """Return the damage of an entry's stored bytes; None if they may be copied (S10)."""
    body_start, size = HEADER_SIZE + digest.size, len(packet)
    if size >= body_start:  # a quick check that nearly every entry passes
        header, ids = packet[:HEADER_SIZE], _HEADER.unpack_from(packet)
        is_it = ids[0] == ledger_id and ids[1] == entry_id and ids[3] >= size - body_start
        if is_it and digest.compute(header, memoryview(packet)[body_start:]) == packet[HEADER_SIZE:body_start]:
            return None
    if (found := _damage(digest, packet, ledger_id, entry_id)) is not None:
        return found
    payload_bytes, ledger_bytes = len(packet) - HEADER_SIZE - digest.size, _HEADER.unpack_from(packet)[3]
    if ledger_bytes < payload_bytes:
        return f"ledger length {ledger_bytes} in the header is below the payload's {payload_bytes} bytes"
    return None


def _damage(digest: Digest, packet: bytes, ledger_id: LedgerId, entry_id: EntryId | None) -> str | None:
    body_start = HEADER_SIZE + digest.size
    if len(packet) < body_start:
        return f"entry of {len(packet)} bytes, shorter than its header and digest"
    if digest.compute(packet[:HEADER_SIZE], memoryview(packet)[body_start:]) != packet[HEADER_SIZE:body_start]:
        return f"{digest.type.name} digest mismatch"
    found_ledger, found_entry, _, _ = _HEADER.unpack_from(packet)
    if found_ledger != ledger_id or (entry_id is not None and found_entry != entry_id):
        return f"holds ledger {found_ledger} entry {found_entry}, asked for {ledger_id}/{entry_id}"
    return None


def packet_ids(packet: bytes) -> tuple[LedgerId, EntryId]:
    """Return the ledger id and the entry id in the header of a stored entry.

    Raises:
        DamagedEntry: shorter than a header.
    """
    if len(packet) < HEADER_SIZE:
        raise DamagedEntry(f"entry of {len(packet)} bytes, shorter than its header")
    ledger, entry = _IDS.unpack_from(packet)
    return LedgerId(ledger), EntryId(entry)


def header_of(packet: bytes) -> tuple[EntryId, int]:
    """Return the last add confirmed and the ledger's length in the header of a stored entry, unverified.

    Raises:
        DamagedEntry: shorter than a header.
    """
    if len(packet) < HEADER_SIZE:
        raise DamagedEntry(f"entry of {len(packet)} bytes, shorter than its header")
    _, _, last_add_confirmed, length = _HEADER.unpack_from(packet)
    return EntryId(last_add_confirmed), length


def pack_lac(digest: Digest, ledger_id: LedgerId, last_add_confirmed: int) -> bytes:
    """Return an explicit-LAC packet: two ids and a digest over them."""
    ids = _IDS.pack(ledger_id, last_add_confirmed)
    return ids + digest.compute(ids, b"")


def unpack_lac(digest: Digest, packet: bytes, ledger_id: LedgerId) -> EntryId:
    """Verify an explicit-LAC packet and return its last add confirmed.

    Raises:
        DamagedEntry: too short, digest mismatch, or another ledger.
    """
    if len(packet) < _IDS.size + digest.size:
        raise DamagedEntry(f"LAC packet of {len(packet)} bytes is too short")
    ids = packet[: _IDS.size]
    if digest.compute(ids, b"") != packet[_IDS.size : _IDS.size + digest.size]:
        raise DamagedEntry(f"{digest.type.name} digest mismatch in LAC packet")
    found_ledger, last_add_confirmed = _IDS.unpack(ids)
    if found_ledger != ledger_id:
        raise DamagedEntry(f"LAC packet of ledger {found_ledger}, asked for {ledger_id}")
    return EntryId(last_add_confirmed)
