"""Every change that a command makes directly in ZooKeeper is recorded, and ``bkheal changes`` lists it."""

from __future__ import annotations

import asyncio
import json
from types import ModuleType

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.audit import runs
from auditor.cli.cluster import boost, changes, maintenance, ok_to_stop, recovery, throttle
from auditor.cli.dead_letters import decision, pages, retry
from auditor.cli.drains import command as drain
from auditor.cli.drains import decommission
from auditor.cli.main import app
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.incarnations import Incarnations
from bookie.metadata.bookies.maintenance import MaintenanceWindow, MaintenanceWindows
from bookie.metadata.runs.records import Runs
from bookie.metadata.tasks.boosts import Boost, Boosts
from bookie.metadata.tasks.copy_limits import CopyLimits, CopyLimitsStore
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.model.times import rfc3339
from tests.worlds.clocks import EPOCH_MS, ManualClock
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster

MODULES: tuple[ModuleType, ...] = (
    boost,
    decision,
    decommission,
    drain,
    maintenance,
    recovery,
    retry,
    runs,
    throttle,
)
READERS: tuple[ModuleType, ...] = (changes, ok_to_stop, pages)
RUN = "20261120T100001Z-0a1b2c"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    made.clock = ManualClock()

    async def prepare() -> None:
        await made.fill()
        await Drains(made.keeper, ROOT).start(Drain(BookieId("gone"), "me", EPOCH_MS))
        until_ms = EPOCH_MS + 3_600_000
        await MaintenanceWindows(made.keeper, ROOT).start(
            MaintenanceWindow("d", (BookieId("d"),), "me", EPOCH_MS, until_ms)
        )
        await CopyLimitsStore(made.keeper, ROOT).set(CopyLimits(bytes_per_second=1, by="me", since_ms=EPOCH_MS))
        await Boosts(made.keeper, ROOT).start(Boost(LedgerId(8), "me", EPOCH_MS, until_ms))
        await Runs(made.keeper, ROOT).pause_kind(RunKind.REPLICAS, "me", until_ms)
        run = RunRecord(RUN, RunKind.BOOKIES, RunCause.COMMAND, "me", "a/1", RunState.RUNNING, started_ms=EPOCH_MS)
        await Runs(made.keeper, ROOT).write(run)

    asyncio.run(prepare())
    for module in READERS:
        monkeypatch.setattr(module, "connected", made.connected)
    for module in MODULES:
        monkeypatch.setattr(module, "connected", made.connected)
        monkeypatch.setattr(module, "whoami", lambda: "me@host")
    return made


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--metadata-uri", "zk://h:1/ledgers"])


def call(*words: str) -> str:
    result = invoke(*words)
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
        (["underreplicated", "boost", "8", "9", "--stop"], "boost end", "ledgers 8"),
        (["dead-letters", "retry", "--all", "--yes"], "dead-letters retry", "ledgers 7, 8"),
        (["dead-letters", "drop", "8", "--yes"], "dead-letters drop", "ledgers 8: "),
        (["dead-letters", "accept-loss", "7", "--reason", "x", "--yes"], "dead-letters accept-loss", "ledgers 7: x"),
        (["drain", "start", "c", "--yes", "--force"], "drain start", "c"),
        (["drain", "stop", "gone", "--yes"], "drain stop", "gone"),
        (["recover", "a", "b", "--yes", "--force"], "recover", "a, b: 3 ledgers"),
        (["decommission", "gone", "--yes"], "decommission", "gone"),
        (["maintenance", "start", "c"], "maintenance start", f"c until {rfc3339(EPOCH_MS + 3_600_000)}"),
        (["maintenance", "end", "d"], "maintenance end", "d"),
        (["audit", "cancel", RUN], "run cancel", RUN),
        (["audit", "pause", "--kind", "replicas", "--for", "2h"], "schedule pause", "replicas for 7200 s"),
        (["audit", "resume", "--kind", "replicas"], "schedule resume", "replicas"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_change_is_recorded_with_user_and_detail(
    cluster: CommandCluster, words: list[str], action: str, detail: str
) -> None:
    call(*words)
    assert recorded() == [("me@host", "command", action, detail)]


def test_a_schedule_that_was_paused_is_no_longer_paused_after_resume(cluster: CommandCluster) -> None:
    assert call("audit", "resume", "--kind", "replicas") == "the schedule of replicas runs is no longer paused\n"


def test_a_command_that_changes_nothing_is_not_recorded(cluster: CommandCluster) -> None:
    call("recovery", "disable", "--dry-run")
    call("recovery", "delay")
    call("throttle", "show")
    call("underreplicated", "boost", "9", "--dry-run")
    call("dead-letters", "drop", "8", "--dry-run")
    call("maintenance", "start", "c", "--dry-run")
    call("maintenance", "end", "d", "--dry-run")
    call("underreplicated", "boost", "9", "--stop")
    assert "was not paused, so nothing was changed" in call("audit", "resume", "--kind", "bookies")
    for words in (("maintenance", "end", "c"), ("drain", "stop", "c", "--yes"), ("decommission", "nope:1", "--yes")):
        assert invoke(*words).exit_code == ExitCode.FAILED, words
    assert call("changes") == "no change is on record\n"
    call("throttle", "clear")
    call("throttle", "clear")
    assert [action for *_, action, _ in recorded()] == ["throttle clear"]


@pytest.mark.parametrize(
    ("done", "undone", "action"),
    [
        (["recovery", "disable"], ["recovery", "enable"], "recovery enable"),
        (["throttle", "set", "--requests-per-second", "5"], ["throttle", "clear"], "throttle clear"),
        (["maintenance", "start", "c"], ["maintenance", "end", "c"], "maintenance end"),
        (["underreplicated", "boost", "9"], ["underreplicated", "boost", "9", "--stop"], "boost end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_recent_change_is_undone_through_a_stale_server(
    cluster: CommandCluster, done: list[str], undone: list[str], action: str
) -> None:
    call("throttle", "clear")
    past = cluster.copy()
    call(*done)
    with cluster.behind(past):
        call(*undone)
    assert recorded()[0][2] == action


def test_an_unknown_bookie_is_refused_and_a_decommissioned_one_is_not(
    cluster: CommandCluster,
) -> None:
    asyncio.run(Incarnations(cluster.keeper, ROOT).record(BookieId("old"), "u", EPOCH_MS))
    for names in (("nope:1",), ("gone", "nope:1"), ("nope:1", "--dry-run")):
        refused = invoke("decommission", *names, "--yes")
        assert (refused.exit_code, "no bookie of this cluster: nope:1" in refused.stderr) == (ExitCode.FAILED, True)
    asyncio.run(FirstSeenDown(cluster.keeper, ROOT).reconcile({BookieId("gone")}, EPOCH_MS, registered=set()))
    done = call("decommission", "gone", "--yes")
    assert done == "gone: the record of its drain and the record of its loss are deleted\n"
    for name in ("gone", "old"):
        assert call("decommission", name, "--yes") == f"{name}: nothing to do, its records are deleted already\n"
    assert [detail for *_, detail in recorded()] == ["gone"]


@pytest.mark.parametrize("words", [("drain", "status"), ("ok-to-stop",)])
def test_a_bookie_named_only_by_ledgers_or_by_the_record_of_its_loss_is_accepted(
    cluster: CommandCluster, words: tuple[str, ...]
) -> None:
    asyncio.run(FirstSeenDown(cluster.keeper, ROOT).reconcile({BookieId("lost")}, EPOCH_MS, registered=set()))
    for name in ("a", "lost"):
        assert json.loads(invoke(*words, name, "-o", "json").stdout)["kind"] in ("DrainStatus", "StopVerdict")
    refused = invoke(*words, "a", "nope:1")
    assert refused.exit_code == ExitCode.FAILED
    assert "no bookie of this cluster: nope:1;" in refused.stderr
