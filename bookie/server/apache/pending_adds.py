"""The adds of one connection, from their arrival until they are answered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from bookie.server.apache.answering import RequestAnswerer
from bookie.server.apache.grouping import WAITING_GROUPS_MAX, AddGroup
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.outgoing import OutgoingAnswers
from bookie.server.apache.room import Room
from bookie.server.apache.running import ConnectionRequests
from bookie.wire.add_wait import AddWait, WaitingCaller
from bookie.wire.port import BATCH_BYTES_MAX


class PendingAdds:
    """The groups of adds that wait or are in the storage.

    While the ledger disk is behind, begun groups wait in the storage, and reads of the connection continue. While there
    is no room for a group, its connection is not read, so later reads and fences of the client wait as well.

    Groups begin in the order of their arrival, and may overlap in the storage. A group holds shared room exactly while
    it is in the storage. Its wait for the ledger disk is bounded from its arrival, so the time in which it waits for
    room counts.
    """

    def __init__(
        self,
        answering: RequestAnswerer,
        limits: ListenerLimits,
        room: Room,
        running: ConnectionRequests,
        out: OutgoingAnswers,
        begin: Callable[[], None],
    ) -> None:
        """Start without adds.

        Args:
            answering: stores the adds.
            limits: bounds.
            room: shared with all connections.
            running: counts the adds in the storage.
            out: receives the answers.
            begin: called when waiting adds may begin; it must call ``begin`` of this object.
        """
        self._answering, self._limits, self._room = answering, limits, room
        self._running, self._out, self._begin = running, out, begin
        self._waiting: deque[AddGroup] = deque()
        self._bytes = 0
        self._gathering: asyncio.TimerHandle | None = None
        self._caller = WaitingCaller()

    @property
    def are_waiting(self) -> bool:
        """Whether any add has not begun."""
        return bool(self._waiting)

    @property
    def are_due(self) -> bool:
        """Whether any add should begin now."""
        return bool(self._waiting) and self._gathering is None

    @property
    def are_many_due(self) -> bool:
        """Whether so many groups should begin now that no more may be decoded."""
        return self.are_due and len(self._waiting) >= WAITING_GROUPS_MAX

    def put(self, groups: Iterable[AddGroup], *, is_more_coming: bool) -> None:
        """Add arrived adds. They begin at the next ``begin``, or after a short delay.

        The delay applies if the received data ended within a frame (``is_more_coming``), so that more adds share a
        commit.
        """
        wait = AddWait(self._caller, asyncio.get_running_loop().time() + self._limits.add_wait_s)
        for group in groups:
            group.wait = wait
            self._waiting.append(group)
        is_enough = sum(group.size for group in self._waiting) >= BATCH_BYTES_MAX
        if not (self._waiting and is_more_coming) or is_enough or self._room.is_wanted:
            self._end_gathering()
        elif self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(self._limits.gather_s, self._on_gather_timeout)

    def begin(self) -> None:
        """Begin the due adds for which there is room."""
        while self.are_due and self._running.can_begin_group and self._bytes < self._limits.add_bytes_max:
            group = self._waiting[0]
            if not self._room.take(self._begin, group.held_bytes):
                break
            self._waiting.popleft()
            self._bytes += group.held_bytes
            self._running.run("apache adds", len(group.packets), self._run(group))

    def drop(self) -> None:
        """Drop the adds that have not begun. Those that wait in the storage stop waiting."""
        self._caller.end()
        self._end_gathering()
        self._waiting.clear()
        self._room.leave(self._begin)

    def _on_gather_timeout(self) -> None:
        self._end_gathering()
        self._begin()

    def _end_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    async def _run(self, group: AddGroup) -> None:
        try:
            self._out.send(await self._answering.adds(group))
        finally:
            self._running.end(len(group.packets))
            self._bytes -= group.held_bytes
            self._room.release(group.held_bytes)
