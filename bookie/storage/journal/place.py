"""The record of which journal of a store a directory holds (rule R125).

A ledger uses one journal: the one whose number is the ledger id modulo the number of journals. If directories are
exchanged, omitted or added, records would be replayed by the wrong journal, or not at all. A journal directory of a
store with several journals therefore has a file with its number and the number of journals. It is durable before the
journal's first mark. A store with one journal has no such file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from bookie.storage.errors import SALVAGE_HINT, DamagedJournalError, WrongJournalError
from bookie.storage.journal.replay import DIRECTORY
from bookie.storage.port import Disk

_MAGIC: Final = b"\x93bkhjplc"
_PLACE: Final = struct.Struct(">8sHHH")  # magic, format, number, count
_CRC: Final = struct.Struct(">I")
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """The place of one journal: ``number`` of ``count``, counted from 0."""

    number: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"journal {self.number + 1} of {self.count}"


@dataclass(frozen=True, slots=True)
class PlaceFile:
    """The place file of one journal directory."""

    disk: Disk
    directory: str
    place: JournalPlace

    async def check(self, *, is_in_use: bool) -> None:
        """Check that the directory belongs to this journal.

        Args:
            is_in_use: whether the directory has a journal. If not, its place file may not exist yet.

        Raises:
            WrongJournalError: it belongs to another journal.
            DamagedJournalError: the file is damaged.
            DiskError: the file cannot be read.
        """
        data = await self._content()
        found = JournalPlace() if data is None else _decode(data)
        if found is None:
            raise DamagedJournalError(
                f"{self._path} is damaged: it is not known which journal this is. Restore the file from a copy, or "
                f"{SALVAGE_HINT}"
            )
        if found == self.place or (data is None and not is_in_use):
            return
        raise WrongJournalError(
            f"a journal directory has {found}, and is given as {self.place}: give all journal directories of this "
            "bookie, in their order, and mount each disk at its place"
        )

    async def write(self) -> None:
        """Make the place durable. Nothing is written for a single journal.

        Raises:
            DiskError: it could not be made durable.
        """
        if self.place.count > 1:
            await self.disk.replace(self._path, _encode(self.place))

    @property
    def _path(self) -> str:
        return f"{self.directory}/place"

    async def _content(self) -> bytes | None:
        try:
            file = await self.disk.open(self._path)
        except FileNotFoundError:
            return None
        try:
            return (await file.read([(0, _PLACE.size + _CRC.size + 1)]))[0]
        finally:
            await file.close()


def place_files(journal_disks: Sequence[Disk]) -> list[PlaceFile]:
    """Return the place file of each journal."""
    count = len(journal_disks)
    return [PlaceFile(disk, DIRECTORY, JournalPlace(number, count)) for number, disk in enumerate(journal_disks)]


def _encode(place: JournalPlace) -> bytes:
    body = _PLACE.pack(_MAGIC, _FORMAT, place.number, place.count)
    return body + _CRC.pack(crc32c(body))


def _decode(data: bytes) -> JournalPlace | None:
    if len(data) != _PLACE.size + _CRC.size or crc32c(data[: _PLACE.size]) != _CRC.unpack_from(data, _PLACE.size)[0]:
        return None
    magic, found_format, number, count = _PLACE.unpack_from(data)
    return JournalPlace(number, count) if (magic, found_format) == (_MAGIC, _FORMAT) else None
