"""The listeners of the service."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import aiohttp
from typing_extensions import override

from auditor.api.control import ServiceStatus
from auditor.api.http.server import HttpApi
from auditor.metrics.service_metrics import AuditorMetrics
from auditor.service.listeners import api_listeners
from auditor.service.service import AuditorService
from auditor.service.settings import ServiceSettings
from tests.worlds.api import TwinControl, TwinUpkeep
from tests.worlds.clocks import ManualClock


class CountedMetrics(AuditorMetrics):
    """Metrics that count how often they are set."""

    count = 0

    @override
    def show(self, status: ServiceStatus) -> None:
        self.count += 1
        super().show(status)


async def test_many_metrics_requests_share_one_rendering_on_the_event_loop(tmp_path: Path) -> None:
    clock, control = ManualClock(), TwinControl()
    metrics = CountedMetrics("1", clock)
    settings = ServiceSettings(metadata_uri="zk://h:1/ledgers", http_port=0, grpc_port=0, report_dir=tmp_path)
    http = api_listeners(cast(AuditorService, control), settings, metrics, clock, TwinUpkeep())[0]
    assert isinstance(http, HttpApi)
    await http.start()
    try:
        async with aiohttp.ClientSession() as session:

            async def leads() -> bool:
                async with session.get(f"http://127.0.0.1:{http.port}/metrics") as reply:
                    assert reply.status == 200
                    return "\nbkheal_auditor_leader 1.0\n" in await reply.text()

            assert [await leads() for _ in range(20)] == [True] * 20
            assert metrics.count == 1
            clock.now_s, control.is_leader = 1.0, False
            assert [await leads() for _ in range(20)] == [False] * 20
            assert metrics.count == 2
    finally:
        await http.stop()
