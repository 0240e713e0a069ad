"""``bkheal exporter`` as a process: its options determine its output, as options of audits determine their marks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bookie.embedded.cluster import EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.layout import cookie_path
from bookie.metadata.nodes import ensure_path
from bookie.model.ids import BookieId
from tests.deadlines import STATE_S
from tests.integration.clusters import connected, start_cluster
from tests.integration.served import Served

pytestmark = pytest.mark.integration

LOST = (BookieId("x1:1"), BookieId("x2:1"))


async def exporter(cluster: EmbeddedCluster, directory: Path, name: str, *options: str) -> Served:
    words = ("--metadata-uri", cluster.metadata_uri, "--http-port", "0", "--missing-share-max", "0.9", *options)
    command = [sys.executable, "-m", "auditor.cli.main", "exporter", *words]
    process = ManagedProcess.start(name, command, log_path=directory / f"{name}.log")
    line = await process.wait_for_line(r"^exporter metrics on (http://\S+)$", STATE_S)
    return Served(process, line[1])


async def test_the_hold_back_reasons_of_an_exporter_depend_on_its_options(tmp_path: Path) -> None:
    async with await start_cluster(tmp_path, 1) as cluster, await connected(cluster) as client:
        topology = tmp_path / "topology.json"
        places = {bookie: {"rack": "/r2"} for bookie in LOST} | {cluster.bookies[0].bookie_id: {"rack": "/r1"}}
        topology.write_text(json.dumps(places))
        racks = ("--topology-file", str(topology))
        root = client.cluster.root
        for bookie in LOST:
            await ensure_path(client.store, cookie_path(root, bookie))
        await client.ports.tasks.initialize()
        await client.ports.tasks.switches.set_lost_bookie_delay_s(600)
        await FirstSeenDown(client.store, root).reconcile(
            frozenset(LOST), client.ports.clock.epoch_ms(), registered=set()
        )
        default = await exporter(cluster, tmp_path, "default", *racks)
        without = await exporter(cluster, tmp_path, "without", *racks, "--rack-outage-delay-s", "0")
        async with default.process, without.process:
            await default.until_status("/readyz", 200)
            await without.until_status("/readyz", 200)
            shown = [await each.values() for each in (default, without)]
            held = "bkheal_held_back_bookies"
            assert [(each[held, "rack_outage"], each[held, "delay"]) for each in shown] == [(2, 0), (0, 2)]
