"""The byte stream of a client as blocks of frames, which are parsed in the receive buffer.

A frame that is received in one piece is not copied. A frame that is received in several pieces is joined once.
``bookie.wire.apache.framing`` has the format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from bookie.wire.apache.framing import LENGTH_SIZE, check_length

_LENGTH: Final = struct.Struct(">i")


class FrameBlocks:
    """The stream of one connection, divided into frames."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.rest_bytes = 0
        """The number of stored bytes of an incomplete frame; 0 between frames."""
        self.rest_number = 0
        """The number of incomplete frames stored so far."""
        self._rest: list[bytes] = []

    @property
    def frame_bytes(self) -> int:
        """Size of the incomplete frame; 0 between frames, and if its length has not arrived yet."""
        return self._frame_bytes() if self.rest_bytes >= LENGTH_SIZE else 0

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield blocks, each with the offset of its first frame. The caller must ``keep`` the rest of each block.

        Raises:
            MalformedFrameError: a frame that was received in pieces is too long or empty.
        """
        start = 0
        if self.rest_bytes:
            if self.rest_bytes < LENGTH_SIZE:
                start = self._move(data, 0, LENGTH_SIZE)
            if self.rest_bytes >= LENGTH_SIZE:
                start = self._move(data, start, self._frame_bytes())
                if self.rest_bytes == self._frame_bytes():
                    frame = b"".join(self._rest)
                    self._rest, self.rest_bytes = [], 0
                    yield frame, 0
        if start < len(data):
            yield data, start

    def frame_end(self, block: bytes, start: int) -> int | None:
        """Return the end of the frame at ``start``, or None if it is not complete in the block.

        Raises:
            MalformedFrameError: it is too long or empty.
        """
        if len(block) - start < LENGTH_SIZE:
            return None
        (length,) = _LENGTH.unpack_from(block, start)
        check_length(length, self.frame_bytes_max)
        end = start + LENGTH_SIZE + int(length)
        return end if end <= len(block) else None

    def keep(self, block: bytes, start: int) -> None:
        """Store the incomplete last frame of a block, from ``start`` on, until it is complete."""
        if start < len(block):
            self._rest = [block[start:]]
            self.rest_bytes = len(block) - start
            self.rest_number += 1

    def _move(self, data: bytes, start: int, needed: int) -> int:
        """Store bytes of ``data`` until there are ``needed``, as far as available, and return their end."""
        end = min(start + needed - self.rest_bytes, len(data))
        self._rest.append(data[start:end])
        self.rest_bytes += end - start
        return end

    def _frame_bytes(self) -> int:
        if len(self._rest[0]) < LENGTH_SIZE:
            self._rest = [b"".join(self._rest)]
        (length,) = _LENGTH.unpack_from(self._rest[0])
        check_length(length, self.frame_bytes_max)
        return LENGTH_SIZE + int(length)
