"""Audit after a bookie loss: Apache's auditor and ours on one ZooKeeper, from the start to the last published task.

The cluster consists only of metadata: ledgers of three copies on ten bookies. Nine bookies are registered (by ephemeral
nodes of the benchmark) and one is not, so three ledgers in ten get a task. Every round begins without tasks, and its
tasks must be the same as in all others. An audit is cold if it is the first of a process after it has loaded its
classes (Java) or started its Spark session, and warm if it is a later one of the same process.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from auditor.bench.versus_apache.processes import ContestantError, ContestantProcess, JavaPrograms
from auditor.bench.zookeeper_counters import Counters, counters
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.layout import bookie_path, cookie_path, parents_of, task_path, tasks_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.nodes import batches, create_with_parents
from bookie.metadata.port import ANY_VERSION, Delete, MetadataStore
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.clock import SystemClock
from bookie.runtime.waiting import all_or_first_error

ROOT: Final = "/ledgers"
BOOKIES: Final = 10
COPIES: Final = 3
LOST: Final = BookieId("127.0.0.1:20000")
ROUND_DEADLINE_S: Final = 3600.0
_FILL_STEP: Final = 20_000
_CTIME_MS: Final = 1_700_000_000_000
_DELETES_IN_FLIGHT: Final = 8
_HEAP_MIB_PER_1000_LEDGERS_AND_TASKS: Final = 2.5
"""MiB of ZooKeeper's heap for a thousand ledgers and their tasks."""

DEFAULTS: Final[Mapping[str, str]] = {"auditorPeriodicCheckInterval": "0"}
"""Apache's default settings, except for its other check, which would begin at the same time and compete."""
TUNED: Final[Mapping[str, str]] = {
    **DEFAULTS,
    "auditorPeriodicBookieCheckInterval": "0",
    "storeSystemTimeAsLedgerUnderreplicatedMarkTime": "false",
    "zkTimeout": "30000",
}
"""Settings that remove additional work. No documented setting makes this check itself faster."""
DEFAULT_JVM: Final = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=10")
"""The options of a bookie's process in Apache's start script."""
TUNED_JVM: Final = ("-Xms3g", "-Xmx3g", "-XX:+UseParallelGC")

Say = Callable[[str], None]


class DifferentTasksError(ContestantError):
    """Two audits of the same cluster did not publish the same tasks, so their times cannot be compared."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks that an audit published."""

    count: int
    digest: str
    """Digest of their ledgers and missing bookies."""


@dataclass(frozen=True, slots=True)
class Round:
    """One audit."""

    seconds: float
    """From its start to the last published task."""
    from_launch_s: float | None
    """From the launch of the process to the last published task; only for a first audit."""
    requests: int
    """Packets that ZooKeeper received."""
    transactions: int
    """Changes that ZooKeeper logged; a multi counts as one."""
    tasks: Tasks
    more: Mapping[str, Any] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        launch = {} if self.from_launch_s is None else {"from_launch_s": round(self.from_launch_s, 3)}
        return {
            "seconds": round(self.seconds, 3),
            **launch,
            "requests": self.requests,
            "transactions": self.transactions,
            "tasks": self.tasks.count,
            **self.more,
        }


class AuditComparison:
    """One ZooKeeper with ledgers, and audits of them."""

    def __init__(self, java: JavaPrograms, directory: Path, say: Say) -> None:
        self._java = java
        self._directory = directory
        self._say = say

    async def run(self, ledgers: int, warm_rounds: int, *, is_tuned: bool = True) -> dict[str, Any]:
        """Fill a ZooKeeper with ``ledgers`` ledgers and let every contestant audit them, cold and warm.

        Raises:
            ContestantError: one of them failed, or published other tasks.
            EmbeddedProcessError: ZooKeeper did not start.
        """
        heap_mib = 512 + int(ledgers / 1000 * _HEAP_MIB_PER_1000_LEDGERS_AND_TASKS)
        where = self._directory / f"zookeeper-{ledgers}"
        async with await EmbeddedZooKeeper.start(where, heap_mib=heap_mib, is_durable=False) as server:
            store = await ZooKeeperStore.connect(server.connect_string, session_timeout_s=30.0)
            try:
                self._say(f"audit: creating {ledgers:,} ledgers")
                cluster = await fill(store, ledgers)
                rounds = {}
                for name, command in self._contestants(f"zk+hierarchical://{server.connect_string}{ROOT}", is_tuned):
                    self._say(f"audit: {name}, {ledgers:,} ledgers, one cold and {warm_rounds} warm")
                    rounds[name] = await self._rounds(name, command, warm_rounds, _Site(server.port, store, cluster))
            finally:
                await store.close()
        check_same_tasks(rounds)
        return {
            "ledgers": ledgers,
            "rounds": {name: [each.figures() for each in those] for name, those in rounds.items()},
        }

    def _contestants(self, uri: str, is_tuned: bool) -> Iterable[tuple[str, list[str]]]:
        variants = [("apache", DEFAULTS, DEFAULT_JVM), ("apache tuned", TUNED, TUNED_JVM)]
        for name, settings, jvm in variants[: 2 if is_tuned else 1]:
            where = self._directory / name.replace(" ", "-")
            # The scheme is Apache's default; the layout itself is read from the cluster.
            yield name, self._java.command("RunAuditor", {"metadataServiceUri": uri, **settings}, where, jvm)
        module = "auditor.bench.versus_apache.our_audits"
        yield "ours", [sys.executable, "-m", module, uri, str(self._directory / "reports")]

    async def _rounds(self, name: str, command: Sequence[str], warm_rounds: int, site: _Site) -> list[Round]:
        rounds = []
        async with await ContestantProcess.start(
            name, command, self._directory / name.replace(" ", "-"), java=self._java.java
        ) as contestant:
            ready_s = time.perf_counter() - contestant.started_s
            for number in range(1 + warm_rounds):
                before = await site.counters()
                answer = dict(await contestant.ask("audit", "audited", ROUND_DEADLINE_S))
                launched_s = ready_s + answer["seconds"]
                after = await site.counters()
                tasks = await site.tasks()
                answer.pop("event")
                rounds.append(
                    Round(
                        answer.pop("seconds"),
                        None if number else launched_s,
                        after.received - before.received,
                        after.transactions - before.transactions,
                        tasks,
                        answer,
                    )
                )
                self._say(f"audit: {name} took {rounds[-1].seconds:.2f} s for {tasks.count:,} tasks")
                await site.clear()
        return rounds


@dataclass(frozen=True, slots=True)
class _Site:
    port: int
    store: MetadataStore
    cluster: Cluster

    async def counters(self) -> Counters:
        return await counters(self.port)

    async def tasks(self) -> Tasks:
        found = await UnderReplication(self.store, self.cluster, SystemClock()).list()
        digest = hashlib.sha256()
        for task in found:
            digest.update(f"{task.ledger_id} {' '.join(sorted(task.missing))}\n".encode())
        return Tasks(len(found), digest.hexdigest())

    async def clear(self) -> None:
        await clear_tasks(self.store, self.cluster)


async def clear_tasks(store: MetadataStore, cluster: Cluster) -> None:
    """Delete every task, and every node between it and the root of the tree."""
    root = cluster.root
    found = await UnderReplication(store, cluster, SystemClock()).list()
    levels: dict[int, dict[str, None]] = {}
    for task in found:
        path = task_path(root, task.ledger_id)
        for each in (path, *parents_of(path, tasks_path(root))):
            levels.setdefault(each.count("/"), {})[each] = None
    slots = asyncio.Semaphore(_DELETES_IN_FLIGHT)

    async def delete(batch: list[Any]) -> None:
        async with slots:
            await store.multi(batch)

    for depth in sorted(levels, reverse=True):
        deletes = [Delete(path, ANY_VERSION) for path in levels[depth]]
        await all_or_first_error(delete(batch) for batch in batches(deletes))


async def fill(store: MetadataStore, ledgers: int) -> Cluster:
    """Format a cluster, and create its ledgers and registrations. The registrations end with the store's session."""
    rng = random.Random(1)
    await format_cluster(store, ROOT, rng=rng)
    cluster = await open_cluster(store, ROOT)
    # The ids are addresses, because Apache's client would request each name from the machine's name service.
    bookies = [BookieId(f"127.0.0.1:{20_000 + number}") for number in range(BOOKIES)]
    for bookie in bookies:
        await create_with_parents(store, cookie_path(ROOT, bookie), b"", ROOT)
        if bookie != LOST:
            await store.create(bookie_path(ROOT, bookie, is_read_only=False), is_ephemeral=True)
    into = LedgerStore(store, cluster, rng)
    for first in range(0, ledgers, _FILL_STEP):
        numbers = range(first, min(ledgers, first + _FILL_STEP))
        await into.create_many([(LedgerId(number), _metadata(rng, bookies)) for number in numbers])
    return cluster


def _metadata(rng: random.Random, bookies: Sequence[BookieId]) -> LedgerMetadata:
    """Return a closed ledger of one fragment; one in ten is open."""
    fragments = (Fragment(EntryId(0), tuple(rng.sample(bookies, COPIES))),)
    metadata = LedgerMetadata(COPIES, COPIES, 2, fragments, ctime_ms=_CTIME_MS + rng.randrange(10**10))
    if rng.random() < 0.1:
        return metadata
    return metadata.closed(EntryId(rng.randrange(1_000, 50_000)), rng.randrange(1 << 30))


def check_same_tasks(rounds: Mapping[str, Sequence[Round]]) -> None:
    """Check that all rounds published the same tasks, and at least one.

    Raises:
        DifferentTasksError: they did not.
    """
    found = {name: {each.tasks for each in those} for name, those in rounds.items()}
    if len(set().union(*found.values())) != 1 or any(not each.count for each in next(iter(found.values()))):
        counts = {name: sorted(each.count for each in those) for name, those in found.items()}
        raise DifferentTasksError(f"the audits did not publish the same tasks: {counts}")
