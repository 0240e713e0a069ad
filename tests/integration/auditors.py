"""``bkheal auditor`` processes for tests, and requests to them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bookie.embedded.apache import ApacheCluster
from bookie.embedded.cluster import LEDGERS_ROOT, EmbeddedCluster
from bookie.embedded.process import ManagedProcess, pause_s
from bookie.metadata.port import MetadataStore
from bookie.metadata.runs.election import election_path
from tests.deadlines import PROGRAM_S, STATE_S
from tests.integration.served import Served

SESSION_TIMEOUT_S = 40
"""The longest session timeout of an auditor, so that a loaded machine ends no term: tests count leaders and runs."""
READY = r"^auditor ready on (http://\S+) and grpc (\S+)$"


class AuditorProcess:
    """One ``bkheal auditor``. If an option occurs twice, the later one counts.

    It keeps no image of the ledger metadata. Otherwise a replicator would repair some ledgers, marked from the image,
    before the audit of all ledgers counts them.
    """

    def __init__(
        self, cluster: EmbeddedCluster | ApacheCluster | str, directory: Path, name: str, *options: str
    ) -> None:
        """Start the process. ``cluster`` may be a metadata URI."""
        words = {
            "metadata-uri": cluster if isinstance(cluster, str) else cluster.metadata_uri,
            "report-dir": directory / "reports",
            "bookies-schedule": "off",
            "session-timeout-s": SESSION_TIMEOUT_S,
            "backlog-interval-s": 1,
            "http-port": 0,
            "grpc-port": 0,
            "spark-master": "local[1]",
            "driver-memory": "512m",
            "ui-port": 0,
        }
        self.process = ManagedProcess.start(
            name,
            [
                *(sys.executable, "-m", "auditor.cli.main", "auditor"),
                *(word for key, value in words.items() for word in (f"--{key}", str(value))),
                "--no-with-image",
                *options,
            ],
            log_path=directory / f"{name}.log",
        )
        self.base = ""
        self.grpc_address = ""

    async def ready(self) -> AuditorProcess:
        """Wait until it is connected to ZooKeeper and serves requests."""
        ready = await self.process.wait_for_line(READY, STATE_S)
        self.base, self.grpc_address = ready[1], ready[2]
        return self

    async def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of an answer."""
        return await self.served.get(path)

    @property
    def served(self) -> Served:
        """Wait until it is ready, and return its metrics and probes."""
        return Served(self.process, self.base)

    async def status(self) -> Any:
        """Return what it reports about itself and its cluster."""
        code, body = await self.get("/api/v1/status")
        assert code == 200, body
        return json.loads(body)

    async def leads(self) -> bool:
        """Whether it leads, according to its metrics."""
        _, body = await self.get("/metrics")
        return "bkheal_auditor_leader 1.0" in body


async def when(condition: Callable[[], Awaitable[bool]], seconds: float = PROGRAM_S) -> None:
    """Wait until a condition on other processes is true.

    The longer it waits, the longer are its pauses, so that its requests do not take the processor from those processes.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  # other processes set no event here
            await asyncio.sleep(pause_s(loop.time() - began_s))


async def votes(store: MetadataStore) -> int:
    """Return the number of candidates in the election."""
    return len((await store.children(election_path(LEDGERS_ROOT))).names)
