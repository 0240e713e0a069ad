"""The HTTP server that runs next to the work: paths, probes, TLS, and misbehaving clients."""

from __future__ import annotations

import gzip
import http.client
import json
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from bookie.runtime.telemetry import status_server
from bookie.runtime.telemetry.metrics import COMMON, MetricSet
from bookie.runtime.telemetry.status_pages import Check, Health, Pages, StatusResponse
from bookie.runtime.telemetry.status_server import StatusServer, StatusServerError
from bookie.runtime.telemetry.status_settings import StatusServerSettings
from tests.certificates import make_ca, make_certificate
from tests.deadlines import STATE_S


def fine() -> str:
    return ""


def away() -> str:
    return "the store is away"


@contextmanager
def serving(
    live: Mapping[str, Check] | None = None,
    ready: Mapping[str, Check] | None = None,
    settings: StatusServerSettings | None = None,
) -> Iterator[StatusServer]:
    health = Health({"loop": fine} if live is None else live, {"store": fine} if ready is None else ready)
    server = StatusServer(settings or StatusServerSettings(0), MetricSet("bookie", "1.2", ()), health)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(
    server: StatusServer,
    path: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    if tls is None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=STATE_S)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=STATE_S, context=tls)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        reply = connection.getresponse()
        return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
    finally:
        connection.close()


def test_metrics_are_text_or_openmetrics_and_compressed_as_requested() -> None:
    with serving() as server:
        plain = ask(server, "/metrics")
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
        names = {family.name for family in parse_text(plain.text)}
        assert {definition.name for definition in COMMON} <= names
        assert "process_cpu_seconds" in names
        assert '\nbkheal_build_info{component="bookie",version="1.2"} 1.0\n' in plain.text
        modern = ask(server, "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert "bkheal_build_info" in {family.name for family in parse_openmetrics(modern.text)}  # type: ignore[no-untyped-call]
        packed = ask(server, "/metrics", headers={"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert b"bkheal_build_info" in gzip.decompress(packed.body)


def test_no_created_series_are_shown() -> None:
    with serving() as server:
        modern = ask(server, "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert "_created" not in modern.text


def test_probes_report_the_problem() -> None:
    with serving(ready={"store": away, "disk": fine}) as server:
        assert (ask(server, "/livez").status, ask(server, "/livez").text) == (200, "ok\n")
        assert ask(server, "/livez?verbose").text == "[+]loop ok\nok\n"
        ready = ask(server, "/readyz")
        assert (ready.status, ready.text) == (503, "[-]store: the store is away\n[+]disk ok\nfailed\n")
    with serving(live={"loop": away}) as server:
        assert ask(server, "/livez").status == 503
        assert ask(server, "/readyz").status == 200


def test_other_paths_and_methods_are_refused() -> None:
    with serving() as server:
        version = ask(server, "/version")
        assert json.loads(version.text)["version"] == "1.2"
        assert ask(server, "/").status == ask(server, "/metrics/../etc/passwd").status == 404
        refused = ask(server, "/metrics", "POST")
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
        head = ask(server, "/metrics", "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert int(head.headers["content-length"]) > 0


def test_a_check_that_raises_is_answered_with_500(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> str:
        raise ZeroDivisionError

    with serving(ready={"store": broken}) as server:
        answer = ask(server, "/readyz")
        assert (answer.status, "ZeroDivision" in answer.text) == (500, False)
        assert ask(server, "/livez").status == 200
    assert "ZeroDivisionError" in caplog.text


@contextmanager
def mute_clients(server: StatusServer) -> Iterator[list[socket.socket]]:
    mute = [socket.create_connection(("127.0.0.1", server.port), timeout=STATE_S) for _ in range(3)]
    mute[0].sendall(b"GET /metrics HTTP/1.0\r\nX-Slow: ")
    yield mute
    for client in mute:
        client.close()


def test_silent_clients_do_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "DEADLINE_S", STATE_S)
    with serving() as server, mute_clients(server) as mute:
        assert ask(server, "/livez").status == 200
        mute[0].sendall(b"\r\n\r\n")
        assert mute[0].recv(1000).startswith(b"HTTP/1.0 200"), "this client was connected all the time"


def test_silent_clients_are_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "DEADLINE_S", 0.1)
    with serving() as server, mute_clients(server) as mute:
        assert [client.recv(1000) for client in mute] == [b""] * 3


def test_connection_slots_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "CONNECTIONS_MAX", 2)
    with serving() as server:
        held = [connected(server) for _ in range(2)]
        for client in held:
            client.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.0 200")
            while client.recv(1000):
                pass
            client.close()
        for _ in range(20):  # ten times the limit of connections
            wait_for_a_place(server)


def connected(server: StatusServer, request: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=STATE_S)
    client.sendall(request)
    return client


def test_the_oldest_connection_without_a_request_is_closed_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "DEADLINE_S", STATE_S)
    monkeypatch.setattr(status_server, "CONNECTIONS_MAX", 3)
    with serving() as server:
        begun = (b"GET /livez HTTP/1.0\r\nX-Slow: ", b"", b"GET")
        held = [connected(server, request) for request in begun]
        assert ask(server, "/livez").status == 200
        assert held[0].recv(1) == b""
        held[2].sendall(b" /livez HTTP/1.0\r\n\r\n")
        assert held[2].recv(1000).startswith(b"HTTP/1.0 200"), "only the first one was closed"
        for client in held:
            client.close()


def test_slow_readers_do_not_block_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    def page(pages: Pages, target: str, *_: str, has_certificate: bool) -> StatusResponse:
        return StatusResponse(HTTPStatus.OK, bytes(16 << 20) if target == "/metrics" else b"ok\n")

    monkeypatch.setattr(status_server, "DEADLINE_S", STATE_S)
    monkeypatch.setattr(Pages, "page", page)
    with serving() as server:
        slow = [connected(server, b"GET /metrics HTTP/1.0\r\n\r\n") for _ in range(status_server.CONNECTIONS_MAX)]
        begun = [client.recv(12)[9:] for client in slow]
        assert ask(server, "/livez").status == 200
        assert (begun.count(b"200"), begun.count(b"503")) == (8, 8)
        for client in slow:
            client.close()
        for _ in range(status_server.LONG_ANSWERS_MAX + 1):
            wait_for_an_answer(server, "/metrics")


def wait_for_an_answer(server: StatusServer, path: str) -> None:
    """Send requests until a thread whose client has disconnected frees its slot."""
    deadline_s = time.monotonic() + STATE_S
    while ask(server, path).status != HTTPStatus.OK:
        assert time.monotonic() < deadline_s


def test_silent_connections_do_not_block_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "DEADLINE_S", STATE_S)
    with serving() as server:
        silent = [connected(server) for _ in range(2 * status_server.CONNECTIONS_MAX)]
        assert [ask(server, path).status for path in ("/livez", "/readyz", "/metrics")] == [200] * 3
        for client in silent:
            client.close()


def test_a_request_that_is_being_answered_is_not_closed_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(status_server, "CONNECTION_WAIT_S_MAX", 0.05)
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slow() -> str:
        begun.release()
        return "" if go_on.wait(STATE_S) else "it took too long"

    with serving(ready={"slow": slow}) as server:
        answered = [connected(server, b"GET /readyz HTTP/1.0\r\n\r\n") for _ in range(2)]
        assert begun.acquire(timeout=STATE_S)
        assert begun.acquire(timeout=STATE_S)
        with connected(server) as surplus:
            assert surplus.recv(1) == b""
        go_on.set()
        for client in answered:
            assert client.recv(1000).startswith(b"HTTP/1.0 200")
            client.close()


def wait_for_a_place(server: StatusServer) -> None:
    """Connect until there is an answer: a client sees its connection close before the server frees its slot."""
    deadline_s = time.monotonic() + STATE_S
    while time.monotonic() < deadline_s:
        with suppress(ConnectionError), socket.create_connection(("127.0.0.1", server.port)) as client:
            client.settimeout(STATE_S)
            client.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            if client.recv(1000).startswith(b"HTTP/1.0 200"):
                return
    raise AssertionError("places were not released")


def test_invalid_settings_are_reported() -> None:
    metrics = MetricSet("bookie", "1", ())
    assert len(StatusServerSettings(0, cert=Path("c")).problems()) == 1
    assert len(StatusServerSettings(0, client_ca=Path("c")).problems()) == 1
    with pytest.raises(StatusServerError, match="port = 70000"):
        StatusServer(StatusServerSettings(70_000), metrics, Health())
    nothing = Path("nothing-here")
    with pytest.raises(StatusServerError, match="nothing-here"):
        StatusServer(StatusServerSettings(0, cert=nothing, key=nothing), metrics, Health())


needs_openssl = pytest.mark.needs("openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the server, of a known client and of an unknown client.

    Each has an authority of its own.
    """
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("server", "client", "stranger"):
        make_ca(folder, f"{name}-ca")
        make_certificate(folder, name, f"{name}-ca", "IP:127.0.0.1")
    return folder


def client_context(folder: Path, name: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "server-ca.pem")
    if name:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


@needs_openssl
def test_with_a_client_ca_metrics_need_a_certificate_and_probes_do_not(certificates: Path) -> None:
    settings = StatusServerSettings(
        0,
        cert=certificates / "server.pem",
        key=certificates / "server.key",
        client_ca=certificates / "client-ca.pem",
    )
    with serving(settings=settings) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        nobody, known = client_context(certificates), client_context(certificates, "client")
        assert ask(server, "/livez", tls=nobody).status == ask(server, "/readyz", tls=nobody).status == 200
        assert ask(server, "/metrics", tls=nobody).status == ask(server, "/version", tls=nobody).status == 403
        assert ask(server, "/metrics", tls=known).status == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(server, "/livez", tls=client_context(certificates, "stranger"))
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(server, "/livez")  # without TLS
        assert ask(server, "/metrics", tls=known).status == 200


@needs_openssl
def test_a_replaced_certificate_is_used(certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "TLS_RELOAD_INTERVAL_S", 0.1)
    cert, key = tmp_path / "tls.pem", tmp_path / "tls.key"

    def install(name: str) -> None:
        shutil.copy(certificates / f"{name}.key", key)
        shutil.copy(certificates / f"{name}.pem", cert)

    install("server")
    with serving(settings=StatusServerSettings(0, cert=cert, key=key)) as server:
        address = ("127.0.0.1", server.port)
        assert ssl.get_server_certificate(address) == (certificates / "server.pem").read_text()
        cert.write_text("half of")
        assert ssl.get_server_certificate(address) == (certificates / "server.pem").read_text()
        install("client")
        deadline_s = time.monotonic() + STATE_S
        while ssl.get_server_certificate(address, timeout=STATE_S) != (certificates / "client.pem").read_text():
            assert time.monotonic() < deadline_s


@needs_openssl
@pytest.mark.parametrize("places", [1, 2])
def test_a_client_silent_in_the_handshake_does_not_block_others(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    monkeypatch.setattr(status_server, "CONNECTIONS_MAX", places)
    monkeypatch.setattr(status_server, "DEADLINE_S", STATE_S)
    settings = StatusServerSettings(0, cert=certificates / "server.pem", key=certificates / "server.key")
    with serving(settings=settings) as server, socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server, "/metrics", tls=client_context(certificates)).status == 200
