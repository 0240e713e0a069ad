"""Apache's auditor leads and its workers repair: a real Prometheus with the chart's alerts, fed by ``bkheal exporter``.

An auditor of bkheal is a candidate. Every bookie is in every ensemble, so Apache's workers cannot repair the copies of
a lost bookie until it returns, and the backlog stays visible.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bookie.embedded.apache import LEDGERS_ROOT
from bookie.metadata.runs.election import current_auditor
from bookie.runtime.ports import free_loopback_port
from tests.apache.waiting import until
from tests.apache.worlds import QUICK, ApacheWorld, check_healthy, connect, no_work_left, written
from tests.chart.rule_files import find_program
from tests.deadlines import PROGRAM_S
from tests.integration.auditors import AuditorProcess
from tests.integration.prometheus import Prometheus, launch_exporter

pytestmark = [pytest.mark.apache, pytest.mark.long]

BACKLOG = "cluster:bkheal_underreplicated_ledgers:sum"
DETECTION = "BkhealDetectionSlow"
"""This alert covers the last day. Here its threshold is below 0, so it fires for any time to detection."""
LEDGERS = 5
AUDITORS = (
    "BkhealAuditorLeaderMissing",
    "BkhealAuditorNeverScraped",
    "BkhealAuditorSplitBrain",
    "BkhealClusterStateMissing",
)


async def test_alerts_fire_on_marks_of_apaches_auditor_and_clear_after_its_workers_are_done(
    lent: ApacheWorld, tmp_path: Path
) -> None:
    find_program("prometheus")
    port = free_loopback_port(random.SystemRandom())
    prometheus = Prometheus(tmp_path, port, thresholds={"detect_slack_seconds": -1})
    ledgers = await written(lent.java, [(4, 2, 2)], LEDGERS)
    await lent.cluster.start_auto_recovery(QUICK)
    async with await connect(lent.uri) as client:
        await until(lambda: current_auditor(client.store, LEDGERS_ROOT), bool, "Apache's auditor leads", PROGRAM_S)
        prometheus.start()
        auditor = AuditorProcess(lent.cluster, tmp_path, "auditor", "--no-ui-enabled")
        exporter = await launch_exporter(lent.uri, tmp_path, prometheus)
        async with prometheus.running, exporter, auditor.process:
            prometheus.scrape("auditor", (await auditor.ready()).base)

            async def is_healthy_without_alerts() -> bool:
                led_by_apache = await prometheus.value("max(bkheal_auditor_other_leads)") == 1
                writable = await prometheus.value('max(bkheal_bookies{state="writable"})')
                firing = await prometheus.firing()
                is_quiet = firing is not None and not firing.keys() - {DETECTION}
                return led_by_apache and writable == len(lent.cluster.bookies) and is_quiet

            await prometheus.until(
                is_healthy_without_alerts, "a healthy cluster that Apache's auditor leads, without alerts"
            )
            assert await prometheus.is_clear(DETECTION)

            lost = lent.cluster.bookies[0]
            await lost.stop()
            await prometheus.until_fire("BkhealBookiesLost", "BkhealLedgersUnderReplicated", DETECTION)

            async def all_are_marked() -> bool:
                return await prometheus.value(BACKLOG) == LEDGERS

            await prometheus.until(all_are_marked, "every mark of Apache's auditor")
            assert await prometheus.is_clear(*AUDITORS)

            await lost.start()
            await no_work_left(lent, client)
            await prometheus.until(
                is_healthy_without_alerts, "no alert after Apache's workers have checked every ledger"
            )
    await check_healthy(lent.java, ledgers)
