"""Faults during a repair: processes that are paused, lost, restarted or disconnected, and a deleted ledger.

During the fault the repair pauses at a named step. After it, every member has exactly the bytes of every entry, and no
task, lock or reservation is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.errors import EntryLostError
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import EntryId
from bookie.wire.requests import ListEntries
from tests.deadlines import PROGRAM_S, STATE_S
from tests.integration.auditors import when
from tests.integration.commands import bkheal
from tests.integration.repair_world import ENTRIES, RepairWorld, payload, repair_world, steps
from tests.integration.stopping_replicator_child import Step
from tests.sessions import end_sessions, expire, sessions_of
from tests.worlds.ledgers import placed_copies

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RepairWorld]:
    async with repair_world(tmp_path_factory.mktemp("faults-in-repair")) as made:
        yield made


async def test_a_paused_source_does_not_stop_a_repair(world: RepairWorld) -> None:
    repair = await world.repair_at(Step.COPYING)
    source = await world.busiest_source(repair)
    source.running.pause()
    try:
        repair.resume()
        await world.settled()
    finally:
        source.running.resume()
    await world.reach(source)
    await world.assert_repaired(repair, gone=[repair.lost])


@pytest.mark.long
async def test_a_paused_target_is_replaced_by_another(world: RepairWorld) -> None:
    """The worker waits for the deadline of an add before it takes another target."""
    repair = await world.repair_at(Step.COPYING)
    [target] = await world.targets(repair)
    target.running.pause()
    try:
        await expire(world.cluster.zookeeper, target.running)
        repair.resume()
        await world.settled()
    finally:
        target.running.resume()
    await world.reach(target)
    await world.assert_repaired(repair, gone=[repair.lost, target])


@pytest.mark.parametrize("step", steps(Step.LISTED, long=[Step.COPYING, Step.NAMED]))
async def test_a_worker_that_wakes_up_after_another_has_finished_changes_nothing(
    world: RepairWorld, step: Step
) -> None:
    repair = await world.repair_at(step)
    repair.replicator.pause()
    await expire(world.cluster.zookeeper, repair.replicator)
    world.replicator()
    await world.settled()
    after = await world.client.ports.ledgers.read(repair.ledger_id)
    repair.resume()
    repair.replicator.resume()
    for line in ("all work is released", "tasks listed eligible=0 locked=0"):
        await repair.replicator.wait_for_line(line, STATE_S)
    await world.assert_repaired(repair, gone=[repair.lost])
    assert await world.client.ports.ledgers.read(repair.ledger_id) == after


@pytest.mark.parametrize("step", steps(Step.COPYING, long=[Step.LISTED, Step.NAMED]))
async def test_a_worker_whose_session_has_ended_finishes_in_its_next_one(world: RepairWorld, step: Step) -> None:
    repair = await world.repair_at(step)
    await expire(world.cluster.zookeeper, repair.replicator)
    repair.resume()
    await world.assert_repaired(repair, gone=[repair.lost])


@pytest.mark.parametrize("step", steps(Step.COPYING, long=[Step.LOCKED, Step.RESERVED, Step.COPIED]))
async def test_a_lost_bookie_that_returns_before_the_metadata_change_stays_a_member(
    world: RepairWorld, step: Step
) -> None:
    repair = await world.repair_at(step)
    await repair.lost.start()
    repair.resume()
    await world.assert_repaired(repair, gone=[])
    assert await world.metadata(repair.ledger_id) == repair.before


async def test_a_lost_bookie_that_returns_after_it_was_replaced_stays_replaced(world: RepairWorld) -> None:
    repair = await world.repair_at(Step.NAMED)
    after = await world.metadata(repair.ledger_id)
    await repair.lost.start()
    repair.resume()
    await world.assert_repaired(repair, gone=[repair.lost])
    assert await world.metadata(repair.ledger_id) == after


async def test_two_of_three_copies_lost_at_once_are_restored(world: RepairWorld) -> None:
    repair = await world.repair_at(Step.COPYING, lost_count=2)
    lost = [world.bookie(member) for member in repair.before.fragments[0].members[:2]]
    repair.resume()
    await world.assert_repaired(repair, gone=lost)


async def test_the_next_worker_restores_two_lost_copies_if_the_first_is_killed(world: RepairWorld) -> None:
    repair = await world.repair_at(Step.COPYING, lost_count=2)
    lost = [world.bookie(member) for member in repair.before.fragments[0].members[:2]]
    await world.kill9(repair.replicator)
    world.replicator()
    await world.assert_repaired(repair, gone=lost)


@pytest.mark.long
async def test_a_ledger_without_any_copy_stays_parked_until_the_last_source_returns(world: RepairWorld) -> None:
    repair = await world.repair_at(Step.COPYING, lost_count=2)
    lost = [world.bookie(member) for member in repair.before.fragments[0].members[:2]]
    last = world.bookie(repair.before.fragments[0].members[2])
    await world.kill9(last)
    repair.resume()

    async def is_parked() -> bool:
        return [park.ledger_id for park in await world.client.parked.list()] == [repair.ledger_id]

    await when(is_parked, STATE_S)
    [park] = await world.client.parked.list()
    assert park.reason is ParkReason.NO_LIVE_COPY
    assert await world.metadata(repair.ledger_id) == repair.before
    await last.start()
    await world.reach(last)
    await world.assert_repaired(repair, gone=lost)


async def test_striped_ledgers_that_lose_two_members_at_once_are_repaired_by_two_workers(world: RepairWorld) -> None:
    await world.whole()
    ledgers = [await world.written(LedgerOptions(4, 3, 3), entries=60) for _ in range(6)]
    lost = world.cluster.bookies[:2]
    names = {bookie.bookie_id for bookie in lost}
    await world.kill9(*lost)
    for ledger_id in ledgers:
        if missing := [bookie for bookie in lost if bookie.bookie_id in (await world.metadata(ledger_id)).members()]:
            await world.mark(ledger_id, *missing)
    for _ in range(2):
        world.replicator()
    await world.settled()
    for ledger_id in ledgers:
        assert not (await world.metadata(ledger_id)).members() & names
        await world.assert_whole(ledger_id, entries=60)


async def test_a_repair_goes_on_after_every_bookie_was_killed_at_once(world: RepairWorld) -> None:
    repair = await world.repair_at(Step.COPYING)
    others = [bookie for bookie in world.cluster.bookies if bookie is not repair.lost]
    await world.kill9(*others)
    for bookie in others:
        bookie.launch()
    for bookie in others:
        await bookie.wait_ready()
    repair.resume()
    await world.assert_repaired(repair, gone=[repair.lost])
    after = await world.metadata(repair.ledger_id)
    assert after.members() > repair.before.members() - {repair.lost.bookie_id}


async def test_the_end_of_all_sessions_at_once_replaces_no_second_member(world: RepairWorld) -> None:
    """Every registration and every lock disappears, as after an outage of ZooKeeper."""
    repair = await world.repair_at(Step.COPYING)
    others = [bookie for bookie in world.cluster.bookies if bookie is not repair.lost]
    processes = [repair.replicator, *(bookie.running for bookie in others)]
    zookeeper = world.cluster.zookeeper
    sessions = [session for process in processes for session in await sessions_of(zookeeper, process)]
    assert len(sessions) >= len(processes)
    await end_sessions(zookeeper, sessions)
    repair.resume()
    await world.assert_repaired(repair, gone=[repair.lost])
    after = await world.metadata(repair.ledger_id)
    assert after.members() > repair.before.members() - {repair.lost.bookie_id}


@pytest.mark.parametrize("step", steps(Step.COPYING, long=[Step.RESERVED, Step.LISTED, Step.NAMED]))
async def test_a_ledger_that_is_deleted_during_its_repair_leaves_no_metadata_behind(
    world: RepairWorld, step: Step
) -> None:
    repair = await world.repair_at(step)
    await world.client.delete_ledger(repair.ledger_id)
    repair.resume()
    await world.settled()
    with pytest.raises(NoSuchLedgerError):
        await world.metadata(repair.ledger_id)


async def test_nothing_of_a_deleted_ledger_is_written_to_another_one_with_its_id(world: RepairWorld) -> None:
    """The metadata of the other ledger (R170) has the version that the repair expects."""
    repair = await world.repair_at(Step.COPIED)
    ledgers = world.client.ports.ledgers
    version = (await ledgers.read(repair.ledger_id)).version
    spare = [each.bookie_id for each in world.cluster.bookies if each.bookie_id not in repair.before.members()]
    other = repair.before.with_members({0: tuple(spare[: repair.before.ensemble_size])})
    await ledgers.delete(repair.ledger_id)
    await ledgers.create(repair.ledger_id, other)
    for number in range(version):
        await ledgers.write(repair.ledger_id, other, number)
    repair.resume()
    await world.settled()
    after = await ledgers.read(repair.ledger_id)
    assert after.version == version
    assert after.metadata.fragments == other.fragments
    await ledgers.delete(repair.ledger_id)


@pytest.mark.long
async def test_a_rolling_restart_of_bookies_during_a_repair_causes_no_needless_copy(
    world: RepairWorld,
) -> None:
    """The copy pauses while they restart. Then the target gets only its missing entries, and the others get none."""
    repair = await world.repair_at(Step.COPYING)
    [target] = await world.targets(repair)
    others = [bookie for bookie in world.cluster.bookies if bookie is not repair.lost]
    for bookie in others:
        assert await bookie.running.stop(STATE_S) == 0
        await bookie.start()
        await world.reach(bookie)
    held = await world.held(target, repair.ledger_id)
    assert 0 < held < ENTRIES
    repair.resume()
    await world.assert_repaired(repair, gone=[repair.lost])
    [new] = (await world.metadata(repair.ledger_id)).members() - repair.before.members()
    assert new == target.bookie_id
    received = {bookie.name: await world.counted(bookie, "bkheal_bookie_added_entries_total") for bookie in others}
    assert {name: count for name, count in received.items() if count} == {target.name: ENTRIES - held}


async def test_after_an_accepted_loss_every_other_entry_has_all_its_copies_again(world: RepairWorld) -> None:
    """Two of three bookies are lost, and a third of the entries with them."""
    await world.whole()
    ledger_id = await world.written(LedgerOptions(3, 2, 2))
    before = await world.metadata(ledger_id)
    lost = [world.bookie(member) for member in before.fragments[0].members[:2]]
    await world.kill9(*lost)
    await world.mark(ledger_id, *lost)
    parking = world.replicator("--once")
    assert await parking.wait(PROGRAM_S) == 0, parking.log_tail()
    assert [each.reason for each in await world.client.parked.list()] == [ParkReason.NO_LIVE_COPY]
    words = "dead-letters", "accept-loss", str(ledger_id), "--reason", "both disks were destroyed", "--yes"
    [row] = (await bkheal(world.uri, *words))["ledgers"]
    gone = range(0, ENTRIES, 3)
    assert (row["outcome"], row["lost"][0]["entry_count"]) == ("accepted_task_stays", len(gone))
    replicator = world.replicator("--once")
    assert await replicator.wait(PROGRAM_S) == 0, replicator.log_tail()
    await world.settled()
    after = await world.metadata(ledger_id)
    assert not after.members() & {bookie.bookie_id for bookie in lost}
    assert (after.state, after.last_entry_id, after.length) == (before.state, before.last_entry_id, before.length)
    for member, stored in placed_copies(after):
        reply = await world.client.ports.transport.ask(member, ListEntries(ledger_id), STATE_S)
        assert list(reply.entries) == [entry for entry in stored if entry not in gone]
    reader = await world.client.open_ledger(ledger_id)
    for entry in range(6):
        if entry in gone:
            with pytest.raises(EntryLostError):
                await reader.read(EntryId(entry))
        else:
            assert (await reader.read(EntryId(entry))).payload == payload(ledger_id, entry)
    await world.mark(ledger_id, *map(world.bookie, sorted(after.members())))
    again = world.replicator("--once")
    assert await again.wait(PROGRAM_S) == 0, again.log_tail()
    await world.settled()
    assert await world.metadata(ledger_id) == after
