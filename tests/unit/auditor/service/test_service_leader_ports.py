"""Ports that forward to the leader: where bytes are sent, and where never."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from auditor.service.leader_ports import (
    CHECK_S,
    CONNECTIONS_MAX,
    HALF_CLOSED_S,
    IDLE_S,
    LeaderPort,
    leader_host,
    leader_ports,
)
from auditor.service.settings import ServiceSettings
from bookie.runtime.listening import AddressInUseError
from tests.worlds.clocks import ManualClock

HOST = "127.0.0.1"
DEADLINE_S = 20
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.mark.parametrize(
    ("leader", "expected"),
    [
        ("10.0.0.7:8080", "10.0.0.7"),
        ("fd00::7:8080", "fd00::7"),
        ("bookie-1:3181", ""),  # the vote of Apache's auditor contains its bookie id
        ("", ""),
        ("8080", ""),
        ("a..b:8080", ""),  # a damaged vote
    ],
)
def test_only_an_auditor_of_this_service_is_contacted(leader: str, expected: str) -> None:
    assert leader_host(leader, 8080) == expected


@contextlib.asynccontextmanager
async def auditor(name: bytes) -> AsyncIterator[int]:
    """A server that answers each line with its name and the line. It closes its side after the client has."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                writer.write(name + b": " + line)
            writer.write(b"bye\n")
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@contextlib.asynccontextmanager
async def relaying(target: Callable[[], tuple[str, int]], clock: ManualClock) -> AsyncIterator[LeaderPort]:
    port = LeaderPort("http", (HOST, 0), target, clock)
    await port.start()
    try:
        yield port
    finally:
        await port.stop()


@contextlib.asynccontextmanager
async def client(port: LeaderPort) -> AsyncIterator[Streams]:
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection(HOST, port.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def ask(streams: Streams, line: bytes) -> bytes:
    reader, writer = streams
    writer.write(line + b"\n")
    return (await reader.readline()).rstrip()


async def ended(streams: Streams) -> bool:
    """Wait until the other side closes the connection, and return whether it did."""
    try:
        return await streams[0].read() == b""
    except ConnectionResetError:
        return True


async def pass_time(clock: ManualClock, seconds: float) -> None:
    while clock.sleepers == 0:  # noqa: ASYNC110  # the port under test sets no event before it sleeps
        await asyncio.sleep(0)
    clock.now_s += seconds


async def test_bytes_are_relayed_to_the_leader_and_back_until_both_sides_have_ended() -> None:
    async with auditor(b"a") as at, relaying(lambda: (HOST, at), ManualClock()) as port, client(port) as streams:
        assert await ask(streams, b"hello") == b"a: hello"
        assert await ask(streams, b"x" * 50_000) == b"a: " + b"x" * 50_000
        streams[1].write_eof()
        assert await streams[0].read() == b"bye\n"


async def test_a_change_of_leader_closes_connections_and_the_next_one_reaches_the_new_leader() -> None:
    clock = ManualClock()
    async with auditor(b"a") as first, auditor(b"b") as second:
        leader = first
        async with relaying(lambda: (HOST, leader), clock) as port:
            async with client(port) as streams:
                assert await ask(streams, b"who") == b"a: who"
                leader = second
                await pass_time(clock, CHECK_S)
                assert await ended(streams)
            async with client(port) as streams:
                assert await ask(streams, b"who") == b"b: who"


async def test_connections_are_closed_at_once_without_a_leader() -> None:
    async with relaying(lambda: ("", 1), ManualClock()) as port, client(port) as streams:
        assert await ended(streams)


async def test_a_leader_that_does_not_listen_closes_the_connection() -> None:
    async with auditor(b"a") as at:
        pass
    async with relaying(lambda: (HOST, at), ManualClock()) as port, client(port) as streams:
        assert await ended(streams)


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    clock = ManualClock()
    async with (
        auditor(b"a") as at,
        relaying(lambda: (HOST, at), clock) as port,
        client(port) as idle,
        client(port) as busy,
    ):
        assert await ask(idle, b"1") == await ask(busy, b"1") == b"a: 1"
        await pass_time(clock, IDLE_S / 2)
        assert await ask(busy, b"2") == b"a: 2"
        await pass_time(clock, IDLE_S / 2)
        assert await ended(idle)
        assert await ask(busy, b"3") == b"a: 3"


async def test_a_client_that_never_ends_its_side_does_not_hold_its_place_for_long() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye\n")
        writer.close()

    clock = ManualClock()
    server = await asyncio.start_server(close, HOST, 0)
    at = server.sockets[0].getsockname()[1]
    async with relaying(lambda: (HOST, at), clock) as port, client(port) as streams:
        assert await streams[0].read() == b"bye\n"
        assert port.connections == 1
        await pass_time(clock, HALF_CLOSED_S)
        while port.connections:  # noqa: ASYNC110  # the port under test sets no event when it has closed one
            await asyncio.sleep(0)
    server.close()


async def test_connections_are_bounded() -> None:
    async with (
        auditor(b"a") as at,
        relaying(lambda: (HOST, at), ManualClock()) as port,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(CONNECTIONS_MAX):
            streams = await stack.enter_async_context(client(port))
        assert await ask(streams, b"last") == b"a: last"
        async with client(port) as one_more:
            assert await ended(one_more)


async def test_stopping_closes_connections_and_frees_the_port() -> None:
    async with auditor(b"a") as at, relaying(lambda: (HOST, at), ManualClock()) as port, client(port) as streams:
        assert await ask(streams, b"1") == b"a: 1"
        number = port.port
        await port.stop()
        assert await ended(streams)
        (await asyncio.start_server(lambda *_: None, HOST, number)).close()


async def test_a_port_that_is_in_use_is_named_with_its_option() -> None:
    async with auditor(b"a") as at:
        port = LeaderPort("ui", (HOST, at), lambda: ("", 0), ManualClock())
        with pytest.raises(AddressInUseError, match="--leader-ui-port"):
            await port.start()


async def test_each_port_is_relayed_to_the_leaders_port_of_the_same_kind() -> None:
    async with auditor(b"api") as http, auditor(b"control") as grpc:
        settings = ServiceSettings(
            metadata_uri="zk://h:2181/ledgers",
            http_port=http,
            grpc_port=grpc,
            leader_http_port=1,
            leader_grpc_port=2,
        )
        ports = leader_ports(settings, lambda: f"{HOST}:{http}", ManualClock())
        assert [port.target for port in ports] == [(HOST, http), (HOST, grpc)]
        assert [port.target[0] for port in leader_ports(settings, lambda: "bookie-1:3181", ManualClock())] == ["", ""]


def test_the_port_of_the_ui_is_relayed_to_the_authenticating_proxy() -> None:
    plain: dict[str, Any] = {"metadata_uri": "zk://h:2181/ledgers", "leader_ui_port": 9000}
    trust: dict[str, Any] = {
        "ui_user_header": "X-Forwarded-User",
        "ui_trusted_proxies": "127.0.0.1",
        "ui_proxy_port": 4180,
    }
    for settings, expected in ((plain, 4040), (plain | trust, 4180)):
        [port] = leader_ports(ServiceSettings(**settings), lambda: "10.0.0.7:8080", ManualClock())
        assert port.target == ("10.0.0.7", expected)


@pytest.mark.parametrize(
    "settings", [{}, {"advertised_host": "10.0.0.7"}, {"http_host": "0.0.0.0", "advertised_host": "fd00::1"}]
)
def test_without_ports_nothing_is_relayed(settings: dict[str, Any]) -> None:
    made = ServiceSettings(metadata_uri="zk://h:2181/ledgers", **settings)
    assert leader_ports(made, lambda: "h:8080", ManualClock()) == []
