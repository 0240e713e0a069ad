"""Ledger metadata as nearly every ledger has it, parsed at the least cost.

The reference decoder builds model objects, which is most of its time. A scan needs only columns, so here a message of
format 3 is parsed, checked by the same rules (formats 2.7), and handed out as it is. Whatever is not plainly sound and
complete is left to the reference decoder, which also says what is wrong with it; property tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from bookie.metadata.proto.metadata_formats_pb2 import LedgerMetadataFormat

_HEADER: Final = b"BookieMetadataFormatVersion\t3\n"
_BODY: Final = len(_HEADER) + 1
_parse: Final[Callable[[bytes], LedgerMetadataFormat]] = LedgerMetadataFormat.FromString


def usual_message(data: bytes) -> LedgerMetadataFormat | None:
    """Return the message in ``data``, or None where the reference decoder has to judge.

    What is returned has every field that Apache and this project write, and sane quorums. Its fragments are not
    checked yet.
    """
    if not data.startswith(_HEADER) or len(data) < _BODY + 1:
        return None
    size, start = data[_BODY - 1], _BODY
    if size > 0x7F:
        size, start = size & 0x7F | data[_BODY] << 7, _BODY + 1
    # Two bytes hold a length below 16 KiB. In a third one, size is beyond every such length.
    if size > 0x3FFF or start + size != len(data):
        return None
    try:
        message = _parse(data[start:])
    except DecodeError:
        return None
    has, write_quorum = message.HasField, message.quorumSize
    if (
        message.IsInitialized()
        and has("lastEntryId")
        and has("password")
        and has("digestType")
        and has("ackQuorumSize")
        and message.ensembleSize >= write_quorum >= message.ackQuorumSize >= 0
        and write_quorum >= 1
        # protobuf hands out the bare bytes of a key that is not UTF-8.
        and (not message.customMetadata or all(isinstance(entry.key, str) for entry in message.customMetadata))
    ):
        return message
    return None
