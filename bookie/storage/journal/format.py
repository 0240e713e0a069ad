"""The byte layout of a journal file: a file header, then batches of records (rules J2 and J11), then perhaps zeros.

A batch contains its place (epoch, sequence, offset) and the sequence up to which everything was durable when it was
written. ``replay`` uses this to distinguish a torn tail, which no later header contradicts, from damage to acknowledged
records. All functions here are pure.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from bookie.runtime.human import counted
from bookie.storage.errors import DamagedJournalError, UnsupportedFormatError

FORMAT: Final = 1
BATCH_BYTES_MAX: Final = 64 << 20
"""The largest batch that a reader accepts, checked before anything is sliced or allocated (J11). Batches are far
smaller: the bound of a group commit plus one request."""

_FILE_MAGIC: Final = b"\x93bkhjfil"
_BATCH_MAGIC: Final = b"\x93bkhjbat"
_FILE_HEADER: Final = struct.Struct(">8sHxxQQQ")  # magic, format, epoch, file number, durable sequence
_BATCH_HEADER: Final = struct.Struct(">8sHxxQQQQII")  # magic, format, epoch, sequence, durable, offset, bytes, records
_CRC: Final = struct.Struct(">I")
_RECORD: Final = struct.Struct(">IIBq")  # body length, CRC32C of the body, kind, ledger id

_COPIED_BYTES_MAX: Final = 4096
"""Parts of a batch are joined if their average size is smaller; an entry has two parts, one of them small."""

FILE_HEADER_SIZE: Final = _FILE_HEADER.size + _CRC.size
BATCH_HEADER_SIZE: Final = _BATCH_HEADER.size + _CRC.size
RECORD_HEADER_SIZE: Final = _RECORD.size


class RecordKind(enum.IntEnum):
    """The meaning of a record's body. 5 is reserved for explicit last-add-confirmed values."""

    ENTRY = 1
    """An entry in its stored form, with the ids in its own header."""
    MASTER_KEY = 2
    """The ledger's key, recorded when the ledger is first used."""
    FENCE = 3
    LIMBO = 4
    """The ledger is fenced, and the entries stored here earlier are unknown."""
    NO_LIMBO = 6
    """The ledger's expected entries are known and stored here again; it stays fenced."""


_KINDS: Final = {kind.value: kind for kind in RecordKind}


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    ``crc`` covers the body only, so it is computed once per entry and can be reused in the entry log and the index; the
    batch trailer covers the rest.
    """

    kind: RecordKind
    ledger_id: int
    body: bytes = field(repr=False)
    crc: int


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a file. Everything up to ``durable_sequence`` was durable before the file was created."""

    epoch: int
    number: int
    durable_sequence: int


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The place of a batch. ``size`` is the number of record bytes, without header and trailer."""

    epoch: int
    sequence: int
    durable_sequence: int
    offset: int
    size: int
    record_count: int

    @property
    def end(self) -> int:
        """The offset just after the batch."""
        return self.offset + BATCH_HEADER_SIZE + self.size + _CRC.size


def encode_entries(ledger_id: int, entries: Iterable[tuple[bytes, int]]) -> list[bytes]:
    """Return the record parts of (entry, its CRC32C) pairs: alternately a header and a body."""
    pack, kind = _RECORD.pack, int(RecordKind.ENTRY)
    parts: list[bytes] = []
    for body, crc in entries:
        parts.append(pack(len(body), crc, kind, ledger_id))
        parts.append(body)
    return parts


def encode_record(kind: RecordKind, ledger_id: int, body: bytes = b"") -> bytes:
    """Return one encoded record of any kind."""
    return _RECORD.pack(len(body), crc32c(body), kind, ledger_id) + body


def encode_file_header(header: FileHeader) -> bytes:
    """Return an encoded file header."""
    return _with_crc(_FILE_HEADER.pack(_FILE_MAGIC, FORMAT, header.epoch, header.number, header.durable_sequence))


def encode_batch(header: BatchHeader, parts: Sequence[bytes]) -> Sequence[bytes]:
    """Return a batch of encoded record parts, as a list of parts to be written in this order.

    Small parts are joined, because each part has a cost. Large ones are not copied.
    """
    head = _with_crc(
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
    if header.size < len(parts) * _COPIED_BYTES_MAX:
        data = b"".join((head, *parts))
        return data, _CRC.pack(crc32c(data))
    crc = crc32c(head)
    for part in parts:
        crc = crc32c(part, crc)
    return head, *parts, _CRC.pack(crc)


def decode_file_header(data: bytes) -> FileHeader | None:
    """Return the header at the start of a file, or None if it is incomplete or damaged.

    Raises:
        UnsupportedFormatError: the header is intact but has another format version.
    """
    fields = _opened(data, 0, _FILE_HEADER, _FILE_MAGIC)
    return None if fields is None else FileHeader(*fields)


def decode_batch_header(data: bytes, offset: int, epoch: int | None) -> BatchHeader | None:
    """Return the header of a batch of ``epoch`` (None: any) that belongs at ``offset``, or None if there is none.

    Raises:
        UnsupportedFormatError: the header is intact but has another format version.
    """
    fields = _opened(data, offset, _BATCH_HEADER, _BATCH_MAGIC)
    if fields is None:
        return None
    header = BatchHeader(*fields)
    is_here = epoch in (None, header.epoch) and header.offset == offset and header.size <= BATCH_BYTES_MAX
    return header if is_here else None


def find_batch_header(data: bytes, offset: int, epoch: int | None) -> BatchHeader | None:
    """Return the first batch header of ``epoch`` (None: any) from ``offset`` on that is at its recorded offset.

    None if there is none. Because the offset is checked, a copy of a journal that is stored as a payload is not
    mistaken for a batch.
    """
    while (offset := data.find(_BATCH_MAGIC, offset)) >= 0:
        if (header := decode_batch_header(data, offset, epoch)) is not None:
            return header
        offset += 1
    return None


def used_size(data: bytes) -> int:
    """Return the size of a file without the zeros at its end, which are reserved space and perhaps a batch's end."""
    return len(data.rstrip(b"\0"))


def decode_records(data: bytes, header: BatchHeader) -> list[Record] | None:
    """Return the records of a batch, or None if it is incomplete or damaged.

    Raises:
        UnsupportedFormatError: the batch is intact but has a record kind unknown to this version.
        DamagedJournalError: the batch is intact but its records are inconsistent.
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
        named = counted(header.record_count, "record")
        raise DamagedJournalError(f"batch {header.sequence} declares {named}, contains {len(records)}")
    return records


def _decode_record(data: bytes, offset: int, end: int) -> Record:
    if offset + _RECORD.size > end:
        raise DamagedJournalError(f"record header at offset {offset} extends past the end of its batch")
    length, crc, kind, ledger_id = _RECORD.unpack_from(data, offset)
    body_offset = offset + _RECORD.size
    if body_offset + length > end:
        raise DamagedJournalError(f"record of {length} bytes at offset {offset} extends past the end of its batch")
    if kind not in _KINDS:
        raise UnsupportedFormatError(
            f"journal record of unknown kind {kind} at offset {offset}: start the version of bkheal that wrote it"
        )
    body = data[body_offset : body_offset + length]
    if crc32c(body) != crc:
        raise DamagedJournalError(f"record at offset {offset} fails its checksum inside an intact batch")
    return Record(_KINDS[kind], ledger_id, body, crc)


def _with_crc(header: bytes) -> bytes:
    return header + _CRC.pack(crc32c(header))


def _opened(data: bytes, offset: int, layout: struct.Struct, magic: bytes) -> tuple[int, ...] | None:
    """Return the fields after magic and format if the header is intact, else None."""
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
