"""The ring of a real Apache BookKeeper: its bookies, its auto-recovery, its shell and its Java client.

One cluster and one Java process serve all tests of a session. A test that stops a bookie starts it again
(``taken_away``), or starts a separate cluster with ``own_cluster``.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bookie.embedded.apache import ApacheBookie, ApacheCluster
from bookie.embedded.apache_jars import ApacheJarsMissingError, ApacheJvm, find_apache_lib
from bookie.embedded.apache_settings import ApacheOptions, ApacheStorage
from bookie.metadata.cluster import Cluster, open_cluster
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.runtime.java import Java, JavaNotFoundError, find_java
from tests.apache.class_data import quick_jvm
from tests.apache.driver import JavaDriver, compile_java, compiled_driver, find_javac
from tests.apache.programs import Audit, Comparison, audit_in, shadow_in
from tests.apache.worlds import (
    ApacheWorld,
    as_at_first,
    connect,
    end_cluster,
    no_tasks_in,
    patient,
    start_cluster,
    world,
)
from tests.required import missing
from tests.sessions import LONG_SESSION_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOOKIES_SORTED = 3
BOOKIES_DB = 2


@functools.cache
def _java() -> Java:
    return find_java()


@functools.cache
def _missing() -> str:
    try:
        find_apache_lib()
        return "" if find_javac(_java()) else "no javac: install a JDK, for example default-jdk-headless"
    except (ApacheJarsMissingError, JavaNotFoundError) as error:
        return str(error)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "apache" not in item.path.parts or item.get_closest_marker("apache") is None:
        return
    if why := _missing():
        missing("apache", why)


@pytest.fixture(scope="session")
def apache_jvm() -> ApacheJvm:
    """Settings for programs that run for minutes, which start in two thirds of the time (``class_data``)."""
    return quick_jvm(_java(), find_apache_lib())


@pytest.fixture(scope="session")
def java_classes(apache_jvm: ApacheJvm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver, compiled once for each version of its sources, or each time if the cache is not writable."""
    try:
        return compiled_driver(apache_jvm.java, apache_jvm.lib)
    except OSError:
        classes = tmp_path_factory.mktemp("java-classes")
        compile_java(apache_jvm.java, apache_jvm.lib, classes)
        return classes


@pytest.fixture(scope="session")
def apache_cluster(apache_jvm: ApacheJvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """Five Apache bookies on a root that Apache's shell made. The last two have their indexes in RocksDB."""

    async def start() -> ApacheCluster:
        cluster = await start_cluster(tmp_path_factory.mktemp("apache"), apache_jvm, bookies=BOOKIES_SORTED)
        try:
            await cluster.add_bookies(BOOKIES_DB, options=patient(ApacheOptions(storage=ApacheStorage.DB)))
        except BaseException:
            await cluster.stop()
            raise
        return cluster

    cluster = asyncio.run(start())
    yield cluster
    asyncio.run(end_cluster(cluster))


@pytest.fixture(scope="session")
def java(
    apache_cluster: ApacheCluster, apache_jvm: ApacheJvm, java_classes: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaDriver]:
    """Apache's client on the shared cluster."""
    where = tmp_path_factory.mktemp("java-driver")
    driver = asyncio.run(JavaDriver.start(where, apache_cluster, apache_jvm, java_classes))
    yield driver
    asyncio.run(driver.kill9())


@pytest.fixture(scope="session")
def _lent(apache_jvm: ApacheJvm, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheWorld]:
    with world(tmp_path_factory.mktemp("lent"), apache_jvm, java_classes, bookies=4) as made:
        yield made


@pytest.fixture
async def lent(_lent: ApacheWorld) -> AsyncIterator[ApacheWorld]:
    """A cluster of four bookies without ledgers, with which a test may do what it wants.

    Each test gets it in the same state: all bookies run, nothing is marked, and every switch has its first value.
    """
    await as_at_first(_lent)
    yield _lent
    for server in _lent.cluster.auto_recoveries:
        if server.running.is_running:
            await _lent.kill9(server)


@pytest.fixture
def audit(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Audit:
    """Run a check in the Spark session of the tests. One test runs the command itself (``audit_process``)."""
    return audit_in(spark, monkeypatch)


@pytest.fixture
def shadow(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Comparison:
    """Compare with Apache's marks in the Spark session of the tests."""
    return shadow_in(spark, monkeypatch)


@pytest.fixture
async def no_tasks(apache_cluster: ApacheCluster) -> AsyncIterator[None]:
    """Remove all tasks of the shared cluster before the test and after it.

    Our writer marks its ledger at close if it did not wait for all copies, and so may a recovery.
    """
    async with await connect(apache_cluster.metadata_uri) as client:
        await no_tasks_in(client)
        yield
        await no_tasks_in(client)


@pytest.fixture
async def apache_store(apache_cluster: ApacheCluster) -> AsyncIterator[ZooKeeperStore]:
    """A session of our store with the shared cluster's ZooKeeper."""
    store = await ZooKeeperStore.connect(apache_cluster.zookeeper.connect_string, session_timeout_s=LONG_SESSION_S)
    yield store
    await store.close()


@pytest.fixture
async def apache_metadata(apache_store: ZooKeeperStore, apache_cluster: ApacheCluster) -> Cluster:
    """The metadata of the shared cluster, read by our code."""
    return await open_cluster(apache_store, apache_cluster.metadata_uri)


@pytest.fixture
async def taken_away(apache_cluster: ApacheCluster) -> AsyncIterator[Callable[[ApacheBookie], Awaitable[None]]]:
    """Stop a bookie of the shared cluster regularly, and restart it at the end of the test."""
    stopped: list[ApacheBookie] = []

    async def take(bookie: ApacheBookie) -> None:
        stopped.append(bookie)
        await bookie.stop()

    yield take
    for bookie in stopped:
        bookie.launch()
    for bookie in stopped:
        await bookie.wait_ready()


OwnServers = Callable[..., Awaitable[ApacheCluster]]
OwnCluster = Callable[..., Awaitable[tuple[ApacheCluster, JavaDriver]]]


@pytest.fixture
async def own_servers(apache_jvm: ApacheJvm, tmp_path: Path) -> AsyncIterator[OwnServers]:
    """Start a cluster that only one test uses; arguments as for ``ApacheCluster.start``."""
    async with AsyncExitStack() as stack:
        numbers = itertools.count(1)

        async def start(**arguments: Any) -> ApacheCluster:
            cluster = await start_cluster(tmp_path / f"cluster-{next(numbers)}", apache_jvm, **arguments)
            stack.push_async_callback(end_cluster, cluster)
            return cluster

        yield start


@pytest.fixture
async def own_cluster(
    own_servers: OwnServers, apache_jvm: ApacheJvm, java_classes: Path, tmp_path: Path
) -> AsyncIterator[OwnCluster]:
    """Start a cluster with a Java driver that only one test uses; arguments as for ``ApacheCluster.start``."""
    async with AsyncExitStack() as stack:
        numbers = itertools.count(1)

        async def start(**arguments: Any) -> tuple[ApacheCluster, JavaDriver]:
            cluster = await own_servers(**arguments)
            driver = await JavaDriver.start(tmp_path / f"driver-{next(numbers)}", cluster, apache_jvm, java_classes)
            stack.push_async_callback(driver.kill9)
            return cluster, driver

        yield start
