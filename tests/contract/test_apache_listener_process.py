"""A bookie process with ``--apache-port``: clients find and use it, and it is measured and restarted like any other."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from bookie.embedded.cluster import LEDGERS_ROOT, EmbeddedCluster
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.wire.apache import protocol_pb2 as pb
from tests.contract.apache_listener_world import Client
from tests.deadlines import STATE_S
from tests.sessions import LONG_SESSION_S
from tests.worlds.apache_listener import add, entry, read

pytestmark = pytest.mark.integration


async def connect(port: int) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port))


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=STATE_S) as answer:
        return str(answer.read().decode())


async def test_a_bookie_process_serves_apaches_protocol_and_its_own(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"is_zookeeper_durable": False, "session_timeout_s": LONG_SESSION_S}
    async with await EmbeddedCluster.start(
        tmp_path, bookies=1, serves_metrics=True, speaks_apache=True, **settings
    ) as cluster:
        [bookie] = cluster.bookies
        port = bookie.apache_port
        assert bookie.bookie_id == f"127.0.0.1:{port}"

        store = await ZooKeeperStore.connect(cluster.zookeeper.connect_string)
        registrations = Registrations(store, await open_cluster(store, LEDGERS_ROOT))
        info = await registrations.service_info(bookie.bookie_id)
        await store.close()
        assert info is not None
        endpoints = {endpoint.protocol: endpoint.port for endpoint in info.endpoints}
        assert endpoints == {"bookie-rpc": port, "bookie-grpc": bookie.port}

        client = await connect(port)
        assert (await client.ask(add(entry(0)))).status == pb.EOK
        client.close()
        shown = await asyncio.to_thread(page, f"{bookie.metrics_url}/metrics")
        assert 'operation="add",status="ok"} 1' in shown

        await bookie.stop()
        await bookie.start()
        assert bookie.apache_port == port
        again = await connect(port)
        assert (await again.ask(read(0))).readResponse.body == entry(0)
        again.close()
