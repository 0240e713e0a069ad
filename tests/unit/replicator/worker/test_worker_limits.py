"""Limits on copying that all workers of a cluster share, changed while the workers run."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.nodes import ensure_path, put, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.memory import Fault
from bookie.metadata.tasks.copy_limits import CopyLimits, CopyLimitsStore
from bookie.model.ids import LedgerId
from replicator.copying.shared_limits import UNREADABLE
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import make_metadata, names
from tests.worlds.repair import RepairWorld, Running, a_world
from tests.worlds.virtual_time import in_virtual_time, until

MIB = 1 << 20
LOW_RATE = 10_000
"""A chunk needs more than a minute at this rate, and there are dozens of chunks before it."""
TARGETS = ("t", "u", "v")
LEDGERS = 12
FEW = 3
ENTRIES = 40
PAYLOAD_BYTES = 100_000


async def lost_ledgers(world: RepairWorld, count: int = LEDGERS) -> None:
    """Create ledgers with about 4 MiB each that must be copied."""
    for number in range(count):
        metadata = make_metadata((0, "a b c"), quorum=(3, 3), last=ENTRIES - 1)
        await world.ledger(LedgerId(number), metadata, ENTRIES, payload_bytes=PAYLOAD_BYTES)
        await world.tasks.marking.mark(LedgerId(number), names("b"))
    await world.kill("b")


def sent_bytes(world: RepairWorld) -> int:
    return sum(len(entry) for name in TARGETS for batch in world.bookies[name].adds for entry in batch.entries)


def limits_of(world: RepairWorld) -> CopyLimitsStore:
    return CopyLimitsStore(world.store, ROOT)


async def copying(world: RepairWorld) -> int:
    workers = await limits_of(world).workers()
    return 0 if workers is None else len(workers.names)


async def is_sent(world: RepairWorld) -> bool:
    return sent_bytes(world) > 0


async def has_begun(world: RepairWorld, *running: Running) -> None:
    async def are_copying() -> bool:
        return await is_sent(world) and await copying(world) == len(running)

    await until(are_copying)
    await asyncio.sleep(3)


@in_virtual_time
async def test_all_workers_together_stay_within_a_limit_and_share_it() -> None:
    async with a_world("a b c t u v") as world:
        await lost_ledgers(world)
        await limits_of(world).set(CopyLimits(bytes_per_second=2 * MIB))
        first, second = (
            world.worker(once=False, ledgers_in_flight=4),
            world.worker(once=False, seed=1, ledgers_in_flight=4),
        )
        begun_s = world.clock.monotonic_s()
        async with world.running(first), world.running(second):
            await has_begun(world, first, second)
            assert first.worker.load().bytes_per_second == second.worker.load().bytes_per_second == MIB
            await until(world.is_clean, seconds=900)
        taken_s = world.clock.monotonic_s() - begun_s
        assert LEDGERS * ENTRIES * PAYLOAD_BYTES / taken_s <= 2 * MIB
        assert taken_s <= 60


@in_virtual_time
async def test_a_change_takes_effect_within_seconds_without_a_restart() -> None:
    async with a_world("a b c t u v") as world:
        await lost_ledgers(world)
        await limits_of(world).set(CopyLimits(bytes_per_second=MIB // 8))
        running = world.worker(once=False)
        async with world.running(running):
            await has_begun(world, running)
            before = sent_bytes(world)
            await limits_of(world).clear()
            await asyncio.sleep(5)
            assert running.worker.load().bytes_per_second == 0
            assert sent_bytes(world) - before > 8 * MIB
            await until(world.is_clean)


@in_virtual_time
async def test_a_limit_set_during_a_repair_slows_it_down() -> None:
    async with a_world("a b c t u v") as world:
        await lost_ledgers(world)
        running = world.worker(once=False, bytes_per_second=2 * MIB)
        async with world.running(running):
            await asyncio.sleep(3)
            await limits_of(world).set(CopyLimits(bytes_per_second=MIB // 8))
            await asyncio.sleep(4)
            before = sent_bytes(world)
            await asyncio.sleep(20)
            assert 0 < sent_bytes(world) - before <= 20 * MIB // 8 + 2 * MIB


@in_virtual_time
async def test_a_worker_that_ended_or_has_nothing_to_copy_leaves_its_share_to_others() -> None:
    async with a_world("a b c t u v") as world:
        await lost_ledgers(world)
        await limits_of(world).set(CopyLimits(bytes_per_second=MIB))
        dying, staying = (world.worker(once=False, seed=seed, ledgers_in_flight=4) for seed in range(2))
        async with world.running(staying):
            async with world.running(dying):
                await has_begun(world, dying, staying)
                await dying.store.close()
            await asyncio.sleep(5)
            assert staying.worker.load().bytes_per_second == MIB
            await until(world.is_clean, seconds=900)
            await asyncio.sleep(30)
            assert await copying(world) == 0


@in_virtual_time
async def test_undecodable_limits_do_not_count_as_no_limits() -> None:
    async with a_world("a b c t u v") as world:
        await lost_ledgers(world)
        await put(world.store, own_path("copy-limits", ROOT), b'{"format": 99}')
        running = world.worker(once=False)
        async with world.running(running):
            await has_begun(world, running)
            assert running.worker.load().bytes_per_second == UNREADABLE.bytes_per_second


@pytest.mark.parametrize("what", ["copy-limits", "copying"])
@in_virtual_time
async def test_limits_that_a_worker_may_not_follow_delay_no_copy_for_long(what: str) -> None:
    """The worker may not read the limits, or may not take a share of them."""
    async with a_world("a b c t u v") as world:
        await lost_ledgers(world)
        await limits_of(world).set(CopyLimits(bytes_per_second=2 * MIB))
        path = own_path(what, ROOT)
        await ensure_path(world.store, path)
        world.cell.deny(path)
        running = world.worker(once=False)
        async with world.running(running):
            await until(lambda: is_sent(world), seconds=30)
            assert running.worker.load().bytes_per_second == UNREADABLE.bytes_per_second
            assert path in running.worker.problem
            world.cell.allow(path)
            await until(world.is_clean, seconds=900)
            assert running.worker.load().bytes_per_second == 2 * MIB
            assert not running.worker.problem


@in_virtual_time
async def test_idle_workers_send_no_requests_while_there_are_limits() -> None:
    async with a_world("a b c t") as world:
        await limits_of(world).set(CopyLimits(bytes_per_second=MIB))
        running = world.worker(once=False)
        requests: list[str] = []

        async def count(operation: str, path: str) -> None:
            if "cop" in path:
                requests.append(path)

        running.store.fault_hook = count
        async with world.running(running):
            await asyncio.sleep(300)
        assert len(requests) <= 2


@in_virtual_time
async def test_joining_has_a_bound_while_its_parent_node_is_deleted_each_time() -> None:
    async with a_world("a") as world:
        parent, store = own_path("copying", ROOT), world.session()
        limits = CopyLimitsStore(store, ROOT)

        async def delete_parent(operation: str, path: str) -> None:
            if operation == "create" and path.startswith(f"{parent}/"):
                await remove(world.store, parent)

        store.fault_hook = delete_parent
        with pytest.raises(StoreUnavailableError):
            await limits.join("w")
        store.fault_hook = None
        await limits.join("w")
        assert await copying(world) == 1


@in_virtual_time
async def test_a_worker_whose_leave_failed_leaves_later() -> None:
    """Otherwise its node would reduce the shares of all others until the end of its session."""
    async with a_world("a b c t u v") as world:
        await lost_ledgers(world)
        await limits_of(world).set(CopyLimits(bytes_per_second=16 * MIB))
        running = world.worker(once=False)
        failures = 2

        async def refuse_to_leave(operation: str, path: str) -> Fault | None:
            nonlocal failures
            if operation == "delete" and path.startswith(own_path("copying", ROOT)) and failures:
                failures -= 1
                return Fault.FAIL_BEFORE
            return None

        running.store.fault_hook = refuse_to_leave
        async with world.running(running):
            await has_begun(world, running)
            await until(world.is_clean)
            await asyncio.sleep(120)
            assert not failures
            assert await copying(world) == 0


@pytest.mark.parametrize(
    ("event", "is_pulling"), [("return", False), ("return", True), ("disable", False), ("delete", False)]
)
def test_a_copy_that_waits_for_the_rate_ends_soon_after_it_is_not_needed(event: str, *, is_pulling: bool) -> None:
    @in_virtual_time
    async def story() -> None:
        async with a_world("a b c t u v") as world:
            if is_pulling:
                world.copying.update("abctuv")
                await world.register(*"abctuv")
            await lost_ledgers(world, FEW)
            async with world.running(world.worker(once=False, bytes_per_second=LOW_RATE, is_pulling=is_pulling)):
                await until(lambda: are_locked(world))
                await asyncio.sleep(30)
                match event:
                    case "return":
                        await world.register("b")
                    case "disable":
                        await world.tasks.switches.disable()
                    case _:
                        for number in range(FEW):
                            await world.ledgers.delete(LedgerId(number))
                await asyncio.sleep(60)
                assert not await world.tasks.locks.locked()
                assert len(await world.tasks.list()) == (FEW if event == "disable" else 0)

    story()


async def are_locked(world: RepairWorld) -> bool:
    return len(await world.tasks.locks.locked()) == FEW
