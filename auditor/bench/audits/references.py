"""The references check compared with the bookies check: the same ledgers, the same session, the same run.

It fills an embedded ZooKeeper with Pulsar's topics and their ledgers, in a cluster with one lost bookie, and measures
warm runs of both checks: seconds, processor seconds, and the peak memory of the driver, Spark's Java process and its
Python workers. The processor seconds do not include ZooKeeper's.

It prints nothing. Figures from different machines cannot be compared, but the ratios can. If other programs keep the
machine busy, only the ratio of processor time is meaningful.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from auditor.bench.audits.spark_processes import SparkProcesses
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.cluster import format_cluster, open_cluster
from bookie.metadata.layout import bookie_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.nodes import batches, create_missing, parent_of
from bookie.metadata.port import Create, MetadataStore
from bookie.metadata.proto.managed_ledgers_pb2 import ManagedCursorInfo, ManagedLedgerInfo, SchemaLocator
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from bookie.runtime.waiting import all_or_first_error
from spark_jobs.session import SessionSettings, java_pid, spark_session
from spark_jobs.settings import AuditSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.report.summary import RunSummary

ROOT: Final = "/bench-references"
LEDGERS_PER_TOPIC: Final = 10
NODES_PER_TOPIC: Final = 3
"""Nodes of Pulsar that the references check reads in addition: of the topic, its subscription and its schema."""
_MESSAGES: Final = 8
"""Ledgers of messages of a topic. Its last two ledgers are those of its subscription and of its schema."""
_UNREFERENCED_ONE_IN: Final = 10
"""One in this number of topics does not refer to its first ledger."""
_LOST_ONE_IN: Final = 1_000
"""One in this number of topics refers to a ledger that does not exist."""
_NAMESPACES: Final = 100
"""Number of namespaces. Half of the topics are in the first one."""
_HEAP_MIB: Final = 4096
"""Enough for a million ledgers, 300,000 nodes of topics, and the reads in flight."""
_FILL_STEP: Final = 2_000
_IN_FLIGHT: Final = 4
_CTIME_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class ReferenceBench:
    """Size of the benchmark."""

    hosts: str
    """Connect string of an empty ZooKeeper; the ledgers are not deleted afterwards."""
    report_dir: Path
    topics: int
    """Number of topics. Each has ten ledgers, a subscription and a schema."""
    bookies: int = 50
    warm_runs: int = 3
    """Runs after the first, which also starts Spark's Python workers; the median counts."""
    seed: int = 1
    root: str = ROOT


async def run(topics: int) -> dict[str, Any]:
    """Fill an embedded ZooKeeper with ``topics`` topics, and measure both checks."""
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as directory:
        async with await EmbeddedZooKeeper.start(
            Path(directory) / "zookeeper", heap_mib=_HEAP_MIB, is_durable=False
        ) as server:
            settings = ReferenceBench(server.connect_string, Path(directory) / "reports", topics)
            return dict(await asyncio.to_thread(_in_a_session, settings))


def _in_a_session(settings: ReferenceBench) -> Mapping[str, Any]:
    with spark_session(SessionSettings()) as spark:
        return measure(spark, settings)


def measure(spark: SparkSession, settings: ReferenceBench) -> Mapping[str, Any]:
    """Fill, measure, and return figures with the ratio to the bookies check.

    Raises:
        ClusterExistsError: ZooKeeper contains the ledgers of an earlier benchmark; it must be empty.
        StoreUnavailableError: no answer.
    """
    with asyncio.Runner() as runner:
        context = _filled(settings)
        runner.run(context.__aenter__())
        try:
            kinds = (RunKind.BOOKIES, RunKind.REFERENCES)
            measured = {kind: _measured(spark, settings, kind) for kind in kinds}
        finally:
            runner.run(context.__aexit__(None, None, None))
    bookies, references = (measured[kind] for kind in kinds)
    found = references.summary.references
    if found is None or (found.unreferenced, found.lost) != _expected(settings.topics):
        raise AssertionError(f"the references check found {found}")
    ratio = references.median_s / bookies.median_s
    processor_ratio = references.median_processor_s / bookies.median_processor_s
    nodes_ratio = (LEDGERS_PER_TOPIC + NODES_PER_TOPIC) / LEDGERS_PER_TOPIC
    return {
        "ledgers": settings.topics * LEDGERS_PER_TOPIC,
        "topics": settings.topics,
        "unreferenced": found.unreferenced,
        "lost": found.lost,
        **{f"{kind.value}_cold_s": round(each.seconds[0], 2) for kind, each in measured.items()},
        **{f"{kind.value}_warm_s": [round(one, 2) for one in each.warm_s] for kind, each in measured.items()},
        **{f"{kind.value}_peak_mib": each.peaks_mib for kind, each in measured.items()},
        **{f"{kind.value}_processor_s": round(each.median_processor_s, 2) for kind, each in measured.items()},
        "ratio_to_bookies_check": round(ratio, 2),
        "processor_ratio": round(processor_ratio, 2),
        "processor_ratio_per_node": round(processor_ratio / nodes_ratio, 2),
    }


@dataclass(frozen=True, slots=True)
class _Measured:
    """Runs of one check."""

    seconds: Sequence[float]
    processor_s: Sequence[float]
    peaks_mib: Mapping[str, int]
    summary: RunSummary

    @property
    def warm_s(self) -> Sequence[float]:
        return sorted(self.seconds[1:])

    @property
    def median_s(self) -> float:
        return self.warm_s[len(self.warm_s) // 2]

    @property
    def median_processor_s(self) -> float:
        return sorted(self.processor_s[1:])[len(self.warm_s) // 2]


def _measured(spark: SparkSession, settings: ReferenceBench, kind: RunKind) -> _Measured:
    from spark_jobs.runs.run import run_check

    clock = SystemClock()
    uri = f"zk://{settings.hosts}{settings.root}/ledgers"
    audit = AuditSettings(uri, settings.report_dir, is_dry_run=True, reference_grace_s=0)
    processes = SparkProcesses(java_pid())
    seconds, processor_s = [], []
    with processes.sampled():
        for _ in range(settings.warm_runs + 1):
            started, used_s = clock.monotonic_s(), processes.processor_s()
            summary = run_check(spark, kind, audit).summary
            seconds.append(clock.monotonic_s() - started)
            processor_s.append(processes.processor_s() - used_s)
    if summary.counts.ledgers != settings.topics * LEDGERS_PER_TOPIC or not summary.is_complete:
        raise AssertionError(f"a check saw {summary.counts.ledgers} ledgers")
    return _Measured(seconds, processor_s, processes.peaks_mib(), summary)


def _expected(topics: int) -> tuple[int, int]:
    """Return the numbers of unreferenced and of lost ledgers."""
    return -(-topics // _UNREFERENCED_ONE_IN), -(-topics // _LOST_ONE_IN)


@asynccontextmanager
async def _filled(settings: ReferenceBench) -> AsyncIterator[None]:
    """Create topics, ledgers and registrations; the registrations last as long as the context."""
    rng = random.Random(settings.seed)
    ledgers_root = f"{settings.root}/ledgers"
    store = await ZooKeeperStore.connect(settings.hosts)
    try:
        await format_cluster(store, ledgers_root, rng=rng)
        cluster = await open_cluster(store, ledgers_root)
        bookies = [BookieId(f"bookie-{number}.example.org:3181") for number in range(settings.bookies)]
        for bookie in bookies[1:]:
            await store.create(bookie_path(ledgers_root, bookie, is_read_only=False), is_ephemeral=True)
        ledgers = LedgerStore(store, cluster, rng)
        for first in range(0, settings.topics, _FILL_STEP):
            topics = range(first, min(settings.topics, first + _FILL_STEP))
            await ledgers.create_many([made for topic in topics for made in _ledgers_of(rng, bookies, topic)])
            await _create(store, settings.root, [node for topic in topics for node in _nodes_of(settings.root, topic)])
        yield
    finally:
        await store.close()


async def _create(store: MetadataStore, root: str, nodes: Sequence[Create]) -> None:
    names = {node.path for node in nodes}
    await create_missing(store, sorted({parent_of(node.path) for node in nodes} - names), root)
    slots = asyncio.Semaphore(_IN_FLIGHT)

    async def create(batch: Sequence[Create]) -> None:
        async with slots:
            await store.multi(batch)

    # Subscriptions are created after the topics above them.
    for depth in sorted({path.count("/") for path in names}):
        level = [node for node in nodes if node.path.count("/") == depth]
        await all_or_first_error(create([each for each in part if isinstance(each, Create)]) for part in batches(level))


def _namespace(topic: int) -> str:
    return f"tenant/namespace-{0 if topic % 2 else topic // 2 % _NAMESPACES}"


def _nodes_of(root: str, topic: int) -> Iterator[Create]:
    """Yield the nodes of a topic, its subscription and its schema."""
    first = topic * LEDGERS_PER_TOPIC
    named = list(range(first + (topic % _UNREFERENCED_ONE_IN == 0), first + _MESSAGES))
    if topic % _LOST_ONE_IN == 0:
        named.append((1 << 40) + topic)
    info = ManagedLedgerInfo()
    for ledger in named:
        info.ledgerInfo.add(ledgerId=ledger, entries=1_000, size=1 << 20, timestamp=_CTIME_MS)
    path = f"{root}/managed-ledgers/{_namespace(topic)}/persistent/topic-{topic}"
    yield Create(path, info.SerializeToString())
    cursor = ManagedCursorInfo(cursorsLedgerId=first + _MESSAGES, markDeleteLedgerId=named[-1], markDeleteEntryId=9)
    yield Create(f"{path}/subscription", cursor.SerializeToString())
    position = SchemaLocator.PositionInfo(ledgerId=first + _MESSAGES + 1, entryId=0)
    entry = SchemaLocator.IndexEntry(version=0, hash=b"h" * 32, position=position)
    schema = SchemaLocator(info=entry, index=[entry])
    yield Create(f"{root}/schemas/{_namespace(topic)}/topic-{topic}", schema.SerializeToString())


def _ledgers_of(
    rng: random.Random, bookies: Sequence[BookieId], topic: int
) -> Iterator[tuple[LedgerId, LedgerMetadata]]:
    """Yield the ledgers of a topic, all closed, with Pulsar's custom metadata."""
    managed = f"{_namespace(topic)}/persistent/topic-{topic}".encode()
    of_messages = (("application", b"pulsar"), ("component", b"managed-ledger"), ("pulsar/managed-ledger", managed))
    schema_id = f"{_namespace(topic)}/topic-{topic}".encode()
    customs = [of_messages] * _MESSAGES + [
        (*of_messages, ("pulsar/cursor", b"subscription")),
        (("application", b"pulsar"), ("component", b"schema"), ("pulsar/schemaId", schema_id)),
    ]
    for number, custom in enumerate(customs):
        fragment = Fragment(EntryId(0), tuple(rng.sample(bookies, 2)))
        metadata = LedgerMetadata(2, 2, 2, (fragment,), ctime_ms=_CTIME_MS + topic, custom=custom)
        closed = metadata.closed(EntryId(rng.randrange(1_000, 50_000)), rng.randrange(1 << 30))
        yield LedgerId(topic * LEDGERS_PER_TOPIC + number), closed
