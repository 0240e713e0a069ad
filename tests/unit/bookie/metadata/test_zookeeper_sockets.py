"""The sockets that kazoo's thread waits for: received data is complete and in order, and a ready socket never waits."""

from __future__ import annotations

import random
import select
import socket
import ssl
from collections.abc import Iterator

import pytest

from bookie.metadata.store.sockets import READ_AHEAD_BYTES, PlainSocket, WakeUp, wait_receivable, wait_sendable


@pytest.fixture
def pair() -> Iterator[tuple[PlainSocket, socket.socket]]:
    """Yield a socket as kazoo uses it, and the server's end of it."""
    ours, theirs = socket.socketpair()
    with PlainSocket.of(ours) as connection, theirs:
        connection.setblocking(False)
        yield connection, theirs


@pytest.fixture
def wake_up() -> Iterator[WakeUp]:
    channel = WakeUp()
    yield channel
    channel.close()


def _received(connection: PlainSocket, sizes: list[int]) -> bytes:
    """Receive as kazoo does: wait, then take at most the given size, until everything has arrived."""
    parts = []
    for size in sizes:
        while size:
            if not connection.pending():
                assert wait_receivable([connection], 10.0) == [connection]
            try:
                part = connection.recv(size)
            except ssl.SSLWantReadError:
                continue
            parts.append(part)
            size -= len(part)
    return b"".join(parts)


@pytest.mark.parametrize("seed", range(5))
def test_replies_arrive_complete_and_in_order(pair: tuple[PlainSocket, socket.socket], seed: int) -> None:
    connection, server = pair
    rng = random.Random(seed)
    for _ in range(20):
        sizes = [
            rng.choice([1, 4, 300, READ_AHEAD_BYTES - 1, READ_AHEAD_BYTES, READ_AHEAD_BYTES + 1]) for _ in range(2)
        ]
        sent = rng.randbytes(sum(sizes))
        server.sendall(sent)
        assert _received(connection, sizes) == sent
    assert connection.pending() == 0


def test_replies_that_arrive_together_need_no_second_wait(
    pair: tuple[PlainSocket, socket.socket],
) -> None:
    connection, server = pair
    server.sendall(b"first" + b"second")
    assert connection.recv(5) == b"first"
    assert connection.pending() == len(b"second")
    assert wait_receivable([connection], 0) == [connection]
    assert connection.recv(100) == b"second"
    assert wait_receivable([connection], 0) == []


def test_a_socket_without_data_must_be_waited_for_and_the_end_of_the_stream_is_received(
    pair: tuple[PlainSocket, socket.socket],
) -> None:
    connection, server = pair
    with pytest.raises(ssl.SSLWantReadError):
        connection.recv(4)
    assert wait_receivable([connection], 0) == []
    server.sendall(b"x")
    assert wait_receivable([connection], 10.0) == wait_receivable([connection], 0) == [connection]
    assert connection.recv(4) == b"x"
    with pytest.raises(ssl.SSLWantReadError):  # the result of an earlier wait is good for one read
        connection.recv(4)
    assert wait_receivable([connection], 0) == []
    server.close()
    assert wait_receivable([connection], 10.0) == [connection]
    assert connection.recv(4) == b""


def test_a_send_waits_until_a_full_socket_has_room(pair: tuple[PlainSocket, socket.socket]) -> None:
    connection, server = pair
    sent = 0
    is_full = False
    while not is_full:
        assert wait_sendable([connection], 0) == [connection]
        try:
            sent += connection.send(bytes(READ_AHEAD_BYTES))
        except ssl.SSLWantWriteError:
            is_full = True
    assert sent
    assert wait_sendable([connection], 0) == []
    while sent:
        sent -= len(server.recv(sent))
    assert wait_sendable([connection], 10.0) == [connection]
    assert connection.send(b"more") == len(b"more")
    assert server.recv(10) == b"more"


def test_requests_and_replies_do_not_block_each_other(pair: tuple[PlainSocket, socket.socket], wake_up: WakeUp) -> None:
    connection, server = pair
    assert wait_receivable([connection, wake_up], 0) == []
    wake_up.send(b"\0")
    assert wait_receivable([connection, wake_up], 0) == [wake_up]
    server.sendall(b"reply" * 2)
    assert set(wait_receivable([connection, wake_up], 0)) == {connection, wake_up}
    assert connection.recv(5) == b"reply"
    assert set(wait_receivable([connection, wake_up], 0)) == {connection, wake_up}
    wake_up.recv(1)
    assert wait_receivable([connection, wake_up], 0) == [connection]


def test_a_wake_up_counts_any_number_of_requests_and_never_blocks(wake_up: WakeUp) -> None:
    requests = 10_000
    for _ in range(requests):
        assert wake_up.send(b"\0") == 1
    for _ in range(requests):
        assert wake_up.is_set
        assert select.select([wake_up], [], [], 0)[0]
        wake_up.recv(1)
    assert not wake_up.is_set
    assert not select.select([wake_up], [], [], 0)[0]
    with pytest.raises(BlockingIOError):
        wake_up.recv(1)


def test_a_closed_wake_up_or_socket_is_refused(pair: tuple[PlainSocket, socket.socket], wake_up: WakeUp) -> None:
    wake_up.close()
    wake_up.close()
    with pytest.raises(ValueError, match="descriptor"):
        wake_up.send(b"\0")
    with pytest.raises(ValueError, match="descriptor"):
        wait_receivable([wake_up], 0)
    pair[0].close()
    with pytest.raises(ValueError, match="descriptor"):
        wait_receivable([pair[0]], 0)
