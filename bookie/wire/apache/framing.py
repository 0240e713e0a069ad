"""Frames of Apache's bookie protocol: a four-byte big-endian length, which does not count itself, and a body.

A frame that is empty, has a negative length or is absurdly long closes the connection, as in Apache's code
(docs/formats.md#frames), because the bytes after it have no meaning. A frame that only exceeds the client's limit can
be skipped: the next frame can still be found, and other requests continue.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

from bookie.model.errors import PermanentError
from bookie.model.packet import PACKET_BYTES_MAX

FRAME_BYTES_MAX: Final = PACKET_BYTES_MAX + 4096
"""Maximum size of a whole frame, including its length field.

A little more than ``nettyMaxFrameSizeBytes`` of Apache's servers (5,242,880 by default, 5,253,120 under Pulsar), so
each of their frames is accepted here too.
"""
FRAME_BYTES_SAFE_MAX: Final = 5_242_880
"""Apache's default of ``nettyMaxFrameSizeBytes`` on both sides: divisible messages are sent within this limit."""
FRAME_BYTES_LIMIT: Final = 1 << 30
"""No bookie sends more in one frame: a greater length is invalid. Also the maximum of the configurable limit."""
LENGTH_SIZE: Final = 4
HEAD_BYTES: Final = 64
"""Number of bytes kept from the body of a skipped frame: enough for the header of every message."""

TooLongCallback = Callable[[bytes, int], None]
"""Receives each skipped frame: the first ``HEAD_BYTES`` of its body, and the length of the whole frame."""

_LENGTH: Final = struct.Struct(">i")


class MalformedFrameError(PermanentError):
    """Bytes that are not a message of this protocol. Their connection is no longer usable."""


class FrameTooLargeError(MalformedFrameError):
    """A frame over the limit."""


class FrameSplitter:
    """Cuts a stream of bytes into the bodies of frames. Belongs to one connection."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX, too_long: TooLongCallback | None = None) -> None:
        """Start between two frames.

        Args:
            bytes_max: longest accepted frame, including its length field.
            too_long: receives the head of each longer frame up to ``FRAME_BYTES_LIMIT``, in order with the others.
                None: a longer frame is an error.
        """
        self._bytes_max = bytes_max
        self._too_long = too_long
        self._length_max = bytes_max if too_long is None else FRAME_BYTES_LIMIT
        self._passing = 0
        self._rest = bytearray()
        self._needed = LENGTH_SIZE

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream may end here without cutting off a frame."""
        return not self._rest and not self._passing

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies of the frames completed by ``data``. Exhaust the iterator before the next call.

        Raises:
            FrameTooLargeError: a frame longer than the limit; those before it were yielded.
            MalformedFrameError: an empty frame, or a negative length.
        """
        if self._passing:
            passed = min(self._passing, len(data))
            self._passing -= passed
            data = data[passed:]
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest.clear()
        start, size = 0, len(data)
        self._needed = LENGTH_SIZE
        while size - start >= LENGTH_SIZE:
            end = start + LENGTH_SIZE + self._length(data, start)
            if end - start > self._bytes_max:
                head = data[start + LENGTH_SIZE : min(end, start + LENGTH_SIZE + HEAD_BYTES)]
                self._needed = min(end - start, LENGTH_SIZE + HEAD_BYTES)
                if size - start < self._needed:
                    break
                self._skip_frame(head, end - start, max(0, end - size))
                start = min(end, size)
                self._needed = LENGTH_SIZE
                continue
            if end > size:
                self._needed = end - start
                break
            yield data[start + LENGTH_SIZE : end]
            start = end
        self._rest += data[start:]

    def _skip_frame(self, head: bytes, frame_bytes: int, still_to_come: int) -> None:
        assert self._too_long is not None
        self._passing = still_to_come
        self._too_long(head, frame_bytes)

    def _length(self, data: bytes, start: int) -> int:
        (length,) = _LENGTH.unpack_from(data, start)
        check_length(length, self._length_max)
        return int(length)


def framed(body: bytes) -> bytes:
    """Return a frame around ``body``. Nothing is checked: the sender must respect the limits of its peer."""
    return _LENGTH.pack(len(body)) + body


def check_length(length: int, bytes_max: int = FRAME_BYTES_MAX) -> None:
    """Refuse an invalid length of a body.

    Raises:
        FrameTooLargeError: its frame is longer than ``bytes_max``.
        MalformedFrameError: zero or negative.
    """
    if length + LENGTH_SIZE > bytes_max:
        raise FrameTooLargeError(f"a frame of {length + LENGTH_SIZE} bytes exceeds the limit of {bytes_max}")
    if length <= 0:
        raise MalformedFrameError(f"a frame with a body of {length} bytes means nothing")
