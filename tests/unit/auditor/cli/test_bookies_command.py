"""``bkheal bookies`` without a service: how long a bookie has been lost, and when its ledgers are marked."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.cli.main import app
from auditor.operating.bookie_list import list_bookies
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.maintenance import MaintenanceWindow, MaintenanceWindows
from bookie.metadata.layout import cookie_path, lost_bookie_delay_path
from bookie.metadata.nodes import ensure_path, put
from bookie.metadata.tasks.switches import RecoverySwitches
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.model.times import rfc3339
from tests.worlds.clocks import EPOCH_MS, ManualClock
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster

LOST = BookieId("a:1")
SINCE_MS = 1_800_000_000_000
DELAY_S = 600


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    """A cluster with a cookie of ``LOST``."""
    made = CommandCluster()
    made.clock = ManualClock()

    async def connect(uri: str, **_: Any) -> AbstractAsyncContextManager[Any]:
        return made.connected(uri)

    async def fill() -> None:
        await made.fill()
        await ensure_path(made.keeper, cookie_path(ROOT, LOST))

    asyncio.run(fill())
    monkeypatch.setattr("bookie.client.connect.connect", connect)
    return made


async def test_a_lost_bookie_is_shown_with_the_times_of_its_loss_and_marks(cluster: CommandCluster) -> None:
    downs = FirstSeenDown(cluster.keeper, ROOT)
    async with cluster.connected("") as client:
        await client.ports.tasks.switches.set_lost_bookie_delay_s(DELAY_S)
    assert (await row(cluster))["first_seen_down"] is None
    await downs.reconcile({LOST}, SINCE_MS, registered=set())
    lost = await row(cluster)
    assert lost["state"] == "lost"
    assert lost["first_seen_down"] == rfc3339(SINCE_MS)
    assert lost["audit_due"] == rfc3339(SINCE_MS + DELAY_S * 1000)


async def test_bookies_are_listed_although_the_delay_cannot_be_read(cluster: CommandCluster) -> None:
    await FirstSeenDown(cluster.keeper, ROOT).reconcile({LOST}, SINCE_MS, registered=set())
    await put(cluster.keeper, lost_bookie_delay_path(ROOT), b"10m", ROOT)
    lost = await row(cluster)
    assert (lost["first_seen_down"], lost["audit_due"]) == (rfc3339(SINCE_MS), None)
    assert "at which its ledgers are marked is unknown" in lost["detail"]


async def test_the_time_of_marks_is_after_the_maintenance_window(cluster: CommandCluster) -> None:
    await FirstSeenDown(cluster.keeper, ROOT).reconcile({LOST}, EPOCH_MS, registered=set())
    until_ms = EPOCH_MS + 7_200_000
    window = MaintenanceWindow(LOST, (LOST,), "me@host", EPOCH_MS, until_ms)
    await MaintenanceWindows(cluster.keeper, ROOT).start(window)
    assert (await row(cluster))["audit_due"] == rfc3339(until_ms)


def test_a_note_contains_why_nothing_is_marked(cluster: CommandCluster) -> None:
    downs = FirstSeenDown(cluster.keeper, ROOT)
    asyncio.run(downs.reconcile({LOST}, EPOCH_MS, registered=set()))
    since = f"note: {LOST} is lost since {rfc3339(EPOCH_MS)}; its ledgers are"
    assert notes() == [f"{since} marked from {rfc3339(EPOCH_MS)}"]
    switches = RecoverySwitches(cluster.keeper, ROOT)
    asyncio.run(switches.disable())
    not_before = f"{since} not marked before {rfc3339(EPOCH_MS)}"
    assert notes() == [not_before, "note: nothing is marked now: recovery is disabled: `bkheal recovery enable`"]
    asyncio.run(switches.enable())
    for number in range(9):
        asyncio.run(ensure_path(cluster.keeper, cookie_path(ROOT, BookieId(f"gone:{number}"))))
    assert notes()[0] == not_before
    assert notes()[-1].startswith("note: nothing is marked now: the brake holds, because ")


def notes() -> list[str]:
    result = CliRunner().invoke(app, ["bookies", "--metadata-uri", "zk://h:1/ledgers"])
    assert result.exit_code == ExitCode.OK, result.output
    lines = result.stderr.splitlines()
    return [line for line in lines if line.startswith(("note: nothing is marked", f"note: {LOST}"))]


async def row(cluster: CommandCluster) -> dict[str, Any]:
    async with cluster.connected("zk://h/l") as client:
        found = await list_bookies(client)
    (lost,) = (each for each in found.rows if each["bookie_id"] == LOST)
    return lost
