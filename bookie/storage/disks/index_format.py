"""The keys and values of the entry index.

The key of an entry is (ledger, entry), big-endian, so a ledger's entries are one ascending range. All other keys start
with 0xFF and sort after every entry key, because ids are never negative.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.model.ids import LedgerId
from bookie.storage.errors import UnsupportedFormatError

FORMAT: Final = 1
_SEVERAL_FORMAT: Final = 2
"""The format of a mark with several journals, which earlier versions cannot read."""
MARK_KEY: Final = b"\xffmark"
EPOCHS_KEY: Final = b"\xffjournals"
"""The epoch in the mark of each journal at the last checkpoint (R96)."""

_ENTRY_KEY: Final = struct.Struct(">qq")
_STATE_KEY: Final = struct.Struct(">6sq")
_STATE_PREFIX: Final = b"\xffstate"
_LOCATION: Final = struct.Struct(">QQII")
_MARK: Final = struct.Struct(">HQQQ")
_SEQUENCE: Final = struct.Struct(">Q")
_DEAD_KEY: Final = struct.Struct(">5sQ")
_DEAD_PREFIX: Final = b"\xffdead"
_DEAD: Final = struct.Struct(">Q")
_END_KEY: Final = struct.Struct(">4sQ")
_END_PREFIX: Final = b"\xffend"
_END: Final = struct.Struct(">Q?")

pack_entry_key = _ENTRY_KEY.pack
"""Return the key of (ledger id, entry id)."""
pack_location = _LOCATION.pack
"""Return the value of (log id, offset, size, CRC32C)."""


@dataclass(frozen=True, slots=True)
class Location:
    """The location of an entry's bytes, and their checksum.

    ``offset`` is the offset of the entry itself, after its record header.
    """

    log_id: int
    offset: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The recorded end of an entry log. A log without such a record ends where its file ends.

    Attributes:
        offset: the index refers to no byte of the log at or after this offset.
        is_counted: the log is no longer written, and its bytes from ``offset`` on are counted as dead.
    """

    offset: int
    is_counted: bool = False

    def encode(self) -> bytes:
        """Return the value for ``end_key``."""
        return _END.pack(self.offset, self.is_counted)

    @staticmethod
    def decode(value: bytes) -> LogEnd:
        """Return the end in a value of ``end_key``."""
        return LogEnd(*_END.unpack(value))


@dataclass(frozen=True, slots=True)
class CheckpointMark:
    """The part of the journals covered by the index.

    Attributes:
        sequences: for each journal, every batch up to this sequence is in the index.
        next_log_id: entry logs from this id on belong to an unfinished flush.
        ledger_count: the number of ledgers with a state in the index.
    """

    sequences: tuple[int, ...] = (0,)
    next_log_id: int = 1
    ledger_count: int = 0

    def encode(self) -> bytes:
        """Return the value for ``MARK_KEY``."""
        first, *others = self.sequences
        found_format = _SEVERAL_FORMAT if others else FORMAT
        fixed = _MARK.pack(found_format, first, self.next_log_id, self.ledger_count)
        return fixed + b"".join(map(_SEQUENCE.pack, others))

    @staticmethod
    def decode(data: bytes) -> CheckpointMark:
        """Return the mark in the value of ``MARK_KEY``.

        Raises:
            UnsupportedFormatError: the value has another format version.
        """
        found_format, more = int.from_bytes(data[:2], "big"), len(data) - _MARK.size
        is_known = more == 0 if found_format == FORMAT else more > 0 and more % _SEQUENCE.size == 0
        if found_format not in (FORMAT, _SEVERAL_FORMAT) or not is_known:
            raise UnsupportedFormatError(
                f"entry index of an unknown format ({len(data)} byte mark): start the version of bkheal that wrote it"
            )
        _, first, next_log_id, ledger_count = _MARK.unpack_from(data)
        others = [sequence for (sequence,) in _SEQUENCE.iter_unpack(data[_MARK.size :])]
        return CheckpointMark((first, *others), next_log_id, ledger_count)


def pack_epochs(epochs: Sequence[int]) -> bytes:
    """Return the value for ``EPOCHS_KEY``."""
    return b"".join(map(_SEQUENCE.pack, epochs))


def unpack_epochs(value: bytes | None) -> list[int]:
    """Return the epochs in the value of ``EPOCHS_KEY``; empty for None.

    Raises:
        UnsupportedFormatError: it has another format.
    """
    if value is None:
        return []
    if len(value) % _SEQUENCE.size:
        raise UnsupportedFormatError("journal epochs of an unknown format: start the version of bkheal that wrote them")
    return [epoch for (epoch,) in _SEQUENCE.iter_unpack(value)]


def entry_range(ledger_id: int) -> tuple[bytes, bytes]:
    """Return the first key and the end key (exclusive) of a ledger's entries."""
    return pack_entry_key(ledger_id, 0), pack_entry_key(ledger_id, (1 << 63) - 1) + b"\0"


def entry_id_of(key: bytes) -> int:
    """Return the entry id in an entry key."""
    return int.from_bytes(key[8:], "big")


def unpack_entry_key(key: bytes) -> tuple[int, int]:
    """Return the ledger id and the entry id in an entry key."""
    ledger_id, entry_id = _ENTRY_KEY.unpack(key)
    return ledger_id, entry_id


def ledger_of_entry_key(key: bytes) -> bytes:
    """Return the part of an entry key shared by all entries of a ledger."""
    return key[:8]


def unpack_location(value: bytes) -> Location:
    """Return the location in the value of an entry."""
    return Location(*_LOCATION.unpack(value))


def unpack_entry_keys(keys: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return (ledger id, entry id) of each entry key: one call for many entries."""
    return list(_ENTRY_KEY.iter_unpack(b"".join(keys)))


def unpack_locations(values: Sequence[bytes]) -> list[tuple[int, int, int, int]]:
    """Return (log id, offset, size, CRC32C) of each value: one call for many entries."""
    return list(_LOCATION.iter_unpack(b"".join(values)))


def ledger_ids_of(keys: Iterable[bytes]) -> set[LedgerId]:
    """Return the ledgers of the entry keys among ``keys``; keys of other kinds are ignored."""
    found = {ledger_of_entry_key(key) for key in keys if key[0] < 0x80}
    return {LedgerId(int.from_bytes(each, "big")) for each in found}


def state_key(ledger_id: int) -> bytes:
    """Return the key of a ledger's state."""
    return _STATE_KEY.pack(_STATE_PREFIX, ledger_id)


def states_after(ledger_id: int) -> tuple[bytes, bytes]:
    """Return the first key and the end key (exclusive) of the states of all ledgers after ``ledger_id`` (-1: all)."""
    return (state_key(ledger_id) + b"\0" if ledger_id >= 0 else _STATE_PREFIX), _STATE_PREFIX + b"\xff"


def ledger_id_of_state(key: bytes) -> int:
    """Return the ledger id in a state's key."""
    ledger_id: int = _STATE_KEY.unpack(key)[1]
    return ledger_id


def dead_key(log_id: int) -> bytes:
    """Return the key of an entry log's number of dead (collected) bytes."""
    return _DEAD_KEY.pack(_DEAD_PREFIX, log_id)


def dead_range() -> tuple[bytes, bytes]:
    """Return the first key and the end key (exclusive) of the numbers of dead bytes."""
    return _DEAD_PREFIX, _DEAD_PREFIX + b"\xff" * 9


def log_id_of_dead(key: bytes) -> int:
    """Return the log id in a key of ``dead_range``."""
    log_id: int = _DEAD_KEY.unpack(key)[1]
    return log_id


def pack_dead(size: int) -> bytes:
    """Return the value for ``dead_key``."""
    return _DEAD.pack(size)


def unpack_dead(value: bytes | None) -> int:
    """Return the number of dead bytes in a value of ``dead_key``; 0 for None."""
    size: int = 0 if value is None else _DEAD.unpack(value)[0]
    return size


def end_key(log_id: int) -> bytes:
    """Return the key of an entry log's end."""
    return _END_KEY.pack(_END_PREFIX, log_id)


def end_range() -> tuple[bytes, bytes]:
    """Return the first key and the end key (exclusive) of the ends of entry logs."""
    return _END_PREFIX, _END_PREFIX + b"\xff" * 9


def log_id_of_end(key: bytes) -> int:
    """Return the log id in a key of ``end_range``."""
    log_id: int = _END_KEY.unpack(key)[1]
    return log_id
