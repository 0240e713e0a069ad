"""A bound on the connections of a listening port, because they use the limited open files of the process (R134).

A connection counts from its acceptance until its socket is closed, so also during the TLS handshake.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from typing_extensions import override

from bookie.runtime.clock import Clock
from bookie.runtime.listening import accept_one_at_a_time

CONNECTIONS_MAX: Final = 1_024
"""Open connections. A further one is closed at once, because they use the limited open files of this process."""
UNREAD_S_MAX: Final = 30.0
"""Longest time for which a client may read nothing of its answer. Otherwise clients that never read fill all places."""
_LOG_INTERVAL_S: Final = 60.0

_log = logging.getLogger(__name__)


class Places:
    """The places for the connections of one port."""

    def __init__(self, count: int, clock: Clock) -> None:
        """Make places for ``count`` connections."""
        self.taken = 0
        self._count = count
        self._clock = clock
        self._logged_s: float | None = None

    def take(self) -> bool:
        """Take a place and return True, or return False if there is none. Refusals are logged at most once a minute."""
        if self.taken < self._count:
            self.taken += 1
            return True
        now_s = self._clock.monotonic_s()
        if self._logged_s is None or now_s - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now_s
            _log.warning("too many HTTP connections, further ones are closed", extra={"max": self._count})
        return False

    def leave(self) -> None:
        """Give a place back."""
        self.taken -= 1


class _CountedSocket(socket.socket):
    leave: Callable[[], object]

    @override
    def close(self) -> None:
        super().close()
        self.leave()


class _Listening(socket.socket):
    places: Places
    unread_ms_max: int

    @override
    def accept(self) -> tuple[socket.socket, Any]:
        accepted, address = super().accept()
        if not self.places.take():
            accepted.close()
            raise BlockingIOError  # for asyncio this means that there is no connection to accept
        connection = _CountedSocket(self.family, self.type, self.proto, accepted.detach())
        connection.leave = weakref.finalize(connection, self.places.leave)  # it runs exactly once, even without a close
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self.unread_ms_max)
        return connection, address


async def serve_bounded(
    protocol: Callable[[], asyncio.Protocol], host: str, port: int, tls: ssl.SSLContext | None, places: Places
) -> Sequence[asyncio.Server]:
    """Listen on every address of ``host``, with ``places`` for all connections together.

    On Linux, a connection ends if its client takes nothing of an answer for ``UNREAD_S_MAX``.

    Raises:
        OSError: it is impossible to listen there.
    """
    loop = asyncio.get_running_loop()
    bound = await loop.create_server(protocol, host, port, start_serving=False)
    listening = [_Listening(fileno=os.dup(each.fileno())) for each in bound.sockets]
    bound.close()
    servers: list[asyncio.Server] = []
    try:
        for each in listening:
            each.places, each.unread_ms_max = places, int(UNREAD_S_MAX * 1000)
            servers.append(await loop.create_server(protocol, sock=each, ssl=tls, backlog=1))
            accept_one_at_a_time(servers[-1])
    except OSError:
        for server in servers:
            server.close()
        for each in listening:
            each.close()
        raise
    return servers
