"""The ring of a real Pulsar: a broker, bookies with Pulsar's metadata driver, and its auto-recovery.

All tests of a session share one world, because its start takes 25 seconds. A test restores what it changes.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache_jars import ApacheJvm
from bookie.runtime.java import JavaNotFoundError, find_java
from bookie.runtime.ports import free_loopback_port
from tests.apache.programs import Audit, audit_in
from tests.apache.worlds import connect, end_cluster
from tests.deadlines import STATE_S
from tests.pulsar.cluster import (
    Broker,
    NativePulsarCluster,
    PulsarCluster,
    pulsar_jvm,
    pulsar_lib,
    pulsar_options,
)
from tests.pulsar.world import PulsarWorld
from tests.required import missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _missing() -> str:
    if not any(pulsar_lib().glob("pulsar-broker-*.jar")):
        return (
            f"no Pulsar in {pulsar_lib()}: do mvn -B -f .ci/pulsar/pom.xml dependency:copy-dependencies "
            f"-DincludeScope=runtime -DoutputDirectory={pulsar_lib()}"
        )
    try:
        find_java()
    except JavaNotFoundError as error:
        return str(error)
    return "" if importlib.util.find_spec("pulsar") else "pulsar-client is not installed: pip install '.[dev]'"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("pulsar") is not None and (why := _missing()):
        missing("pulsar", why)


async def _cluster(stack: AsyncExitStack, directory: Path, kind: type[PulsarCluster]) -> PulsarCluster:
    """Start a cluster without bookies, which ends with ``stack``."""
    jvm = pulsar_jvm(ApacheJvm(find_java(), pulsar_lib()), has_own_driver=kind is PulsarCluster)
    cluster = await kind.start(
        directory,
        bookies=0,
        options=pulsar_options(),
        is_zookeeper_durable=False,
        jvm_options=jvm.options,
        java=jvm.java,
        lib=jvm.lib,
    )
    assert isinstance(cluster, kind)
    stack.push_async_callback(end_cluster, cluster)
    return cluster


async def _broker(stack: AsyncExitStack, cluster: PulsarCluster) -> Broker:
    broker = await Broker.start(cluster)
    stack.push_async_callback(broker.process.wait, STATE_S)
    stack.callback(broker.process.kill9)
    return broker


async def _world(stack: AsyncExitStack, cluster: PulsarCluster, *, bookies: int) -> PulsarWorld:
    """Start bookies, the first of them with an HTTP API, and a broker."""
    http_port = free_loopback_port(random.SystemRandom())
    http = {
        "httpServerEnabled": "true",
        "httpServerPort": str(http_port),
        "httpServerHost": "127.0.0.1",
        "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
    }
    await asyncio.gather(cluster.add_bookies(1, extra=http), cluster.add_bookies(bookies - 1))
    return PulsarWorld(cluster, await _broker(stack, cluster), http_port)


@pytest.fixture(scope="session")
def pulsar_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarWorld]:
    """Four bookies, the first of which has an HTTP API, and a broker."""
    stack = AsyncExitStack()

    async def start() -> PulsarWorld:
        cluster = await _cluster(stack, tmp_path_factory.mktemp("pulsar"), PulsarCluster)
        return await _world(stack, cluster, bookies=4)

    try:
        yield asyncio.run(start())
    finally:
        asyncio.run(stack.aclose())


@pytest.fixture
async def native_world(tmp_path: Path) -> AsyncIterator[PulsarWorld]:
    """Three bookies, the first of which has an HTTP API, and a broker, with BookKeeper's driver."""
    async with AsyncExitStack() as stack:
        cluster = await _cluster(stack, tmp_path / "native", NativePulsarCluster)
        yield await _world(stack, cluster, bookies=3)


@pytest.fixture
async def client(pulsar_world: PulsarWorld) -> AsyncIterator[ConnectedBookKeeper]:
    """Our client, connected by the URI of Pulsar's bookies."""
    async with await connect(pulsar_world.cluster.metadata_uri) as ours:
        yield ours


@pytest.fixture
def audit(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Audit:
    """Run a check in the Spark session of the tests."""
    return audit_in(spark, monkeypatch)
