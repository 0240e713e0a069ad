"""How many bytes a worker sends for a position if its copy is interrupted, with default settings."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from bookie.client.placement.placement import Placement
from bookie.metadata.store.memory import Fault
from bookie.metadata.tasks.reservations import Reservation
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import DigestType
from bookie.wire.port import Status
from replicator.plan.steps import PositionKey
from replicator.plan.target_choice import target_chooser
from replicator.repair.reservation_holder import PROGRESS_BYTES, PROGRESS_S, is_progress_due
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, Running, a_world
from tests.worlds.virtual_time import in_virtual_time, until

MIB = 1 << 20
ENTRIES = 600
PAYLOAD_BYTES = 100_000
RATE = MIB
"""The size of a ledger whose copy takes about a minute."""
TARGETS = ("t", "u", "v")


def received(world: RepairWorld) -> dict[str, int]:
    """Return the bytes sent to each target."""
    return {name: sum(len(entry) for batch in world.bookies[name].adds for entry in batch.entries) for name in TARGETS}


async def a_lost_position(world: RepairWorld) -> tuple[dict[EntryId, bytes], int]:
    """Create a ledger that lost a bookie, and return the bytes of one of its positions."""
    packets = await world.ledger(
        LEDGER,
        make_metadata((0, "a b"), quorum=(2, 2), last=ENTRIES - 1, digest_type=DigestType.HMAC),
        ENTRIES,
        payload_bytes=PAYLOAD_BYTES,
    )
    await world.kill("b")
    await world.tasks.marking.mark(LEDGER, names("b"))
    return packets, sum(map(len, packets.values()))


async def sent_at_least(world: RepairWorld, size_bytes: int) -> None:
    async def is_sent() -> bool:
        return sum(received(world).values()) >= size_bytes

    await until(is_sent)


def target_of(world: RepairWorld) -> str:
    return max(TARGETS, key=lambda name: received(world)[name])


Fail = Callable[[RepairWorld, Running], Awaitable[Running]]
"""A function that makes something fail, and returns the worker that continues."""


async def nothing(world: RepairWorld, running: Running) -> Running:
    return running


async def busy_target(world: RepairWorld, running: Running) -> Running:
    target = world.bookies[target_of(world)]
    target.add_replies = [Status.TOO_MANY_REQUESTS] * 1_000_000
    await asyncio.sleep(45)
    target.add_replies.clear()
    return running


async def silent_source(world: RepairWorld, running: Running) -> Running:
    world.bookies["a"].read_status = Status.IO_ERROR

    async def has_ended() -> bool:
        return bool(running.recorder.results)

    await until(has_ended)
    world.bookies["a"].read_status = None
    return running


async def lost_session(world: RepairWorld, running: Running) -> Running:
    running.store.expire()
    await asyncio.sleep(3)
    running.store.resume()
    return running


async def stopped(world: RepairWorld, running: Running) -> Running:
    """Stop the worker as SIGTERM does, with too short a grace period. Another worker continues."""
    running.worker.stop()

    async def is_released() -> bool:
        return not await world.tasks.locks.locked()

    await until(is_released)
    return world.worker(once=False, seed=7, bytes_per_second=RATE)


async def dead(world: RepairWorld, running: Running) -> Running:
    """Let the process end without releasing anything. Another worker continues."""
    await running.store.close()
    running.worker.stop()
    return world.worker(once=False, seed=7, bytes_per_second=RATE)


FAILURES = (busy_target, silent_source, lost_session, stopped, dead)


@pytest.mark.parametrize(
    ("fail", "when"), [(nothing, 1 / 3), *((fail, when) for fail in FAILURES for when in (1 / 3, 2 / 3))]
)
@in_virtual_time
async def test_an_interrupted_copy_is_continued(fail: Fail, when: float) -> None:
    async with a_world("a b t u v") as world:
        packets, lost = await a_lost_position(world)
        running = world.worker(once=False, bytes_per_second=RATE, grace_s=5.0)
        async with world.running(running):
            await sent_at_least(world, int(when * lost))
            after = await fail(world, running)
            if after is running:
                await until(world.is_clean, seconds=900, every_s=1)
        if after is not running:
            async with world.running(after):
                await until(world.is_clean, seconds=900, every_s=1)
        sent = received(world)
        await world.assert_whole(LEDGER, packets, target_of(world))
        assert sum(sent.values()) <= (lost if fail is nothing else 1.2 * lost + PROGRESS_S * RATE)
        assert len([size for size in sent.values() if size]) == 1


@in_virtual_time
async def test_progress_is_recorded_once_per_window() -> None:
    async with a_world("a b t u v") as world:
        await a_lost_position(world)
        running = world.worker(bytes_per_second=2 * RATE)
        records: list[float] = []

        async def note(operation: str, path: str) -> Fault | None:
            if operation == "multi" and path.startswith(world.reservations.path(LEDGER)):
                records.append(world.clock.monotonic_s())
            return None

        running.store.fault_hook = note
        await running.worker.run()
        times = sorted(set(records))
        assert 3 <= len(times) <= 4  # the reservation, and one record every 10 s for half a minute
        assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= PROGRESS_S


def test_the_window_is_a_number_of_bytes_or_seconds() -> None:
    assert not is_progress_due(PROGRESS_BYTES - 1, PROGRESS_S - 1)
    assert is_progress_due(PROGRESS_BYTES, 0)
    assert is_progress_due(0, PROGRESS_S)


async def a_recorded_copy(world: RepairWorld, *, end: int, incarnation: str = "1") -> dict[EntryId, bytes]:
    """Create a small ledger that lost b, and the record of a dead worker: ``u`` has the entries before ``end``."""
    packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=99), 100)
    await world.kill("b")
    await world.tasks.marking.mark(LEDGER, names("b"))
    reservation = Reservation(EntryId(0), 1, BookieId("u"), incarnation, EntryId(end))
    await world.reservations.reserve(LEDGER, "dead", [reservation])
    return packets


def copied_to(world: RepairWorld, name: str) -> int:
    return sum(len(batch.entries) for batch in world.bookies[name].adds)


@pytest.mark.parametrize("has_no_lists", [False, True])
@in_virtual_time
async def test_entries_of_the_recorded_target_are_not_copied_again(has_no_lists: bool) -> None:
    async with a_world("a b t u v") as world:
        packets = await a_recorded_copy(world, end=60)
        await world.bookies.put("u", LEDGER, [packets[EntryId(i)] for i in range(60)])
        world.bookies["u"].has_no_lists = has_no_lists
        await world.heal()
        assert copied_to(world, "u") == 40
        await world.assert_whole(LEDGER, packets, "u")
        assert (await world.metadata(LEDGER)).members() == set(names("a u"))
        assert await world.is_clean()


@in_virtual_time
async def test_entries_that_the_target_does_not_list_are_copied_regardless_of_the_record() -> None:
    async with a_world("a b t u v") as world:
        packets = await a_recorded_copy(world, end=60)
        await world.bookies.put("u", LEDGER, [packets[EntryId(i)] for i in range(60) if i % 10])
        await world.heal()
        assert copied_to(world, "u") == 46
        await world.assert_whole(LEDGER, packets, "u")


@in_virtual_time
async def test_entries_beyond_the_record_are_copied_although_the_target_lists_them() -> None:
    async with a_world("a b t u v") as world:
        packets = await a_recorded_copy(world, end=60)
        await world.bookies.put("u", LEDGER, list(packets.values()))
        await world.heal()
        assert copied_to(world, "u") == 40


@in_virtual_time
async def test_progress_recorded_for_other_disks_does_not_count() -> None:
    async with a_world("a b t u v") as world:
        packets = await a_recorded_copy(world, end=60, incarnation="0")
        await world.bookies.put("u", LEDGER, [packets[EntryId(i)] for i in range(60)])
        await world.heal()
        assert sum(copied_to(world, name) for name in TARGETS) == 100


SHARED = 20
"""The number of entries before 60 that both positions 1 and 2 of three store with a write quorum of 2: every third."""
STORED = 66
"""The number of entries out of 100 that position 2 stores."""


async def a_target_of_another_position(world: RepairWorld, *, has: int = 60) -> dict[EntryId, bytes]:
    """Create a striped ledger that lost c, and a dead worker's record: ``u`` has what b stores before entry 60.

    In fact, ``u`` has these entries only before entry ``has``.
    """
    packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(2, 2), last=99), 100)
    await world.kill("c")
    await world.tasks.marking.mark(LEDGER, names("c"))
    await world.reservations.reserve(LEDGER, "dead", [Reservation(EntryId(0), 1, BookieId("u"), "1", EntryId(60))])
    await world.bookies.put("u", LEDGER, [packets[EntryId(i)] for i in range(has) if i % 3 != 2])
    return packets


@pytest.mark.parametrize("has_no_lists", [False, True])
@in_virtual_time
async def test_a_target_whose_position_changes_keeps_entries_that_both_positions_store(has_no_lists: bool) -> None:
    async with a_world("a b c u") as world:
        packets = await a_target_of_another_position(world)
        world.bookies["u"].has_no_lists = has_no_lists
        await world.heal()
        assert copied_to(world, "u") == STORED - SHARED
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_target_that_lost_entries_of_another_position_gets_everything() -> None:
    async with a_world("a b c u") as world:
        packets = await a_target_of_another_position(world, has=57)
        await world.heal()
        assert copied_to(world, "u") == STORED
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_second_interruption_does_not_lose_entries_from_another_position() -> None:
    async with a_world("a b c u") as world:
        packets = await a_target_of_another_position(world)

        async def is_reserved_again() -> bool:
            reserved = await world.reservations.read(LEDGER)
            return reserved is not None and reserved.token != "dead"

        world.bookies["u"].add_replies = [Status.TOO_MANY_REQUESTS] * 1_000_000
        running = world.worker(once=False)
        async with world.running(running):
            await until(is_reserved_again)
            await running.store.close()
        world.bookies["u"].add_replies.clear()
        world.bookies["u"].adds.clear()
        await world.heal(seed=7)
        assert copied_to(world, "u") == STORED - SHARED
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_target_without_lists_that_does_not_serve_recorded_entries_is_not_installed() -> None:
    async with a_world("a b t u") as world:
        packets = await a_recorded_copy(world, end=60)
        world.bookies["u"].has_no_lists = True
        await world.bookies.put("u", LEDGER, [packets[EntryId(i)] for i in range(50)])
        await world.heal()
        assert (await world.metadata(LEDGER)).members() == set(names("a t"))
        await world.assert_whole(LEDGER, packets, "t")
        assert await world.is_clean()


@in_virtual_time
async def test_the_only_target_without_lists_gets_everything_if_it_does_not_serve_recorded_entries() -> None:
    async with a_world("a b u") as world:
        packets = await a_recorded_copy(world, end=60)
        world.bookies["u"].has_no_lists = True
        await world.bookies.put("u", LEDGER, [packets[EntryId(i)] for i in range(50)])
        await world.heal()
        assert (await world.metadata(LEDGER)).members() == set(names("a u"))
        await world.assert_whole(LEDGER, packets, "u")
        assert await world.is_clean()


@in_virtual_time
async def test_a_recorded_target_that_is_lost_is_replaced() -> None:
    async with a_world("a b t u v") as world:
        packets = await a_recorded_copy(world, end=60)
        await world.kill("u")
        await world.heal()
        assert "u" not in (await world.metadata(LEDGER)).members()
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_reservation_without_a_task_is_deleted() -> None:
    async with a_world("a b u") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.reservations.reserve(LEDGER, "dead", [Reservation(EntryId(0), 1, BookieId("u"), "1", EntryId(5))])
        running = world.worker(once=False)
        async with world.running(running):
            await until(world.is_clean, seconds=900, every_s=1)


def test_a_started_target_is_preferred_if_the_policy_does_not_rate_it_worse() -> None:
    key = PositionKey(EntryId(0), 1, BookieId("b"))
    members, candidates = names("a b"), names("t u v")
    for begun in candidates:
        choose = target_chooser(LEDGER, 2, Placement(), {(EntryId(0), 1): begun})
        assert choose(key, members, candidates) == begun
        assert choose(key, members, [each for each in candidates if each != begun]) not in (None, begun)
        assert choose(PositionKey(EntryId(5), 1, BookieId("b")), members, candidates) in candidates
