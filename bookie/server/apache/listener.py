"""The listening socket of Apache's protocol, which binds the port, and accepts and ends connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

from bookie.runtime.clock import Clock, SystemClock
from bookie.runtime.listening import accept_one_at_a_time, address_in_use
from bookie.server.apache.answering import RequestAnswerer
from bookie.server.apache.connection import ApacheConnection
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.room import SharedRoom
from bookie.wire.handler import BookieHandler
from bookie.wire.security import TlsSettings
from bookie.wire.tls import ServerContext

_log = logging.getLogger(__name__)

_BACKLOG: Final = 256
_FLUSH_DEADLINE_S: Final = 2.0
"""Time to send the remaining answers after all requests have ended."""
_ABORT_DEADLINE_S: Final = 0.5


class ApacheListener:
    """One listener for one bookie: ``bind``, ``start``, ``stop``.

    With TLS, a client must first request it (START_TLS) and present a certificate signed by the bookie's authority, as
    over gRPC. Every other cleartext request is refused as unauthorized, except the login, which is answered as not
    needed.
    """

    def __init__(self, limits: ListenerLimits | None = None, clock: Clock | None = None) -> None:
        self._limits = limits or ListenerLimits()
        self._clock = clock or SystemClock()
        self._socket: socket.socket | None = None
        self._tls: ServerContext | None = None
        self._server: asyncio.Server | None = None
        self._connections: dict[ApacheConnection, None] = {}
        """The oldest one comes first."""
        self._is_full = False

    def bind(self, host: str, port: int, tls: TlsSettings | None) -> int:
        """Bind the port (0: any free one) and return it. Connections are served after ``start``.

        Raises:
            AddressInUseError: the port is not available.
            TlsFilesError: the TLS files cannot be used.
        """
        self._tls = ServerContext(tls) if tls is not None else None
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            self._socket.listen(_BACKLOG)  # listen now, so that a second bookie on this port fails at once
        except OSError as error:
            self._close_socket()
            raise address_in_use(host, port, "Apache's protocol", ("--apache-port", "--host"), error) from error
        self._socket.setblocking(False)
        return int(self._socket.getsockname()[1])

    async def start(self, handler: BookieHandler) -> None:
        """Serve ``handler``."""
        assert self._socket is not None, "bind first"
        answering, room = RequestAnswerer(handler, self._clock), SharedRoom.within(self._limits)

        def connection() -> ApacheConnection:
            tls = None if self._tls is None else self._tls.current()
            return ApacheConnection(answering, self._limits, room, tls, self._joined, self._left)

        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(connection, sock=self._socket, backlog=1)
        accept_one_at_a_time(self._server, _BACKLOG)

    async def stop(self) -> None:
        """Send the answers to begun requests, and close every connection. Idempotent."""
        if self._server is not None:
            self._server.close()
        else:
            self._close_socket()
        connections = list(self._connections)
        if connections:
            await asyncio.wait([connection.finish() for connection in connections], timeout=_FLUSH_DEADLINE_S)
        late = list(self._connections)
        for connection in late:
            connection.abort()
        if late:
            await asyncio.wait([connection.finish() for connection in late], timeout=_ABORT_DEADLINE_S)

    def _joined(self, connection: ApacheConnection) -> bool:
        if len(self._connections) < self._limits.connections_max:
            self._is_full = False
        else:
            if not self._is_full:
                _log.warning("too many connections of Apache's protocol", extra={"max": self._limits.connections_max})
            self._is_full = True
            silent = next((each for each in self._connections if each.is_silent), None)
            if silent is None:
                return False
            del self._connections[silent]
            silent.abort()
        self._connections[connection] = None
        return True

    def _left(self, connection: ApacheConnection) -> None:
        self._connections.pop(connection, None)

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
