"""The stored forms of single entries."""

from __future__ import annotations

import struct
from typing import Final

from bookie.model.digest import digest_for
from bookie.model.ids import NO_ENTRY, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import pack

DIGEST: Final = digest_for(DigestType.CRC32C, b"")
_HEADER: Final = struct.Struct(">qqqq")


def raw_entry(
    ledger_id: int, entry_id: int, payload: bytes = b"payload", *, last_add_confirmed: int | None = None
) -> bytes:
    """Return an entry with a header but no digest, for tests of the storage, which reads only the ids.

    The last add confirmed is the entry before, unless it is given.
    """
    confirmed = entry_id - 1 if last_add_confirmed is None else last_add_confirmed
    return _HEADER.pack(ledger_id, entry_id, confirmed, 0) + payload


def packed_entry(
    ledger_id: int, entry_id: int, payload: bytes = b"payload", *, last_add_confirmed: int = NO_ENTRY
) -> bytes:
    """Return an entry of a ledger with CRC32C and an empty password, as its writer packs it."""
    return pack(DIGEST, LedgerId(ledger_id), EntryId(entry_id), last_add_confirmed, len(payload), payload)


def numbered_payload(ledger_id: int, entry_id: int, times: int) -> bytes:
    """Return a payload that names its ledger and entry this many times."""
    return f"{ledger_id}/{entry_id} ".encode() * times
