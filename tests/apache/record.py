"""Record the data that a real Apache cluster writes and sends: ``python -m tests.apache.record``.

The files are in ``tests/data/apache``. Unit tests compare our codecs with these files, on machines without Java and
Apache's jars. A new recording has other ids, times and ports; the tests depend on no particular ones. Directories have
neutral names, and this machine's name is replaced.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bookie.embedded.apache import LEDGERS_ROOT, ApacheCluster
from bookie.embedded.apache_jars import APACHE_VERSION
from bookie.embedded.apache_settings import ApacheOptions, ApacheSasl, ApacheTls
from bookie.metadata.bookies.service_info import PROTOCOL_APACHE, Endpoint, ServiceInfo, encode_service_info
from bookie.metadata.cluster import format_cluster
from bookie.metadata.runs.election import current_auditor
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.digest import master_key
from bookie.wire.apache.transport import ApacheTransport
from bookie.wire.port import Status
from bookie.wire.requests import Info
from bookie.wire.security import BookieSecurity, SaslCredentials
from tests.apache.driver import JavaDriver, JavaError, compile_java
from tests.apache.recording_proxy import Frame, RecordingProxy
from tests.apache.test_security import certificate, client_tls
from tests.apache.waiting import until
from tests.contract.scripted_apache_bookie import BOOKIE, DEADLINE_S, Directory

TARGET: Final = Path(__file__).parent.parent / "data" / "apache"
DIGESTS: Final = ("CRC32", "MAC", "CRC32C", "DUMMY")
PASSWORD: Final = b"secret \xff"
SIZES: Final = (5, 0, 70)
LOGIN: Final = ApacheSasl({"recorder": "made for the recording"}, "recorder")
SEED: Final = "recorded"
WIRE_ROOT: Final = "/recorded"
NEUTRAL_HOST: Final = "worker.example"
MADE_BY: Final = f"Apache BookKeeper {APACHE_VERSION}"


async def record(directory: Path) -> None:
    """Start a cluster in ``directory``, produce every kind of node, entry and message, and write the files."""
    async with await ApacheCluster.start(directory / "cluster", bookies=4, is_zookeeper_durable=False) as cluster:
        classes = directory / "classes"
        await asyncio.to_thread(compile_java, cluster.jvm.java, cluster.jvm.lib, classes)
        java = await JavaDriver.start(directory / "driver", cluster, cluster.jvm, classes)
        store = await ZooKeeperStore.connect(cluster.zookeeper.connect_string)
        try:
            _write("entries.json", await entries(java, cluster))
            _write("frames.json", await frames(java, cluster, store))
            _write("nodes.json", await nodes(java, cluster, store))
        finally:
            await store.close()
            await java.stop()


async def record_handshakes(directory: Path) -> None:
    """Start a bookie with TLS and logins and another one without, connect to both, and write the file."""
    (directory / "pem").mkdir(parents=True)
    host = certificate(directory / "pem", "bookie", "IP:127.0.0.1")
    assert host.cert
    assert host.key
    guarded = ApacheOptions(sasl=LOGIN, tls=ApacheTls(host.cert, host.key, host.ca))
    where = directory / "guarded"
    async with await ApacheCluster.start(where, bookies=1, options=guarded, is_zookeeper_durable=False) as cluster:
        await cluster.add_bookies(1, options=ApacheOptions())
        classes = directory / "classes"
        await asyncio.to_thread(compile_java, cluster.jvm.java, cluster.jvm.lib, classes)
        java = await JavaDriver.start(directory / "guarded-driver", cluster, cluster.jvm, classes)
        store = await ZooKeeperStore.connect(cluster.zookeeper.connect_string)
        try:
            _write("handshakes.json", await handshakes(java, cluster, store, client_tls(host)))
        finally:
            await store.close()
            await java.stop()


async def entries(java: JavaDriver, cluster: ApacheCluster) -> list[dict[str, Any]]:
    """Record stored entries of each digest type, over both versions of the protocol."""
    found = []
    for client in ("v3", "v2"):
        for digest in DIGESTS:
            handle = await java.create(1, 1, 1, digest=digest, password=PASSWORD, client=client)
            await handle.write(len(SIZES), seed=SEED, sizes=SIZES)
            (bookie,) = (await java.call("metadata", ledger=handle.ledger_id))["ensembles"]["0"]
            stored = [
                (await java.call("read_copy", bookie=bookie, ledger=handle.ledger_id, entry=number))["data"]
                for number in range(len(SIZES))
            ]
            await handle.close()
            one = {"digest": digest, "password": PASSWORD.hex(), "seed": SEED, "sizes": SIZES, "client": client}
            found.append(one | {"ledger": handle.ledger_id, "stored": stored})
    return found


async def frames(java: JavaDriver, cluster: ApacheCluster, store: ZooKeeperStore) -> list[dict[str, Any]]:
    """Record frames of each operation of Apache's client, whose only bookie is a proxy with a separate root."""
    await format_cluster(store, WIRE_ROOT, rng=random.SystemRandom())
    (own,) = await cluster.add_bookies(1)  # under the new root, ids of ledgers start at 0
    async with RecordingProxy(own.port) as proxy:
        bookie = await _registered(proxy, store)
        uri = _wire_uri(cluster)
        found: list[dict[str, Any]] = []
        for wire in ("v3", "v2"):
            name = f"recorded-{wire}"
            settings = {"explicitLacInterval": "20", "batchReadEnabled": "true"}
            await java.new_client(name, v2=wire == "v2", uri=uri, settings=settings)
            for operation, body in await _operations(java, name, bookie, wire, proxy):
                found.append({"wire": wire, "operation": operation, **body})
            await java.drop_client(name)
        return found


async def _operations(
    java: JavaDriver, client: str, bookie: str, wire: str, proxy: RecordingProxy
) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []

    def take(operation: str) -> None:
        """Take requests from both kinds of connection: a client of version 2 sends some requests by version 3."""
        for frame in proxy.frames:
            found.append((operation, {"is_request": frame.is_request, "body": frame.body.hex()}))
        proxy.frames.clear()

    key = master_key(PASSWORD)
    handle = await java.create(1, 1, 1, password=PASSWORD, client=client)
    ledger_id = handle.ledger_id
    proxy.frames.clear()
    for _ in range(3):
        await handle.write(1, seed=SEED, sizes=SIZES)
    take("add")
    reader = await java.open(ledger_id, password=PASSWORD, client=client)
    take("open without recovery")
    last = (await reader.state()).last_add_confirmed
    await reader.read(0, last)
    take("read")
    with suppress(JavaError):
        await java.call("read_copy", bookie=bookie, ledger=ledger_id, entry=99, client=client)
    with suppress(JavaError):
        await java.call("read_copy", bookie=bookie, ledger=987_654, entry=0, client=client)
    with suppress(JavaError):
        await java.call(
            "add_copy", bookie=bookie, ledger=ledger_id, entry=3, key=bytes(20).hex(), data=bytes(48).hex(), client="v3"
        )
    take("read of what is not there")
    if wire == "v2":
        await reader.read(0, 0, batch_count=2)
        take("batch read")
    await reader.last_add_confirmed()
    take("read last add confirmed")
    if wire == "v3":
        await reader.wait_last_add_confirmed(last + 1, 200)
        take("long poll")
        await java.call("available_entries", bookie=bookie, ledger=ledger_id, client=client)
        take("list of entries")
        deferred = await java.create(1, 1, 1, password=PASSWORD, client=client, deferred_sync=True)
        await deferred.write(1, seed=SEED, sizes=SIZES)
        await deferred.force()
        await deferred.close()
        take("deferred sync and force")
    await java.call("disk_space", client=client)
    take("disk space")
    await java.open(ledger_id, password=PASSWORD, recovery=True, client=client)
    take("recovery")
    with suppress(JavaError):
        await handle.write(1, seed=SEED, sizes=SIZES)
    take("add to a fenced ledger")
    with suppress(JavaError):
        flags = 0x1 | 0x4
        await java.call(
            "read_copy", bookie=bookie, ledger=ledger_id, entry=0, flags=flags, key=key.hex(), client=client
        )
    take("fencing read")
    return found


async def handshakes(
    java: JavaDriver, cluster: ApacheCluster, store: ZooKeeperStore, tls: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Record the first frames of Apache's client, of our client and of a bookie, until they are encrypted."""
    await format_cluster(store, WIRE_ROOT, rng=random.SystemRandom())
    with_login, bare = (bookie.port for bookie in cluster.bookies)
    login = LOGIN.settings()
    found = []
    for operation, wire, port, settings in (
        ("login", "v3", with_login, login),
        ("login", "v2", with_login, login),
        ("login where none is asked for", "v3", bare, login),
        ("login where none is asked for", "v2", bare, login),
        ("no login", "v3", with_login, {}),
        ("no login", "v2", with_login, {}),
        ("TLS", "v3", with_login, tls),
        ("TLS", "v2", with_login, tls),
        ("TLS where there is none", "v3", bare, tls),
    ):
        name = f"{operation} {wire}"
        async with RecordingProxy(port) as proxy:
            bookie = await _registered(proxy, store)
            await java.new_client(name, v2=wire == "v2", uri=_wire_uri(cluster), settings=settings)
            with suppress(JavaError):
                handle = await java.create(1, 1, 1, password=PASSWORD, client=name)
                await handle.write(1, seed=SEED, sizes=SIZES)
            await java.drop_client(name)
            await store.delete(f"{WIRE_ROOT}/available/{bookie}")
        found += [_frame(wire, operation, frame) for frame in proxy.frames]
    async with RecordingProxy(with_login) as proxy:
        credentials = SaslCredentials(LOGIN.own_name, LOGIN.passwords[LOGIN.own_name])
        ours = ApacheTransport(Directory(proxy.port), security=BookieSecurity(sasl=credentials))
        reply = await ours.ask(BOOKIE, Info(), DEADLINE_S)
        await ours.close()
        assert reply.status is Status.OK, reply
    return found + [_frame("v3", "our login", frame) for frame in proxy.frames]


def _frame(wire: str, operation: str, frame: Frame) -> dict[str, Any]:
    return {"wire": wire, "operation": operation, "is_request": frame.is_request, "body": frame.body.hex()}


async def _registered(proxy: RecordingProxy, store: ZooKeeperStore) -> str:
    """Register the proxy as the bookie of a separate root, and return the bookie's id."""
    bookie = f"127.0.0.1:{proxy.port}"
    info = ServiceInfo((Endpoint("bookie", "127.0.0.1", proxy.port, PROTOCOL_APACHE),))
    await store.create(f"{WIRE_ROOT}/available/{bookie}", encode_service_info(info), is_ephemeral=True)
    return bookie


def _wire_uri(cluster: ApacheCluster) -> str:
    return f"zk+hierarchical://{cluster.zookeeper.connect_string}{WIRE_ROOT}"


async def nodes(java: JavaDriver, cluster: ApacheCluster, store: ZooKeeperStore) -> list[dict[str, Any]]:
    """Record every node under the root, with ledgers of each format and state, tasks, a lock, a vote and times."""
    by_id = {bookie.bookie_id: bookie for bookie in cluster.bookies}
    for number in (1, 2, 3):
        client = f"recorded-format-{number}"
        settings = {
            "ledgerMetadataVersion": str(number),
            "storeSystemTimeAsLedgerCreationTime": str(number == 2).lower(),
        }
        await java.new_client(client, settings=settings)
        for digest in DIGESTS if number > 1 else ("CRC32C",):
            handle = await java.create(
                2, 2, 1, digest=digest, password=PASSWORD, custom={"application": b"recorded\n\x00"}, client=client
            )
            await handle.close()
        handle = await java.create(3, 3, 2, client=client)
        await handle.write(5, seed=SEED, sizes=SIZES)
        first = (await java.call("metadata", ledger=handle.ledger_id))["ensembles"]["0"]
        await by_id[first[0]].stop()
        await handle.write(5, seed=SEED, sizes=SIZES)
        await handle.close()
        stuck = await java.create(3, 3, 2, client=client)
        await stuck.write(1)
        members = (await java.call("metadata", ledger=stuck.ledger_id))["ensembles"]["0"]
        for member in members[:2]:
            await by_id[member].stop()
        with suppress(JavaError):
            await java.open(stuck.ledger_id, recovery=True, client=client)
        for bookie in cluster.bookies:
            await bookie.start()
        await java.create(1, 1, 1, client=client)
    await java.create(1, 1, 1, own_ids=True, ledger_id=5_000_000_000)
    await java.call("mark", ledger=12345, missing=["bk1:3181"])
    await java.call("poll_task")
    await java.call("mark", ledger=5_000_000_000, missing=["bk2:3181", "bk1:3181"])
    await java.call("mark", ledger=7, missing=[])
    await java.call("delay", seconds=30)
    await java.call(
        "set_check_times",
        check_all_ledgers_ctime=1_700_000_000_000,
        placement_policy_check_ctime=1_700_000_000_001,
        replicas_check_ctime=1_700_000_000_002,
    )
    recovery = await cluster.start_auto_recovery({"autoRecoveryDaemonEnabled": "true"})
    await java.call("switch_recovery", on=False)

    async def has_auditor() -> bool:
        return await current_auditor(store, LEDGERS_ROOT) == recovery.address

    await until(has_auditor, bool, "Apache's auditor is elected")
    return [_node(path, data) for path, data in await _tree(store, LEDGERS_ROOT)]


async def _tree(store: ZooKeeperStore, path: str) -> list[tuple[str, bytes]]:
    below = [await _tree(store, f"{path}/{name}") for name in sorted((await store.children(path)).names)]
    return [(path, (await store.get(path)).data), *(node for nodes in below for node in nodes)]


def _node(path: str, data: bytes) -> dict[str, Any]:
    if "/locks/" in path:
        data = data.replace(socket.gethostname().encode(), NEUTRAL_HOST.encode())
    return {"path": path, "data": data.hex()}


def _write(name: str, found: Sequence[dict[str, Any]]) -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(one) for one in found)
    text = f'{{"made_by": "{MADE_BY}", "rows": [\n{rows}\n]}}\n'
    (TARGET / name).write_text(text)
    print(f"{name}: {len(found)} rows, {len(text)} bytes")


def main() -> None:
    """Record in a temporary directory with a neutral name; with the argument ``handshakes``, record only those."""
    directory = Path(tempfile.gettempdir()) / "apache-recording"
    shutil.rmtree(directory, ignore_errors=True)
    try:
        if sys.argv[1:] != ["handshakes"]:
            asyncio.run(record(directory))
        asyncio.run(record_handshakes(directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
