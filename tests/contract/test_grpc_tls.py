"""TLS between transport and bookie: both sides authenticate, or no request is sent."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.model.ids import BookieId
from bookie.server.grpc.server import GrpcServer
from bookie.server.service import BookieService
from bookie.wire.grpc.transport import GrpcTransport
from bookie.wire.port import Status
from bookie.wire.requests import Info
from bookie.wire.resolver import BookieAddress
from bookie.wire.security import TlsSettings
from bookie.wire.tls import ServerContext, TlsFilesError, channel_credentials, server_credentials
from tests.contract.conftest import RotatedFiles
from tests.deadlines import STATE_S
from tests.worlds.cluster import open_bookie

pytestmark = pytest.mark.needs("openssl")

BOOKIE = BookieId("b")


class Directory:
    def __init__(self, port: int) -> None:
        self._address = BookieAddress("127.0.0.1", port)

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        return self._address


@pytest.fixture
async def service() -> AsyncIterator[BookieService]:
    bookie = await open_bookie()
    yield bookie.service
    await bookie.storage.abort()


async def info_status(service: BookieService, server_tls: TlsSettings, client_tls: TlsSettings | None) -> Status:
    server = GrpcServer(concurrent_requests_max=10)
    port = server.bind("127.0.0.1", 0, server_tls)
    await server.start(service)
    transport = GrpcTransport(Directory(port), tls=client_tls, is_plaintext=client_tls is None)
    try:
        return (await transport.ask(BOOKIE, Info(), STATE_S)).status
    finally:
        await transport.close()
        await server.stop()


async def test_both_sides_with_certificates_of_one_authority_can_connect(
    service: BookieService, certificates: dict[str, TlsSettings]
) -> None:
    assert await info_status(service, certificates["bookie"], certificates["client"]) is Status.OK


async def test_connections_without_certificates_of_the_authority_are_refused(
    service: BookieService, certificates: dict[str, TlsSettings]
) -> None:
    bookie, client, stranger = (certificates[name] for name in ("bookie", "client", "stranger"))
    no_certificate = TlsSettings(client.ca)
    stranger_who_trusts_us = TlsSettings(client.ca, stranger.cert, stranger.key)
    for other in (stranger, stranger_who_trusts_us, no_certificate, None):
        assert await info_status(service, bookie, other) is Status.UNREACHABLE
    assert await info_status(service, certificates["elsewhere"], client) is Status.UNREACHABLE  # another host's name
    assert await info_status(service, stranger, client) is Status.UNREACHABLE


async def test_a_renewed_certificate_is_used_for_new_connections_without_a_restart(
    service: BookieService, certificates: dict[str, TlsSettings], rotated: RotatedFiles
) -> None:
    server = GrpcServer(concurrent_requests_max=10)
    port = server.bind("127.0.0.1", 0, rotated.tls)
    await server.start(service)

    async def status_of_new_connection() -> Status:
        transport = GrpcTransport(Directory(port), tls=certificates["client"])
        try:
            return (await transport.ask(BOOKIE, Info(), STATE_S)).status
        finally:
            await transport.close()

    standing = GrpcTransport(Directory(port), tls=certificates["client"])
    try:
        assert (await standing.ask(BOOKIE, Info(), STATE_S)).status is Status.OK
        rotated.put("elsewhere")  # a certificate for another host makes the change visible to clients
        assert await status_of_new_connection() is Status.UNREACHABLE
        assert (await standing.ask(BOOKIE, Info(), STATE_S)).status is Status.OK
        rotated.put("bookie", only_cert=True)  # the key is not replaced yet
        assert await status_of_new_connection() is Status.UNREACHABLE
        rotated.put("bookie")
        assert await status_of_new_connection() is Status.OK
        rotated.put("bookie")
        assert rotated.tls.cert is not None
        rotated.tls.cert.write_text("damaged")
        assert await status_of_new_connection() is Status.OK
    finally:
        await standing.close()
        await server.stop()


async def test_a_damaged_certificate_is_logged_once_and_not_for_each_connection(
    service: BookieService,
    certificates: dict[str, TlsSettings],
    rotated: RotatedFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = GrpcServer(concurrent_requests_max=10)
    port = server.bind("127.0.0.1", 0, rotated.tls)
    await server.start(service)
    context = ServerContext(rotated.tls)

    async def connect() -> None:
        context.current()
        transport = GrpcTransport(Directory(port), tls=certificates["client"])
        try:
            assert (await transport.ask(BOOKIE, Info(), STATE_S)).status is Status.OK
        finally:
            await transport.close()

    assert rotated.tls.cert is not None
    try:
        for times in (1, 2):
            rotated.tls.cert.write_text("damaged")
            for _ in range(3):
                await connect()
            warnings = [record for record in caplog.records if "old certificate" in record.message]
            assert len(warnings) == 2 * times  # one of each listener
            rotated.put("bookie")
            await connect()
    finally:
        await server.stop()


async def test_the_old_authorities_stay_in_use_while_their_file_is_damaged(
    service: BookieService, certificates: dict[str, TlsSettings], tmp_path: Path
) -> None:
    bookie, client, stranger = (certificates[name] for name in ("bookie", "client", "stranger"))
    ca = tmp_path / "ca.pem"
    ours = bookie.ca.read_text()
    ca.write_text(ours)
    server = GrpcServer(concurrent_requests_max=10)
    port = server.bind("127.0.0.1", 0, TlsSettings(ca, bookie.cert, bookie.key))
    await server.start(service)

    async def status_for(who: TlsSettings) -> Status:
        transport = GrpcTransport(Directory(port), tls=TlsSettings(client.ca, who.cert, who.key))
        try:
            return (await transport.ask(BOOKIE, Info(), STATE_S)).status
        finally:
            await transport.close()

    try:
        assert await status_for(client) is Status.OK
        for damaged in ("", "damaged", ours[: len(ours) // 2]):
            ca.write_text(damaged)
            assert await status_for(client) is Status.OK
        theirs = stranger.ca.read_text()
        ca.write_text(theirs + ours[: len(ours) // 2])
        assert await status_for(stranger) is Status.UNREACHABLE
        ca.write_text(theirs + ours)
        assert await status_for(stranger) is Status.OK
        assert await status_for(client) is Status.OK
    finally:
        await server.stop()


def test_unusable_files_are_refused_by_name(certificates: dict[str, TlsSettings], tmp_path: Path) -> None:
    bookie, stranger = certificates["bookie"], certificates["stranger"]
    for text in ("", "damaged", bookie.ca.read_text()[:-40]):
        ca = tmp_path / "ca.pem"
        ca.write_text(text)
        with pytest.raises(TlsFilesError, match=re.escape(str(ca))):
            channel_credentials(TlsSettings(ca))
        with pytest.raises(TlsFilesError, match=re.escape(str(ca))):
            server_credentials(TlsSettings(ca, bookie.cert, bookie.key))
    with pytest.raises(TlsFilesError, match=re.escape(str(stranger.key))):
        channel_credentials(TlsSettings(bookie.ca, bookie.cert, stranger.key))


def test_incomplete_files_are_refused_by_name(certificates: dict[str, TlsSettings], tmp_path: Path) -> None:
    client = certificates["client"]
    with pytest.raises(TlsFilesError, match="key"):
        channel_credentials(TlsSettings(client.ca, client.cert))
    with pytest.raises(TlsFilesError, match="certificate"):
        server_credentials(TlsSettings(client.ca))
    with pytest.raises(TlsFilesError, match=re.escape(str(tmp_path / "missing.pem"))):
        channel_credentials(TlsSettings(tmp_path / "missing.pem"))
