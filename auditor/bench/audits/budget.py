"""The cost of an audit for other clients of the same ZooKeeper, with the default budget and without it.

Another client, in a process of its own, continuously reads and writes one small node. It is measured alternately alone,
during audits without a budget, and during audits with the default budget. All of this is done three times: with
ZooKeeper as it is, where all share the cores of this machine; with ZooKeeper and the other client on a core of their
own, as on a machine of their own (on Linux with several cores); and through ``slow_server``, where the server is the
limit.

It prints nothing. Figures from different machines cannot be compared, but the ratios can.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from auditor.bench.audits.other_client import Latencies, OtherClient
from auditor.bench.audits.scan_measurement import BenchSettings, audited, filled
from auditor.bench.audits.slow_server import slow_server
from auditor.bench.audits.spark_processes import descendants
from auditor.bench.cores import apart, cores
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from spark_jobs.pacing.budget import LATENCY_FACTOR
from spark_jobs.session import SessionSettings, java_pid, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BYTES_PER_S: Final = 20_000_000
"""Default rate of the slow server: some 100,000 ledgers per second."""
IDLE_S: Final = 2.0
ROUNDS: Final = 3
_HEAP_MIB: Final = 3072
_FACTORS: Final = {"no_budget": 0.0, "default_budget": LATENCY_FACTOR}


@dataclass(slots=True)
class _Seen:
    """The other client's latencies in one situation, and the duration of the audits."""

    reads_s: list[float] = field(default_factory=list)
    writes_s: list[float] = field(default_factory=list)
    audits_s: list[float] = field(default_factory=list)

    def add(self, latencies: Latencies) -> None:
        self.reads_s += latencies.reads_s
        self.writes_s += latencies.writes_s

    def figures(self) -> Mapping[str, float]:
        """Return milliseconds of the requests, and the median of the seconds of the audits."""
        figures = {
            f"{name}_p{percent}_ms": round(1000 * percentile(seconds, percent), 2)
            for name, seconds in (("read", self.reads_s), ("write", self.writes_s))
            for percent in (50, 99)
        }
        audit = {"audit_s": round(percentile(self.audits_s, 50), 2)} if self.audits_s else {}
        return audit | figures


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that ``percent`` of the values do not exceed; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0


async def run(ledgers: int, bytes_per_s: int = BYTES_PER_S, rounds: int = ROUNDS) -> dict[str, Any]:
    """Fill an embedded ZooKeeper with ``ledgers`` ledgers, and measure.

    Args:
        ledgers: number of ledgers in ZooKeeper.
        bytes_per_s: the rate of the slow server, for all clients together.
        rounds: rounds of three measurements: the other client alone, and with audits without and with the budget.
    """
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as directory:
        where = Path(directory)
        async with await EmbeddedZooKeeper.start(where / "zookeeper", heap_mib=_HEAP_MIB, is_durable=False) as server:
            settings = BenchSettings(server.connect_string, where / "reports", ledgers)
            async with filled(settings), slow_server(server.connect_string, bytes_per_s) as slow:
                slowed = replace(settings, hosts=slow)
                measured = await asyncio.to_thread(_in_a_session, settings, slowed, server.pid, rounds)
    return {"ledgers": ledgers, "bytes_per_s_of_slow_server": bytes_per_s, **measured}


_ContextFactory = Callable[[OtherClient], AbstractContextManager[None]]
"""The conditions during the measurement of one situation."""


def _in_a_session(settings: BenchSettings, slowed: BenchSettings, zookeeper_pid: int, rounds: int) -> Mapping[str, Any]:
    with spark_session(SessionSettings()) as spark:
        audited(spark, settings)  # starts Spark's Python workers

        def on_other_cores(other: OtherClient) -> AbstractContextManager[None]:
            return apart([zookeeper_pid, other.pid], [os.getpid(), *_spark_processes()])

        def without_core_pinning(_: OtherClient) -> AbstractContextManager[None]:
            return nullcontext()

        figures = {"zookeeper": _measure(spark, settings, "/other-client", rounds, without_core_pinning)}
        if len(cores()) > 1:
            figures["other_cores"] = _measure(spark, settings, "/other-client-apart", rounds, on_other_cores)
        figures["slow_server"] = _measure(spark, slowed, "/other-client-slow", rounds, without_core_pinning)
        return figures


def _spark_processes() -> list[int]:
    java = java_pid()
    return [] if java is None else [java, *descendants(java)]


def _measure(
    spark: SparkSession, settings: BenchSettings, path: str, rounds: int, context_of: _ContextFactory
) -> Mapping[str, Any]:
    seen = {name: _Seen() for name in ("idle", *_FACTORS)}
    with OtherClient(settings.hosts, path) as other, context_of(other):
        for _ in range(rounds):
            with _record_latencies(other, seen["idle"]):
                other.wait(IDLE_S)
            for name, factor in _FACTORS.items():
                with _record_latencies(other, seen[name]):
                    seen[name].audits_s.append(audited(spark, settings, factor)[0])
    figures = {name: each.figures() for name, each in seen.items()}
    idle, without = figures["idle"], figures["no_budget"]
    return figures | {
        "ratio_of_p99_to_idle": {
            f"{kind} with {name}": round(figures[name][f"{kind}_p99_ms"] / max(idle[f"{kind}_p99_ms"], 0.01), 1)
            for kind in ("read", "write")
            for name in _FACTORS
        },
        "ratio_of_audit_to_no_budget": round(figures["default_budget"]["audit_s"] / without["audit_s"], 2),
    }


@contextmanager
def _record_latencies(other: OtherClient, seen: _Seen) -> Iterator[None]:
    other.taken()  # drops the requests between two situations
    yield
    seen.add(other.taken())
