"""Ledgers on the store: creating, reading, changing, deleting, listing, and new ids, on the twin and on ZooKeeper."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from bookie.metadata.cluster import (
    Cluster,
    ClusterExistsError,
    NotAClusterError,
    encode_layout,
    format_cluster,
    open_cluster,
)
from bookie.metadata.layout import LayoutKind
from bookie.metadata.ledgers.ledgers import (
    LedgerExistsError,
    LedgerStore,
    MetadataConflictError,
    NoSuchLedgerError,
    ReadOnlyLayoutError,
    Unreadable,
    Versioned,
)
from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode, encode
from bookie.metadata.migration import MigratedError, migration_path
from bookie.metadata.nodes import create_with_parents, put
from bookie.metadata.port import ANY_VERSION, MetadataStore
from bookie.metadata.uri import MetadataUri
from bookie.model.ids import LEDGER_ID_MAX, BookieId, EntryId, InvalidIdError, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata

BOOKIES = tuple(BookieId(f"bk{i}:3181") for i in range(3))
OPEN = LedgerMetadata(3, 2, 2, (Fragment(EntryId(0), BOOKIES),))
CLOSED = OPEN.closed(EntryId(9), 500)
IDS = [LedgerId(i) for i in (0, 1, 9_999, 10_000, 12_345, 2147483646, 2147483647, 4294967296, LEDGER_ID_MAX - 1)]


@pytest.fixture
def ledgers(store: MetadataStore, cluster: Cluster) -> LedgerStore:
    return LedgerStore(store, cluster, random.Random(2))


async def test_formatted_cluster_has_apaches_nodes(store: MetadataStore, cluster: Cluster) -> None:
    root = cluster.root
    assert set((await store.children(root)).names) == {"LAYOUT", "INSTANCEID", "available"}
    assert (await store.children(f"{root}/available")).names == ("readonly",)
    layout = (await store.get(f"{root}/LAYOUT")).data
    assert layout == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    assert len(layout) == 63
    assert (await store.get(f"{root}/INSTANCEID")).data.decode() == cluster.instance_id
    assert len(cluster.instance_id) == 36
    assert cluster.kind is LayoutKind.HIERARCHICAL


async def test_a_cluster_is_not_formatted_over_existing_nodes(
    store: MetadataStore, cluster: Cluster, base: str
) -> None:
    with pytest.raises(ClusterExistsError, match=cluster.root):
        await format_cluster(store, cluster.root, rng=random.Random(3))
    with pytest.raises(ClusterExistsError):
        await format_cluster(store, base, rng=random.Random(3))
    assert await open_cluster(store, cluster.root) == cluster


async def test_concurrent_formats_create_one_cluster(store: MetadataStore, base: str) -> None:
    outcomes = await asyncio.gather(
        *(format_cluster(store, f"{base}/deep/ledgers", rng=random.Random(i)) for i in range(4)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [ClusterExistsError] * 3


async def test_cluster_is_opened_by_uri(store: MetadataStore, cluster: Cluster) -> None:
    assert await open_cluster(store, f"zk+hierarchical://h:2181{cluster.root}") == cluster
    assert await open_cluster(store, MetadataUri("h:2181", cluster.root, None)) == cluster
    with pytest.raises(NotAClusterError, match=r"zk\+hierarchical://"):
        await open_cluster(store, MetadataUri("h:2181", cluster.root, "longhierarchical"))


async def test_what_is_not_a_cluster_is_refused(store: MetadataStore, cluster: Cluster, base: str) -> None:
    root = cluster.root
    with pytest.raises(NotAClusterError, match="it does not exist"):
        await open_cluster(store, f"{base}/elsewhere")
    other_factory = b"2\norg.apache.bookkeeper.meta.MSLedgerManagerFactory:1"
    for layout in (b"", b"3\nx:1", other_factory, b"2\nno version", b"\xff\n:"):
        await store.set(f"{root}/LAYOUT", layout, ANY_VERSION)
        with pytest.raises(NotAClusterError, match=root):
            await open_cluster(store, root)
    await store.set(f"{root}/LAYOUT", encode_layout(LayoutKind.HIERARCHICAL), ANY_VERSION)
    await store.delete(f"{root}/INSTANCEID")
    with pytest.raises(NotAClusterError, match="INSTANCEID"):
        await open_cluster(store, root)
    await store.delete(f"{root}/LAYOUT")
    with pytest.raises(NotAClusterError, match="no LAYOUT"):
        await open_cluster(store, root)


async def test_a_cluster_that_is_migrating_its_metadata_is_not_opened(store: MetadataStore, cluster: Cluster) -> None:
    """R88; an unknown phase of a later release does not count as the absence of a migration."""
    path = migration_path(cluster.root)
    for record in (b'{"phase":"NOT_STARTED"}', b'{"phase":"FAILED","targetUrl":"oxia://o:6648"}'):
        await put(store, path, record)
        assert await open_cluster(store, cluster.root) == cluster
    for phase in ("PREPARATION", "COPYING", "COMPLETED"):
        await put(store, path, b'{"phase":"%s","targetUrl":"oxia://o:6648/broker"}' % phase.encode())
        with pytest.raises(MigratedError, match="oxia://o:6648/broker"):
            await open_cluster(store, cluster.root)
    for damaged in (b"", b"{", b'{"phase":"VERIFYING"}', b"[]"):
        await put(store, path, damaged)
        with pytest.raises(MigratedError, match="cannot be read"):
            await open_cluster(store, cluster.root)


async def test_a_cluster_of_pulsars_driver_is_opened_by_its_own_uri(store: MetadataStore, base: str) -> None:
    await put(store, f"{base}/ledgers/INSTANCEID", b"8d1e7bbf-9a2c-4a7c-8d1e-7bbf9a2c4a7c")
    opened = await open_cluster(store, f"metadata-store:zk:h:2181{base}")
    assert opened.root == f"{base}/ledgers"
    assert opened.kind is LayoutKind.HIERARCHICAL
    with pytest.raises(NotAClusterError, match="chroot without /ledgers"):
        await open_cluster(store, f"metadata-store:zk:h:2181{base}/ledgers")


@pytest.mark.parametrize(
    ("text", "kind"), [(b"1\nhierarchical:1", LayoutKind.HIERARCHICAL), (b"1\nflat:1\n", LayoutKind.FLAT)]
)
async def test_the_first_format_of_the_layout_can_be_read(
    store: MetadataStore, cluster: Cluster, text: bytes, kind: LayoutKind
) -> None:
    await store.set(f"{cluster.root}/LAYOUT", text, ANY_VERSION)
    assert (await open_cluster(store, cluster.root)).kind is kind


@pytest.mark.parametrize("ledger_id", IDS)
async def test_created_ledger_is_read_back(ledgers: LedgerStore, ledger_id: LedgerId) -> None:
    created = await ledgers.create(ledger_id, OPEN)
    assert created == await ledgers.read(ledger_id)
    assert created.version == 0
    assert created.metadata.ctoken is not None
    assert replace(created.metadata, ctoken=None) == OPEN
    with pytest.raises(LedgerExistsError, match=str(ledger_id)):
        await ledgers.create(ledger_id, OPEN)


async def test_the_greatest_id_can_be_read_but_not_created(store: MetadataStore, ledgers: LedgerStore) -> None:
    greatest = LedgerId(LEDGER_ID_MAX)
    with pytest.raises(InvalidIdError, match="Apache's bookies delete all other ledgers"):
        await ledgers.create(greatest, OPEN)
    with pytest.raises(InvalidIdError, match=str(LEDGER_ID_MAX)):
        await ledgers.create_many([(LedgerId(5), OPEN), (greatest, OPEN)])
    assert [ledger_id async for ledger_id in ledgers.ids()] == []
    await create_with_parents(store, ledgers.path(greatest), encode(OPEN), "/")
    assert [ledger_id async for ledger_id in ledgers.ids()] == [greatest]
    await ledgers.write(greatest, CLOSED, 0)
    assert (await ledgers.read(greatest)).metadata.is_closed


async def test_a_missing_ledger_has_its_own_error(ledgers: LedgerStore) -> None:
    with pytest.raises(NoSuchLedgerError, match="77"):
        await ledgers.read(LedgerId(77))
    with pytest.raises(NoSuchLedgerError):
        await ledgers.write(LedgerId(77), CLOSED, 0)
    assert await ledgers.read_many([LedgerId(77)]) == [None]
    await ledgers.delete(LedgerId(77))


async def test_write_is_conditional_on_the_version_and_clears_the_token(ledgers: LedgerStore) -> None:
    ledger_id = LedgerId(5)
    created = await ledgers.create(ledger_id, OPEN)
    written = await ledgers.write(ledger_id, created.metadata.closed(EntryId(9), 500), 0)
    assert written == Versioned(ledger_id, replace(CLOSED, ctoken=0), 1)
    assert await ledgers.read(ledger_id) == written
    with pytest.raises(MetadataConflictError, match="version 0"):
        await ledgers.write(ledger_id, OPEN, 0)
    assert await ledgers.read(ledger_id) == written


async def test_rewrite_keeps_format_creation_time_and_custom_metadata(
    store: MetadataStore, ledgers: LedgerStore
) -> None:
    old = replace(OPEN, format_version=2, ctime_ms=1544002383075, custom=(("application", b"pulsar\x00"),))
    await ledgers.create(LedgerId(5), old)
    read = await ledgers.read(LedgerId(5))
    await ledgers.write(LedgerId(5), read.metadata.closed(EntryId(9), 500), 0)
    assert decode((await store.get(ledgers.path(LedgerId(5)))).data) == old.closed(EntryId(9), 500)


async def test_concurrent_writes_of_one_version_have_one_winner(ledgers: LedgerStore) -> None:
    await ledgers.create(LedgerId(5), OPEN)
    outcomes = await asyncio.gather(
        *(ledgers.write(LedgerId(5), OPEN.closed(EntryId(i), i), 0) for i in range(20)), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["MetadataConflictError"] * 19 + ["Versioned"]


async def test_concurrent_creates_of_one_id_have_one_winner(ledgers: LedgerStore) -> None:
    outcomes = await asyncio.gather(*(ledgers.create(LedgerId(5), OPEN) for _ in range(20)), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LedgerExistsError"] * 19 + ["Versioned"]


async def test_delete_removes_empty_parents(store: MetadataStore, cluster: Cluster, ledgers: LedgerStore) -> None:
    ids = [LedgerId(12_345), LedgerId(12_346), LedgerId(1 << 40)]
    for ledger_id in ids:
        await ledgers.create(ledger_id, OPEN)
    await ledgers.delete(ids[0])
    await ledgers.delete(ids[2])
    assert set((await store.children(cluster.root)).names) == {"LAYOUT", "INSTANCEID", "available", "00"}
    assert [ledger_id async for ledger_id in ledgers.ids()] == [ids[1]]
    await ledgers.delete(ids[1])
    await ledgers.delete(ids[1])
    assert set((await store.children(cluster.root)).names) == {"LAYOUT", "INSTANCEID", "available"}


async def test_concurrent_creates_and_deletes_lose_nothing(ledgers: LedgerStore) -> None:
    async def come_and_go(ledger_id: int) -> None:
        for _ in range(5):
            await ledgers.create(LedgerId(ledger_id), OPEN)
            await ledgers.delete(LedgerId(ledger_id))
        await ledgers.create(LedgerId(ledger_id), OPEN)

    await asyncio.gather(*(come_and_go(i * 10_000) for i in range(6)))
    assert [ledger_id async for ledger_id in ledgers.ids()] == [i * 10_000 for i in range(6)]


async def test_ledgers_are_listed_in_tree_order_whatever_other_nodes_exist(
    store: MetadataStore, cluster: Cluster, ledgers: LedgerStore
) -> None:
    await ledgers.create_many([(ledger_id, OPEN) for ledger_id in IDS])
    await ledgers.new_id()
    for stray in ("underreplication", "cookies", "disableHealthCheck", "00/0000/garbage", "00/garbage", "999"):
        await store.create(f"{cluster.root}/{stray}")
    await store.create(f"{cluster.root}/01")
    assert [ledger_id async for ledger_id in ledgers.ids()] == IDS
    parents = await ledgers.leaf_parents()
    assert [parent.removeprefix(cluster.root) for parent, _ in parents] == [
        "/00/0000",
        "/00/0001",
        "/21/4748",
        "/000/0000/0021/4748",
        "/000/0000/0042/9496",
        "/922/3372/0368/5477",
    ]
    assert [count for _, count in parents] == [4, 2, 1, 1, 1, 1]
    assert await ledgers.ids_under_many([f"{cluster.root}/00/0001", f"{cluster.root}/00/0777"]) == [
        [10_000, 12_345],
        [],
    ]
    found = await ledgers.ids_under_many([parent for parent, _ in parents])
    assert [ledger_id for ids in found for ledger_id in ids] == IDS


async def test_listing_a_deleted_cluster_is_an_error(store: MetadataStore, base: str) -> None:
    gone = LedgerStore(store, Cluster(f"{base}/gone", LayoutKind.HIERARCHICAL, "x"), random.Random(1))
    with pytest.raises(NotAClusterError):
        await gone.leaf_parents()


async def test_many_ledgers_are_created_and_read_with_unreadable_ones_among_them(
    store: MetadataStore, ledgers: LedgerStore
) -> None:
    ids = [LedgerId(i * 7) for i in range(1200)]
    await ledgers.create_many([(ledger_id, OPEN.closed(EntryId(ledger_id), 1)) for ledger_id in ids])
    await store.set(ledgers.path(ids[3]), b"rubbish", 0)
    await ledgers.delete(ids[4])
    found = await ledgers.read_many(ids)
    assert isinstance(found[3], Unreadable)
    assert found[3].ledger_id == ids[3]
    assert found[4] is None
    read = [f for f in found if isinstance(f, Versioned)]
    assert [(f.ledger_id, f.metadata.last_entry_id) for f in read] == [(i, EntryId(i)) for i in [*ids[:3], *ids[5:]]]
    metadata = await ledgers.read_many_metadata(ids)
    assert [f.metadata if isinstance(f, Versioned) else f for f in found] == metadata
    with pytest.raises(UnreadableMetadataError):
        await ledgers.read(ids[3])


async def test_ledgers_without_read_permission_are_unreadable_in_a_scan_of_others(
    backend: Any, ledgers: LedgerStore
) -> None:
    ids, denied = [LedgerId(number) for number in range(20)], (3, 4, 19)
    await ledgers.create_many([(ledger_id, OPEN.closed(EntryId(ledger_id), 1)) for ledger_id in ids])
    before = await ledgers.read_many_metadata(ids)
    for number in denied:
        backend.deny(ledgers.path(ids[number]))
    found = await ledgers.read_many_metadata(ids)
    assert [item.ledger_id for item in found if isinstance(item, Unreadable)] == list(denied)
    assert [item for number, item in enumerate(found) if number not in denied] == [
        item for number, item in enumerate(before) if number not in denied
    ]
    assert await ledgers.read_many_metadata([]) == []


async def test_creating_many_with_a_taken_id_fails(ledgers: LedgerStore) -> None:
    await ledgers.create(LedgerId(3), OPEN)
    with pytest.raises(LedgerExistsError, match="L0003"):
        await ledgers.create_many([(LedgerId(i), OPEN) for i in range(5)])


async def test_long_layout_keeps_every_ledger_in_the_long_tree(store: MetadataStore, base: str) -> None:
    await format_cluster(store, f"{base}/long", LayoutKind.LONG_HIERARCHICAL, rng=random.Random(1))
    ledgers = LedgerStore(store, await open_cluster(store, f"{base}/long"), random.Random(2))
    await ledgers.create_many([(ledger_id, OPEN) for ledger_id in IDS])
    assert [ledger_id async for ledger_id in ledgers.ids()] == IDS
    assert await store.stat(f"{base}/long/000/0000/0000/0001/L2345") is not None


async def test_the_flat_layout_can_be_read_and_gets_no_new_ledgers(store: MetadataStore, base: str) -> None:
    await format_cluster(store, f"{base}/flat", LayoutKind.FLAT, rng=random.Random(1))
    ledgers = LedgerStore(store, await open_cluster(store, f"{base}/flat"), random.Random(2))
    for attempt in (ledgers.new_id(), ledgers.create(LedgerId(1), OPEN), ledgers.create_many([(LedgerId(1), OPEN)])):
        with pytest.raises(ReadOnlyLayoutError):
            await attempt
    await store.create(f"{base}/flat/L0000000012", encode(OPEN))
    await store.create(f"{base}/flat/ID-0000000013")
    assert await ledgers.leaf_parents() == [(f"{base}/flat", 1)]
    assert [ledger_id async for ledger_id in ledgers.ids()] == [12]
    assert (await ledgers.write(LedgerId(12), CLOSED, 0)).version == 1
    await ledgers.delete(LedgerId(12))
    assert await store.stat(f"{base}/flat") is not None


async def test_new_ids_are_consecutive_and_never_assigned_twice(
    store: MetadataStore, backend: Any, cluster: Cluster, ledgers: LedgerStore
) -> None:
    other = LedgerStore(await backend.open(), cluster, random.Random(3))
    given = await asyncio.gather(*(which.new_id() for which in (ledgers, other) for _ in range(20)))
    assert sorted(given) == list(range(40))
    assert (await store.children(f"{cluster.root}/idgen")).names == ()


async def test_long_ids_begin_beyond_the_range_of_short_ones(
    store: MetadataStore, cluster: Cluster, ledgers: LedgerStore
) -> None:
    await store.create(f"{cluster.root}/idgen-long")
    assert [await ledgers.new_id() for _ in range(2)] == [4294967296, 4294967297]
    for high in (2, 3, 4):
        await store.create(f"{cluster.root}/idgen-long/HOB-{high:010d}")
    assert await ledgers.new_id() == 4 << 32
    assert set((await store.children(f"{cluster.root}/idgen-long")).names) == {f"HOB-{i:010d}" for i in (2, 3, 4)}
