"""START_TLS: the switch of one connection from cleartext to TLS, on the same socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from bookie.runtime.tasks import guarded
from bookie.server.apache.incoming import IncomingRequests
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.outgoing import OutgoingAnswers
from bookie.server.apache.requests import StartTls
from bookie.wire.apache.framing import framed

_LEFT: Final = "the client left during the TLS handshake"


class TlsUpgrade:
    """The TLS handshake of one connection. It succeeds at most once.

    Between the acceptance of START_TLS and the end of the handshake, no byte is treated as a request. Cleartext after
    START_TLS is refused, and decrypted bytes are kept until the connection uses the encrypted transport.
    """

    def __init__(
        self,
        context: ssl.SSLContext | None,
        limits: ListenerLimits,
        incoming: IncomingRequests,
        out: OutgoingAnswers,
        secured: Callable[[asyncio.Transport, list[bytes]], None],
        failed: Callable[[str], None],
    ) -> None:
        """Wait for START_TLS.

        Args:
            context: the TLS context. If it is None, START_TLS is refused.
            limits: bounds.
            incoming: the requests of the connection, which are all served after the handshake.
            out: the answers of the connection, sent over the encrypted transport after the handshake.
            secured: called after the handshake with the encrypted transport and the bytes of ``keep``.
            failed: called with the reason if there is no handshake; asyncio does not report the end of the connection.
        """
        self._context, self._limits, self._incoming, self._out = context, limits, incoming, out
        self._secured, self._failed = secured, failed
        self.is_under_way = False
        """True after START_TLS was accepted, even after a failed handshake."""
        self._is_done = self._is_lost = False
        self._early: list[bytes] = []

    def start(self, request: StartTls, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Answer START_TLS, and begin the handshake if it is accepted."""
        if self._context is None or self._is_done:
            self._out.send([framed(request.refused)])
            return
        self.is_under_way = self._incoming.must_be_over = True
        self._out.send([framed(request.accepted)])
        self._out.flush()
        transport.pause_reading()
        guarded("apache TLS handshake", self._run_handshake(transport, protocol, self._context))

    def keep(self, data: bytes) -> None:
        """Keep bytes that were received early: the TLS layer may finish before the call that awaits it."""
        self._early.append(data)

    def abandon(self) -> None:
        """Ignore a handshake that succeeds later, because the connection has ended."""
        self._is_lost = True

    async def _run_handshake(
        self, transport: asyncio.Transport, protocol: asyncio.Protocol, context: ssl.SSLContext
    ) -> None:
        try:
            encrypted: asyncio.Transport | None = await asyncio.get_running_loop().start_tls(
                transport, protocol, context, server_side=True, ssl_handshake_timeout=self._limits.handshake_s
            )
        except OSError as error:  # the errors of ssl are subclasses of it
            self._failed(f"no TLS: {error}")
            return
        if encrypted is None or self._is_lost:  # the client left during the handshake, or right after it
            self._failed(_LEFT)
            return
        self._out.use(encrypted)
        self._incoming.secured()
        self._is_done, self.is_under_way = True, False
        early, self._early = self._early, []
        self._secured(encrypted, early)
