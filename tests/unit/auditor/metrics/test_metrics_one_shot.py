"""The metrics of a one-shot run while it is active, over a real socket."""

from __future__ import annotations

import urllib.request

from auditor.metrics.one_shot import OneShotMetrics, served
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from bookie.runtime.telemetry.status_settings import StatusServerSettings
from spark_jobs.runs.port import Phase, ProgressEvent


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


def test_without_a_port_there_is_no_listener() -> None:
    with served(OneShotMetrics(RunKind.BOOKIES, "1", SystemClock()), None) as port:
        assert port is None
