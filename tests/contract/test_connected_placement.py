"""A client of a real cluster finds the topology, follows it, and stops doing so when it is closed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.client.placement.placement import PlacementPolicy
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.bookies.topology import InvalidTopologyError, TopologyStore
from bookie.metadata.cluster import format_cluster, open_cluster
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId
from tests.deadlines import STATE_S

BK1 = BookieId("bk1:3181")


@pytest.fixture
def where(zookeeper: EmbeddedZooKeeper, fresh_root: str) -> tuple[str, str]:
    return zookeeper.connect_string, fresh_root


@pytest.fixture
async def topologies(where: tuple[str, str]) -> AsyncIterator[TopologyStore]:
    hosts, root = where
    store = await ZooKeeperStore.connect(hosts)
    await format_cluster(store, root, rng=random.Random(1))
    yield TopologyStore(store, await open_cluster(store, root))
    await store.close()


async def until_located(client: ConnectedBookKeeper, rack: str) -> None:
    async with asyncio.timeout(STATE_S):
        while client.ports.placement.topology.location_of(BK1) != rack:  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.01)


async def test_client_follows_the_topology_in_zookeeper(where: tuple[str, str], topologies: TopologyStore) -> None:
    uri = "zk+hierarchical://{}{}".format(*where)
    await topologies.write('{"bk1:3181": "/r1"}')
    policy = PlacementPolicy(min_racks=3, is_strict=True)
    async with await connect(uri, placement_policy=policy) as client:
        assert client.ports.placement.policy == policy
        assert client.ports.placement.topology.known(BK1) == "/r1"
        await topologies.write('{"bk1:3181": "/r2"}')
        await until_located(client, "/r2")
    await client.close()
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert "placement feed" not in names


async def test_a_topology_file_has_precedence_over_zookeeper(
    where: tuple[str, str], topologies: TopologyStore, tmp_path: Path
) -> None:
    uri = "zk+hierarchical://{}{}".format(*where)
    file = tmp_path / "topology.json"
    file.write_text('{"bk1": "/filed"}')
    await topologies.write('{"bk1:3181": "/stored"}')
    async with await connect(uri, topology_file=file) as client:
        assert client.ports.placement.topology.known(BK1) == "/filed"
    with pytest.raises(InvalidTopologyError, match=r"none\.json"):
        await connect(uri, topology_file=tmp_path / "none.json")


async def test_only_a_strict_client_refuses_to_start_with_a_malformed_topology(
    where: tuple[str, str], topologies: TopologyStore
) -> None:
    uri = "zk+hierarchical://{}{}".format(*where)
    await topologies.write("{}")
    await topologies._store.set(topologies.own_path, b"[", ANY_VERSION)
    with pytest.raises(InvalidTopologyError, match=topologies.own_path):
        await connect(uri, placement_policy=PlacementPolicy(is_strict=True))
    async with await connect(uri) as client:
        assert client.ports.placement.topology.known(BK1) is None


async def test_a_client_with_a_configured_location_reads_near_replicas_first(
    where: tuple[str, str], topologies: TopologyStore
) -> None:
    await topologies.write('{"bk1:3181": "/a/1", "bk2:3181": "/b/1"}')
    async with await connect("zk+hierarchical://{}{}".format(*where), where="/b/2") as client:
        near = client.ports.near
        assert near is not None
        assert near(BookieId("bk2:3181")) < near(BK1)
    async with await connect("zk+hierarchical://{}{}".format(*where)) as client:
        assert client.ports.near is None
