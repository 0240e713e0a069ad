"""The few metadata fields that a scan over all ledgers needs for most of them, cheaper than full decoding.

Only for format 3. It stores bookie names verbatim: a bookie missing in the bytes is not a member.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from bookie.metadata.proto.metadata_formats_pb2 import LedgerMetadataFormat

_HEADER: Final = b"BookieMetadataFormatVersion\t3\n"


@dataclass(frozen=True, slots=True)
class PartialMetadata:
    """The metadata fields that ``decode_partial`` reads."""

    is_closed: bool
    ensemble_size: int
    write_quorum: int


def decode_partial(data: bytes) -> PartialMetadata | None:
    """Return a few fields of ledger metadata; None if the full ``decode`` is needed, which accepts all formats."""
    if not data.startswith(_HEADER):
        return None
    size, start = 0, len(_HEADER)
    for shift in range(0, 35, 7):
        if start >= len(data):
            return None
        byte = data[start]
        start += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    body = data[start : start + size]
    if len(body) < size:
        return None
    try:
        message = LedgerMetadataFormat.FromString(body)
    except DecodeError:
        return None
    if not message.IsInitialized() or not message.segment:
        return None
    is_closed = message.state == LedgerMetadataFormat.CLOSED
    return PartialMetadata(is_closed, message.ensembleSize, message.quorumSize)
