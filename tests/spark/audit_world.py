"""A cluster in a real ZooKeeper for tests of whole audit runs, and a separate session to inspect it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.layout import bookie_path, cookie_path, ledger_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from spark_jobs.runs.cluster_view import ClusterView
from spark_jobs.runs.run import AuditResult, run_audit, run_check
from spark_jobs.settings import AuditSettings
from tests.sessions import LONG_SESSION_S

T = TypeVar("T")


def closed(*members: str, last: int = 9) -> LedgerMetadata:
    fragment = Fragment(EntryId(0), tuple(map(BookieId, members)))
    return LedgerMetadata(len(members), 2, 2, (fragment,)).closed(EntryId(last), 100 * (last + 1))


class Place:
    """One cluster in the shared ZooKeeper, and a separate session to inspect it."""

    def __init__(self, runner: asyncio.Runner, store: ZooKeeperStore, cluster: Cluster, hosts: str, path: Path) -> None:
        self.uri = f"zk://{hosts}{cluster.root}"
        self.report_dir = path / "reports"
        self.cluster = cluster
        self._runner = runner
        self.store = store
        self.tasks = UnderReplication(store, cluster, SystemClock())

    def do(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return self._runner.run(awaited())

    def create(self, ledgers: dict[int, LedgerMetadata]) -> None:
        store = LedgerStore(self.store, self.cluster, random.Random(1))
        self.do(store.create_many([(LedgerId(number), metadata) for number, metadata in ledgers.items()]))

    def damage(self, ledger_id: int) -> None:
        self.do(self.store.set(ledger_path(self.cluster.kind, self.cluster.root, ledger_id), b"damage", -1))

    def register(self, *bookies: str, is_read_only: bool = False) -> None:
        for bookie in bookies:
            path = bookie_path(self.cluster.root, BookieId(bookie), is_read_only=is_read_only)
            self.do(self.store.create(path, is_ephemeral=True))

    def unregister(self, bookie: str) -> None:
        self.do(self.store.delete(bookie_path(self.cluster.root, BookieId(bookie), is_read_only=False)))

    def add_cookies(self, *bookies: str) -> None:
        self.do(self.store.create(f"{self.cluster.root}/cookies"))
        for bookie in bookies:
            self.do(self.store.create(cookie_path(self.cluster.root, BookieId(bookie))))

    def marked(self) -> dict[int, list[str]]:
        return {task.ledger_id: sorted(task.missing) for task in self.do(self.tasks.list())}

    def audited(self) -> set[str]:
        """Return the lost bookies whose loss an audit has processed."""
        noted = self.do(FirstSeenDown(self.store, self.cluster.root).read())
        return {bookie for bookie, down in noted.items() if down.audited_ms}

    def audit(self, spark: SparkSession, **settings: Any) -> AuditResult:
        return run_audit(spark, AuditSettings(self.uri, self.report_dir, **settings))

    def check(self, spark: SparkSession, kind: RunKind, **settings: Any) -> AuditResult:
        return run_check(spark, kind, AuditSettings(self.uri, self.report_dir, **settings))


@contextmanager
def opened(hosts: str, root: str, path: Path) -> Iterator[Place]:
    """Format a cluster, and open it."""

    async def format_root() -> None:
        store = await ZooKeeperStore.connect(hosts, session_timeout_s=LONG_SESSION_S)
        try:
            await format_cluster(store, root, rng=random.Random(root))
        finally:
            await store.close()

    asyncio.run(format_root())
    with joined(hosts, root, path) as place:
        yield place


@contextmanager
def joined(hosts: str, root: str, path: Path) -> Iterator[Place]:
    """Open a cluster that exists."""

    async def prepare() -> tuple[ZooKeeperStore, Cluster]:
        store = await ZooKeeperStore.connect(hosts, session_timeout_s=LONG_SESSION_S)
        return store, await open_cluster(store, root)

    with asyncio.Runner() as runner:
        store, cluster = runner.run(prepare())
        try:
            yield Place(runner, store, cluster, hosts, path)
        finally:
            runner.run(store.close())


def lose_blocks(spark: SparkSession) -> None:
    """Delete Spark's stored blocks of every table, like the end of an executor; the next read computes them again."""
    java: Any = spark.sparkContext._jsc
    for number in list(java.getPersistentRDDs()):
        java.sc().unpersistRDD(number, True)


def after_listing(monkeypatch: pytest.MonkeyPatch, count: int, act: Callable[[], None]) -> None:
    """Run ``act`` as soon as the audit has listed the bookies ``count`` times."""
    real = ClusterView.bookies
    listings = 0

    def bookies(self: ClusterView) -> Bookies:
        nonlocal listings
        result = real(self)
        listings += 1
        if listings == count:
            act()
        return result

    monkeypatch.setattr(ClusterView, "bookies", bookies)


def kept_by(spark: SparkSession) -> int:
    """Return how many sets of rows Spark has cached."""
    return int(spark.sparkContext._jsc.sc().getPersistentRDDs().size())
