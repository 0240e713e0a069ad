"""Damage to the files of one bookie: flipped bits and cut ends. Nothing here is synced, and the page cache shows it.

A bookie loses nothing silently: damage to a journal spares its last batch, which cannot be told from a torn tail (J12).
"""

from __future__ import annotations

import enum
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookie.server.joining.directories import CURRENT
from bookie.storage.disks.files import FileDisk
from bookie.storage.journal.format import BatchHeader, find_batch_header
from bookie.storage.journal.mark import MarkSlots
from bookie.storage.journal.replay import DIRECTORY
from tests.faults.disks import Directories

FLIPS: Final = (1, 1, 10, 100)
_CUT_BYTES_MAX: Final = 100_000


class Files(enum.Enum):
    """The files to damage."""

    ENTRY_LOGS = "entry logs"
    JOURNAL = "journal"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of a file that may be damaged."""

    path: Path
    end: int
    first: int = 0


def flip_bits(places: Sequence[Place], rng: random.Random) -> int:
    """Flip some bits at random places, and return their number; 0 if there are no places."""
    sizes = [place.end - place.first for place in places]
    if not sum(sizes):
        return 0
    count = rng.choice(FLIPS)
    for place in rng.choices(places, sizes, k=count):
        file = os.open(place.path, os.O_RDWR)
        try:
            offset = rng.randrange(place.first, place.end)
            os.pwrite(file, bytes([os.pread(file, 1, offset)[0] ^ 1 << rng.randrange(8)]), offset)
        finally:
            os.close(file)
    return count


def cut_end(places: Sequence[Place], rng: random.Random) -> int:
    """Cut the end of a file, and return the number of lost bytes. The new end is in one of the places."""
    places = [place for place in places if place.end > place.first]
    if not places:
        return 0
    place = rng.choice(places)
    size = place.path.stat().st_size
    new = rng.randrange(max(place.first, place.end - _CUT_BYTES_MAX), place.end)
    os.truncate(place.path, new)
    return size - new


def apache_entry_logs(directory: Path) -> Sequence[Place]:
    """Return the entry logs of an Apache bookie."""
    return _whole((directory / "ledgers" / CURRENT).glob("*.log"))


async def places(files: Files, directories: Directories, *, is_cut: bool) -> Sequence[Place]:
    """Return what may be damaged in the directories of one of our bookies.

    Args:
        files: the kind of files.
        directories: the directories of the bookie.
        is_cut: whether the end of a file is to be cut.
    """
    if files is Files.ENTRY_LOGS:
        return _whole(path for each in directories.ledgers for path in (each / CURRENT / "entries").glob("*.log"))
    if files is Files.INDEX:
        index = directories.ledgers[0] / CURRENT / "index"
        return _whole(path for path in index.iterdir() if path.name != "LOCK")
    return [
        place for journal in directories.journals for place in await _journal_places(journal / CURRENT, is_cut=is_cut)
    ]


async def _journal_places(disk: Path, *, is_cut: bool) -> Sequence[Place]:
    """Return the journal before its last batch.

    If it is to be cut, return the last batch, provided that the mark records it as durable (J4): the end of a journal
    that was written to a moment ago cannot be told from a torn tail.
    """
    paths = sorted((disk / DIRECTORY).glob("*.journal"))
    last = [(path, header) for path in paths[-1:] for header in _batches(path.read_bytes())[-1:]]
    if is_cut:
        durable = await _durable_sequence(disk)
        return [Place(path, header.end, header.offset) for path, header in last if header.sequence <= durable]
    return [*_whole(paths[:-1]), *(Place(path, header.offset) for path, header in last)]


async def _durable_sequence(root: Path) -> int:
    disk = await FileDisk.acquire(root)
    try:
        slots = MarkSlots(disk, DIRECTORY)
        await slots.load()
    finally:
        await disk.close()
    return 0 if slots.mark is None else slots.mark.durable_sequence


def _batches(data: bytes) -> Sequence[BatchHeader]:
    found: list[BatchHeader] = []
    offset = 0
    while (header := find_batch_header(data, offset, None)) is not None:
        found.append(header)
        offset = header.end
    return found


def _whole(paths: Iterable[Path]) -> Sequence[Place]:
    return [Place(path, path.stat().st_size) for path in sorted(paths)]
