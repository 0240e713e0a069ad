"""Protobuf's encoding of numbers, for the few places where building whole messages is too slow."""

from __future__ import annotations

from typing import Final

_64_BITS: Final = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Return the encoding of a 64-bit number, signed or not: seven bits per byte, lowest first, in the fewest bytes."""
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= _64_BITS
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
