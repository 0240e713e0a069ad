"""SIGKILL at each step of a repair for the worker, a source, the target, or ZooKeeper.

In each case the repair ends with every copy on its member, and nothing temporary remains (I17, I18, S11, S16).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bookie.client.bookkeeper import LedgerOptions, stored_digest
from bookie.model.packet import HEADER_SIZE
from tests.deadlines import STATE_S
from tests.integration.repair_world import ENTRIES, RepairWorld, payload, repair_world, steps
from tests.integration.stopping_replicator_child import Step

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RepairWorld]:
    async with repair_world(tmp_path_factory.mktemp("killed-in-repair")) as made:
        yield made


@pytest.mark.parametrize(
    "step", steps(Step.COPYING, Step.LISTED, Step.NAMED, long=[Step.LOCKED, Step.RESERVED, Step.COPIED])
)
async def test_another_worker_finishes_the_repair_of_a_killed_one(world: RepairWorld, step: Step) -> None:
    repair = await world.repair_at(step)
    if step is Step.COPYING:
        [target] = await world.targets(repair)
        assert 0 < await world.held(target, repair.ledger_id) < ENTRIES
    await world.kill9(repair.replicator)
    is_marked = await world.client.ports.tasks.read(repair.ledger_id) is not None
    assert is_marked == (step is not Step.NAMED)
    world.replicator()
    await world.assert_repaired(repair, gone=[repair.lost])


@pytest.mark.parametrize("step", steps(Step.COPYING, long=[Step.RESERVED, Step.LISTED, Step.NAMED]))
async def test_a_repair_goes_on_from_another_source_if_one_is_killed(world: RepairWorld, step: Step) -> None:
    """The ledger then has one copy of three, or two of three if the first is repaired already."""
    repair = await world.repair_at(step)
    source = await world.busiest_source(repair)
    await world.kill9(source)
    await world.mark(repair.ledger_id, source)
    repair.resume()
    await world.assert_repaired(repair, gone=[repair.lost, source])


@pytest.mark.parametrize("step", steps(Step.LISTED, long=[Step.RESERVED, Step.COPYING, Step.COPIED]))
async def test_a_repair_takes_another_target_if_one_is_killed(world: RepairWorld, step: Step) -> None:
    repair = await world.repair_at(step)
    [target] = await world.targets(repair)
    await world.kill9(target)
    repair.resume()
    await world.assert_repaired(repair, gone=[repair.lost, target])


async def test_a_source_killed_while_the_target_reads_from_it_loses_nothing(world: RepairWorld) -> None:
    """The source is paused first, so the requests of the target stay unanswered until the kill."""
    repair = await world.repair_at(Step.COPYING, "--pull")
    [target] = await world.targets(repair)
    source = await world.busiest_source(repair)
    source.running.pause()
    repair.resume()
    await world.kill9(source)
    await world.mark(repair.ledger_id, source)
    await world.assert_repaired(repair, gone=[repair.lost, source])
    assert await world.counted(target, "bkheal_bookie_requests_total", "copy", "ok") > 0


async def test_a_target_that_is_killed_while_it_reads_from_a_source_is_replaced(world: RepairWorld) -> None:
    repair = await world.repair_at(Step.COPYING, "--pull")
    [target] = await world.targets(repair)
    target.running.pause()
    repair.resume()
    await world.kill9(target)
    await world.assert_repaired(repair, gone=[repair.lost, target])
    [new] = (await world.metadata(repair.ledger_id)).members() - repair.before.members()
    assert await world.counted(world.bookie(new), "bkheal_bookie_requests_total", "copy", "ok") > 0


async def test_a_target_killed_after_the_metadata_change_is_replaced_like_any_lost_member(world: RepairWorld) -> None:
    """The target may be restarting, so the worker does not replace it; an audit marks the ledger after the delay."""
    repair = await world.repair_at(Step.NAMED)
    [new] = (await world.metadata(repair.ledger_id)).members() - repair.before.members()
    target = world.bookie(new)
    await world.kill9(target)
    repair.resume()
    await world.settled()
    assert target.bookie_id in (await world.metadata(repair.ledger_id)).members()
    await world.mark(repair.ledger_id, target)
    await world.assert_repaired(repair, gone=[repair.lost, target])


@pytest.mark.parametrize("step", steps(Step.COPYING, long=[Step.RESERVED, Step.LISTED, Step.NAMED]))
async def test_a_repair_survives_a_kill_and_a_restart_of_zookeeper(world: RepairWorld, step: Step) -> None:
    repair = await world.repair_at(step)
    world.cluster.zookeeper.kill()
    await world.cluster.zookeeper.process.wait(STATE_S)
    repair.resume()
    await world.cluster.zookeeper.restart()
    await world.assert_repaired(repair, gone=[repair.lost])


@pytest.mark.long  # tests/unit/replicator/copying/test_several_targets.py shows that without faults, each is read once
async def test_after_the_loss_of_two_of_three_members_entries_are_read_once_for_both_targets(
    world: RepairWorld,
) -> None:
    """A busy machine may delay an answer until the worker repeats its request, so some entries may be read twice."""
    await world.whole()
    ledger_id = await world.written(LedgerOptions(3, 3, 2))
    ledger = await world.client.ports.ledgers.read(ledger_id)
    left, *lost = [world.bookie(member) for member in ledger.metadata.fragments[0].members]
    await world.kill9(*lost)
    metrics = ("bkheal_bookie_read_entries_total", "bkheal_bookie_read_bytes_total")
    before = [await world.counted(left, metric) for metric in metrics]
    await world.mark(ledger_id, *lost)
    world.replicator()
    await world.settled()
    read = [await world.counted(left, metric) - earlier for metric, earlier in zip(metrics, before, strict=True)]
    around = HEADER_SIZE + stored_digest(ledger).size
    once = [ENTRIES, sum(around + len(payload(ledger_id, entry)) for entry in range(ENTRIES))]
    assert all(one <= found < 2 * one for one, found in zip(once, read, strict=True))
    assert not (await world.metadata(ledger_id)).members() & {bookie.bookie_id for bookie in lost}
    await world.assert_whole(ledger_id)
