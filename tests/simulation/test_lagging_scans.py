"""Scans of metadata on a lagging server see every change made before their call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pyarrow as pa
import pytest

from bookie.metadata.access import ZooKeeperAccess
from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.layout import ledger_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.ledgers.serde import decode
from bookie.metadata.uri import parse_uri
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.clock import SystemClock
from spark_jobs.datasource.incremental import ImageSource, LeafWork, incremental
from spark_jobs.datasource.options import LedgerOptions
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.datasource.scan import read_metadata, reread, scan
from spark_jobs.pacing.pace import Pace
from spark_jobs.pacing.paced_store import PacedStore
from tests.simulation.loop import Process, SimLoop
from tests.simulation.store import SimCell, SimStore, StoreFaults
from tests.simulation.trace import Trace

ROOT = "/ledgers"
OLD, NEW = LedgerId(7), LedgerId(8)
MOVED = LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (BookieId("new:3181"),)),))
OPTIONS = LedgerOptions(parse_uri("zk://unused/ledgers"), ZooKeeperAccess(), 1.0, live_bookies=frozenset({"old:3181"}))


async def members(batches: AsyncIterator[pa.RecordBatch]) -> dict[int, str]:
    rows = [row for batch in [each async for each in batches] for row in batch.to_pylist()]
    return {row["ledger_id"]: row["fragments"][0]["members"][0] for row in rows if row["fragments"]}


async def scanned(store: PacedStore, cluster: Cluster, parent: LeafParent) -> object:
    return await members(scan(store, cluster, [parent], OPTIONS))


async def read_again(store: PacedStore, cluster: Cluster, _: LeafParent) -> object:
    return await members(reread(store, cluster, [[OLD, NEW]], OPTIONS))


async def incrementally(store: PacedStore, cluster: Cluster, parent: LeafParent) -> object:
    return await members(incremental(store, cluster, [LeafWork(parent, None)], ImageSource({}, {}), OPTIONS))


async def by_the_driver(store: PacedStore, cluster: Cluster, _: LeafParent) -> object:
    found = await read_metadata(store, cluster, [OLD, NEW])
    return {
        number: next(iter(decode(data).members()))
        for number, data in zip((OLD, NEW), found, strict=True)
        if isinstance(data, bytes)
    }


@pytest.mark.parametrize("read", [scanned, read_again, incrementally, by_the_driver])
def test_a_scan_sees_what_was_written_before_it(
    read: Callable[[PacedStore, Cluster, LeafParent], Awaitable[object]],
) -> None:
    async def history() -> None:
        loop = asyncio.get_running_loop()
        cell, trace = SimCell(loop, lambda *change: None), Trace(loop)
        writer, lagging = (
            SimStore(cell, Process(str(lag_s)), loop, random.Random(1), StoreFaults(0.0, lag_s=lag_s), trace)
            for lag_s in (0.0, 5.0)
        )
        await format_cluster(writer, ROOT, rng=random.Random(3))
        cluster = await open_cluster(writer, ROOT)
        ledgers = LedgerStore(writer, cluster, random.Random(5))
        await ledgers.create(OLD, LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (BookieId("old:3181"),)),)))
        await asyncio.sleep(10)
        parent = LeafParent(ledger_path(cluster.kind, ROOT, OLD).rpartition("/")[0], 2)
        await lagging.stat(parent.path)
        await ledgers.write(OLD, MOVED, (await ledgers.read(OLD)).version)
        await ledgers.create(NEW, MOVED)
        store = PacedStore(lagging, Pace(SystemClock()), ROOT)
        assert await read(store, cluster, parent) == {OLD: "new:3181", NEW: "new:3181"}

    loop = SimLoop()
    loop.run_until_complete(history())
    loop.close()
