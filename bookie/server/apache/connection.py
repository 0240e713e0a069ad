"""The connection of one client: its transport, from the first byte to the end.

``incoming`` decodes bytes into requests, requests wait and run in ``pending``, and ``outgoing`` sends answers in the
order of their completion. A malformed message closes the connection, with one line in the log.

A connection with mandatory TLS begins in cleartext with START_TLS. Until the end of the handshake, all its requests are
refused.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from bookie.server.apache.answering import RequestAnswerer
from bookie.server.apache.incoming import Fresh, IncomingRequests
from bookie.server.apache.large_frames import LargeFrames
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.outgoing import OutgoingAnswers
from bookie.server.apache.pending import PendingRequests
from bookie.server.apache.requests import StartTls
from bookie.server.apache.room import SharedRoom
from bookie.server.apache.tls_upgrade import TlsUpgrade
from bookie.wire.apache.framing import MalformedFrameError

_log = logging.getLogger(__name__)

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))
"""Socket options that detect within a minute that a client's machine has vanished; some platforms lack some of them.

The last one, in milliseconds, is for unacknowledged answers, which the kernel would otherwise send again for a quarter
of an hour. It also ends the connection of a client that reads none of its waiting answers for this time.
"""


class ApacheConnection(asyncio.Protocol):
    """The connection of one client. All of its code runs in the thread of the event loop.

    The socket is not read while too many earlier requests wait, which slows down a client that exceeds the bounds.
    """

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
            answering: executes the requests.
            limits: bounds.
            room: shared with the other connections.
            tls: the context of the handshake, or None for cleartext.
            joined: called for a new connection; False if there is no room for it.
            left: called at the end of the connection.
        """
        self._limits, self._joined, self._left = limits, joined, left
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._is_finishing = False
        self._too_late: asyncio.TimerHandle | None = None
        self._first_request_s = limits.silent_s if tls is None else limits.first_request_s
        self._incoming = IncomingRequests(limits.frame_bytes_max, may_serve=tls is None)
        self._arrived: deque[bytes] = deque()
        """Pieces of the stream that have not been decoded: usually none."""
        self._decoding: Iterator[Fresh | StartTls] | None = None
        """The piece that is decoded in part."""
        self._is_decoding = False
        self._out = OutgoingAnswers(room, limits, self._disconnect)
        self._pending = PendingRequests(answering, limits, room, self._out, self._advance, self._disconnect)
        self._large_frames = LargeFrames(
            room.frames, limits, self._read_on, self._pending.has_held_back_requests, self._disconnect
        )
        self._upgrade = TlsUpgrade(
            tls, limits, self._incoming, self._out, self._continue_encrypted, self._fail_handshake
        )

    @property
    def is_silent(self) -> bool:
        """Whether the client has sent no request that may be served, so it needs its connection less than others."""
        return self._too_late is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A callback of ``asyncio.Protocol``, like the following methods."""
        assert isinstance(transport, asyncio.Transport)
        self._peer = str(transport.get_extra_info("peername"))
        self._transport = transport
        if not self._joined(self):
            self._transport = None
            transport.abort()
            return
        _keep_alive(transport)
        self._out.use(transport)
        self._await_request(self._first_request_s)

    def data_received(self, data: bytes) -> None:
        """Decode all complete frames, and begin the requests for which there is room."""
        if self._upgrade.is_under_way:
            self._upgrade.keep(data)
            return
        self._arrived.append(data)
        self._decode()
        if self._arrived or self._decoding is not None:  # as when the requests of other clients are too many
            self._read_on()

    def pause_writing(self) -> None:
        """Record that the client receives answers too slowly. Beyond a bound, no more requests begin for it."""
        self._out.note_held_up()
        self._read_on()

    def resume_writing(self) -> None:
        """Record that the client has received all answers."""
        self._out.has_left()
        self._pending.begin()

    def eof_received(self) -> None:
        """End the connection: the client sends nothing more. Requests in progress are completed."""
        if self._incoming.frames.rest_bytes:
            self._disconnect("the client closed the connection in the middle of a frame")

    def connection_lost(self, error: Exception | None) -> None:
        """End the connection. Requests in the storage are completed; long polls end."""
        if self._over.done():
            return
        self._over.set_result(None)
        self._transport = None
        self._stop_awaiting()
        self._upgrade.abandon()
        self._drop_waiting()
        self._large_frames.close()
        self._out.close()
        self._pending.end_polls()
        self._left(self)

    def finish(self) -> asyncio.Future[None]:
        """Stop reading, send the answers to begun requests, and close. The returned future completes at the end."""
        self._is_finishing = True
        self._drop_waiting()
        self._pending.end_polls()
        self._read_on()
        self._loop.call_soon(self._end_if_finished)
        return self._over

    def abort(self) -> None:
        """Close at once, and discard pending answers."""
        if self._transport is not None:
            self._transport.abort()

    def _decode(self) -> None:
        """Decode what has arrived, until too many requests or answers wait."""
        if self._is_decoding:
            return
        self._is_decoding = True
        try:
            while not self._is_held_up and (asked := self._next_decoded()) is not None:
                if isinstance(asked, StartTls):
                    assert self._transport is not None
                    self._upgrade.start(asked, self._transport, self)
                elif asked.is_empty:
                    self._advance()
                else:
                    self._take(asked)
        except MalformedFrameError as error:
            self._disconnect(str(error))
        finally:
            self._is_decoding = False

    @property
    def _is_held_up(self) -> bool:
        """Whether no more may be decoded, because too many requests or answers wait."""
        return self._pending.are_too_many_waiting or self._out.is_full

    def _next_decoded(self) -> Fresh | StartTls | None:
        while self._decoding is not None or self._arrived:
            if self._decoding is None:
                self._decoding = self._incoming.feed(self._arrived.popleft())
            if (asked := next(self._decoding, None)) is not None:
                return asked
            self._decoding = None
        return None

    def _take(self, fresh: Fresh) -> None:
        if self._incoming.may_serve:  # otherwise only the end of the TLS handshake ends the wait
            self._stop_awaiting()
        self._out.send(fresh.answers)
        self._pending.put(fresh, is_more_coming=self._incoming.frames.rest_bytes > 0)

    def _advance(self) -> None:
        """After requests arrived, began or ended: release the room of begun frames, then resume reading or end."""
        if self._transport is None:
            return
        self._decode()
        pending = self._pending
        self._large_frames.update(self._incoming.frames, is_begun=not pending.hold_frames, is_read=not pending.is_full)
        self._read_on()
        self._end_if_finished()

    def _read_on(self) -> None:
        if self._transport is None or self._upgrade.is_under_way:
            return
        is_waiting = self._pending.is_full or self._out.is_full or self._large_frames.is_waiting
        if is_waiting or self._is_finishing:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _continue_encrypted(self, transport: asyncio.Transport, early: list[bytes]) -> None:
        """Continue after the handshake, with the bytes that were received before its end was noticed."""
        self._transport = transport
        self._await_request(self._limits.silent_s)
        for data in early:
            self.data_received(data)
        self._read_on()

    def _await_request(self, within_s: float) -> None:
        self._stop_awaiting()
        self._too_late = self._loop.call_later(within_s, self._disconnect, "the client sent nothing in time")

    def _stop_awaiting(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None

    def _end_if_finished(self) -> None:
        if self._is_finishing and not self._pending.has_running_requests and self._transport is not None:
            self._out.flush()
            self._transport.close()

    def _disconnect(self, reason: str) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._log_closed(reason)
        self._drop_waiting()
        self._transport.abort()

    def _fail_handshake(self, reason: str) -> None:
        """End a connection after a failed handshake; asyncio does not call ``connection_lost`` for it."""
        self._log_closed(reason)
        self.connection_lost(None)

    def _drop_waiting(self) -> None:
        self._arrived.clear()
        self._decoding = None
        self._pending.drop()
        self._large_frames.drop()

    def _log_closed(self, reason: str) -> None:
        _log.warning("connection of Apache's protocol closed", extra={"peer": self._peer, "reason": reason})


def _keep_alive(transport: asyncio.Transport) -> None:
    """Let the kernel detect a dead peer."""
    peer = transport.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:
            peer.setsockopt(socket.IPPROTO_TCP, option, value)
