"""A member returns on empty disks while another is missing: acknowledged entries are kept (S6, default settings).

Ledger 3/3/2: entries 0 to 9 are on a, b and c; entry 10 was acknowledged by b and c. b returns on empty disks, as
Apache's bookies do, without a trace in the store; c is missing, but has its disks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

import pytest

from bookie.metadata.bookies.cookies import CookieStore
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.layout import task_path
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerState
from bookie.runtime.fault_points import inject_faults
from bookie.wire.port import ReplyT, Request
from bookie.wire.requests import Fence, Read
from replicator.knowledge import absence
from replicator.knowledge.absence import Absences
from replicator.knowledge.holdings import HoldingsReader, Judgement
from replicator.queue.grace import GracePeriods
from replicator.queue.task_queue import TaskQueue
from replicator.telemetry.events import Ending
from tests.unit.replicator.worker.test_worker_absences import with_cookies
from tests.unit.replicator.worker.test_worker_short_tails import repacked
from tests.worlds.ledgers import LEDGER, make_metadata, make_packets, names
from tests.worlds.repair import RepairWorld, Running, a_world
from tests.worlds.virtual_time import in_virtual_time, until

MINUTES = 60.0


async def lose_b_and_miss_c(world: RepairWorld, named: str, *, has_no_lists: bool = False) -> dict[EntryId, bytes]:
    """Create the situation in the module docstring, with a task that names ``named``."""
    packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
    last = make_packets(LEDGER, 11)[EntryId(10)]
    for name in "bc":
        await world.bookies.put(name, LEDGER, [last])
    await world.kill("b", "c")
    await world.add_bookies("b", incarnation="2")
    world.bookies["b"].has_no_lists = has_no_lists
    await world.tasks.marking.mark(LEDGER, names(named))
    return {**packets, EntryId(10): last}


async def assert_nothing_is_lost(world: RepairWorld, packets: dict[EntryId, bytes]) -> None:
    await until(world.is_clean, seconds=4000, every_s=1)
    metadata = await world.metadata(LEDGER)
    assert metadata.state is not LedgerState.CLOSED or metadata.last_entry_id == 10
    await world.assert_whole(LEDGER, packets)
    assert await world.ports(world.store).doubts.ledgers() == frozenset()


async def stays_unclosed(world: RepairWorld, running: Running, seconds: float) -> None:
    await asyncio.sleep(seconds)
    assert (await world.metadata(LEDGER)).state is not LedgerState.CLOSED
    assert running.recorder.results[-1].ending is Ending.PARKED
    assert running.recorder.results[-1].reason is ParkReason.NEEDS_RECOVERY


@pytest.mark.parametrize("has_no_lists", [False, True])
@pytest.mark.parametrize("named", ["b c", "b", "c"])
def test_an_acknowledged_entry_is_not_truncated(
    monkeypatch: pytest.MonkeyPatch, named: str, has_no_lists: bool
) -> None:
    monkeypatch.setattr(absence, "SETTLE_S", 0.0)

    @in_virtual_time
    async def test() -> None:
        async with a_world("a b c t u") as world:
            await with_cookies(world, "a b t u", 0)
            packets = await lose_b_and_miss_c(world, named, has_no_lists=has_no_lists)
            running = world.worker(once=False).start()
            await stays_unclosed(world, running, 10 * MINUTES)
            await world.register("c")
            await assert_nothing_is_lost(world, packets)
            await running.stop()

    test()


@pytest.mark.parametrize("named", ["b c", "c"])
def test_another_worker_does_not_truncate_an_acknowledged_entry(named: str) -> None:
    @in_virtual_time
    async def test() -> None:
        async with a_world("a b c t u") as world:
            packets = await lose_b_and_miss_c(world, named)
            for seed in (1, 2):
                running = world.worker(once=False, seed=seed).start()
                await stays_unclosed(world, running, 40 * MINUTES)
                await running.stop()
            await world.register("c")
            running = world.worker(once=False, seed=3).start()
            await assert_nothing_is_lost(world, packets)
            await running.stop()

    test()


@in_virtual_time
async def test_a_recorded_doubt_still_counts_after_a_recovery_has_written_to_the_bookie() -> None:
    """If no entry is confirmed, a failed recovery can fill the bookie completely; the record remains."""
    async with a_world("a b c t u") as world:
        packets = await lose_b_and_miss_c(world, "b c")
        doubts = world.ports(world.store).doubts
        running = world.worker(once=False, seed=1).start()
        await stays_unclosed(world, running, 5 * MINUTES)
        await running.stop()
        assert await doubts.get(LEDGER) == frozenset({BookieId("b")})
        await world.bookies.put("b", LEDGER, [packets[EntryId(each)] for each in range(10)])
        running = world.worker(once=False, seed=2).start()
        await stays_unclosed(world, running, 40 * MINUTES)
        await world.register("c")
        await assert_nothing_is_lost(world, packets)
        await running.stop()


@in_virtual_time
async def test_a_bookie_filled_while_another_one_was_missing_is_not_trusted_later() -> None:
    """b is filled within the delay of c, which may have entries that no other member has. Then c is marked."""
    async with a_world("a b c t u") as world:
        await with_cookies(world, "a b c t u", 600)
        packets = await lose_b_and_miss_c(world, "b")
        running = world.worker(once=False).start()

        async def is_filled() -> bool:
            return await world.bookies.nodes[BookieId("b")].holds(LEDGER) == list(range(10))

        await until(is_filled)
        assert (await world.metadata(LEDGER)).state is LedgerState.OPEN
        await asyncio.sleep(600)
        await world.tasks.marking.mark(LEDGER, names("c"))
        await stays_unclosed(world, running, 10 * MINUTES)
        await world.register("c")
        await assert_nothing_is_lost(world, packets)
        await running.stop()


@in_virtual_time
async def test_the_task_of_a_wiped_bookie_waits_for_a_member_that_may_have_all_entries() -> None:
    """The entries of b are only on a, which is restarting and is not named by the task."""
    async with a_world("a b t") as world:
        await with_cookies(world, "a b t", 3600)
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=None), 10)
        await world.kill("a", "b")
        await world.add_bookies("b", incarnation="2")
        world.bookies["b"].has_no_lists = True
        await world.tasks.marking.mark(LEDGER, names("b"))
        running = world.worker(once=False).start()
        await asyncio.sleep(20 * MINUTES)
        assert await world.tasks.read(LEDGER) is not None
        await world.register("a")
        await until(world.is_clean, seconds=4000, every_s=1)
        await world.assert_whole(LEDGER, packets)
        await running.stop()


@in_virtual_time
async def test_an_outdated_list_of_tasks_does_not_delete_a_doubt() -> None:
    """While one worker lists the tasks, the ledger is marked; another worker records a doubt, copies, and dies."""
    async with a_world("a b c t u") as world:
        packets = await lose_b_and_miss_c(world, "b c")
        ports = world.ports(world.store)
        assert await ports.tasks.read(LEDGER) is not None
        await ports.doubts.add(LEDGER, {BookieId("b")})
        await world.bookies.put("b", LEDGER, [packets[EntryId(each)] for each in range(10)])
        await world.store.delete(task_path(world.cluster.root, LEDGER))
        queue = TaskQueue(ports, 60, GracePeriods(ports.clock, 30), Absences(ports))
        listing = ports.parked.ids

        async def marked_meanwhile() -> frozenset[LedgerId]:
            await world.tasks.marking.mark(LEDGER, names("b c"))
            return await listing()

        ports.parked.ids = marked_meanwhile  # type: ignore[method-assign]
        await queue.refresh()
        assert await ports.doubts.get(LEDGER) == frozenset({BookieId("b")})
        running = world.worker(once=False).start()
        await stays_unclosed(world, running, 40 * MINUTES)
        await world.register("c")
        await assert_nothing_is_lost(world, packets)
        await running.stop()


@in_virtual_time
async def test_a_task_stays_if_a_doubt_was_recorded_after_the_verdict() -> None:
    async with a_world("a b c t u") as world:
        await lose_b_and_miss_c(world, "b c")
        ports = world.ports(world.store)
        await ports.doubts.add(LEDGER, {BookieId("b")})
        deletion = await ports.doubts.deletion(LEDGER)
        assert deletion is not None
        held = await ports.tasks.locks.lock(LEDGER, "a worker")
        assert held is not None
        await ports.doubts.add(LEDGER, {BookieId("c")})
        assert not await ports.tasks.locks.complete(held, [deletion])
        assert await ports.doubts.get(LEDGER) == frozenset({BookieId("b"), BookieId("c")})
        held = await ports.tasks.locks.lock(LEDGER, "a worker")
        assert held is not None
        deletion = await ports.doubts.deletion(LEDGER)
        assert deletion is not None
        assert await ports.tasks.locks.complete(held, [deletion])
        assert (await ports.doubts.get(LEDGER), await ports.tasks.read(LEDGER)) == (frozenset(), None)


@in_virtual_time
async def test_a_doubt_without_a_task_is_deleted_once_its_ledger_is_closed() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        closed = LedgerId(LEDGER + 1)
        await world.ledger(closed, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        doubts = world.ports(world.store).doubts
        for ledger_id in (LEDGER, closed, LedgerId(LEDGER + 2)):
            await doubts.add(ledger_id, {BookieId("b")})
        running = world.worker(once=True)
        await running.worker.run()
        assert await doubts.ledgers() == {LEDGER}


@in_virtual_time
async def test_a_damaged_record_puts_every_member_in_doubt() -> None:
    async with a_world("a b c t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        doubts = world.ports(world.store).doubts
        await doubts.add(LEDGER, {BookieId("b")})
        await world.store.set(doubts.path(LEDGER), b"{", ANY_VERSION)
        await world.lose("c")
        running = world.worker(once=False).start()
        await stays_unclosed(world, running, 5 * MINUTES)
        assert doubts.path(LEDGER) in running.recorder.results[-1].detail
        await doubts.forget(LEDGER)  # the operator does this after checking the bookies
        await until(world.is_clean, seconds=4000, every_s=1)
        assert (await world.metadata(LEDGER)).last_entry_id == 9
        await world.assert_whole(LEDGER, packets)
        await running.stop()


@in_virtual_time
async def test_a_slow_member_does_not_keep_a_ledger_open() -> None:
    """b lacks the last entries of a, as after any crash of a writer; c is lost.

    The ledger is recovered nevertheless.
    """
    async with a_world("a b c t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), 10)
        last = make_packets(LEDGER, 11)[EntryId(10)]
        await world.bookies.put("a", LEDGER, [last])
        await world.lose("c")
        running = world.worker(once=False).start()
        await until(world.is_clean, seconds=600)
        metadata = await world.metadata(LEDGER)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 10)
        await world.assert_whole(LEDGER, {**packets, EntryId(10): last})
        await running.stop()


async def replace_cookie(world: RepairWorld, bookie: str) -> None:
    """Do what an operator does to start an Apache bookie on empty disks."""
    cookies = CookieStore(world.store, world.cluster)
    stored = await cookies.read(BookieId(bookie))
    assert stored is not None
    await cookies.delete(BookieId(bookie), stored.version)
    await cookies.create(stored.cookie)


async def delete_cookie(world: RepairWorld, bookie: str) -> None:
    cookies = CookieStore(world.store, world.cluster)
    stored = await cookies.read(BookieId(bookie))
    assert stored is not None
    await cookies.delete(BookieId(bookie), stored.version)


async def overwrite_cookie(world: RepairWorld, bookie: str) -> None:
    """Do what a bookie does that starts with another set of directories."""
    cookies = CookieStore(world.store, world.cluster)
    stored = await cookies.read(BookieId(bookie))
    assert stored is not None
    await cookies.replace(replace(stored.cookie, ledger_dirs=("/other",)), stored.version)


async def acknowledged_by_b_and_c(world: RepairWorld, count: int, last: int) -> dict[EntryId, bytes]:
    """Create a ledger with ``count`` entries on a, b and c, and more entries up to ``last`` on b and c."""
    await with_cookies(world, "a b c t u", 0)
    packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=None), count)
    more = {entry_id: each for entry_id, each in make_packets(LEDGER, last + 1).items() if entry_id >= count}
    for name in "bc":
        await world.bookies.put(name, LEDGER, list(more.values()))
    return {**packets, **more}


@pytest.mark.parametrize("is_there_at_first", [False, True])
def test_a_member_that_comes_back_empty_during_a_recovery_is_not_trusted(
    is_there_at_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the members are checked, b has its entries or is missing.

    When it is asked for the end, its disks are empty.
    """

    @in_virtual_time
    async def test() -> None:
        async with a_world("a b c t u") as world:
            packets = await acknowledged_by_b_and_c(world, 10, 10)
            await world.lose("c")
            if not is_there_at_first:
                await world.kill("b")
                await world.tasks.marking.mark(LEDGER, names("b"))
            ask, is_back = world.bookies.transport.ask, False

            async def ask_later(bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
                nonlocal is_back
                is_fence = isinstance(request, Fence) or (isinstance(request, Read) and request.fence_key is not None)
                if is_fence and bookie == "b" and not is_back:
                    is_back = True
                    await world.kill("b")
                    await world.add_bookies("b", incarnation="2")
                    world.bookies["b"].has_no_lists = True
                    await replace_cookie(world, "b")
                return await ask(bookie, request, timeout_s)

            monkeypatch.setattr(world.bookies.transport, "ask", ask_later)
            running = world.worker(once=False).start()
            await stays_unclosed(world, running, 10 * MINUTES)
            assert is_back
            await world.register("c")
            await assert_nothing_is_lost(world, packets)
            await running.stop()

    test()


@in_virtual_time
async def test_a_member_that_comes_back_empty_gets_no_recovered_entries_before_its_loss_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recovery stores entry 10 again, which a has, and fails at entry 11. On b, this would hide its loss."""
    async with a_world("a b c t u") as world:
        await acknowledged_by_b_and_c(world, 11, 10)
        for name in "bc":
            await world.bookies.put(name, LEDGER, [repacked(make_packets(LEDGER, 12)[EntryId(11)], lac=9)])
        await world.lose("c")
        ask, is_back = world.bookies.transport.ask, False

        async def ask_later(bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
            nonlocal is_back
            if isinstance(request, Read) and request.fence_key is not None and not is_back:
                is_back = True
                await world.kill("b")
                await world.add_bookies("b", incarnation="2")
                world.bookies["b"].has_no_lists = True
                await replace_cookie(world, "b")
            return await ask(bookie, request, timeout_s)

        monkeypatch.setattr(world.bookies.transport, "ask", ask_later)
        with inject_faults(lambda name: name == "recovery.read_one_at_a_time"):
            running = world.worker(once=False).start()
            await stays_unclosed(world, running, 2 * MINUTES)
            await running.stop()
        stored = [entry_id for name in "tu" for entry_id in await world.bookies.nodes[BookieId(name)].holds(LEDGER)]
        assert set(stored) == {10}
        is_recorded = BookieId("b") in (await world.ports(world.store).doubts.get(LEDGER) or ())
        assert is_recorded or await world.bookies.nodes[BookieId("b")].holds(LEDGER) == []


@in_virtual_time
async def test_a_member_that_comes_back_empty_right_after_it_was_judged_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_world("a b c t u") as world:
        packets = await acknowledged_by_b_and_c(world, 10, 10)
        await world.lose("c")
        judge, judged = HoldingsReader.judge_members, []

        async def then_lose_disks(
            holdings: HoldingsReader, ledger: Versioned, bookies: Bookies, joined_later: Collection[BookieId]
        ) -> Judgement:
            judged.append(judgement := await judge(holdings, ledger, bookies, joined_later))
            if len(judged) == 1:
                await world.kill("b")
                await world.add_bookies("b", incarnation="2")
                world.bookies["b"].has_no_lists = True
                await replace_cookie(world, "b")
            return judgement

        monkeypatch.setattr(HoldingsReader, "judge_members", then_lose_disks)
        running = world.worker(once=False).start()
        await stays_unclosed(world, running, 10 * MINUTES)
        assert "b" in judged[0].complete
        await world.register("c")
        await assert_nothing_is_lost(world, packets)
        await running.stop()


@pytest.mark.parametrize("change_cookie", [replace_cookie, delete_cookie, overwrite_cookie])
@in_virtual_time
async def test_a_member_on_new_disks_is_not_trusted_if_no_entry_can_show_what_it_lost(
    change_cookie: Callable[[RepairWorld, str], Awaitable[None]],
) -> None:
    """No registered member has an entry, so none shows what was confirmed.

    The cookie of b shows that its disks are new.
    """
    async with a_world("a b c t u") as world:
        packets = await acknowledged_by_b_and_c(world, 0, 0)
        await world.kill("b", "c")
        await world.add_bookies("b", incarnation="2")
        await change_cookie(world, "b")
        await world.tasks.marking.mark(LEDGER, names("c"))
        running = world.worker(once=False).start()
        await stays_unclosed(world, running, 10 * MINUTES)
        await world.register("c")
        await until(world.is_clean, seconds=4000, every_s=1)
        assert (await world.metadata(LEDGER)).last_entry_id in (None, 0)
        await world.assert_whole(LEDGER, packets)
        await running.stop()


@in_virtual_time
async def test_copies_of_a_closed_fragment_do_not_prove_that_a_member_on_new_disks_has_its_entries() -> None:
    """After b lost its disks, it became the target of another fragment, so it has the beginning of the ledger."""
    async with a_world("a b c t u") as world:
        await with_cookies(world, "a b c t u", 0)
        metadata = make_metadata((0, "a b t"), (4, "a b c"), quorum=(3, 2), last=None)
        packets = await world.ledger(LEDGER, metadata, 10)
        last = make_packets(LEDGER, 11)[EntryId(10)]
        for name in "bc":
            await world.bookies.put(name, LEDGER, [last])
        await world.kill("b", "c")
        await world.add_bookies("b", incarnation="2")
        await replace_cookie(world, "b")
        await world.bookies.put("b", LEDGER, [packets[EntryId(each)] for each in range(4)])
        await world.tasks.marking.mark(LEDGER, names("c"))
        running = world.worker(once=False).start()
        await stays_unclosed(world, running, 10 * MINUTES)
        await world.register("c")
        await assert_nothing_is_lost(world, {**packets, EntryId(10): last})
        await running.stop()
