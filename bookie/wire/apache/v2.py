"""Version 2 of Apache's bookie protocol: the bodies of its frames as values, both ways (docs/formats.md#version-2).

A body is a packet header of four bytes (version, opcode, flags) and a fixed layout after it; all numbers are
big-endian. Answers repeat the version and the opcode of the request. Decoding refuses bodies without such a layout; it
does not check versions or ids, which is the bookie's task.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.framing import MalformedFrameError

VERSION: Final = 2
"""The newest version, used in every request."""
VERSION_MIN: Final = 0
MASTER_KEY_SIZE: Final = 20

ADD_ENTRY: Final = 1
READ_ENTRY: Final = 2
AUTH: Final = 3
BATCH_READ_ENTRY: Final = 7

DO_FENCING: Final = 0x1
RECOVERY_ADD: Final = 0x2
HIGH_PRIORITY: Final = 0x4

BATCH_OVERHEAD_BYTES: Final = 36
"""Bytes of a batch read's answer counted against its budget before any entry."""
BATCH_ENTRY_OVERHEAD_BYTES: Final = 4

_HEADER: Final = struct.Struct(">I")
_IDS: Final = struct.Struct(">qq")
_BATCH: Final = struct.Struct(">qqqiq")
_ANSWER: Final = struct.Struct(">Iiqq")
_BATCH_ANSWER: Final = struct.Struct(">Iiqqq")
_SIZE: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class AddV2:
    """Store one entry, in its stored form. The entry is long enough for the ids in its header."""

    master_key: bytes = field(repr=False)
    entry: bytes = field(repr=False)
    flags: int = 0
    version: int = VERSION

    @property
    def ledger_id(self) -> int:
        """The ledger id in the entry's header."""
        return int(_IDS.unpack_from(self.entry)[0])

    @property
    def entry_id(self) -> int:
        """The entry id in the entry's header."""
        return int(_IDS.unpack_from(self.entry)[1])

    @property
    def is_recovery(self) -> bool:
        """Whether the entry is to be accepted on a fenced ledger as well."""
        return bool(self.flags & RECOVERY_ADD)


@dataclass(frozen=True, slots=True)
class ReadV2:
    """Read one entry; -1 is the last one."""

    ledger_id: int
    entry_id: int
    master_key: bytes = field(default=b"", repr=False)
    """Empty if none was sent; with DO_FENCING and version 2 there is one."""
    flags: int = 0
    version: int = VERSION

    @property
    def is_fencing(self) -> bool:
        """Whether the ledger is to be fenced first."""
        return bool(self.flags & DO_FENCING)


@dataclass(frozen=True, slots=True)
class BatchReadV2:
    """Read entries from ``start_entry_id`` on, limited by a count (0 or less: no limit) and by the answer's bytes."""

    ledger_id: int
    start_entry_id: int
    request_id: int
    count_max: int
    bytes_max: int
    master_key: bytes = field(default=b"", repr=False)
    flags: int = 0
    version: int = VERSION

    @property
    def is_fencing(self) -> bool:
        """Whether the ledger is to be fenced first."""
        return bool(self.flags & DO_FENCING)


@dataclass(frozen=True, slots=True)
class AuthV2:
    """One step of a login, in either direction."""

    plugin: str
    payload: bytes = field(repr=False)
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class AddedV2:
    """Answer to ``AddV2``; ``code`` is one of ``statuses``."""

    code: int
    ledger_id: int
    entry_id: int
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class EntryV2:
    """Answer to ``ReadV2``. ``entry_id`` is that of the request, including -1; ``entry`` is empty on an error."""

    code: int
    ledger_id: int
    entry_id: int
    entry: bytes = field(default=b"", repr=False)
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class BatchV2:
    """Answer to ``BatchReadV2``: entries without gaps from the first on."""

    code: int
    ledger_id: int
    start_entry_id: int
    request_id: int
    entries: tuple[bytes, ...] = field(default=(), repr=False)
    version: int = VERSION


RequestV2 = AddV2 | ReadV2 | BatchReadV2 | AuthV2
ResponseV2 = AddedV2 | EntryV2 | BatchV2 | AuthV2


def packet_header(opcode: int, flags: int = 0) -> bytes:
    """Return the start of a request's body."""
    return _header(VERSION, opcode, flags)


def encode_request(request: RequestV2) -> bytes:
    """Return the body of a frame with ``request``."""
    match request:
        case AddV2():
            return _header(request.version, ADD_ENTRY, request.flags) + request.master_key + request.entry
        case ReadV2():
            header = _header(request.version, READ_ENTRY, request.flags)
            return header + _IDS.pack(request.ledger_id, request.entry_id) + request.master_key
        case BatchReadV2():
            asked = _BATCH.pack(
                request.ledger_id, request.start_entry_id, request.request_id, request.count_max, request.bytes_max
            )
            return _header(request.version, BATCH_READ_ENTRY, request.flags) + asked + request.master_key
        case AuthV2():
            return _encode_auth(request)


def encode_response(response: ResponseV2) -> bytes:
    """Return the body of a frame with ``response``."""
    match response:
        case AddedV2():
            header = _packed(response.version, ADD_ENTRY)
            return _ANSWER.pack(header, response.code, response.ledger_id, response.entry_id)
        case EntryV2():
            header = _packed(response.version, READ_ENTRY)
            return _ANSWER.pack(header, response.code, response.ledger_id, response.entry_id) + response.entry
        case BatchV2():
            head = _BATCH_ANSWER.pack(
                _packed(response.version, BATCH_READ_ENTRY),
                response.code,
                response.ledger_id,
                response.start_entry_id,
                response.request_id,
            )
            return b"".join((head, *(_SIZE.pack(len(entry)) + entry for entry in response.entries)))
        case AuthV2():
            return _encode_auth(response)


def decode_request(body: bytes) -> RequestV2:
    """Return the request in the body of a frame.

    Raises:
        MalformedFrameError: an opcode without a request, or a body too short for its layout.
    """
    version, opcode, flags = _unpacked(body)
    try:
        if opcode == ADD_ENTRY:
            return _decode_add(body, version, flags)
        if opcode == READ_ENTRY:
            ledger_id, entry_id = _IDS.unpack_from(body, _HEADER.size)
            key = _fencing_key(body, _HEADER.size + _IDS.size, version, flags)
            return ReadV2(ledger_id, entry_id, key, flags, version)
        if opcode == BATCH_READ_ENTRY:
            ledger_id, entry_id, request_id, count_max, bytes_max = _BATCH.unpack_from(body, _HEADER.size)
            key = _fencing_key(body, _HEADER.size + _BATCH.size, version, flags)
            return BatchReadV2(ledger_id, entry_id, request_id, count_max, bytes_max, key, flags, version)
    except struct.error as error:
        raise MalformedFrameError(f"opcode {opcode} with a body of {len(body)} bytes: {error}") from error
    if opcode == AUTH:
        return _decode_auth(body, version)
    raise MalformedFrameError(f"opcode {opcode} of version {version} is not a request")


def decode_response(body: bytes) -> ResponseV2:
    """Return the answer in the body of a frame.

    Raises:
        MalformedFrameError: an unknown opcode, or bytes that do not fit its layout.
    """
    version, opcode, _ = _unpacked(body)
    try:
        if opcode == ADD_ENTRY:
            _, code, ledger_id, entry_id = _ANSWER.unpack(body)
            return AddedV2(code, ledger_id, entry_id, version)
        if opcode == READ_ENTRY:
            _, code, ledger_id, entry_id = _ANSWER.unpack_from(body)
            return EntryV2(code, ledger_id, entry_id, body[_ANSWER.size :], version)
        if opcode == BATCH_READ_ENTRY:
            _, code, ledger_id, start_entry_id, request_id = _BATCH_ANSWER.unpack_from(body)
            return BatchV2(code, ledger_id, start_entry_id, request_id, batch_entries(body), version)
    except struct.error as error:
        raise MalformedFrameError(f"answer of opcode {opcode} with {len(body)} bytes: {error}") from error
    if opcode == AUTH:
        return _decode_auth(body, version)
    raise MalformedFrameError(f"opcode {opcode} of version {version} is not an answer")


def _packed(version: int, opcode: int, flags: int = 0) -> int:
    if version == 0:
        return opcode
    return (version & 0xFF) << 24 | (opcode & 0xFF) << 16 | flags & 0xFFFF


def _header(version: int, opcode: int, flags: int) -> bytes:
    return _HEADER.pack(_packed(version, opcode, flags))


def _unpacked(body: bytes) -> tuple[int, int, int]:
    """Return version, opcode and flags; before version 1 the whole header is the opcode."""
    if len(body) < _HEADER.size:
        raise MalformedFrameError(f"a body of {len(body)} bytes has no packet header")
    (header,) = _HEADER.unpack_from(body)
    version = header >> 24
    if version == 0:
        return 0, header, 0
    return version, header >> 16 & 0xFF, header & 0xFFFF


def _decode_add(body: bytes, version: int, flags: int) -> AddV2:
    start = _HEADER.size + MASTER_KEY_SIZE
    _IDS.unpack_from(body, start)  # raises if it is too short for the properties
    return AddV2(body[_HEADER.size : start], body[start:], flags, version)


def _fencing_key(body: bytes, start: int, version: int, flags: int) -> bytes:
    """Return the key after a read. Apache's bookies read it under these two conditions, and otherwise ignore it."""
    if not flags & DO_FENCING or version < VERSION:
        return b""
    key = body[start : start + MASTER_KEY_SIZE]
    if len(key) < MASTER_KEY_SIZE:
        raise MalformedFrameError(f"a fencing read with {len(key)} of the {MASTER_KEY_SIZE} bytes of a master key")
    return key


def batch_entries(body: bytes) -> tuple[bytes, ...]:
    """Return the entries in the answer to a batch read.

    Raises:
        MalformedFrameError: they cannot be separated.
    """
    entries: list[bytes] = []
    start = _BATCH_ANSWER.size
    while start < len(body):
        if len(body) - start < _SIZE.size:
            raise MalformedFrameError(f"{len(body) - start} bytes after the last entry of a batch")
        (size,) = _SIZE.unpack_from(body, start)
        start += _SIZE.size
        if not 0 <= size <= len(body) - start:
            raise MalformedFrameError(f"an entry of {size} bytes in the {len(body) - start} that are left of a batch")
        entries.append(body[start : start + size])
        start += size
    return tuple(entries)


def _encode_auth(message: AuthV2) -> bytes:
    auth = pb.AuthMessage(authPluginName=message.plugin, payload=message.payload)
    return _header(message.version, AUTH, 0) + auth.SerializeToString()


def _decode_auth(body: bytes, version: int) -> AuthV2:
    message = pb.AuthMessage()
    try:
        message.ParseFromString(body[_HEADER.size :])
        if not message.IsInitialized():
            raise MalformedFrameError("a login message without a plugin name or a payload")
    except DecodeError as error:
        raise MalformedFrameError(f"no login message: {error}") from error
    return AuthV2(message.authPluginName, message.payload, version)
