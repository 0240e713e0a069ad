"""The requests of one connection other than adds, from their arrival until they are answered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from bookie.server.apache.answering import RequestAnswerer
from bookie.server.apache.grouping import group_requests
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.outgoing import OutgoingAnswers
from bookie.server.apache.requests import BatchRead, Info, LongPoll, Other, Read, WriteLac
from bookie.server.apache.room import SharedRoom
from bookie.server.apache.running import ConnectionRequests
from bookie.server.read_places import URGENT_IN_A_ROW_MAX
from bookie.wire.apache.framing import FRAME_BYTES_MAX, framed
from bookie.wire.port import READ_BYTES_MAX

_SMALL_ANSWERS: Final = (Info, WriteLac)
_REQUEST_BYTES: Final = 200
"""Approximate memory of a waiting request in addition to its keys and entries."""

_Group = list[Read] | Other


class PendingOthers:
    """The groups of reads and other requests that wait or are in the storage.

    A request begins only after shared room was taken for the largest size of its answer. ``OutgoingAnswers`` releases
    this room. Requests with small answers and long polls take no room; the number of long polls is bounded.

    Reads of recoveries begin before all others (``bookie.server.read_places``), and one of them may begin although as
    many other requests run as may.
    """

    def __init__(
        self,
        answering: RequestAnswerer,
        limits: ListenerLimits,
        room: SharedRoom,
        running: ConnectionRequests,
        out: OutgoingAnswers,
        begin: Callable[[], None],
    ) -> None:
        """Start without requests.

        Args:
            answering: executes the requests.
            limits: bounds.
            room: shared with all connections.
            running: counts the requests in the storage.
            out: receives the answers.
            begin: called when a waiting request may begin; it must call ``begin`` of this object.
        """
        self._answering, self._limits, self._room, self._all_waiting = answering, limits, room.answers, room.waiting
        self._running, self._out, self._begin = running, out, begin
        self._urgent: deque[_Group] = deque()
        self._plain: deque[_Group] = deque()
        self._row = 0
        self._waiting_bytes = 0
        self._large_waiting = 0
        self._reads = 0
        self._polls: set[asyncio.Task[None]] = set()

    @property
    def are_waiting(self) -> bool:
        """Whether any request has not begun."""
        return bool(self._urgent or self._plain)

    @property
    def are_too_many_waiting(self) -> bool:
        """Whether the waiting requests take so much memory that the client must not send more."""
        own = self._waiting_bytes
        return own > self._limits.waiting_bytes_max or (own > 0 and self._all_waiting.is_full)

    @property
    def are_large_waiting(self) -> bool:
        """Whether a request that arrived in a large frame has not begun."""
        return self._large_waiting > 0

    def put(self, requests: Iterable[Other]) -> None:
        """Add arrived requests. They begin at the next ``begin``."""
        for group in group_requests(requests):
            (self._urgent if _is_urgent(group) else self._plain).append(group)
            self._count_waiting(group, 1)

    def begin(self) -> None:
        """Begin the requests for which there is room."""
        while (queue := self._next()) is not None and self._running.can_begin_group:
            other = queue[0]
            if isinstance(other, LongPoll) and len(self._polls) >= self._limits.polls_max:
                other = queue[0] = replace(other, wait_s=0.0)
            taken = _answer_bytes_max(other)
            if taken and not self._room.take(self._begin, taken):
                break
            queue.popleft()
            self._count_waiting(other, -1)
            self._row = self._row + 1 if queue is self._urgent else 0
            if isinstance(other, list):
                self._begin_reads(other, taken)
            else:
                self._begin_one(other, taken)

    def drop(self) -> None:
        """Drop the waiting requests."""
        self._urgent.clear()
        self._plain.clear()
        self._all_waiting.held -= self._waiting_bytes
        self._waiting_bytes = self._large_waiting = 0
        self._room.leave(self._begin)

    def end_polls(self) -> None:
        """End the long polls without an answer."""
        for poll in self._polls:
            # In the next step of the event loop: a task that is cancelled before its start would not count its end.
            asyncio.get_running_loop().call_soon(poll.cancel)

    def _next(self) -> deque[_Group] | None:
        """Return the queue whose first request begins next, or None."""
        is_plain_due = self._row >= URGENT_IN_A_ROW_MAX
        if self._urgent and not (self._plain and is_plain_due):
            return self._urgent if self._reads <= self._limits.reads_max else None
        return self._plain if self._plain and self._reads < self._limits.reads_max + is_plain_due else None

    def _count_waiting(self, group: _Group, sign: int) -> None:
        size = sum(map(_held_bytes, group)) if isinstance(group, list) else _held_bytes(group)
        count = len(group) if isinstance(group, list) else 1
        change = sign * (size + count * _REQUEST_BYTES)
        self._waiting_bytes += change
        self._all_waiting.held += change
        self._large_waiting += sign * (size > self._limits.small_frame_bytes)

    def _begin_reads(self, group: list[Read], taken: int) -> None:
        self._reads += 1
        self._running.run("apache reads", len(group), self._run_reads(group, taken))

    def _begin_one(self, request: Other, taken: int) -> None:
        is_poll = _is_waiting_poll(request)
        self._reads += not is_poll
        task = self._running.run("apache request", 1, self._run_one(request, not is_poll, taken))
        if is_poll:
            self._polls.add(task)
            task.add_done_callback(self._polls.discard)

    async def _run_reads(self, group: list[Read], taken: int) -> None:
        answers: list[bytes] = []
        left: list[Read] = []
        try:
            answers, left = await self._answering.reads(group)
        finally:
            self._running.end(len(group))
            self._reads -= 1
            if left and self._out.is_open:
                (self._urgent if _is_urgent(left) else self._plain).appendleft(left)
                self._count_waiting(left, 1)
            self._out.send(answers, taken)

    async def _run_one(self, request: Other, is_read: bool, taken: int) -> None:
        frames: list[bytes] = []
        try:
            frames.append(framed(await self._answering.one(request)))
        finally:
            self._running.end(1)
            self._reads -= is_read
            self._out.send(frames, taken)


def _is_urgent(group: _Group) -> bool:
    """Return whether the group goes before others: a read with a fence belongs to a recovery."""
    first = group[0] if isinstance(group, list) else group
    return isinstance(first, Read | BatchRead) and first.fence_key is not None


def _held_bytes(request: Other) -> int:
    """Return the bytes of the keys and the entry that a waiting request holds."""
    match request:
        case Read() | BatchRead():
            return len(request.fence_key or b"")
        case WriteLac():
            return len(request.master_key) + len(request.packet)
        case _:
            return 0


def _answer_bytes_max(other: _Group) -> int:
    """Return the memory bound of the answer without its last entry; 0 for long polls, whose number is bounded."""
    if isinstance(other, list):
        return min(len(other) * FRAME_BYTES_MAX, READ_BYTES_MAX)
    return 0 if isinstance(other, _SMALL_ANSWERS) or _is_waiting_poll(other) else READ_BYTES_MAX


def _is_waiting_poll(other: Other) -> bool:
    return isinstance(other, LongPoll) and other.wait_s > 0
