"""The verification of stored entries against their checksums.

A scrub goes through the index in the order of its keys. So it reads each entry that the bookie would serve exactly
once, and its position is the last key. An entry that cannot be verified is a finding; nothing is changed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.model.ids import EntryId, LedgerId
from bookie.storage.disks.index_format import (
    Location,
    pack_entry_key,
    pack_location,
    unpack_entry_key,
    unpack_location,
)
from bookie.storage.entry_logs.entry_log import EntryLogs, is_entry, log_path
from bookie.storage.port import DiskFullError, EntryIndex

_PAGE_KEYS: Final = 1000
_STEP_BYTES: Final = 4 << 20
"""The most bytes read at a time, unless one entry is larger."""
_ENTRIES_END: Final = b"\xff"
"""The end key (exclusive) of the range of all entries."""


@dataclass(frozen=True, slots=True)
class DamagedCopy:
    """This bookie's copy of an entry, which is in the index and cannot be served."""

    ledger_id: LedgerId
    entry_id: EntryId
    path: str
    offset: int
    what: str


@dataclass(frozen=True, slots=True)
class ScrubStep:
    """The result of one step of a scrub.

    ``last`` is its last entry, after which another scrub can continue. ``entries`` is the number of entries read.
    """

    last: tuple[LedgerId, EntryId]
    entries: int
    bytes: int
    damaged: Sequence[DamagedCopy] = ()


async def scrub(
    index: EntryIndex, logs: EntryLogs, after: tuple[LedgerId, EntryId] | None = None, *, is_for_findings: bool = True
) -> AsyncGenerator[ScrubStep, None]:
    """Verify every entry after ``after`` (None: all), a few megabytes at a time.

    Args:
        index: the entry index.
        logs: the entry logs.
        after: the last entry that an earlier scrub verified; None: begin with the first entry.
        is_for_findings: whether each entry in a directory that is out of use counts as damaged. If not, these entries
            are skipped: they are known to be out of use, are omitted from lists, and may be as many as a disk holds
            (R114).

    Raises:
        DiskFullError: no more files may be opened.
        DiskError: the index cannot be read.
    """
    first = pack_entry_key(0, 0) if after is None else pack_entry_key(*after) + b"\0"
    while pairs := await index.range(first, _ENTRIES_END, _PAGE_KEYS):
        for step in _steps(pairs):
            yield await _verified(index, logs, step, is_for_findings=is_for_findings)
        first = pairs[-1][0] + b"\0"


def _steps(pairs: Sequence[tuple[bytes, bytes]]) -> list[list[tuple[bytes, Location]]]:
    steps: list[list[tuple[bytes, Location]]] = []
    step: list[tuple[bytes, Location]] = []
    size = 0
    for key, value in pairs:
        place = unpack_location(value)
        size += place.size
        if not step or size > _STEP_BYTES:
            step, size = [], place.size
            steps.append(step)
        step.append((key, place))
    return steps


async def _verified(
    index: EntryIndex, logs: EntryLogs, placed: Sequence[tuple[bytes, Location]], *, is_for_findings: bool
) -> ScrubStep:
    last = unpack_entry_key(placed[-1][0])
    if not is_for_findings and logs.is_incomplete:
        placed = [(key, place) for key, place in placed if not logs.is_out_of_use(place.log_id)]
    bodies = await logs.read([place for _, place in placed])
    damaged, size = [], 0
    for (key, place), body in zip(placed, bodies, strict=True):
        ledger_id, entry_id = unpack_entry_key(key)
        if isinstance(body, DiskFullError):
            raise body
        if isinstance(body, bytes):
            size += len(body)
            if is_entry(place, body, ledger_id, entry_id):
                continue
            what = "its bytes do not match their checksum or its ids"
        else:
            what = "its entry log is missing" if body is None else str(body)
        if await _is_moved(index, key, place):
            continue  # compaction moved it, or it was deleted
        damaged.append(DamagedCopy(LedgerId(ledger_id), EntryId(entry_id), log_path(place.log_id), place.offset, what))
    return ScrubStep((LedgerId(last[0]), EntryId(last[1])), len(placed), size, damaged)


async def _is_moved(index: EntryIndex, key: bytes, place: Location) -> bool:
    [value] = await index.get_many([key])
    return value != pack_location(place.log_id, place.offset, place.size, place.crc)
