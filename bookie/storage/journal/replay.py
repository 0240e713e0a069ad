"""The replay of a journal when a store opens (rules J3, J4, J8).

One rule distinguishes a torn tail from damage. Every header, and the mark next to the journal files, contains the
sequence up to which everything was durable when it was written. If a readable header or mark declares an unreadable
part durable, acknowledged records are lost and the store must not open; otherwise the part is a torn tail and is
ignored. The code here only reads. The writer always begins a new file with a higher epoch, so it never appends to a
torn tail.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie.storage.errors import SALVAGE_HINT, DamagedJournalError, LostIndexError
from bookie.storage.journal.format import (
    FILE_HEADER_SIZE,
    Record,
    decode_batch_header,
    decode_file_header,
    decode_records,
    find_batch_header,
    used_size,
)
from bookie.storage.journal.mark import SLOT_NAMES, JournalMark
from bookie.storage.port import Disk, DiskError

_log = logging.getLogger(__name__)

DIRECTORY: Final = "journal"
_SUFFIX: Final = ".journal"
_NAME: Final = re.compile(rf"([0-9a-f]{{16}}){re.escape(_SUFFIX)}")


@dataclass(frozen=True, slots=True)
class ClosedFile:
    """A journal file that is no longer written. It may be deleted after a checkpoint covers ``last_sequence``."""

    number: int
    last_sequence: int

    @property
    def path(self) -> str:
        """The path relative to the root of the journal disk."""
        return file_path(self.number)


@dataclass(slots=True)
class JournalReplay:
    """One pass over the files of a journal.

    Attributes:
        disk: the disk of the journal.
        reached: the greatest sequence read so far; initially the sequence of the checkpoint.
        declared: the greatest sequence that a header, the mark or the checkpoint declares durable.
        epoch: the greatest epoch found.
        files: the files found, in order.
        record_count: the number of records yielded.
    """

    disk: Disk
    reached: int
    epoch: int = 0
    files: list[ClosedFile] = field(default_factory=list)
    record_count: int = 0
    declared: int = field(init=False)
    _last: list[Record] = field(default_factory=list)
    _damage: str = ""

    def __post_init__(self) -> None:
        self.declared = self.reached

    @property
    def undeclared(self) -> Sequence[Record]:
        """The records of the last batch, if nothing declares it durable: its process may have ended before its sync."""
        return self._last if self.reached > self.declared else ()

    async def batches(self, mark: JournalMark | None) -> AsyncIterator[list[Record]]:
        """Yield the records after ``reached``, batch by batch, in the order in which they became durable.

        Raises:
            DamagedJournalError: acknowledged records cannot be read; the message names the file and the offset.
            UnsupportedFormatError: a file was written by a newer version.
            DiskError: the directory cannot be read.
        """
        for number in await file_numbers(self.disk):
            path, last = file_path(number), self.reached
            for sequence, records in self._scan(path, number, await self._readable(path)):
                last = max(last, sequence)
                if sequence > self.reached:
                    self.reached, self._last = sequence, records
                    self.record_count += len(records)
                    yield records
            self.files.append(ClosedFile(number, last))
        if mark is not None:
            self.epoch = max(self.epoch, mark.epoch)
            self._check_reached(mark.durable_sequence, f"the end of the journal ({DIRECTORY}/)")
        if self._damage:
            _log.warning("torn journal tail ignored", extra={"place": self._damage, "sequence": self.reached})

    async def _readable(self, path: str) -> bytes:
        try:
            return await _content(self.disk, path)
        except DiskError as error:
            raise DamagedJournalError(
                f"{path} cannot be read: {error}. If the disk is otherwise intact, try again; or {SALVAGE_HINT}"
            ) from error

    def _scan(self, path: str, number: int, data: bytes) -> Iterator[tuple[int, list[Record]]]:
        """Yield each intact batch of one file as (sequence, records)."""
        header = decode_file_header(data)
        if header is None:
            self._ignore_torn_file(path, data)
            return
        if header.number != number or header.epoch < self.epoch:
            raise DamagedJournalError(
                f"{path} has the header of file {header.number} of epoch {header.epoch}, expected file {number} of "
                f"epoch {self.epoch} or later: it was renamed or belongs to another journal. Move it elsewhere and "
                f"check it, or {SALVAGE_HINT}"
            )
        self.epoch = header.epoch
        self._check_reached(header.durable_sequence, f"{path} offset 0")
        offset, end = FILE_HEADER_SIZE, used_size(data)
        while offset < end:
            batch = decode_batch_header(data, offset, header.epoch)
            records = decode_records(data, batch) if batch is not None else None
            if batch is None or records is None:
                self._damage = self._damage or f"{path} offset {offset}"
                if (batch := find_batch_header(data, offset + 1, header.epoch)) is None:
                    return
                self._check_reached(batch.durable_sequence, f"{path} offset {offset}")
                offset = batch.offset
                continue
            self._check_reached(batch.durable_sequence, f"{path} offset {offset}")
            yield batch.sequence, records
            offset = batch.end

    def _ignore_torn_file(self, path: str, data: bytes) -> None:
        """Ignore a file without a header, whose creation was interrupted; raise if the file was already in use.

        The header is made durable before the first batch is written.
        """
        if len(data) > FILE_HEADER_SIZE:
            raise _lost(f"{path} offset 0", "its header, which was durable before the batches after it")
        self._damage = self._damage or f"{path} offset 0"

    def _check_reached(self, durable_sequence: int, place: str) -> None:
        if durable_sequence > self.reached:
            raise _lost(self._damage or place, f"batches {self.reached + 1} to {durable_sequence}, which were durable")
        self.declared = max(self.declared, durable_sequence)


async def first_sequence(disk: Disk, mark: JournalMark) -> int:
    """Return a sequence from which a replay reads every existing journal file.

    Args:
        disk: the disk of the journal.
        mark: the durable end, used if there is no file.

    Raises:
        DiskError: a file cannot be read.
    """
    for number in await file_numbers(disk):
        if (header := decode_file_header(await _content(disk, file_path(number), FILE_HEADER_SIZE))) is not None:
            return header.durable_sequence
    return mark.durable_sequence


def check_same_store(has_checkpoint: bool, has_entry_logs: bool, mark: JournalMark | None, file_count: int) -> None:
    """Check that neither the index nor the journal was lost or replaced.

    Before it acknowledges anything, a new store writes first the journal's mark and then the index's mark.

    Raises:
        LostIndexError: the index has no mark, but there are entry logs or a used journal.
        DamagedJournalError: the index is in use, but the journal has no mark.
    """
    if not has_checkpoint and (has_entry_logs or file_count or (mark is not None and mark.durable_sequence)):
        raise LostIndexError(
            "the entry index is empty, but there are entry logs or a used journal: the index was lost, or its disk is "
            "not mounted at the place of the first ledger directory. Mount it there, rebuild the index with "
            "`bkheal bookie rebuild-index`, or replace this bookie's disks as a new incarnation"
        )
    if has_checkpoint and mark is None:
        raise DamagedJournalError(
            f"the journal directory ({DIRECTORY}/) has no mark, but the entry index is in use: the journal was lost. "
            f"Mount the right journal disk, or {SALVAGE_HINT}"
        )


def file_path(number: int) -> str:
    """Return the path of a journal file."""
    return f"{DIRECTORY}/{number:016x}{_SUFFIX}"


async def file_numbers(disk: Disk) -> list[int]:
    """Return the numbers of the journal files, ascending. Files with other names are ignored."""
    return sorted(int(found[1], 16) for name in await disk.names(DIRECTORY) if (found := _NAME.fullmatch(name)))


def is_of_used_journal(name: str) -> bool:
    """Return whether a file with this name shows that its journal was begun: it is a mark or has batches.

    A journal whose beginning was interrupted may have its place, or a temporary file, but no mark.
    """
    return name in SLOT_NAMES or _NAME.fullmatch(name) is not None


def _lost(place: str, what: str) -> DamagedJournalError:
    return DamagedJournalError(
        f"damaged journal at {place}: it lost {what}. Acknowledged entries may be missing, so the bookie does not "
        f"start. Restore the file from a copy, or {SALVAGE_HINT}"
    )


async def _content(disk: Disk, path: str, size: int | None = None) -> bytes:
    file = await disk.open(path)
    try:
        return (await file.read([(0, await file.size() if size is None else size)]))[0]
    finally:
        await file.close()
