"""Apache's client on a cluster that has only our bookies: its requests other than adds and reads, and TLS."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache_jars import ApacheJvm
from bookie.embedded.cluster import EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.metadata.cluster import format_cluster
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import LedgerId
from bookie.wire.security import TlsSettings
from tests.apache import slow_bookie
from tests.apache.driver import JavaDriver, JavaError, expected, payloads
from tests.apache.test_security import certificate, client_tls
from tests.apache.waiting import until
from tests.apache.worlds import connect
from tests.deadlines import STATE_S
from tests.sessions import LONG_SESSION_S, kill9

pytestmark = pytest.mark.apache

SEED = "all ours"
SIZES = (1, 0, 100, 5_000)
LONG_WAIT_MS = 100_000
"""The timeout of a long poll that ends by an event."""
SOON_MS = 200
"""The timeout of a long poll without an event."""
ENCRYPTED_ROOT = "/encrypted"


@dataclass(frozen=True)
class Ours:
    """Three of our bookies, and Apache's client."""

    cluster: EmbeddedCluster
    java: JavaDriver


@pytest.fixture(scope="module")
def here(apache_jvm: ApacheJvm, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    stack = AsyncExitStack()
    directory = tmp_path_factory.mktemp("all-ours")

    async def start() -> Ours:
        cluster = await EmbeddedCluster.start(
            directory / "cluster",
            bookies=3,
            zookeeper_heap_mib=128,
            is_zookeeper_durable=False,
            speaks_apache=True,
            session_timeout_s=LONG_SESSION_S,
        )
        stack.push_async_callback(cluster.stop)
        java = await JavaDriver.start(directory / "driver", cluster.metadata_uri, apache_jvm, java_classes)
        stack.push_async_callback(java.stop)
        return Ours(cluster, java)

    try:
        yield asyncio.run(start())
    finally:
        asyncio.run(stack.aclose())


@pytest.fixture
def java(here: Ours) -> JavaDriver:
    return here.java


@pytest.fixture
async def client(here: Ours) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(here.cluster.metadata_uri) as ours:
        yield ours


async def test_a_waiting_reader_gets_the_entry_after_it_is_confirmed(java: JavaDriver) -> None:
    entries = expected(payloads(SEED, range(8), SIZES))
    writer = await java.create(3, 3, 2)
    for _ in range(5):
        await writer.write(1, seed=SEED, sizes=SIZES)
    reader = await java.open(writer.ledger_id)
    assert await reader.last_add_confirmed() == 3  # an entry is known to be confirmed from the one after it
    assert await reader.wait_last_add_confirmed(3, LONG_WAIT_MS) == (3, [entries[3]])
    assert await reader.wait_last_add_confirmed(6, SOON_MS) == (3, [])
    waiting = asyncio.create_task(reader.wait_last_add_confirmed(6, LONG_WAIT_MS))
    for _ in range(2):
        await writer.write(1, seed=SEED, sizes=SIZES)
    assert await (await java.open(writer.ledger_id)).last_add_confirmed() == 5
    assert not waiting.done()
    await writer.write(1, seed=SEED, sizes=SIZES)
    lac, found = await waiting
    assert (lac, found) == (6, [entries[6]])


async def test_both_clients_see_the_last_entry_through_an_explicit_last_add_confirmed(
    java: JavaDriver, client: ConnectedBookKeeper
) -> None:
    await java.new_client("telling", settings={"explicitLacInterval": "50"})
    contents = payloads(SEED, range(5), SIZES)
    writer = await java.create(3, 3, 2, client="telling")
    await writer.write(5, seed=SEED, sizes=SIZES)
    reader = await java.open(writer.ledger_id)
    await until(reader.last_add_confirmed, lambda lac: lac == 4, "the reader reads the last entry")
    assert await reader.read(0, 4) == expected(contents)
    ours = await client.open_ledger(LedgerId(writer.ledger_id))
    assert [entry.payload async for entry in ours.read_all()] == contents
    await java.drop_client("telling")


async def test_forced_entries_survive_the_kill_of_every_bookie(here: Ours) -> None:
    java = here.java
    contents = payloads(SEED, range(5), SIZES)
    writer = await java.create(3, 3, 2, deferred_sync=True)
    assert (await writer.write(5, seed=SEED, sizes=SIZES)).last_add_confirmed == -1  # nothing is durable yet
    assert (await writer.force()).last_add_confirmed == 4
    await kill9(here.cluster.zookeeper, *here.cluster.bookies)
    await asyncio.gather(*(bookie.start() for bookie in here.cluster.bookies))

    async def recovered() -> int:
        return (await (await java.open(writer.ledger_id, recovery=True)).state()).last_add_confirmed

    await until(recovered, lambda last: last == 4, "Apache's client has recovered the ledger")
    for wire in ("v2", "v3"):
        assert await java.read_all(writer.ledger_id, client=wire) == expected(contents)


async def test_apaches_client_gets_the_disk_space_of_our_bookies(here: Ours) -> None:
    reported = await here.java.call("disk_space")
    assert sorted(reported) == sorted(bookie.bookie_id for bookie in here.cluster.bookies)
    for bookie in here.cluster.bookies:
        space = reported[bookie.bookie_id]
        assert space["total"] == shutil.disk_usage(bookie.directory).total
        assert 0 < space["free"] <= space["total"]


async def test_a_batch_read_returns_as_many_entries_as_were_asked_for_and_fit(java: JavaDriver) -> None:
    entries = expected(payloads(SEED, range(50), SIZES))
    writer = await java.create(3, 3, 2, client="v2")
    await writer.write(50, seed=SEED, sizes=SIZES)
    await writer.close()
    reader = await java.open(writer.ledger_id, client="v2")
    assert await reader.read(10, 0, batch_count=20) == entries[10:30]
    assert await reader.read(45, 0, batch_count=20) == entries[45:]
    few = await reader.read(3, 0, batch_count=20, batch_bytes=12_000)
    assert few == entries[3 : 3 + len(few)]
    assert sum(entry.size for entry in few) <= 12_000
    assert len(few) >= 4


@pytest.mark.parametrize("wire", ["v2", "v3"])
async def test_a_writer_of_apaches_client_survives_a_bookie_that_lost_its_journal(here: Ours, wire: str) -> None:
    """The bookie has its ledgers in limbo: it must not end the writer as if another client had fenced the ledger."""
    cluster, java = here.cluster, here.java
    if len(cluster.bookies) < 4:
        await cluster.add_bookies(1)
    writer = await java.create(3, 3, 2, client=wire)
    await writer.write(5, seed=SEED, sizes=SIZES)
    [members] = (await java.call("metadata", ledger=writer.ledger_id))["ensembles"].values()
    lost = next(bookie for bookie in cluster.bookies if bookie.bookie_id == members[0])
    await lost.stop()
    shutil.rmtree(lost.directory / "journal")
    (lost.directory / "journal").mkdir()
    places = ["--journal-dir", str(lost.directory / "journal"), "--ledger-dir", str(lost.directory / "ledgers")]
    command = [sys.executable, "-m", "auditor.cli.main", "bookie", "salvage-journal", *places, "--lost"]
    await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
    await lost.start()

    async def reported() -> dict[str, Any]:
        return await java.call("disk_space", client=wire)

    await until(reported, lambda found: lost.bookie_id in found, "Apache's client is connected to the bookie again")
    await writer.write_past_a_loss(5, seed=SEED, sizes=SIZES)
    await writer.close()
    assert await java.read_all(writer.ledger_id, client=wire) == expected(payloads(SEED, range(10), SIZES))


async def another_cluster(
    stack: AsyncExitStack, here: Ours, root: str, directory: Path, count: int, module: str, *options: str
) -> str:
    """Start bookies that run ``module`` below a separate root, and return the URI of the cluster."""
    connect_string = here.cluster.zookeeper.connect_string
    uri = f"zk+hierarchical://{connect_string}{root}"
    store = await ZooKeeperStore.connect(connect_string)
    try:
        await format_cluster(store, root, rng=random.SystemRandom())
    finally:
        await store.close()
    for number in range(1, count + 1):
        disks = directory / f"bookie-{number}"
        command = [sys.executable, "-m", module, "--metadata-uri", uri, "--port", "0", "--apache-port", "0"]
        places = ["--journal-dir", str(disks / "journal"), "--ledger-dir", str(disks / "ledgers")]
        small = ["--read-only-below-bytes", "1", "--session-timeout", str(LONG_SESSION_S)]
        process = ManagedProcess.start("bookie", [*command, *places, *small, *options], log_path=disks / "log.txt")
        await stack.enter_async_context(process)
        await process.wait_for_line(r"^bookie \S+ ready on ", STATE_S)
    return uri


@pytest.fixture
async def encrypted(here: Ours, tmp_path: Path) -> AsyncIterator[tuple[str, TlsSettings]]:
    """The URI of a cluster of two bookies with mandatory TLS, and the files of a client."""
    bookie, client = (certificate(tmp_path, name, "IP:127.0.0.1") for name in ("bookie", "client"))
    tls = ("--tls-ca", str(bookie.ca), "--tls-cert", str(bookie.cert), "--tls-key", str(bookie.key))
    async with AsyncExitStack() as stack:
        uri = await another_cluster(stack, here, ENCRYPTED_ROOT, tmp_path, 2, "bookie.server", *tls)
        yield uri, client


@pytest.mark.needs("openssl")
async def test_apaches_client_works_over_tls_and_is_refused_without_it(
    java: JavaDriver, encrypted: tuple[str, TlsSettings]
) -> None:
    uri, files = encrypted
    contents = payloads(SEED, range(40), SIZES)
    for name, is_v2 in (("tls-v3", False), ("tls-v2", True)):
        await java.new_client(name, v2=is_v2, settings=client_tls(files), uri=uri)
    for name, other in (("tls-v3", "tls-v2"), ("tls-v2", "tls-v3")):
        writer = await java.create(2, 2, 2, client=name)
        await writer.write(40, seed=SEED, sizes=SIZES)
        reader = await java.open(writer.ledger_id, recovery=True, client=other)
        assert await reader.read(0, 39) == expected(contents)
        assert await java.read_all(writer.ledger_id, client=name) == expected(contents)
    assert {space["total"] > 0 for space in (await java.call("disk_space", client="tls-v3")).values()} == {True}
    await java.new_client("clear", uri=uri)
    with pytest.raises(JavaError):
        await java.read_all(writer.ledger_id, client="clear")


@pytest.mark.long
@pytest.mark.parametrize("is_v2", [False, True], ids=["v3", "v2"])
async def test_slow_ledger_disks_of_all_bookies_stop_no_writer_and_no_recovery_of_apaches_client(
    here: Ours, tmp_path: Path, is_v2: bool
) -> None:
    contents = payloads("left", range(20), SIZES)
    name, part = f"slow-{is_v2}", slow_bookie.CACHE_BYTES // 50_000
    async with AsyncExitStack() as stack:
        uri = await another_cluster(stack, here, f"/{name}", tmp_path, 3, slow_bookie.__name__)
        await here.java.new_client("dying", v2=is_v2, uri=uri)
        left = await here.java.create(3, 3, 2, client="dying")
        await left.write(20, seed="left", sizes=SIZES)
        await here.java.drop_client("dying")
        await here.java.new_client(name, v2=is_v2, uri=uri)
        writer = await here.java.create(3, 3, 2, client=name)
        for _ in range(4):
            await writer.write(part, seed=SEED, sizes=(50_000,))
        recovered = await here.java.open(left.ledger_id, recovery=True, client=name)
        assert await recovered.read(0, 19) == expected(contents)
        for _ in range(4):
            await writer.write(part, seed=SEED, sizes=(50_000,))
        assert len((await here.java.call("metadata", client=name, ledger=writer.ledger_id))["ensembles"]) == 1
        await writer.close()
        await here.java.drop_client(name)
