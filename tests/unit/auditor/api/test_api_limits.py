"""Limits on rates, sizes, deadlines, concurrent requests, and requests from pages of other sites."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.api.control import RunBusyError
from auditor.api.http import connections, server
from auditor.api.idempotency import KEPT_S, KEYS_MAX, FirstRequestAbortedError, IdempotentRuns, KeyReusedError
from auditor.api.problems import PROBLEM_TYPE
from auditor.api.settings import ServerTls
from bookie.model.run import RunKind
from bookie.runtime.access.rate_limit import RateLimit
from bookie.runtime.access.tokens import Role
from tests.certificates import make_ca, make_certificate
from tests.deadlines import STATE_S
from tests.worlds.api import running
from tests.worlds.clocks import ManualClock


async def test_client_above_its_rate_gets_a_retry_after(tmp_path: Path) -> None:
    async with running(tmp_path, requests_per_second=2) as world:
        codes = [(await world.ask("GET", "/api/v1/status")).status for _ in range(5)]
        assert codes == [200] * 4 + [429]
        refused = await world.ask("GET", "/api/v1/status")
        assert (refused.problem, refused.headers["Retry-After"]) == ("too-many-requests", "1")
        for path in ("/livez", "/readyz", "/healthz"):
            assert (await world.ask("GET", path)).status == 200
        assert (await world.operate("GET", "/api/v1/status")).status == 200  # another client with the same address
        world.clock.now_s += 0.5
        assert [(await world.ask("GET", "/api/v1/status")).status for _ in range(2)] == [200, 429]


async def test_guesses_of_tokens_are_limited_like_requests(tmp_path: Path) -> None:
    async with running(tmp_path, requests_per_second=2) as world:
        codes = [(await world.ask("GET", "/version", token=f"guess{n}")).status for n in range(6)]
        assert codes == [401] * 4 + [429] * 2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3)), max_size=60))
def test_no_client_exceeds_its_rate_plus_one_burst(steps: list[tuple[str, float]]) -> None:
    clock = ManualClock()
    limit, begin_s = RateLimit(2.0, 100, clock), clock.now_s
    passed = dict.fromkeys("abc", 0)
    for client, pause_s in steps:
        clock.now_s += pause_s
        wait_s = limit.wait_s(client)
        assert 0 <= wait_s <= 0.5
        passed[client] += wait_s == 0
        assert passed[client] <= 4 + 2 * (clock.now_s - begin_s) + 1e-6


def test_a_client_that_was_idle_for_long_has_only_one_burst() -> None:
    clock = ManualClock()
    limit = RateLimit(2.0, 100, clock)
    limit.wait_s("a")
    clock.now_s += 1_000
    assert [limit.wait_s("a") == 0 for _ in range(5)] == [True] * 4 + [False]


async def test_a_new_rate_applies_from_the_next_request_on(tmp_path: Path) -> None:
    async with running(tmp_path, requests_per_second=2) as world:
        assert [(await world.ask("GET", "/api/v1/status")).status for _ in range(5)] == [200] * 4 + [429]
        world.api.set_requests_per_second(100)
        world.clock.now_s += 0.5
        assert [(await world.ask("GET", "/api/v1/status")).status for _ in range(50)] == [200] * 50
        world.api.set_requests_per_second(1)
        world.clock.now_s += 1000
        assert [(await world.ask("GET", "/api/v1/status")).status for _ in range(3)] == [200] * 2 + [429]


def test_number_of_remembered_clients_is_bounded() -> None:
    limit = RateLimit(0.5, 3, ManualClock())
    assert [limit.wait_s("a") == 0 for _ in range(2)] == [True, False]
    for others, is_admitted in (("bc", False), ("bcd", True)):
        for client in others:
            limit.wait_s(client)
        assert (limit.wait_s("a") == 0) == is_admitted


async def test_body_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, body_bytes_max=100) as world:
        body = b'{"kind": "bookies"' + b" " * 200 + b"}"
        for data in (body, chunks(body)):
            reply = await world.operate("POST", "/api/v1/runs", data=data, headers={"Content-Type": "application/json"})
            assert (reply.status, reply.problem) == (413, "too-large")
        assert world.control.started == 0


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 10):
        yield body[start : start + 10]


async def test_malformed_request_is_refused_with_a_problem_document(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as world:
        for path, headers, status in (
            ("/livez", {"X-Long": "x" * 100_000}, 400),
            ("/livez?" + "x" * 100_000, {}, 414),
        ):
            reply = await world.ask("GET", path, headers=headers)
            assert (reply.status, reply.headers["Content-Type"]) == (status, f"{PROBLEM_TYPE}; charset=utf-8")
            assert reply.json["status"] == status
            assert (reply.headers["Server"], reply.headers["X-Content-Type-Options"]) == ("bkheal", "nosniff")
        assert (await raw(world.api.port, b"\x16\x03\x01 no HTTP\r\n\r\n")).startswith(b"HTTP/1.0 400 ")
        assert (await world.ask("GET", "/livez")).status == 200
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_the_most_and_longest_ids_of_a_request_are_read(tmp_path: Path) -> None:
    names = [f"bookie-{n}.".ljust(251, "b") + ":3181" for n in range(100)]
    query = "&".join(f"bookie={quote(name, safe='')}" for name in names)
    async with running(tmp_path) as world:
        assert (await world.operate("GET", f"/api/v1/ok-to-stop?{query}")).status not in (400, 414)


async def test_request_that_takes_too_long_is_cut_off_at_its_deadline(tmp_path: Path) -> None:
    async with running(tmp_path, request_deadline_s=0.05) as world:
        world.control.may_start.clear()
        reply = await world.operate("POST", "/api/v1/runs", json={"kind": "bookies"})
        assert (reply.status, reply.problem) == (504, "deadline")
        assert "may still have taken effect" in reply.json["detail"]


async def test_body_that_never_arrives_ends_at_the_deadline(tmp_path: Path) -> None:
    async with running(tmp_path, request_deadline_s=0.05) as world:
        head = (
            f"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n"
            f"Authorization: Bearer {world.tokens[Role.OPERATE].token}\r\n\r\n"
        )
        assert (await raw(world.api.port, head.encode())).startswith(b"HTTP/1.1 504 ")


async def test_connection_without_a_complete_request_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path, idle_connection_s=0.05) as world:
        assert await raw(world.api.port, b"GET /livez HTTP/1.1\r\nHost: local") == b""


async def raw(port: int, data: bytes) -> bytes:
    """Return everything that a connection receives until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(STATE_S):
            return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_concurrent_requests_are_bounded_and_probes_are_not(tmp_path: Path) -> None:
    async with running(tmp_path, in_flight_max=2, request_deadline_s=STATE_S) as world:
        world.control.may_start.clear()
        stuck = [
            asyncio.ensure_future(world.operate("POST", "/api/v1/runs", json={"kind": kind}))
            for kind in ("bookies", "replicas")
        ]
        async with asyncio.timeout(STATE_S):
            reply = await world.ask("GET", "/api/v1/status")
            while reply.status != 503:
                reply = await world.ask("GET", "/api/v1/status")
        assert reply.problem == "overloaded"
        assert (await world.ask("GET", "/livez")).status == 200
        world.control.may_start.set()
        assert [answered.status for answered in await asyncio.gather(*stuck)] == [202, 202]


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
    ],
)
async def test_page_of_another_site_cannot_change_anything(tmp_path: Path, headers: dict[str, str]) -> None:
    async with running(tmp_path, allow_anonymous_write=True) as world:
        for method, path in (("POST", "/api/v1/runs"), ("PUT", "/api/v1/autorecovery/status?enabled=false")):
            reply = await world.ask(method, path, headers=headers, json={"kind": "bookies"})
            assert (reply.status, reply.problem) == (403, "cross-site")
        assert (world.control.started, world.operations.is_on) == (0, True)


async def test_same_origin_pages_and_programs_are_allowed(tmp_path: Path) -> None:
    async with running(tmp_path, allow_anonymous_write=True) as world:
        for headers in ({"Sec-Fetch-Site": "same-origin", "Origin": world.url}, {"Sec-Fetch-Site": "none"}, {}):
            reply = await world.ask("PUT", "/api/v1/autorecovery/trigger_audit", headers=headers)
            assert reply.status == 200


async def test_unknown_host_name_is_refused_without_a_token(tmp_path: Path) -> None:
    """For a browser, a page at such a name has the same origin as this service."""
    async with running(tmp_path, allow_anonymous_write=True, allowed_hosts=("auditor.example",)) as world:
        for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[::2]", "["):
            rebound = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
            assert (await world.ask("POST", "/api/v1/runs", headers=rebound, json={"kind": "bookies"})).status == 403
            assert (await world.ask("GET", "/api/v1/status", headers=rebound)).problem == "cross-site"
            assert (await world.operate("GET", "/api/v1/status", headers=rebound)).status == 200
            assert (await world.ask("GET", "/livez", headers=rebound)).status == 200
        assert world.control.started == 0
        for host in ("localhost", "localhost:1", "[::1]:8080", "auditor.example"):
            assert (await world.ask("GET", "/api/v1/status", headers={"Host": host})).status == 200


async def test_keys_are_bounded_and_expire() -> None:
    clock = ManualClock()
    intents = IdempotentRuns(clock)
    begun: list[str] = []

    async def begin() -> str:
        begun.append(f"run{len(begun)}")
        return begun[-1]

    assert await intents.once("a", "k", "x", begin) == ("run0", False)
    assert await intents.once("a", "k", "x", begin) == ("run0", True)
    assert await intents.once("b", "k", "x", begin) == ("run1", False)
    with pytest.raises(KeyReusedError):
        await intents.once("a", "k", "y", begin)
    clock.now_s += KEPT_S
    assert await intents.once("a", "k", "y", begin) == ("run2", False)
    for number in range(KEYS_MAX + 10):
        await intents.once("c", str(number), "x", begin)
    assert len(intents._intents) <= KEYS_MAX
    assert await intents.once("c", str(KEYS_MAX + 9), "x", begin) == (begun[-1], True)


async def test_second_of_two_concurrent_requests_waits_for_the_first() -> None:
    intents, gate = IdempotentRuns(ManualClock()), asyncio.Event()

    async def begin() -> str:
        await gate.wait()
        return "run0"

    both = [asyncio.ensure_future(intents.once("a", "k", "x", begin)) for _ in range(2)]
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*both) == [("run0", False), ("run0", True)]


async def test_an_abandoned_request_starts_its_run_once() -> None:
    intents, gate, begun = IdempotentRuns(ManualClock()), asyncio.Event(), list[str]()

    async def begin() -> str:
        await gate.wait()
        begun.append(f"run{len(begun)}")
        return begun[-1]

    first, second = (asyncio.ensure_future(intents.once("a", "k", "x", begin)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    gate.set()
    assert await second == ("run0", True)
    assert await intents.once("a", "k", "x", begin) == ("run0", True)
    assert begun == ["run0"]


async def test_a_failed_request_is_retried() -> None:
    intents, failures = IdempotentRuns(ManualClock()), [RunBusyError(RunKind.BOOKIES, "r1", "h:1")]

    async def begin() -> str:
        if failures:
            raise failures.pop()
        return "run0"

    with pytest.raises(RunBusyError):
        await intents.once("a", "k", "x", begin)
    assert await intents.once("a", "k", "x", begin) == ("run0", False)


async def test_waiters_get_an_error_if_the_work_is_stopped() -> None:
    intents = IdempotentRuns(ManualClock())

    async def begin() -> str:
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    both = [asyncio.ensure_future(intents.once("a", "k", "x", begin)) for _ in range(2)]
    for asking in both:
        with pytest.raises(FirstRequestAbortedError):
            await asking


@pytest.mark.parametrize("is_tls", [pytest.param(True, marks=pytest.mark.needs("openssl")), False])
async def test_connections_without_a_request_or_a_handshake_are_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_tls: bool
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 3)
    tls = None
    if is_tls:
        make_ca(tmp_path, "ca")
        make_certificate(tmp_path, "server", "ca", "IP:127.0.0.1")
        tls = ServerTls(tmp_path / "server.pem", tmp_path / "server.key")
    async with running(tmp_path, tls=tls) as world:
        held = [await asyncio.open_connection("127.0.0.1", world.api.port) for _ in range(3)]
        for _ in range(5):
            assert await raw(world.api.port, b"") == b""
        assert caplog.text.count("too many HTTP connections") == 1
        world.clock.now_s += 60
        assert await raw(world.api.port, b"") == b""
        assert caplog.text.count("too many HTTP connections") == 2
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        for _ in range(10):  # more than the limit of connections
            await until_accepted(world.api.port, tmp_path / "ca.pem" if is_tls else None)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs TCP_USER_TIMEOUT of Linux")
async def test_a_client_that_does_not_read_its_responses_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(connections, "UNREAD_S_MAX", 1.0)
    async with running(tmp_path) as world:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", world.api.port))
            requests = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10_000

            async def ask() -> None:
                while True:
                    await loop.sock_sendall(client, requests)

            with pytest.raises(ConnectionError):
                await asyncio.wait_for(ask(), STATE_S)
        await until_accepted(world.api.port, None)


async def until_accepted(port: int, ca: Path | None) -> None:
    """Connect until there is an answer: a client sees its connection close before the server frees its slot."""
    tls = None if ca is None else ssl.create_default_context(cafile=ca)
    async with asyncio.timeout(STATE_S):
        while True:
            with contextlib.suppress(ConnectionError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
                writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
                writer.close()
                if answer.startswith(b"HTTP/1.1 200 "):
                    return
