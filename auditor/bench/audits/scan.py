"""Reading all ledger metadata: the embedded ZooKeeper and the Spark session around the measurement."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from auditor.bench.audits.scan_measurement import BenchSettings
from auditor.bench.audits.scan_measurement import run as measure
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from spark_jobs.session import SessionSettings, spark_session

_HEAP_MIB: Final = 3072
"""Enough for a million ledgers and the reads in flight."""


async def run(ledgers: int) -> dict[str, Any]:
    """Fill an embedded ZooKeeper with ``ledgers`` ledgers, and measure three ways of reading them."""
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as directory:
        async with await EmbeddedZooKeeper.start(
            Path(directory) / "zookeeper", heap_mib=_HEAP_MIB, is_durable=False
        ) as server:
            settings = BenchSettings(server.connect_string, Path(directory) / "reports", ledgers)
            return dict(await asyncio.to_thread(_measure, settings))


def _measure(settings: BenchSettings) -> Mapping[str, Any]:
    with spark_session(SessionSettings()) as spark:
        return measure(spark, settings)
