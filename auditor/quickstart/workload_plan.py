"""The plan of the tour's ledgers: every shape, every digest, every kind. Pure, from one seed."""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bookie.client.bookkeeper import LedgerOptions
from bookie.model.metadata import DigestType
from bookie.model.packet import ENTRY_PAYLOAD_MAX

SHAPES: Final = ((1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2))
_ROUNDS: Final = 3


class LedgerContent(enum.Enum):
    """The content of a ledger of the tour, and what happens to it."""

    EMPTY = "empty"
    ONE_ENTRY = "one entry"
    SMALL = "small entries"
    MIXED = "0 bytes to 1 MiB"
    FRAGMENTED = "several fragments"
    LIVE = "written during the kill"
    LEFT_OPEN = "left open"


@dataclass(frozen=True, slots=True)
class LedgerSpec:
    """One ledger to write. ``sizes`` are payload bytes, in order."""

    kind: LedgerContent
    options: LedgerOptions
    sizes: tuple[int, ...]
    password: bytes
    custom: tuple[tuple[str, bytes], ...]
    seed: int

    def payloads(self) -> Iterator[bytes]:
        """Return the payloads, the same ones each time."""
        rng = random.Random(self.seed)
        return (rng.randbytes(size) for size in self.sizes)


def settled_ledgers(rng: random.Random) -> list[LedgerSpec]:
    """Return the ledgers that are written and closed before the kill: 192, about 60 MiB."""
    kinds = (LedgerContent.EMPTY, LedgerContent.ONE_ENTRY, LedgerContent.SMALL, LedgerContent.MIXED)
    return [_spec(rng, *row) for _ in range(_ROUNDS) for row in itertools.product(kinds, SHAPES, DigestType)]


def fragmented_ledgers(rng: random.Random) -> list[LedgerSpec]:
    """Return the ledgers during whose writing a bookie is stopped."""
    return [_spec(rng, LedgerContent.FRAGMENTED, *row) for row in itertools.product(SHAPES, DigestType)]


def live_ledgers(rng: random.Random) -> list[LedgerSpec]:
    """Return the ledgers that are being written while a bookie is killed."""
    return [_spec(rng, LedgerContent.LIVE, *row) for row in itertools.product(SHAPES, DigestType)]


def left_open_ledger(rng: random.Random) -> LedgerSpec:
    """Return the ledger whose writer dies together with the bookie, so that it is never closed."""
    return _spec(rng, LedgerContent.LEFT_OPEN, (3, 2, 2), DigestType.CRC32C)


def _spec(rng: random.Random, kind: LedgerContent, shape: tuple[int, int, int], digest: DigestType) -> LedgerSpec:
    custom = (("application", b"quickstart"), ("kind", kind.value.encode()))
    return LedgerSpec(
        kind=kind,
        options=LedgerOptions(*shape, digest_type=digest),
        sizes=_sizes(rng, kind),
        password=rng.choice((b"", b"secret")),
        custom=custom if rng.random() < 0.5 else (),
        seed=rng.getrandbits(64),
    )


def _sizes(rng: random.Random, kind: LedgerContent) -> tuple[int, ...]:
    match kind:
        case LedgerContent.EMPTY:
            return ()
        case LedgerContent.ONE_ENTRY:
            return (rng.randint(1, 2000),)
        case LedgerContent.MIXED:
            return (0, 1, rng.randint(2, 300), 4096, 65_536, ENTRY_PAYLOAD_MAX, 0, rng.randint(1, 2000))
        case LedgerContent.SMALL | LedgerContent.FRAGMENTED | LedgerContent.LEFT_OPEN:
            return tuple(rng.randint(100, 1500) for _ in range(160))
        case LedgerContent.LIVE:
            return tuple(rng.randint(100, 900) for _ in range(400))
