"""A real Prometheus scrapes a real cluster in which a bookie is killed: the alerts fire, and clear with its repair.

The rules are those of the chart, with shorter times. The replicator starts late, so that a backlog appears.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.cluster import EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.model.ids import BookieId
from bookie.runtime.ports import free_loopback_port
from tests.chart.rule_files import CHART, RUNBOOK, find_program
from tests.deadlines import PROGRAM_S, STATE_S
from tests.integration.auditors import SESSION_TIMEOUT_S
from tests.integration.clusters import connected, kill_bookies, start_cluster
from tests.integration.prometheus import WINDOW_S, Prometheus

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

BOOKIES: Final = 4
LEDGERS: Final = 5
BOARDS: Final = ("overview", "run", "replicator", "bookie")
MAY_BE_EMPTY: Final = re.compile(r"> 0")
"""The ending of queries that omit values of 0."""
BACKLOG: Final = ("BkhealLedgersUnderReplicated", "BkhealReplicatorMissing")
GONE: Final = ("BkhealBookiesLost", "BkhealTargetDown")
SETTINGS: Final[Mapping[str, object]] = {
    "bookies-schedule": "off",
    "session-timeout-s": SESSION_TIMEOUT_S,
    "backlog-interval-s": 1,
    "http-port": 0,
    "grpc-port": 0,
    "spark-master": "local[1]",
    "driver-memory": "512m",
}


def launch(name: str, directory: Path, module: str, *words: str) -> ManagedProcess:
    return ManagedProcess.start(name, [sys.executable, "-m", module, *words], log_path=directory / f"{name}.log")


def launch_auditor(cluster: EmbeddedCluster, directory: Path) -> ManagedProcess:
    options = {"metadata-uri": cluster.metadata_uri, "report-dir": directory / "reports", **SETTINGS}
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    return launch("auditor", directory, "auditor.cli.main", "auditor", "--no-ui-enabled", *words)


def launch_replicator(cluster: EmbeddedCluster, directory: Path, *options: str) -> ManagedProcess:
    words = ("--metadata-uri", cluster.metadata_uri, "--http-port", "0", "--poll-interval", "0.5")
    return launch("replicator", directory, "replicator", *words, *options)


def queries(board: str) -> list[str]:
    """Return the queries of a dashboard for all clusters, as sent by Grafana."""
    panels = json.loads((CHART / "files" / "dashboards" / f"{board}.json").read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [
        re.sub(r"\$(cluster|namespace|instance|kind)\b", ".*", one.replace("$__rate_interval", f"{WINDOW_S}s"))
        for one in found
    ]


async def write_ledgers(client: ConnectedBookKeeper) -> Sequence[BookieId]:
    """Write some ledgers, and return the members of one."""
    for _ in range(LEDGERS):
        async with await client.create_ledger(LedgerOptions(3, 3, 2)) as writer:
            for entry in range(20):
                await writer.submit(b"%d" % entry)
    return writer.metadata.fragments[0].members


async def test_alerts_fire_when_a_bookie_is_killed_and_clear_when_all_is_repaired(tmp_path: Path) -> None:
    find_program("prometheus")
    prometheus = Prometheus(tmp_path, free_loopback_port(random.SystemRandom()))
    async with (
        await start_cluster(tmp_path, BOOKIES, serves_metrics=True) as cluster,
        await connected(cluster) as client,
        launch_auditor(cluster, tmp_path) as auditor,
    ):
        for bookie in cluster.bookies:
            prometheus.scrape(bookie.name, bookie.metrics_url)
        prometheus.start()
        async with prometheus.running:
            members = await write_ledgers(client)
            once = launch_replicator(cluster, tmp_path, "--once")  # a writer marks ledgers if a bookie is slow
            assert await once.wait(PROGRAM_S) == 0, once.log_tail()
            ready = await auditor.wait_for_line(r"^auditor ready on (http://\S+) and grpc \S+$", STATE_S)
            prometheus.scrape("auditor", ready[1])

            async def is_healthy() -> bool:
                count = await prometheus.value("cluster:bkheal_underreplicated_ledgers:sum")
                writable = await prometheus.value('cluster_state:bkheal_bookies:max{state="writable"}')
                scraped = await prometheus.value("count(bkheal_build_info)")
                figures = (count, writable, scraped)
                expected = (0.0, float(BOOKIES), float(len(prometheus.targets)))
                return figures == expected and await prometheus.is_clear(*BACKLOG, *GONE)

            async def boards_have_values() -> bool:
                asked = [query for board in BOARDS for query in queries(board) if not MAY_BE_EMPTY.search(query)]
                return all([await prometheus.has_values(query) for query in asked])

            await prometheus.until(is_healthy, "a healthy cluster without alerts")

            victim = next(bookie for bookie in cluster.bookies if bookie.bookie_id == members[0])
            await kill_bookies(cluster, victim)
            fired = await prometheus.until_fire(*BACKLOG, *GONE)
            for alert in (alert for alerts in fired.values() for alert in alerts):
                texts = " ".join(alert["annotations"].values())
                assert "error expanding" not in texts, texts
                assert alert["labels"]["cluster"] == "test"
                name = alert["labels"]["alertname"]
                assert alert["annotations"]["runbook_url"] == f"{RUNBOOK}#{name.lower()}"
            assert [alert["annotations"]["summary"] for alert in fired["BkhealBookiesLost"]] == ["1 bookies are lost"]
            down = [alert["labels"]["instance"] for alert in fired["BkhealTargetDown"]]  # others may only be slow
            assert prometheus.targets[victim.name] in down

            async with launch_replicator(cluster, tmp_path) as replicator:
                served = await replicator.wait_for_line(r"^replicator metrics on (http://\S+)$", STATE_S)
                prometheus.scrape("replicator", served[1])
                await prometheus.until_clear(*BACKLOG)
                await prometheus.until(boards_have_values, "values in every panel")
                assert [task.ledger_id for task in await client.ports.tasks.list()] == []
                await prometheus.until_fire(*GONE)

                await victim.start()
                prometheus.scrape(victim.name, victim.metrics_url)
                await prometheus.until(is_healthy, "all alerts clear")
                copied = await prometheus.value("sum(bkheal_replicator_copied_entries_total)")
                assert copied is not None
                assert copied > 0
