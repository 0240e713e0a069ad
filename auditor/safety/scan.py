"""Reads the metadata of all ledgers once, for the ledgers of certain bookies. No Spark, bounded memory.

Most ledgers of a large cluster do not name these bookies. For them, only shape and state are decoded; only a ledger
that may name one is decoded completely. Metadata that cannot be decoded, or may not be read, is counted and reported,
never ignored.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.ledgers.partial import PartialMetadata, decode_partial
from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode
from bookie.metadata.nodes import read_each_permitted
from bookie.metadata.port import AccessDeniedError
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata

CHUNK: Final = 10_000
"""Ledgers that are read at a time: enough for bulk reads at full speed, and only a few MB of metadata."""
_PARENTS: Final = 64
UNREADABLE_KEPT: Final = 100
"""Largest number of ids of unreadable ledgers that are kept; further ones are only counted."""

Visit = Callable[[LedgerId, LedgerMetadata], None]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """The numbers that determine what an ensemble needs."""

    ensemble_size: int
    write_quorum: int


@dataclass(slots=True)
class LedgerScanResult:
    """The result of a scan, in addition to the visited ledgers."""

    ledgers: int = 0
    """Readable ledgers."""
    unclosed: Counter[Shape] = field(default_factory=Counter)
    """Shapes of the unclosed ledgers, which may need a new ensemble at any time."""
    unreadable_count: int = 0
    unreadable: list[LedgerId] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every ledger could be read."""
        return self.unreadable_count == 0


async def scan(ledgers: LedgerStore, bookies: Collection[BookieId], visit: Visit, advance: Advance) -> LedgerScanResult:
    """Read all ledgers and call ``visit`` for those with one of ``bookies``, in tree order.

    Args:
        ledgers: of the cluster.
        bookies: the bookies.
        visit: called with each ledger that names one of them.
        advance: receives the number of further ledgers that were read.

    Raises:
        NotAClusterError: there is no such cluster.
        StoreUnavailableError: no answer; there is no result.
    """
    result = LedgerScanResult()
    wanted = frozenset(bookies)
    needles = [bookie.encode() for bookie in sorted(wanted)]
    reading = ledger_chunks(ledgers)
    following = asyncio.ensure_future(anext(reading, None))
    try:
        while (chunk := await following) is not None:
            following = asyncio.ensure_future(anext(reading, None))  # read while this part is examined
            for ledger_id, data in zip(*chunk, strict=True):
                if data is not None:  # None: deleted during the scan
                    _scan_ledger(result, ledger_id, data, wanted, needles, visit)
            advance(len(chunk[0]))
            await asyncio.sleep(0)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await reading.aclose()
    return result


async def scan_ids(
    ledgers: LedgerStore, ids: Sequence[LedgerId], bookies: Collection[BookieId], visit: Visit, advance: Advance
) -> LedgerScanResult:
    """Read ledgers as ``scan`` does, but only these ids; deleted ledgers are skipped.

    Raises:
        StoreUnavailableError: no answer; there is no result.
    """
    result = LedgerScanResult()
    wanted = frozenset(bookies)
    needles = [bookie.encode() for bookie in sorted(wanted)]
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        for ledger_id, data in zip(part, await read_each_permitted(ledgers.read_many_data, part), strict=True):
            if data is not None:
                _scan_ledger(result, ledger_id, data, wanted, needles, visit)
        advance(len(part))
    return result


async def count(ledgers: LedgerStore) -> int:
    """Return the approximate number of ledgers.

    Raises:
        NotAClusterError, StoreUnavailableError: see ``scan``.
    """
    return sum(children for _, children in await ledgers.leaf_parents())


def _scan_ledger(
    result: LedgerScanResult,
    ledger_id: LedgerId,
    data: bytes | AccessDeniedError,
    wanted: frozenset[BookieId],
    needles: Sequence[bytes],
    visit: Visit,
) -> None:
    if isinstance(data, AccessDeniedError):
        _note_unreadable(result, ledger_id)
        return
    seen = decode_partial(data)
    if seen is not None and not any(needle in data for needle in needles):
        _note(result, seen)
        return
    try:
        metadata = decode(data)
    except UnreadableMetadataError:
        _note_unreadable(result, ledger_id)
        return
    _note(result, PartialMetadata(metadata.is_closed, metadata.ensemble_size, metadata.write_quorum))
    if not wanted.isdisjoint(metadata.members()):
        visit(ledger_id, metadata)


def _note_unreadable(result: LedgerScanResult, ledger_id: LedgerId) -> None:
    result.unreadable_count += 1
    if len(result.unreadable) < UNREADABLE_KEPT:
        result.unreadable.append(ledger_id)


def _note(result: LedgerScanResult, seen: PartialMetadata) -> None:
    result.ledgers += 1
    if not seen.is_closed:
        result.unclosed[Shape(seen.ensemble_size, seen.write_quorum)] += 1


async def ledger_chunks(
    ledgers: LedgerStore,
) -> AsyncGenerator[tuple[list[LedgerId], list[bytes | AccessDeniedError | None]], None]:
    """Yield the ids of all ledgers with their metadata, a part at a time.

    Instead of metadata, there is None if the ledger was deleted since, and the refusal if it may not be read.

    Raises:
        NotAClusterError, StoreUnavailableError: see ``scan``.
    """
    parents = [parent for parent, _ in await ledgers.leaf_parents()]
    for start in range(0, len(parents), _PARENTS):
        ids = [one for found in await ledgers.ids_under_many(parents[start : start + _PARENTS]) for one in found]
        for first in range(0, len(ids), CHUNK):
            part = ids[first : first + CHUNK]
            yield part, await read_each_permitted(ledgers.read_many_data, part)
