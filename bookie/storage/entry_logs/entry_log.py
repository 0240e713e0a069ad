"""Entry logs: files with entries, written at a flush in (ledger, entry) order and never changed.

Record: size, CRC32C, entry. The index refers to an entry only after its file is durable. Every read is verified: the
checksum detects bit rot, and the ids in the entry detect the bytes of another entry (a misdirected write). A failed
read is returned as a value, not raised: one bad sector must not fail a whole request.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from bookie.model.packet import HEADER_SIZE as ENTRY_HEADER_SIZE
from bookie.storage.disks.index_format import Location, pack_location
from bookie.storage.disks.removed_files import RemovedFiles
from bookie.storage.port import Disk, DiskError, DiskFile

DIRECTORY: Final = "entries"
_SUFFIX: Final = ".log"
_NAME: Final = re.compile(rf"([0-9a-f]{{16}}){re.escape(_SUFFIX)}")
_FORMAT: Final = 1
_HEADER: Final = struct.Struct(">8sHHQ")  # magic, format, flags, log id; releases without flags wrote 0 and ignore them
_RECORD: Final = struct.Struct(">II")  # size, CRC32C
_CRC: Final = struct.Struct(">I")
_IDS: Final = struct.Struct(">qq")
_MAGIC: Final = b"\x93bkhelog"
_END_IS_RECORDED: Final = 1
"""The flag which states that the index had a record of the log's end before the file was created."""
HEADER_SIZE: Final = _HEADER.size + _CRC.size
RECORD_HEADER_SIZE: Final = _RECORD.size
GAP_BYTES_MAX: Final = 16 << 10
"""The largest gap between two entries that are read as one range; reading it is cheaper than a second request to the
device."""
_FAILED_READS_MAX: Final = 64
"""The most failed reads of one file in one request. Finding a bad sector among a thousand entries takes about ten."""


@dataclass(slots=True)
class EntryLogWriter:
    """An entry log that is being written."""

    log_id: int
    file: DiskFile
    size: int
    unsynced_bytes: int = 0

    async def append(self, entries: Sequence[tuple[bytes, int]]) -> list[bytes]:
        """Write (entry, its CRC32C) pairs, and return the index value of each, valid after ``sync``.

        Raises:
            DiskFullError: no space left.
            DiskError: any other failure.
        """
        parts, values, pack, log_id = [], [], _RECORD.pack, self.log_id
        offset = self.size
        for body, crc in entries:
            size = len(body)
            parts.append(pack(size, crc))
            parts.append(body)
            offset += _RECORD.size
            values.append(pack_location(log_id, offset, size, crc))
            offset += size
        self.unsynced_bytes += offset - self.size
        self.size = await self.file.append(parts)
        return values

    async def sync(self) -> None:
        """Make all appended data durable.

        Raises:
            DiskError: the data could not be made durable.
        """
        await self.file.sync()
        self.unsynced_bytes = 0


@dataclass(slots=True)
class _OpenLog:
    file: DiskFile
    uses: int = 0


class EntryLogs:
    """The entry logs of one bookie. ``next_id`` is the id of the next file."""

    def __init__(self, disk: Disk, next_id: int, open_max: int) -> None:
        self.next_id = next_id
        self._disk = disk
        self._open_max = open_max
        self._open: dict[int, _OpenLog] = {}
        self._surplus: list[_OpenLog] = []
        self._removed: RemovedFiles[int] = RemovedFiles()

    def take_id(self) -> int:
        """Return an id for a new log. It is never used for another log."""
        log_id, self.next_id = self.next_id, self.next_id + 1
        return log_id

    async def create(self, log_id: int) -> EntryLogWriter:
        """Create the file of a new log; its name and header are durable on return.

        The caller must have recorded the end of the log in the index (``bookie.storage.entry_logs.log_ends``).

        Raises:
            DiskError: the file cannot be created.
        """
        file = await self._disk.create(log_path(log_id))
        header = _HEADER.pack(_MAGIC, _FORMAT, _END_IS_RECORDED, log_id)
        try:
            size = await file.append_and_sync([header + _CRC.pack(crc32c(header))])
            await self._disk.sync_directory(DIRECTORY)
        except DiskError:
            await self.discard(EntryLogWriter(log_id, file, 0))
            raise
        return EntryLogWriter(log_id, file, size)

    async def present(self) -> list[int]:
        """Return the ids of the logs on the disk, ascending. Logs removed before do not reappear after a crash.

        Raises:
            DiskError: the directory cannot be read or synced.
        """
        await self._disk.sync_directory(DIRECTORY)
        return await log_ids(self._disk)

    @property
    def is_incomplete(self) -> bool:
        """True if logs may be in a directory that is out of use."""
        return self._disk.out_of_use_count > 0

    def is_out_of_use(self, log_id: int) -> bool:
        """Return whether a log is, or may be, in a directory that is out of use (R114)."""
        return self._disk.is_out_of_use(log_path(log_id))

    async def discard(self, log: EntryLogWriter) -> None:
        """Close a file to which the index does not refer, and remove it on a best-effort basis."""
        with suppress(DiskError):
            await log.file.close()
            await self._disk.unlink(log_path(log.log_id))

    async def read(self, locations: Sequence[Location]) -> list[bytes | DiskError | None]:
        """Return the unverified bytes at each location; None if the file was deleted, an error if it is unreadable.

        An unreadable part of a file causes errors only for the entries in it. If more than ``_FAILED_READS_MAX`` reads
        of one file fail, the entries that were not read by then get an error too: the whole disk may be failing, and
        each failure may take seconds.
        """
        results: list[bytes | DiskError | None] = [None] * len(locations)
        by_log: dict[int, list[int]] = {}
        for index, location in enumerate(locations):
            by_log.setdefault(location.log_id, []).append(index)
        for log_id, indexes in by_log.items():
            found: list[bytes | DiskError]
            try:
                found = await self._read_log(log_id, [locations[index] for index in indexes])
            except FileNotFoundError:
                continue
            except DiskError as error:  # the file cannot be opened
                found = [error] * len(indexes)
            for index, data in zip(indexes, found, strict=True):
                results[index] = data
        return results

    def read_cached(self, locations: Sequence[Location]) -> list[bytes | DiskError | None] | None:
        """Return the result of ``read`` if all of it is in memory and the logs are open; else None. Never waits."""
        results: list[bytes | DiskError | None] = []
        for location in locations:
            if (log := self._open.get(location.log_id)) is None:
                return None
            if (data := log.file.read_cached(location.offset, location.size)) is None:
                return None
            self._open[location.log_id] = self._open.pop(location.log_id)  # most recently used last
            results.append(data)
        return results

    async def read_range(self, log_id: int, offset: int, size: int) -> bytes:
        """Return the unverified bytes of one range; fewer at the end of the file, none if the file was deleted.

        Raises:
            DiskError: the file cannot be read.
        """
        try:
            log = await self._acquire(log_id)
        except FileNotFoundError:
            return b""
        try:
            [data] = await log.file.read([(offset, size)])
        finally:
            log.uses -= 1
        await self._close_surplus()
        return data

    async def forget(self, log_id: int) -> None:
        """Close a removed file when its current readers have finished."""
        self._removed.add(log_id)
        if (log := self._open.pop(log_id, None)) is not None:
            self._surplus.append(log)
        await self._close_surplus()

    async def close(self) -> None:
        """Close all open files."""
        opened, self._open, self._surplus = [*self._open.values(), *self._surplus], {}, []
        for log in opened:
            await log.file.close()

    async def _read_log(self, log_id: int, locations: list[Location]) -> list[bytes | DiskError]:
        log = await self._acquire(log_id)
        try:
            found = await _read_parts(log.file, locations)
        finally:
            log.uses -= 1
        await self._close_surplus()
        return found

    async def _acquire(self, log_id: int) -> _OpenLog:
        """Return an open file, which stays open until the caller decrements ``uses``."""
        if (log := self._open.pop(log_id, None)) is None:
            opened = _OpenLog(await self._disk.open(log_path(log_id)))
            if log_id in self._removed:  # removed while it was being opened
                self._surplus.append(opened)
                opened.uses += 1
                return opened
            if (log := self._open.pop(log_id, None)) is None:
                log = opened
            else:  # another reader has opened it
                self._surplus.append(opened)
        self._open[log_id] = log  # most recently used last
        log.uses += 1
        return log

    async def _close_surplus(self) -> None:
        over = max(len(self._open) - self._open_max, 0)
        idle = [log_id for log_id, log in self._open.items() if not log.uses][:over]
        self._surplus += [self._open.pop(log_id) for log_id in idle]
        while closing := [log for log in self._surplus if not log.uses]:
            self._surplus = [log for log in self._surplus if log is not closing[0]]
            with suppress(DiskError):  # if the caller is cancelled here, the next one closes the rest
                await closing[0].file.close()


@dataclass(frozen=True, slots=True)
class LogHeader:
    """The header of an entry log.

    Attributes:
        log_id: its id.
        is_end_recorded: whether the index had a record of the log's end before the file was created. False for a log of
            a release without these records: a record with its id belongs to an earlier file.
    """

    log_id: int
    is_end_recorded: bool


def decode_header(data: bytes) -> LogHeader | None:
    """Return the header of a file, or None if it is damaged."""
    if len(data) < HEADER_SIZE or _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(data[: _HEADER.size]):
        return None
    magic, found_format, flags, log_id = _HEADER.unpack_from(data)
    if (magic, found_format) != (_MAGIC, _FORMAT):
        return None
    return LogHeader(log_id, bool(flags & _END_IS_RECORDED))


def decode_records(data: bytes) -> list[tuple[Location, bytes]]:
    """Return the complete, intact records at the start of ``data``, with places relative to it (log id 0)."""
    records, offset = [], 0
    while offset + _RECORD.size <= len(data):
        size, crc = _RECORD.unpack_from(data, offset)
        offset += _RECORD.size
        body = data[offset : offset + size]
        if size < ENTRY_HEADER_SIZE or len(body) < size or crc32c(body) != crc:
            break  # without the first condition, a hole of zeros would look like empty records
        records.append((Location(0, offset, size, crc), body))
        offset += size
    return records


def is_entry(location: Location, data: bytes, ledger_id: int, entry_id: int) -> bool:
    """Return whether ``data`` is the requested entry, complete and intact."""
    return (
        len(data) == location.size
        and crc32c(data) == location.crc
        and len(data) >= _IDS.size
        and _IDS.unpack_from(data) == (ledger_id, entry_id)
    )


async def log_ids(disk: Disk) -> list[int]:
    """Return the ids of the entry logs on the disk, ascending. Files with other names are ignored."""
    return sorted(int(found[1], 16) for name in await disk.names(DIRECTORY) if (found := _NAME.fullmatch(name)))


async def all_log_ids(disk: Disk) -> list[int]:
    """Return the ids of the entry logs, for a change that must cover all of them.

    Raises:
        DiskError: a directory cannot be read, or is out of use (R130).
    """
    found = await log_ids(disk)
    check_all_in_use(disk)
    return found


def check_all_in_use(disk: Disk) -> None:
    """Check that every directory is in use, so each log can be found and read.

    Raises:
        DiskError: one is out of use.
    """
    if disk.out_of_use_count:
        raise DiskError(
            "a ledger directory is out of use (the log has the reason): its entries would be missing from the result"
        )


def log_path(log_id: int) -> str:
    """Return the path of an entry log."""
    return f"{DIRECTORY}/{log_id:016x}{_SUFFIX}"


def cut(blocks: Sequence[bytes], parts: Iterable[tuple[int, int, int]]) -> list[bytes]:
    """Return the bytes of each (block, start, size), copying only these: a block of 1 MiB may hold 10,000 entries."""
    return [blocks[place][start : start + size] for place, start, size in parts]


async def _read_parts(file: DiskFile, locations: Sequence[Location]) -> list[bytes | DiskError]:
    """Read locations of one file. After a failure, each half is read separately, down to a single entry."""
    results: list[bytes | DiskError] = [b""] * len(locations)
    parts, failed = [sorted(range(len(locations)), key=lambda index: locations[index].offset)], 0
    while parts:
        part = parts.pop()
        wanted = [locations[index] for index in part]
        ranges, places = _coalesce(wanted)
        try:
            blocks = await file.read(ranges)
        except DiskError as error:
            failed += 1
            if len(part) > 1 and failed < _FAILED_READS_MAX:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            else:
                for index in part:
                    results[index] = error
            if failed >= _FAILED_READS_MAX:
                for index in (index for left in parts for index in left):
                    results[index] = error
                break
            continue
        cuts = [
            (place, location.offset - ranges[place][0], location.size)
            for place, location in zip(places, wanted, strict=True)
        ]
        for index, data in zip(part, cut(blocks, cuts), strict=True):
            results[index] = data
    return results


def _coalesce(locations: Sequence[Location]) -> tuple[list[tuple[int, int]], list[int]]:
    """Return ranges that cover all locations, and for each location the index of its range."""
    ranges: list[tuple[int, int]] = []
    places = [0] * len(locations)
    for index in sorted(range(len(locations)), key=lambda index: locations[index].offset):
        first, end = locations[index].offset, locations[index].offset + locations[index].size
        if ranges and first <= sum(ranges[-1]) + GAP_BYTES_MAX:
            start = ranges[-1][0]
            ranges[-1] = (start, max(sum(ranges[-1]), end) - start)
        else:
            ranges.append((first, end - first))
        places[index] = len(ranges) - 1
    return ranges, places
