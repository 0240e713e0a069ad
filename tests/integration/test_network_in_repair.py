"""The network to a source or to the target is cut or slow during a copy, while ZooKeeper sees every bookie."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.deadlines import STATE_S
from tests.integration.auditors import when
from tests.integration.clusters import connected, start_cluster
from tests.integration.link import LinkedBookie, linked_bookie
from tests.integration.repair_world import Repair, RepairWorld
from tests.integration.stopping_replicator_child import PAUSED_LINE, Step
from tests.links import Trouble

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


class Linked(RepairWorld):
    """A world with a lost bookie, which has no link, and four bookies with a link each."""

    linked: list[LinkedBookie]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Linked]:
    home = tmp_path_factory.mktemp("network-in-repair")
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(await start_cluster(home, 1))
        linked = [await stack.enter_async_context(linked_bookie(cluster, f"linked-{n}")) for n in range(4)]
        client = await stack.enter_async_context(await connected(cluster))
        made = Linked(cluster, client, home)
        made.linked = linked
        stack.push_async_callback(made.whole)
        yield made


async def begun(world: Linked) -> tuple[Repair, list[LinkedBookie], LinkedBookie]:
    """Return a repair that is in the middle of its copy, with its sources and its target."""
    await world.whole()
    lost = world.cluster.bookies[0]
    while True:
        ledger_id = await world.written()
        before = await world.metadata(ledger_id)
        if lost.bookie_id in before.members():
            break
        await world.client.delete_ledger(ledger_id)
    await world.kill9(lost)
    await world.mark(ledger_id, lost)
    replicator, gate = world.paused_replicator(Step.COPYING)
    await replicator.wait_for_line(PAUSED_LINE, STATE_S)
    reservation = await world.reservations.read(ledger_id)
    assert reservation is not None
    [target] = [bookie for bookie in world.linked if reservation.names(bookie.bookie_id)]
    sources = [bookie for bookie in world.linked if bookie.bookie_id in before.members()]
    return Repair(ledger_id, before, lost, replicator, gate), sources, target


async def test_a_source_that_is_cut_off_does_not_stop_a_repair(world: Linked) -> None:
    repair, [source, _], target = await begun(world)
    source.link.set(Trouble.CUT)
    try:
        repair.resume()
        await world.settled()
        assert source.bookie_id in (await world.client.ports.registrations.list()).registered
    finally:
        source.link.set(None)
    await world.assert_repaired(repair, gone=[repair.lost])
    assert target.bookie_id in (await world.metadata(repair.ledger_id)).members()


async def test_a_slow_network_slows_down_a_repair_and_causes_no_second_target(world: Linked) -> None:
    repair, sources, target = await begun(world)
    slow = [*sources, target]
    for bookie in slow:
        bookie.link.set(Trouble.SLOW)
    try:
        repair.resume()
        await world.settled()
    finally:
        for bookie in slow:
            bookie.link.set(None)
    await world.assert_repaired(repair, gone=[repair.lost])
    assert target.bookie_id in (await world.metadata(repair.ledger_id)).members()


async def test_a_target_that_is_disconnected_and_returns_gets_the_rest_of_the_copy(world: Linked) -> None:
    """The cut is shorter than the deadline of an add, so the same target gets the copy."""
    repair, _, target = await begun(world)
    target.link.set(Trouble.CUT)
    before = target.link.received
    repair.resume()

    async def is_sent_more() -> bool:
        return target.link.received > before

    await when(is_sent_more, STATE_S)
    target.link.set(None)
    await world.assert_repaired(repair, gone=[repair.lost])
