"""A cluster as in Pulsar deployments: a root inside another path, long ledger ids, and Pulsar's custom metadata.

Some ledgers have metadata of the older formats, as in upgraded clusters. A bookie is lost, and we repair its
ledgers. In their metadata only the places of the copies change. Apache's tree contains only nodes with names that
Apache uses, before and after.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache import ApacheCluster
from bookie.embedded.apache_jars import ApacheJvm
from bookie.metadata.layout import LayoutKind
from bookie.metadata.nodes import ensure_path
from bookie.metadata.port import Node
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId, LedgerId
from tests.apache.programs import Replicator, audit_process, bkheal
from tests.apache.worlds import (
    PASSWORD,
    SIZES,
    ApacheWorld,
    Ledger,
    begin,
    check_all_nodes_known,
    check_healthy,
    connect,
    extend,
    gone,
    names_below,
    strange_in,
    world,
)

pytestmark = [pytest.mark.apache, pytest.mark.usefixtures("quick_spark")]

PARENT, ROOT = "/pulsar/bk", "/pulsar/bk/ledgers"
BOOKIES = [f"bk-of-pulsar-{number}" for number in (1, 2, 3, 4)]
LOST, SPARE = b"bk-of-pulsar-2", b"bk-of-pulsar-4"
"""Both have the same length, so replacing one by the other in the metadata moves no other byte."""
ENTRIES = 30
IDS = (None, 2**31 - 2, 2**31 - 1, 1_234_567_890_123_456_789)
"""``None`` is an id from Apache's generator."""
PLACEMENT = {
    "policyClass": "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy",
    "properties": {"isolationBookieGroups": "group-1", "secondaryIsolationBookieGroups": "group-2"},
}
OLD = ((1, "CRC32", 0), (1, "CRC32", ENTRIES), (2, "MAC", ENTRIES), (2, "CRC32C", 0))
"""Metadata format, digest type and number of entries."""
CUSTOM = {
    "application": b"pulsar",
    "component": b"managed-ledger",
    "pulsar/managed-ledger": b"public/default/persistent/a-topic",
    "EnsemblePlacementPolicyConfig": json.dumps(PLACEMENT).encode(),
    "bytes": bytes(range(256)),
}


class NestedCluster(ApacheCluster):
    """A cluster whose ledgers root is not at the top, and whose ids all have long paths."""

    @property
    def metadata_uri(self) -> str:
        """Return the URI of the cluster."""
        return f"zk+{LayoutKind.LONG_HIERARCHICAL.value}://{self.zookeeper.connect_string}{ROOT}"

    async def _format(self, is_by_apache: bool) -> None:
        store = await ZooKeeperStore.connect(self.zookeeper.connect_string)
        try:
            await ensure_path(store, PARENT)
        finally:
            await store.close()
        await super()._format(is_by_apache)


@dataclass(frozen=True)
class Nested:
    """A cluster of three bookies, and ledgers on all of them."""

    world: ApacheWorld
    ledgers: list[Ledger]
    old: list[Ledger]
    """Ledgers with metadata of the formats in ``OLD``."""
    names_before: set[str]
    """The names below the ledgers root when only Apache's programs had used it."""


async def add_bookie(here: ApacheWorld, name: str) -> None:
    await here.cluster.add_bookies(1, extra={"bookieId": name})


@pytest.fixture(scope="module")
def nested(apache_jvm: ApacheJvm, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nested]:
    async def write(here: ApacheWorld, number: int, ledger_id: int | None) -> Ledger:
        digest, ensemble = ("CRC32C", "MAC")[number % 2], (3, 3, 2) if number < 2 else (3, 2, 2)
        own = ledger_id is not None
        handle = await here.java.create(
            *ensemble, digest=digest, password=PASSWORD, custom=CUSTOM, own_ids=own, ledger_id=ledger_id
        )
        which = {"ids": list(range(ENTRIES))} if own else {"count": ENTRIES}
        await handle.write(seed=digest, sizes=SIZES, **which)
        await handle.close()
        return Ledger(handle.ledger_id, digest, ENTRIES)

    async def write_old(here: ApacheWorld, number: int, digest: str, entries: int) -> Ledger:
        handle = await begin(here.java, (3, 2, 2), digest, f"format-{number}")
        await extend(handle, digest, entries)
        await handle.close()
        return Ledger(handle.ledger_id, digest, entries)

    async def fill(here: ApacheWorld) -> Nested:
        await asyncio.gather(*(add_bookie(here, name) for name in BOOKIES[:3]))
        ledgers = [await write(here, number, ledger_id) for number, ledger_id in enumerate(IDS)]
        for number in {number for number, _, _ in OLD}:
            await here.java.new_client(f"format-{number}", settings={"ledgerMetadataVersion": str(number)})
        old = [await write_old(here, *kind) for kind in OLD]
        store = await ZooKeeperStore.connect(here.cluster.zookeeper.connect_string)
        try:
            return Nested(here, ledgers, old, await names_below(store, ROOT))
        finally:
            await store.close()

    directory = tmp_path_factory.mktemp("nested")
    with world(directory, apache_jvm, java_classes, NestedCluster, bookies=0, heap_mib=160) as here:
        yield asyncio.run(fill(here))


@pytest.fixture
async def client(nested: Nested) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(nested.world.uri) as ours:
        yield ours


async def nodes(client: ConnectedBookKeeper, nested: Nested) -> Mapping[int, Node]:
    """Return the metadata of each ledger, as bytes."""
    found = {}
    for ledger in [*nested.ledgers, *nested.old]:
        path = client.ports.ledgers.path(LedgerId(ledger.ledger_id))
        await client.store.sync(path)
        found[ledger.ledger_id] = await client.store.get(path)
    return found


async def test_a_loss_is_repaired_and_nothing_else_is_changed(
    nested: Nested, client: ConnectedBookKeeper, tmp_path: Path
) -> None:
    here, java = nested.world, nested.world.java
    assert client.cluster.kind is LayoutKind.LONG_HIERARCHICAL
    assert [ledger.ledger_id for ledger in nested.ledgers[1:]] == list(IDS[1:])
    formats = [(await java.call("metadata", ledger=ledger.ledger_id))["format"] for ledger in nested.old]
    assert formats == [number for number, _, _ in OLD]
    assert strange_in(nested.names_before, BOOKIES) == []
    before = await nodes(client, nested)
    described = [await java.call("metadata", ledger=ledger.ledger_id) for ledger in nested.ledgers]

    lost = BookieId(LOST.decode())
    await here.kill9(here.bookie(lost))
    await add_bookie(here, SPARE.decode())  # the only candidate for the copies
    await gone(client, lost)
    await audit_process(here.uri, tmp_path)
    everything = [*nested.ledgers, *nested.old]
    assert await here.tasks() == {ledger.ledger_id: [lost] for ledger in everything}
    await check_all_nodes_known(client.store, ROOT, BOOKIES)
    assert await nodes(client, nested) == before

    replicator = await Replicator.start(here.uri, tmp_path / "replicator", "--once")
    assert await replicator.wait() == 0
    assert sorted(replicator.repaired) == sorted(ledger.ledger_id for ledger in everything)
    after = await nodes(client, nested)
    for ledger in everything:
        node, now = before[ledger.ledger_id], after[ledger.ledger_id]
        assert node.data.count(LOST) == 1
        assert now.data == node.data.replace(LOST, SPARE)
        assert now.stat.version == node.stat.version + 1
    for ledger, theirs in zip(nested.ledgers, described, strict=True):
        moved = {
            first: [SPARE.decode() if name == lost else name for name in names]
            for first, names in theirs["ensembles"].items()
        }
        read = await java.call("metadata", ledger=ledger.ledger_id)
        assert read | {"version": ""} == theirs | {"ensembles": moved, "version": ""}
        assert read["custom"] == {name: value.hex() for name, value in CUSTOM.items()}

    await check_healthy(java, everything)
    for ledger in everything:
        reader = await client.open_ledger(LedgerId(ledger.ledger_id))
        assert [entry.payload async for entry in reader.read_all()] == ledger.contents
    assert await here.tasks() == {}
    names = await names_below(client.store, ROOT)
    assert strange_in(names, BOOKIES) == []
    ledger_nodes = {name for name in names if name[0].isdigit()}
    assert ledger_nodes == {name for name in nested.names_before if name[0].isdigit()}
    assert set((await client.store.children("/")).names) == {"zookeeper", "pulsar", "bkheal"}
    assert (await client.store.children("/pulsar")).names == ("bk",)
    assert (await client.store.children(PARENT)).names == ("ledgers",)


async def test_the_command_line_accepts_the_longest_ids(nested: Nested, tmp_path: Path) -> None:
    ledger, copy = nested.ledgers[-1], tmp_path / "copy"
    ended = await bkheal("ledger", "read", str(ledger.ledger_id), "--to", str(copy), uri=nested.world.uri)
    assert ended.exit_code == 0, ended.errors
    assert copy.read_bytes() == b"".join(ledger.contents)
