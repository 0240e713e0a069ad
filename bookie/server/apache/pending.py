"""The unanswered requests of one connection, which wait or are in the storage."""

from __future__ import annotations

from collections.abc import Callable

from bookie.server.apache.answering import RequestAnswerer
from bookie.server.apache.incoming import Fresh
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.outgoing import OutgoingAnswers
from bookie.server.apache.pending_adds import PendingAdds
from bookie.server.apache.pending_others import PendingOthers
from bookie.server.apache.room import SharedRoom
from bookie.server.apache.running import ConnectionRequests


class PendingRequests:
    """The storage requests of one connection, independent of the transport.

    A due request waits only for a bound of its connection or for shared room. Adds begin before other requests. The
    client may send more while others wait, up to a bound, so that they delay no adds and no fences.
    """

    def __init__(
        self,
        answering: RequestAnswerer,
        limits: ListenerLimits,
        room: SharedRoom,
        out: OutgoingAnswers,
        begun: Callable[[], None],
        disconnect: Callable[[str], None],
    ) -> None:
        """Start without requests.

        Args:
            answering: executes the requests.
            limits: bounds.
            room: shared with the other connections.
            out: receives the answers.
            begun: called after each ``begin``, which runs after each arrival and the end of each task.
            disconnect: called with the reason if a request cannot be answered.
        """
        self._out, self._begun = out, begun
        self._running = ConnectionRequests(limits, out, self.begin, disconnect)
        self._adds = PendingAdds(answering, limits, room.adds, self._running, out, self.begin)
        self._others = PendingOthers(answering, limits, room, self._running, out, self.begin)

    @property
    def has_running_requests(self) -> bool:
        """Whether any request has begun and not ended."""
        return self._running.count > 0

    @property
    def hold_frames(self) -> bool:
        """Whether any request that may have arrived in a large frame has not begun."""
        return self._adds.are_waiting or self._others.are_large_waiting

    @property
    def are_too_many_waiting(self) -> bool:
        """Whether the waiting requests take so much memory that no more may be decoded."""
        return self._adds.are_many_due or self._others.are_too_many_waiting

    @property
    def is_full(self) -> bool:
        """Whether so many requests should begin now that the client must not send more."""
        return self._adds.are_due or self.are_too_many_waiting

    def has_held_back_requests(self) -> bool:
        """Whether requests wait for anything other than that the client receives its answers."""
        return (self._adds.are_due or self._others.are_waiting) and not self._out.is_full

    def put(self, fresh: Fresh, *, is_more_coming: bool) -> None:
        """Add arrived requests, and begin those for which there is room.

        Args:
            fresh: the adds and the other requests.
            is_more_coming: whether the received data ended within a frame.
        """
        self._adds.put(fresh.adds.groups, is_more_coming=is_more_coming)
        self._others.put(fresh.others)
        self.begin()

    def begin(self) -> None:
        """Begin the due requests for which there is room."""
        self._adds.begin()
        self._others.begin()
        self._begun()

    def drop(self) -> None:
        """Drop the waiting requests; begun ones continue."""
        self._adds.drop()
        self._others.drop()

    def end_polls(self) -> None:
        """End the long polls without an answer."""
        self._others.end_polls()
