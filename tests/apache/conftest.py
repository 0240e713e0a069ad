"""The ring that talks to a real Apache BookKeeper: its bookies, its auto-recovery, its shell and its Java client.

One cluster and one Java machine serve every test of a session. A test that takes a bookie away gives it back
(``taken_away``), or starts a cluster of its own with ``own_cluster``.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from bookie.embedded.apache import ApacheBookie, ApacheCluster
from bookie.embedded.apache_jars import ApacheJarsMissingError, ApacheJvm, find_apache_lib
from bookie.embedded.apache_settings import ApacheOptions, ApacheStorage
from bookie.metadata.cluster import Cluster, open_cluster
from bookie.metadata.zookeeper import ZooKeeperStore
from bookie.runtime.java import Java, JavaNotFoundError, find_java
from tests.apache.driver import JavaDriver, compile_java, find_javac
from tests.required import missing

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
    return ApacheJvm(_java(), find_apache_lib())


@pytest.fixture(scope="session")
def java_classes(apache_jvm: ApacheJvm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    classes = tmp_path_factory.mktemp("java-classes")
    compile_java(apache_jvm.java, apache_jvm.lib, classes)
    return classes


@pytest.fixture(scope="session")
def apache_cluster(apache_jvm: ApacheJvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """Five bookies of Apache's on a root that Apache's shell made; the last two keep their indexes in RocksDB."""

    async def start() -> ApacheCluster:
        cluster = await ApacheCluster.start(
            tmp_path_factory.mktemp("apache"), bookies=BOOKIES_SORTED, is_zookeeper_durable=False, java=apache_jvm.java
        )
        try:
            await cluster.add_bookies(BOOKIES_DB, options=ApacheOptions(storage=ApacheStorage.DB))
        except BaseException:
            await cluster.stop()
            raise
        return cluster

    cluster = asyncio.run(start())
    yield cluster
    asyncio.run(cluster.stop())


@pytest.fixture(scope="session")
def java(
    apache_cluster: ApacheCluster, apache_jvm: ApacheJvm, java_classes: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaDriver]:
    """Apache's client on the shared cluster."""
    where = tmp_path_factory.mktemp("java-driver")
    driver = asyncio.run(JavaDriver.start(where, apache_cluster, apache_jvm, java_classes))
    yield driver
    asyncio.run(driver.stop())


@pytest.fixture
async def apache_store(apache_cluster: ApacheCluster) -> AsyncIterator[ZooKeeperStore]:
    """Our connection to the shared cluster's ZooKeeper."""
    store = await ZooKeeperStore.connect(apache_cluster.zookeeper.connect_string)
    yield store
    await store.close()


@pytest.fixture
async def apache_metadata(apache_store: ZooKeeperStore, apache_cluster: ApacheCluster) -> Cluster:
    """The shared cluster as our metadata code sees it."""
    return await open_cluster(apache_store, apache_cluster.metadata_uri)


@pytest.fixture
async def taken_away(apache_cluster: ApacheCluster) -> AsyncIterator[Callable[[ApacheBookie], Awaitable[None]]]:
    """Stop a bookie of the shared cluster in order; it is back at the end of the test."""
    stopped: list[ApacheBookie] = []

    async def take(bookie: ApacheBookie) -> None:
        stopped.append(bookie)
        await bookie.stop()

    yield take
    for bookie in stopped:
        bookie.launch()
    for bookie in stopped:
        await bookie.wait_ready()


OwnCluster = Callable[..., Awaitable[tuple[ApacheCluster, JavaDriver]]]


@pytest.fixture
async def own_cluster(apache_jvm: ApacheJvm, java_classes: Path, tmp_path: Path) -> AsyncIterator[OwnCluster]:
    """Start a cluster, with a Java driver, for one test alone; arguments as for ``ApacheCluster.start``."""
    async with AsyncExitStack() as stack:
        count = 0

        async def start(**arguments: Any) -> tuple[ApacheCluster, JavaDriver]:
            nonlocal count
            count += 1
            given: dict[str, Any] = {"is_zookeeper_durable": False, "java": apache_jvm.java} | arguments
            cluster = await ApacheCluster.start(tmp_path / f"cluster-{count}", **given)
            stack.push_async_callback(cluster.stop)
            driver = await JavaDriver.start(tmp_path / f"driver-{count}", cluster, apache_jvm, java_classes)
            stack.push_async_callback(driver.stop)
            return cluster, driver

        yield start
