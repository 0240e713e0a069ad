"""Moves of copies to another rack keep them readable. The racks are in a topology file; the processes are real."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bookie.client.bookkeeper import LedgerOptions
from bookie.embedded.cluster import EmbeddedBookie
from bookie.model.ids import LedgerId
from tests.deadlines import PROGRAM_S
from tests.integration.clusters import connected, start_cluster
from tests.integration.commands import bkheal
from tests.integration.repair_world import ENTRIES, RepairWorld

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TWO_COPIES = LedgerOptions(2, 2, 2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RepairWorld]:
    home = tmp_path_factory.mktemp("moved-copies")
    async with await start_cluster(home, 3, serves_metrics=True) as cluster, await connected(cluster) as client:
        made = RepairWorld(cluster, client, home)
        yield made
        await made.whole()


def topology_file(world: RepairWorld, apart: EmbeddedBookie) -> Path:
    """Write a topology with all bookies in one rack except ``apart``."""
    racks = {bookie.bookie_id: "/r2" if bookie is apart else "/r1" for bookie in world.cluster.bookies}
    path = world.home / "topology.json"
    path.write_text(json.dumps(racks))
    return path


async def repair_once(world: RepairWorld, topology: Path) -> None:
    replicator = world.replicator("--once", "--topology-file", str(topology))
    assert await replicator.wait(PROGRAM_S) == 0, replicator.log_tail()


async def added_entries(world: RepairWorld) -> dict[str, float]:
    metric = "bkheal_bookie_added_entries_total"
    return {bookie.name: await world.counted(bookie, metric) for bookie in world.cluster.bookies}


async def non_member(world: RepairWorld, ledger_id: LedgerId) -> EmbeddedBookie:
    members = (await world.metadata(ledger_id)).members()
    (other,) = [bookie for bookie in world.cluster.bookies if bookie.bookie_id not in members]
    return other


async def test_a_misplaced_ledger_is_moved_by_copying_one_position_once(world: RepairWorld) -> None:
    ledger_id = await world.written(TWO_COPIES)
    before = await world.metadata(ledger_id)
    apart = await non_member(world, ledger_id)
    topology = topology_file(world, apart)
    added = await added_entries(world)
    await world.mark(ledger_id)
    await repair_once(world, topology)
    after = await world.metadata(ledger_id)
    assert apart.bookie_id in after.members()
    assert len(after.members() & before.members()) == 1
    assert (after.state, after.last_entry_id, after.length) == (before.state, before.last_entry_id, before.length)
    await world.assert_whole(ledger_id)
    grown = {name: count - added[name] for name, count in (await added_entries(world)).items() if count > added[name]}
    assert grown == {apart.name: ENTRIES}
    await world.settled()


async def test_a_mark_without_a_topology_is_kept(world: RepairWorld) -> None:
    ledger_id = await world.written(TWO_COPIES)
    before = await world.metadata(ledger_id)
    await world.mark(ledger_id)
    replicator = world.replicator("--once")
    assert await replicator.wait(PROGRAM_S) == 0, replicator.log_tail()
    assert "no topology is configured" in replicator.log_tail()
    assert await world.metadata(ledger_id) == before
    assert await world.client.ports.tasks.read(ledger_id) is not None
    await repair_once(world, topology_file(world, await non_member(world, ledger_id)))
    await world.settled()


async def test_a_badly_placed_copy_is_listed_as_a_debt_and_moved_when_the_rack_returns(world: RepairWorld) -> None:
    ledger_id = await world.written(TWO_COPIES)
    member = min((await world.metadata(ledger_id)).members())
    apart = world.bookie(member)
    topology = topology_file(world, apart)
    await world.kill9(apart)
    await world.mark(ledger_id, apart)
    await repair_once(world, topology)
    assert apart.bookie_id not in (await world.metadata(ledger_id)).members()
    listed = await bkheal(world.uri, "debts", "list")
    assert [(item["ledger_id"], item["fragments"]) for item in listed["items"]] == [(ledger_id, [0])]
    assert "need 2 racks" in listed["items"][0]["detail"]
    await apart.start()
    await world.reach(apart)
    await repair_once(world, topology)
    assert apart.bookie_id in (await world.metadata(ledger_id)).members()
    await world.assert_whole(ledger_id)
    assert (await bkheal(world.uri, "debts", "list"))["items"] == []
    await world.settled()
