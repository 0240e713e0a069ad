"""The topology in the metadata store, on the twin and on ZooKeeper."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bookie.metadata.bookies.topology import InvalidTopologyError, TopologyStore, parse_topology
from bookie.metadata.cluster import Cluster
from bookie.metadata.nodes import create_with_parents
from bookie.metadata.own_state import own_path
from bookie.metadata.port import ANY_VERSION, AccessDeniedError, MetadataStore, NodeTooLargeError
from bookie.model.ids import BookieId
from bookie.model.topology import DEFAULT_REGION_AND_RACK, Topology

WithDeadline = Callable[[Awaitable[Any]], Awaitable[Any]]

BK1, BK2 = BookieId("bk1:3181"), BookieId("bk2:3181")
PULSAR = b'{"default": {"bk1:3181": {"rack": "/eu/r1", "hostname": "bk1"}}}'


@pytest.fixture
def topologies(store: MetadataStore, cluster: Cluster) -> TopologyStore:
    return TopologyStore(store, cluster)


async def test_without_nodes_the_topology_is_empty(topologies: TopologyStore, base: str) -> None:
    read = await topologies.read()
    assert (read.topology, read.path) == (Topology(), None)
    assert topologies.pulsar_path == f"{base}/bookies"


async def test_the_default_root_uses_pulsars_default_path(store: MetadataStore, cluster: Cluster) -> None:
    usual = TopologyStore(store, Cluster("/ledgers", cluster.kind, cluster.instance_id))
    assert (usual.pulsar_path, usual.own_path) == ("/bookies", "/bkheal/topology/ledgers")


async def test_pulsars_node_is_used_until_our_own_exists(
    store: MetadataStore, topologies: TopologyStore, cluster: Cluster
) -> None:
    await store.create(topologies.pulsar_path)
    assert (await topologies.read()).topology == Topology()
    await store.set(topologies.pulsar_path, PULSAR, ANY_VERSION)
    read = await topologies.read()
    assert (read.topology.locations, read.path) == ({BK1: "/eu/r1"}, topologies.pulsar_path)

    for rack in ("/r7", "/r8"):
        await topologies.write(f'{{"bk2:3181": "{rack}"}}')
        read = await topologies.read()
        assert (read.topology.locations, read.path) == ({BK2: rack}, own_path("topology", cluster.root))


async def test_malformed_topology_is_an_error_at_load(store: MetadataStore, topologies: TopologyStore) -> None:
    for nonsense in (b"\xff", b"[]", b'{"g": {"bk1:3181": {"rack": 5}}}'):
        await _put(store, topologies.pulsar_path, nonsense)
        with pytest.raises(InvalidTopologyError, match=topologies.pulsar_path):
            await topologies.read()
    await store.delete(topologies.pulsar_path)
    with pytest.raises(InvalidTopologyError):
        await topologies.write("[]")
    with pytest.raises(NodeTooLargeError):
        await topologies.write("{" + " " * 1_000_001 + "}")
    assert (await topologies.read()).path is None


async def test_a_location_that_only_pulsar_accepts_is_unknown_and_all_others_are_used(
    store: MetadataStore, topologies: TopologyStore, with_deadline: WithDeadline, caplog: pytest.LogCaptureFixture
) -> None:
    def node(**racks: str) -> bytes:
        bookies = {f"{name}:3181": {"rack": rack, "hostname": ""} for name, rack in racks.items()}
        return json.dumps({"gold": bookies, "default": {"bk 9": {"rack": "/r9", "hostname": ""}}}).encode()

    await store.create(topologies.pulsar_path, node(bk1="/eu/r1", bk2="rack 1", bk3="/r\xe4ck", bk4="/eu/r4"))
    seen = await topologies.read()
    assert seen.topology.locations == {BK1: "/eu/r1", "bk4:3181": "/eu/r4"}
    assert seen.topology.location_of(BK2) == DEFAULT_REGION_AND_RACK
    assert seen.topology.groups.names == {
        "gold": {BK1, BK2, "bk3:3181", "bk4:3181"},
        "default": {"bk 9"},
    }
    await topologies.read()
    (logged,) = caplog.records
    assert (logged.message, logged.__dict__["entries"]) == ("locations that cannot be used count as unknown", 3)
    assert "'rack 1'" in logged.__dict__["first"][0]
    waiting = asyncio.ensure_future(topologies.wait_changed(seen))
    await store.set(topologies.pulsar_path, node(bk1="/eu/r2", bk2="rack 1"), ANY_VERSION)
    assert (await with_deadline(waiting)).topology.locations == {BK1: "/eu/r2"}
    assert [record.__dict__["entries"] for record in caplog.records] == [3, 2]
    for refused in (node(bk2="rack 1"), b'{"bk 9": "/r9"}'):
        with pytest.raises(InvalidTopologyError):
            await topologies.write(refused.decode())
    await _put(store, topologies.own_path, node(bk2="rack 1"))
    with pytest.raises(InvalidTopologyError, match="rack 1"):
        await topologies.read()


async def test_each_change_of_either_node_is_seen(
    store: MetadataStore, topologies: TopologyStore, backend: Any, cluster: Cluster, with_deadline: WithDeadline
) -> None:
    other = TopologyStore(await backend.open(), cluster)
    seen = await other.read()
    for path, data, expected in (
        (topologies.pulsar_path, PULSAR, {BK1: "/eu/r1"}),
        (topologies.pulsar_path, b'{"bk1:3181": "/r2"}', {BK1: "/r2"}),
        (topologies.own_path, b'{"bk1:3181": "/r3"}', {BK1: "/r3"}),
        (topologies.own_path, None, {BK1: "/r2"}),
        (topologies.pulsar_path, None, {}),
    ):
        waiting = asyncio.ensure_future(other.wait_changed(seen))
        await asyncio.sleep(0)
        await (store.delete(path) if data is None else _put(store, path, data))
        seen = await with_deadline(waiting)
        assert seen.topology.locations == expected


async def test_change_before_the_wait_is_not_missed(topologies: TopologyStore, with_deadline: WithDeadline) -> None:
    seen = await topologies.read()
    await topologies.write('{"bk1:3181": "/r1"}')
    assert (await with_deadline(topologies.wait_changed(seen))).topology == parse_topology('{"bk1:3181": "/r1"}')


async def test_malformed_topology_after_the_start_changes_nothing(
    store: MetadataStore, topologies: TopologyStore, with_deadline: WithDeadline, caplog: pytest.LogCaptureFixture
) -> None:
    await topologies.write('{"bk1:3181": "/r1"}')
    good = await topologies.read()
    await store.set(topologies.own_path, b"{", ANY_VERSION)
    kept = await with_deadline(topologies.wait_changed(good))
    assert kept.topology == good.topology
    assert [record.message for record in caplog.records] == ["topology cannot be read, the last one stays in use"]
    waiting = asyncio.ensure_future(topologies.wait_changed(kept))
    await topologies.write('{"bk1:3181": "/r2"}')
    assert (await with_deadline(waiting)).topology.locations == {BK1: "/r2"}


async def test_a_node_without_read_permission_is_an_error(topologies: TopologyStore, backend: Any) -> None:
    await topologies.write("{}")
    backend.deny(topologies.own_path)
    with pytest.raises(AccessDeniedError):
        await topologies.read()


async def _put(store: MetadataStore, path: str, data: bytes) -> None:
    if await store.stat(path) is None:
        await create_with_parents(store, path, data, "/")
    else:
        await store.set(path, data, ANY_VERSION)
