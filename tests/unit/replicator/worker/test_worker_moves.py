"""Placement marks: a worker with a topology moves the copies of misplaced ledgers, and no entry has fewer copies."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from bookie.client.placement.feed import load_placement
from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.topology import PULSAR_NODE
from bookie.metadata.nodes import put
from bookie.metadata.tasks.moves import MOVES_MAX, WINDOW_MS
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import LedgerState
from bookie.wire.port import Status
from replicator.knowledge import absence
from replicator.repair import execution
from replicator.settings import ReplicatorSettings
from replicator.telemetry.events import Ending, QueueState
from replicator.worker import RunEnd, Worker
from tests.unit.replicator.worker.test_worker_absences import with_cookies
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import Recorder, RepairWorld, a_world, answers
from tests.worlds.virtual_time import in_virtual_time, when

RACKS = {"a": "/r1", "b": "/r1", "c": "/r1", "x": "/r2", "y": "/r2", "z": "/r3"}
OTHER = LedgerId(8)


async def write_topology(world: RepairWorld, racks: dict[str, str] | None = None) -> None:
    await put(world.store, f"/{PULSAR_NODE}", json.dumps(RACKS if racks is None else racks).encode())


async def heal(world: RepairWorld, seed: int = 0, **chosen: Any) -> Recorder:
    """Run one worker with the topology that is now in the store, until all tasks are done."""
    store = world.session()
    recorder = Recorder(world.version)
    placement = await load_placement(store, world.cluster)
    settings = ReplicatorSettings("zk://memory/ledgers", once=True, **chosen)
    worker = Worker(replace(world.ports(store, seed), placement=placement), settings, recorder, "worker")
    assert await worker.run() is RunEnd.SETTLED
    await store.close()
    return recorder


def copied(world: RepairWorld) -> dict[str, int]:
    return {
        str(name): count
        for name, node in world.bookies.nodes.items()
        if (count := sum(len(batch.entries) for batch in node.tampering.adds))
    }


@in_virtual_time
async def test_one_copy_is_moved_so_that_the_ledger_spans_two_racks_and_the_task_is_completed() -> None:
    async with a_world("a b x y") as world:
        await write_topology(world)
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, ())
        recorder = await heal(world)
        (result,) = recorder.results
        assert (result.ending, result.moved_copies, result.entries) == (Ending.MOVED, 1, 10)
        members = (await world.metadata(LEDGER)).fragments[0].members
        kept = [at for at, member in enumerate(members) if member == names("a b")[at]]
        assert len(kept) == 1  # the other one still has its position
        assert set(members) & set(names("x y"))
        assert sum(copied(world).values()) == 10
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_the_replaced_member_is_read_if_no_other_bookie_serves_an_entry() -> None:
    async with a_world("a b x") as world:
        await write_topology(world)
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        for entry_id in range(10):  # each bookie denies every second entry, although it lists all entries
            world.bookies["ab"[entry_id % 2]].results[EntryId(entry_id)] = answers(Status.NO_ENTRY)
        await world.tasks.marking.mark(LEDGER, ())
        recorder = await heal(world)
        assert recorder.endings() == [Ending.MARKED_AGAIN, Ending.NOTHING_MISSING]
        assert [result.moved_copies for result in recorder.results] == [1, 0]
        await world.assert_whole(LEDGER, packets, "x")


@in_virtual_time
async def test_a_ledger_that_meets_the_policy_keeps_its_bookies_and_loses_its_mark() -> None:
    async with a_world("a b x y") as world:
        await write_topology(world)
        await world.ledger(LEDGER, make_metadata((0, "a x"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, ())
        assert (await heal(world)).endings() == [Ending.NOTHING_MISSING]
        assert copied(world) == {}
        assert await world.is_clean()


@in_virtual_time
async def test_a_mark_without_a_better_bookie_waits_for_a_bookie_or_another_topology() -> None:
    async with a_world("a b c") as world:
        await write_topology(world)
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, ())
        (result,) = (await heal(world)).results
        assert (result.ending, result.reason) == (Ending.PARKED, ParkReason.MISPLACED)
        assert "positions 0, 1 are in /r1 and need 2 racks, and no registered bookie is better" in result.detail
        assert (await heal(world)).results == []
        await world.add_bookies("x")
        assert (await heal(world)).endings() == [Ending.MOVED]
        await world.assert_whole(LEDGER, packets, "x")
        await write_topology(world, {"a": "/r1", "b": "/r1", "x": "/r1", "c": "/r2"})
        await world.tasks.marking.mark(LEDGER, ())
        assert (await heal(world)).endings() == [Ending.MOVED]
        assert "c" in (await world.metadata(LEDGER)).members()


@in_virtual_time
async def test_a_parked_mark_is_retried_after_a_change_of_the_topology() -> None:
    async with a_world("a b c") as world:
        await write_topology(world)
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, ())
        assert (await heal(world)).endings() == [Ending.PARKED]
        await write_topology(world, RACKS | {"c": "/r2"})
        assert (await heal(world)).endings() == [Ending.MOVED]
        assert await world.is_clean()


@in_virtual_time
async def test_a_bookie_without_a_known_location_is_neither_judged_nor_chosen() -> None:
    async with a_world("a b q x") as world:
        await write_topology(world)
        await world.ledger(LEDGER, make_metadata((0, "a q"), quorum=(2, 2), last=9), 10)
        await world.ledger(OTHER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.kill("x")
        for ledger_id in (LEDGER, OTHER):
            await world.tasks.marking.mark(ledger_id, ())
        results = {result.ledger_id: result for result in (await heal(world)).results}
        assert "the topology has no location for q" in results[LEDGER].detail
        assert "no registered bookie is better" in results[OTHER].detail
        assert copied(world) == {}


@in_virtual_time
async def test_closed_fragments_of_an_open_ledger_are_moved_but_not_the_last_one() -> None:
    async with a_world("a b x y") as world:
        await write_topology(world)
        metadata = make_metadata((0, "a b"), (10, "a x"), (20, "a b"), quorum=(2, 2))
        await world.ledger(LEDGER, metadata, 25)
        await world.tasks.marking.mark(LEDGER, ())
        (result,) = (await heal(world)).results
        assert (result.ending, result.reason) == (Ending.PARKED, ParkReason.OPEN_LEDGER)
        after = await world.metadata(LEDGER)
        assert after.state is LedgerState.OPEN
        assert set(after.fragments[0].members) & set(names("x y"))
        assert after.fragments[1:] == metadata.fragments[1:]
        assert (await heal(world)).results == []


@in_virtual_time
async def test_processes_with_different_policies_do_not_move_a_ledger_back_and_forth_forever() -> None:
    async with a_world("a b x y") as world:
        await write_topology(world)
        metadata = make_metadata((0, "a b"), quorum=(2, 2), last=9)
        await world.ledger(LEDGER, metadata, 10)
        endings = []
        for _ in range(MOVES_MAX + 3):  # another worker moves the copies back, and its auditor marks the ledger
            ledger = await world.ledgers.read(LEDGER)
            if ledger.metadata.fragments != metadata.fragments:
                await world.ledgers.write(
                    LEDGER, replace(ledger.metadata, fragments=metadata.fragments), ledger.version
                )
            await world.tasks.marking.mark(LEDGER, ())
            endings += (await heal(world)).endings()
            await world.clock.sleep(3600)
        assert endings[: MOVES_MAX + 1] == [*[Ending.MOVED] * MOVES_MAX, Ending.PARKED]
        assert Ending.MOVED not in endings[MOVES_MAX:]
        parked = await world.parked.get(LEDGER)
        assert parked is not None
        assert parked.reason is ParkReason.MISPLACED
        assert "compare the policy" in parked.detail
        assert await world.task(LEDGER) is not None
        await world.add_bookies("z")
        assert (await heal(world)).endings() == [Ending.PARKED]
        await world.clock.sleep(WINDOW_MS / 1000)
        await world.add_bookies("c")
        assert (await heal(world)).endings() == [Ending.MOVED]


@in_virtual_time
async def test_nothing_is_moved_while_too_many_bookies_are_missing() -> None:
    async with a_world("a b c x y z") as world:
        cookies = CookieStore(world.store, world.cluster)
        for name in names("a b c x y z"):
            await cookies.create(Cookie(name, ("/journal",), ("/ledgers",), world.cluster.instance_id))
        await write_topology(world)
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, ())
        await world.kill("c", "y", "z")
        await world.kill("x")
        recorder = await heal(world)
        assert (recorder.results, recorder.queue_state) == ([], QueueState(left=1))
        await world.register("x", "y")
        assert (await heal(world)).endings() == [Ending.MOVED]


@in_virtual_time
async def test_lost_copies_come_first_and_the_move_has_a_separate_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absence, "SETTLE_S", 0.0)
    async with a_world("a b c d x y") as world:
        await with_cookies(world, "a b c x y", 0)
        await write_topology(world, RACKS | {"d": "/r3"})
        moved = [LedgerId(each) for each in range(10, 20)]
        for ledger_id in moved:
            await world.ledger(ledger_id, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
            await world.tasks.marking.mark(ledger_id, ())
        packets = await world.ledger(LEDGER, make_metadata((0, "a b d"), quorum=(3, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, ())
        await world.ledger(OTHER, make_metadata((0, "c d"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(OTHER, names("d"))
        await world.kill("d")
        results = (await heal(world, ledgers_in_flight=1)).results
        assert [result.ledger_id for result in results[:2]] == [OTHER, LEDGER]
        assert (results[1].entries, results[1].moved_copies) == (10, 0)
        after = {result.ledger_id: result.ending for result in results[2:]}
        assert after == dict.fromkeys(moved, Ending.MOVED) | {LEDGER: Ending.NOTHING_MISSING}
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_target_that_refuses_is_replaced_by_another_one() -> None:
    async with a_world("a b x y") as world:
        await write_topology(world)
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        world.bookies["x"].add_replies = [Status.READ_ONLY] * 100
        await world.tasks.marking.mark(LEDGER, ())
        assert (await heal(world)).endings() == [Ending.MOVED]
        await world.assert_whole(LEDGER, packets, "y")


@in_virtual_time
async def test_a_move_interrupted_by_restarts_does_not_count_as_a_move_back_and_forth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution, "INSTALL_BYTES", 1)  # as if each fragment had 64 MiB
    monkeypatch.setattr(execution, "FRAGMENTS_AT_ONCE", 1)
    async with a_world("a b x y") as world:
        await write_topology(world)
        fragments = [(10 * number, "b a" if number % 2 else "a b") for number in range(6)]
        packets = await world.ledger(LEDGER, make_metadata(*fragments, quorum=(2, 2), last=59), 60)
        await world.tasks.marking.mark(LEDGER, ())
        for _ in range(MOVES_MAX + 1):
            before, store = world.version(LEDGER), world.session()
            ports = replace(world.ports(store), placement=await load_placement(store, world.cluster))
            settings = ReplicatorSettings("zk://memory/ledgers", once=True, grace_s=0.0, bytes_per_second=100)
            worker = Worker(ports, settings, Recorder(), "worker")
            async with asyncio.TaskGroup() as group:
                group.create_task(worker.run())
                await when(lambda: world.version(LEDGER) != before)  # noqa: B023
                worker.stop()
            await store.close()
        assert await world.task(LEDGER) is not None
        assert (await heal(world)).endings() == [Ending.MOVED]
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_disabled_repair_moves_nothing() -> None:
    async with a_world("a b x") as world:
        await write_topology(world)
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, ())
        await world.tasks.switches.disable()
        store = world.session()
        placement = await load_placement(store, world.cluster)
        worker = Worker(
            replace(world.ports(store), placement=placement),
            ReplicatorSettings("zk://memory/ledgers", once=True),
            Recorder(),
            "worker",
        )
        assert await worker.run() is RunEnd.UNSETTLED
        assert copied(world) == {}
