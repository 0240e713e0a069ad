"""Adds of version 3 as bytes, without protobuf messages: their frames, and the answers after a success.

A writer sends tens of thousands of adds each second that are identical except for three numbers, and nearly every
answer is the same success. Building and parsing a message for each would be most of the transport's work. These bytes
are the ones that protobuf would write (fields in the order of their numbers). An answer of any other bytes is parsed.
"""

from __future__ import annotations

import struct
from typing import Final

from bookie.model.ids import LedgerId
from bookie.model.varint import varint

_LENGTH: Final = struct.Struct(">I")
_ADD_HEADER_PREFIX: Final = b"\x08\x03\x10\x02\x18"
"""The start of a header: version 3, ADD_ENTRY, and the tag of the transaction id."""
_PART: Final = b"\xaa\x06"
"""Tag of the part for adds, in requests and answers (field 101)."""
_RECOVERY: Final = b"\xa0\x06\x01"
"""The flag RECOVERY_ADD (field 100)."""
_STORED: Final = b"\x10\x00" + _PART
"""Status EOK, and the tag after it."""


class AddFrames:
    """Frames of the adds to one ledger."""

    def __init__(self, ledger_id: LedgerId, master_key: bytes, priority: int | None, *, is_recovery: bool) -> None:
        self._ledger = b"\x08" + varint(ledger_id) + b"\x10"
        self._key = b"\x1a" + varint(len(master_key)) + master_key + b"\x22"
        self._priority = b"" if priority is None else b"\x20" + varint(priority)
        self._flag = _RECOVERY if is_recovery else b""
        self._answered = b"\x08\x00\x10" + varint(ledger_id) + b"\x18"

    def around(self, txn_id: int, entry_id: int, size: int) -> tuple[bytes, bytes, bytes]:
        """Return the bytes before and after an entry of ``size`` bytes, and the body of the answer after a success."""
        header, entry = _ADD_HEADER_PREFIX + varint(txn_id), varint(entry_id)
        before = self._ledger + entry + self._key + varint(size)
        rest_bytes = size + len(self._flag)
        asked = b"".join(
            (
                b"\x0a",
                bytes((len(header) + len(self._priority),)),
                header,
                self._priority,
                _PART,
                varint(len(before) + rest_bytes),
                before,
            )
        )
        told = self._answered + entry
        stored = b"".join((b"\x0a", bytes((len(header),)), header, _STORED, bytes((len(told),)), told))
        return _LENGTH.pack(len(asked) + rest_bytes) + asked, self._flag, stored
