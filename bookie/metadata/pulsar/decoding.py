"""The references in the nodes of Pulsar's managed ledgers, cursors and schemas. Pure.

The invariant: a node is decoded in full or refused. If a reference was missed, a ledger in use would seem unused. So
an unknown field, a damaged compression header and a missing codec are all refused.

Source: docs/formats.md#references-of-pulsar.
"""

from __future__ import annotations

import enum
import json
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bookie.metadata.proto.managed_ledgers_pb2 import (
    CompressionHead,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    SchemaLocator,
)
from bookie.model.errors import PermanentError

M = TypeVar("M", bound=Message)

_MAGIC: Final = b"\x47\x78"
_HEAD_OFFSET: Final = len(_MAGIC) + 4
_SIZE_MAX: Final = 64 << 20
"""Largest size of a decompressed node in bytes: far more than in any store. Bounds the memory for a damaged node."""
_CODECS: Final = {1: "lz4_raw", 3: "zstd", 4: "snappy"}
_COMPACTED: Final = "CompactedTopicLedger"
_BUCKET: Final = "#pulsar.internal.delayed.bucket"
_LONG_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = len(str(_LONG_MAX))
_SHADOW_SOURCE: Final = "PULSAR.SHADOW_SOURCE"
"""The property of a shadow topic that contains the name of its source."""


class UndecodableNodeError(PermanentError):
    """The node of a managed ledger, cursor or schema cannot be decoded."""


class EntriesLocation(enum.Enum):
    """Location of a referenced ledger's entries."""

    BOOKKEEPER = "bookkeeper"
    BOTH = "both"
    """Also in another storage, and the copy in BookKeeper will be deleted."""
    OFFLOADED = "offloaded"
    """Only in another storage: Pulsar deleted the ledger."""
    OF_SOURCE = "of-source"
    """In the ledgers of another topic, the source of this shadow topic. The reference is a copy, possibly outdated."""


class LedgerReference(NamedTuple):
    """A ledger of a topic's messages. A tuple, because a large topic has thousands."""

    ledger_id: int
    copy: EntriesLocation
    is_empty: bool
    """Whether it ended without entries."""


@dataclass(frozen=True, slots=True)
class CursorReferences:
    """The references of a subscription."""

    ledgers: tuple[int, ...]
    position_in: int | None
    """The ledger that contains its position, and the reference to a compacted ledger, if any. None: the position is
    in the node."""


def managed_ledger_references(data: bytes) -> tuple[LedgerReference, ...]:
    """Return the ledgers of a topic. New topics and nodes above topics have no data.

    Raises:
        UndecodableNodeError: see above.
    """
    info = _parsed(ManagedLedgerInfo, _uncompressed(data))
    if any(each.key == _SHADOW_SOURCE for each in info.properties):
        return tuple(_reference(each)._replace(copy=EntriesLocation.OF_SOURCE) for each in info.ledgerInfo)
    return tuple(map(_reference, info.ledgerInfo))


def is_shadow(data: bytes) -> bool:
    """Return whether the node of a partitioned topic is that of a shadow topic. Its partitions have no property.

    Raises:
        UndecodableNodeError: it is not the JSON object written by Pulsar.
    """
    try:
        properties = json.loads(data).get("properties")
        return properties is not None and properties.get(_SHADOW_SOURCE) is not None
    except (ValueError, RecursionError, AttributeError) as error:
        raise UndecodableNodeError("the node of a partitioned topic is not of Pulsar's form") from error


def cursor_references(data: bytes) -> CursorReferences:
    """Return the ledgers of a subscription: of its position, of a compacted topic, and of delayed messages.

    Raises:
        UndecodableNodeError: see above.
    """
    if not data:
        return CursorReferences((), position_in=None)
    info = _parsed(ManagedCursorInfo, _uncompressed(data))
    position_in = info.cursorsLedgerId if info.cursorsLedgerId >= 0 else None
    found = [] if position_in is None else [position_in]
    found += [each.value for each in info.properties if each.name == _COMPACTED]
    for each in info.cursorProperties:
        name: object = each.name
        if not isinstance(name, str):  # protobuf returns bytes for a text with invalid UTF-8
            raise UndecodableNodeError("the name of a property is not UTF-8")
        if name.startswith(_BUCKET):
            number = each.value
            if len(number) > _DIGITS_MAX or not number.isascii() or not number.isdigit() or int(number) > _LONG_MAX:
                raise UndecodableNodeError("a bucket of delayed messages has no ledger id")
            found.append(int(number))
    return CursorReferences(tuple(found), position_in)


def schema_references(data: bytes) -> tuple[int, ...]:
    """Return the ledgers of the versions of a schema.

    Raises:
        UndecodableNodeError: see above.
    """
    if not data:
        return ()
    locator = _parsed(SchemaLocator, data)
    return tuple(dict.fromkeys(each.position.ledgerId for each in (locator.info, *locator.index)))


def _reference(info: ManagedLedgerInfo.LedgerInfo) -> LedgerReference:
    copy = EntriesLocation.BOOKKEEPER
    if info.HasField("offloadContext") and info.offloadContext.complete:
        copy = EntriesLocation.OFFLOADED if info.offloadContext.bookkeeperDeleted else EntriesLocation.BOTH
    return LedgerReference(info.ledgerId, copy, info.entries == 0 and info.timestamp > 0)


def _parsed(kind: type[M], data: bytes) -> M:
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise UndecodableNodeError(f"{len(data)} bytes are not a {kind.DESCRIPTOR.name}") from error
    if not message.IsInitialized():
        raise UndecodableNodeError(f"a {kind.DESCRIPTOR.name} lacks a field")
    if len(UnknownFieldSet(message)):
        raise UndecodableNodeError(f"a {kind.DESCRIPTOR.name} has a field that this release does not know")
    return message


def _uncompressed(data: bytes) -> bytes:
    if not data.startswith(_MAGIC):
        return data
    size = int.from_bytes(data[len(_MAGIC) : _HEAD_OFFSET], "big", signed=True)
    payload_at = _HEAD_OFFSET + size
    if len(data) < _HEAD_OFFSET or size < 0 or len(data) < payload_at:
        raise UndecodableNodeError("the header of a compressed node is truncated")
    head = _parsed(CompressionHead, data[_HEAD_OFFSET:payload_at])
    if not 0 <= head.uncompressedSize <= _SIZE_MAX:
        raise UndecodableNodeError(f"a node of {head.uncompressedSize} bytes, uncompressed")
    payload = data[payload_at:]
    found = (
        payload if head.compressionType == 0 else _decompressed(head.compressionType, payload, head.uncompressedSize)
    )
    if len(found) != head.uncompressedSize:
        raise UndecodableNodeError("a compressed node does not have the size in its header")
    return found


def _decompressed(kind: int, payload: bytes, size: int) -> bytes:
    if kind == 2:
        try:
            return zlib.decompressobj().decompress(payload, size + 1)  # it ends with a flush, without an end marker
        except zlib.error as error:
            raise UndecodableNodeError("a compressed node is damaged") from error
    if kind not in _CODECS:
        raise UndecodableNodeError(f"a node is compressed in an unknown way ({kind})")
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise UndecodableNodeError(f"a node is compressed with {_CODECS[kind]}: install bkheal[spark]") from error
    try:
        return bytes(pa.Codec(_CODECS[kind]).decompress(payload, decompressed_size=size, asbytes=True))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UndecodableNodeError("a compressed node is damaged") from error
