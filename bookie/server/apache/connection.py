"""One client's connection: requests to the bookie, and their answers back; and all of its bounds.

Adds are handed over in the order in which they came, and overlap from there on; answers leave in the order in which
they are ready. A malformed message closes the connection, with one line in the log.

A connection that must use TLS begins in the clear, with START_TLS; until the end of the handshake it gets nothing but
refusals.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from bookie.runtime.tasks import guarded
from bookie.server.apache.answering import RequestAnswerer
from bookie.server.apache.grouping import AddGroup, group_others
from bookie.server.apache.incoming import Fresh, IncomingRequests
from bookie.server.apache.large_frames import LargeFrames
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.outgoing import OutgoingAnswers
from bookie.server.apache.requests import Info, LongPoll, Other, Read, StartTls, WriteLac
from bookie.server.apache.room import SharedRoom
from bookie.wire.apache.framing import FRAME_BYTES_MAX, MalformedFrameError, framed
from bookie.wire.port import BATCH_BYTES_MAX, READ_BYTES_MAX

_log = logging.getLogger(__name__)

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""Finds clients whose machine vanished within a minute; not every platform has every knob."""
_SMALL_ANSWERS: Final = (Info, WriteLac)


class ApacheConnection(asyncio.Protocol):
    """One client's connection. Everything here runs on the loop's thread."""

    def __init__(
        self,
        answering: RequestAnswerer,
        limits: ListenerLimits,
        room: SharedRoom,
        tls: ssl.SSLContext | None,
        joined: Callable[[ApacheConnection], bool],
        left: Callable[[ApacheConnection], None],
    ) -> None:
        """Wait for ``connection_made``.

        Args:
            answering: does the work.
            limits: bounds.
            room: what it shares with the other connections.
            tls: makes the handshake; None: the connection stays in the clear.
            joined: called for a new connection; False if there is no room for it.
            left: called at its end.
        """
        self._answering, self._limits, self._room, self._tls = answering, limits, room, tls
        self._joined, self._left = joined, left
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._incoming = IncomingRequests(limits.frame_bytes_max, may_serve=tls is None)
        self._large_frames = LargeFrames(room.frames, limits, self._read_on, self._is_held_back, self._give_up)
        self._out = OutgoingAnswers(room.answers, limits, self._give_up)
        self._is_encrypted = self._is_upgrading = self._is_finishing = False
        self._early: list[bytes] = []
        self._too_late: asyncio.TimerHandle | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._adds: deque[AddGroup] = deque()
        self._others: deque[list[Read] | Other] = deque()
        self._requests = self._add_bytes = self._reads = 0
        self._polls: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A callback of ``asyncio.Protocol``, as are the following."""
        assert isinstance(transport, asyncio.Transport)
        self._peer = str(transport.get_extra_info("peername"))
        self._transport = transport
        if not self._joined(self):
            self._transport = None
            transport.abort()
            return
        _keep_alive(transport)
        self._out.use(transport)
        self._await_request(self._limits.silent_s if self._tls is None else self._limits.first_request_s)

    def data_received(self, data: bytes) -> None:
        """Take every whole frame, then begin what there is room for."""
        if self._is_upgrading:
            self._early.append(data)  # the TLS layer may be done before the call that awaits it
            return
        try:
            for asked in self._incoming.feed(data):
                if isinstance(asked, StartTls):
                    self._start_tls(asked)
                else:
                    self._take(asked)
        except MalformedFrameError as error:
            self._give_up(str(error))
            return
        self._look_at_frames()
        self._read_on()

    def _take(self, fresh: Fresh) -> None:
        if fresh.is_empty:
            return
        self._is_awaited()
        self._adds += fresh.adds.groups
        self._out.send(fresh.answers)
        self._others += group_others(fresh.others)
        self._gather()
        self._begin()

    def _gather(self) -> None:
        """Hold adds for a moment if the stream stopped within a frame, so that more of them share a commit."""
        is_more_coming = self._adds and self._incoming.frames.rest_bytes
        is_enough = sum(group.size for group in self._adds) >= BATCH_BYTES_MAX
        if not is_more_coming or is_enough or self._room.adds.is_wanted:
            self._end_gathering()
        elif self._gathering is None:
            self._gathering = self._loop.call_later(self._limits.gather_s, self._gathered)

    def _gathered(self) -> None:
        self._end_gathering()
        self._begin()

    def _end_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    def _await_request(self, within_s: float) -> None:
        self._is_awaited()
        self._too_late = self._loop.call_later(within_s, self._give_up, "it sent nothing in time")

    def _is_awaited(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None

    def _begin(self) -> None:
        """Begin what has room; once nothing is left waiting, give back the room of its frames, and read on."""
        while self._has_adds and self._may_begin and self._add_bytes < self._limits.add_bytes_max:
            if not self._room.adds.take(self._begin, self._adds[0].size):
                break
            self._begin_adds(self._adds.popleft())
        while self._others and self._may_begin and self._reads < self._limits.reads_max:
            other = self._others[0]
            if isinstance(other, LongPoll) and len(self._polls) >= self._limits.polls_max:
                other = self._others[0] = replace(other, wait_s=0.0)
            taken = _answer_bytes_max(other)
            if taken and not self._room.answers.take(self._begin, taken):
                break
            self._others.popleft()
            self._begin_other(other, taken)
        self._look_at_frames()
        self._read_on()

    def _look_at_frames(self) -> None:
        if self._transport is not None:
            is_begun = not (self._adds or self._others)
            self._large_frames.look(self._incoming.frames, is_begun=is_begun, is_read=not self._is_anything_due)

    @property
    def _has_adds(self) -> bool:
        """Whether adds are to be begun now."""
        return bool(self._adds) and self._gathering is None

    @property
    def _is_anything_due(self) -> bool:
        """Whether requests are to be begun now."""
        return self._has_adds or bool(self._others)

    def _is_held_back(self) -> bool:
        """Whether requests wait for anything but the client's fetching its answers."""
        return self._is_anything_due and not self._out.is_full

    @property
    def _may_begin(self) -> bool:
        return not self._out.is_full and self._requests < self._limits.requests_max

    def _begin_adds(self, group: AddGroup) -> None:
        self._requests += len(group.packets)
        self._add_bytes += group.size
        self._run("apache adds", self._run_adds(group))

    def _begin_other(self, other: list[Read] | Other, taken: int) -> None:
        if isinstance(other, list):
            self._requests += len(other)
            self._reads += 1
            self._run("apache reads", self._run_reads(other, taken))
            return
        is_poll = _waits(other)
        self._requests += 1
        self._reads += not is_poll
        task = self._run("apache request", self._run_one(other, not is_poll, taken))
        if is_poll:
            self._polls.add(task)
            task.add_done_callback(self._polls.discard)

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return guarded(name, self._to_the_end(work))

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001 (task boundary: a request that cannot be answered ends its connection alone)
            _log.exception("request over Apache's protocol failed unexpectedly")
            self._give_up("a request of it could not be answered")
        finally:
            self._begin()
            self._end_if_finished()

    async def _run_adds(self, group: AddGroup) -> None:
        try:
            self._out.send(await self._answering.adds(group))
        finally:
            self._requests -= len(group.packets)
            self._add_bytes -= group.size
            self._room.adds.give(group.size)

    async def _run_reads(self, group: list[Read], taken: int) -> None:
        answers: list[bytes] = []
        left: list[Read] = []
        try:
            answers, left = await self._answering.reads(group)
        finally:
            self._requests -= len(group)
            self._reads -= 1
            if left and self._transport is not None:
                self._others.appendleft(left)
            self._out.send(answers, taken)

    async def _run_one(self, request: Other, is_read: bool, taken: int) -> None:
        frames: list[bytes] = []
        try:
            frames.append(framed(await self._answering.one(request)))
        finally:
            self._requests -= 1
            self._reads -= is_read
            self._out.send(frames, taken)

    def pause_writing(self) -> None:
        """The client does not fetch its answers as fast as they come; beyond a bound, nothing more is begun for it."""
        self._out.is_held_up()
        self._read_on()

    def resume_writing(self) -> None:
        """It has fetched them all."""
        self._out.has_left()
        self._begin()
        self._end_if_finished()

    def _read_on(self) -> None:
        """Read the socket exactly while nothing read before has to wait."""
        if self._transport is None or self._is_upgrading:
            return
        is_waiting = self._is_anything_due or self._out.is_full or self._large_frames.is_waiting
        if is_waiting or self._is_finishing:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _start_tls(self, request: StartTls) -> None:
        assert self._transport is not None
        if self._tls is None or self._is_encrypted:
            self._out.send([framed(request.refused)])
            return
        self._is_upgrading = self._incoming.must_be_over = True
        self._out.send([framed(request.accepted)])
        self._out.flush()
        self._transport.pause_reading()
        guarded("apache TLS handshake", self._upgrade(self._transport, self._tls))

    async def _upgrade(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Shake hands on the same socket, and go on there. A failure does not reach ``connection_lost``."""
        try:
            encrypted: asyncio.Transport | None = await self._loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=self._limits.handshake_s
            )
        except OSError as error:  # ssl's own errors are of this family
            self._say_closed(f"no TLS: {error}")
            self.connection_lost(error)
            return
        if encrypted is None or self._over.done():  # the client left during the handshake, or right after it
            self._say_closed("it left during the TLS handshake")
            self.connection_lost(None)
            return
        self._transport = encrypted
        self._out.use(encrypted)
        self._incoming.secured()
        self._is_encrypted, self._is_upgrading = True, False
        self._await_request(self._limits.silent_s)
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)
        self._read_on()

    def eof_received(self) -> None:
        """The client sends nothing more; the connection ends, and what was begun runs to its end."""
        if self._incoming.frames.rest_bytes:
            self._give_up("it ended within a frame")

    def connection_lost(self, error: Exception | None) -> None:
        """The end. What is with the storage goes on there; long polls end."""
        if self._over.done():
            return
        self._over.set_result(None)
        self._transport = None
        self._is_awaited()
        self._drop_waiting()
        self._large_frames.close()
        self._out.close()
        for poll in list(self._polls):
            poll.cancel()
        self._left(self)

    def finish(self) -> asyncio.Future[None]:
        """Read nothing more, send the answers that are due, and close; the future completes with the end."""
        self._is_finishing = True
        self._drop_waiting()
        for poll in list(self._polls):
            poll.cancel()
        self._read_on()
        self._loop.call_soon(self._end_if_finished)
        return self._over

    def abort(self) -> None:
        """Close at once, with any pending answers."""
        if self._transport is not None:
            self._transport.abort()

    def _end_if_finished(self) -> None:
        if self._is_finishing and not self._requests and self._transport is not None:
            self._out.flush()
            self._transport.close()

    def _give_up(self, reason: str) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._say_closed(reason)
        self._drop_waiting()
        self._transport.abort()

    def _drop_waiting(self) -> None:
        self._end_gathering()
        self._adds.clear()
        self._others.clear()
        self._large_frames.drop()
        self._room.adds.leave(self._begin)
        self._room.answers.leave(self._begin)

    def _say_closed(self, reason: str) -> None:
        _log.warning("connection of Apache's protocol closed", extra={"peer": self._peer, "reason": reason})


def _answer_bytes_max(other: list[Read] | Other) -> int:
    """What the answer may take in memory, but for its last entry. Long polls are bounded by their number instead."""
    if isinstance(other, list):
        return min(len(other) * FRAME_BYTES_MAX, READ_BYTES_MAX)
    return 0 if isinstance(other, _SMALL_ANSWERS) or _waits(other) else READ_BYTES_MAX


def _waits(other: Other) -> bool:
    return isinstance(other, LongPoll) and other.wait_s > 0


def _keep_alive(transport: asyncio.Transport) -> None:
    """Let the kernel find out whether the other machine is dead."""
    peer = transport.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:
            peer.setsockopt(socket.IPPROTO_TCP, option, value)
