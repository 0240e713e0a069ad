"""``bkheal underreplicated boost``: which ledgers, for how long, and what is refused before a change."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import boost
from auditor.cli.main import app
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.tasks import boosts as boosts_module
from bookie.metadata.tasks.boosts import Boost, Boosts
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LedgerId
from tests.worlds.clocks import EPOCH_MS, ManualClock
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    made.clock = ManualClock()
    asyncio.run(made.fill())
    monkeypatch.setattr(boost, "connected", made.connected)
    monkeypatch.setattr(boost, "whoami", lambda: "me@host")
    return made


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["underreplicated", "boost", *words, "--metadata-uri", "zk://h:1/ledgers"])


def active(cluster: CommandCluster) -> list[Boost]:
    return asyncio.run(Boosts(cluster.keeper, ROOT).active(EPOCH_MS))


def test_ledgers_are_boosted_for_a_limited_time_under_a_user_name(cluster: CommandCluster) -> None:
    result = call("9", "7", "--for", "2h", "-o", "json")
    rows = {row["ledger_id"]: (row["outcome"], row["parked"]) for row in json.loads(result.stdout)["ledgers"]}
    assert (result.exit_code, rows) == (ExitCode.OK, {9: ("boosted", False), 7: ("boosted", True)})
    end_ms = EPOCH_MS + 7_200_000
    assert active(cluster) == [Boost(each, "me@host", EPOCH_MS, end_ms) for each in sorted(rows)]
    assert "a boost does not end that" in call("7").stdout
    assert [boosted.until_ms for boosted in active(cluster)] == [EPOCH_MS + 3_600_000, end_ms]


def test_a_boost_can_be_ended(cluster: CommandCluster) -> None:
    call("9")
    assert call("9", "--stop").stdout == "ledger 9: its boost is ended\n"
    assert active(cluster) == []


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_the_end_of_a_boost_that_does_not_exist_is_not_reported_as_done(
    cluster: CommandCluster, more: tuple[str, ...]
) -> None:
    call("9")
    result = call("9", "8", "12345", "--stop", *more, "-o", "json")
    outcomes = {row["ledger_id"]: row["outcome"] for row in json.loads(result.stdout)["ledgers"]}
    assert (result.exit_code, outcomes) == (ExitCode.OK, {9: "ended", 8: "not_boosted", 12345: "not_boosted"})
    assert call("8", "--stop").stdout == "ledger 8: not boosted\n"


def test_a_dry_run_changes_nothing(cluster: CommandCluster) -> None:
    assert call("9", "--dry-run").stdout.startswith("ledger 9: would be boosted until ")
    assert active(cluster) == []


def test_ledgers_that_are_not_marked_are_refused_and_nothing_is_changed(cluster: CommandCluster) -> None:
    result = call("9", "10", "11")
    assert (result.exit_code, "not marked for repair: 10, 11" in result.stderr) == (ExitCode.FAILED, True)
    assert active(cluster) == []


def test_the_bound_is_reported_for_each_ledger(cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosts_module, "BOOSTS_MAX", 1)
    result = call("7", "8", "9", "-o", "json")
    outcomes = [row["outcome"] for row in json.loads(result.stdout)["ledgers"]]
    assert (result.exit_code, outcomes) == (ExitCode.FAILED, ["boosted", "not_boosted", "not_boosted"])
    assert "ledger 8 was not boosted: 1 ledgers are boosted, which is the maximum" in result.stderr


def test_a_dry_run_reports_the_bound_too(cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosts_module, "BOOSTS_MAX", 1)
    result = call("7", "8", "--dry-run", "-o", "json")
    outcomes = [row["outcome"] for row in json.loads(result.stdout)["ledgers"]]
    assert (result.exit_code, outcomes) == (ExitCode.FAILED, ["boosted", "not_boosted"])
    assert active(cluster) == []


def test_an_unreadable_boost_can_be_ended(cluster: CommandCluster) -> None:
    call("9")
    path = Boosts(cluster.keeper, ROOT).path(LedgerId(9))
    asyncio.run(cluster.keeper.set(path, b"damaged", ANY_VERSION))
    assert call("9", "--stop").exit_code == ExitCode.OK
    assert asyncio.run(cluster.keeper.stat(path)) is None


@pytest.mark.parametrize("span", ["0m", "8d", "1", "h", "1w", "-1h", "1.5h", ""])
def test_an_invalid_span_is_a_usage_error(cluster: CommandCluster, span: str) -> None:
    assert call("9", "--for", span).exit_code == ExitCode.USAGE
    assert active(cluster) == []
