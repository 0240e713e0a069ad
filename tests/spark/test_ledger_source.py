"""The data sources on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.layout import bookie_path, cookie_path, ledger_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import AccessDeniedError, MetadataStore, StoreUnavailableError
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.model.ownership import OWNER_COLUMNS
from bookie.runtime.clock import SystemClock
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.runs.reading.completeness import NO_TOTALS
from spark_jobs.runs.reading.ledger_scan import scan_ledgers
from spark_jobs.settings import AuditSettings

pytestmark = [pytest.mark.spark, pytest.mark.integration]

T = TypeVar("T")
LONG_ID = 1 << 40
HUGE_ID = (1 << 63) - 2  # the highest id permitted for a new ledger


def ensemble(*members: str) -> tuple[BookieId, ...]:
    return tuple(map(BookieId, members))


OPEN = LedgerMetadata(2, 2, 1, (Fragment(EntryId(0), ensemble("a:1", "b:1")),), ctime_ms=1_700_000_000_000)
CLOSED = LedgerMetadata(
    3,
    2,
    2,
    (Fragment(EntryId(0), ensemble("a:1", "b:1", "c:1")), Fragment(EntryId(10), ensemble("a:1", "d:1", "c:1"))),
    LedgerState.CLOSED,
    EntryId(19),
    2000,
)
EMPTY = LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), ensemble("a:1")),), LedgerState.CLOSED, EntryId(-1), 0)
IN_RECOVERY = LedgerMetadata(
    1, 1, 1, (Fragment(EntryId(0), ensemble("b:1")),), LedgerState.IN_RECOVERY, format_version=2
)
OLD = LedgerMetadata(
    1, 1, 1, (Fragment(EntryId(0), ensemble("c:1")),), LedgerState.CLOSED, EntryId(4), 50, None, None, format_version=1
)


class Place:
    """A cluster in the shared ZooKeeper."""

    def __init__(self, hosts: str, root: str) -> None:
        self.root = root
        self.uri = f"zk://{hosts}{root}"
        self._hosts = hosts

    def close_to_others(self, path: str) -> None:
        """Permit access to the node only to an identity that this process does not use."""
        client = KazooClient(self._hosts)
        client.start()
        try:
            client.set_acls(path, [make_digest_acl("owner", "unknown", all=True)])
        finally:
            client.stop()
            client.close()

    def do(self, action: Callable[[MetadataStore, Cluster], Awaitable[T]]) -> T:
        async def connected() -> T:
            store = await ZooKeeperStore.connect(self._hosts)
            try:
                return await action(store, await open_cluster(store, self.root))
            finally:
                await store.close()

        return asyncio.run(connected())

    def table(self, spark: SparkSession, name: str = "bk_ledgers", **options: object) -> DataFrame:
        reader = spark.read.format(name).option("metadata_uri", self.uri)
        for option, value in options.items():
            reader = reader.option(option, str(value))
        return reader.load()


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str) -> Place:
    async def make() -> None:
        store = await ZooKeeperStore.connect(zookeeper.connect_string)
        try:
            await format_cluster(store, fresh_root, rng=random.Random(1))
        finally:
            await store.close()

    asyncio.run(make())
    return Place(zookeeper.connect_string, fresh_root)


@pytest.fixture
def filled(place: Place) -> Place:
    """Ledgers of every shape and format, short and long ids, and two unreadable ones."""

    async def fill(store: MetadataStore, cluster: Cluster) -> None:
        ledgers = LedgerStore(store, cluster, random.Random(1))
        shapes = {
            0: OPEN,
            7: CLOSED,
            20_000: EMPTY,
            20_001: IN_RECOVERY,
            LONG_ID: OLD,
            HUGE_ID: CLOSED,
            8: OPEN,
            9: OPEN,
        }
        await ledgers.create_many([(LedgerId(ledger_id), shape) for ledger_id, shape in shapes.items()])
        for ledger_id, data in ((8, b""), (9, b"BookieMetadataFormatVersion\t3\n\x05\x08\x02")):
            await store.set(ledger_path(cluster.kind, cluster.root, ledger_id), data, 0)

    place.do(fill)
    return place


def test_every_ledger_has_a_row(spark: SparkSession, filled: Place) -> None:
    rows = {row["ledger_id"]: row for row in filled.table(spark).collect()}
    assert sorted(rows) == [0, 7, 8, 9, 20_000, 20_001, LONG_ID, HUGE_ID]
    assert rows[7].asDict(recursive=True) == {
        "ledger_id": 7,
        "state": "CLOSED",
        "ensemble_size": 3,
        "write_quorum": 2,
        "ack_quorum": 2,
        "last_entry_id": 19,
        "length": 2000,
        "digest_type": "CRC32C",
        "ctime_ms": None,
        "format_version": 3,
        "fragments": [
            {"first_entry_id": 0, "last_entry_id": 9, "members": ["a:1", "b:1", "c:1"]},
            {"first_entry_id": 10, "last_entry_id": 19, "members": ["a:1", "d:1", "c:1"]},
        ],
        "error": None,
        **dict.fromkeys((*OWNER_COLUMNS, "bookie_groups")),
    }
    assert rows[HUGE_ID].asDict() == rows[7].asDict() | {"ledger_id": HUGE_ID}
    assert (rows[0]["state"], rows[0]["last_entry_id"], rows[0]["ctime_ms"]) == ("OPEN", None, 1_700_000_000_000)
    assert rows[0]["fragments"] == [Row(first_entry_id=0, last_entry_id=None, members=["a:1", "b:1"])]
    assert (rows[20_000]["last_entry_id"], rows[20_000]["fragments"][0]["last_entry_id"]) == (-1, -1)
    assert (rows[20_001]["state"], rows[20_001]["format_version"]) == ("IN_RECOVERY", 2)
    assert (rows[LONG_ID]["format_version"], rows[LONG_ID]["digest_type"], rows[LONG_ID]["ack_quorum"]) == (1, None, 1)
    for unreadable in (rows[8], rows[9]):
        assert unreadable["error"]
        assert unreadable["fragments"] is None


def test_a_range_of_ledgers_can_be_selected(spark: SparkSession, filled: Place) -> None:
    table = filled.table(spark, first_ledger=8, last_ledger=20_000)
    assert sorted(row["ledger_id"] for row in table.collect()) == [8, 9, 20_000]
    assert table.where("ledger_id = 9").count() == 1
    assert table.count() == 3, "a filter of an earlier query must not apply"


def test_each_load_reads_again(spark: SparkSession, filled: Place) -> None:
    async def delete(store: MetadataStore, cluster: Cluster) -> None:
        await LedgerStore(store, cluster, random.Random(1)).delete(LedgerId(7))

    assert filled.table(spark).count() == 8
    filled.do(delete)
    assert filled.table(spark).count() == 7


def test_an_empty_cluster_has_no_rows(spark: SparkSession, place: Place) -> None:
    assert place.table(spark).count() == 0
    assert place.table(spark, "bk_tasks").count() == 0


def test_the_number_of_partitions_does_not_change_the_rows(spark: SparkSession, filled: Place) -> None:
    one, many = (filled.table(spark, num_partitions=count).orderBy("ledger_id").collect() for count in (1, 5))
    assert one == many
    assert filled.table(spark, num_partitions=5).rdd.getNumPartitions() == 4


def test_a_scan_counts_what_it_read_and_keeps_the_suspects(spark: SparkSession, filled: Place, tmp_path: Path) -> None:
    leaves = {"00/0000": 4, "00/0002": 2, "000/0001/0995/1162": 1, "922/3372/0368/5477": 1}
    plan = [LeafParent(f"{filled.root}/{leaf}", count) for leaf, count in leaves.items()]
    plan.append(LeafParent(f"{filled.root}/00/0077", 3))  # removed after the plan was made
    scan = scan_ledgers(spark, AuditSettings(filled.uri, tmp_path), plan, frozenset({"a:1", "b:1", "c:1"}))
    try:
        assert sorted(row["ledger_id"] for row in scan.suspects.collect()) == [7, 8, 9, HUGE_ID]
        totals = scan.totals
        assert (totals.ledgers, totals.fragments, totals.unreadable, totals.returned) == (6, 8, 2, 4)
        assert (totals.open, totals.in_recovery, totals.closed) == (1, 1, 4)
        assert totals.listed == {parent.path: (0 if parent.planned == 3 else parent.planned,) for parent in plan}
        assert totals.ledgers_by_bookie == {"a:1": 4, "b:1": 4, "c:1": 3, "d:1": 2}
        assert totals.fragments_by_bookie == {"a:1": 6, "b:1": 4, "c:1": 5, "d:1": 2}
    finally:
        scan.release()


def test_data_sent_to_tasks_is_released_with_the_rows_of_the_scan(
    spark: SparkSession, filled: Place, tmp_path: Path
) -> None:
    plan = [LeafParent(f"{filled.root}/00/0000", 4)]
    scan = scan_ledgers(spark, AuditSettings(filled.uri, tmp_path), plan, frozenset())
    files = [Path(each._path) for each in scan.sent]
    assert [file.is_file() for file in files] == [True]
    scan.release()
    assert [file.exists() for file in files] == [False]


def test_a_scan_of_no_nodes_finds_nothing(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    scan = scan_ledgers(spark, AuditSettings(place.uri, tmp_path, metadata_rate=100.0), [], frozenset())
    try:
        assert scan.suspects.collect() == []
        assert scan.totals == NO_TOTALS
    finally:
        scan.release()


def test_an_unreachable_store_is_reported_as_unreachable(spark: SparkSession, tmp_path: Path) -> None:
    # No process listens on the discard port.
    settings = AuditSettings("zk://127.0.0.1:9/ledgers", tmp_path, connect_timeout_s=0.2)
    with pytest.raises(StoreUnavailableError, match="nothing was marked"):
        scan_ledgers(spark, settings, [LeafParent("/ledgers/00/0000", 1)], frozenset())


def test_a_denied_permission_is_not_reported_as_an_unreachable_store(
    spark: SparkSession, filled: Place, tmp_path: Path
) -> None:
    leaf = f"{filled.root}/00/0000"
    filled.close_to_others(leaf)
    with pytest.raises(AccessDeniedError, match="nothing was marked") as refused:
        scan_ledgers(spark, AuditSettings(filled.uri, tmp_path), [LeafParent(leaf, 1)], frozenset())
    assert leaf in str(refused.value)
    assert "ACL" in str(refused.value)


def test_a_wrong_option_fails_before_anything_is_read(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="metadata_uri is missing"):
        spark.read.format("bk_ledgers").load()


def test_bookies_can_be_read_as_a_table(spark: SparkSession, place: Place) -> None:
    async def look(store: MetadataStore, cluster: Cluster) -> list[Row]:
        for bookie, is_read_only in (("w:1", False), ("r:1", True)):
            await store.create(
                bookie_path(cluster.root, BookieId(bookie), is_read_only=is_read_only), is_ephemeral=True
            )
        await store.create(f"{cluster.root}/cookies")
        for bookie in ("w:1", "gone:1"):
            await store.create(cookie_path(cluster.root, BookieId(bookie)))
        return await asyncio.to_thread(place.table(spark, "bk_bookies").collect)

    assert place.do(look) == [
        ("gone:1", "lost", False, True),
        ("r:1", "read_only", True, False),
        ("w:1", "writable", True, True),
    ]


def test_tasks_can_be_read_as_a_table(spark: SparkSession, place: Place) -> None:
    async def mark(store: MetadataStore, cluster: Cluster) -> list[Row]:
        tasks = UnderReplication(store, cluster, SystemClock())
        await tasks.initialize()
        await tasks.marking.mark(LedgerId(5), [BookieId("x:1"), BookieId("y:1")])
        await tasks.marking.mark(LedgerId(HUGE_ID), [])
        await tasks.locks.lock(LedgerId(5), "host")
        return await asyncio.to_thread(place.table(spark, "bk_tasks").collect)

    first, second = place.do(mark)
    assert (first["ledger_id"], first["missing"], first["is_locked"]) == (5, ["x:1", "y:1"], True)
    assert first["ctime_ms"] > 1_600_000_000_000
    assert (second["ledger_id"], second["missing"], second["is_locked"]) == (HUGE_ID, [], False)
