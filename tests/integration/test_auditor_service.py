"""Real auditor processes on a real cluster: killed, cut off from ZooKeeper, stopped; a killed bookie leads to tasks."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import connect
from bookie.embedded.cluster import LEDGERS_ROOT, EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.metadata.election import current_auditor, election_path
from bookie.metadata.port import MetadataStore
from bookie.metadata.runs import Runs
from bookie.metadata.zookeeper import ZooKeeperStore
from bookie.model.run import RunCause, RunState

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DEADLINE_S = 120.0
"""Never reached where the test passes."""
SESSION_TIMEOUT_S = 4
READY = r"^auditor ready on (http://\S+) and grpc (\S+)$"


class AuditorProcess:
    """One ``bkheal auditor``."""

    def __init__(self, cluster: EmbeddedCluster, directory: Path, name: str, *options: str) -> None:
        words = {
            "metadata-uri": cluster.metadata_uri,
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
                *(sys.executable, "-m", "auditor.cli.main", "auditor", *options),
                *(word for key, value in words.items() for word in (f"--{key}", str(value))),
            ],
            log_path=directory / f"{name}.log",
        )
        self.base = ""

    async def ready(self) -> AuditorProcess:
        self.base = (await self.process.wait_for_line(READY, DEADLINE_S))[1]
        return self

    async def get(self, path: str) -> tuple[int, Any]:
        def fetch() -> tuple[int, Any]:
            try:
                with urllib.request.urlopen(f"{self.base}{path}", timeout=10) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        return await asyncio.to_thread(fetch)

    async def leads(self) -> bool:
        _, body = await self.get("/metrics")
        return b"bkheal_auditor_leader 1.0" in body


async def when(condition: Callable[[], Awaitable[bool]], seconds: float = DEADLINE_S) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  # other processes set no event here
            await asyncio.sleep(0.05)


async def votes(store: MetadataStore) -> int:
    return len((await store.children(election_path(LEDGERS_ROOT))).names)


async def test_a_killed_leader_is_followed_and_a_killed_bookie_leads_to_tasks(tmp_path: Path) -> None:
    async with (
        await EmbeddedCluster.start(tmp_path, bookies=4, is_zookeeper_durable=False) as cluster,
        await connect(cluster.metadata_uri) as client,
    ):
        async with await client.create_ledger(LedgerOptions(3, 3, 2)) as writer:
            for entry in range(20):
                await writer.submit(f"entry {entry}".encode())
            members = writer.metadata.fragments[0].members
        store = client.store
        first = await AuditorProcess(cluster, tmp_path, "auditor-1").ready()
        second = AuditorProcess(cluster, tmp_path, "auditor-2")
        async with first.process, second.process:
            await when(first.leads)
            await second.ready()

            async def both_vote() -> bool:
                return await votes(store) == 2

            await when(both_vote)
            leader = await current_auditor(store, LEDGERS_ROOT)
            assert leader.endswith(f":{first.process.pid}")
            assert not await second.leads()

            first.process.kill9()
            await when(second.leads, 10 * SESSION_TIMEOUT_S)
            assert await current_auditor(store, LEDGERS_ROOT) != leader

            victim = next(bookie for bookie in cluster.bookies if bookie.bookie_id == members[0])
            await victim.kill9()

            async def marked() -> bool:
                return [(task.ledger_id, task.missing) for task in await client.ports.tasks.list()] == [
                    (writer.ledger_id, (victim.bookie_id,))
                ]

            await when(marked)

            async def counted() -> bool:
                _, body = await second.get("/metrics")
                return b'bkheal_underreplicated_ledgers{severity="below_write_quorum"} 1.0' in body

            await when(counted)

            async def ended() -> bool:
                return all(run.state.is_final for run in await Runs(store, LEDGERS_ROOT).list(10))

            await when(ended)
            (run,) = await Runs(store, LEDGERS_ROOT).list(10)
            assert (run.cause, run.state, run.tasks_changed) == (RunCause.BOOKIE_LOSS, RunState.DONE, 1)
            assert run.findings == {"below_write_quorum": 1}
            assert json.loads(Path(run.report).read_bytes())["run_id"] == run.run_id

            second.process._process.send_signal(signal.SIGTERM)
            assert await second.process.wait(DEADLINE_S) == 0, second.process.log_tail(40)
            assert await votes(store) == 0


async def test_a_leader_that_stood_still_wakes_up_as_a_follower(tmp_path: Path) -> None:
    async with (
        await EmbeddedCluster.start(tmp_path, bookies=1, is_zookeeper_durable=False) as cluster,
        await connect(cluster.metadata_uri) as client,
    ):
        first = await AuditorProcess(cluster, tmp_path, "auditor-1").ready()
        second = AuditorProcess(cluster, tmp_path, "auditor-2")
        async with first.process, second.process:
            await when(first.leads)
            await second.ready()

            async def both_vote() -> bool:
                return await votes(client.store) == 2

            await when(both_vote)
            first.process.pause()
            await when(second.leads, 10 * SESSION_TIMEOUT_S)
            first.process.resume()
            assert not await first.leads()
            await when(both_vote)
            assert await second.leads()
            assert not await first.leads()
            assert (await current_auditor(client.store, LEDGERS_ROOT)).endswith(f":{second.process.pid}")


async def test_an_auditor_outlives_zookeeper(tmp_path: Path) -> None:
    async with await EmbeddedCluster.start(tmp_path, bookies=1) as cluster:
        cluster.zookeeper.kill()
        auditor = AuditorProcess(cluster, tmp_path, "auditor")
        async with auditor.process:
            await auditor.process.wait_for_line("metadata store is tried again", DEADLINE_S)
            await cluster.zookeeper.restart()
            await auditor.ready()
            await when(auditor.leads)
            cluster.zookeeper.kill()

            async def leads_no_more() -> bool:
                return not await auditor.leads()

            await when(leads_no_more)
            assert (await auditor.get("/livez"))[0] == 200
            assert (await auditor.get("/readyz"))[0] == 503
            await asyncio.sleep(2 * SESSION_TIMEOUT_S)  # longer than the session: it is the outage that is tested
            await cluster.zookeeper.restart()
            await when(auditor.leads)
            assert (await auditor.get("/readyz"))[0] == 200
            store = await ZooKeeperStore.connect(cluster.zookeeper.connect_string)
            assert await Runs(store, LEDGERS_ROOT).list(10) == []
            await store.close()
            assert await auditor.process.stop(DEADLINE_S) == 0
