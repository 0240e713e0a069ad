"""Numbers in protobuf's encoding, for the few places in which whole messages would cost too much."""

from __future__ import annotations

from typing import Final

_64_BITS: Final = (1 << 64) - 1


def varint(value: int) -> bytes:
    """A number of 64 bits, signed or not: seven bits a byte, the lowest first, in as few bytes as it takes."""
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
