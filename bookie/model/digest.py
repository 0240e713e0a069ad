"""Entry digests and ledger keys, exactly as Apache BookKeeper computes them (docs/formats.md#entries, #master-key).

A digest covers the header (for a LAC packet, the two ids) and the payload, never itself. Bookies do not verify the
digests of the wire format; clients, repairs and the replica check do.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from bookie.model.metadata import DigestType

_I32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")
DIGEST_KEY_SIZE: Final = 20
"""Bytes of the key of an HMAC digest; the other digests have none."""


@dataclass(frozen=True, slots=True)
class Digest:
    """One ledger's digest: ``compute(header, payload)`` returns ``size`` bytes. The key never appears in its repr."""

    type: DigestType
    size: int
    compute: Callable[[bytes, bytes | memoryview], bytes] = field(repr=False, compare=False)


def master_key(password: bytes) -> bytes:
    """Return the 20-byte key checked by bookies on adds and fences; it does not depend on the digest type."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def digest_key(digest_type: DigestType, password: bytes) -> bytes:
    """Return the key of a digest of this type: ``DIGEST_KEY_SIZE`` bytes for HMAC, else empty."""
    return hashlib.sha1(b"mac" + password, usedforsecurity=False).digest() if digest_type is DigestType.HMAC else b""


def digest_for(digest_type: DigestType, password: bytes) -> Digest:
    """Return the digest of a ledger with this type and password (only HMAC uses the password)."""
    return digest_with(digest_type, digest_key(digest_type, password))


def digest_with(digest_type: DigestType, key: bytes) -> Digest:
    """Return the digest of a ledger with the ``digest_key`` ``key``; no password is needed."""
    match digest_type:
        case DigestType.CRC32C:
            return Digest(digest_type, 4, _crc32c)
        case DigestType.CRC32:
            return Digest(digest_type, 8, _crc32)
        case DigestType.DUMMY:
            return Digest(digest_type, 0, _dummy)
        case DigestType.HMAC:
            return Digest(digest_type, 20, _hmac(key))


def _crc32c(header: bytes, payload: bytes | memoryview) -> bytes:
    return _I32.pack(crc32c(payload, crc32c(header)))


def _crc32(header: bytes, payload: bytes | memoryview) -> bytes:
    return _I64.pack(zlib.crc32(payload, zlib.crc32(header)))


def _dummy(header: bytes, payload: bytes | memoryview) -> bytes:
    return b""


def _hmac(key: bytes) -> Callable[[bytes, bytes | memoryview], bytes]:
    keyed = hmac.new(key, digestmod=hashlib.sha1)

    def compute(header: bytes, payload: bytes | memoryview) -> bytes:
        mac = keyed.copy()
        mac.update(header)
        mac.update(payload)
        return mac.digest()

    return compute
