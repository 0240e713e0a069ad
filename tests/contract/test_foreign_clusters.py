"""Clusters that we must not touch: other drivers and layouts, and nodes whose ACL denies us access.

Each is refused with a sentence about what to do, with an exit code and without a traceback, and nothing is changed in
the cluster. The tests in tests/spark cover what a run in Spark detects.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.access import DEFAULT_STATE_ROOT
from bookie.metadata.layout import LayoutKind, ledger_path
from bookie.metadata.own_state import record_path, state_path
from spark_jobs.one_shot import run as one_shot
from tests.contract.foreign_world import (
    COMMANDS,
    SERVERS,
    Bkheal,
    Foreign,
    a_cluster,
    checked,
    environment,
    in_this_process,
    others_read,
    owners_alone,
)
from tests.deadlines import PROGRAM_S, STATE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture
def foreign(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Foreign]:
    with a_cluster(zookeeper.connect_string, fresh_root, tmp_path) as made:
        yield made


@pytest.fixture
def bkheal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bkheal:
    """Run the command's entry point in this process. A command that starts Spark fails."""

    def session(settings: object) -> AbstractContextManager[Callable[[], SparkSession]]:
        pytest.fail("Spark was started")

    monkeypatch.setattr(one_shot, "starting_session", session)
    return in_this_process(monkeypatch, capsys)


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"auditor"}))
def test_a_command_exits_with_the_documented_code_and_message(command: str, foreign: Foreign) -> None:
    """The auditor's process has a test below."""
    foreign.lock("LAYOUT", owners_alone())
    before = foreign.tree()
    result = subprocess.run(
        [sys.executable, "-m", "auditor.cli.main", *COMMANDS[command]],
        env=environment(foreign.uri),
        cwd=foreign.directory,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    code, reported = checked(result.returncode, result.stdout + result.stderr)
    assert (code, f"{foreign.root} cannot be opened" in reported) == (78, True), reported
    assert foreign.tree() == before


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("zk+ms://127.0.0.1:1/ledgers", "outside the ZooKeeper tree"),
        ("etcd:http://127.0.0.1:2379/ledgers", "in etcd is not supported"),
    ],
)
def test_another_metadata_driver_is_refused_before_any_connection(
    command: str, uri: str, says: str, tmp_path: Path, bkheal: Bkheal
) -> None:
    code, reported = bkheal(command, uri, tmp_path)
    assert code == 78, reported
    assert says in reported
    assert "example: zk://" in reported
    assert list(tmp_path.iterdir()) == []


_PACKAGE = "org.apache.bookkeeper.meta."


@pytest.mark.parametrize("command", COMMANDS)
def test_a_metastore_layout_is_refused(command: str, foreign: Foreign, bkheal: Bkheal) -> None:
    foreign.client.set(f"{foreign.root}/LAYOUT", f"2\n{_PACKAGE}MSLedgerManagerFactory:1".encode())
    before = foreign.tree()
    code, reported = bkheal(command, foreign.uri, foreign.directory)
    assert code == 78, reported
    for text in (foreign.root, "MSLedgerManagerFactory", "supported: hierarchical, longhierarchical, flat"):
        assert text in reported
    assert foreign.tree() == before


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (f"2\n{_PACKAGE}HierarchicalLedgerManagerFactory:2".encode(), "version '2' of the layout"),
        (f"2\n{_PACKAGE}LegacyHierarchicalLedgerManagerFactory:1".encode(), "Apache's own clients refuse this one"),
        (f"3\n{_PACKAGE}HierarchicalLedgerManagerFactory:1".encode(), "not one this version reads"),
        (b"2\nno colon", "not one this version reads"),
        (b"\xff\xfe\x00", "not one this version reads"),
        (b"", "not one this version reads"),
    ],
)
def test_an_unknown_layout_is_refused_by_name(layout: bytes, says: str, foreign: Foreign, bkheal: Bkheal) -> None:
    foreign.client.set(f"{foreign.root}/LAYOUT", layout)
    before = foreign.tree()
    code, reported = bkheal("audit", foreign.uri, foreign.directory)
    assert code == 78, reported
    assert says in reported
    assert foreign.root in reported
    assert foreign.tree() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cluster_of_pulsars_driver_is_recognized_if_the_uri_names_no_layout(
    command: str, foreign: Foreign, bkheal: Bkheal
) -> None:
    foreign.client.delete(f"{foreign.root}/LAYOUT")
    before = foreign.tree()
    code, reported = bkheal(command, foreign.uri, foreign.directory)
    assert code == 78, reported
    for text in (foreign.root, "metadata-store:", "write zk+hierarchical:// in the URI"):
        assert text in reported
    assert "create a cluster" not in reported
    assert foreign.tree() == before


@pytest.mark.parametrize("layout", ["longhierarchical", "flat"])
def test_pulsars_driver_is_opened_only_with_its_one_layout(layout: str, foreign: Foreign, bkheal: Bkheal) -> None:
    foreign.client.delete(f"{foreign.root}/LAYOUT")
    before = foreign.tree()
    code, reported = bkheal("audit", foreign.uri.replace("zk://", f"zk+{layout}://"), foreign.directory)
    assert code == 78, reported
    assert f"the URI asks for {layout}" in reported
    assert "write zk+hierarchical://" in reported
    assert foreign.tree() == before


def test_a_cluster_that_lost_its_layout_is_not_opened_as_one_of_pulsars_driver(
    foreign: Foreign, bkheal: Bkheal
) -> None:
    foreign.client.delete(f"{foreign.root}/LAYOUT")
    foreign.client.ensure_path(f"{foreign.root}/000/0000/0000/0000")
    code, reported = bkheal("audit", foreign.uri.replace("zk://", "zk+hierarchical://"), foreign.directory)
    assert (code, "LAYOUT node was lost" in reported) == (78, True), reported


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cluster_without_permission_to_open_it_is_refused(command: str, foreign: Foreign, bkheal: Bkheal) -> None:
    foreign.lock("LAYOUT", owners_alone())
    before = foreign.tree()
    code, reported = bkheal(command, foreign.uri, foreign.directory)
    assert code == 78, reported
    for text in (f"{foreign.root} cannot be opened", f"{foreign.root}/LAYOUT", "world:anyone"):
        assert text in reported
    assert foreign.tree() == before


@pytest.mark.parametrize("command", sorted({*COMMANDS, *SERVERS}))
def test_a_process_with_a_state_root_other_than_the_clusters_is_refused(
    command: str, foreign: Foreign, bkheal: Bkheal
) -> None:
    """Rule R90."""
    foreign.client.ensure_path(f"{foreign.root}/underreplication")
    foreign.client.create(record_path(foreign.root), b'{"format": 1, "state_root": "/elsewhere/bkheal"}')
    before = foreign.tree()
    code, reported = bkheal(command, foreign.uri, foreign.directory)
    assert code == 78, reported
    for text in ("--state-root /elsewhere/bkheal", record_path(foreign.root), DEFAULT_STATE_ROOT):
        assert text in reported
    assert foreign.tree() == before


@pytest.mark.parametrize("command", sorted({*COMMANDS, *SERVERS}))
def test_a_new_state_root_is_refused_if_state_already_exists_elsewhere(
    command: str, foreign: Foreign, bkheal: Bkheal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R90: otherwise the previous state would not be found."""
    used = state_path(DEFAULT_STATE_ROOT, "drains", foreign.root)
    foreign.client.ensure_path(used)
    before = foreign.tree()
    code, reported = bkheal(command, foreign.uri, foreign.directory, ("--state-root", "/elsewhere/late"))
    assert code == 78, reported
    for text in (used, "--state-root /elsewhere/late", "stop every process of bkheal"):
        assert text in reported
    assert foreign.tree() == before
    assert not foreign.client.exists("/elsewhere")


def test_the_state_is_moved_by_a_command_and_the_old_root_is_refused(foreign: Foreign, bkheal: Bkheal) -> None:
    """Rule R98."""
    old, new = (state_path(root, "decisions", foreign.root) for root in (DEFAULT_STATE_ROOT, "/elsewhere/moved"))
    foreign.client.ensure_path(old)
    foreign.client.create(f"{old}/7", b"who")
    code, reported = bkheal("move-state", foreign.uri, foreign.directory)
    assert (code, "moved 4 nodes from /bkheal to /elsewhere/moved" in reported) == (0, True), reported
    assert (foreign.client.get(f"{new}/7")[0], foreign.client.exists(old)) == (b"who", None)
    code, reported = bkheal("doctor", foreign.uri, foreign.directory)
    assert (code, "--state-root /elsewhere/moved" in reported) == (78, True), reported
    code, reported = bkheal("doctor", foreign.uri, foreign.directory, ("--state-root", "/elsewhere/moved"))
    assert (code, '"target": "/elsewhere/moved"' in reported) == (1, True), reported


def test_every_process_reports_an_interrupted_move(foreign: Foreign, bkheal: Bkheal) -> None:
    foreign.client.ensure_path(f"{foreign.root}/underreplication")
    record = b'{"format": 1, "state_root": "/elsewhere/moved", "moving_from": "/bkheal"}'
    foreign.client.create(record_path(foreign.root), record)
    for options in ((), ("--state-root", "/elsewhere/moved")):
        code, reported = bkheal("drain", foreign.uri, foreign.directory, options)
        assert code == 78, reported
        assert "`bkheal --state-root /bkheal cluster move-state /elsewhere/moved`" in reported
    code, reported = bkheal("move-state", foreign.uri, foreign.directory)
    assert (code, "moved 0 nodes" in reported) == (0, True), reported


@pytest.mark.parametrize("command", sorted({*COMMANDS, *SERVERS}))
@pytest.mark.parametrize("root", ["bkheal", "/a/../b", "/zookeeper/x", "/a/"])
def test_an_invalid_state_root_is_refused_before_any_connection(
    command: str, root: str, tmp_path: Path, bkheal: Bkheal
) -> None:
    code, reported = bkheal(command, "zk://127.0.0.1:1/ledgers", tmp_path, ("--state-root", root))
    assert (code, f"state_root = {root!r}" in reported) == (78, True), reported
    assert list(tmp_path.iterdir()) == []


def test_a_read_names_the_ledger_that_it_has_no_permission_for(foreign: Foreign, bkheal: Bkheal) -> None:
    path = ledger_path(LayoutKind.HIERARCHICAL, foreign.root, 1)
    foreign.client.set_acls(path, owners_alone())
    code, reported = bkheal("read", foreign.uri, foreign.directory)
    assert (code, path in reported, "world:anyone" in reported) == (78, True, True), reported


def test_a_replicator_without_permission_to_lock_is_refused(foreign: Foreign, bkheal: Bkheal) -> None:
    foreign.client.create(f"{foreign.root}/underreplication")
    foreign.lock("underreplication", others_read())
    before = foreign.tree()
    code, reported = bkheal("replicator", foreign.uri, foreign.directory)
    assert (code, f"create {foreign.root}/underreplication" in reported, "world:anyone" in reported) == (
        78,
        True,
        True,
    ), reported
    assert foreign.tree() == before


@pytest.mark.parametrize("part", ["ledgers", "locks", "ledgers/0000/0000"])
def test_doctor_names_a_subtree_without_write_permission(part: str, foreign: Foreign, bkheal: Bkheal) -> None:
    foreign.client.ensure_path(f"{foreign.root}/underreplication/{part}")
    foreign.lock(f"underreplication/{part}", others_read())
    before = foreign.tree()
    code, reported = bkheal("doctor", foreign.uri, foreign.directory)
    failed = [row for row in json.loads(reported)["checks"] if (row["check"], row["state"]) == ("permission", "failed")]
    assert (code, [row["target"] for row in failed]) == (1, [f"{foreign.root}/underreplication/{part}"])
    assert "world:anyone" in failed[0]["detail"]
    assert foreign.tree() == before


def test_a_replicator_without_permission_to_list_bookies_is_refused_before_it_logs_ready(
    foreign: Foreign, bkheal: Bkheal
) -> None:
    foreign.client.ensure_path(f"{foreign.root}/available")
    foreign.lock("available", owners_alone())
    code, reported = bkheal("replicator", foreign.uri, foreign.directory)
    assert code == 78, reported
    for text in ("replicator cannot start", f"{foreign.root}/available", "world:anyone"):
        assert text in reported
    assert "replicator ready" not in reported
    assert "Traceback" not in reported


def test_an_auditor_without_permission_to_vote_logs_it_and_waits(foreign: Foreign, tmp_path: Path) -> None:
    foreign.client.create(f"{foreign.root}/underreplication")
    foreign.lock("underreplication", others_read())
    before, log = foreign.tree(), tmp_path / "auditor.log"
    command = [sys.executable, "-m", "auditor.cli.main", *COMMANDS["auditor"]]

    async def watched() -> int:
        process = ManagedProcess.start("auditor", command, log_path=log, environment=environment(foreign.uri))
        async with process:

            async def has_said() -> bool:
                return "underreplication/auditorelection: its ACL does not allow this" in log.read_text()

            await process.wait_until(has_said, "to log the missing permission", STATE_S)
            os.kill(process.pid, signal.SIGTERM)
            return await process.wait(STATE_S)

    assert asyncio.run(watched()) == 0
    assert "Traceback" not in log.read_text()
    assert foreign.tree() == before


def test_a_missing_permission_to_create_our_own_root_is_named(tmp_path: Path, bkheal: Bkheal) -> None:
    """The test uses a separate ZooKeeper, because all clusters of one server have the same default state root."""
    server = asyncio.run(EmbeddedZooKeeper.start(tmp_path / "zookeeper", is_durable=False))
    try:
        with a_cluster(server.connect_string, "/ledgers", tmp_path) as foreign:
            foreign.client.create("/bkheal", acl=others_read())
            before = foreign.tree()
            code, reported = bkheal("audit", foreign.uri, foreign.directory)
            assert (code, "create /bkheal/changes" in reported, "world:anyone" in reported) == (78, True, True), (
                reported
            )
            assert foreign.tree() == before
    finally:
        asyncio.run(server.stop())
