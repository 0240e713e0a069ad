"""The whole path on a ZooKeeper with TLS, logins and nodes of their creator: bookies, an audit in Spark, a replicator.

Every process has the access of its environment, and keeps bkheal's own state below the root that it names. What they
make is closed to others, and the password appears nowhere.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bookie.client.connect import connect
from bookie.client.options import LedgerOptions
from bookie.embedded.cluster import EmbeddedCluster
from bookie.metadata import access
from bookie.metadata.store.credentials import sasl_options
from bookie.model.ids import LedgerId
from tests.deadlines import PROGRAM_S
from tests.worlds.secured import PASSWORD, USER, Secured, environment_of, full_access, make_security

pytestmark = [pytest.mark.integration, pytest.mark.long]

ENTRIES = 20


def test_a_lost_bookie_is_replaced_on_a_locked_down_zookeeper(
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
            ledger_id = await _write(cluster.metadata_uri)
            lost = (await _members(cluster.metadata_uri, ledger_id))[0]
            await next(each for each in cluster.bookies if each.bookie_id == lost).stop()  # and unregister it
            said = await asyncio.to_thread(
                _bkheal, ("audit", "run", "--report-dir", str(tmp_path / "reports")), cluster
            )
            said += await asyncio.to_thread(_bkheal, ("replicator", "--once"), cluster)
            assert lost not in await _members(cluster.metadata_uri, ledger_id)
            closed = await asyncio.to_thread(_acls, cluster, Secured(cluster.zookeeper, tmp_path / "certificates"))
        assert {path for path, owners in closed.items() if owners != OWNERS} == set()
        assert any(path.startswith(f"{STATE_ROOT}/") for path in closed)
        logs = [path.read_text(errors="replace") for path in (tmp_path / "cluster").rglob("log.txt")]
        recorded = [path.read_text(errors="replace") for path in events.rglob("*") if path.is_file()]
        assert recorded
        assert "zookeeper_access" in "".join(recorded) or "bk_ledgers" in "".join(recorded)
        for text in (said, *logs, *recorded):
            assert PASSWORD not in text

    given = replace(full_access(tmp_path / "certificates"), state_root=STATE_ROOT)
    for name, value in environment_of(given).items():
        monkeypatch.setenv(name, value)
    access._in_use.clear()
    asyncio.run(scenario())


STATE_ROOT = "/locked/bkheal"
OWNERS = {("sasl", USER), ("x509", "CN=client")}


async def _write(uri: str) -> LedgerId:
    async with await connect(uri) as client:
        async with await client.create_ledger(LedgerOptions(3, 2, 2)) as writer:
            for number in range(ENTRIES):
                await writer.append(b"%d" % number)
        return writer.ledger_id


async def _members(uri: str, ledger_id: LedgerId) -> Sequence[str]:
    async with await connect(uri) as client:
        metadata = await client.ports.ledgers.read(ledger_id)
        return sorted(metadata.metadata.members())


def _bkheal(words: Sequence[str], cluster: EmbeddedCluster) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "auditor.cli.main", "--log-level", "DEBUG", *words],
        env={**os.environ, "BKHEAL_METADATA_URI": cluster.metadata_uri},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def _acls(cluster: EmbeddedCluster, secured: Secured) -> dict[str, set[tuple[str, str]]]:
    """Whose each node below the roots of the cluster and of our own state is."""
    client = KazooClient(cluster.zookeeper.connect_string, sasl_options=sasl_options(secured.sasl))
    client.start()
    found: dict[str, set[tuple[str, str]]] = {}

    def look(path: str) -> None:
        found[path] = {(each.id.scheme, each.id.id) for each in client.get_acls(path)[0]}
        for name in client.get_children(path):
            look(f"{path}/{name}")

    try:
        for root in ("/ledgers", STATE_ROOT):
            look(root)
        assert set(client.get_children("/")) == {"ledgers", "locked", "zookeeper"}
    finally:
        client.stop()
        client.close()
    return found
