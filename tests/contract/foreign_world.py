"""A cluster of another owner that we must not change, and commands that run on it in this process."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, make_acl, make_digest_acl

from auditor.cli import main as command_line
from bookie.metadata.cluster import format_cluster, open_cluster
from bookie.metadata.layout import bookie_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from tests.sessions import LONG_SESSION_S

_OWNER: Final = "apache", "canary-secret"
COMMANDS = {
    "audit": ("audit", "run"),
    "shadow": ("audit", "shadow"),
    "replicator": ("replicator",),
    "auditor": ("auditor", "--http-port", "0", "--grpc-port", "0", "--no-ui-enabled"),
    "read": ("ledger", "read", "1"),
}
SERVERS = {
    "bookie": ("bookie", "--journal-dir", "journal", "--ledger-dir", "ledgers", "--port", "0", "--http-port", "0"),
    "exporter": ("exporter", "--http-port", "0"),
    "doctor": ("doctor", "--output", "json"),
    "drain": ("drain", "start", "a:1"),
}
"""Other programs, for tests of what all programs have in common."""
MOVE = {"move-state": ("cluster", "move-state", "/elsewhere/moved", "--yes")}


def owners_alone() -> list[ACL]:
    """Let only Apache's identity have permissions."""
    return [make_digest_acl(*_OWNER, all=True)]


def others_read() -> list[ACL]:
    return [*owners_alone(), make_acl("world", "anyone", read=True)]


class Foreign:
    """A cluster with one closed ledger and a lost bookie, with a session of its owner."""

    def __init__(self, client: KazooClient, hosts: str, root: str, directory: Path) -> None:
        self.client = client
        self.root = root
        self.uri = f"zk://{hosts}{root}"
        self.directory = directory

    def lock(self, name: str, acl: list[ACL]) -> None:
        self.client.set_acls(f"{self.root}/{name}".rstrip("/"), acl)

    def tree(self, path: str | None = None) -> dict[str, tuple[bytes, int, int]]:
        """Return all nodes below the ledgers root."""
        path = path or self.root
        data, stat = self.client.get(path)
        found = {path: (data, stat.version, stat.czxid)}
        for name in self.client.get_children(path):
            found |= self.tree(f"{path}/{name}")
        return found


@contextmanager
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
    client = KazooClient(hosts, timeout=LONG_SESSION_S, auth_data=[("digest", ":".join(_OWNER))])
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


class Bkheal(Protocol):
    """Runs a command against a metadata URI in a directory, and returns its exit code and its whole output."""

    def __call__(self, command: str, uri: str, directory: Path, options: Sequence[str] = ()) -> tuple[int, str]:
        """Run a command; ``options`` are those before the command's name."""
        ...


def in_this_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bkheal:
    def run(command: str, uri: str, directory: Path, options: Sequence[str] = ()) -> tuple[int, str]:
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("BKHEAL_")]:
                patch.delenv(name)
            patch.setenv("BKHEAL_METADATA_URI", uri)
            patch.chdir(directory)
            patch.setattr(sys, "argv", ["bkheal", *options, *(COMMANDS | SERVERS | MOVE)[command]])
            with pytest.raises(SystemExit) as ended:
                command_line.main()
        return checked(ended.value.code, "".join(capsys.readouterr()))

    return run


def checked(code: object, reported: str) -> tuple[int, str]:
    assert "Traceback" not in reported, reported
    assert "canary-secret" not in reported
    assert isinstance(code, int)
    return code, reported
