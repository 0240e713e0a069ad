"""Placement debts: a copy that repair put in a bad place is recorded, and moved as soon as there is a better place."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie.client.placement.feed import load_placement, make_placement_feed
from bookie.metadata.layout import lock_path
from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX
from bookie.metadata.own_state import own_path
from bookie.metadata.store.memory import Fault
from bookie.metadata.tasks import debts as debts_module
from bookie.metadata.tasks.debts import PlacementDebt, PlacementDebts
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.runtime.tasks import cancel, guarded
from replicator.queue.repayment import PAUSE_S, ROUND_S, Repayment
from replicator.settings import ReplicatorSettings
from replicator.telemetry.events import Ending
from replicator.worker import RunEnd, Worker
from tests.unit.replicator.worker.test_worker_moves import RACKS, heal, write_topology
from tests.worlds.ledgers import LEDGER, make_metadata, names, with_member
from tests.worlds.repair import Recorder, RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time, until, when

OTHER = LedgerId(8)
HOUR_S = 3600.0
REFUSALS_MAX = 70
"""In an hour: one per minute, and a few more at the beginning."""


def debts(world: RepairWorld) -> PlacementDebts:
    return PlacementDebts(world.store, world.cluster.root)


async def in_one_rack(world: RepairWorld, ledger_id: LedgerId = LEDGER) -> dict[EntryId, bytes]:
    """Create a ledger that lost its copy in the other rack."""
    await write_topology(world)
    packets = await world.ledger(ledger_id, make_metadata((0, "a x"), quorum=(2, 2), last=9), 10)
    await world.kill("x")
    await world.tasks.marking.mark(ledger_id, names("x"))
    return packets


@in_virtual_time
async def test_a_misplaced_copy_is_a_debt_and_is_moved_when_a_better_bookie_registers() -> None:
    async with a_world("a b x") as world:
        packets = await in_one_rack(world)
        assert (await heal(world)).endings() == [Ending.REPAIRED]
        assert (await world.metadata(LEDGER)).members() == set(names("a b"))
        (debt,) = await debts(world).list()
        assert (debt.ledger_id, debt.first_entry_ids) == (LEDGER, (0,))
        assert debt.detail == "positions 0, 1 are in /r1 and need 2 racks"
        assert (await heal(world)).results == []
        await world.add_bookies("y")
        recorder = await heal(world)
        assert recorder.endings() == [Ending.MOVED]
        assert recorder.results[0].entries == 10
        await world.assert_whole(LEDGER, packets, "y")
        assert await debts(world).list() == []
        assert await world.is_clean()


@in_virtual_time
async def test_a_debt_is_paid_after_a_change_of_the_topology() -> None:
    async with a_world("a b c x") as world:
        await in_one_rack(world)
        await heal(world)
        assert len(await debts(world).list()) == 1
        (spare,) = set(names("b c")) - (await world.metadata(LEDGER)).members()
        await write_topology(world, RACKS | {spare: "/r2"})
        assert (await heal(world)).endings() == [Ending.MOVED]
        assert spare in (await world.metadata(LEDGER)).members()
        assert await debts(world).list() == []


@in_virtual_time
async def test_no_debt_is_recorded_for_a_good_placement_or_without_a_topology() -> None:
    async with a_world("a b x y") as world:
        await in_one_rack(world)
        await heal(world)
        assert "y" in (await world.metadata(LEDGER)).members()
        assert await debts(world).list() == []
    async with a_world("a b x") as world:
        await in_one_rack(world)
        await write_topology(world, {})
        await heal(world)
        assert (await world.metadata(LEDGER)).members() == set(names("a b"))
        assert await debts(world).list() == []


@pytest.mark.parametrize("end", ["deleted", "moved by others"])
@in_virtual_time
async def test_a_debt_ends_with_its_ledger_or_when_the_ledger_meets_the_policy(end: str) -> None:
    async with a_world("a b x") as world:
        await in_one_rack(world)
        await heal(world)
        ledger = await world.ledgers.read(LEDGER)
        if end == "deleted":
            await world.ledgers.delete(LEDGER)
        else:
            metadata = with_member(ledger.metadata, 0, 1, BookieId("x"))
            await world.ledgers.write(LEDGER, metadata, ledger.version)
        assert (await heal(world)).results == []
        assert await debts(world).list() == []


@in_virtual_time
async def test_the_debt_is_recorded_before_the_bookie_is_in_the_metadata() -> None:
    async with a_world("a b x") as world:
        await in_one_rack(world)
        running = world.worker()
        ports = replace(world.ports(running.store), placement=await load_placement(world.store, world.cluster))
        worker = Worker(ports, ReplicatorSettings("zk://memory/ledgers", once=True), Recorder(), "worker")
        versions: list[int | None] = []

        async def note(operation: str, path: str) -> Fault | None:
            if "debts" in path and operation == "create":
                versions.append(world.version(LEDGER))
            return None

        running.store.fault_hook = note
        before = world.version(LEDGER)
        await worker.run()
        assert versions
        assert set(versions) == {before}
        assert world.version(LEDGER) != before


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.LOSE_ANSWER])
@in_virtual_time
async def test_no_bookie_is_named_without_its_debt_after_a_short_outage_of_the_store(fault: Fault) -> None:
    async with a_world("a b x") as world:
        await in_one_rack(world)
        store, record = world.session(), debts(world).path(LEDGER)
        placement = await load_placement(store, world.cluster)
        failures = 2 * WRITE_ATTEMPTS_MAX

        async def fails(operation: str, path: str) -> Fault | None:
            nonlocal failures
            if path == record and failures:
                failures -= 1
                return fault if operation == "create" else Fault.FAIL_BEFORE
            return None

        store.fault_hook = fails
        settings = ReplicatorSettings("zk://memory/ledgers", once=True)
        worker = Worker(replace(world.ports(store), placement=placement), settings, Recorder(), "worker")
        assert await worker.run() is RunEnd.SETTLED
        assert (await world.metadata(LEDGER)).members() == set(names("a b"))
        assert [debt.ledger_id for debt in await debts(world).list()] == [LEDGER]


@in_virtual_time
async def test_a_debt_that_a_turn_for_better_placement_makes_stays() -> None:
    """The ledger loses a bookie after it was listed as misplaced, and the only place left is a bad one."""
    async with a_world("a b c x") as world:
        await write_topology(world)
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await debts(world).add(PlacementDebt(LEDGER, 1))
        await world.tasks.marking.mark(LEDGER, ())
        store, lock = world.session(), lock_path(world.cluster.root, LEDGER)
        placement = await load_placement(store, world.cluster)
        is_lost = False

        async def lose_bookies(operation: str, path: str) -> None:
            nonlocal is_lost
            if path == lock and not is_lost:
                is_lost = True
                await world.kill("b", "x")
                await world.tasks.marking.mark(LEDGER, names("b"))

        store.fault_hook = lose_bookies
        settings = ReplicatorSettings("zk://memory/ledgers", once=True)
        worker = Worker(replace(world.ports(store), placement=placement), settings, Recorder(), "worker")
        await worker.run()
        assert (await world.metadata(LEDGER)).members() == set(names("a c"))
        assert [debt.ledger_id for debt in await debts(world).list()] == [LEDGER]


@in_virtual_time
async def test_a_repair_does_not_wait_for_the_record_of_its_debt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debts_module, "DEBTS_MAX", 1)
    async with a_world("a b x") as world:
        await world.ledger(OTHER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await debts(world).add(PlacementDebt(OTHER, 1))
        packets = await in_one_rack(world)
        assert (await heal(world)).endings() == [Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets, "b")
        assert LEDGER not in [debt.ledger_id for debt in await debts(world).list()]


@in_virtual_time
async def test_a_running_worker_pays_a_debt_soon_after_a_bookie_registers() -> None:
    async with a_world("a b x") as world:
        packets = await in_one_rack(world)
        store = world.session()
        placement = await load_placement(store, world.cluster)
        ports = replace(world.ports(store), placement=placement)
        worker = Worker(ports, ReplicatorSettings("zk://memory/ledgers"), Recorder(), "worker")
        feeding = guarded(
            "feed", make_placement_feed(placement, store, world.cluster, world.bookies.transport, world.clock).run()
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run())

            async def is_indebted() -> bool:
                return bool(await debts(world).list()) and not await world.tasks.list()

            await until(is_indebted)
            await asyncio.sleep(ROUND_S)
            assert worker.load().placement_debts == 1
            await world.add_bookies("y")

            async def is_paid() -> bool:
                return "y" in (await world.metadata(LEDGER)).members() and await world.is_clean()

            await until(is_paid, seconds=2 * PAUSE_S)

            async def is_seen() -> bool:
                return worker.load().placement_debts == 0

            await until(is_seen, seconds=2 * ROUND_S)
            worker.stop()
        await cancel(feeding)
        await world.assert_whole(LEDGER, packets, "y")
        assert await debts(world).list() == []


@in_virtual_time
async def test_repairs_do_not_wait_for_a_scan_of_many_debts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world("a b t") as world:
        looks = 0

        async def long(repayment: Repayment) -> int:
            nonlocal looks
            looks += 1
            await asyncio.Event().wait()
            return 0

        monkeypatch.setattr(Repayment, "mark_movable", long)
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        running = world.worker(once=False)
        async with world.running(running):
            await when(lambda: looks == 1)
            await world.lose("b")
            await until(world.is_clean)
        await world.assert_whole(LEDGER, packets, "t")
        assert looks == 1


@in_virtual_time
async def test_a_run_with_once_pays_a_debt_although_the_first_read_of_the_debts_fails() -> None:
    async with a_world("a b x") as world:
        packets = await in_one_rack(world)
        await heal(world)
        await world.add_bookies("y")
        store, recorder, failed = world.session(), Recorder(), 0

        async def fail_once(operation: str, path: str) -> Fault | None:
            nonlocal failed
            if "debts" not in path or failed:
                return None
            failed += 1
            return Fault.FAIL_BEFORE

        ports = replace(world.ports(store), placement=await load_placement(store, world.cluster))
        store.fault_hook = fail_once
        worker = Worker(ports, ReplicatorSettings("zk://memory/ledgers", once=True), recorder, "worker")
        assert await worker.run() is RunEnd.SETTLED
        assert failed == 1
        assert recorder.endings() == [Ending.MOVED]
        await world.assert_whole(LEDGER, packets, "y")
        assert await debts(world).list() == []


@pytest.mark.parametrize("is_denied", [False, True])
def test_a_run_with_once_repairs_although_no_debt_can_be_read(is_denied: bool) -> None:
    @in_virtual_time
    async def story() -> None:
        async with a_world("a b x") as world:
            await in_one_rack(world)
            await heal(world)
            await world.add_bookies("y")
            packets = await world.ledger(OTHER, make_metadata((0, "a x"), quorum=(2, 2), last=9), 10)
            await world.tasks.marking.mark(OTHER, names("x"))
            store, recorder = world.session(), Recorder()
            parent = own_path("debts", world.cluster.root)
            is_readable = False

            async def fail(operation: str, path: str) -> Fault | None:
                return Fault.FAIL_BEFORE if "debts" in path and not is_readable else None

            if is_denied:
                world.cell.deny(parent)
            else:
                store.fault_hook = fail
            ports = replace(world.ports(store), placement=await load_placement(store, world.cluster))
            worker = Worker(ports, ReplicatorSettings("zk://memory/ledgers", once=True), recorder, "worker")
            running = asyncio.create_task(worker.run())
            await when(lambda: recorder.endings() == [Ending.REPAIRED], seconds=60)
            await world.assert_whole(OTHER, packets, "y")
            if not is_denied:
                await asyncio.sleep(HOUR_S)
                assert not running.done(), "the marks that it still has to make are part of its work"
                is_readable = True
            assert await running is (RunEnd.UNSETTLED if is_denied else RunEnd.SETTLED)
            assert recorder.endings() == [Ending.REPAIRED] + [Ending.MOVED] * (not is_denied)

    story()


@pytest.mark.parametrize("is_denied", [False, True])
def test_a_worker_that_cannot_read_debts_repairs_and_pays_them_later(
    caplog: pytest.LogCaptureFixture, is_denied: bool
) -> None:
    @in_virtual_time
    async def story() -> None:
        async with a_world("a b x") as world:
            await in_one_rack(world)
            await heal(world)
            packets = await world.ledger(OTHER, make_metadata((0, "a x"), quorum=(2, 2), last=9), 10)
            store = world.session()
            is_readable, parent = False, own_path("debts", world.cluster.root)

            async def fail(operation: str, path: str) -> Fault | None:
                return Fault.FAIL_BEFORE if "debts" in path and not (is_readable or is_denied) else None

            store.fault_hook = fail
            if is_denied:
                world.cell.deny(parent)
            ports = replace(world.ports(store), placement=await load_placement(store, world.cluster))
            recorder = Recorder()
            worker = Worker(ports, ReplicatorSettings("zk://memory/ledgers"), recorder, "worker")
            async with asyncio.TaskGroup() as group:
                group.create_task(worker.run())
                await asyncio.sleep(HOUR_S)
                assert ("the placement debts: " in worker.problem) is is_denied
                assert "the tasks: " not in worker.problem
                refusals = sum("store refused" in record.getMessage() for record in caplog.records)
                assert refusals == 0 or 2 <= refusals <= REFUSALS_MAX
                assert refusals > 0 or not is_denied
                await world.add_bookies("y")
                await world.tasks.marking.mark(OTHER, names("x"))
                await when(lambda: recorder.endings() == [Ending.REPAIRED], seconds=10)
                await world.assert_whole(OTHER, packets, "y")
                is_readable = True
                world.cell.allow(parent)
                await when(lambda: recorder.endings() == [Ending.REPAIRED, Ending.MOVED], seconds=2 * PAUSE_S)
                assert worker.problem == ""
                worker.stop()
            assert await debts(world).list() == []

    story()


@in_virtual_time
async def test_debts_are_scanned_rarely_however_often_bookies_come_and_go() -> None:
    async with a_world("a b c x") as world:
        await write_topology(world)
        for ledger_id in range(20):
            await world.ledger(ledger_id, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
            await debts(world).add(PlacementDebt(LedgerId(ledger_id), 1))
        await world.kill("x")
        store = world.session()
        ports = replace(world.ports(store), placement=await load_placement(store, world.cluster))
        reads = 0

        async def count(operation: str, path: str) -> Fault | None:
            nonlocal reads
            reads += "debts" in path and operation == "get_many_data"
            return None

        store.fault_hook = count
        repayment = Repayment(ports, Worker(ports, ReplicatorSettings("zk://m/l"), Recorder(), "w")._absences)
        assert await repayment.mark_movable() == 0
        looked = reads
        for _ in range(5):
            await world.register("c")
            await world.clock.sleep(3)
            assert await repayment.mark_movable() == 0
            await world.kill("c")
            await world.clock.sleep(3)
            assert await repayment.mark_movable() == 0
        assert reads == looked
        await world.register("x")
        await world.clock.sleep(PAUSE_S)
        assert await repayment.mark_movable() == 20
        assert len(await world.tasks.list()) == 20
        await world.clock.sleep(ROUND_S)
        assert await repayment.mark_movable() == 0  # they are already marked


@in_virtual_time
async def test_a_debt_whose_ledger_may_not_be_read_does_not_keep_the_others() -> None:
    async with a_world("a b x") as world:
        await in_one_rack(world)
        await heal(world)
        await world.ledger(OTHER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await debts(world).add(PlacementDebt(OTHER, 1))
        world.cell.deny(world.ledgers.path(OTHER))
        await world.add_bookies("y")
        assert (await heal(world)).endings() == [Ending.MOVED]
        assert [debt.ledger_id for debt in await debts(world).list()] == [OTHER]


@in_virtual_time
async def test_a_damaged_record_counts_as_a_debt_of_its_ledger() -> None:
    async with a_world("a b x") as world:
        await in_one_rack(world)
        await heal(world)
        path = debts(world).path(LEDGER)
        await world.store.set(path, b"\0", (await world.store.get(path)).stat.version)
        assert await debts(world).list() == [PlacementDebt(LEDGER, 0)]
        await world.add_bookies("y")
        assert (await heal(world)).endings() == [Ending.MOVED]
        assert await debts(world).list() == []


@in_virtual_time
async def test_a_debt_does_not_end_before_the_repair_that_recorded_it() -> None:
    async with a_world("a b x") as world:
        await in_one_rack(world)
        await debts(world).add(PlacementDebt(LEDGER, 1))  # a repair is about to name b, but the metadata names x
        store = world.session()
        ports = replace(world.ports(store), placement=await load_placement(store, world.cluster))
        repayment = Repayment(ports, Worker(ports, ReplicatorSettings("zk://m/l"), Recorder(), "w")._absences)
        await repayment.mark_movable()
        assert [debt.ledger_id for debt in await debts(world).list()] == [LEDGER]
        await world.register("x")
        assert (await heal(world)).endings() == [Ending.NOTHING_MISSING]
        await world.clock.sleep(ROUND_S)
        await repayment.mark_movable()
        assert await debts(world).list() == []


@in_virtual_time
async def test_a_debt_that_cannot_be_deleted_does_not_keep_others_from_being_paid() -> None:
    async with a_world("a b x") as world:
        await in_one_rack(world, OTHER)
        await heal(world)
        await debts(world).add(PlacementDebt(LEDGER, 1))  # of a deleted ledger
        await world.store.create(f"{debts(world).path(LEDGER)}/x")
        await world.add_bookies("y")
        async with asyncio.timeout(HOUR_S):
            assert (await heal(world)).endings() == [Ending.MOVED]
        assert [debt.ledger_id for debt in await debts(world).list()] == [LEDGER]
