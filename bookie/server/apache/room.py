"""Bytes shared by all connections of a listener, given out in a fair order.

A request without room waits in a queue and is offered room in its turn; while there is a queue, new requests go to its
end. So no request starves, and freed room goes to the longest waiter. No holder of one kind of room waits for more of
the same kind before it releases its own, except for actions of its own client, which have a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bookie.server.apache.limits import ListenerLimits

Ask = Callable[[], None]
"""The callback of the next waiter: it calls ``take`` again, or leaves without room."""


class Room:
    """Room of one kind."""

    def __init__(self, bytes_max: int) -> None:
        self.held = 0
        """Bytes in use. A request for more than the total succeeds while nothing else is held."""
        self._bytes_max = bytes_max
        self._line: dict[Ask, int] = {}
        self._asked: Ask | None = None
        self._is_serving = False

    @property
    def is_wanted(self) -> bool:
        """Whether there is a queue."""
        return bool(self._line)

    def take(self, ask: Ask, size: int) -> bool:
        """Take ``size`` bytes. Return False without room, and call ``ask`` in its turn."""
        if (self._line and self._asked != ask) or not self._fits(size):
            self._line.setdefault(ask, size)
            return False
        self._asked = None
        self.held += size
        return True

    def give(self, size: int) -> None:
        """Release bytes; a negative size means more were used than announced."""
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


@dataclass(frozen=True, slots=True)
class SharedRoom:
    """The room shared by the connections of one listener."""

    adds: Room
    """Adds in the storage."""
    answers: Room
    """Entries read but not sent, and the largest results of running reads."""
    frames: Room
    """Large frames, incomplete or with requests not yet begun."""

    @classmethod
    def within(cls, limits: ListenerLimits) -> SharedRoom:
        """Return empty rooms within ``limits``."""
        return cls(Room(limits.all_add_bytes_max), Room(limits.all_answer_bytes_max), Room(limits.all_frame_bytes_max))
