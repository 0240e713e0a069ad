"""An audit from a snapshot that the admin server of a real ZooKeeper creates and sends.

ZooKeeper comes from pyspark. The admin server runs on Jetty, which comes from Pulsar.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bookie.embedded import zookeeper as embedded
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.port import StoreUnavailableError
from bookie.runtime.ports import free_loopback_port
from spark_jobs.runs.run import AuditResult
from spark_jobs.snapshot.errors import SnapshotError
from tests.pulsar.cluster import pulsar_lib
from tests.spark.audit_world import Place, closed, opened

pytestmark = [pytest.mark.pulsar, pytest.mark.long]

IDENTITY = "digest super:hunter2"
HEALTHY = closed("a:1", "b:1", "c:1")
LEDGERS = dict.fromkeys([*range(100), *range(10_000, 10_050)], HEALTHY) | {200: closed("a:1", "x:1")}
INTERVAL = 2_000_000_000
"""ZooKeeper up to 3.9.5 takes this number as microseconds."""


@dataclass(frozen=True)
class Admin:
    url: str
    server: EmbeddedZooKeeper


@pytest.fixture
def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    port = free_loopback_port(random.SystemRandom())
    command, write = embedded._command, embedded._write_configuration

    def with_jetty(launch: Any) -> list[str]:
        words = command(launch)
        jars = embedded._jars(("jackson-*.jar", "commons-io-*.jar", "commons-cli-*.jar"))
        jars += [
            str(jar) for pattern in ("jetty-*.jar", "javax.servlet-api*.jar") for jar in pulsar_lib().glob(pattern)
        ]
        at = words.index("-cp")
        words[at + 1] = os.pathsep.join([words[at + 1], *jars])
        properties = [f"-Dzookeeper.admin.rateLimiterIntervalInMS={INTERVAL}"]
        return [*words[:at], *properties, "-Dzookeeper.serializeLastProcessedZxid.enabled=true", *words[at:]]

    def with_admin(launch: Any) -> None:
        write(launch)
        file = launch.directory / "zoo.cfg"
        settings = f"admin.enableServer=true\nadmin.serverPort={port}\nadmin.serverAddress=127.0.0.1\n"
        file.write_text(file.read_text().replace("admin.enableServer=false\n", settings))

    monkeypatch.setattr(embedded, "_command", with_jetty)
    monkeypatch.setattr(embedded, "_write_configuration", with_admin)
    server = asyncio.run(EmbeddedZooKeeper.start(tmp_path / "zookeeper", is_durable=False))
    yield Admin(f"http://127.0.0.1:{port}", server)
    asyncio.run(server.stop())


def test_zookeepers_admin_server_sends_a_snapshot_that_can_be_audited(
    spark: SparkSession, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(admin.server.connect_string, "/ledgers", tmp_path) as place:
        place.register("a:1", "b:1", "c:1")
        place.add_cookies("a:1", "b:1", "c:1", "x:1")
        place.create(LEDGERS)
        identity = tmp_path / "identity"
        identity.write_text(IDENTITY)

        def audit(**settings: Any) -> AuditResult:
            return place.audit(spark, snapshot_url=admin.url, **settings)

        with pytest.raises(SnapshotError, match="refused with status 401"):
            audit()
        result = audit(snapshot_authorization_file=identity)
        _assert_audited(place, admin, result)
        with pytest.raises(StoreUnavailableError, match="limits how often"):
            audit(snapshot_authorization_file=identity)
        monkeypatch.setenv("BKHEAL_SNAPSHOT_AUTHORIZATION", IDENTITY)
        asyncio.run(admin.server.restart())  # the limit on snapshots does not outlast a restart
        place.create({201: closed("b:1", "x:1")})
        result = audit(is_dry_run=True)
        live = place.audit(spark, is_dry_run=True)
        assert result.summary.severities == live.summary.severities
        assert result.summary.counts == replace(live.summary.counts, vanished=0)
        assert list(place.report_dir.glob(".snapshot-*")) == []


def _assert_audited(place: Place, admin: Admin, result: AuditResult) -> None:
    read = result.summary.snapshot
    assert read is not None
    assert (read.file, read.ledgers, read.read_again) == (admin.url, len(LEDGERS) - 1, 1)
    assert result.summary.is_complete
    assert (set(place.marked()), place.audited()) == ({200}, set())
    assert list(place.report_dir.glob(".snapshot-*")) == []
    texts = [path.read_bytes() for path in place.report_dir.rglob("*") if path.is_file()]
    assert not any(b"hunter2" in text for text in texts)
