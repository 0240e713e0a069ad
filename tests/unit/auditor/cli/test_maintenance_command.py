"""``bkheal maintenance``: which bookies, for how long, and what is refused before a change."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import maintenance as command
from auditor.cli.exit_codes import exit_code_of
from auditor.cli.main import app
from bookie.metadata.bookies import maintenance
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.maintenance import MaintenanceWindow, MaintenanceWindows
from bookie.metadata.bookies.topology import InvalidTopologyError, TopologyStore
from bookie.metadata.cluster import open_cluster
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from tests.worlds.clocks import EPOCH_MS, ManualClock
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster

A, C, D = BookieId("a"), BookieId("c"), BookieId("d")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    made.clock = ManualClock()

    async def fill() -> None:
        await made.fill()
        store = TopologyStore(made.keeper, await open_cluster(made.keeper, ROOT))
        await store.write(json.dumps({"c": "/dc1/r1", "d": "/dc1/r1", "a": "/dc1/r2"}))

    asyncio.run(fill())
    monkeypatch.setattr(command, "connected", made.connected)
    monkeypatch.setattr(command, "whoami", lambda: "me@host")
    return made


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["maintenance", *words, "--metadata-uri", "zk://h:1/ledgers"])


def opened(cluster: CommandCluster) -> list[MaintenanceWindow]:
    return list(asyncio.run(MaintenanceWindows(cluster.keeper, ROOT).open_at(EPOCH_MS)))


def test_a_window_covers_a_bookie_for_a_limited_time(cluster: CommandCluster) -> None:
    result = call("start", "c", "--for", "2h", "--note", "new disks")
    assert result.exit_code == ExitCode.OK
    assert opened(cluster) == [
        MaintenanceWindow("c", (C,), "me@host", EPOCH_MS, EPOCH_MS + 7_200_000, note="new disks")
    ]
    assert json.loads(call("list", "-o", "json").stdout)["items"][0]["target"] == "c"
    assert "c until " in call("list").stdout


def test_a_window_of_a_rack_covers_its_bookies(cluster: CommandCluster) -> None:
    result = call("start", "rack:dc1/r1", "--hold-critical", "-o", "json")
    assert json.loads(result.stdout)["bookies"] == ["c", "d"]
    (window,) = opened(cluster)
    assert (window.target, window.bookies, window.holds_critical) == ("rack:/dc1/r1", (C, D), True)
    assert call("end", "rack:/dc1/r1").stdout == "the window of rack:/dc1/r1 is ended\n"
    again = call("end", "rack:/dc1/r1")
    assert (again.exit_code, "rack:/dc1/r1 has no open window" in again.stderr) == (ExitCode.FAILED, True)
    assert call("end", "d", "--dry-run").exit_code == ExitCode.FAILED
    assert opened(cluster) == []


@pytest.mark.parametrize("target", ["a", "rack:/dc1/r2"])
def test_a_lost_bookie_without_a_cookie_is_covered_until_an_audit_has_marked_its_ledgers(
    cluster: CommandCluster, target: str
) -> None:
    downs = FirstSeenDown(cluster.keeper, ROOT)
    asyncio.run(downs.reconcile({A}, EPOCH_MS, registered=set()))
    assert call("start", target).exit_code == ExitCode.OK
    assert [window.bookies for window in opened(cluster)] == [(A,)]
    asyncio.run(downs.note_audited(A, EPOCH_MS, EPOCH_MS + 1))
    assert call("start", target).exit_code == ExitCode.FAILED


def test_the_racks_of_a_given_topology_file_are_used(cluster: CommandCluster, tmp_path: Path) -> None:
    file = tmp_path / "racks.json"
    file.write_text(json.dumps({"c": "/dc1/r1", "d": "/dc1/r2"}))
    assert call("start", "rack:/dc1/r1", "--topology-file", str(file)).exit_code == ExitCode.OK
    assert [window.bookies for window in opened(cluster)] == [(C,)]


@pytest.mark.parametrize("text", ["nonsense", '{"c": 1}'])
def test_an_invalid_topology_file_is_named(cluster: CommandCluster, tmp_path: Path, text: str) -> None:
    file = tmp_path / "racks.json"
    file.write_text(text)
    error = call("start", "rack:/dc1/r1", "--topology-file", str(file)).exception
    assert isinstance(error, InvalidTopologyError)
    assert (exit_code_of(error), f"topology file {file}: " in str(error)) == (ExitCode.CONFIGURATION, True)
    assert opened(cluster) == []


def test_a_dry_run_changes_nothing(cluster: CommandCluster) -> None:
    assert call("start", "c", "--dry-run").stdout.startswith("losses of c would not be marked until ")
    assert opened(cluster) == []
    call("start", "c")
    call("end", "c", "--dry-run")
    assert len(opened(cluster)) == 1


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["start", "e"], ExitCode.FAILED, "no bookie of this cluster: e"),
        (["start", "rack:/dc1/r9"], ExitCode.FAILED, "racks with bookies: /dc1/r1"),
        (["start", "rack:/dc1/r2"], ExitCode.FAILED, "no bookie is in rack /dc1/r2"),
        (["start", "c", "--for", "4d"], ExitCode.USAGE, "not a time span up to 3d"),
        (["start", "c", "--for", "0s"], ExitCode.USAGE, "not a time span up to 3d"),
    ],
)
def test_invalid_windows_are_refused(cluster: CommandCluster, words: list[str], code: ExitCode, reason: str) -> None:
    result = call(*words)
    assert (result.exit_code, reason in " ".join(result.output.split())) == (code, True)
    assert opened(cluster) == []


def test_too_many_windows_are_refused(cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "WINDOWS_MAX", 1)
    assert call("start", "c").exit_code == ExitCode.OK
    result = call("start", "d")
    assert (result.exit_code, "end one with" in result.output) == (ExitCode.FAILED, True)
    assert [window.target for window in opened(cluster)] == ["c"]
