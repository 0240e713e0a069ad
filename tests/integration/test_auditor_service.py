"""Real auditor processes on a real cluster: killed, cut off from ZooKeeper, stopped; a killed bookie leads to tasks."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import connect
from bookie.embedded.cluster import LEDGERS_ROOT, EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.metadata.election import current_auditor
from bookie.metadata.runs import Runs
from bookie.metadata.zookeeper import ZooKeeperStore
from bookie.model.run import RunCause, RunState
from tests.integration.auditors import DEADLINE_S, SESSION_TIMEOUT_S, AuditorProcess, votes, when

pytestmark = pytest.mark.integration


async def test_a_killed_leader_is_followed_and_a_killed_bookie_leads_to_tasks(tmp_path: Path) -> None:
    async with (
        await EmbeddedCluster.start(
            tmp_path, bookies=4, is_zookeeper_durable=False, session_timeout_s=SESSION_TIMEOUT_S
        ) as cluster,
        await connect(cluster.metadata_uri) as client,
    ):
        async with await client.create_ledger(LedgerOptions(3, 3, 2)) as writer:
            for entry in range(20):
                await writer.submit(f"entry {entry}".encode())
        command = [sys.executable, "-m", "replicator", "--metadata-uri", cluster.metadata_uri, "--once"]
        once = ManagedProcess.start("replicator", command, log_path=tmp_path / "replicator.log")
        assert await once.wait(DEADLINE_S) == 0, once.log_tail()  # a writer marks what a slow bookie lacks
        members = (await client.ports.ledgers.read(writer.ledger_id)).metadata.fragments[0].members
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
                return 'bkheal_underreplicated_ledgers{severity="below_write_quorum"} 1.0' in body

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
        await EmbeddedCluster.start(
            tmp_path, bookies=1, is_zookeeper_durable=False, session_timeout_s=SESSION_TIMEOUT_S
        ) as cluster,
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
    async with await EmbeddedCluster.start(tmp_path, bookies=1, session_timeout_s=SESSION_TIMEOUT_S) as cluster:
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
            await asyncio.sleep(1.2 * SESSION_TIMEOUT_S)  # longer than the session: it is the outage that is tested
            await cluster.zookeeper.restart()
            await when(auditor.leads)
            assert (await auditor.get("/readyz"))[0] == 200
            store = await ZooKeeperStore.connect(cluster.zookeeper.connect_string)
            assert await Runs(store, LEDGERS_ROOT).list(10) == []
            await store.close()
            assert await auditor.process.stop(DEADLINE_S) == 0
