"""Apache's bookies with ``zkEnableSecurity=true``, and bkheal with ACLs of the creator: one ZooKeeper, one user."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bookie.client.connect import connect
from bookie.client.options import LedgerOptions
from bookie.embedded import apache
from bookie.embedded.apache import ApacheCluster, java_properties
from bookie.embedded.apache_jars import ApacheJvm
from bookie.embedded.apache_settings import ApacheOptions
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata import access
from bookie.metadata.store.credentials import sasl_options
from bookie.model.ids import LedgerId
from tests.apache.worlds import patient
from tests.deadlines import PROGRAM_S
from tests.worlds.secured import PASSWORD, USER, environment_of, full_access, make_security

pytestmark = [pytest.mark.apache, pytest.mark.long]

ENTRIES = 10


class LockedCluster(ApacheCluster):
    """Its programs log in at ZooKeeper."""

    @property
    def jaas(self) -> Path | None:
        path = self.directory / "client-jaas.conf"
        path.touch(mode=0o600)
        module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
        path.write_text(f'Client {{\n  {module}\n  username="{USER}"\n  password="{PASSWORD}";\n}};\n')
        return path


def test_apaches_nodes_and_ours_are_of_one_creator_and_each_works_with_those_of_the_other(
    quick_spark: None, apache_jvm: ApacheJvm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = make_security(tmp_path / "certificates")
    login = replace(full_access(tmp_path / "certificates"), tls_ca=None, tls_cert=None, tls_key=None)
    for name, value in environment_of(login).items():
        monkeypatch.setenv(name, value)
    access._in_use.clear()

    def logging_in(log_settings: Path, jaas: Path | None) -> dict[str, str]:
        return java_properties(log_settings, jaas) | {"zookeeper.sasl.client": "true"}

    monkeypatch.setattr(apache, "java_properties", logging_in)

    async def scenario() -> None:
        zookeeper = await EmbeddedZooKeeper.start(tmp_path / "zookeeper", is_durable=False, security=security)
        options = patient(ApacheOptions(extra={"zkEnableSecurity": "true"}))
        async with LockedCluster(tmp_path, zookeeper, apache_jvm, options) as cluster:
            await cluster.shell("initnewcluster")
            await cluster.add_bookies(4)
            ledger_id = await _write(cluster.metadata_uri)
            lost = await _members(cluster.metadata_uri, ledger_id)
            await next(each for each in cluster.bookies if each.bookie_id == lost[0]).stop()
            await asyncio.to_thread(_bkheal, cluster, "audit", "run", "--report-dir", str(tmp_path / "reports"))
            await asyncio.to_thread(_bkheal, cluster, "replicator", "--once")
            assert lost[0] not in await _members(cluster.metadata_uri, ledger_id)
            printed = await cluster.shell("readledger", "-ledgerid", str(ledger_id))
            assert printed.count("Eid=") == ENTRIES, printed
            foreign = {path: owners for path, owners in _owners(cluster, login).items() if owners != {("sasl", USER)}}
            assert foreign == {}

    asyncio.run(scenario())


async def _write(uri: str) -> LedgerId:
    async with await connect(uri) as client:
        async with await client.create_ledger(LedgerOptions(3, 2, 2)) as writer:
            for number in range(ENTRIES):
                await writer.append(b"%d" % number)
        return writer.ledger_id


async def _members(uri: str, ledger_id: LedgerId) -> list[str]:
    async with await connect(uri) as client:
        return sorted((await client.ports.ledgers.read(ledger_id)).metadata.members())


def _bkheal(cluster: ApacheCluster, *words: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "auditor.cli.main", *words],
        env={**os.environ, "BKHEAL_METADATA_URI": cluster.metadata_uri},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def _owners(cluster: ApacheCluster, login: access.ZooKeeperAccess) -> dict[str, set[tuple[str, str]]]:
    """Whose each node below the roots of the cluster and of our own state is."""
    client = KazooClient(cluster.zookeeper.connect_string, sasl_options=sasl_options(login))
    client.start()
    found: dict[str, set[tuple[str, str]]] = {}
    paths = ["/ledgers", "/bkheal"]
    try:
        while paths:
            path = paths.pop()
            found[path] = {(each.id.scheme, each.id.id) for each in client.get_acls(path)[0]}
            paths += [f"{path}/{name}" for name in client.get_children(path)]
    finally:
        client.stop()
        client.close()
    return found
