"""Benchmark of the audit's scan, compared with two other ways of reading, on the same ZooKeeper.

It fills an empty ZooKeeper with the ledgers of a plausible cluster with one lost bookie, and then measures

1. ``get_async``: one request per ledger through kazoo, pipelined, as in a simple auditor.
2. ``get_many_data``: this project's bulk reads, without processing the data.
3. ``audit``: a whole warm run of the audit as a dry run, from the connection to the finished report.

It prints nothing. Figures from different machines cannot be compared, but the ratios can.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kazoo.client import KazooClient  # the baseline is unmodified kazoo

from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.layout import bookie_path, ledger_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import MetadataStore
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.clock import SystemClock
from spark_jobs.pacing.budget import LATENCY_FACTOR
from spark_jobs.runs.port import Phase, ProgressEvent
from spark_jobs.settings import AuditSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = "/bench-scan/ledgers"
LEDGERS: Final = 200_000
_FILL_STEP: Final = 20_000
_READ_STEP: Final = 4_000
_IN_FLIGHT: Final = 3_000
_BASELINE_LEDGERS_MAX: Final = 50_000
"""Ledgers that the baseline reads: it is slow and its rate is constant, so a part of the ledgers is enough."""
_BASELINE_PASSES: Final = 3
"""Passes of the baseline. The best one counts: in the first, the server is cold, and a slow baseline would favour this
project."""
_CTIME_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Size of the benchmark."""

    hosts: str
    """Connect string of an empty ZooKeeper; the ledgers are not deleted afterwards."""
    report_dir: Path
    ledgers: int = LEDGERS
    bookies: int = 50
    warm_runs: int = 5
    """Runs after the first, which also starts Spark's Python workers; the median counts."""
    seed: int = 1
    root: str = ROOT


def run(spark: SparkSession, settings: BenchSettings) -> Mapping[str, Any]:
    """Fill, measure, and return figures (seconds, ledgers per second) with ratios to the baseline.

    Raises:
        ClusterExistsError: ZooKeeper contains the ledgers of an earlier benchmark; it must be empty.
        StoreUnavailableError: no answer.
    """
    with asyncio.Runner() as runner:
        context = filled(settings)
        store, cluster, fill_s = runner.run(context.__aenter__())
        try:
            baselines = [_time_get_async(settings, cluster) for _ in range(_BASELINE_PASSES)]
            bulk_s = runner.run(_time_get_many_data(store, cluster, settings.ledgers))
            audits = [audited(spark, settings) for _ in range(settings.warm_runs + 1)]
        finally:
            runner.run(context.__aexit__(None, None, None))
    warm_s = sorted(seconds for seconds, _ in audits[1:])
    best = min(audits[1:], key=lambda audit: audit[0])
    rates = {
        "get_async": max(ledgers / seconds for seconds, ledgers in baselines),
        "get_many_data": settings.ledgers / bulk_s,
        "audit": settings.ledgers / warm_s[len(warm_s) // 2],
    }
    return {
        "ledgers": settings.ledgers,
        "fill_ledgers_per_s": round(settings.ledgers / fill_s),
        "ledgers_per_s": {name: round(rate) for name, rate in rates.items()},
        "ratio_to_get_async": {name: round(rate / rates["get_async"], 1) for name, rate in rates.items()},
        "audit_cold_s": round(audits[0][0], 2),
        "audit_warm_s": [round(seconds, 2) for seconds in warm_s],
        "audit_phases_s": {name: round(seconds, 2) for name, seconds in best[1].items()},
    }


def audited(
    spark: SparkSession, settings: BenchSettings, latency_factor: float = LATENCY_FACTOR
) -> tuple[float, Mapping[str, float]]:
    """Audit once as a dry run; return the seconds of the run and of each phase.

    Args:
        spark: the session.
        settings: of the benchmark.
        latency_factor: of the budget of reading from ZooKeeper; 0: there is no budget.

    Raises:
        AssertionError: the audit did not read every ledger.
    """
    from spark_jobs.runs.run import run_audit

    clock = SystemClock()
    marks: list[tuple[Phase, float]] = []

    def mark(event: ProgressEvent) -> None:
        if not marks or marks[-1][0] is not event.phase:
            marks.append((event.phase, clock.monotonic_s()))

    started = clock.monotonic_s()
    uri = f"zk://{settings.hosts}{settings.root}"
    audit = AuditSettings(uri, settings.report_dir, is_dry_run=True, metadata_latency_factor=latency_factor)
    result = run_audit(spark, audit, mark)
    seconds = clock.monotonic_s() - started
    if result.summary.counts.ledgers != settings.ledgers or not result.summary.is_complete:
        raise AssertionError(f"audit saw {result.summary.counts.ledgers} of {settings.ledgers} ledgers")
    ends = [at for _, at in marks[1:]]
    return seconds, {phase.value: end - at for (phase, at), end in zip(marks, ends, strict=False)}


def _time_get_async(settings: BenchSettings, cluster: Cluster) -> tuple[float, int]:
    paths = [_path(cluster, number) for number in range(min(settings.ledgers, _BASELINE_LEDGERS_MAX))]
    client = KazooClient(settings.hosts)
    client.start()
    try:
        clock = SystemClock()
        started = clock.monotonic_s()
        in_flight: deque[Any] = deque()
        for path in paths:
            if len(in_flight) >= _IN_FLIGHT:
                in_flight.popleft().get()
            in_flight.append(client.get_async(path))
        for reading in in_flight:
            reading.get()
        return clock.monotonic_s() - started, len(paths)
    finally:
        client.stop()
        client.close()


async def _time_get_many_data(store: MetadataStore, cluster: Cluster, ledgers: int) -> float:
    clock = SystemClock()
    started = clock.monotonic_s()
    for first in range(0, ledgers, _READ_STEP):
        paths = [_path(cluster, number) for number in range(first, min(ledgers, first + _READ_STEP))]
        found = await store.get_many_data(paths)
        if None in found:
            raise AssertionError("a ledger that was created is not there")
    return clock.monotonic_s() - started


@asynccontextmanager
async def filled(settings: BenchSettings) -> AsyncIterator[tuple[MetadataStore, Cluster, float]]:
    """Create ledgers and registrations; the registrations last as long as the context."""
    rng = random.Random(settings.seed)
    store = await ZooKeeperStore.connect(settings.hosts)
    try:
        await format_cluster(store, settings.root, rng=rng)
        cluster = await open_cluster(store, settings.root)
        bookies = [BookieId(f"bookie-{number}.example.org:3181") for number in range(settings.bookies)]
        for bookie in bookies[1:]:
            await store.create(bookie_path(settings.root, bookie, is_read_only=False), is_ephemeral=True)
        clock = SystemClock()
        started = clock.monotonic_s()
        ledgers = LedgerStore(store, cluster, rng)
        for first in range(0, settings.ledgers, _FILL_STEP):
            numbers = range(first, min(settings.ledgers, first + _FILL_STEP))
            await ledgers.create_many([(LedgerId(number), _metadata(rng, bookies)) for number in numbers])
        yield store, cluster, clock.monotonic_s() - started
    finally:
        await store.close()


def _metadata(rng: random.Random, bookies: Sequence[BookieId]) -> LedgerMetadata:
    """Return the metadata of a ledger; one in ten is open, and one in twenty had an ensemble change."""
    starts = [0] if rng.random() < 0.95 else [0, 1_000]
    fragments = tuple(Fragment(EntryId(start), tuple(rng.sample(bookies, 3))) for start in starts)
    metadata = LedgerMetadata(3, 2, 2, fragments, ctime_ms=_CTIME_MS + rng.randrange(10**10))
    if rng.random() < 0.1:
        return metadata
    return metadata.closed(EntryId(rng.randrange(1_000, 50_000)), rng.randrange(1 << 30))


def _path(cluster: Cluster, number: int) -> str:
    return ledger_path(cluster.kind, cluster.root, number)
