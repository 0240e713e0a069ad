"""A run of everything compared with the single checks that it contains: the same ledgers, the same session, one run.

It fills an embedded ZooKeeper with the ledgers of ``scan_measurement``, in a cluster with one lost bookie, and measures
warm dry runs: seconds, and the packets that ZooKeeper receives. A packet reads hundreds of ledgers.

It prints nothing. Figures from different machines cannot be compared, but the ratios can.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from auditor.bench.audits.scan_measurement import BenchSettings, filled
from auditor.bench.zookeeper_counters import counters
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from spark_jobs.session import SessionSettings, spark_session
from spark_jobs.settings import AuditSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KINDS: Final = (RunKind.BOOKIES, RunKind.PLACEMENT, RunKind.EVERYTHING)
_BOOKIES: Final = 12
"""Number of bookies, each in a rack of its own. The placement check judges each distinct ensemble once. There are 1,320
of three bookies, so with 100,000 ledgers each has 76, as with 50 bookies and ten million ledgers."""
_HEAP_MIB: Final = 3072
"""Enough for a million ledgers and the reads in flight."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """Runs of one kind, the first of them cold."""

    seconds: Sequence[float]
    packets: int
    """Packets of the last run."""

    @property
    def median_s(self) -> float:
        """The median of the warm runs."""
        warm = sorted(self.seconds[1:])
        return warm[len(warm) // 2]


async def run(ledgers: int, warm_runs: int = 3) -> dict[str, Any]:
    """Fill an embedded ZooKeeper with ``ledgers`` ledgers, and measure the three kinds."""
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as directory:
        async with await EmbeddedZooKeeper.start(
            Path(directory) / "zookeeper", heap_mib=_HEAP_MIB, is_durable=False
        ) as server:
            settings = BenchSettings(server.connect_string, Path(directory) / "reports", ledgers, _BOOKIES, warm_runs)
            return dict(await asyncio.to_thread(_in_a_session, settings, server.port))


def _in_a_session(settings: BenchSettings, port: int) -> Mapping[str, Any]:
    with spark_session(SessionSettings()) as spark:
        return measure(spark, settings, port)


def measure(spark: SparkSession, settings: BenchSettings, port: int) -> Mapping[str, Any]:
    """Fill, measure, and return figures with the ratio of everything to the sum of the single checks.

    Raises:
        ClusterExistsError: ZooKeeper contains the ledgers of an earlier benchmark; it must be empty.
        StoreUnavailableError: no answer.
    """
    settings.report_dir.mkdir(parents=True, exist_ok=True)
    racks = {f"bookie-{number}.example.org:3181": f"/rack-{number}" for number in range(settings.bookies)}
    topology = settings.report_dir / "topology.json"
    topology.write_text(json.dumps(racks))
    with asyncio.Runner() as runner:
        context = filled(settings)
        runner.run(context.__aenter__())
        try:
            measured = {kind: _measured(spark, settings, kind, topology, port) for kind in _KINDS}
        finally:
            runner.run(context.__aexit__(None, None, None))
    single_s = measured[RunKind.BOOKIES].median_s + measured[RunKind.PLACEMENT].median_s
    single = measured[RunKind.BOOKIES].packets + measured[RunKind.PLACEMENT].packets
    everything = measured[RunKind.EVERYTHING]
    return {
        "ledgers": settings.ledgers,
        **{f"{kind.value}_warm_s": [round(one, 2) for one in each.seconds[1:]] for kind, each in measured.items()},
        **{f"{kind.value}_packets": each.packets for kind, each in measured.items()},
        "seconds_to_sum": round(everything.median_s / single_s, 2),
        "packets_to_sum": round(everything.packets / single, 2),
    }


def _measured(spark: SparkSession, settings: BenchSettings, kind: RunKind, topology: Path, port: int) -> _Measured:
    from spark_jobs.runs.run import run_check

    clock = SystemClock()
    uri = f"zk://{settings.hosts}{settings.root}"
    audit = AuditSettings(uri, settings.report_dir, is_dry_run=True, topology_file=topology)
    seconds, packets = [], 0
    for _ in range(settings.warm_runs + 1):
        before = asyncio.run(counters(port)).received
        started = clock.monotonic_s()
        summary = run_check(spark, kind, audit).summary
        seconds.append(clock.monotonic_s() - started)
        packets = asyncio.run(counters(port)).received - before
        if summary.counts.ledgers != settings.ledgers or not summary.is_complete:
            raise AssertionError(f"a run of kind {kind.value} saw {summary.counts.ledgers} ledgers")
    return _Measured(seconds, packets)
