"""TLS and logins over Apache's protocol: both sides authenticate, or no request is sent.

Source: docs/formats.md#tls-and-login.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bookie.runtime.tasks import guarded
from bookie.wire.apache import handshake
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.connection import TLS_OR_LOGIN_DEMANDED
from bookie.wire.apache.sasl import parse_challenge
from bookie.wire.apache.transport import ApacheTransport
from bookie.wire.port import InfoReply, Status
from bookie.wire.requests import Fence, Info
from bookie.wire.security import PLAINTEXT, BookieSecurity, SaslCredentials, SaslMechanism, TlsSettings
from bookie.wire.tls import TlsFilesError
from tests.contract.scripted_apache_bookie import (
    BOOKIE,
    DEADLINE_S,
    KEY,
    LEDGER,
    SOON_S,
    Directory,
    Received,
    ScriptedApacheBookie,
    scripted_bookie,
)

needs_openssl = pytest.mark.needs("openssl")

PASSWORD = "tr0ub4dor"
DIGEST_MD5 = BookieSecurity(sasl=SaslCredentials("bookkeeper", PASSWORD))
PLAIN = BookieSecurity(sasl=SaslCredentials("bookkeeper", PASSWORD, SaslMechanism.PLAIN))


@asynccontextmanager
async def reached(bookie: ScriptedApacheBookie, security: BookieSecurity) -> AsyncIterator[ApacheTransport]:
    transport = ApacheTransport(Directory(bookie.port), security=security)
    yield transport
    await transport.close()


async def info(bookie: ScriptedApacheBookie, security: BookieSecurity, timeout_s: float = DEADLINE_S) -> InfoReply:
    async with reached(bookie, security) as transport:
        return await transport.ask(BOOKIE, Info(), timeout_s)


def server_context(tls: TlsSettings, *, asks_for_certificates: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert tls.cert is not None
    context.load_cert_chain(tls.cert, tls.key)
    if asks_for_certificates:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(tls.ca)
    return context


def with_tls(context: ssl.SSLContext, inside: Callable[[Received], None]) -> Callable[[Received], None]:
    """Return the reaction of a bookie with START_TLS: it calls ``inside`` for each request after the handshake."""

    async def encrypt(received: Received) -> None:
        try:
            await received.client.encrypt(context)
        except OSError:
            return  # the client refused the handshake

    def react(received: Received) -> None:
        if received.operation == pb.START_TLS:
            assert received.request.HasField("startTLSRequest")
            received.refuse(pb.EOK)
            guarded("scripted TLS", encrypt(received))
        else:
            assert received.client.transport is not None
            assert received.client.transport.get_extra_info("ssl_object") is not None
            inside(received)

    return react


def answers_everything(received: Received) -> None:
    received.answer()


@needs_openssl
async def test_tls_is_requested_in_plain_text_and_everything_else_is_encrypted(
    certificates: dict[str, TlsSettings],
) -> None:
    async with scripted_bookie() as bookie:
        bookie.react = with_tls(server_context(certificates["bookie"]), answers_everything)
        async with reached(bookie, BookieSecurity(TlsSettings(certificates["client"].ca))) as transport:
            replies = await asyncio.gather(*(transport.ask(BOOKIE, Info(), DEADLINE_S) for _ in range(5)))
            assert {reply.status for reply in replies} == {Status.OK}
            assert len(bookie.clients) == 1


@needs_openssl
async def test_a_bookie_that_requires_certificates_gets_ours(certificates: dict[str, TlsSettings]) -> None:
    client = certificates["client"]
    async with scripted_bookie() as bookie:
        context = server_context(certificates["bookie"], asks_for_certificates=True)
        bookie.react = with_tls(context, answers_everything)
        assert (await info(bookie, BookieSecurity(client))).status is Status.OK
        assert (await info(bookie, BookieSecurity(TlsSettings(client.ca)))).status is Status.UNREACHABLE


@needs_openssl
@pytest.mark.parametrize("name", ["elsewhere", "stranger"])
async def test_a_bookie_that_cannot_prove_its_identity_gets_no_request(
    certificates: dict[str, TlsSettings], name: str
) -> None:
    async with scripted_bookie() as bookie:
        bookie.react = with_tls(server_context(certificates[name]), pytest.fail)  # type: ignore[arg-type]
        reply = await info(bookie, BookieSecurity(certificates["client"]))
        assert reply.status is Status.UNREACHABLE
        assert "TLS with 127.0.0.1" in reply.detail


@needs_openssl
async def test_nothing_is_sent_in_plain_text_to_a_bookie_without_tls(certificates: dict[str, TlsSettings]) -> None:
    async with scripted_bookie() as bookie:
        operations = []

        def react(received: Received) -> None:
            operations.append(received.operation)
            received.refuse(pb.EBADREQ)

        bookie.react = react
        both = BookieSecurity(certificates["client"], DIGEST_MD5.sasl)
        reply = await info(bookie, both)
        assert (reply.status, reply.detail) == (Status.UNREACHABLE, "the bookie does not speak TLS")
        assert operations == [pb.START_TLS]


@needs_openssl
async def test_plain_bytes_injected_before_tls_end_the_connection(certificates: dict[str, TlsSettings]) -> None:
    async with scripted_bookie() as bookie:

        def react(received: Received) -> None:
            received.client.send_raw(
                len(body := received.response().SerializeToString()).to_bytes(4, "big") + body + b"\0"
            )

        bookie.react = react
        reply = await info(bookie, BookieSecurity(certificates["client"]))
        assert reply.status is Status.UNREACHABLE
        assert "plaintext" in reply.detail


def late_refusal(received: Received) -> None:
    """Answer like Apache's bookies after the TLS handshake, if TLS alone does not identify the client."""
    received.client.send(received.response(pb.EIO, txn_id=1, operation=pb.START_TLS).SerializeToString())


@needs_openssl
async def test_a_bookie_may_refuse_a_client_after_the_handshake(certificates: dict[str, TlsSettings]) -> None:
    async with scripted_bookie() as bookie:

        def refuse(received: Received) -> None:
            late_refusal(received)
            received.refuse(pb.EUA)

        bookie.react = with_tls(server_context(certificates["bookie"]), refuse)
        reply = await info(bookie, BookieSecurity(certificates["client"]))
        assert reply.status is Status.UNREACHABLE
        assert "certificate is not enough" in reply.detail


@needs_openssl
@pytest.mark.parametrize(
    ("sasl", "reported"),
    [(None, TLS_OR_LOGIN_DEMANDED), (DIGEST_MD5.sasl, "demands TLS (--tls-ca)")],
    ids=["none", "sasl"],
)
async def test_a_refused_client_without_tls_is_advised_to_use_tls(
    certificates: dict[str, TlsSettings], sasl: SaslCredentials | None, reported: str
) -> None:
    """A bookie that identifies clients by their certificates refuses unencrypted logins like any other request."""
    async with scripted_bookie() as bookie:
        bookie.react = lambda received: received.refuse(pb.EUA)
        reply = await info(bookie, BookieSecurity(sasl=sasl))
        assert reply.status is Status.UNREACHABLE
        assert reported in reply.detail
        bookie.react = with_tls(server_context(certificates["bookie"]), lambda received: received.refuse(pb.EUA))
        reply = await info(bookie, BookieSecurity(certificates["client"], sasl))
        assert reply.status is Status.UNREACHABLE
        assert "login" in reply.detail
        assert "--tls-ca" not in reply.detail


@needs_openssl
async def test_a_login_is_sent_if_the_certificate_was_not_sufficient(certificates: dict[str, TlsSettings]) -> None:
    async with scripted_bookie() as bookie:
        peer = DigestMd5Bookie()

        def react(received: Received) -> None:
            if received.operation == pb.AUTH:
                late_refusal(received)
            peer.react(received)

        bookie.react = with_tls(server_context(certificates["bookie"]), react)
        assert (await info(bookie, BookieSecurity(certificates["client"], DIGEST_MD5.sasl))).status is Status.OK


@needs_openssl
async def test_a_handshake_that_hangs_is_a_timeout(certificates: dict[str, TlsSettings]) -> None:
    async with scripted_bookie() as bookie:
        security = BookieSecurity(certificates["client"])
        assert (await info(bookie, security, SOON_S)).status is Status.TIMEOUT

        def consent(received: Received) -> None:
            received.client.stop_listening()
            received.refuse(pb.EOK)

        bookie.react = consent
        assert (await info(bookie, security, SOON_S)).status is Status.TIMEOUT


@needs_openssl
async def test_the_login_is_sent_inside_tls(certificates: dict[str, TlsSettings]) -> None:
    async with scripted_bookie() as bookie:
        bookie.react = with_tls(server_context(certificates["bookie"]), DigestMd5Bookie().react)
        both = BookieSecurity(certificates["client"], DIGEST_MD5.sasl)
        assert (await info(bookie, both)).status is Status.OK


@needs_openssl
def test_incomplete_files_are_refused_by_name(certificates: dict[str, TlsSettings], tmp_path: Path) -> None:
    client = certificates["client"]
    (tmp_path / "empty.pem").write_text("")
    for tls, match in (
        (TlsSettings(client.ca, client.cert), "key"),
        (TlsSettings(tmp_path / "missing.pem"), re.escape(str(tmp_path / "missing.pem"))),
        (TlsSettings(tmp_path / "empty.pem"), re.escape(str(tmp_path / "empty.pem"))),
        (TlsSettings(client.ca, client.cert, certificates["bookie"].key), "bookie.key"),
    ):
        with pytest.raises(TlsFilesError, match=match):
            ApacheTransport(Directory(1), security=BookieSecurity(tls))


class DigestMd5Bookie:
    """A bookie that requires a DIGEST-MD5 login, like Apache's bookies, and answers every request after it."""

    def __init__(self, password: str = PASSWORD, *, is_silent: bool = False) -> None:
        self._password = password
        self._is_silent = is_silent
        self._is_logged_in = False
        self.proof = ""

    def react(self, received: Received) -> None:
        if received.operation != pb.AUTH:
            received.answer() if self._is_logged_in else received.refuse(pb.EUA)
            return
        message = received.request.authRequest
        assert message.authPluginName == "sasl"
        if not message.payload:
            say(received, b'realm="bookkeeper",nonce="n0nce",charset=utf-8,algorithm=md5-sess')
            return
        if message.payload.startswith(b"\0"):
            received.refuse(pb.EUA)
            return
        answer = parse_challenge(message.payload)
        assert answer["digest-uri"] == "bookkeeper/bookkeeper"
        if answer["response"] != self._expected(answer, "AUTHENTICATE"):
            if not self._is_silent:
                received.refuse(pb.EUA)
                received.client.disconnect()
            return
        self._is_logged_in = True
        say(received, f"rspauth={self.proof or self._expected(answer, '')}".encode())

    def _expected(self, answer: dict[str, str], prefix: str) -> str:
        known = hashlib.md5(f"{answer['username']}:{answer['realm']}:{self._password}".encode()).digest()
        a1 = hashlib.md5(known + f":n0nce:{answer['cnonce']}".encode()).hexdigest()
        a2 = hashlib.md5(f"{prefix}:{answer['digest-uri']}".encode()).hexdigest()
        return hashlib.md5(f"{a1}:n0nce:{answer['nc']}:{answer['cnonce']}:auth:{a2}".encode()).hexdigest()


def say(received: Received, token: bytes, plugin: str = "sasl") -> None:
    response = received.response()
    response.authResponse.CopyFrom(pb.AuthMessage(authPluginName=plugin, payload=token))
    received.client.send(response.SerializeToString())


async def test_a_login_with_digest_md5_opens_the_connection() -> None:
    async with scripted_bookie() as bookie:
        bookie.react = DigestMd5Bookie().react
        async with reached(bookie, DIGEST_MD5) as transport:
            calls = (transport.ask(BOOKIE, Info(), DEADLINE_S) for _ in range(3))
            assert [reply.status for reply in await asyncio.gather(*calls)] == [Status.OK] * 3


async def test_a_plain_login_consists_of_one_token() -> None:
    async with scripted_bookie() as bookie:

        def react(received: Received) -> None:
            if received.operation == pb.AUTH:
                assert received.request.authRequest.payload == f"\0bookkeeper\0{PASSWORD}".encode()
                say(received, b"")
            else:
                received.answer()

        bookie.react = react
        assert (await info(bookie, PLAIN)).status is Status.OK


async def test_a_bookie_without_logins_accepts_our_connection() -> None:
    async with scripted_bookie() as bookie:
        bookie.react = lambda received: (
            say(received, b"", "AuthDisabledPlugin") if received.operation == pb.AUTH else received.answer()
        )
        for security in (DIGEST_MD5, PLAIN):
            assert (await info(bookie, security)).status is Status.OK


@pytest.mark.parametrize("is_silent", [False, True], ids=["reported", "not reported, as by Apache's bookies"])
async def test_a_refused_login_is_not_reported_as_a_wrong_ledger_password(
    caplog: pytest.LogCaptureFixture, is_silent: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted_bookie() as bookie:
        bookie.react = DigestMd5Bookie("another password", is_silent=is_silent).react
        async with reached(bookie, DIGEST_MD5) as transport:
            reply = await transport.ask(BOOKIE, Fence(LEDGER, KEY), DEADLINE_S)
            assert reply.status is Status.UNREACHABLE
            assert "refused the login of 'bookkeeper' by DIGEST-MD5" in reply.detail
            assert PASSWORD not in repr(reply) + repr(vars(transport)) + caplog.text


@pytest.mark.parametrize("security", [PLAINTEXT, PLAIN], ids=["no login", "another mechanism"])
async def test_a_bookie_that_requires_another_login_is_unreachable(security: BookieSecurity) -> None:
    async with scripted_bookie() as bookie:
        bookie.react = DigestMd5Bookie().react
        async with reached(bookie, security) as transport:
            reply = await transport.ask(BOOKIE, Fence(LEDGER, KEY), DEADLINE_S)
            assert reply.status is Status.UNREACHABLE
            assert "login" in reply.detail


async def test_a_bookie_that_does_not_prove_that_it_has_the_password_is_rejected() -> None:
    async with scripted_bookie() as bookie:
        liar = DigestMd5Bookie()
        liar.proof = "0" * 32
        bookie.react = liar.react
        reply = await info(bookie, DIGEST_MD5)
        assert reply.status is Status.UNREACHABLE
        assert "did not prove" in reply.detail


def _no_content(received: Received) -> None:
    received.refuse(pb.EOK)


def _endless(received: Received) -> None:
    say(received, b'nonce="n",algorithm=md5-sess' if not received.request.authRequest.payload else b"rspauth=0")


@pytest.mark.parametrize(
    "react",
    [
        _no_content,
        _endless,
        lambda received: say(received, b"", "BookieAuthZFactory"),
        lambda received: say(received, b"\xff\xff\0"),
        lambda received: say(received, b"x" * 100_000),
        lambda received: received.client.disconnect(),
    ],
    ids=["no content", "wrong proof", "other plugin", "no token", "large token", "disconnects"],
)
async def test_logins_without_progress_end(react: Callable[[Received], None]) -> None:
    async with scripted_bookie() as bookie:
        bookie.react = react
        assert (await info(bookie, DIGEST_MD5)).status is Status.UNREACHABLE


async def test_a_login_that_hangs_is_a_timeout() -> None:
    async with scripted_bookie() as bookie:
        assert (await info(bookie, DIGEST_MD5, SOON_S)).status is Status.TIMEOUT


async def test_a_connection_that_is_never_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "CONNECT_S_MAX", SOON_S)
    async with scripted_bookie() as bookie:
        reply = await info(bookie, DIGEST_MD5)
        assert reply.status is Status.UNREACHABLE
        assert "within 0.2 s" in reply.detail
        await bookie.clients[0].is_lost.wait()


async def test_the_next_call_after_a_failed_login_retries_it() -> None:
    async with scripted_bookie() as bookie, reached(bookie, DIGEST_MD5) as transport:
        bookie.react = lambda received: received.refuse(pb.EUA)
        assert (await transport.ask(BOOKIE, Info(), DEADLINE_S)).status is Status.UNREACHABLE
        bookie.react = DigestMd5Bookie().react
        assert (await transport.ask(BOOKIE, Info(), DEADLINE_S)).status is Status.OK


async def test_closing_cancels_a_handshake() -> None:
    async with scripted_bookie() as bookie, reached(bookie, DIGEST_MD5) as transport:
        call = asyncio.create_task(transport.ask(BOOKIE, Info(), DEADLINE_S))
        await bookie.next(pb.AUTH)
        await transport.close()
        assert (await call).status is Status.UNREACHABLE
        await bookie.clients[0].is_lost.wait()


async def test_a_cancelled_caller_does_not_end_the_handshake_for_others() -> None:
    async with scripted_bookie() as bookie, reached(bookie, DIGEST_MD5) as transport:
        impatient = asyncio.create_task(transport.ask(BOOKIE, Info(), DEADLINE_S))
        first = await bookie.next(pb.AUTH)
        patient = asyncio.create_task(transport.ask(BOOKIE, Info(), DEADLINE_S))
        impatient.cancel()
        peer = DigestMd5Bookie()
        bookie.react = peer.react
        peer.react(first)
        assert (await patient).status is Status.OK
        assert len(bookie.clients) == 1
