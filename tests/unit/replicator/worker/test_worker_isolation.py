"""Repair and drain keep a ledger in its requested bookie groups, which are in Pulsar's node in the store."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bookie.client.placement.feed import load_placement
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.topology import PULSAR_NODE
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId, LedgerId
from bookie.model.isolation import POLICY_KEY
from replicator.settings import ReplicatorSettings
from replicator.telemetry.events import Ending
from replicator.worker import RunEnd, Worker
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import Recorder, RepairWorld, a_world

GROUPS = {
    "red": {"a": {"rack": "/r1"}, "b": {"rack": "/r2"}, "c": {"rack": "/r1"}},
    "blue": {"x": {"rack": "/r2"}, "y": {"rack": "/r2"}},
}
PROPERTIES = {
    "policyClass": "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy",
    "properties": {"isolationBookieGroups": "red", "secondaryIsolationBookieGroups": ""},
}
CUSTOM = ((POLICY_KEY, json.dumps(PROPERTIES).encode()),)


async def worker(world: RepairWorld) -> tuple[Worker, Recorder]:
    store = MemoryStore(world.cell)
    placement = await load_placement(store, world.cluster)
    recorder = Recorder()
    settings = ReplicatorSettings("zk://memory/ledgers", once=True)
    return Worker(replace(world.ports(store), placement=placement), settings, recorder, "worker"), recorder


async def heal(world: RepairWorld) -> Recorder:
    healing, recorder = await worker(world)
    assert await healing.run() is RunEnd.SETTLED
    return recorder


@pytest.mark.parametrize("ledger_id", [7, 8, 9])
async def test_a_lost_copy_stays_in_the_group_even_if_another_rack_would_be_better(ledger_id: int) -> None:
    async with a_world("a b c x y") as world:
        await world.store.create(f"/{PULSAR_NODE}", json.dumps(GROUPS).encode())
        metadata = replace(make_metadata((0, "a b"), quorum=(2, 2), last=9), custom=CUSTOM)
        packets = await world.ledger(ledger_id, metadata, 10)
        await world.kill("b")
        await world.tasks.marking.mark(marked := LedgerId(ledger_id), names("b"))
        assert (await heal(world)).endings() == [Ending.REPAIRED]
        repaired = await world.metadata(ledger_id)
        assert repaired.fragments[0].members == names("a c")
        assert repaired.custom == CUSTOM
        await world.assert_whole(ledger_id, packets, "c")
        assert await world.task(marked) is None


async def test_a_ledger_whose_group_is_too_small_is_parked_until_a_bookie_of_the_group_joins() -> None:
    async with a_world("a b x y") as world:
        await world.store.create(f"/{PULSAR_NODE}", json.dumps(GROUPS).encode())
        metadata = replace(make_metadata((0, "a b"), quorum=(2, 2), last=9), custom=CUSTOM)
        packets = await world.ledger(LEDGER, metadata, 10)
        await world.lose("b")
        (result,) = (await heal(world)).results
        assert (result.ending, result.reason) == (Ending.PARKED, ParkReason.NO_CANDIDATE_BOOKIE)
        assert "bookie groups that the ledger may have: red" in result.detail
        await world.add_bookies("c")
        assert (await heal(world)).endings() == [Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets, "c")


async def test_a_drained_bookies_copies_stay_in_the_group() -> None:
    async with a_world("a b c x y") as world:
        await world.store.create(f"/{PULSAR_NODE}", json.dumps(GROUPS).encode())
        metadata = replace(make_metadata((0, "a b"), quorum=(2, 2), last=9), custom=CUSTOM)
        packets = await world.ledger(LEDGER, metadata, 10)
        await Drains(world.store, world.cluster.root).start(Drain(BookieId("b"), "test", 0))
        await world.tasks.marking.mark(LEDGER, names("b"))
        assert (await heal(world)).endings() == [Ending.REPAIRED]
        assert (await world.metadata(LEDGER)).members() == {"a", "c"}
        await world.assert_whole(LEDGER, packets, "c")
