"""``bkheal bookies`` without a service: how long a bookie has been lost, and when its ledgers are marked."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from auditor.cli.cluster import bookies
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.layout import cookie_path, lost_bookie_delay_path
from bookie.metadata.nodes import ensure_path, put
from bookie.model.ids import BookieId
from bookie.model.times import rfc3339
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster

LOST = BookieId("a:1")
SINCE_MS = 1_800_000_000_000
DELAY_S = 600


async def test_a_lost_bookie_is_shown_with_the_times_of_its_loss_and_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = CommandCluster()
    await cluster.fill()

    async def connect(uri: str, **_: Any) -> AbstractAsyncContextManager[Any]:
        return cluster.connected(uri)

    monkeypatch.setattr("bookie.client.connect.connect", connect)
    await cluster.keeper.create(f"{ROOT}/cookies")
    await cluster.keeper.create(cookie_path(ROOT, LOST))
    downs = FirstSeenDown(cluster.keeper, ROOT)
    async with cluster.connected("") as client:
        await client.ports.tasks.switches.set_lost_bookie_delay_s(DELAY_S)
    assert (await row())["first_seen_down"] is None
    await downs.reconcile({LOST}, SINCE_MS, registered=set())
    lost = await row()
    assert lost["state"] == "lost"
    assert lost["first_seen_down"] == rfc3339(SINCE_MS)
    assert lost["audit_due"] == rfc3339(SINCE_MS + DELAY_S * 1000)


async def test_bookies_are_listed_although_the_delay_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = CommandCluster()
    await cluster.fill()

    async def connect(uri: str, **_: Any) -> AbstractAsyncContextManager[Any]:
        return cluster.connected(uri)

    monkeypatch.setattr("bookie.client.connect.connect", connect)
    await ensure_path(cluster.keeper, cookie_path(ROOT, LOST))
    await FirstSeenDown(cluster.keeper, ROOT).reconcile({LOST}, SINCE_MS, registered=set())
    await put(cluster.keeper, lost_bookie_delay_path(ROOT), b"10m", ROOT)
    lost = await row()
    assert (lost["first_seen_down"], lost["audit_due"]) == (rfc3339(SINCE_MS), None)
    assert "at which its ledgers are marked is unknown" in lost["detail"]


async def row() -> dict[str, Any]:
    (found,) = (each for each in await bookies._bookies("zk://h/l") if each["bookie_id"] == LOST)
    return found
