"""``bkheal collection``: the collections that bookies hold back, and those that an operator allows."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import collection as command
from auditor.cli.main import app
from bookie.metadata.bookies.collections import HeldCollection, HeldCollections
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.model.times import rfc3339
from tests.worlds.clocks import EPOCH_MS, ManualClock
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster

C = BookieId("c")
DAY_MS = 86_400_000


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    made.clock = ManualClock()
    asyncio.run(made.fill())
    monkeypatch.setattr(command, "connected", made.connected)
    monkeypatch.setattr(command, "whoami", lambda: "me@host")
    return made


def call(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["collection", *words, "--metadata-uri", "zk://h:1/ledgers"], input=typed)


def hold(cluster: CommandCluster, ledgers: int = 60) -> None:
    asyncio.run(HeldCollections(cluster.keeper, ROOT).hold(C, ledgers, 100, EPOCH_MS))


def held(cluster: CommandCluster) -> list[HeldCollection]:
    return list(asyncio.run(HeldCollections(cluster.keeper, ROOT).all()))


def test_no_collection_is_held_back(cluster: CommandCluster) -> None:
    assert call("list").stdout == "no bookie holds a collection back\n"
    refused = call("allow", "c", "--yes")
    assert refused.exit_code == ExitCode.FAILED
    assert "holds back no collection" in refused.stderr
    assert call("deny", "c").exit_code == ExitCode.OK
    misspelt = call("deny", "cc")
    assert (misspelt.exit_code, misspelt.stdout) == (ExitCode.FAILED, "")
    assert "no bookie of this cluster: cc" in misspelt.stderr
    assert not asyncio.run(ChangeRecords(cluster.keeper, ROOT, cluster.clock).newest(1)), "nothing was changed"


def test_a_held_back_collection_is_allowed_for_a_limited_time_and_recorded(cluster: CommandCluster) -> None:
    hold(cluster)
    result = call("allow", "c", typed="y\n")
    assert result.exit_code == ExitCode.OK, result.stderr
    assert "would delete 60 of its 100 ledgers" in result.stderr
    assert held(cluster) == [HeldCollection(C, 60, 100, EPOCH_MS, "me@host", EPOCH_MS, EPOCH_MS + DAY_MS, 66)]
    assert json.loads(call("list", "-o", "json").stdout)["items"] == [
        {
            "bookie_id": "c",
            "ledgers": 60,
            "known": 100,
            "since": rfc3339(EPOCH_MS),
            "allowed_by": "me@host",
            "allowed_until": rfc3339(EPOCH_MS + DAY_MS),
            "allowed_ledgers": 66,
        }
    ]
    assert "me@host" in call("list").stdout
    recorded = asyncio.run(ChangeRecords(cluster.keeper, ROOT, cluster.clock).newest(10))
    assert [each.action for each in recorded] == ["collection allow"]


def test_no_answer_allows_nothing(cluster: CommandCluster) -> None:
    hold(cluster)
    assert call("allow", "c", typed="n\n").exit_code != ExitCode.OK
    assert held(cluster)[0].allowed_max == 0


def test_ledgers_held_back_after_the_prompt_are_not_allowed(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(cluster)
    monkeypatch.setattr(command, "confirm", lambda question, *, is_sure: hold(cluster, 95))
    assert call("allow", "c").exit_code == ExitCode.OK
    assert (held(cluster)[0].ledgers, held(cluster)[0].allowed_max) == (95, 66)


def test_a_limit_and_a_time_span_can_be_set_and_withdrawn(cluster: CommandCluster) -> None:
    hold(cluster)
    assert call("allow", "c", "--ledgers", "5", "--for", "2h", "--yes").exit_code == ExitCode.OK
    assert (held(cluster)[0].allowed_max, held(cluster)[0].allowed_until_ms) == (5, EPOCH_MS + 7_200_000)
    assert call("deny", "c").exit_code == ExitCode.OK
    assert held(cluster) == []
    assert call("allow", "c", "--for", "8d", "--yes").exit_code == ExitCode.USAGE
