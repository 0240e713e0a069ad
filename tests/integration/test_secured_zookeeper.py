"""Bookies, an audit in Spark and a replicator on a ZooKeeper with TLS, logins and nodes closed to other users.

Each process takes its credentials and the root of bkheal's own state from its environment. No output has the password.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.embedded.cluster import EmbeddedCluster
from tests.worlds.secured import PASSWORD, USER, Secured, full_access, make_security
from tests.worlds.secured_commands import bkheal, members, owners_below, set_access, write_ledger

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.needs("openssl")]

STATE_ROOT = "/locked/bkheal"
OWNERS = {("sasl", USER), ("x509", "CN=client")}


def test_a_lost_bookie_is_replaced_in_a_cluster_with_a_secured_zookeeper(
    quick_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = make_security(tmp_path / "certificates")
    events = tmp_path / "events"
    events.mkdir()
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir {events.as_uri()}\nspark.eventLog.compress false\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))

    async def scenario() -> None:
        cluster = await EmbeddedCluster.start(
            tmp_path / "cluster", bookies=4, is_zookeeper_durable=False, security=security
        )
        async with cluster:
            uri = cluster.metadata_uri
            ledger_id = await write_ledger(uri)
            lost = (await members(uri, ledger_id))[0]
            await next(each for each in cluster.bookies if each.bookie_id == lost).stop()  # a stop also unregisters it
            reported = await asyncio.to_thread(bkheal, uri, "audit", "run", "--report-dir", str(tmp_path / "reports"))
            reported += await asyncio.to_thread(bkheal, uri, "replicator", "--once")
            assert lost not in await members(uri, ledger_id)
            login = Secured(cluster.zookeeper, tmp_path / "certificates").sasl
            owners = await asyncio.to_thread(owners_below, cluster.zookeeper.connect_string, login, "/")
        assert {path.split("/")[1] for path in owners} == {"", "ledgers", "locked", "zookeeper"}
        closed = {path for path in owners if f"{path}/".startswith(("/ledgers/", f"{STATE_ROOT}/"))}
        assert {path: owners[path] for path in closed if owners[path] != OWNERS} == {}
        assert {"/ledgers", STATE_ROOT} < closed
        assert any(path.startswith(f"{STATE_ROOT}/") for path in closed)
        logs = [path.read_text(errors="replace") for path in (tmp_path / "cluster").rglob("log.txt")]
        recorded = [path.read_text(errors="replace") for path in events.rglob("*") if path.is_file()]
        assert recorded
        assert "LedgerTasks" in "".join(recorded)
        for text in (reported, *logs, *recorded):
            assert PASSWORD not in text

    set_access(monkeypatch, replace(full_access(tmp_path / "certificates"), state_root=STATE_ROOT))
    asyncio.run(scenario())
