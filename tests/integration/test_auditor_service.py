"""Real auditor processes: without ZooKeeper, cut off from it, paused, stopped gracefully.

The gate covers their parts: ``test_operator_guide.py`` kills a leader and ZooKeeper, the contract of elections ends the
sessions of leaders, ``test_bookie_process.py`` starts processes without ZooKeeper. No audit runs here, so no Spark
starts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.embedded.cluster import LEDGERS_ROOT, EmbeddedCluster
from bookie.metadata.runs.election import current_auditor
from bookie.metadata.runs.records import Runs
from bookie.metadata.store.zookeeper import ZooKeeperStore
from tests.deadlines import STATE_S
from tests.integration.auditors import AuditorProcess, votes, when
from tests.integration.clusters import connected, start_cluster
from tests.sessions import expire

pytestmark = [pytest.mark.integration, pytest.mark.long]

SOON_STALE_S = 4
"""The session timeout of an auditor without a rival. Without ZooKeeper it leads only for a part of it."""


def auditor_of(cluster: EmbeddedCluster, directory: Path, name: str, *options: str) -> AuditorProcess:
    return AuditorProcess(cluster, directory, name, "--no-ui-enabled", *options)


async def test_a_paused_leader_whose_session_ended_resumes_as_a_follower(tmp_path: Path) -> None:
    async with await start_cluster(tmp_path, 1) as cluster, await connected(cluster) as client:
        first = await auditor_of(cluster, tmp_path, "auditor-1").ready()
        second = auditor_of(cluster, tmp_path, "auditor-2")
        async with first.process, second.process:
            await when(first.leads)
            await second.ready()

            async def both_vote() -> bool:
                return await votes(client.store) == 2

            await when(both_vote)
            assert (await current_auditor(client.store, LEDGERS_ROOT)).endswith(f":{first.process.pid}")
            assert not await second.leads()

            first.process.pause()
            await expire(cluster.zookeeper, first.process)
            await when(second.leads)
            first.process.resume()

            async def only_the_second_leads() -> bool:
                return not await first.leads() and await both_vote()

            await when(only_the_second_leads)
            assert await second.leads()
            assert (await current_auditor(client.store, LEDGERS_ROOT)).endswith(f":{second.process.pid}")

            for auditor in (second, first):
                assert await auditor.process.stop(STATE_S) == 0, auditor.process.log_tail(40)
            assert await votes(client.store) == 0


async def test_an_auditor_survives_an_outage_of_zookeeper(tmp_path: Path) -> None:
    async with await start_cluster(tmp_path, 1) as cluster:
        cluster.zookeeper.kill()
        auditor = auditor_of(cluster, tmp_path, "auditor", "--session-timeout-s", str(SOON_STALE_S))
        async with auditor.process:
            await auditor.process.wait_for_line("metadata store is not available, trying again", STATE_S)
            await cluster.zookeeper.restart()
            await auditor.ready()
            await when(auditor.leads)
            cluster.zookeeper.kill()

            async def leads_no_more() -> bool:
                return not await auditor.leads()

            await when(leads_no_more)
            assert (await auditor.get("/livez"))[0] == 200
            assert (await auditor.get("/readyz"))[0] == 503
            await cluster.zookeeper.restart()
            await when(auditor.leads)
            await auditor.served.until_status("/readyz", 200)
            store = await ZooKeeperStore.connect(cluster.zookeeper.connect_string)
            assert await Runs(store, LEDGERS_ROOT).list(10, now_ms=0) == []
            await store.close()
            assert await auditor.process.stop(STATE_S) == 0
