"""Damage to an input: flips, cuts, insertions, copies of its own parts, and numbers at the limits of their range."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

INPUT_BYTES_MAX: Final = 1 << 16
_NUMBERS: Final = tuple(
    value.to_bytes(size, "big", signed=True)
    for size in (1, 2, 4, 8)
    for value in (0, 1, -1, -2, -13, -17, (1 << (8 * size - 1)) - 1, -(1 << (8 * size - 1)))
)


def mutated(corpus: Sequence[bytes], rng: random.Random) -> bytes:
    """Return one of the inputs with one to four changes, at most ``INPUT_BYTES_MAX`` bytes."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 4)):
        place = rng.randint(0, len(data))
        match rng.randrange(7):
            case 0 if data:
                data[place % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[place:]
            case 2:
                data[place:place] = rng.randbytes(rng.randint(1, 9))
            case 3:
                number = rng.choice(_NUMBERS)
                data[place : place + len(number)] = number
            case 4:
                del data[place : place + rng.randint(1, 9)]
            case 5:
                start = rng.randint(0, len(data))
                data[place:place] = data[start : start + rng.randint(1, 64)]
            case _:
                data += rng.choice(corpus)
    return bytes(data[:INPUT_BYTES_MAX])
