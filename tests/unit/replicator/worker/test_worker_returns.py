"""A lost bookie returns during the copy: the copy ends soon, and nothing is copied twice."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.store.memory import Fault
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.wire.port import BATCH_BYTES_MAX
from replicator.copying.copy_run import LANES_MAX
from replicator.knowledge.returns import RETURNS_MAX, SAME_RETURN_S, WINDOW_S, Returns
from replicator.telemetry.events import Ending
from tests.worlds.clocks import ManualClock
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, Running, a_world
from tests.worlds.virtual_time import in_virtual_time, until

ENTRIES = 240
PAYLOAD_BYTES = 100_000
RATE = 400_000
"""The size of a ledger whose copy takes about a minute."""
LOST_BYTES = ENTRIES * PAYLOAD_BYTES
UNDER_WAY_BYTES = LANES_MAX * (BATCH_BYTES_MAX + PAYLOAD_BYTES)
"""The bytes of chunks in transfer when a bookie returns."""


def received(world: RepairWorld, *bookies: str) -> int:
    """Return the bytes sent to these bookies."""
    batches = (batch for name in bookies for batch in world.bookies[name].adds)
    return sum(len(entry) for batch in batches for entry in batch.entries)


async def a_lost_position(world: RepairWorld) -> dict[EntryId, bytes]:
    metadata = make_metadata(
        (0, "a b"), quorum=(2, 2), last=ENTRIES - 1, digest_type=DigestType.HMAC, length=LOST_BYTES
    )
    packets = await world.ledger(LEDGER, metadata, ENTRIES, payload_bytes=PAYLOAD_BYTES)
    await world.kill("b")
    await world.tasks.marking.mark(LEDGER, names("b"))
    return packets


async def copied_at_least(world: RepairWorld, size_bytes: int) -> None:
    async def is_copied() -> bool:
        return received(world, "t", "u") >= size_bytes

    await until(is_copied)


def a_worker(world: RepairWorld) -> Running:
    return world.worker(once=False, bytes_per_second=RATE)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@in_virtual_time
async def test_the_copy_for_a_bookie_that_returns_healthy_ends_after_the_chunks_in_flight(share: float) -> None:
    async with a_world("a b t u") as world:
        packets = await a_lost_position(world)
        running = a_worker(world)
        async with world.running(running):
            await copied_at_least(world, int(share * LOST_BYTES))
            before = received(world, "t", "u")
            await world.register("b")
            await until(world.is_clean, seconds=60)
        assert running.recorder.endings() == [Ending.NOTHING_MISSING]
        assert received(world, "t", "u") - before <= UNDER_WAY_BYTES
        assert received(world, "b") == 0
        assert (await world.metadata(LEDGER)).members() == set(names("a b"))
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_only_missing_entries_of_a_returned_bookie_are_filled_in_place() -> None:
    async with a_world("a b t u") as world:
        packets = await a_lost_position(world)
        await world.bookies.start(["b"], "1")  # the same disks, without the last entries
        await world.bookies.put("b", LEDGER, [packets[EntryId(entry)] for entry in range(ENTRIES - 50)])
        running = a_worker(world)
        async with world.running(running):
            await copied_at_least(world, LOST_BYTES // 2)
            before = received(world, "t", "u")
            await world.register("b")
            await until(world.is_clean, seconds=120)
        assert received(world, "t", "u") - before <= UNDER_WAY_BYTES
        assert sum(len(batch.entries) for batch in world.bookies["b"].adds) == 50
        assert (await world.metadata(LEDGER)).members() == set(names("a b"))
        await world.assert_whole(LEDGER, packets)


@pytest.mark.parametrize("incarnation", ["1", "2"])
@in_virtual_time
async def test_the_copy_continues_if_the_bookie_returns_with_empty_disks(incarnation: str) -> None:
    """A bookie with new disks, or an Apache bookie whose disks are not recorded, returns like this."""
    async with a_world("a b t u") as world:
        packets = await a_lost_position(world)
        await world.bookies.start(["b"], incarnation)
        running = a_worker(world)
        async with world.running(running):
            await copied_at_least(world, LOST_BYTES // 2)
            await world.register("b")
            await until(world.is_clean, seconds=120)
        (target,) = (await world.metadata(LEDGER)).members() - set(names("a"))
        assert target in names("t u")
        assert received(world, "b") == 0
        assert received(world, "t", "u") <= sum(map(len, packets.values())) + UNDER_WAY_BYTES
        await world.assert_whole(LEDGER, packets, target)


@in_virtual_time
async def test_a_wiped_bookie_that_returns_early_is_filled_in_place_if_no_copy_was_recorded() -> None:
    async with a_world("a b t u") as world:
        packets = await a_lost_position(world)
        await world.register("b")
        await world.bookies.start(["b"], "1")
        running = a_worker(world)
        async with world.running(running):
            await until(world.is_clean, seconds=240)
        assert (await world.metadata(LEDGER)).members() == set(names("a b"))
        assert received(world, "t", "u") == 0
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_the_copies_for_a_bookie_that_keeps_returning_are_finished() -> None:
    async with a_world("a b t u") as world:
        packets = await a_lost_position(world)
        running = a_worker(world)
        async with world.running(running):
            for _ in range(20):  # up for some seconds and down for twenty; an auditor marks the ledger each time
                await asyncio.sleep(20)
                if "b" not in (await world.metadata(LEDGER)).members():
                    break
                await world.register("b")
                await asyncio.sleep(5)
                await world.kill("b")
                await world.tasks.marking.mark(LEDGER, names("b"))
            await until(world.is_clean, seconds=240)
        (target,) = (await world.metadata(LEDGER)).members() - set(names("a"))
        assert target in names("t u")
        lost = sum(map(len, packets.values()))
        # A return ended two copies after twenty seconds each; the third copy was completed.
        assert received(world, "t", "u") <= lost + RETURNS_MAX * (20 * RATE + UNDER_WAY_BYTES)
        await world.assert_whole(LEDGER, packets, target)


@in_virtual_time
async def test_the_target_for_a_flapping_bookie_is_installed_even_if_it_is_registered_at_that_moment() -> None:
    async with a_world("a b t u") as world:
        packets = await a_lost_position(world)
        running = a_worker(world)
        for _ in range(RETURNS_MAX):
            running.worker._context.returns.note_absent(names("b"))
            running.worker._context.returns.note(BookieId("b"))
            await world.clock.sleep(SAME_RETURN_S)
        async with world.running(running):
            await copied_at_least(world, LOST_BYTES // 2)
            await world.register("b")
            await until(world.is_clean, seconds=240)
        assert "b" not in (await world.metadata(LEDGER)).members()
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_copy_continues_while_the_bookies_cannot_be_listed() -> None:
    async with a_world("a b t u") as world:
        packets = await a_lost_position(world)
        running = a_worker(world)
        failing = False

        async def fail(operation: str, path: str) -> Fault | None:
            return Fault.FAIL_BEFORE if failing and path.endswith("/available") else None

        running.store.fault_hook = fail
        async with world.running(running):
            await copied_at_least(world, LOST_BYTES // 10)
            failing = True
            await copied_at_least(world, LOST_BYTES // 2)
            failing = False
            await until(world.is_clean, seconds=240)
        assert running.recorder.endings() == [Ending.REPAIRED]
        assert received(world, "t", "u") == sum(map(len, packets.values()))


def test_returns_are_counted_once_and_forgotten_after_the_window() -> None:
    clock = ManualClock()
    returns = Returns(clock)
    bookie = BookieId("b")
    returns.note_absent([bookie])
    for _ in range(10):
        returns.note(bookie)
        clock.now_s += SAME_RETURN_S
    assert returns.flapping([bookie]) == frozenset()
    returns.note_absent([bookie])
    returns.note(bookie)
    assert returns.flapping([bookie, BookieId("c")]) == {bookie}
    clock.now_s += WINDOW_S
    assert returns.flapping([bookie]) == frozenset()


@in_virtual_time
async def test_one_return_that_ends_many_slow_copies_does_not_count_as_flapping() -> None:
    """Slow copies still end long after the return that ended the first of them."""
    count, rate = 100, 100_000
    async with a_world("a b t u v") as world:
        wholes: list[dict[EntryId, bytes]] = []
        ledgers = [LedgerId(LEDGER + index) for index in range(4)]
        for ledger_id in ledgers:
            length = count * PAYLOAD_BYTES
            metadata = make_metadata(
                (0, "a b"), quorum=(2, 2), last=count - 1, digest_type=DigestType.HMAC, length=length
            )
            wholes.append(await world.ledger(ledger_id, metadata, count, payload_bytes=PAYLOAD_BYTES))
        await world.kill("b")
        for ledger_id in ledgers:
            await world.tasks.marking.mark(ledger_id, names("b"))
        running = world.worker(once=False, bytes_per_second=rate)

        async def are_begun() -> bool:
            return len(await world.reserved()) > 1

        async with world.running(running):
            await until(are_begun, seconds=240)
            await world.register("b")
            await until(world.is_clean, seconds=3600)
            assert not running.worker._context.returns.flapping(names("b"))
        for ledger_id, packets in zip(ledgers, wholes, strict=True):
            assert (await world.metadata(ledger_id)).members() == set(names("a b"))
            await world.assert_whole(ledger_id, packets)
