"""Bookies and replicators wait for ZooKeeper at their start (R147). Their sessions are opened by the tests."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.cli.main import app
from bookie.metadata.cluster import NotAClusterError
from bookie.metadata.port import AccessDeniedError, StoreUnavailableError
from bookie.metadata.store import reaching
from bookie.metadata.store.outage import OutageLog
from bookie.metadata.store.reaching import RETRY_S, until_reached
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.exit_codes import ExitCode
from bookie.runtime.ports import free_loopback_port
from bookie.server.main import run_bookie
from bookie.server.settings import BookieSettings
from replicator.main import run_replicator
from replicator.settings import ReplicatorSettings
from tests.worlds.clocks import VirtualClock
from tests.worlds.virtual_time import in_virtual_time

URI = "zk://127.0.0.1:1/ledgers"
Connect = Callable[..., Awaitable[Any]]


def unreachable(until: int, then: Callable[[], None]) -> tuple[Connect, list[str]]:
    """Return a function that fails to connect and calls ``then`` from attempt ``until`` on, and the attempts."""
    attempts: list[str] = []

    async def connect(hosts: str, **settings: Any) -> ZooKeeperStore:
        attempts.append(hosts)
        if len(attempts) >= until:
            then()
        raise StoreUnavailableError(f"no answer from {hosts}")

    return connect, attempts


def refuse() -> None:
    raise NotAClusterError("no cluster at /ledgers")


def end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def attempts_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "RETRY_S", 0.0)


@in_virtual_time
async def test_an_outage_at_the_start_is_waited_for_with_few_lines_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, attempts = VirtualClock(), 0

    async def connect() -> str:
        nonlocal attempts
        attempts += 1
        await clock.sleep(15)
        if attempts < 200:
            raise StoreUnavailableError("no answer")
        return "a session"

    assert await until_reached(connect, clock) == "a session"
    assert clock.monotonic_s() >= 200 * 15 + 199 * RETRY_S
    lines = caplog.messages
    assert 2 < len(lines) < 20
    assert (lines[0], lines[-1]) == ("metadata store is not available, trying again", "metadata store is available")


@in_virtual_time
async def test_the_attempts_of_all_connections_at_the_start_are_logged_as_one_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, logs = VirtualClock(), list[OutageLog]()

    async def connect() -> None:
        logs.append(log := OutageLog(logging.getLogger("kazoo.client"), "zk:2181", clock.monotonic_s))
        if len(logs) == 200:
            log.connected()
            return
        log.warning("Connection dropped: %s", "refused")
        await clock.sleep(15)
        log.warning("Failed connecting to Zookeeper within the connection retry policy.")
        raise StoreUnavailableError("no answer")

    await until_reached(connect, clock)
    lines = [record.message for record in caplog.records if record.name == "kazoo.client"]
    assert 2 < len(lines) < 20
    assert (set(lines[:-1]), lines[-1]) == ({"ZooKeeper unreachable, retrying"}, "ZooKeeper reachable again")

    caplog.clear()
    for log in logs[-1], OutageLog(logging.getLogger("kazoo.client"), "zk:2181", clock.monotonic_s):
        log.warning("Connection dropped: %s", "refused")
    assert caplog.messages == ["ZooKeeper unreachable, retrying"] * 2, "a later outage belongs to its connection"


@pytest.mark.parametrize("error", [AccessDeniedError("login refused"), NotAClusterError("no cluster")], ids=str)
async def test_what_a_person_must_correct_is_not_retried(error: Exception) -> None:
    async def connect() -> None:
        raise error

    with pytest.raises(type(error)):
        await until_reached(connect, VirtualClock())


@pytest.mark.usefixtures("attempts_without_pauses")
@pytest.mark.parametrize(("then", "code"), [(refuse, ExitCode.CONFIGURATION), (end, ExitCode.OK)])
async def test_a_replicator_waits_until_zookeeper_answers_or_a_signal_ends_it(
    monkeypatch: pytest.MonkeyPatch, then: Callable[[], None], code: ExitCode
) -> None:
    connect, attempts = unreachable(3, then)
    monkeypatch.setattr(ZooKeeperStore, "connect", connect)
    assert await run_replicator(ReplicatorSettings(URI)) == code
    assert len(attempts) >= 3


async def test_a_replicator_that_works_once_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, attempts = unreachable(2, refuse)
    monkeypatch.setattr(ZooKeeperStore, "connect", connect)
    assert await run_replicator(ReplicatorSettings(URI, once=True)) == ExitCode.STORE_UNREACHABLE
    assert len(attempts) == 1


@pytest.mark.usefixtures("attempts_without_pauses")
@pytest.mark.parametrize(("then", "code"), [(refuse, ExitCode.CONFIGURATION), (end, ExitCode.OK)])
async def test_a_bookie_waits_without_listening_or_touching_its_disks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: Callable[[], None], code: ExitCode
) -> None:
    port = free_loopback_port(random.SystemRandom())

    def check_and_end() -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        then()

    connect, attempts = unreachable(3, check_and_end)
    monkeypatch.setattr(ZooKeeperStore, "connect", connect)
    settings = BookieSettings(URI, str(tmp_path / "j"), str(tmp_path / "l"), port=port)
    assert await run_bookie(settings) == code
    assert len(attempts) >= 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("attempts_without_pauses")
@pytest.mark.parametrize(("words", "count"), [(("--wait",), 3), ((), 1)], ids=["waits", "does not wait"])
def test_the_creation_of_a_root_waits_for_zookeeper_only_on_request(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], count: int
) -> None:
    connect, attempts = unreachable(3, refuse)
    monkeypatch.setattr(ZooKeeperStore, "connect", connect)
    result = CliRunner().invoke(app, ["cluster", "init", "--if-absent", *words, "--metadata-uri", URI])
    assert (len(attempts), type(result.exception)) == (count, NotAClusterError if words else StoreUnavailableError)
