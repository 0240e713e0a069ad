"""A real Prometheus and ``bkheal exporter``: alerts work without an auditor of bkheal, and with one.

No audit runs here: the tests mark ledgers and record runs as ``bkheal audit run`` does, which other tests cover.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.cluster import LEDGERS_ROOT, EmbeddedCluster
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.maintenance import MaintenanceWindow, MaintenanceWindows
from bookie.metadata.layout import cookie_path
from bookie.metadata.nodes import ensure_path
from bookie.metadata.runs.election import election_path, encode_vote
from bookie.metadata.runs.records import Runs
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.runtime.clock import SystemClock
from bookie.runtime.ports import free_loopback_port
from tests.chart.rule_files import find_program
from tests.deadlines import STATE_S
from tests.integration.auditors import READY, AuditorProcess
from tests.integration.clusters import connected, kill_bookies, start_cluster
from tests.integration.prometheus import Prometheus, launch_exporter
from tests.sessions import LONG_SESSION_S

pytestmark = [pytest.mark.integration]

BOOKIES = 3
SUM = "cluster:bkheal_underreplicated_ledgers:sum"
DATA = ("BkhealBookiesLost", "BkhealLedgersUnderReplicated", "BkhealReplicatorMissing")
HELD_BACK = ("BkhealMarksHeldBack", "BkhealMaintenanceEndsSoon")
DETECTED = "sum(bkheal_time_to_detect_seconds_count)"
AT_ONCE = {"detect_slack_seconds": -1}
"""A loss that is marked before the exporter sees it counts as detected after 0 s."""
ELSEWHERE = BookieId("x1:1")
AUDITORS = ("BkhealAuditorLeaderMissing", "BkhealAuditorNeverScraped", "BkhealClusterStateMissing")


@contextlib.asynccontextmanager
async def session(cluster: EmbeddedCluster) -> AsyncIterator[ZooKeeperStore]:
    store = await ZooKeeperStore.connect(cluster.zookeeper.connect_string, session_timeout_s=LONG_SESSION_S)
    try:
        yield store
    finally:
        await store.close()


async def lose_one(
    cluster: EmbeddedCluster, client: ConnectedBookKeeper, records: FirstSeenDown | None = None
) -> LedgerId:
    """Kill a bookie, record its loss in ``records`` as audits of bkheal do, and mark one of its ledgers."""
    async with await client.create_ledger(LedgerOptions(3, 3, 2)) as writer:
        await writer.submit(b"entry")
    await kill_bookies(cluster, victim := cluster.bookies[0])
    if records is not None:
        await records.reconcile(frozenset({BookieId(victim.bookie_id)}), SystemClock().epoch_ms(), registered=set())
    await client.ports.tasks.marking.mark(writer.ledger_id, [BookieId(victim.bookie_id)])
    return writer.ledger_id


async def test_with_cron_jobs_and_an_exporter_every_alert_on_data_can_fire(tmp_path: Path) -> None:
    find_program("prometheus")
    prometheus = Prometheus(tmp_path, free_loopback_port(random.SystemRandom()))
    async with (
        await start_cluster(tmp_path, BOOKIES) as cluster,
        await connected(cluster) as client,
        session(cluster) as store,
    ):
        runs = Runs(store, LEDGERS_ROOT)
        await runs.write(
            RunRecord("20261120T101500Z-000001", RunKind.REPLICAS, RunCause.COMMAND, "cron", "job/1", RunState.DONE,
                      started_ms=1000, finished_ms=9000, exit_code=1, verdict="findings", findings={"LOST": 3})
        )  # fmt: skip
        await runs.note_success(RunKind.BOOKIES, 1000, 1000)
        prometheus.start()
        async with prometheus.running:
            await prometheus.until_fire("BkhealAuditorNeverScraped")
            async with await launch_exporter(cluster.metadata_uri, tmp_path, prometheus):
                await prometheus.until_fire("BkhealLedgersLost", "BkhealCronAuditStale")
                await prometheus.until_clear(*AUDITORS, *DATA, *HELD_BACK)
                await ensure_path(store, cookie_path(LEDGERS_ROOT, ELSEWHERE))
                down, began_ms = FirstSeenDown(store, LEDGERS_ROOT), SystemClock().epoch_ms() - 36_000_000
                await down.reconcile(frozenset({ELSEWHERE}), began_ms, registered=set())
                await down.note_audited(ELSEWHERE, began_ms, began_ms + 36_000_000)
                await prometheus.until_fire("BkhealDetectionSlow")
                await store.delete(cookie_path(LEDGERS_ROOT, ELSEWHERE))
                lost, now_ms = BookieId(cluster.bookies[0].bookie_id), SystemClock().epoch_ms()
                window = MaintenanceWindow(lost, (lost,), "me@host", now_ms, now_ms + 3_600_000)
                await MaintenanceWindows(store, LEDGERS_ROOT).start(window)
                await lose_one(cluster, client, down)
                await prometheus.until_fire(*DATA, *HELD_BACK)
                assert await prometheus.value(SUM) == 1
                assert await prometheus.is_clear(*AUDITORS)


@pytest.mark.long  # test_exporter.py has both kinds of auditors without their processes
async def test_with_an_apache_auditor_or_ours_an_exporter_misses_nothing_and_counts_nothing_twice(
    tmp_path: Path,
) -> None:
    find_program("prometheus")
    prometheus = Prometheus(tmp_path, free_loopback_port(random.SystemRandom()), thresholds=AT_ONCE)
    async with (
        await start_cluster(tmp_path, BOOKIES) as cluster,
        await connected(cluster) as client,
        session(cluster) as store,
    ):
        await ensure_path(store, election_path(LEDGERS_ROOT), LEDGERS_ROOT)
        vote = await store.create(
            f"{election_path(LEDGERS_ROOT)}/V_", encode_vote("apache:3181"), is_ephemeral=True, is_sequential=True
        )
        ledger_id = await lose_one(cluster, client)
        prometheus.start()
        auditor = AuditorProcess(cluster, tmp_path, "auditor", "--no-ui-enabled")
        async with prometheus.running, auditor.process:
            prometheus.scrape("auditor", (await auditor.process.wait_for_line(READY, STATE_S))[1])
            await prometheus.until_fire("BkhealClusterStateMissing")
            assert await prometheus.is_clear("BkhealAuditorLeaderMissing", *DATA)
            async with await launch_exporter(cluster.metadata_uri, tmp_path, prometheus):
                await prometheus.until_fire(*DATA)
                await prometheus.until_clear(*AUDITORS)
                assert await prometheus.value(DETECTED) == 0, "an earlier loss is counted"
                await ensure_path(store, cookie_path(LEDGERS_ROOT, ELSEWHERE))
                await client.ports.tasks.marking.mark(ledger_id, [ELSEWHERE])
                await prometheus.until_fire("BkhealDetectionSlow")
                assert await prometheus.value(DETECTED) == 1
                await store.delete(vote)

                async def both_show() -> bool:
                    shown = await prometheus.value('count(bkheal_bookies{state="lost"})')
                    return shown == 2 and await prometheus.value("sum(bkheal_auditor_leader)") == 1

                await prometheus.until(both_show, "an auditor that leads beside an exporter")
                assert await prometheus.value(SUM) == 1
                assert await prometheus.is_clear(*AUDITORS, "BkhealAuditorSplitBrain")
