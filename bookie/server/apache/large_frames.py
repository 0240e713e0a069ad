"""The room of one connection for large frames, which is taken before such a frame is read completely.

The room is kept until the requests of the frames have begun; then other bounds apply. A request that waits for those
bounds keeps its frame in memory, but never waits for this room. So every holder of room eventually makes progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookie.server.apache.frames import FrameBlocks
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.room import Room


class LargeFrames:
    """The large frames of one connection. At most one is incomplete; others may have requests that wait to begin."""

    def __init__(
        self,
        room: Room,
        limits: ListenerLimits,
        read_on: Callable[[], None],
        is_held_back: Callable[[], bool],
        disconnect: Callable[[str], None],
    ) -> None:
        """Create the object without room.

        Args:
            room: shared with all connections.
            limits: bounds.
            read_on: called after room was taken for a waiting frame, to resume reading.
            is_held_back: returns whether the frames keep their room for a reason that the client cannot change.
            disconnect: called with the reason if the client is too slow while other connections wait.
        """
        self._room, self._limits = room, limits
        self._read_on, self._is_held_back, self._disconnect = read_on, is_held_back, disconnect
        self._frame = 0
        self._wanted = self._taken = self._kept = 0
        self._is_read = True
        self._too_slow: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the next frame waits for room, so the connection must not be read."""
        return bool(self._wanted)

    def update(self, frames: FrameBlocks, *, is_begun: bool, is_read: bool) -> None:
        """Update the room. To be called after each piece of the stream, and whenever requests have begun.

        Args:
            frames: the stream. Room is taken for its incomplete frame before more is read.
            is_begun: whether all earlier requests have begun, so the room of complete frames is released.
            is_read: whether no waiting request prevents reading from the connection.
        """
        size = frames.frame_bytes
        if frames.rest_number != self._frame or not size:
            self._count_complete_frame()
        if is_begun:
            self.drop()
        if is_read and size > self._limits.small_frame_bytes and not (self._wanted or self._taken):
            self._frame, self._wanted = frames.rest_number, size
            self._take()
        elif is_read and not self._is_read and self._taken:
            self._watch()  # restart the time: the client could not send before
        self._is_read = is_read

    def drop(self) -> None:
        """Release the room of complete frames, whose requests no longer wait."""
        kept, self._kept = self._kept, 0
        if not self._taken:
            self._unwatch()
        if kept:
            self._room.release(kept)

    def close(self) -> None:
        """Release everything, at the end of the connection."""
        self._count_complete_frame()
        self.drop()

    def _count_complete_frame(self) -> None:
        """Count the room of the current frame, if there is one, as that of a complete frame."""
        self._kept += self._taken
        self._taken = self._wanted = 0
        self._room.leave(self._ask)

    def _take(self) -> bool:
        if not self._wanted or not self._room.take(self._ask, self._wanted):
            return False
        self._taken, self._wanted = self._wanted, 0
        self._watch()
        return True

    def _ask(self) -> None:
        if self._take():
            self._read_on()

    def _watch(self) -> None:
        self._unwatch()
        self._too_slow = asyncio.get_running_loop().call_later(self._limits.frame_s, self._check_frame_deadline)

    def _unwatch(self) -> None:
        if self._too_slow is not None:
            self._too_slow.cancel()
            self._too_slow = None

    def _check_frame_deadline(self) -> None:
        if not self._room.is_wanted or self._is_held_back():
            self._watch()
        elif self._taken:
            self._disconnect(
                "a large frame of the client did not arrive in time, and other connections waited for "
                "the memory it takes"
            )
        else:
            self._disconnect(
                "the client did not read its responses, and other connections waited for the memory they take"
            )
