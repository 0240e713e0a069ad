"""The unsent answers to one client, and the room that they take until they are sent.

A client that does not receive its answers occupies a part of a shared room. Its connection is closed if others wait for
this room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.room import SharedRoom

_QUEUED_BYTES_MAX: Final = 64 << 10
"""Bytes of answers that wait for the end of the turn of the event loop. If there are more, the next answer without room
lets all of them be written at once."""
_PORTION_BYTES: Final = 256 << 10
"""Size of one write. A transport copies the bytes that the socket does not accept at once, so many answers are written
in portions."""


class OutgoingAnswers:
    """The answers of one connection, which forwards asyncio's callbacks."""

    def __init__(self, room: SharedRoom, limits: ListenerLimits, disconnect: Callable[[str], None]) -> None:
        self._room = room.answers
        self._all_unsent = room.unsent
        self._limits = limits
        self._disconnect = disconnect
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames: list[bytes] = []
        self._taken = 0
        self._queued = 0
        """Bytes in ``_frames``."""
        self._roomless = 0
        """Bytes of unsent answers without room, which ``_all_unsent`` includes."""
        self._written = 0
        self._too_slow: asyncio.TimerHandle | None = None

    def use(self, transport: asyncio.Transport) -> None:
        """Send over this transport from now on."""
        self._transport = transport
        self._unwatch()
        transport.set_write_buffer_limits(high=1, low=0)  # to be notified when all bytes were sent, and when not

    @property
    def is_open(self) -> bool:
        """Whether the client is still connected."""
        return self._transport is not None

    @property
    def is_empty(self) -> bool:
        """Whether no answer waits for the transport."""
        return not self._frames

    @property
    def is_full(self) -> bool:
        """Whether the client must receive answers before more requests begin for it."""
        if self._transport is None or self._too_slow is None:
            return False
        limits = self._limits
        return self._unsent > (limits.crowded_unsent_bytes_max if self._all_unsent.is_full else limits.unsent_bytes_max)

    @property
    def _unsent(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, frames: Sequence[bytes], taken: int = 0) -> None:
        """Queue answers. Those of one turn of the event loop are sent together.

        Args:
            frames: the answers.
            taken: the room that was taken for them, by estimate. It is corrected to their size, which is released after
                they were sent. 0: they are small, and take no room.
        """
        if self._transport is None:
            self._room.release(taken)
            return
        size = sum(map(len, frames))
        if taken:
            self._taken += size
            self._room.release(taken - size)
        if frames and not self._frames:
            self._loop.call_soon(self.flush)
        self._frames += frames
        if not taken and size:
            self._count_roomless(min(self._roomless, self._queued + self._unsent) + size)
        self._queued += size
        if not taken and self._queued > _QUEUED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Pass everything to the transport."""
        frames, self._frames, size, self._queued = self._frames, [], self._queued, 0
        for data in _joined_frames(frames, size):
            if self._transport is not None and not self._transport.is_closing():
                self._written += len(data)
                self._transport.write(data)
        if self._too_slow is None:
            self._release_room()

    def note_held_up(self) -> None:
        """Record that the client has not received everything."""
        if self._too_slow is None:
            self._watch()

    def has_left(self) -> None:
        """Record that the client has received everything."""
        self._unwatch()
        if self.is_empty:
            self._release_room()

    def close(self) -> None:
        """Discard the answers, because the client has disconnected."""
        self._transport = None
        self._frames.clear()
        self._queued = 0
        self._unwatch()
        self._release_room()

    def _watch(self) -> None:
        fetched = self._written - self._unsent
        self._too_slow = self._loop.call_later(self._limits.unfetched_s, self._check_progress, fetched)

    def _check_progress(self, fetched_before: int) -> None:
        fetched = self._written - self._unsent - fetched_before
        if self._room.is_wanted and fetched < self._limits.unsent_bytes_max:
            self._disconnect(
                "the client did not read its answers, and other connections waited for the memory they take"
            )
            return
        self._watch()

    def _unwatch(self) -> None:
        if self._too_slow is not None:
            self._too_slow.cancel()
            self._too_slow = None

    def _count_roomless(self, size: int) -> None:
        self._all_unsent.held += size - self._roomless
        self._roomless = size

    def _release_room(self) -> None:
        self._count_roomless(0)
        taken, self._taken = self._taken, 0
        if taken:
            self._room.release(taken)


def _joined_frames(frames: Sequence[bytes], total: int) -> Iterator[bytes]:
    """Join frames of ``total`` bytes to strings of about ``_PORTION_BYTES``."""
    if frames and total <= _PORTION_BYTES:  # the usual case; the loop takes seven times as long
        yield b"".join(frames)
        return
    portion: list[bytes] = []
    size = 0
    for frame in frames:
        portion.append(frame)
        size += len(frame)
        if size >= _PORTION_BYTES:
            yield b"".join(portion)
            portion, size = [], 0
    if portion:
        yield b"".join(portion)
