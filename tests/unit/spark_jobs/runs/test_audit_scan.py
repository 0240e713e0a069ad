"""Reading a partition of ledgers from the in-memory store: deletions, refused nodes, and a store that hangs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bookie.metadata.access import ZooKeeperAccess
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind, ledger_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.ledgers.serde import encode
from bookie.metadata.ledgers.tree import LedgerTree
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.memory import Fault, MemoryCell, MemoryStore
from bookie.metadata.uri import parse_uri
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.clock import SystemClock
from spark_jobs.datasource import scan as scan_module
from spark_jobs.datasource.options import LedgerOptions
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.datasource.scan import listed_together, reread, scan
from spark_jobs.pacing.budget import TaskBudget
from spark_jobs.pacing.pace import Pace
from spark_jobs.pacing.paced_store import PacedStore
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import ROOT, formatted
from tests.worlds.virtual_time import in_virtual_time


async def cluster_of(ids: Sequence[int], kind: LayoutKind = LayoutKind.HIERARCHICAL) -> tuple[MemoryStore, Cluster]:
    store = MemoryStore(MemoryCell())
    cluster = await formatted(store, kind=kind)
    metadata = LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (BookieId("a"),)),))
    await LedgerStore(store, cluster, random.Random(1)).create_many([(LedgerId(number), metadata) for number in ids])
    return store, cluster


def unpaced(store: MemoryStore) -> PacedStore:
    return PacedStore(store, Pace(SystemClock()), ROOT)


def options(**more: Any) -> LedgerOptions:
    return LedgerOptions(parse_uri("zk://unused/ledgers"), ZooKeeperAccess(), 1.0, is_summarized=True, **more)


async def read(store: MemoryStore, cluster: Cluster, **more: Any) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
    """Return all rows and the summary."""
    ledgers = LedgerStore(store, cluster, random.Random(1))
    parents = [LeafParent(path, count) for path, count in await ledgers.leaf_parents()]
    rows: list[Mapping[str, Any]] = []
    async for batch in scan(unpaced(store), cluster, parents, options(**more)):
        assert 0 < len(batch) <= scan_module.ROWS_MAX
        rows += batch.to_pylist()
    return rows[:-1], rows[-1]["summary"]


async def test_every_ledger_is_read_once_and_counted() -> None:
    ids = [*range(12_000), 2147483646, 2147483647, (1 << 63) - 2]
    rows, summary = await read(*await cluster_of(ids))
    assert sorted(row["ledger_id"] for row in rows) == ids
    assert (summary["ledgers"], summary["returned"], summary["open"]) == (12_003, 12_003, 12_003)
    assert {parent["path"]: (parent["planned"], parent["listed"]) for parent in summary["parents"]} == {
        "/ledgers/00/0000": (10_000, 10_000),
        "/ledgers/00/0001": (2_000, 2_000),
        "/ledgers/21/4748": (1, 1),
        "/ledgers/000/0000/0021/4748": (1, 1),
        "/ledgers/922/3372/0368/5477": (1, 1),
    }


async def test_only_the_given_range_is_read() -> None:
    rows, summary = await read(*await cluster_of(range(20)), first_ledger=5, last_ledger=7)
    assert [row["ledger_id"] for row in rows] == [5, 6, 7]
    assert (summary["ledgers"], summary["skipped"]) == (3, 17)


async def test_ledgers_deleted_between_listing_and_reading_are_counted() -> None:
    store, cluster = await cluster_of(range(10))

    async def delete_after_listing(operation: str, path: str) -> Fault | None:
        if operation == "get_many" and path.endswith("/L0000"):
            for number in (3, 4):
                store.cell.delete(ledger_path(cluster.kind, ROOT, number), -1)
        return None

    store.fault_hook = delete_after_listing
    rows, summary = await read(store, cluster)
    assert [row["ledger_id"] for row in rows] == [0, 1, 2, 5, 6, 7, 8, 9]
    assert (summary["ledgers"], summary["vanished"]) == (8, 2)


async def test_a_denied_ledger_is_a_row_with_an_error() -> None:
    store, cluster = await cluster_of(range(3))
    store.cell.deny(ledger_path(cluster.kind, ROOT, 1))
    rows, summary = await read(store, cluster, live_bookies=frozenset({"a"}))
    assert [(row["ledger_id"], row["error"][:13]) for row in rows] == [(1, "access denied")]
    assert (summary["ledgers"], summary["unreadable"]) == (2, 1)


async def test_a_few_denied_ledgers_cost_few_requests() -> None:
    """If every ledger beside them were read alone, such an audit would take as long as its requests, one by one."""
    store, cluster = await cluster_of(range(2_000))
    for number in (7, 1_500):
        store.cell.deny(ledger_path(cluster.kind, ROOT, number))
    requests: list[str] = []

    async def note(operation: str, path: str) -> Fault | None:
        requests.append(operation)
        return None

    store.fault_hook = note
    rows, summary = await read(store, cluster)
    assert [row["ledger_id"] for row in rows if row["error"]] == [7, 1_500]
    assert (summary["ledgers"], summary["unreadable"]) == (1_998, 2)
    assert len(requests) < 100


@pytest.mark.parametrize("failing", ["get_many", "children_many", "sync"])
async def test_a_store_that_stops_answering_ends_the_scan(failing: str) -> None:
    store, cluster = await cluster_of(range(5_000))
    parents = [LeafParent("/ledgers/00/0000", 5_000)]
    left = {"get_many": 2}

    async def fail(operation: str, path: str) -> Fault | None:
        if operation != failing:
            return None
        left[operation] = left.get(operation, 1) - 1
        return Fault.FAIL_BEFORE if left[operation] <= 0 else None

    store.fault_hook = fail
    with pytest.raises(StoreUnavailableError):
        async for _ in scan(unpaced(store), cluster, parents, options()):
            pass


async def test_single_ledgers_are_read_again() -> None:
    ids = [5, 20_000, 7, 1 << 40, *range(30_000, 35_000), 2147483646, 2147483647]
    store, cluster = await cluster_of(ids)
    store.cell.delete(ledger_path(cluster.kind, ROOT, 7), -1)
    store.cell.deny(ledger_path(cluster.kind, ROOT, 20_000))
    rows: list[Mapping[str, Any]] = []
    given = [[LedgerId(number) for number in ids[:3]], [LedgerId(number) for number in ids[3:]], []]
    async for batch in reread(unpaced(store), cluster, given, options()):
        rows += batch.to_pylist()
    assert sorted(row["ledger_id"] for row in rows[:-1]) == sorted(set(ids) - {7})
    assert [row["ledger_id"] for row in rows[:-1] if row["error"]] == [20_000]
    summary = rows[-1]["summary"]
    assert (summary["ledgers"], summary["unreadable"], summary["vanished"]) == (len(ids) - 2, 1, 1)
    assert summary["parents"] == []


async def test_a_reader_that_stops_early_leaves_nothing_running() -> None:
    store, cluster = await cluster_of(range(15_000))
    batches = scan(
        unpaced(store), cluster, [LeafParent("/ledgers/00/0000", 1), LeafParent("/ledgers/00/0001", 1)], options()
    )
    assert len(await anext(batches)) == scan_module.ROWS_MAX
    await batches.aclose()


async def test_a_parent_that_vanished_lists_nothing() -> None:
    store, cluster = await cluster_of([1])
    batches = [batch async for batch in scan(unpaced(store), cluster, [LeafParent("/ledgers/00/0009", 4)], options())]
    (summary,) = batches[0].to_pylist()
    assert summary["summary"]["parents"] == [{"path": "/ledgers/00/0009", "planned": 4, "listed": 0}]


async def test_a_batch_of_large_metadata_has_fewer_rows() -> None:
    """The memory of a task depends on the number of fragments, not only on the number of ledgers."""
    members = (BookieId("a"), BookieId("b"))
    large = encode(LedgerMetadata(2, 2, 2, tuple(Fragment(EntryId(first), members) for first in range(1_000))))
    store, cluster = await cluster_of(range(5_000))
    for number in range(1_500):
        store.cell.set(ledger_path(cluster.kind, ROOT, number), large, -1)
    assert 1_500 * len(large) > scan_module.BATCH_BYTES
    parents = [LeafParent("/ledgers/00/0000", 5_000)]
    rows = [len(batch) async for batch in scan(unpaced(store), cluster, parents, options())]
    assert rows == [2_000, 3_000, 1]


async def test_nodes_with_few_ledgers_are_listed_together() -> None:
    ids = [leaf * 10_000 + number for leaf in range(150) for number in (1, 2)]
    store, cluster = await cluster_of(ids)
    parents = [LeafParent(path, count) for path, count in await LedgerTree(store, cluster).leaf_parents()]
    requests: list[str] = []

    async def note(operation: str, path: str) -> Fault | None:
        requests.append(operation)
        return None

    store.fault_hook = note
    batches = [batch.to_pylist() async for batch in scan(unpaced(store), cluster, parents, options())]
    *rows, last = [row for batch in batches for row in batch]
    assert [row["ledger_id"] for row in rows] == ids
    assert [each["listed"] for each in last["summary"]["parents"]] == [2] * 150
    assert requests.count("children_many") == 2, "a task would wait for a round trip for each node"


@pytest.mark.parametrize(
    ("planned", "groups"),
    [
        ([], []),
        ([10_000, 10_000, 1], [1, 1, 1]),
        ([4_000, 6_000, 1, 0, 9_999, 1], [2, 3, 1]),
        ([20_000, 0, 5], [1, 2]),
        ([1] * 250, [100, 100, 50]),
    ],
)
def test_few_ledgers_are_listed_at_a_time(planned: Sequence[int], groups: Sequence[int]) -> None:
    parents = [LeafParent(f"/{number}", size) for number, size in enumerate(planned)]
    found = list(listed_together(parents))
    assert [parent for group in found for parent in group] == parents
    assert [len(group) for group in found] == groups


@in_virtual_time
async def test_a_task_reads_no_more_nodes_per_second_than_its_share() -> None:
    store, cluster = await cluster_of(range(3_000))
    read_at: list[tuple[float, int]] = []
    clock = VirtualClock()

    class Timed(MemoryStore):
        async def get_many_data(self, paths: Sequence[str]) -> list[bytes | None]:
            read_at.append((clock.monotonic_s(), len(paths)))
            return await super().get_many_data(paths)

    timed, parents = Timed(store.cell), [LeafParent("/ledgers/00/0000", 3_000)]
    paced = PacedStore(timed, Pace(clock, TaskBudget(1_000)), ROOT)
    rows = [len(batch) async for batch in scan(paced, cluster, parents, options())]

    assert sum(rows) == 3_001
    assert max(size for _, size in read_at) == 100
    for number, (at_s, _) in enumerate(read_at):
        assert sum(size for _, size in read_at[:number]) <= 1_000 * (at_s - read_at[0][0]) + 1e-6
    assert read_at[-1][0] - read_at[0][0] == pytest.approx(2.9)
