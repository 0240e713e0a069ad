"""START_TLS: both sides authenticate; a bookie with TLS refuses plain connections, and our client reports this."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from bookie.model.ids import EntryId
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.listener import ApacheListener
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache import v2
from bookie.wire.apache.connection import TLS_DEMANDED, TLS_OR_LOGIN_DEMANDED
from bookie.wire.apache.transport import BULK_ENTRIES_MIN, ApacheTransport
from bookie.wire.port import Status
from bookie.wire.requests import Fence, Info, ListEntries, Read
from bookie.wire.security import PLAINTEXT, BookieSecurity, SaslCredentials, TlsSettings
from bookie.wire.tls import TlsFilesError
from tests.apache.recording_proxy import RecordingProxy
from tests.contract.apache_listener_world import DEADLINE_S, Client, Listening, listening
from tests.contract.conftest import RotatedFiles
from tests.contract.scripted_apache_bookie import BOOKIE, Directory, batch
from tests.worlds.apache_listener import KEY, LEDGER, add, entry, read, request

pytestmark = pytest.mark.needs("openssl")


def context(tls: TlsSettings, ca: Path | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(ca or tls.ca))
    if tls.cert is not None:
        made.load_cert_chain(str(tls.cert), str(tls.key))
    return made


async def encrypted(world: Listening, tls: ssl.SSLContext) -> Client:
    client = await world.connect()
    accepted = await client.ask(request(pb.START_TLS))
    assert (accepted.status, accepted.HasField("startTLSResponse")) == (pb.EOK, True)
    await client.start_tls(tls)
    return client


async def test_both_versions_are_served_over_tls(certificates: dict[str, TlsSettings]) -> None:
    async with listening(tls=certificates["bookie"]) as world:
        client = await encrypted(world, context(certificates["client"]))
        assert (await client.ask(add(entry(0, size=100_000)))).status == pb.EOK
        client.send(*([read(0)] * 50))
        assert {answer.readResponse.body for answer in await client.answers(50)} == {entry(0, size=100_000)}
        assert (await client.ask(request(pb.START_TLS))).status == pb.EBADREQ
        client.send(v2.encode_request(v2.ReadV2(LEDGER, 1)))
        assert v2.decode_response(await client.body()) == v2.EntryV2(2, LEDGER, 1)


async def test_nothing_is_served_without_tls(certificates: dict[str, TlsSettings]) -> None:
    async with listening(tls=certificates["bookie"]) as world:
        client = await world.connect()
        assert (await client.ask(add(entry(0)))).status == pb.EUA
        assert (await client.ask(read(0))).status == pb.EUA
        login = request(pb.AUTH)
        login.authRequest.authPluginName, login.authRequest.payload = "sasl", b""
        assert (await client.ask(login)).authResponse.authPluginName == "AuthDisabledPlugin"
        assert (await client.ask(read(0))).status == pb.EUA
        client.send(v2.encode_request(v2.AddV2(KEY, entry(0))))
        assert v2.decode_response(await client.body()) == v2.AddedV2(102, LEDGER, 0)
        assert world.service.batches == []


async def everything_asked(transport: ApacheTransport) -> list[tuple[Status, str]]:
    """Return status and detail of each kind of request; the last two are large enough for an attempt in bulk."""
    many = [EntryId(number) for number in range(BULK_ENTRIES_MIN)]
    replies = (
        await transport.add(BOOKIE, batch(0), DEADLINE_S),
        await transport.ask(BOOKIE, Read(LEDGER, [EntryId(0)]), DEADLINE_S),
        await transport.ask(BOOKIE, Fence(LEDGER, KEY), DEADLINE_S),
        await transport.ask(BOOKIE, ListEntries(LEDGER), DEADLINE_S),
        await transport.ask(BOOKIE, Info(), DEADLINE_S),
        await transport.add(BOOKIE, batch(*many, is_recovery=True), DEADLINE_S),
        await transport.ask(BOOKIE, Read(LEDGER, many), DEADLINE_S),
    )
    return [(reply.status, reply.detail) for reply in replies]


@pytest.mark.parametrize(
    ("security", "reported"),
    [
        (PLAINTEXT, TLS_OR_LOGIN_DEMANDED),
        (BookieSecurity(sasl=SaslCredentials("keeper", "secret")), TLS_DEMANDED),
    ],
    ids=["no login", "a login that was not requested"],
)
async def test_our_client_without_tls_gets_a_clear_error_and_stores_nothing(
    certificates: dict[str, TlsSettings], security: BookieSecurity, reported: str
) -> None:
    """The bookie counts as unreachable: its refusal says nothing about the ledger, its password or its entries."""
    async with listening(tls=certificates["bookie"]) as world:
        transport = ApacheTransport(Directory(world.port), security=security)
        assert await everything_asked(transport) == [(Status.UNREACHABLE, reported)] * 7
        await transport.close()
        assert "--tls-ca" in reported
        assert world.service.batches == []
        transport = ApacheTransport(Directory(world.port), security=BookieSecurity(certificates["client"]))
        assert (await transport.ask(BOOKIE, ListEntries(LEDGER), DEADLINE_S)).status is Status.NO_LEDGER
        assert (await transport.add(BOOKIE, batch(0), DEADLINE_S)).status is Status.OK  # so the ledger was not fenced
        await transport.close()


async def test_a_request_refused_for_lack_of_tls_is_not_repeated(certificates: dict[str, TlsSettings]) -> None:
    async with listening(tls=certificates["bookie"]) as world, RecordingProxy(world.port) as proxy:
        transport = ApacheTransport(Directory(proxy.port))
        assert (await transport.add(BOOKIE, batch(0), DEADLINE_S)).status is Status.UNREACHABLE
        assert (await transport.ask(BOOKIE, Info(), DEADLINE_S)).status is Status.UNREACHABLE
        await transport.close()
        asked = [pb.Request.FromString(frame.body).header.operation for frame in proxy.frames if frame.is_request]
        assert asked == [pb.ADD_ENTRY, pb.GET_BOOKIE_INFO]


async def test_clients_without_a_certificate_of_our_authority_are_refused(
    certificates: dict[str, TlsSettings], caplog: pytest.LogCaptureFixture
) -> None:
    ours = certificates["client"].ca
    async with listening(tls=certificates["bookie"]) as world:
        for other in (TlsSettings(ours), certificates["stranger"]):
            client = await world.connect()
            await client.ask(request(pb.START_TLS))
            try:
                await client.start_tls(context(other, ours))
                client.send(read(0))  # in TLS 1.3 the server refuses after the client has completed its handshake
                assert await client.reader.read() == b""
            except (OSError, asyncio.IncompleteReadError):
                pass
        healthy = await encrypted(world, context(certificates["client"]))
        assert (await healthy.ask(read(0))).status == pb.ENOLEDGER
    assert [record.__dict__["reason"].startswith("no TLS: ") for record in caplog.records] == [True, True]


async def test_plain_bytes_after_start_tls_are_never_taken_for_encrypted_ones(
    certificates: dict[str, TlsSettings],
) -> None:
    async with listening(tls=certificates["bookie"]) as world:
        client = await world.connect()
        client.send(request(pb.START_TLS), add(entry(0)))
        assert await client.is_closed()
        half = await world.connect()
        half.send(request(pb.START_TLS))
        half.writer.write(b"\0\0")
        assert await half.is_closed()
        assert world.service.batches == []


async def test_plain_answers_are_sent_before_the_consent_to_tls(certificates: dict[str, TlsSettings]) -> None:
    async with listening(tls=certificates["bookie"]) as world:
        client = await world.connect()
        client.send(read(0), request(pb.START_TLS))
        assert [answer.status for answer in await client.answers(2)] == [pb.EUA, pb.EOK]
        await client.start_tls(context(certificates["client"]))
        assert (await client.ask(read(0))).status == pb.ENOLEDGER


async def test_a_client_after_the_tls_handshake_may_stay_idle_longer_than_one_before_it(
    certificates: dict[str, TlsSettings],
) -> None:
    async with listening(ListenerLimits(first_request_s=1.0), certificates["bookie"]) as world:
        early = await encrypted(world, context(certificates["client"]))
        assert await (await world.connect()).is_closed()  # it connected later, and sent no request
        assert (await early.ask(read(0))).status == pb.ENOLEDGER


async def test_a_client_that_sends_requests_but_never_starts_tls_is_closed(
    certificates: dict[str, TlsSettings],
) -> None:
    async with listening(ListenerLimits(first_request_s=0.2), certificates["bookie"]) as world:
        client = await world.connect()
        assert (await client.ask(read(0))).status == pb.EUA
        assert await client.is_closed()


async def test_a_client_that_starts_no_tls_handshake_is_closed(certificates: dict[str, TlsSettings]) -> None:
    async with listening(ListenerLimits(handshake_s=0.05), certificates["bookie"]) as world:
        silent = await world.connect()
        assert (await silent.ask(request(pb.START_TLS))).status == pb.EOK
        assert await silent.is_closed()
        leaving = await world.connect()
        assert (await leaving.ask(request(pb.START_TLS))).status == pb.EOK
        leaving.close()
        stopping = await world.connect()
        assert (await stopping.ask(request(pb.START_TLS))).status == pb.EOK
        await world.listener.stop()
        assert await stopping.is_closed()


async def test_clients_that_finish_no_tls_handshake_keep_no_others_out(certificates: dict[str, TlsSettings]) -> None:
    async with listening(ListenerLimits(connections_max=3), certificates["bookie"]) as world:
        served = await encrypted(world, context(certificates["client"]))
        assert (await served.ask(read(0))).status == pb.ENOLEDGER
        for _ in range(4):
            halfway = await world.connect()
            assert (await halfway.ask(request(pb.START_TLS))).status == pb.EOK
        other = await encrypted(world, context(certificates["client"]))
        assert (await other.ask(read(0))).status == pb.ENOLEDGER
        assert (await served.ask(read(0))).status == pb.ENOLEDGER


async def test_a_renewed_certificate_is_used_for_new_connections_without_a_restart(
    certificates: dict[str, TlsSettings], rotated: RotatedFiles
) -> None:
    mine = context(certificates["client"])
    async with listening(tls=rotated.tls) as world:
        standing = await encrypted(world, mine)
        rotated.put("elsewhere")  # a certificate for another host makes the change visible to clients
        with pytest.raises(ssl.SSLCertVerificationError):
            await encrypted(world, mine)
        rotated.put("bookie", only_cert=True)  # the key is not replaced yet
        with pytest.raises(ssl.SSLCertVerificationError):
            await encrypted(world, mine)
        rotated.put("bookie")
        renewed = await encrypted(world, mine)
        assert rotated.tls.cert is not None
        rotated.tls.cert.unlink()
        for client in (standing, renewed, await encrypted(world, mine)):
            assert (await client.ask(add(entry(0)))).status == pb.EOK


def test_incomplete_files_are_refused_by_name(certificates: dict[str, TlsSettings], tmp_path: Path) -> None:
    ca = certificates["bookie"].ca
    with pytest.raises(TlsFilesError, match="key"):
        ApacheListener().bind("127.0.0.1", 0, TlsSettings(ca))
    with pytest.raises(TlsFilesError, match=r"missing\.pem"):
        ApacheListener().bind("127.0.0.1", 0, TlsSettings(ca, tmp_path / "missing.pem", tmp_path / "missing.key"))
