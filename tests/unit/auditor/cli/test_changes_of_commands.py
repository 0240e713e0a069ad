"""Every change made by a command straight in ZooKeeper is recorded, and ``bkheal changes`` lists it."""

from __future__ import annotations

import asyncio
import json
from types import ModuleType

import pytest
from typer.testing import CliRunner

from auditor.cli.audit import runs
from auditor.cli.cluster import boost, changes, dead_letters, decommission, drain, maintenance, recovery, throttle
from auditor.cli.main import app
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.runs.records import Runs
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.model.times import rfc3339
from tests.worlds.clocks import EPOCH_MS, ManualClock
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster

MODULES: tuple[ModuleType, ...] = (boost, dead_letters, decommission, drain, maintenance, recovery, runs, throttle)
RUN = "20261120T100001Z-0a1b2c"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    made.clock = ManualClock()

    async def prepare() -> None:
        await made.fill()
        await Drains(made.keeper, ROOT).start(Drain(BookieId("gone"), "me", EPOCH_MS))
        run = RunRecord(RUN, RunKind.BOOKIES, RunCause.COMMAND, "me", "a/1", RunState.RUNNING, started_ms=EPOCH_MS)
        await Runs(made.keeper, ROOT).write(run)

    asyncio.run(prepare())
    monkeypatch.setattr(changes, "connected", made.connected)
    for module in MODULES:
        monkeypatch.setattr(module, "connected", made.connected)
        monkeypatch.setattr(module, "whoami", lambda: "me@host")
    return made


def call(*words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--metadata-uri", "zk://h:1/ledgers"])
    assert result.exit_code == ExitCode.OK, (words, result.output, result.exception)
    return result.stdout


def recorded() -> list[tuple[str, str, str, str]]:
    items = json.loads(call("changes", "-o", "json"))["items"]
    return [(row["by"], row["via"], row["action"], row["detail"]) for row in items]


@pytest.mark.parametrize(
    ("words", "action", "detail"),
    [
        (["recovery", "disable"], "recovery disable", ""),
        (["recovery", "delay", "60"], "recovery delay", "60 s, was 0"),
        (["throttle", "set", "--requests-per-second", "5"], "throttle set", "requests_per_second=5"),
        (["throttle", "clear"], "throttle clear", ""),
        (["underreplicated", "boost", "9"], "boost", "ledgers 9 for 3600 s"),
        (["underreplicated", "boost", "9", "--stop"], "boost end", "ledgers 9"),
        (["dead-letters", "retry", "--all", "--yes"], "dead-letters retry", "ledgers 7, 8"),
        (["dead-letters", "drop", "8", "--yes"], "dead-letters drop", "ledgers 8: "),
        (["dead-letters", "accept-loss", "7", "--reason", "x", "--yes"], "dead-letters accept-loss", "ledgers 7: x"),
        (["drain", "start", "c", "--yes", "--force"], "drain start", "c"),
        (["recover", "a", "b", "--yes", "--force"], "recover", "a, b: 3 ledgers"),
        (["decommission", "gone", "--yes"], "decommission", "gone"),
        (["maintenance", "start", "c"], "maintenance start", f"c until {rfc3339(EPOCH_MS + 3_600_000)}"),
        (["maintenance", "end", "c"], "maintenance end", "c"),
        (["audit", "cancel", RUN], "run cancel", RUN),
        (["audit", "pause", "--kind", "replicas", "--for", "2h"], "schedule pause", "replicas for 7200 s"),
        (["audit", "resume", "--kind", "replicas"], "schedule resume", "replicas"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_change_is_recorded_with_who_and_what(
    cluster: CommandCluster, words: list[str], action: str, detail: str
) -> None:
    call(*words)
    assert recorded() == [("me@host", "command", action, detail)]


def test_what_changes_nothing_is_not_recorded(cluster: CommandCluster) -> None:
    call("recovery", "disable", "--dry-run")
    call("recovery", "delay")
    call("throttle", "show")
    call("underreplicated", "boost", "9", "--dry-run")
    call("dead-letters", "drop", "8", "--dry-run")
    call("maintenance", "start", "c", "--dry-run")
    call("maintenance", "end", "c", "--dry-run")
    assert call("changes") == "no change is on record\n"
