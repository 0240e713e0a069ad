"""A check of RocksDB's manifest and write-ahead logs before RocksDB reads them.

RocksDB 9.8 never finishes opening a database if a record after the first one has a type that occurs only in reused
logs: it reads this record in an endless loop, in which the binding holds the interpreter lock. One flipped bit can turn
the type of an intact record into such a type. The index reuses no logs, so such a type is damage.

A log consists of blocks of ``BLOCK_BYTES``. A block consists of chunks, with zeros at its end if no further chunk fits.
A chunk consists of a masked CRC-32C of the bytes after the length (4 bytes, little-endian), the length of the payload
(2), the type (1), and the payload.

Source: docs/failure-model.md#R117.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

BLOCK_BYTES: Final = 32 << 10

_CHUNK: Final = struct.Struct("<IHB")
_TYPE_OFFSET: Final = 6
_ZERO: Final = 0
_RECYCLED_TYPES: Final = frozenset({5, 6, 7, 8, 11, 13})
"""The types that occur only in reused logs: full, first, middle and last chunks, and two kinds of metadata records."""
_MASK_ADD: Final = 0xA282EAD8


def endless_record_at(blocks: Iterable[bytes]) -> int | None:
    """Return the offset of the first record that RocksDB would read in an endless loop, or None.

    Damage that RocksDB detects is skipped as RocksDB skips it: after a wrong checksum or length, the next block is
    read.

    Args:
        blocks: the content of one log, in pieces of ``BLOCK_BYTES``; the last one may be shorter.
    """
    offset = 0
    for block in blocks:
        at = 0
        while at + _CHUNK.size <= len(block):
            crc, length, kind = _CHUNK.unpack_from(block, at)
            if kind in _RECYCLED_TYPES:
                return offset + at
            end = at + _CHUNK.size + length
            if (kind == _ZERO and not length) or end > len(block) or crc != masked_crc(block[at + _TYPE_OFFSET : end]):
                break
            at = end
        offset += len(block)
    return None


def masked_crc(content: bytes) -> int:
    """Return the checksum of the type and the payload of a chunk, as it is stored."""
    crc = crc32c(content)
    return (((crc >> 15) | (crc << 17)) + _MASK_ADD) & 0xFFFFFFFF
