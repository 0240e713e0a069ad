"""Every process reports a failed bind in the same way: what, where, why, and which option to change."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auditor.api.grpc.server import GrpcApi
from auditor.api.http.server import HttpApi
from auditor.cli.exit_codes import exit_code_of as command_exit_code_of
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.exit_codes import ExitCode, bookie_exit_code
from bookie.runtime.listening import AddressInUseError
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.runtime.telemetry.status_pages import Health
from bookie.runtime.telemetry.status_server import StatusServer
from bookie.runtime.telemetry.status_settings import StatusServerSettings
from bookie.server.grpc.server import GrpcServer
from replicator.main import run_replicator
from replicator.settings import ReplicatorSettings
from tests.worlds.api import TwinControl, TwinOperations, TwinUpkeep, settings_in
from tests.worlds.clocks import ManualClock

HERE = "127.0.0.1"
NOT_HERE = "192.0.2.1"
"""An address for documentation, which no machine has."""
WHY = re.compile(
    r"cannot listen on (\S+) for (.+) \((.+)\): stop what listens there, or choose another (--\S+) or (--\S+)"
)

Listen = Callable[[str, int, Path], Awaitable[None]]


async def auditor_http(host: str, port: int, tmp_path: Path) -> None:
    settings, _ = settings_in(tmp_path)
    api = HttpApi(
        TwinControl(),
        TwinOperations(),
        replace(settings, http_host=host, http_port=port),
        ManualClock(),
        upkeep=TwinUpkeep(),
    )
    try:
        await api.start()
    finally:
        await api.stop()


async def auditor_grpc(host: str, port: int, tmp_path: Path) -> None:
    settings, _ = settings_in(tmp_path)
    api = GrpcApi(TwinControl(), replace(settings, grpc_host=host, grpc_port=port), ManualClock())
    try:
        await api.start()
    finally:
        await api.stop()


async def bookie_grpc(host: str, port: int, tmp_path: Path) -> None:
    server = GrpcServer(concurrent_requests_max=1)
    try:
        server.bind(host, port, None)
    finally:
        await server.stop()


async def metrics(host: str, port: int, tmp_path: Path) -> None:
    StatusServer(StatusServerSettings(port, host), MetricSet("bookie", "1", ()), Health()).stop()


LISTENERS = [
    (auditor_http, "HTTP", "--http-port", "--http-host"),
    (auditor_grpc, "gRPC", "--grpc-port", "--grpc-host"),
    (bookie_grpc, "gRPC", "--port", "--host"),
    (metrics, "metrics and probes", "--http-port", "--http-host"),
]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind((HERE, 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize(("listen", "what", "port_option", "host_option"), LISTENERS)
async def test_a_port_in_use_has_the_same_error_everywhere(
    listen: Listen, what: str, port_option: str, host_option: str, taken: int, tmp_path: Path
) -> None:
    with pytest.raises(AddressInUseError) as caught:
        await listen(HERE, taken, tmp_path)
    reported = WHY.fullmatch(str(caught.value))
    assert reported is not None, str(caught.value)
    assert reported.groups() == (f"{HERE}:{taken}", what, "Address already in use", port_option, host_option)
    assert int(command_exit_code_of(caught.value)) == int(bookie_exit_code(caught.value)) == 78


@pytest.mark.parametrize("listen", [row[0] for row in LISTENERS])
async def test_an_address_of_another_machine_has_the_same_error_everywhere(listen: Listen, tmp_path: Path) -> None:
    with pytest.raises(AddressInUseError) as caught:
        await listen(NOT_HERE, 31_999, tmp_path)
    reported = WHY.fullmatch(str(caught.value))
    assert reported is not None, str(caught.value)
    assert (reported[1], reported[3]) == (f"{NOT_HERE}:31999", "Cannot assign requested address")


async def test_a_replicator_exits_with_the_same_code_and_text(taken: int, caplog: pytest.LogCaptureFixture) -> None:
    settings = ReplicatorSettings("zk://127.0.0.1:1/ledgers", http=StatusServerSettings(taken))
    assert await run_replicator(settings) == 78
    assert [getattr(record, "error", "").startswith("cannot listen on ") for record in caplog.records] == [True]


async def test_a_replicator_that_works_once_needs_no_port(
    taken: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have the configuration file of a replicator that runs beside it."""

    async def connect(hosts: str, **settings: Any) -> ZooKeeperStore:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(ZooKeeperStore, "connect", connect)
    settings = ReplicatorSettings("zk://127.0.0.1:1/ledgers", once=True, http=StatusServerSettings(taken))
    assert await run_replicator(settings) == ExitCode.STORE_UNREACHABLE
    assert getattr(caplog.records[0], "reason", "").startswith("cannot listen on ")
