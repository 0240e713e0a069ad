"""Clusters that are not ours to handle: other drivers and layouts, and nodes whose ACL keeps us out.

Each is refused or reported in a sentence that says what to do, with an exit code and without a traceback, and nothing
is changed in the cluster.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, make_acl, make_digest_acl

from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.cluster import format_cluster, open_cluster
from bookie.metadata.layout import LayoutKind, bookie_path, ledger_path
from bookie.metadata.ledgers import LedgerStore
from bookie.metadata.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata

pytestmark = pytest.mark.integration

_DEADLINE_S = 240.0
_OWNER = "apache", "canary-secret"
COMMANDS = {
    "audit": ("audit", "run"),
    "shadow": ("audit", "shadow"),
    "replicator": ("replicator",),
    "auditor": ("auditor", "--http-port", "0", "--grpc-port", "0", "--no-ui-enabled"),
    "read": ("ledger", "read", "1"),
}


def owners_alone() -> list[ACL]:
    """Nobody but Apache's own identity may do anything."""
    return [make_digest_acl(*_OWNER, all=True)]


def others_read() -> list[ACL]:
    return [*owners_alone(), make_acl("world", "anyone", read=True)]


class Foreign:
    """A cluster with one closed ledger that lost a bookie, as its owner sees it."""

    def __init__(self, client: KazooClient, hosts: str, root: str, directory: Path) -> None:
        self.client = client
        self.root = root
        self.uri = f"zk://{hosts}{root}"
        self.directory = directory

    def lock(self, name: str, acl: list[ACL]) -> None:
        self.client.set_acls(f"{self.root}/{name}".rstrip("/"), acl)

    def tree(self, path: str | None = None) -> dict[str, tuple[bytes, int, int]]:
        """Everything below the ledgers root."""
        path = path or self.root
        data, stat = self.client.get(path)
        found = {path: (data, stat.version, stat.czxid)}
        for name in self.client.get_children(path):
            found |= self.tree(f"{path}/{name}")
        return found


@pytest.fixture
def foreign(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Foreign]:
    yield from a_cluster(zookeeper.connect_string, fresh_root, tmp_path)


def a_cluster(hosts: str, root: str, directory: Path) -> Iterator[Foreign]:
    async def create() -> None:
        store = await ZooKeeperStore.connect(hosts)
        try:
            await format_cluster(store, root, rng=random.Random(root))
            cluster = await open_cluster(store, root)
            fragment = Fragment(EntryId(0), (BookieId("a:1"), BookieId("x:1")))
            ledger = LedgerMetadata(2, 2, 2, (fragment,)).closed(EntryId(9), 100)
            await LedgerStore(store, cluster, random.Random(1)).create(LedgerId(1), ledger)
        finally:
            await store.close()

    asyncio.run(create())
    client = KazooClient(hosts, auth_data=[("digest", ":".join(_OWNER))])
    client.start()
    try:
        for bookie in ("a:1", "b:1"):
            client.create(bookie_path(root, BookieId(bookie), is_read_only=False), ephemeral=True)
        yield Foreign(client, hosts, root, directory)
    finally:
        client.stop()
        client.close()


def environment(uri: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BKHEAL_")}
    return kept | {"BKHEAL_METADATA_URI": uri}


def bkheal(command: str, uri: str, directory: Path) -> tuple[int, str]:
    """Exit code, and everything that was said."""
    arguments = [sys.executable, "-m", "auditor.cli.main", *COMMANDS[command]]
    result = subprocess.run(
        arguments, env=environment(uri), cwd=directory, capture_output=True, text=True, timeout=_DEADLINE_S
    )
    said = result.stdout + result.stderr
    assert "Traceback" not in said, said
    assert "canary-secret" not in said
    return result.returncode, said


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("zk+ms://127.0.0.1:1/ledgers", "outside the ZooKeeper tree"),
        ("etcd:http://127.0.0.1:2379/ledgers", "in etcd is not supported"),
    ],
)
def test_another_metadata_driver_is_refused_before_anything_is_connected(
    command: str, uri: str, says: str, tmp_path: Path
) -> None:
    code, said = bkheal(command, uri, tmp_path)
    assert code == 78, said
    assert says in said
    assert "example: zk://" in said
    assert list(tmp_path.iterdir()) == []


_PACKAGE = "org.apache.bookkeeper.meta."


@pytest.mark.parametrize("command", COMMANDS)
def test_a_metastore_layout_is_refused(command: str, foreign: Foreign) -> None:
    foreign.client.set(f"{foreign.root}/LAYOUT", f"2\n{_PACKAGE}MSLedgerManagerFactory:1".encode())
    before = foreign.tree()
    code, said = bkheal(command, foreign.uri, foreign.directory)
    assert code == 78, said
    for text in (foreign.root, "MSLedgerManagerFactory", "supported: hierarchical, longhierarchical, flat"):
        assert text in said
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
def test_a_layout_that_is_not_known_is_refused_and_named(layout: bytes, says: str, foreign: Foreign) -> None:
    foreign.client.set(f"{foreign.root}/LAYOUT", layout)
    before = foreign.tree()
    code, said = bkheal("audit", foreign.uri, foreign.directory)
    assert code == 78, said
    assert says in said
    assert foreign.root in said
    assert foreign.tree() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cluster_of_pulsars_driver_is_named_where_the_uri_says_no_layout(command: str, foreign: Foreign) -> None:
    foreign.client.delete(f"{foreign.root}/LAYOUT")
    before = foreign.tree()
    code, said = bkheal(command, foreign.uri, foreign.directory)
    assert code == 78, said
    for text in (foreign.root, "metadata-store:", "write zk+hierarchical:// in the URI"):
        assert text in said
    assert "create a cluster" not in said
    assert foreign.tree() == before


@pytest.mark.parametrize("layout", ["longhierarchical", "flat"])
def test_pulsars_driver_has_one_layout_and_no_other_is_taken_for_it(layout: str, foreign: Foreign) -> None:
    foreign.client.delete(f"{foreign.root}/LAYOUT")
    before = foreign.tree()
    code, said = bkheal("audit", foreign.uri.replace("zk://", f"zk+{layout}://"), foreign.directory)
    assert code == 78, said
    assert f"the URI asks for {layout}" in said
    assert "write zk+hierarchical://" in said
    assert foreign.tree() == before


def test_a_cluster_that_lost_its_layout_is_not_taken_for_one_of_pulsars_driver(foreign: Foreign) -> None:
    foreign.client.delete(f"{foreign.root}/LAYOUT")
    foreign.client.ensure_path(f"{foreign.root}/000/0000/0000/0000")
    code, said = bkheal("audit", foreign.uri.replace("zk://", "zk+hierarchical://"), foreign.directory)
    assert (code, "Its LAYOUT was lost" in said) == (78, True), said


def test_a_cluster_of_pulsars_driver_is_audited_and_read_and_gets_no_layout(foreign: Foreign) -> None:
    foreign.client.delete(f"{foreign.root}/LAYOUT")
    foreign.client.delete(f"{foreign.root}/available/readonly")  # as long as no bookie is read-only
    before = foreign.tree()
    uri = foreign.uri.replace("zk://", "zk+hierarchical://")
    code, said = bkheal("shadow", uri, foreign.directory)
    assert code in (0, 1), said
    assert foreign.tree() == before
    code, said = bkheal("audit", uri, foreign.directory)
    assert code == 0, said
    after = foreign.tree()
    assert {path for path in after if path not in before} == {
        path for path in after if path.startswith(f"{foreign.root}/underreplication")
    }
    assert any(path.endswith("/urL0000000001") for path in after)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cluster_that_may_not_be_opened_is_refused(command: str, foreign: Foreign) -> None:
    foreign.lock("LAYOUT", owners_alone())
    before = foreign.tree()
    code, said = bkheal(command, foreign.uri, foreign.directory)
    assert code == 78, said
    for text in (f"{foreign.root} cannot be opened", f"{foreign.root}/LAYOUT", "world:anyone"):
        assert text in said
    assert foreign.tree() == before


def test_a_ledger_that_may_not_be_read_is_named_by_a_read(foreign: Foreign) -> None:
    path = ledger_path(LayoutKind.HIERARCHICAL, foreign.root, 1)
    foreign.client.set_acls(path, owners_alone())
    code, said = bkheal("read", foreign.uri, foreign.directory)
    assert (code, path in said, "world:anyone" in said) == (78, True, True), said


def test_a_ledger_that_may_not_be_read_is_a_finding_of_an_audit_and_no_more(foreign: Foreign) -> None:
    foreign.client.set_acls(ledger_path(LayoutKind.HIERARCHICAL, foreign.root, 1), owners_alone())
    before = foreign.tree()
    code, said = bkheal("audit", foreign.uri, foreign.directory)
    assert code == 0, said
    assert "unreadable  1" in said
    assert foreign.tree() == before


def test_an_audit_that_may_not_mark_says_so_and_changes_nothing(foreign: Foreign) -> None:
    foreign.client.create(f"{foreign.root}/underreplication")
    foreign.lock("underreplication", others_read())
    before = foreign.tree()
    code, said = bkheal("audit", foreign.uri, foreign.directory)
    assert code == 78, said
    for text in (f"create {foreign.root}/underreplication", "world:anyone"):
        assert text in said
    assert foreign.tree() == before


def test_shadow_mode_needs_no_more_than_reading(foreign: Foreign) -> None:
    foreign.client.ensure_path(f"{foreign.root}/underreplication/ledgers")
    for name in ("underreplication/ledgers", "underreplication", "available/readonly", "available", "00", "LAYOUT", ""):
        foreign.lock(name, others_read())
    before = foreign.tree()
    code, said = bkheal("shadow", foreign.uri, foreign.directory)
    assert code == 0, said
    assert "no auditor leads" in said
    assert foreign.tree() == before


def test_shadow_mode_that_may_not_read_the_tasks_says_so(foreign: Foreign) -> None:
    foreign.client.ensure_path(f"{foreign.root}/underreplication/ledgers")
    foreign.lock("underreplication/ledgers", owners_alone())
    code, said = bkheal("shadow", foreign.uri, foreign.directory)
    assert code == 78, said
    for text in (f"{foreign.root}/underreplication/ledgers", "world:anyone"):
        assert text in said


def test_a_replicator_that_may_not_lock_is_refused(foreign: Foreign) -> None:
    foreign.client.create(f"{foreign.root}/underreplication")
    foreign.lock("underreplication", others_read())
    before = foreign.tree()
    code, said = bkheal("replicator", foreign.uri, foreign.directory)
    assert (code, f"create {foreign.root}/underreplication" in said, "world:anyone" in said) == (78, True, True), said
    assert foreign.tree() == before


def test_a_replicator_that_may_not_list_bookies_is_refused_before_it_says_that_it_is_ready(foreign: Foreign) -> None:
    foreign.client.ensure_path(f"{foreign.root}/available")
    foreign.lock("available", owners_alone())
    code, said = bkheal("replicator", foreign.uri, foreign.directory)
    assert code == 78, said
    for text in ("replicator cannot start", f"{foreign.root}/available", "world:anyone"):
        assert text in said
    assert "replicator ready" not in said
    assert "Traceback" not in said


def test_an_auditor_that_may_not_vote_says_so_and_waits(foreign: Foreign, tmp_path: Path) -> None:
    foreign.client.create(f"{foreign.root}/underreplication")
    foreign.lock("underreplication", others_read())
    before, log = foreign.tree(), tmp_path / "auditor.log"
    command = [sys.executable, "-m", "auditor.cli.main", *COMMANDS["auditor"]]

    async def watched() -> int:
        process = ManagedProcess.start("auditor", command, log_path=log, environment=environment(foreign.uri))
        async with process:

            async def has_said() -> bool:
                return "underreplication/auditorelection: its ACL does not allow this" in log.read_text()

            await process.wait_until(has_said, "to say what it may not do", _DEADLINE_S)
            os.kill(process.pid, signal.SIGTERM)
            return await process.wait(_DEADLINE_S)

    assert asyncio.run(watched()) == 0
    assert "Traceback" not in log.read_text()
    assert foreign.tree() == before


def test_a_root_of_our_own_that_may_not_be_made_is_named(tmp_path: Path) -> None:
    """In a ZooKeeper of its own, as that root is the same for all clusters."""
    server = asyncio.run(EmbeddedZooKeeper.start(tmp_path / "zookeeper", is_durable=False))
    try:
        for foreign in a_cluster(server.connect_string, "/ledgers", tmp_path):
            foreign.client.create("/bkheal", acl=others_read())
            before = foreign.tree()
            code, said = bkheal("audit", foreign.uri, foreign.directory)
            assert (code, "create /bkheal/runs" in said, "world:anyone" in said) == (78, True, True), said
            assert foreign.tree() == before
    finally:
        asyncio.run(server.stop())
