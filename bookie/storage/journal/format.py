"""Bytes of a journal file: a file header, then batches of records (rules J2 and J11).

A batch contains its place (epoch, sequence, offset) and the sequence up to which everything was durable when it was
written. So a reader can distinguish a torn tail, which no later header contradicts, from damage to acknowledged
records. Pure functions; which of the two it is, is decided in ``journal_replay``.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from bookie.storage.errors import DamagedJournalError, UnsupportedFormatError

FORMAT: Final = 1
BATCH_BYTES_MAX: Final = 64 << 20
"""Largest batch a reader accepts; checked before anything is sliced or allocated (J11). A writer stays far below:
one group is bounded by its settings plus one caller's request."""

_FILE_MAGIC: Final = b"\x93bkhjfil"
_BATCH_MAGIC: Final = b"\x93bkhjbat"
_FILE_HEADER: Final = struct.Struct(">8sHxxQQQ")  # magic, format, epoch, file number, durable sequence
_BATCH_HEADER: Final = struct.Struct(">8sHxxQQQQII")  # magic, format, epoch, sequence, durable, offset, bytes, records
_CRC: Final = struct.Struct(">I")
_RECORD: Final = struct.Struct(">IIBq")  # body length, CRC32C of the body, kind, ledger id

FILE_HEADER_SIZE: Final = _FILE_HEADER.size + _CRC.size
BATCH_HEADER_SIZE: Final = _BATCH_HEADER.size + _CRC.size
RECORD_HEADER_SIZE: Final = _RECORD.size


class RecordKind(enum.IntEnum):
    """What a record's body is. 5 is reserved for explicit last-add-confirmed values."""

    ENTRY = 1
    """A stored-form entry; its own header carries the ids."""
    MASTER_KEY = 2
    """First contact with a ledger: its key."""
    FENCE = 3
    LIMBO = 4
    """Fenced, and what the ledger held here is unknown."""
    NO_LIMBO = 6
    """What the ledger should hold here is known and here again; it stays fenced."""


_KINDS: Final = frozenset(kind.value for kind in RecordKind)


@dataclass(frozen=True, slots=True)
class Record:
    """One record. ``crc`` is of the body alone, so that it is computed once per entry and serves the entry log and the
    index as well; the batch trailer covers the rest.
    """

    kind: RecordKind
    ledger_id: int
    body: bytes = field(repr=False)
    crc: int


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Start of a file. ``durable_sequence``: everything up to it was durable before the file existed."""

    epoch: int
    number: int
    durable_sequence: int


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """Place of a batch. ``size`` counts the record bytes, without header and trailer."""

    epoch: int
    sequence: int
    durable_sequence: int
    offset: int
    size: int
    record_count: int

    @property
    def end(self) -> int:
        """Offset just after the batch."""
        return self.offset + BATCH_HEADER_SIZE + self.size + _CRC.size


def encode_entries(ledger_id: int, entries: Iterable[tuple[bytes, int]]) -> list[bytes]:
    """Record parts of (entry, its CRC32C) pairs: header and body in turn."""
    pack, kind = _RECORD.pack, int(RecordKind.ENTRY)
    parts: list[bytes] = []
    for body, crc in entries:
        parts.append(pack(len(body), crc, kind, ledger_id))
        parts.append(body)
    return parts


def encode_record(kind: RecordKind, ledger_id: int, body: bytes = b"") -> bytes:
    """One record of any kind."""
    return _RECORD.pack(len(body), crc32c(body), kind, ledger_id) + body


def encode_file_header(header: FileHeader) -> bytes:
    """Bytes of a file header."""
    return _sealed(_FILE_HEADER.pack(_FILE_MAGIC, FORMAT, header.epoch, header.number, header.durable_sequence))


def encode_batch(header: BatchHeader, parts: Sequence[bytes]) -> tuple[bytes, bytes]:
    """A batch of already encoded record parts, as (header and records, trailer)."""
    head = _sealed(
        _BATCH_HEADER.pack(
            _BATCH_MAGIC,
            FORMAT,
            header.epoch,
            header.sequence,
            header.durable_sequence,
            header.offset,
            header.size,
            header.record_count,
        )
    )
    data = b"".join((head, *parts))
    return data, _CRC.pack(crc32c(data))


def decode_file_header(data: bytes) -> FileHeader | None:
    """The header at the start of a file; None if there is no whole one.

    Raises:
        UnsupportedFormatError: an intact header of another format version.
    """
    fields = _opened(data, 0, _FILE_HEADER, _FILE_MAGIC)
    return None if fields is None else FileHeader(*fields)


def decode_batch_header(data: bytes, offset: int, epoch: int) -> BatchHeader | None:
    """The header of a batch of ``epoch`` that belongs at ``offset``; None if there is none.

    Raises:
        UnsupportedFormatError: an intact header of another format version.
    """
    fields = _opened(data, offset, _BATCH_HEADER, _BATCH_MAGIC)
    if fields is None:
        return None
    header = BatchHeader(*fields)
    is_here = header.epoch == epoch and header.offset == offset and header.size <= BATCH_BYTES_MAX
    return header if is_here else None


def find_batch_header(data: bytes, offset: int, epoch: int) -> BatchHeader | None:
    """The first batch header of ``epoch`` at or after ``offset`` at its own recorded place.

    The offset inside the header keeps a copy of a journal, stored as a payload, from being taken for one.
    """
    while (offset := data.find(_BATCH_MAGIC, offset)) >= 0:
        if (header := decode_batch_header(data, offset, epoch)) is not None:
            return header
        offset += 1
    return None


def decode_records(data: bytes, header: BatchHeader) -> list[Record] | None:
    """Records of the batch, None if it is not whole and intact.

    Raises:
        UnsupportedFormatError: an intact batch with a record kind that this version does not know.
        DamagedJournalError: an intact batch whose records contradict each other.
    """
    trailer_offset = header.end - _CRC.size
    if len(data) < header.end:
        return None
    if _CRC.unpack_from(data, trailer_offset)[0] != crc32c(memoryview(data)[header.offset : trailer_offset]):
        return None
    offset, records = header.offset + BATCH_HEADER_SIZE, []
    while offset < trailer_offset:
        record = _decode_record(data, offset, trailer_offset)
        records.append(record)
        offset += _RECORD.size + len(record.body)
    if len(records) != header.record_count:
        raise DamagedJournalError(f"batch {header.sequence} names {header.record_count} records, holds {len(records)}")
    return records


def _decode_record(data: bytes, offset: int, end: int) -> Record:
    if offset + _RECORD.size > end:
        raise DamagedJournalError(f"record header at offset {offset} passes the end of its batch")
    length, crc, kind, ledger_id = _RECORD.unpack_from(data, offset)
    body_offset = offset + _RECORD.size
    if body_offset + length > end:
        raise DamagedJournalError(f"record of {length} bytes at offset {offset} passes the end of its batch")
    if kind not in _KINDS:
        raise UnsupportedFormatError(
            f"journal record of unknown kind {kind} at offset {offset}: start the version of bkheal that wrote it"
        )
    body = data[body_offset : body_offset + length]
    if crc32c(body) != crc:
        raise DamagedJournalError(f"record at offset {offset} fails its checksum inside an intact batch")
    return Record(RecordKind(kind), ledger_id, body, crc)


def _sealed(header: bytes) -> bytes:
    return header + _CRC.pack(crc32c(header))


def _opened(data: bytes, offset: int, layout: struct.Struct, magic: bytes) -> tuple[int, ...] | None:
    """Fields after magic and format of an intact header."""
    end = offset + layout.size
    if len(data) < end + _CRC.size or crc32c(data[offset:end]) != _CRC.unpack_from(data, end)[0]:
        return None
    found_magic, found_format, *fields = layout.unpack_from(data, offset)
    if found_magic != magic:
        return None
    if found_format != FORMAT:
        raise UnsupportedFormatError(
            f"journal format {found_format} at offset {offset}, this version reads {FORMAT}: "
            "start the version of bkheal that wrote it"
        )
    return tuple(fields)
