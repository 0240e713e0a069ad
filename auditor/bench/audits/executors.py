"""Audits with one, two and four Spark executors, of a ZooKeeper with slow answers.

On a machine with few cores, more executors cannot compute faster, but they can wait concurrently: a proxy sends the
answers of each connection at a fixed rate, as a distant or busy ensemble would. Executors are processes of Spark's
``local-cluster`` master, with one core each.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from auditor.bench.audits.scan_measurement import BenchSettings, audited, filled
from auditor.bench.proxy import proxy
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from spark_jobs.session import SessionSettings, spark_session

EXECUTORS: Final = (1, 2, 4)
BYTES_PER_S: Final = 1_000_000
"""Rate of each connection: some 5,000 ledgers per second."""
_CHUNK_BYTES: Final = 16 * 1024
_WORKER_MIB: Final = 1024
_EXECUTOR_MIB: Final = 512
_HEAP_MIB: Final = 1024


async def run(ledgers: int, bytes_per_s: int = BYTES_PER_S) -> dict[str, Any]:
    """Fill an embedded ZooKeeper, and audit it through the proxy with each number of executors.

    Args:
        ledgers: number of ledgers in ZooKeeper; each node of the ledger tree has 10,000, and one task reads a node.
        bytes_per_s: the rate of the proxy for each connection.
    """
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as directory:
        where = Path(directory)
        async with await EmbeddedZooKeeper.start(where / "zookeeper", heap_mib=_HEAP_MIB, is_durable=False) as server:
            settings = BenchSettings(server.connect_string, where / "reports", ledgers)
            async with filled(settings), slow_proxy(server.connect_string, bytes_per_s) as address:
                through = replace(settings, hosts=address)
                seconds = [await asyncio.to_thread(_time_audit, through, count) for count in EXECUTORS]
    return {
        "ledgers": ledgers,
        "bytes_per_s_of_a_connection": bytes_per_s,
        "executors": list(EXECUTORS),
        "audit_s": [round(each, 2) for each in seconds],
        "baseline": "one executor",
        "ratio_to_baseline": [round(seconds[0] / each, 2) for each in seconds],
    }


def _time_audit(settings: BenchSettings, executors: int) -> float:
    """Return the seconds of the second audit: the first one also starts the executors' Python workers."""
    session = SessionSettings(
        master=f"local-cluster[{executors},1,{_WORKER_MIB}]",
        extra=(("spark.executor.memory", f"{_EXECUTOR_MIB}m"), ("spark.cores.max", str(executors))),
    )
    with spark_session(session) as spark:
        return [audited(spark, settings)[0] for _ in range(2)][-1]


@asynccontextmanager
async def slow_proxy(target: str, bytes_per_s: int) -> AsyncIterator[str]:
    """Forward connections to ``target``, and its answers back at a rate for each connection; yield host and port."""

    async def pass_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        free_s = loop.time()
        while data := await reader.read(_CHUNK_BYTES):
            free_s = max(free_s, loop.time()) + len(data) / bytes_per_s
            await asyncio.sleep(free_s - loop.time())
            writer.write(data)
            await writer.drain()

    async with proxy(target, pass_answers) as address:
        yield address
