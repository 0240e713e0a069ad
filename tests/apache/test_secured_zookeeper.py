"""Apache's bookies with ``zkEnableSecurity=true``, and bkheal with ACLs of the creator: one ZooKeeper, one user."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.embedded import apache
from bookie.embedded.apache import ApacheCluster, java_properties
from bookie.embedded.apache_jars import ApacheJvm
from bookie.embedded.apache_settings import ApacheOptions
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from tests.apache.worlds import patient
from tests.worlds.secured import PASSWORD, USER, full_access, make_security
from tests.worlds.secured_commands import ENTRIES, bkheal, members, owners_below, set_access, write_ledger

pytestmark = [pytest.mark.apache, pytest.mark.long, pytest.mark.needs("openssl")]


class LockedCluster(ApacheCluster):
    """A cluster whose programs log in at ZooKeeper."""

    @property
    def jaas(self) -> Path | None:
        path = self.directory / "client-jaas.conf"
        path.touch(mode=0o600)
        module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
        path.write_text(f'Client {{\n  {module}\n  username="{USER}"\n  password="{PASSWORD}";\n}};\n')
        return path


def test_apaches_nodes_and_ours_have_one_creator_and_each_side_can_use_the_others(
    quick_spark: None, apache_jvm: ApacheJvm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = make_security(tmp_path / "certificates")
    login = replace(full_access(tmp_path / "certificates"), tls_ca=None, tls_cert=None, tls_key=None)
    set_access(monkeypatch, login)

    def logging_in(log_settings: Path, jaas: Path | None) -> dict[str, str]:
        return java_properties(log_settings, jaas) | {"zookeeper.sasl.client": "true"}

    monkeypatch.setattr(apache, "java_properties", logging_in)

    async def scenario() -> None:
        zookeeper = await EmbeddedZooKeeper.start(tmp_path / "zookeeper", is_durable=False, security=security)
        options = patient(ApacheOptions(extra={"zkEnableSecurity": "true"}))
        async with LockedCluster(tmp_path, zookeeper, apache_jvm, options) as cluster:
            uri = cluster.metadata_uri
            await cluster.shell("initnewcluster")
            await cluster.add_bookies(4)
            ledger_id = await write_ledger(uri)
            lost = (await members(uri, ledger_id))[0]
            await next(each for each in cluster.bookies if each.bookie_id == lost).stop()
            await asyncio.to_thread(bkheal, uri, "audit", "run", "--report-dir", str(tmp_path / "reports"))
            await asyncio.to_thread(bkheal, uri, "replicator", "--once")
            assert lost not in await members(uri, ledger_id)
            printed = await cluster.shell("readledger", "-ledgerid", str(ledger_id))
            assert printed.count("Eid=") == ENTRIES, printed
            owners = owners_below(zookeeper.connect_string, login, "/ledgers", "/bkheal")
            assert {path: each for path, each in owners.items() if each != {("sasl", USER)}} == {}

    asyncio.run(scenario())
