"""``bkheal debts list``: ledgers with badly placed copies, since when, and whether a move is pending."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import debts
from auditor.cli.main import app
from bookie.metadata.tasks.debts import PlacementDebt, PlacementDebts
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import EntryId, LedgerId
from bookie.model.times import rfc3339
from tests.worlds.clocks import EPOCH_MS
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    asyncio.run(made.fill())
    monkeypatch.setattr(debts, "connected", made.connected)
    return made


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["debts", "list", *words, "--metadata-uri", "zk://h:1/ledgers"])


def test_no_debts(cluster: CommandCluster) -> None:
    assert (call().exit_code, call().stdout) == (ExitCode.OK, "no placement debts\n")
    assert json.loads(call("--output", "json").stdout)["items"] == []


def test_debts_are_listed_with_their_age_and_whether_the_ledger_is_marked(cluster: CommandCluster) -> None:
    records = PlacementDebts(cluster.keeper, ROOT)
    detail = "positions 0, 1 are in /r1 and need 2 racks"
    asyncio.run(records.add(PlacementDebt(LedgerId(7), EPOCH_MS, (EntryId(0), EntryId(10)), detail)))
    asyncio.run(records.add(PlacementDebt(LedgerId(5000), EPOCH_MS + 1)))
    document = json.loads(call("--output", "json").stdout)
    assert document["kind"] == "PlacementDebtList"
    assert document["items"] == [
        {
            "ledger_id": 7,
            "state": "marked",
            "since": rfc3339(EPOCH_MS, "milliseconds"),
            "fragments": [0, 10],
            "detail": detail,
        },
        {
            "ledger_id": 5000,
            "state": "waiting",
            "since": rfc3339(EPOCH_MS + 1, "milliseconds"),
            "fragments": [],
            "detail": "",
        },
    ]
    shown = call().stdout
    assert detail in shown
    assert "marked" in shown
