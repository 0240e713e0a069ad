"""``bkheal references``: what it prints, what it exports, and how it ends."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import references
from auditor.cli.main import app
from bookie.metadata.nodes import put
from bookie.metadata.proto.managed_ledgers_pb2 import ManagedLedgerInfo
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LedgerId
from tests.worlds.commands import CommandCluster
from tests.worlds.ledgers import make_metadata

ML = "t/n/persistent/orders"
CUSTOM = (("application", b"pulsar"), ("component", b"managed-ledger"), ("pulsar/managed-ledger", ML.encode()))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    asyncio.run(made.fill())
    monkeypatch.setattr(references, "connected", made.connected)
    return made


async def fill(cluster: CommandCluster, *referenced: int) -> None:
    info = ManagedLedgerInfo()
    for number in referenced:
        info.ledgerInfo.add(ledgerId=number, entries=5)
    await put(cluster.keeper, f"/managed-ledgers/{ML}", info.SerializeToString())
    async with cluster.connected("") as client:
        for number in (20, 21):
            metadata = replace(make_metadata((0, "a b"), quorum=(2, 2), last=9, length=100), custom=CUSTOM)
            await client.ports.ledgers.create(LedgerId(number), metadata)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["references", "--metadata-uri", "zk://h:1/ledgers", *words])


def test_unreferenced_ledgers_are_listed_by_namespace_and_exported(cluster: CommandCluster, tmp_path: Path) -> None:
    asyncio.run(fill(cluster, 20))
    file = tmp_path / "ids.txt"
    result = call("--grace", "1s", "--export", str(file), "-o", "json")
    assert result.exit_code == ExitCode.OK, result.output
    document = json.loads(result.stdout)
    assert document["unreferenced"] == 1
    assert (document["referenced"], document["not_judged"]["not of Pulsar"], document["lost"]) == (1, 3, 0)
    assert file.read_text(encoding="ascii").split() == ["21"]
    assert "t/n: 1 ledgers, 200 B" in call().stdout


def test_a_lost_reference_has_an_exit_code(cluster: CommandCluster) -> None:
    asyncio.run(fill(cluster, 20, 21, 22))
    result = call()
    assert result.exit_code == ExitCode.DATA_LOSS
    assert "ledger 22: persistent://t/n/orders (managed-ledger)" in result.stdout


def test_a_node_that_cannot_be_decoded_has_an_exit_code(cluster: CommandCluster) -> None:
    asyncio.run(fill(cluster, 20, 21))
    asyncio.run(put(cluster.keeper, f"/managed-ledgers/{ML}/s", b"\xff"))
    result = call()
    assert result.exit_code == ExitCode.PARTIAL
    assert f"/managed-ledgers/{ML}/s" in result.stdout


def test_without_pulsar_there_is_nothing_to_compare_with(cluster: CommandCluster) -> None:
    result = call("--pulsar-root", "/elsewhere/")
    assert result.exit_code == ExitCode.FAILED
    assert "below /elsewhere" in result.stderr
    assert call("--grace", "soon").exit_code == ExitCode.USAGE
