"""Tests of only the kazoo adapter: connecting, threads, fallback, and writes that must not be sent late."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState, KeeperState

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.access import ZooKeeperAccess, set_current_access
from bookie.metadata.nodes import batches, ensure_path
from bookie.metadata.port import (
    ANY_VERSION,
    Create,
    NodeExistsError,
    SessionState,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.store import lookup
from bookie.metadata.store.jute import OP_MULTI_READ
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.store.zookeeper_errors import RequestUnknownError
from bookie.runtime.clock import SystemClock
from bookie.runtime.ports import free_loopback_port
from bookie.runtime.retry import Backoff, retry_transient
from tests.contract.conftest import ZooKeeperBackend
from tests.deadlines import STATE_S
from tests.sessions import LONG_SESSION_S

LONG_TIMEOUTS: Final[dict[str, Any]] = {"session_timeout_s": LONG_SESSION_S, "operation_timeout_s": STATE_S}
"""For restarted servers: on a busy machine a restart takes longer than the usual timeout of an operation."""


@pytest.fixture
def threads_before() -> set[threading.Thread]:
    return set(threading.enumerate())


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[EmbeddedZooKeeper]:
    """A separate server, which a test may stop."""
    async with await EmbeddedZooKeeper.start(tmp_path, is_durable=False) as server:
        yield server


def _client(store: ZooKeeperStore) -> KazooClient:
    return store._connection._client


@contextmanager
def _impatient(store: ZooKeeperStore, timeout_s: float) -> Iterator[None]:
    """Make requests inside the context time out after ``timeout_s``; requests that must succeed are made outside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store._connection, "_timeout_s", timeout_s)
        yield


async def _reconnected(store: ZooKeeperStore) -> None:
    async with asyncio.timeout(STATE_S):
        while not store.session.is_connected:
            await store.wait_session_changed(store.session)


async def test_without_a_server_the_error_names_it_and_no_thread_is_left(threads_before: set[threading.Thread]) -> None:
    hosts = f"127.0.0.1:{free_loopback_port(random.SystemRandom())}"
    with pytest.raises(StoreUnavailableError, match=rf"{hosts} within 0.5 s"):
        await ZooKeeperStore.connect(hosts, connect_timeout_s=0.5)
    assert set(threading.enumerate()) <= threads_before


async def test_a_cancelled_connect_leaves_no_thread(threads_before: set[threading.Thread]) -> None:
    connecting = asyncio.create_task(ZooKeeperStore.connect(f"127.0.0.1:{free_loopback_port(random.SystemRandom())}"))
    await asyncio.sleep(0)
    connecting.cancel()
    await asyncio.wait([connecting])
    assert connecting.cancelled()
    assert set(threading.enumerate()) <= threads_before


async def test_close_leaves_no_thread(zookeeper: EmbeddedZooKeeper, threads_before: set[threading.Thread]) -> None:
    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    await store.stat("/")
    await store.close()
    await store.close()
    assert set(threading.enumerate()) <= threads_before


async def test_a_host_with_a_slow_look_up_does_not_delay_the_connection_to_others(
    zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_released, look_up = threading.Event(), socket.getaddrinfo

    def slow(host: str, *rest: Any) -> Any:
        if host == "slow.example":
            is_released.wait(STATE_S)
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return look_up(host, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(lookup, "LOOK_UP_TIMEOUT_S", 0.2)
    try:
        store = await ZooKeeperStore.connect(f"slow.example:2181,{zookeeper.connect_string}", connect_timeout_s=15.0)
        assert store.session.is_connected
        await store.close()
    finally:
        is_released.set()


async def test_many_creates_with_a_long_acl_are_split_into_requests_of_allowed_size(
    zookeeper: EmbeddedZooKeeper, fresh_root: str
) -> None:
    entries = ";".join(f"digest:bookkeeper-service-{i:03d}@prod.example.com:{'A' * 27}=:cdrwa" for i in range(30))
    set_current_access(ZooKeeperAccess(acl=f"world:anyone:cdrwa;{entries}"))
    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    await ensure_path(store, fresh_root)
    seen, was_suspended = store.session, False

    async def watch() -> None:
        nonlocal was_suspended
        await store.wait_session_changed(seen)
        was_suspended = True

    watching = asyncio.ensure_future(watch())
    for part in batches(Create(f"{fresh_root}/{i}") for i in range(1000)):
        await store.multi(part)
    watching.cancel()
    assert not was_suspended
    assert len((await store.children(fresh_root)).names) == 1000
    await store.close()


async def test_close_during_an_outage_leaves_no_thread(
    own_server: EmbeddedZooKeeper, threads_before: set[threading.Thread], caplog: pytest.LogCaptureFixture
) -> None:
    store = await ZooKeeperStore.connect(own_server.connect_string)
    seen = store.session
    await own_server.process.stop(0)
    async with asyncio.timeout(STATE_S):
        await store.wait_session_changed(seen)
    await store.close()
    assert set(threading.enumerate()) <= threads_before
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_session_survives_a_restart_of_the_server(own_server: EmbeddedZooKeeper) -> None:
    store = await ZooKeeperStore.connect(own_server.connect_string, **LONG_TIMEOUTS)
    await store.create("/e", is_ephemeral=True)
    seen = store.session
    own_server.kill()
    async with asyncio.timeout(STATE_S):
        assert (await store.wait_session_changed(seen)).state is SessionState.SUSPENDED
    pending = asyncio.create_task(store.create("/later"))
    await own_server.restart()
    assert await pending == "/later"  # the request waited for the connection instead of failing
    assert store.session == seen
    assert (await store.get("/e")).stat.ephemeral_owner == seen.session_id
    await store.close()


@pytest.mark.parametrize(("session_s", "answer_s"), [(60, 20), (15, 5), (6, 5), (3, 3)])
async def test_the_answer_to_a_connect_is_awaited_only_for_part_of_the_session_timeout(
    zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch, session_s: int, answer_s: int
) -> None:
    """A starting server may never answer. With one server, kazoo would wait as long as the session lasts."""
    waits: list[float] = []
    invoke = ConnectionHandler._invoke

    def noting(self: ConnectionHandler, timeout: float, request: object, *rest: Any, **named: Any) -> Any:
        if isinstance(request, Connect):
            waits.append(timeout)
        return invoke(self, timeout, request, *rest, **named)

    monkeypatch.setattr(ConnectionHandler, "_invoke", noting)
    store = await ZooKeeperStore.connect(zookeeper.connect_string, session_timeout_s=session_s)
    assert waits == [answer_s]
    await store.close()


@pytest.mark.parametrize(("requested_s", "granted_s"), [(30, 30), (1, 2), (600, 60)])
async def test_the_session_has_the_timeout_that_the_server_grants(
    own_server: EmbeddedZooKeeper, requested_s: float, granted_s: float
) -> None:
    store = await ZooKeeperStore.connect(own_server.connect_string, session_timeout_s=requested_s)
    assert store.session.timeout_s == granted_s  # the embedded server grants 2 s to 60 s
    await store.close()


async def test_an_outage_of_the_server_is_logged_at_its_start_and_its_end(
    own_server: EmbeddedZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    store = await ZooKeeperStore.connect(own_server.connect_string, **LONG_TIMEOUTS)
    seen = store.session
    failures = 0

    def count(record: logging.LogRecord) -> bool:
        nonlocal failures
        failures += "Connection dropped" in record.getMessage()
        return True

    logging.getLogger("kazoo.client").addFilter(count)
    try:
        own_server.kill()
        async with asyncio.timeout(STATE_S):
            await store.wait_session_changed(seen)
        await own_server.restart()
        await _reconnected(store)
    finally:
        await store.close()
        logging.getLogger("kazoo.client").removeFilter(count)
    reported = [record for record in caplog.records if record.name == "kazoo.client"]
    assert failures == 0, "kazoo's own lines are logged as well"
    assert reported[0].message == "ZooKeeper unreachable, retrying"
    assert own_server.connect_string in reported[0].__dict__["hosts"]
    assert [record.message for record in reported].count("ZooKeeper reachable again") == 1
    assert reported[-1].message == "ZooKeeper reachable again"


@pytest.mark.parametrize("is_bulk_known", [True, False])
async def test_a_request_to_a_stopped_server_ends_at_its_deadline(
    own_server: EmbeddedZooKeeper, is_bulk_known: bool
) -> None:
    # Long enough for kazoo's thread to send a write. The server stops before it receives a request.
    store = await ZooKeeperStore.connect(
        own_server.connect_string,
        operation_timeout_s=1.0,
        session_timeout_s=LONG_SESSION_S,
        is_multi_read_enabled=is_bulk_known,
    )
    own_server.process.pause()
    try:
        with pytest.raises(WriteOutcomeUnknownError, match="/a"):
            await store.set("/a", b"", ANY_VERSION)
        with pytest.raises(WriteOutcomeUnknownError):
            await store.multi([Create("/b")])
        with pytest.raises(
            StoreUnavailableError,
            match=rf"/a: ZooKeeper at {own_server.connect_string} .* majority of its servers runs",
        ):
            await store.get("/a")
        for read in (store.get_many, store.get_many_data, store.children_many):
            with pytest.raises(StoreUnavailableError):
                await read(["/a"])
    finally:
        own_server.process.resume()
    await store.close()


@pytest.mark.parametrize("is_session_kept", [True, False])
async def test_an_unanswered_read_is_repeated_on_the_next_connection_of_its_session(
    own_server: EmbeddedZooKeeper, is_session_kept: bool
) -> None:
    store = await ZooKeeperStore.connect(own_server.connect_string, **LONG_TIMEOUTS)
    own_server.process.pause()
    reading = asyncio.create_task(store.children("/"))
    async with asyncio.timeout(STATE_S):
        while not _client(store)._pending:  # noqa: ASYNC110  # kazoo's thread sends it
            await asyncio.sleep(0.01)
    own_server.kill()
    if is_session_kept:
        await own_server.restart()
        assert "zookeeper" in (await reading).names
    else:
        store._tracker.current = replace(store.session, epoch=store.session.epoch + 1)
        with pytest.raises(StoreUnavailableError):
            await reading
    await store.close()


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_write_that_loses_its_connection_is_sent_once(
    zookeeper: EmbeddedZooKeeper, fresh_root: str, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    connection, client, path = store._connection, _client(store), f"/t-{fresh_root.replace('/', '')}"
    call = client._call

    def lost(request: Any, answer: Any) -> None:
        """Fail the request as kazoo does after the end of a connection, whether or not it was sent."""
        monkeypatch.setattr(client, "_call", call)
        if is_sent:
            assert request.type
        answer.set_exception(ConnectionLoss())
        for state in (KazooState.SUSPENDED, KazooState.CONNECTED):
            connection.bridge.push(connection._on_state, state, store.session.session_id, 10, KeeperState.CONNECTED)

    monkeypatch.setattr(client, "_call", lost)
    if is_sent:
        with pytest.raises(WriteOutcomeUnknownError):
            await store.create(path)
        assert await store.stat(path) is None
    else:
        assert await store.create(path) == path
    await store.close()


async def test_a_write_while_disconnected_is_reported_as_not_sent(own_server: EmbeddedZooKeeper) -> None:
    store = await ZooKeeperStore.connect(own_server.connect_string, **LONG_TIMEOUTS)
    seen = store.session
    own_server.kill()
    async with asyncio.timeout(STATE_S):
        await store.wait_session_changed(seen)
    with _impatient(store, 0.3), pytest.raises(StoreUnavailableError):
        await store.create("/a")
    await own_server.restart()
    await _reconnected(store)
    assert await store.stat("/a") is None
    await store.close()


async def test_many_requests_while_disconnected_do_not_block_the_loop(own_server: EmbeddedZooKeeper) -> None:
    """Kazoo's own wake-up socket takes some 280 bytes, and then blocks the thread that queues a request."""
    store = await ZooKeeperStore.connect(own_server.connect_string, **LONG_TIMEOUTS)
    client = _client(store)
    own_server.kill()
    async with asyncio.timeout(STATE_S):
        await store.wait_session_changed(store.session)
    answers = [client.exists_async("/") for _ in range(2000)]
    await own_server.restart()
    await _reconnected(store)
    assert await store.stat("/missing") is None
    assert len(answers) == 2000
    await store.close()


async def test_a_write_is_not_sent_in_another_session(zookeeper: EmbeddedZooKeeper, fresh_root: str) -> None:
    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    path = fresh_root.replace("/", "-").replace("-", "/", 1)
    # As after a pause of this process: kazoo has a new session already, and the loop has not processed the change.
    store._tracker.current = type(store.session)(SessionState.CONNECTED, 1, store.session.session_id + 1)
    with pytest.raises(StoreUnavailableError, match="ended before it was sent"):
        await store.create(path)
    assert await store.stat(path) is None
    await store.close()


async def test_a_queued_write_is_withdrawn_at_its_deadline(
    own_server: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await ZooKeeperStore.connect(own_server.connect_string)
    client = _client(store)
    held = threading.Event()
    original = client._connection._send_request
    monkeypatch.setattr(client._connection, "_send_request", lambda *a: (held.wait(STATE_S), original(*a))[1])
    with _impatient(store, 0.2), pytest.raises(StoreUnavailableError):
        await store.create("/a")
    held.set()
    assert await store.stat("/a") is None
    await store.close()


async def test_write_of_a_cancelled_caller_is_not_sent_later(
    own_server: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await ZooKeeperStore.connect(own_server.connect_string)
    client = _client(store)
    held, is_reached = threading.Event(), threading.Event()
    original = client._connection._send_request

    def hold(*arguments: Any) -> None:
        is_reached.set()
        held.wait(STATE_S)
        original(*arguments)

    monkeypatch.setattr(client._connection, "_send_request", hold)
    creating = asyncio.create_task(store.create("/a"))
    assert await asyncio.to_thread(is_reached.wait, STATE_S)
    creating.cancel()
    await asyncio.wait([creating])
    held.set()
    assert creating.cancelled()
    assert await store.stat("/a") is None
    await store.close()


async def test_a_queued_write_is_not_sent_in_the_next_session(
    zookeeper: EmbeddedZooKeeper, fresh_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = ZooKeeperBackend(zookeeper.connect_string)
    store = await backend.open()
    path = fresh_root.replace("/", "-").replace("-", "/", 1)
    slots = asyncio.Semaphore(0)  # the maximum number of requests is in flight
    with monkeypatch.context() as patch:
        patch.setattr(store._connection, "_slots", slots)
        creating = asyncio.create_task(store.create(path))
        await asyncio.sleep(0)
        await backend.expire(store)
        slots.release()
        with pytest.raises(StoreUnavailableError):
            await creating
    assert await store.stat(path) is None
    await backend.close()


async def test_a_wait_whose_first_read_failed_notices_the_next_change(
    zookeeper: EmbeddedZooKeeper, fresh_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    path = fresh_root.replace("/", "-").replace("-", "/", 1)
    is_asked, exists = asyncio.Event(), store._connection.exists

    async def without_answer(path: str, watcher: object = None) -> Any:
        monkeypatch.setattr(store._connection, "exists", exists)
        is_asked.set()
        raise StoreUnavailableError(f"look for {path}: no answer in time")

    monkeypatch.setattr(store._connection, "exists", without_answer)
    waiting = asyncio.create_task(store.wait_node_changed(path, None))
    await is_asked.wait()
    await store.create(path)
    await asyncio.wait_for(waiting, STATE_S)
    await store.close()


async def test_bulk_reads_fall_back_to_single_ones(zookeeper: EmbeddedZooKeeper, fresh_root: str) -> None:
    store = await ZooKeeperStore.connect(zookeeper.connect_string, is_multi_read_enabled=False)
    base = await store.create(f"/t-{fresh_root.replace('/', '')}")
    await store.multi([Create(f"{base}/{i}", str(i).encode()) for i in range(300)])
    paths = [f"{base}/{i}" for i in range(2500)]
    nodes = await store.get_many(paths)
    assert [node.data for node in nodes if node] == [str(i).encode() for i in range(300)]
    assert nodes[300:] == [None] * 2200
    assert (await store.get_many_data(paths))[:301] == [str(i).encode() for i in range(300)] + [None]
    listings = await store.children_many([base, f"{base}/missing"])
    assert listings[0] is not None
    assert (len(listings[0].names), listings[1]) == (300, None)
    await store.close()


async def test_a_server_without_bulk_reads_is_sent_only_one(
    zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An older server answers "unimplemented" and closes the connection, so the reply to the next read may be lost."""
    monkeypatch.setattr("bookie.metadata.store.zookeeper.OP_MULTI_READ", 9999)
    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    clock, rng = SystemClock(), random.Random(0)
    for _ in range(3):
        assert await retry_transient(lambda: store.get_many_data(["/missing"]), Backoff(), clock, rng) == [None]
        assert await retry_transient(lambda: store.children_many(["/missing"]), Backoff(), clock, rng) == [None]
    assert [record.name for record in caplog.records if "multiRead" in record.message] == [
        "bookie.metadata.store.zookeeper"
    ]
    await store.close()


async def test_a_connection_closed_by_a_server_without_bulk_reads_does_not_fail_the_first_one(
    zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    read = store._connection.get_data

    async def unknown(*_: object) -> bytes:
        raise RequestUnknownError("the server does not know this request")

    async def closed(path: str) -> object:
        monkeypatch.setattr(store._connection, "get_data", read)
        raise StoreUnavailableError("the connection failed")

    monkeypatch.setattr(store._connection, "raw_read", unknown)
    monkeypatch.setattr(store._connection, "get_data", closed)
    assert await store.get_many_data(["/missing"]) == [None]
    await store.close()


class _Poison:
    """A request that cannot be serialized."""

    type = OP_MULTI_READ

    def serialize(self) -> bytes:
        raise RuntimeError("poison")


async def test_the_connection_recovers_from_a_failure_inside_kazoo(
    zookeeper: EmbeddedZooKeeper, caplog: pytest.LogCaptureFixture, threads_before: set[threading.Thread]
) -> None:
    """Kazoo's thread ends at a request it cannot serialize."""
    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    seen = store.session
    client = _client(store)
    client._call(_Poison(), client.handler.async_result())
    async with asyncio.timeout(STATE_S):
        await store.wait_session_changed(seen)
        while not store.session.is_connected:
            await store.wait_session_changed(store.session)
    assert store.session.epoch == seen.epoch + 1
    assert await store.stat("/missing") is None
    await store.close()
    assert set(threading.enumerate()) <= threads_before
    assert any(record.levelno == logging.ERROR for record in caplog.records)


async def test_the_connection_recovers_from_failures_before_a_session_exists(
    zookeeper: EmbeddedZooKeeper, threads_before: set[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kazoo does not report the end of its thread without a session, as after a malformed answer to a handshake."""
    connect, failures = ConnectionHandler._connect, [2]

    def connect_or_fail(connection: Any, *server: Any) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise struct.error("unpack requires a buffer of 4 bytes")
        return connect(connection, *server)

    monkeypatch.setattr(ConnectionHandler, "_connect", connect_or_fail)
    store = await ZooKeeperStore.connect(zookeeper.connect_string, connect_timeout_s=STATE_S)
    assert failures == [0]
    seen, client, failures[0] = store.session, _client(store), 2
    client._call(_Poison(), client.handler.async_result())
    async with asyncio.timeout(STATE_S):
        await store.wait_session_changed(seen)
        await _reconnected(store)
    assert (failures, store.session.epoch) == ([0], seen.epoch + 1)
    assert await store.stat("/missing") is None
    await store.close()
    assert set(threading.enumerate()) <= threads_before


async def test_closing_during_a_reconnect_leaves_no_thread(
    zookeeper: EmbeddedZooKeeper, threads_before: set[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    client = _client(store)
    loop, stop = asyncio.get_running_loop(), client.stop
    is_stopping, may_stop = asyncio.Event(), threading.Event()

    def stop_late() -> None:
        loop.call_soon_threadsafe(is_stopping.set)
        may_stop.wait()
        stop()

    monkeypatch.setattr(client, "stop", stop_late)
    client._call(_Poison(), client.handler.async_result())
    async with asyncio.timeout(STATE_S):
        await is_stopping.wait()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.1)
    may_stop.set()
    await closing
    await asyncio.sleep(0.5)  # a restarted connection would have its threads by then
    assert set(threading.enumerate()) <= threads_before


async def test_concurrent_requests_each_get_their_own_answer(zookeeper: EmbeddedZooKeeper) -> None:
    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    base = await store.create("/concurrent-requests")
    names = [f"{base}/{i}" for i in range(1500)]
    assert await asyncio.gather(*(store.create(name, name.encode()) for name in names)) == names
    assert [node.data.decode() for node in await asyncio.gather(*map(store.get, names))] == names
    outcomes: list[Any] = await asyncio.gather(*map(store.create, names), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {NodeExistsError}
    await store.close()
