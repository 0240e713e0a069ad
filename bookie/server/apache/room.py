"""Memory budgets that all connections of a listener share, in a fair order.

A request for which there is no room waits in a queue, and gets room in its turn. While there is a queue, new requests
are added at its end. So no request starves, and released room goes to the longest waiter. A holder of room never waits
for more room of the same kind before it releases its own. It may wait for its own client, which has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bookie.server.apache.limits import ListenerLimits

Ask = Callable[[], None]
"""The callback of a waiter in its turn. It calls ``take`` again, or leaves without room."""


class Room:
    """A budget of bytes for one purpose."""

    def __init__(self, bytes_max: int) -> None:
        self.held = 0
        """Bytes in use. A request for more than the total succeeds if nothing else is held."""
        self._bytes_max = bytes_max
        self._line: dict[Ask, int] = {}
        self._asked: Ask | None = None
        self._is_serving = False

    @property
    def is_wanted(self) -> bool:
        """Whether there is a queue."""
        return bool(self._line)

    def take(self, ask: Ask, size: int) -> bool:
        """Take ``size`` bytes. If there is no room, return False, and call ``ask`` in its turn."""
        if (self._line and self._asked != ask) or not self._fits(size):
            self._line.setdefault(ask, size)
            return False
        self._asked = None
        self.held += size
        return True

    def release(self, size: int) -> None:
        """Release bytes. A negative size takes more, if more were used than announced."""
        self.held -= size
        self._serve()

    def leave(self, ask: Ask) -> None:
        """Stop waiting."""
        if self._line.pop(ask, None) is not None:
            self._serve()

    def _fits(self, size: int) -> bool:
        return not self.held or self.held + size <= self._bytes_max

    def _serve(self) -> None:
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._line:
                ask, size = next(iter(self._line.items()))
                if not self._fits(size):
                    break
                del self._line[ask]
                self._asked = ask
                ask()
                self._asked = None
        finally:
            self._is_serving = False


class WatchedRoom:
    """Memory of all connections for one purpose. Nothing waits for it: each connection checks it."""

    def __init__(self, bytes_max: int) -> None:
        self.held = 0
        """Bytes in use."""
        self._bytes_max = bytes_max

    @property
    def is_full(self) -> bool:
        """Whether more is held than should be."""
        return self.held > self._bytes_max


@dataclass(frozen=True, slots=True)
class SharedRoom:
    """The room shared by the connections of one listener."""

    adds: Room
    """For adds in the storage."""
    answers: Room
    """For entries that were read but not sent, and the largest results of running reads."""
    frames: Room
    """For large frames that are incomplete or have requests that have not begun."""
    waiting: WatchedRoom
    """Requests other than adds that have not begun."""
    unsent: WatchedRoom
    """Unsent answers that take no room of ``answers``."""

    @classmethod
    def within(cls, limits: ListenerLimits) -> SharedRoom:
        """Create the rooms with the bounds of ``limits``."""
        return cls(
            Room(limits.all_add_bytes_max),
            Room(limits.all_answer_bytes_max),
            Room(limits.all_frame_bytes_max),
            WatchedRoom(limits.all_waiting_bytes_max),
            WatchedRoom(limits.all_unsent_bytes_max),
        )
