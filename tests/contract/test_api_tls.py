"""TLS of both APIs: which clients are admitted, and certificates replaced while the service runs."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest

from auditor.api import control_pb2 as pb
from auditor.api import control_pb2_grpc as rpc
from auditor.api.access.tls import ReloadingContext
from auditor.api.grpc.server import GrpcApi
from auditor.api.http.server import HttpApi
from auditor.api.settings import ServerTls
from auditor.cli.audit.remote import Remote, RemoteSettings, RemoteUnavailableError
from auditor.service.leader_ports import LeaderPort
from auditor.service.peer_reports import ElectionPeerReports
from bookie.wire.tls import TlsFilesError, check_key_pair
from tests.certificates import make_ca, make_certificate, openssl
from tests.deadlines import STATE_S
from tests.worlds.api import TwinControl, TwinOperations, TwinUpkeep, running, settings_in
from tests.worlds.clocks import ManualClock

pytestmark = pytest.mark.needs("openssl")

RUN = "20261120T101500Z-0a1b2c"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_ca(directory, "our-ca")
    make_ca(directory, "strange-ca")
    make_certificate(directory, "server", "our-ca", "IP:127.0.0.1")
    make_certificate(directory, "renewed", "our-ca", "IP:127.0.0.1")
    make_certificate(directory, "elsewhere", "our-ca", "DNS:another.example")
    make_certificate(directory, "client", "our-ca", "DNS:client")
    make_certificate(directory, "stranger", "strange-ca", "DNS:client")
    make_certificate(directory, "expired", "our-ca", "DNS:client", days=-1)
    return directory


def server_tls(folder: Path, name: str = "server", *, is_mutual: bool = False) -> ServerTls:
    return ServerTls(folder / f"{name}.pem", folder / f"{name}.key", folder / "our-ca.pem" if is_mutual else None)


def connector(folder: Path, client: str | None, ca: str = "our-ca") -> aiohttp.TCPConnector:
    context = ssl.create_default_context(cafile=folder / f"{ca}.pem")
    if client is not None:
        context.load_cert_chain(folder / f"{client}.pem", folder / f"{client}.key")
    return aiohttp.TCPConnector(ssl=context, force_close=True)


@asynccontextmanager
async def through_another_auditor(port: int) -> AsyncIterator[int]:
    """Forward a port to ``port``, as an auditor that is not the leader does."""
    leader = LeaderPort("http", ("127.0.0.1", 0), lambda: ("127.0.0.1", port), ManualClock())
    await leader.start()
    try:
        yield leader.port
    finally:
        await leader.stop()


async def relayed_http_answers(tmp_path: Path, folder: Path, tls: ServerTls, client: str | None) -> bool:
    async with (
        running(tmp_path, connector=connector(folder, client), tls=tls) as world,
        through_another_auditor(world.api.port) as port,
    ):
        try:
            async with asyncio.timeout(STATE_S):
                return (
                    await replace(world, url=f"https://127.0.0.1:{port}").ask("GET", "/api/v1/status")
                ).status == 200
        except aiohttp.ClientError:
            return False


async def http_answers(tmp_path: Path, folder: Path, tls: ServerTls, client: str | None, ca: str = "our-ca") -> bool:
    async with running(tmp_path, connector=connector(folder, client, ca), tls=tls) as world:
        try:
            async with asyncio.timeout(STATE_S):
                reply = await world.ask("GET", "/api/v1/status")
        except aiohttp.ClientError:
            return False
        assert "Strict-Transport-Security" in reply.headers
        return reply.status == 200


async def relayed_grpc_answers(tmp_path: Path, folder: Path, tls: ServerTls, client: str | None) -> bool:
    settings, _ = settings_in(tmp_path, tls=tls)
    api = GrpcApi(TwinControl(), settings, ManualClock())
    await api.start()
    try:
        async with through_another_auditor(api.port) as port:
            return await grpc_on(port, folder, client, "our-ca")
    finally:
        await api.stop()


async def grpc_answers(tmp_path: Path, folder: Path, tls: ServerTls, client: str | None, ca: str = "our-ca") -> bool:
    settings, _ = settings_in(tmp_path, tls=tls)
    api = GrpcApi(TwinControl(), settings, ManualClock())
    await api.start()
    try:
        return await grpc_on(api.port, folder, client, ca)
    finally:
        await api.stop()


async def grpc_on(port: int, folder: Path, client: str | None, ca: str) -> bool:
    pair = [folder / f"{client}.{end}" for end in ("key", "pem")] if client else []
    credentials = grpc.ssl_channel_credentials(
        (folder / f"{ca}.pem").read_bytes(), *(path.read_bytes() for path in pair)
    )
    channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials)
    try:
        stub: Any = rpc.AuditorServiceStub(channel)  # type: ignore[no-untyped-call]
        await stub.GetStatus(pb.GetStatusRequest(), timeout=STATE_S)
        return True
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    finally:
        await channel.close(None)


@pytest.mark.parametrize("answers", [http_answers, grpc_answers])
async def test_the_server_must_prove_its_identity(tmp_path: Path, folder: Path, answers: Any) -> None:
    assert await answers(tmp_path, folder, server_tls(folder), None)
    assert not await answers(tmp_path, folder, server_tls(folder), None, "strange-ca")
    assert not await answers(tmp_path, folder, server_tls(folder, "elsewhere"), None)


@pytest.mark.parametrize("answers", [http_answers, grpc_answers, relayed_http_answers, relayed_grpc_answers])
@pytest.mark.parametrize(
    ("client", "is_admitted"), [("client", True), (None, False), ("stranger", False), ("expired", False)]
)
async def test_only_clients_of_the_client_authority_are_admitted(
    tmp_path: Path, folder: Path, answers: Any, client: str | None, is_admitted: bool
) -> None:
    assert await answers(tmp_path, folder, server_tls(folder, is_mutual=True), client) is is_admitted


async def output_of_command(
    tmp_path: Path, folder: Path, server: str, ca: str | None, client: str | None = None, *, is_mutual: bool = False
) -> str:
    """Return what a command receives from a service: the kind of the document, or the error."""
    files = (folder / f"{client}.pem", folder / f"{client}.key") if client else (None, None)
    tls = server_tls(folder, server, is_mutual=is_mutual)
    async with running(tmp_path, connector=connector(folder, "client"), tls=tls) as world:
        url = f"https://127.0.0.1:{world.api.port}"
        remote = Remote(RemoteSettings(url, None, folder / f"{ca}.pem" if ca else None, *files))
        try:
            return str((await asyncio.to_thread(remote.status))["kind"])
        except RemoteUnavailableError as error:
            return str(error).replace(url, "URL")


@pytest.mark.parametrize(
    ("server", "ca", "is_answered"),
    [
        ("server", "our-ca", True),
        ("server", None, False),  # the authorities of the system, which did not sign the certificate
        ("server", "strange-ca", False),
        ("elsewhere", "our-ca", False),
    ],
)
async def test_a_command_accepts_only_a_service_with_a_trusted_certificate_for_its_host(
    tmp_path: Path, folder: Path, server: str, ca: str | None, is_answered: bool
) -> None:
    reported = await output_of_command(tmp_path, folder, server, ca)
    assert (
        reported == "ServiceStatus"
        if is_answered
        else reported.startswith("no answer from URL: its certificate is not")
    )


@pytest.mark.parametrize(("client", "is_answered"), [("client", True), (None, False), ("stranger", False)])
async def test_a_command_presents_its_certificate(
    tmp_path: Path, folder: Path, client: str | None, is_answered: bool
) -> None:
    reported = await output_of_command(tmp_path, folder, "server", "our-ca", client, is_mutual=True)
    assert reported == "ServiceStatus" if is_answered else reported.startswith("no answer from URL: ")


async def test_a_plain_request_to_a_tls_port_gets_no_answer(tmp_path: Path, folder: Path) -> None:
    async with running(tmp_path, tls=server_tls(folder)) as world:
        with pytest.raises(aiohttp.ClientError):
            await world.session.get(f"http://127.0.0.1:{world.api.port}/livez")


def test_old_tls_versions_are_refused(folder: Path) -> None:
    assert ReloadingContext(server_tls(folder)).context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_unusable_files_are_named(folder: Path, tmp_path: Path) -> None:
    wrong_key = ServerTls(folder / "server.pem", folder / "client.key")
    with pytest.raises(TlsFilesError, match=r"client\.key"):
        ReloadingContext(wrong_key)
    with pytest.raises(TlsFilesError, match=r"none\.pem"):
        ReloadingContext(ServerTls(tmp_path / "none.pem", folder / "server.key"))
    openssl("ec", "-in", "server.key", "-out", "locked.key", "-aes128", "-passout", "pass:x", directory=folder)
    with pytest.raises(TlsFilesError, match="encrypted"):
        ReloadingContext(ServerTls(folder / "server.pem", folder / "locked.key"))


async def served_certificate(port: int) -> bytes:
    """Return the certificate of a port, as seen by a client without verification."""
    pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port), timeout=STATE_S)
    return ssl.PEM_cert_to_DER_cert(pem)


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def test_a_certificate_without_its_key_since_the_check_is_read_again_later(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are replaced one after the other, also between the check of a pair and its use."""
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def put(name: str) -> None:
        shutil.copyfile(folder / f"{name}.key", key)
        shutil.copyfile(folder / f"{name}.pem", cert)

    def check_before_replacement(cert: Path, key: Path) -> None:
        check_key_pair(cert, key)
        shutil.copyfile(folder / "server.pem", cert)

    put("server")
    context = ReloadingContext(ServerTls(cert, key))
    put("renewed")
    with monkeypatch.context() as patched:
        patched.setattr("auditor.api.access.tls.check_key_pair", check_before_replacement)
        assert not context.refresh()
    put("renewed")
    assert context.refresh()


async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path, folder: Path) -> None:
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    tls = ServerTls(cert, key)

    def put(name: str) -> None:
        shutil.copyfile(folder / f"{name}.key", key)
        shutil.copyfile(folder / f"{name}.pem", cert)

    put("server")
    settings, _ = settings_in(tmp_path, tls=tls)
    api = GrpcApi(TwinControl(), settings, ManualClock())
    await api.start()
    context = ReloadingContext(tls)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context.context)
    port = server.sockets[0].getsockname()[1]
    try:
        assert await served_certificate(port) == await served_certificate(api.port) == der(folder / "server.pem")
        assert not context.refresh()
        put("renewed")
        assert context.refresh()
        assert await served_certificate(port) == await served_certificate(api.port) == der(folder / "renewed.pem")
        shutil.copyfile(folder / "server.pem", cert)  # the key is not replaced yet
        assert not context.refresh()
        assert await served_certificate(port) == await served_certificate(api.port) == der(folder / "renewed.pem")
        cert.write_text("damaged")
        assert not context.refresh()
        assert await served_certificate(port) == der(folder / "renewed.pem")
        cert.unlink()
        assert not context.refresh()
        assert await served_certificate(api.port) == der(folder / "renewed.pem")
    finally:
        server.close()
        await server.wait_closed()
        await api.stop()


async def test_the_http_api_reloads_its_certificate(tmp_path: Path, folder: Path) -> None:
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copyfile(folder / "server.pem", cert)
    shutil.copyfile(folder / "server.key", key)
    settings, _ = settings_in(tmp_path, tls=ServerTls(cert, key))
    clock = ManualClock()
    api = HttpApi(TwinControl(), TwinOperations(), settings, clock, upkeep=TwinUpkeep())
    await api.start()
    try:
        assert await served_certificate(api.port) == der(folder / "server.pem")
        shutil.copyfile(folder / "renewed.pem", cert)
        shutil.copyfile(folder / "renewed.key", key)
        async with asyncio.timeout(STATE_S):
            while await served_certificate(api.port) != der(folder / "renewed.pem"):
                clock.now_s += 60
    finally:
        await api.stop()


@pytest.mark.parametrize(("of_peer", "is_found"), [("server", True), ("renewed", False)])
async def test_a_report_is_fetched_only_from_an_auditor_with_the_same_certificate(
    tmp_path: Path, folder: Path, of_peer: str, is_found: bool
) -> None:
    run = tmp_path / "reports" / RUN
    run.mkdir(parents=True)
    (run / "summary.json").write_text("{}")
    (tmp_path / "second").mkdir()
    async with running(tmp_path, tls=server_tls(folder, of_peer)) as first:

        async def candidates() -> list[str]:
            return [f"127.0.0.1:{first.api.port}"]

        tls = server_tls(folder)
        peers = ElectionPeerReports(candidates, "127.0.0.9:8080", first.api.port, tls.cert)
        async with running(tmp_path / "second", connector=connector(folder, None), tls=tls, peers=peers) as second:
            reply = await second.ask("GET", f"/reports/{RUN}/summary.json")
            assert (reply.status == 200) is is_found
