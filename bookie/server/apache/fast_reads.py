"""Encoding of the successful answer to a version 3 read around the entry, without protobuf.

Protobuf would copy an entry into its message and again into the message's bytes. Here the bytes from the storage are
sent without a copy. The result is identical to protobuf's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from bookie.model.varint import varint
from bookie.wire.apache.framing import LENGTH_SIZE

_VARINT_CACHE_SIZE: Final = 4096
"""Size of the cache for combinations of ledger, size and last add confirmed, which repeat often."""


def success_frames_v3(txn: int, ledger_id: int, entry_id: int, packet: bytes, known_lac: int | None) -> Sequence[bytes]:
    """Return the frame, in pieces, of a successful read of ``packet``, with ``known_lac`` as maxLAC if there is one."""
    header = b"\x08\x03\x10\x01\x18" + varint(txn)
    ids = b"\x08\x00\x10%b\x18%b\x22%b" % (_kept(ledger_id), varint(entry_id), _kept(len(packet)))
    tail = b"" if known_lac is None else b"\x28" + _kept(known_lac)
    part_size = _kept(len(ids) + len(packet) + len(tail))
    head = b"\x0a%c%b\x10\x00\xa2\x06%b%b" % (len(header), header, part_size, ids)
    length = len(head) + len(packet) + len(tail)
    return length.to_bytes(LENGTH_SIZE, "big") + head, packet, tail


_kept = lru_cache(_VARINT_CACHE_SIZE)(varint)
