"""The durable end of the journal, recorded a second time outside the journal files (rule J4).

Two slots are written alternately, so one of them survives damage to the other. If a replay ends before the mark,
acknowledged records are lost. The mark is not written for each batch, but for each new file, at each checkpoint, and
once a second while batches are written. So no more than the batches of the last second or two can be lost undetected,
and adds do not wait for the mark.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from bookie.storage.errors import SALVAGE_HINT, DamagedJournalError
from bookie.storage.port import Disk

_log = logging.getLogger(__name__)

_MAGIC: Final = b"\x93bkhjmrk"
_SLOT: Final = struct.Struct(">8sHxxQQ")  # magic, format, epoch, durable sequence
_CRC: Final = struct.Struct(">I")
_FORMAT: Final = 1
SLOT_NAMES: Final = ("mark-0", "mark-1")
"""The names of the slot files."""


@dataclass(frozen=True, slots=True, order=True)
class JournalMark:
    """A mark: everything up to ``durable_sequence`` was durable, and ``epoch`` is the last epoch that was begun."""

    durable_sequence: int
    epoch: int


@dataclass(slots=True)
class MarkSlots:
    """The two slot files of one journal directory.

    Attributes:
        mark: the greatest known mark; None for a new journal.
        are_whole: whether both slots were intact when they were loaded. If not, there may have been a greater mark.
    """

    disk: Disk
    directory: str
    mark: JournalMark | None = None
    are_whole: bool = False
    _next_slot: int = 0
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self) -> None:
        """Read both slots.

        Raises:
            DamagedJournalError: slots exist, but none is readable.
            DiskError: the device cannot be read.
        """
        found: dict[int, JournalMark] = {}
        damaged = []
        for slot in (0, 1):
            data = await _content(self.disk, self._path(slot))
            if data is not None:
                if (mark := _decode(data)) is None:
                    damaged.append(self._path(slot))
                else:
                    found[slot] = mark
        if damaged and not found:
            raise DamagedJournalError(
                f"journal mark unreadable ({', '.join(damaged)}): the durable end of the journal is unknown. "
                f"Restore the file from a copy, or {SALVAGE_HINT}"
            )
        if damaged:
            _log.warning("journal mark slot damaged, using the other", extra={"slot": damaged[0]})
        self.are_whole = len(found) == len(SLOT_NAMES)
        if found:
            newest = max(found, key=lambda slot: found[slot])
            self.mark, self._next_slot = found[newest], 1 - newest

    async def write(self, mark: JournalMark) -> None:
        """Make a mark durable. Do nothing if it is not greater than the current one.

        Raises:
            DiskError: the mark could not be made durable.
        """
        async with self._writing:
            if self.mark is not None and mark <= self.mark:
                return
            await self.disk.replace(self._path(self._next_slot), _encode(mark))
            self.mark, self._next_slot = mark, 1 - self._next_slot

    def _path(self, slot: int) -> str:
        return f"{self.directory}/{SLOT_NAMES[slot]}"


def _encode(mark: JournalMark) -> bytes:
    body = _SLOT.pack(_MAGIC, _FORMAT, mark.epoch, mark.durable_sequence)
    return body + _CRC.pack(crc32c(body))


def _decode(data: bytes) -> JournalMark | None:
    if len(data) != _SLOT.size + _CRC.size or crc32c(data[: _SLOT.size]) != _CRC.unpack_from(data, _SLOT.size)[0]:
        return None
    magic, found_format, epoch, sequence = _SLOT.unpack_from(data)
    return JournalMark(sequence, epoch) if (magic, found_format) == (_MAGIC, _FORMAT) else None


async def _content(disk: Disk, path: str) -> bytes | None:
    try:
        file = await disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return (await file.read([(0, _SLOT.size + _CRC.size + 1)]))[0]
    finally:
        await file.close()
