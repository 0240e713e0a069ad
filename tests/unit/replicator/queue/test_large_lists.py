"""A list of 100,000 parked tasks in a cluster of 300 bookies: no step blocks the loop for long."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from typing import Final

import pytest

from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.metadata.nodes import batches
from bookie.metadata.own_state import own_path
from bookie.metadata.port import Create
from bookie.metadata.tasks.parked import ParkedTask, ParkReason
from bookie.model.availability import EntryRuns
from bookie.model.holdings import ENTRIES_COMPARED_PER_STEP
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.schedule import Stripe
from replicator.knowledge import holdings
from replicator.knowledge.absence import Absences
from replicator.queue import task_queue
from replicator.queue.grace import GracePeriods
from replicator.queue.task_queue import TaskQueue
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import make_metadata, names
from tests.worlds.repair import RepairWorld, a_world

BOOKIES: Final = 300
TASKS: Final = 100_000
STEP_S_MAX: Final = 0.05


async def park_all(world: RepairWorld, count: int) -> None:
    """Mark and park ledgers of two lost bookies, with few requests."""
    bookies = [f"b{number:03}.example.org:3181" for number in range(BOOKIES)]
    for name in bookies:
        await super(RepairWorld, world).register(name)
    metadata = make_metadata((0, "x y"), quorum=(2, 2), last=9)
    ids = [LedgerId(number) for number in range(count)]
    await world.ledgers.create_many([(ledger_id, metadata) for ledger_id in ids])
    await world.tasks.marking.mark_many([(ledger_id, names("x y")) for ledger_id in ids])
    known = frozenset(map(BookieId, bookies))
    await world.parked.park(
        ParkedTask(
            ledger_id=ids[0],
            reason=ParkReason.NO_LIVE_COPY,
            detail="all copies are lost",
            since_ms=1,
            bookies_seen=known,
            task_version=0,
        )
    )
    parent = own_path("parked", ROOT)
    record = (await world.store.get(f"{parent}/{ids[0]}")).data
    for batch in batches([Create(f"{parent}/{ledger_id}", record) for ledger_id in ids[1:]]):
        await world.store.multi(batch)


class Turns:
    """The longest time between two turns of the loop, in CPU seconds of this thread: other processes do not count."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.count = 0

    async def watch(self) -> None:
        before_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            self.longest_s, before_s = max(self.longest_s, now_s - before_s), now_s
            self.count += 1


def queue_of(world: RepairWorld) -> TaskQueue:
    ports = world.ports(world.session())
    return TaskQueue(ports, 5.0, GracePeriods(ports.clock, 30.0), Absences(ports))


async def refresh_while_counting(world: RepairWorld) -> tuple[TaskQueue, Turns]:
    queue, turns = queue_of(world), Turns()
    watch = asyncio.create_task(turns.watch())
    await queue.refresh()
    watch.cancel()
    return queue, turns


async def test_a_long_list_is_read_in_steps() -> None:
    """Items are counted, not time: at most ``TASKS_JUDGED_PER_STEP`` are judged between two turns."""
    count = 3000
    async with a_world("") as world:
        await park_all(world, count)
        queue, turns = await refresh_while_counting(world)
        assert queue.queue_state.parked == count
        assert turns.count >= count / task_queue.TASKS_JUDGED_PER_STEP


async def test_ledgers_with_many_fragments_are_read_and_judged_in_smaller_parts() -> None:
    """A ledger with 400 fragments counts as 21 ordinary ones."""
    count, fragments = 60, 400
    async with a_world("a b c") as world:
        parts = [(number, "a x") for number in range(fragments)]
        metadata = make_metadata(*parts, quorum=(2, 2), last=fragments - 1)
        ids = [LedgerId(number) for number in range(count)]
        await world.ledgers.create_many([(ledger_id, metadata) for ledger_id in ids])
        await world.tasks.marking.mark_many([(ledger_id, names("x")) for ledger_id in ids])
        queue, turns = await refresh_while_counting(world)
        assert queue.queue_state.eligible == count
        assert turns.count >= count * (1 + fragments // 20) / task_queue.TASKS_JUDGED_PER_STEP


async def test_fewer_ledgers_are_read_at_a_time_if_their_metadata_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large, fragments = 700, 800, 20
    monkeypatch.setattr(task_queue, "PART_BYTES", 60_000)
    async with a_world("a b c") as world:
        ids = [LedgerId(number) for number in range(small + large)]
        one = make_metadata((0, "a x"), quorum=(2, 2), last=9)
        many = make_metadata(*((n, "a x") for n in range(fragments)), quorum=(2, 2), last=fragments - 1)
        await world.ledgers.create_many([(each, one if each < small else many) for each in ids])
        await world.tasks.marking.mark_many([(ledger_id, names("x")) for ledger_id in ids])
        queue, parts = queue_of(world), list[Sequence[LedgerId]]()
        read = queue._ports.ledgers.read_many_permitted

        async def noting(ledger_ids: Sequence[LedgerId]) -> list[Versioned | Unreadable | None]:
            parts.append(ledger_ids)
            return await read(ledger_ids)

        monkeypatch.setattr(queue._ports.ledgers, "read_many_permitted", noting)
        await queue.refresh()
    assert queue.queue_state.eligible == small + large
    assert [ledger_id for part in parts for ledger_id in part] == ids
    assert [len(part) for part in parts[:3]] == [task_queue.FIRST_LEDGERS, 200, 400]
    assert max(map(len, parts)) <= 60_000 // task_queue._FRAGMENT_BYTES
    assert max(map(len, parts[-5:-1])) <= 60_000 // (fragments * task_queue._FRAGMENT_BYTES)
    assert len(parts[-1]) >= task_queue.FIRST_LEDGERS


async def test_the_fragments_of_a_bookie_are_compared_in_steps() -> None:
    fragments = 3000
    metadata = make_metadata(*((number, "a x") for number in range(fragments)), quorum=(2, 2), last=fragments - 1)
    turns = Turns()
    watch = asyncio.create_task(turns.watch())
    await asyncio.sleep(0)
    incomplete = [key async for key in holdings._incomplete_positions(metadata, BookieId("x"), EntryRuns())]
    watch.cancel()
    assert len(incomplete) == fragments
    assert turns.count >= fragments / holdings.FRAGMENTS_COMPARED_PER_STEP


async def test_a_striped_list_of_many_entries_is_compared_in_steps() -> None:
    """A bookie of a striped ledger lists a run for every few entries: 400,000 runs of 2,000,000 entries."""
    stripe, last = Stripe(5, 3), EntryId(8 * ENTRIES_COMPARED_PER_STEP - 1)
    runs = tuple((start, start + 2) for start in range(5, last, 5))  # position 2 stores 0..2, 5..7, and so on
    listed = EntryRuns(((0, 2), *runs))
    turns = Turns()
    watch = asyncio.create_task(turns.watch())
    assert not await holdings._lacks_any_in_steps(stripe, 2, listed, EntryId(0), last)
    assert turns.count >= 6
    lacking = EntryRuns(tuple(run for run in listed.runs if run[0] != last - 4))
    assert await holdings._lacks_any_in_steps(stripe, 2, lacking, EntryId(0), last)
    watch.cancel()


@pytest.mark.long
async def test_no_step_of_the_longest_list_takes_more_than_50_ms() -> None:
    async with a_world("") as world:
        await park_all(world, TASKS)
        gc.collect()
        gc.disable()  # the collector would scan all nodes of the store in memory, which a real process does not have
        try:
            for _ in range(2):
                queue, turns = await refresh_while_counting(world)
                assert queue.queue_state.parked == TASKS
                assert turns.longest_s <= STEP_S_MAX
        finally:
            gc.enable()
