"""The opening of a usable connection to an address: TCP, then TLS and a login if they are required.

The order is Apache's (docs/formats.md#tls-and-login): a START_TLS request in the clear, TLS on the same socket, then
the login inside it. The bookie's certificate and host name are always verified. A failed login means nothing for the
password of any ledger. So the bookie counts as unreachable, and the request does not count as unauthorized.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from typing_extensions import override

from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.connection import AnswerWaiter, ApacheAnswer, ExpectedAnswer, FutureWaiter, Version3Connection
from bookie.wire.apache.sasl import LoginError, login
from bookie.wire.apache.stream import ConnectionLostError
from bookie.wire.port import Status
from bookie.wire.resolver import BookieAddress
from bookie.wire.security import SaslCredentials, TlsSettings
from bookie.wire.tls import TlsFilesError

CONNECT_S_MAX: Final = 10.0
"""Time limit of the whole opening, in seconds; Apache's clients allow the same time for the TLS part."""
LOGIN_ROUNDS_MAX: Final = 8

_PORT_MAX: Final = 65535
_AUTH_PLUGIN: Final = "sasl"
_NO_LOGIN_PLUGIN: Final = "AuthDisabledPlugin"
"""The answer of a bookie without a login plugin to any login."""
_CONNECTION_CLOSED_REASON: Final = "the bookie closed the connection"
_TCP_USER_TIMEOUT_MS: Final = 20_000
"""A peer that acknowledges nothing for this time is dead. Without this limit, detection takes a quarter of an hour."""


def client_context(tls: TlsSettings) -> ssl.SSLContext:
    """Return the context with the CA for bookies and this side's certificate, read from the files now.

    Raises:
        TlsFilesError: unreadable, invalid, or a certificate without its key.
    """
    if (tls.cert is None) != (tls.key is None):
        raise TlsFilesError("a TLS certificate and its key go together: give both, or neither")
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(tls.ca))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise TlsFilesError(f"cannot read the TLS file {tls.ca}: {error}") from error
    if tls.cert is not None and tls.key is not None:
        try:
            context.load_cert_chain(tls.cert, tls.key, password="")  # never ask at a terminal
        except (OSError, ValueError) as error:
            raise TlsFilesError(f"cannot read the TLS files {tls.cert} and {tls.key}: {error}") from error
    return context


async def open_connection(
    address: BookieAddress, context: ssl.SSLContext | None, sasl: SaslCredentials | None, frame_bytes_max: int
) -> Version3Connection:
    """Return a connection that is ready for requests.

    Raises:
        ConnectionLostError: a step failed; the text names it. Nothing is left open.
    """
    connection = Version3Connection(frame_bytes_max)
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            await connect_to(address, connection)
            if context is not None:
                await _start_tls(connection, address, context)
            if sasl is not None:
                await _log_in(connection, sasl)
    except TimeoutError:
        why = f"no connection to {address.host}:{address.port} within {CONNECT_S_MAX:g} s"
        connection.end(why)
        raise ConnectionLostError(why) from None
    except BaseException:
        connection.end("the connection was abandoned before it was ready")
        raise
    return connection


async def connect_to(address: BookieAddress, protocol: asyncio.Protocol) -> None:
    """Open a TCP connection for ``protocol``.

    Raises:
        ConnectionLostError: it cannot be opened.
    """
    loop = asyncio.get_running_loop()
    if not 0 < address.port <= _PORT_MAX:  # else its lower 16 bits would be the port of another service
        raise ConnectionLostError(f"cannot connect to {address.host}:{address.port}: there is no such port")
    try:
        transport, _ = await loop.create_connection(lambda: protocol, address.host, address.port)
        _set_tcp_timeouts(transport.get_extra_info("socket"))
    except (OSError, ValueError) as error:  # the latter: no host name
        raise ConnectionLostError(f"cannot connect to {address.host}:{address.port}: {error}") from error


def _set_tcp_timeouts(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TCP_USER_TIMEOUT_MS)


async def _start_tls(connection: Version3Connection, address: BookieAddress, context: ssl.SSLContext) -> None:
    answer = await connection.ask(pb.START_TLS, pb.Request(startTLSRequest=pb.StartTLSRequest()))
    if answer.status is Status.BAD_REQUEST:
        raise ConnectionLostError("the bookie does not speak TLS")
    if answer.status is not Status.OK:
        raise ConnectionLostError(f"the bookie refused TLS: {answer.status.name}")
    if not connection.is_between_frames:
        raise ConnectionLostError("plaintext bytes followed the bookie's consent to TLS")
    loop = asyncio.get_running_loop()
    try:
        transport = await loop.start_tls(connection.transport, connection, context, server_hostname=address.host)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError; ValueError: no host name
        why = str(error) or _CONNECTION_CLOSED_REASON
        raise ConnectionLostError(f"TLS with {address.host}:{address.port} failed: {why}") from error
    if transport is None:
        raise ConnectionLostError(f"TLS with {address.host}:{address.port} failed: {_CONNECTION_CLOSED_REASON}")
    connection.secured(transport)


async def _log_in(connection: Version3Connection, credentials: SaslCredentials) -> None:
    steps = login(credentials)
    token: bytes | None = steps.first()
    connection.is_logging_in = True
    try:
        for _ in range(LOGIN_ROUNDS_MAX):
            answer = await _round(connection, token)
            if answer.status is not Status.OK:
                raise ConnectionLostError(_login_refusal_reason(credentials, is_encrypted=connection.is_encrypted))
            if answer.content is None:
                raise ConnectionLostError("the bookie's answer to a login has no content")
            if answer.content.authPluginName == _NO_LOGIN_PLUGIN:
                connection.is_logged_in = True
                return
            if answer.content.authPluginName != _AUTH_PLUGIN:
                raise ConnectionLostError(f"the bookie knows logins by {answer.content.authPluginName[:64]!r} only")
            token = steps.answer(answer.content.payload)
            if token is None:
                connection.is_logged_in = True
                return
    except LoginError as error:
        raise ConnectionLostError(f"the login of {credentials.username!r} failed: {error}") from error
    finally:
        connection.is_logging_in = False
    raise ConnectionLostError(f"the login of {credentials.username!r} took more than {LOGIN_ROUNDS_MAX} rounds")


def _login_refusal_reason(credentials: SaslCredentials, *, is_encrypted: bool) -> str:
    why = (
        f"the bookie refused the login of {credentials.username!r} by {credentials.mechanism.value}: "
        "check the name, the password, and that it speaks this mechanism"
    )
    return why if is_encrypted else why + "; a bookie that demands TLS (--tls-ca) refuses any login in the clear"


async def _round(connection: Version3Connection, token: bytes | None) -> ApacheAnswer:
    """Send one token and then a harmless request; return the answer to the token, or the refusal of the request.

    Apache's bookies do not answer a wrong name or password at all. But before a login they answer in order, so a
    refusal of the second request shows that the token was refused.
    """
    message = pb.Request(authRequest=pb.AuthMessage(authPluginName=_AUTH_PLUGIN, payload=token))
    harmless = pb.Request(getBookieInfoRequest=pb.GetBookieInfoRequest(requested=0))
    waiter = FutureWaiter()
    await connection.ready()
    sent = [
        connection.prepare(message, ExpectedAnswer(pb.AUTH, None, None, waiter)),
        connection.prepare(harmless, ExpectedAnswer(pb.GET_BOOKIE_INFO, None, None, _RefusalWaiter(waiter))),
    ]
    connection.send([frame for _, frame in sent])
    try:
        return await waiter.future
    finally:
        connection.forget([txn_id for txn_id, _ in sent])


class _RefusalWaiter(AnswerWaiter):
    """A waiter that passes on only refusals."""

    def __init__(self, waiter: FutureWaiter) -> None:
        self._waiter = waiter

    @override
    def answered(self, answer: ApacheAnswer) -> None:
        if answer.status is not Status.OK:
            self._waiter.answered(answer)

    @override
    def lost(self, error: ConnectionLostError) -> None:
        self._waiter.lost(error)
