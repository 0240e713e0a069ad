"""The API client of the commands, against a running API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from auditor.cli.audit.remote import (
    Remote,
    RemoteBusyError,
    RemoteNotLeaderError,
    RemoteRefusedError,
    RemoteRun,
    RemoteSettings,
    RemoteUnavailableError,
    auditor_token,
    read_token,
)
from bookie.model.run import RunKind, RunState
from bookie.runtime.access.tokens import Role, Tokens
from bookie.runtime.configuration.settings import ConfigurationError
from tests.worlds.api import ApiWorld, running


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    async with running(tmp_path) as made:
        yield made


def client(world: ApiWorld, role: Role | None = Role.OPERATE, **options: Any) -> Remote:
    token = world.tokens[role].token if role else None
    return Remote(RemoteSettings(world.url, token), sleep=lambda seconds: None, **options)


async def asked(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call the blocking client in a thread, while its API runs on this loop."""
    return await asyncio.to_thread(call, *arguments, **options)


async def test_runs_are_started_listed_paused_resumed_and_cancelled(world: ApiWorld) -> None:
    remote = client(world)
    begun = await asked(remote.start, RunKind.PLACEMENT, is_dry_run=True, key="k1")
    assert (begun.state, begun.fields["dry_run"], begun.fields["kind"]) == (RunState.RUNNING, True, "placement")
    assert (await asked(remote.start, RunKind.PLACEMENT, is_dry_run=True, key="k1")).run_id == begun.run_id
    assert [run.run_id for run in await asked(remote.runs)] == [begun.run_id]
    for state in (RunState.PAUSED, RunState.RUNNING, RunState.CANCELLED):
        assert (await asked(remote.change, begun.run_id, state)).state is state
    assert (await asked(remote.wait, begun.run_id)).exit_code == 7
    assert (await asked(remote.status))["kind"] == "ServiceStatus"


async def test_a_sample_size_reaches_the_service(world: ApiWorld) -> None:
    options = {"sample": 0.01, "ledger_max": 1000}
    begun = await asked(client(world).start, RunKind.REPLICAS, options=options, key="k1")
    assert world.control.options == {begun.run_id: options}
    with pytest.raises(RemoteRefusedError, match="placement"):
        await asked(client(world).start, RunKind.BOOKIES, options={"mark_misplaced": True}, key="k2")


async def test_waiting_returns_each_change_and_ends_with_the_run(world: ApiWorld) -> None:
    remote, loop = client(world), asyncio.get_running_loop()
    run_id = (await asked(remote.start, RunKind.BOOKIES, key="k")).run_id
    shown: list[RemoteRun] = []

    def on_change(run: RemoteRun) -> None:
        shown.append(run)
        if run.state is RunState.RUNNING:
            asyncio.run_coroutine_threadsafe(world.control.finish(run_id), loop).result(20)

    ended = await asked(remote.wait, run_id, on_change)
    assert [run.state for run in shown] == [RunState.RUNNING, RunState.DONE]
    assert (ended.exit_code, ended.fields["verdict"]) == (1, "findings")
    assert shown[0].progress() == (f"bookies run {run_id} is running: scan 1/4, done at 2023-11-14T22:13:24.000Z")


async def test_waiting_has_a_deadline_even_if_the_run_never_ends(world: ApiWorld) -> None:
    now = iter(range(1_000))
    remote = client(world, monotonic_s=lambda: float(next(now)))
    run_id = (await asked(remote.start, RunKind.BOOKIES, key="k")).run_id
    with pytest.raises(RemoteUnavailableError, match="did not end within 20 s"):
        await asked(remote.wait, run_id, deadline_s=20)


async def test_waiting_survives_a_short_outage_but_not_a_long_one(world: ApiWorld) -> None:
    run_id = await world.start()
    await world.control.finish(run_id)
    now, outage = iter(range(0, 100_000, 10)), 3

    def sleep(seconds: float) -> None:
        nonlocal outage
        outage -= 1
        world.control.is_connected = outage <= 0

    world.control.is_connected = False
    remote = Remote(RemoteSettings(world.url), sleep=sleep, monotonic_s=lambda: float(next(now)))
    assert (await asked(remote.wait, run_id)).state is RunState.DONE
    outage, world.control.is_connected = 1_000, False
    with pytest.raises(RemoteUnavailableError, match="no answer from the store"):
        await asked(remote.wait, run_id)


async def test_a_busy_error_names_the_run(world: ApiWorld) -> None:
    run_id = await world.start()
    with pytest.raises(RemoteBusyError) as busy:
        await asked(client(world).start, RunKind.BOOKIES, key="k")
    assert busy.value.run_id == run_id


async def test_a_request_is_retried_until_it_reaches_the_leader(world: ApiWorld) -> None:
    world.control.is_leader = False
    attempts = 0

    def sleep(seconds: float) -> None:
        nonlocal attempts
        attempts += 1
        world.control.is_leader = attempts == 3

    remote = Remote(RemoteSettings(world.url, world.tokens[Role.OPERATE].token), sleep=sleep)
    assert (await asked(remote.start, RunKind.BOOKIES, key="k")).state is RunState.RUNNING
    world.control.is_leader, attempts = False, 3
    with pytest.raises(RemoteNotLeaderError, match="auditor-0:3181"):
        await asked(remote.change, "x", RunState.PAUSED)


async def test_refusals_contain_the_reason(world: ApiWorld) -> None:
    with pytest.raises(RemoteRefusedError, match="BKHEAL_TOKEN") as refused:
        await asked(client(world, None).start, RunKind.BOOKIES, key="k")
    assert refused.value.status == 401
    with pytest.raises(RemoteRefusedError, match="this needs operate") as refused:
        await asked(client(world, Role.READ).start, RunKind.BOOKIES, key="k")
    assert refused.value.status == 403
    with pytest.raises(RemoteRefusedError, match=r"there is no run \.\./x") as refused:
        await asked(client(world).run, "../x")
    assert refused.value.status == 404


def test_a_refused_connection_is_unavailable() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # the port stays taken, and connections to it are refused
        with pytest.raises(RemoteUnavailableError, match=r"no answer from http://127\.0\.0\.1:\d+: the connection"):
            Remote(RemoteSettings(f"http://127.0.0.1:{silent.getsockname()[1]}")).status()


class Listener(BaseHTTPRequestHandler):
    """A server that records the path, headers and client port of each request, and answers with ``reply``."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, dict[str, str], int]]

    def do_GET(self) -> None:
        self.asked.append((self.path, dict(self.headers), self.client_address[1]))
        self.reply()

    def reply(self) -> None:
        self.answer(200, b'{"kind": "ServiceStatus"}')

    def answer(self, status: int, body: bytes, *, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def served(handler: type[Listener]) -> Iterator[str]:
    """Yield the URL of a server with this handler."""
    handler.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(20)


@pytest.mark.parametrize("body", [b"<html>hello", b"[1]", b"{}", b'{"run": 1}', b'{"items": [{"run_id": "r"}]}'])
def test_a_server_that_is_not_an_auditor_is_refused(body: bytes) -> None:
    class WrongService(Listener):
        def reply(self) -> None:
            self.answer(200, body)

    with served(WrongService) as url:
        with pytest.raises(RemoteRefusedError, match="is it an auditor"):
            Remote(RemoteSettings(url)).run("r1")
        with pytest.raises(RemoteRefusedError, match="is it an auditor"):
            Remote(RemoteSettings(url)).runs()
        with pytest.raises(RemoteRefusedError, match="is it an auditor"):
            Remote(RemoteSettings(url)).ask("GET", "/api/v1/drains")


def test_a_server_without_the_auditors_paths_is_refused() -> None:
    class Spark(Listener):
        def reply(self) -> None:
            self.answer(404, b'{"url": "/api/v1/status", "status": "404", "message": "Not Found"}')

    with served(Spark) as url, pytest.raises(RemoteRefusedError, match="is it an auditor"):
        Remote(RemoteSettings(url)).ask("GET", "/status")


def test_a_redirect_is_not_followed() -> None:
    """Another host would receive the token."""

    class OtherApi(Listener):
        pass

    class Moved(Listener):
        def reply(self) -> None:
            self.answer(307, b"moved", Location=elsewhere)

    with (
        served(OtherApi) as elsewhere,
        served(Moved) as url,
        pytest.raises(RemoteRefusedError, match="answered 307") as refused,
    ):
        Remote(RemoteSettings(url, "t0ken")).status()
    assert (refused.value.status, len(Moved.asked), OtherApi.asked) == (307, 1, [])


def test_a_truncated_response_is_unavailable() -> None:
    class Cut(Listener):
        def reply(self) -> None:
            self.answer(200, b'{"run": {', length=1_000)
            self.close_connection = True

    with served(Cut) as url, pytest.raises(RemoteUnavailableError, match="no answer from http"):
        Remote(RemoteSettings(url)).status()


def test_an_endless_response_is_cut_off() -> None:
    class Endless(Listener):
        def reply(self) -> None:
            with contextlib.suppress(OSError):  # the client closes the connection
                self.answer(200, b"", length=1 << 40)
                while True:
                    self.wfile.write(b"[" * (1 << 20))

    with served(Endless) as url, pytest.raises(RemoteRefusedError, match="more than 67108864 bytes"):
        Remote(RemoteSettings(url)).status()


def test_a_response_that_trickles_in_times_out() -> None:
    class Trickle(Listener):
        def reply(self) -> None:
            with contextlib.suppress(OSError):  # the client closes the connection
                self.answer(200, b"", length=1 << 40)
                while not is_over.wait(0.01):
                    self.wfile.write(b" ")

    is_over = threading.Event()
    with served(Trickle) as url:
        try:
            with pytest.raises(RemoteUnavailableError, match="no answer from http"):
                Remote(RemoteSettings(url, timeout_s=0.3)).status()
        finally:
            is_over.set()


def test_an_unresponsive_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = Remote(RemoteSettings(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1))
        with pytest.raises(RemoteUnavailableError, match="timed out"):
            remote.status()


def test_each_request_has_its_own_connection() -> None:
    class Auditor(Listener):
        pass

    with served(Auditor) as url:
        remote = Remote(RemoteSettings(url))
        for _ in range(3):
            remote.status()
    assert len({port for _, _, port in Auditor.asked}) == 3


def test_a_path_before_the_api_is_kept_and_credentials_in_the_url_are_not_sent() -> None:
    class Auditor(Listener):
        pass

    with served(Auditor) as url:
        Remote(RemoteSettings(f"{url.replace('://', '://user:password@')}/a/b/?c#d", "t0ken")).status()
    ((path, headers, _),) = Auditor.asked
    assert (path, headers["Authorization"]) == ("/a/b/api/v1/status", "Bearer t0ken")


async def test_proxies_in_the_environment_are_ignored(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await asked(client(world).status))["kind"] == "ServiceStatus"


async def test_tokens_are_not_logged(world: ApiWorld, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("", "httpx", "httpcore"):
        caplog.set_level(logging.DEBUG, name or None)
    remote = client(world)
    await asked(remote.start, RunKind.BOOKIES, key="k")
    token = world.tokens[Role.OPERATE].token
    assert "httpcore" in caplog.text
    assert token not in caplog.text
    assert token not in repr(remote)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "auditor:8080",
        "ftp://auditor",
        "http://",
        "http://a:x",
        "http://a:99999",
        "http://a:0",
        "http://[::1",
        "http://999.1.1.1",
        "http://a..b:80",
        f"http://{'x' * 64}",
    ],
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not the URL"):
        Remote(RemoteSettings(url))


def test_token_is_not_sent_in_the_clear_unless_allowed() -> None:
    with pytest.raises(ConfigurationError, match="in the clear"):
        Remote(RemoteSettings("http://auditor.example:8080", "t"))
    Remote(RemoteSettings("http://auditor.example:8080", "t", allow_plaintext_token=True))
    Remote(RemoteSettings("http://auditor.example:8080"))
    Remote(RemoteSettings("https://auditor.example", "t"))
    assert "secret" not in repr(RemoteSettings("https://auditor.example", "secret"))


def test_a_token_that_is_invalid_in_a_header_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="one word") as refused:
        Remote(RemoteSettings("https://auditor.example", "secret\r\nInjected: yes"))
    assert "secret" not in str(refused.value)


def test_unusable_tls_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot use the file .*: No such file or directory"):
        Remote(RemoteSettings("https://auditor.example", ca=tmp_path / "none.pem"))
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(ConfigurationError, match=r"text of the authority: no certificate or crl found$"):
        Remote(RemoteSettings("https://auditor.example", ca=tmp_path / "text"))
    with pytest.raises(ConfigurationError, match=r"text with the key .*text: it is not in PEM format$"):
        Remote(RemoteSettings("https://auditor.example", cert=tmp_path / "text", key=tmp_path / "text"))


def test_token_is_read_from_the_file_or_else_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("from-file\n")
    environment = {"BKHEAL_TOKEN": "from-environment"}
    assert read_token(path, environment) == "from-file"
    assert read_token(None, environment) == "from-environment"
    assert read_token(None, {}) is None
    for content in ("", "two words", "a\r\nInjected: yes"):
        path.write_text(content)
        with pytest.raises(ConfigurationError) as refused:
            read_token(path, environment)
        assert "Injected" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_token(tmp_path / "none", environment)


def test_command_creates_a_token_that_the_service_accepts(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(auditor_token)
    made = CliRunner().invoke(app, ["ci", "--role", "operate", "--output", "json"])
    assert made.exit_code == 0
    document = json.loads(made.stdout)
    path = tmp_path / "tokens"
    path.write_text(document["line"])
    entry = Tokens(path).find(document["token"])
    assert entry is not None
    assert (entry.name, entry.role) == ("ci", Role.OPERATE)
    text = CliRunner().invoke(app, ["ci"])
    assert text.stdout.strip().startswith("bkheal_")
    path.write_text(text.stderr)  # what a shell writes with `2>>tokens`
    assert Tokens(path).find(text.stdout.strip()) is not None
