"""Two auditors, with clients connected to the one that does not lead."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bookie.embedded.cluster import EmbeddedCluster
from bookie.runtime.ports import free_loopback_port
from tests.deadlines import STATE_S
from tests.integration.auditors import AuditorProcess, votes, when
from tests.integration.clusters import connected, start_cluster
from tests.integration.served import Served

pytestmark = pytest.mark.integration

RUN = "20261120T101500Z-0a1b2c"


def auditor_on(cluster: EmbeddedCluster, directory: Path, host: str, ports: tuple[int, int, int]) -> AuditorProcess:
    """Start an auditor on a separate address, because all auditors of a service have the same ports."""
    directory.mkdir()
    http, grpc, leader_http = map(str, ports)
    return AuditorProcess(
        cluster,
        directory,
        host,
        *("--no-ui-enabled", "--http-host", host, "--grpc-host", host, "--advertised-host", host),
        *("--http-port", http, "--grpc-port", grpc, "--leader-http-port", leader_http),
    )


async def test_a_standby_forwards_clients_to_the_leader_and_then_to_its_successor(tmp_path: Path) -> None:
    rng = random.SystemRandom()
    ports = (free_loopback_port(rng), free_loopback_port(rng), free_loopback_port(rng))
    async with await start_cluster(tmp_path, 1) as cluster, await connected(cluster) as client:
        first = await auditor_on(cluster, tmp_path / "first", "127.0.0.2", ports).ready()
        second = auditor_on(cluster, tmp_path / "second", "127.0.0.3", ports)
        report = tmp_path / "first" / "reports" / RUN / "summary.json"
        report.parent.mkdir(parents=True)
        report.write_text('{"written": "by the first"}')
        async with first.process, second.process:
            await when(first.leads)
            await second.ready()

            async def both_vote() -> bool:
                return await votes(client.store) == 2

            await when(both_vote)
            through = Served(second.process, f"http://127.0.0.3:{ports[2]}")
            names = {each: (await each.status())["process"] for each in (first, second)}

            async def leads_to(auditor: AuditorProcess) -> bool:
                try:
                    code, body = await through.get("/api/v1/status")
                except OSError:  # there is no leader at the moment
                    return False
                return code == 200 and json.loads(body)["process"] == names[auditor]

            assert names[first] != names[second]
            await when(lambda: leads_to(first))
            assert not (tmp_path / "second" / "reports" / RUN).exists()
            for auditor in (second.served, through):  # the second auditor requests it from the first
                assert await auditor.get(f"/reports/{RUN}/summary.json") == (200, '{"written": "by the first"}')
            assert (await second.get("/reports/20261120T101500Z-ffffff/summary.json"))[0] == 404

            assert await first.process.stop(STATE_S) == 0, first.process.log_tail(40)
            await when(lambda: leads_to(second))
            assert await second.process.stop(STATE_S) == 0, second.process.log_tail(40)
