"""Answers that exceed the limit of this side: their request, found by their first bytes, and its result.

An entry may be larger than expected if a cluster's writers and bookies were configured for this. The entry exists, so
its reader gets an I/O error, never "absent" (S6), and no other request is affected.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.framing import MalformedFrameError

HINT: Final = "raise --frame-bytes-max"
"""Advice for operators. The option of ``bkheal auditor`` has the same name."""

_HEADER_TAG: Final = 0x0A
_HEADER_START: Final = 2
_HEADER_BYTES_MAX: Final = 61
"""Longest header whose length fits into one byte and that fits into ``framing.HEAD_BYTES``; bookies send about 10."""


def too_long_detail(frame_bytes: int, bytes_max: int) -> str:
    """Return the detail for the result of such an answer."""
    return f"a frame of {frame_bytes} bytes exceeds the limit of {bytes_max}: {HINT}"


def decode_answer_ids(head: bytes) -> tuple[int, int]:
    """Return operation and transaction id of an answer in version 3, from the first ``HEAD_BYTES`` of its body.

    Raises:
        MalformedFrameError: it does not begin with a header.
    """
    header = pb.BKPacketHeader()
    size = head[1] if len(head) >= _HEADER_START and head[0] == _HEADER_TAG else _HEADER_BYTES_MAX + 1
    try:
        if size > _HEADER_BYTES_MAX:
            raise DecodeError
        header.ParseFromString(head[_HEADER_START : _HEADER_START + size])
    except DecodeError as error:
        raise MalformedFrameError("a long frame that does not begin with a header") from error
    if not header.IsInitialized():
        raise MalformedFrameError("an over-long frame with an unrecognized header")
    return header.operation, header.txnId
