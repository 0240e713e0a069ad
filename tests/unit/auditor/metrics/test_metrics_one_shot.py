"""The metrics of a one-shot run while it is active, over a real socket."""

from __future__ import annotations

import urllib.request

from auditor.metrics.one_shot import OneShotMetrics, served
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from bookie.runtime.telemetry.status_settings import StatusServerSettings
from spark_jobs.runs.port import Phase, ProgressEvent
from tests.worlds.clocks import ManualClock


def scrape(port: int, path: str = "metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
        return str(answer.read().decode())


def test_a_run_exports_its_own_kind_and_progress_and_no_cluster_metrics() -> None:
    metrics = OneShotMetrics(RunKind.REPLICAS, "1.2.3", SystemClock())
    with served(metrics, StatusServerSettings(0)) as port:
        assert port is not None
        metrics.on_progress(ProgressEvent(Phase.ASK, 30, 120))
        text = scrape(port)
        assert 'bkheal_audit_running{kind="replicas"} 1.0' in text
        assert 'bkheal_audit_progress_ratio{kind="replicas"} 0.25' in text
        assert 'bkheal_build_info{component="auditor",version="1.2.3"} 1.0' in text
        assert "bookies" not in text
        assert "bkheal_auditor_leader" not in text
        assert scrape(port, "livez")
        metrics.on_progress(ProgressEvent(Phase.PUBLISH))
        assert 'bkheal_audit_progress_ratio{kind="replicas"} 0.0' in scrape(port)


def test_a_run_that_waits_for_another_one_is_not_under_way() -> None:
    clock = ManualClock()
    metrics = OneShotMetrics(RunKind.BOOKIES, "1", clock)

    def values() -> tuple[float, ...]:
        return tuple(sample.value for family in metrics.collect() for sample in family.samples)

    clock.now_s = 10
    assert values() == (1, 10, 0)
    metrics.on_progress(ProgressEvent(Phase.WAIT))
    clock.now_s = 3600
    assert values() == (0, 0, 0)
    metrics.on_progress(ProgressEvent(Phase.PLAN))
    clock.now_s = 3605
    assert values() == (1, 5, 0)


def test_without_a_port_there_is_no_listener() -> None:
    with served(OneShotMetrics(RunKind.BOOKIES, "1", SystemClock()), None) as port:
        assert port is None
