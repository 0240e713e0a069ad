"""A run in Spark reports its findings in a foreign cluster, and changes no more than is permitted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.layout import LayoutKind, ledger_path
from tests.contract.foreign_world import Bkheal, Foreign, a_cluster, in_this_process, others_read, owners_alone
from tests.lent_session import lend_session

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture
def foreign(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Foreign]:
    with a_cluster(zookeeper.connect_string, fresh_root, tmp_path) as made:
        yield made


@pytest.fixture
def bkheal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spark: SparkSession) -> Bkheal:
    """The command's entry point, in this process and its Spark session."""

    lend_session(monkeypatch, spark)
    return in_this_process(monkeypatch, capsys)


def test_a_cluster_of_pulsars_driver_is_audited_and_read_and_gets_no_layout(foreign: Foreign, bkheal: Bkheal) -> None:
    foreign.client.delete(f"{foreign.root}/LAYOUT")
    foreign.client.delete(f"{foreign.root}/available/readonly")  # a container, absent if no bookie is read-only
    before = foreign.tree()
    uri = foreign.uri.replace("zk://", "zk+hierarchical://")
    code, reported = bkheal("shadow", uri, foreign.directory)
    assert (code, "no auditor leads" in reported) == (0, True), reported
    assert foreign.tree() == before
    tasks = f"{foreign.root}/underreplication"
    foreign.client.ensure_path(tasks)
    foreign.client.create(f"{tasks}/leader", b'"pulsar-1:3181"', ephemeral=True)
    led = foreign.tree()
    code, reported = bkheal("shadow", uri, foreign.directory)
    assert (code, "pulsar-1:3181" in reported) == (1, True), reported
    assert foreign.tree() == led
    foreign.client.delete(tasks, recursive=True)
    code, reported = bkheal("audit", uri, foreign.directory)
    assert code == 0, reported
    after = foreign.tree()
    assert {path for path in after if path not in before} == {path for path in after if path.startswith(tasks)}
    assert any(path.endswith("/urL0000000001") for path in after)


def test_a_ledger_without_read_permission_is_only_a_finding_of_an_audit(foreign: Foreign, bkheal: Bkheal) -> None:
    foreign.client.set_acls(ledger_path(LayoutKind.HIERARCHICAL, foreign.root, 1), owners_alone())
    before = foreign.tree()
    code, reported = bkheal("audit", foreign.uri, foreign.directory)
    assert code == 0, reported
    assert "unreadable  1" in reported
    assert foreign.tree() == before


def test_an_audit_without_permission_to_mark_reports_it_and_changes_nothing(foreign: Foreign, bkheal: Bkheal) -> None:
    foreign.client.create(f"{foreign.root}/underreplication")
    foreign.lock("underreplication", others_read())
    before = foreign.tree()
    code, reported = bkheal("audit", foreign.uri, foreign.directory)
    assert code == 78, reported
    for text in (f"create {foreign.root}/underreplication", "world:anyone"):
        assert text in reported
    assert foreign.tree() == before


def test_shadow_mode_needs_only_read_permission(foreign: Foreign, bkheal: Bkheal) -> None:
    foreign.client.ensure_path(f"{foreign.root}/underreplication/ledgers")
    for name in ("underreplication/ledgers", "underreplication", "available/readonly", "available", "00", "LAYOUT", ""):
        foreign.lock(name, others_read())
    before = foreign.tree()
    code, reported = bkheal("shadow", foreign.uri, foreign.directory)
    assert code == 0, reported
    assert "no auditor leads" in reported
    assert foreign.tree() == before


def test_shadow_mode_without_permission_to_read_the_tasks_reports_it(foreign: Foreign, bkheal: Bkheal) -> None:
    foreign.client.ensure_path(f"{foreign.root}/underreplication/ledgers")
    foreign.lock("underreplication/ledgers", owners_alone())
    code, reported = bkheal("shadow", foreign.uri, foreign.directory)
    assert code == 78, reported
    for text in (f"{foreign.root}/underreplication/ledgers", "world:anyone"):
        assert text in reported
