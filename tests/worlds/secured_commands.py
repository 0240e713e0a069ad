"""Commands and a client that access a secured ZooKeeper by environment variables, and the owners of its nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest
from kazoo.client import KazooClient

from bookie.client.connect import connect
from bookie.client.options import LedgerOptions
from bookie.metadata import access
from bookie.metadata.access import ZooKeeperAccess
from bookie.metadata.store.credentials import sasl_options
from bookie.model.ids import LedgerId
from tests.deadlines import PROGRAM_S
from tests.worlds.secured import environment_of

ENTRIES: Final = 20
"""The number of entries in a ledger of ``write_ledger``."""


def set_access(monkeypatch: pytest.MonkeyPatch, given: ZooKeeperAccess) -> None:
    """Give this process and its children an access by their environment, until the end of the test."""
    for name, value in environment_of(given).items():
        monkeypatch.setenv(name, value)
    access._process_access.clear()


async def write_ledger(uri: str) -> LedgerId:
    """Write a closed ledger on three bookies, with two copies of each entry."""
    async with await connect(uri) as client:
        async with await client.create_ledger(LedgerOptions(3, 2, 2)) as writer:
            for number in range(ENTRIES):
                await writer.append(b"%d" % number)
        return writer.ledger_id


async def members(uri: str, ledger_id: LedgerId) -> list[str]:
    """Return the bookies of a ledger, sorted."""
    async with await connect(uri) as client:
        return sorted((await client.ports.ledgers.read(ledger_id)).metadata.members())


def bkheal(uri: str, *words: str) -> str:
    """Run a command that must succeed. Return its whole output, including its log of level DEBUG."""
    result = subprocess.run(
        [sys.executable, "-m", "auditor.cli.main", "--log-level", "DEBUG", *words],
        env={**os.environ, "BKHEAL_METADATA_URI": uri},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def owners_below(connect_string: str, login: ZooKeeperAccess, *roots: str) -> dict[str, set[tuple[str, str]]]:
    """Return the users in the ACL of each node at and below these roots. ``login`` connects without TLS."""
    client = KazooClient(connect_string, sasl_options=sasl_options(login))
    client.start()
    found: dict[str, set[tuple[str, str]]] = {}
    paths = list(roots)
    try:
        while paths:
            path = paths.pop()
            found[path] = {(each.id.scheme, each.id.id) for each in client.get_acls(path)[0]}
            paths += [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
    finally:
        client.stop()
        client.close()
    return found
