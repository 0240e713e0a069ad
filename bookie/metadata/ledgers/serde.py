"""Ledger metadata as bytes, in its three versions, exactly as Apache writes them.

Metadata is written back in the format in which it was read, with its creation time and custom metadata. Only the
creator token is dropped (the caller sets ``ctoken=0``). Malformed metadata is unreadable and never guessed, because a
wrong guess about a ledger's state or end loses entries.

Source: docs/formats.md#ledger-metadata.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from bookie.metadata.ledgers import serde_v1
from bookie.metadata.ledgers.serde_message import (
    UnreadableMetadataError,
    UnwritableMetadataError,
    from_message,
    to_message,
)
from bookie.metadata.proto.metadata_formats_pb2 import LedgerMetadataFormat
from bookie.metadata.proto.text import UnreadableTextError, parse_text, quoted
from bookie.model.metadata import LedgerMetadata
from bookie.model.varint import varint

__all__ = ["UnreadableMetadataError", "UnwritableMetadataError", "decode", "encode"]

_MAGIC: Final = b"BookieMetadataFormatVersion\t"
_VERSION_DIGITS_MAX: Final = 9
_V3_HEADER: Final = _MAGIC + b"3\n"
_V3_BODY: Final = len(_V3_HEADER)


def encode(metadata: LedgerMetadata) -> bytes:
    """Bytes of ``metadata`` in its own format version.

    Raises:
        UnwritableMetadataError: that format cannot hold it, for example a password in format 1.
    """
    match metadata.format_version:
        case 3:
            body = to_message(metadata, has_ctoken=True).SerializeToString()
            return _V3_HEADER + varint(len(body)) + body
        case 2:
            return _MAGIC + b"2\n" + _text(to_message(metadata, has_ctoken=False)).encode()
        case 1:
            return _MAGIC + b"1\n" + serde_v1.encode_body(metadata)
        case other:
            raise UnwritableMetadataError(f"cannot write ledger metadata of format {other}, only 1 to 3")


def decode(data: bytes) -> LedgerMetadata:
    """Read ledger metadata of format 1, 2 or 3.

    Raises:
        UnreadableMetadataError: anything else.
    """
    if data.startswith(_V3_HEADER):
        return _decode_v3(data)
    version, body = _header(data)
    match version:
        case 1:
            return serde_v1.decode_body(body)
        case 2:
            return _decode_v2(body)
        case 3:  # a version written with leading zeros
            return _decode_v3(_V3_HEADER + body)
        case _:
            raise UnreadableMetadataError(f"ledger metadata of format {version}, only 1 to 3 are known")


def _header(data: bytes) -> tuple[int, bytes]:
    if not data.startswith(_MAGIC):
        raise UnreadableMetadataError(f"{len(data)} bytes that do not begin like ledger metadata")
    end = data.find(b"\n", len(_MAGIC), len(_MAGIC) + _VERSION_DIGITS_MAX + 1)
    digits = data[len(_MAGIC) : end]
    if end < 0 or not digits.isdigit():
        raise UnreadableMetadataError("ledger metadata without a format version")
    return int(digits), data[end + 1 :]


def _decode_v3(data: bytes) -> LedgerMetadata:
    size = 0
    start = _V3_BODY
    for shift in range(0, 35, 7):
        if start >= len(data):
            break
        byte = data[start]
        start += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            if start + size > len(data):
                break
            try:
                return from_message(LedgerMetadataFormat.FromString(data[start : start + size]), 3)
            except DecodeError as error:
                raise UnreadableMetadataError("ledger metadata is not the message it should be") from error
    raise UnreadableMetadataError(f"ledger metadata is truncated: {len(data)} bytes")


def _decode_v2(body: bytes) -> LedgerMetadata:
    message = LedgerMetadataFormat()
    try:
        parse_text(body, message)
    except UnreadableTextError as error:
        raise UnreadableMetadataError(f"ledger metadata of format 2: {error}") from error
    return from_message(message, 2)


def _text(message: LedgerMetadataFormat) -> str:
    lines = [
        f"quorumSize: {message.quorumSize}",
        f"ensembleSize: {message.ensembleSize}",
        f"length: {message.length}",
        f"lastEntryId: {message.lastEntryId}",
        f"state: {LedgerMetadataFormat.State.Name(message.state)}",
    ]
    for segment in message.segment:
        members = [f"  ensembleMember: {quoted(member)}" for member in segment.ensembleMember]
        lines += ["segment {", *members, f"  firstEntryId: {segment.firstEntryId}", "}"]
    lines += [
        f"digestType: {LedgerMetadataFormat.DigestType.Name(message.digestType)}",
        f"password: {quoted(message.password)}",
        f"ackQuorumSize: {message.ackQuorumSize}",
    ]
    if message.HasField("ctime"):
        lines.append(f"ctime: {message.ctime}")
    for entry in message.customMetadata:
        lines += ["customMetadata {", f"  key: {quoted(entry.key)}", f"  value: {quoted(entry.value)}", "}"]
    return "\n".join(lines) + "\n"
