"""The command of the chart's CronJob runs here, in this process and its Spark session."""

from __future__ import annotations

import random
import sys
import urllib.request
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from auditor.cli.main import main
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.runtime.ports import free_loopback_port
from tests.chart.rendering import load_values, need_helm, pods, render
from tests.deadlines import STATE_S
from tests.lent_session import lend_session
from tests.spark.audit_world import opened

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def test_a_cron_job_audits_and_serves_its_metrics_during_the_run(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_helm()
    port = free_loopback_port(random.SystemRandom())
    made = render({**load_values("cron-local"), "cron": {"ports": {"http": port}}})
    [container] = [
        pod.spec["containers"][0] for pod in pods(made) if pod.owner["metadata"]["name"].endswith("-audit-bookies")
    ]
    text = made.one("ConfigMap", "demo-bkheal-config")["data"]["audit.toml"].replace("0.0.0.0", "127.0.0.1")
    (tmp_path / "bkheal.toml").write_text(text.replace("/var/lib/bkheal/reports", str(tmp_path / "reports")))
    shown: list[str] = []

    def look() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=STATE_S) as answer:
            shown.append(answer.read().decode())

    lend_session(monkeypatch, spark, started=look)
    monkeypatch.setattr(sys, "argv", ["bkheal", *container["args"]])
    monkeypatch.setenv("BKHEAL_CONFIG", str(tmp_path / "bkheal.toml"))
    monkeypatch.chdir(tmp_path)
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        monkeypatch.setenv("BKHEAL_METADATA_URI", place.uri)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    [metrics] = shown
    assert 'bkheal_audit_running{kind="bookies"} 1.0' in metrics.splitlines()
    assert any((tmp_path / "reports").iterdir())
