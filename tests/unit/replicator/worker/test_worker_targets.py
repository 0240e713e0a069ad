"""The targets of a worker with default settings: many ledgers at once, and another attempt for the same ledger."""

from __future__ import annotations

from collections import Counter

import pytest

from bookie.metadata.bookies.topology import parse_topology
from bookie.metadata.tasks.reservations import Reservation
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import Status
from replicator.telemetry.events import Ending
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time, until

TARGETS = names("t u v w")


async def many_ledgers(world: RepairWorld, count: int) -> None:
    for number in range(1, count + 1):
        await world.ledger(number, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LedgerId(number), names("b"))
    await world.kill("b")


async def positions_of(world: RepairWorld, count: int) -> Counter[BookieId]:
    named = [(await world.metadata(number)).last_fragment.members[1] for number in range(1, count + 1)]
    return Counter(named)


@in_virtual_time
async def test_ledgers_in_flight_are_distributed_over_the_available_bookies() -> None:
    async with a_world(f"a b {' '.join(TARGETS)}") as world:
        await many_ledgers(world, 16)
        for target in TARGETS:
            world.bookies.transport.faults(target).delay_s = 1.0
        await world.heal()
        assert set((await positions_of(world, 16)).values()) <= {3, 4, 5}
        assert await world.is_clean()


@in_virtual_time
async def test_free_space_decides_where_most_of_the_copies_go() -> None:
    async with a_world(f"a b {' '.join(TARGETS)}") as world:
        await many_ledgers(world, 60)
        running = world.worker()
        placement = running.worker._ports.placement
        placement.free_bytes = dict(zip(TARGETS, (1 << 40, 1 << 33, 1 << 33, 1 << 33), strict=True))
        await running.worker.run()
        counts = await positions_of(world, 60)
        assert counts[BookieId("t")] == max(counts.values())
        assert counts[BookieId("t")] > 15


@in_virtual_time
async def test_a_retry_copies_to_the_same_target_even_if_it_is_busier_now() -> None:
    async with a_world(f"a b {' '.join(TARGETS)}") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=2999), 3000)
        await world.lose("b")
        world.bookies["a"].results = {EntryId(2500): lambda result: type(result)(result.entry_id, Status.TIMEOUT)}
        running = world.worker(once=False)
        async with world.running(running):

            async def has_failed() -> bool:
                return running.recorder.endings() == [Ending.FAILED]

            await until(has_failed)
            begun = [target for target in TARGETS if world.bookies[target].adds]
            assert len(begun) == 1
            assert await world.reserved() == []
            world.bookies["a"].results = {}
            with running.worker._context.use.copying(LedgerId(99), {(EntryId(i), 1): begun[0] for i in range(100)}):
                await until(world.is_clean)
        assert [target for target in TARGETS if world.bookies[target].adds] == begun
        await world.assert_whole(LEDGER, packets, begun[0])


@pytest.mark.parametrize("target", TARGETS)
@in_virtual_time
async def test_the_reserved_target_of_a_dead_worker_is_used_even_without_recorded_copies(target: str) -> None:
    async with a_world(f"a b {' '.join(TARGETS)}") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=99), 100)
        await world.lose("b")
        await world.reservations.reserve(LEDGER, "dead", [Reservation(EntryId(0), 1, BookieId(target), "1")])
        await world.heal()
        assert (await world.metadata(LEDGER)).members() == set(names(f"a {target}"))
        await world.assert_whole(LEDGER, packets, target)
        assert await world.is_clean()


@in_virtual_time
async def test_a_reserved_target_that_is_lost_is_replaced() -> None:
    async with a_world("a b t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=99), 100)
        await world.lose("b")
        await world.reservations.reserve(LEDGER, "dead", [Reservation(EntryId(0), 1, BookieId("t"), "1")])
        await world.kill("t")
        await world.heal()
        assert (await world.metadata(LEDGER)).members() == set(names("a u"))
        await world.assert_whole(LEDGER, packets, "u")


@in_virtual_time
async def test_only_a_source_in_the_rack_of_the_target_is_read() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=4999), 5000)
        await world.lose("c")
        running = world.worker()
        running.worker._ports.placement.topology = parse_topology('{"a": "/r1", "b": "/r2", "c": "/r3", "t": "/r2"}')
        await running.worker.run()
        assert world.bookies["a"].reads == []
        assert sum(map(len, world.bookies["b"].reads)) == 5000
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_a_slow_source_is_read_less() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(
            LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9999), 10_000, payload_bytes=3000
        )
        await world.lose("c")
        world.bookies.transport.faults(BookieId("a")).delay_s = 1.0
        world.bookies.transport.faults(BookieId("b")).delay_s = 0.01
        world.bookies.transport.faults(BookieId("t")).delay_s = 0.01
        started_s = world.clock.monotonic_s()
        await world.heal()
        assert world.clock.monotonic_s() - started_s < 5.0  # one after another, this would take 15 s
        assert len(world.bookies["a"].reads) <= 2 < 10 < len(world.bookies["b"].reads)
        await world.assert_whole(LEDGER, packets, "t")
