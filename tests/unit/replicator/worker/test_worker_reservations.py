"""Reservations (S16) and the last check before a task is deleted (I18) protect copies when locks fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from bookie.metadata.bookies.incarnations import Incarnations
from bookie.metadata.layout import lock_path, task_path
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.store.memory import Fault, MemoryStore
from bookie.metadata.tasks.reservations import Reservation
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import ListReply, Status
from bookie.wire.requests import ListEntries
from replicator.knowledge import absence
from replicator.knowledge.evidence import BookieAnswer
from replicator.knowledge.holdings import HoldingsReader
from replicator.plan.steps import CopyPosition
from replicator.repair import execution
from replicator.telemetry.events import Ending
from replicator.worker import RunEnd
from tests.unit.replicator.worker.test_worker_absences import with_cookies
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, make_metadata, names, with_member
from tests.worlds.repair import Recorder, RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time, until


@in_virtual_time
async def test_the_whole_plan_is_reserved_before_a_target_is_contacted_and_released_with_the_task() -> None:
    async with a_world("a b c t u") as world:
        metadata = make_metadata((0, "a b c"), (10, "b a c"), (20, "b c a"), quorum=(2, 2), last=19)
        packets = await world.ledger(LEDGER, metadata, 20)
        await world.lose("b")
        seen: list[set[tuple[int, int]]] = []
        targets: set[str] = set()

        async def note_reserved() -> None:
            reserved = await world.reservations.read(LEDGER)
            assert reserved is not None
            seen.append({(each.first_entry_id, each.position) for each in reserved.reservations})
            targets.update(each.target for each in reserved.reservations)
            assert {each.incarnation for each in reserved.reservations} == {"1"}

        for name in "tu":
            world.bookies[name].before_list = note_reserved
            world.bookies[name].before_add = note_reserved
        running = world.worker()
        order: list[str] = []

        async def note(operation: str, path: str) -> Fault | None:
            if operation == "multi":
                order.append(path)
            return None

        running.store.fault_hook = note
        assert await running.worker.run() is RunEnd.SETTLED
        assert seen
        assert all(each == {(0, 1), (10, 0), (20, 0)} for each in seen)
        after = await world.metadata(LEDGER)
        assert targets == {fragment.members[p] for fragment, p in zip(after.fragments, (1, 0, 0), strict=True)}
        own = world.reservations.path(LEDGER)
        kinds = ["reserve" if path.startswith(own) else path for path in order]
        installed = world.ledgers.path(LEDGER)
        assert [kind for kind in kinds if kind in ("reserve", installed, lock_path(ROOT, LEDGER))] == [
            lock_path(ROOT, LEDGER),
            "reserve",
            installed,  # together with the reservation, the task and the lock
        ]
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_replacement_for_a_target_that_refused_is_reserved_before_it_gets_copies() -> None:
    async with a_world("a b t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        refused: list[str] = []
        reserved: dict[str, bool] = {}

        def note_reserved(name: str) -> Callable[[], Coroutine[None, None, None]]:
            async def reservation_names_it() -> None:
                record = await world.reservations.read(LEDGER)
                reserved[name] = record is not None and record.names(BookieId(name))
                if not refused:
                    refused.append(name)
                    world.bookies[name].add_replies = [Status.READ_ONLY]

            return reservation_names_it

        for name in "tu":
            world.bookies[name].before_add = note_reserved(name)
        await world.heal()
        assert reserved == {"t": True, "u": True}
        assert (await world.metadata(LEDGER)).members() == set(names("a b t u")) - {*names("b"), *refused}
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_late_reservation_of_a_former_worker_is_removed_before_the_task_ends() -> None:
    """The write was in progress when the worker lost its lock, and arrives after the next worker has taken the lock."""
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))

        async def reserve_late() -> None:
            await world.reservations.reserve(LEDGER, "former", [Reservation(EntryId(0), 1, BookieId("t"), "1")])

        world.bookies["b"].before_list = reserve_late
        recorder = await world.heal()
        assert recorder.endings() == [Ending.MARKED_AGAIN, Ending.NOTHING_MISSING]
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_filling_in_place_reserves_nothing() -> None:
    async with a_world("a b") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.kill("b")
        await world.add_bookies("b", incarnation="2")
        await world.tasks.marking.mark(LEDGER, names("b"))
        seen: list[object] = []

        async def note_reserved() -> None:
            seen.append(await world.reservations.read(LEDGER))

        world.bookies["b"].before_add = note_reserved
        await world.heal()
        assert seen == [None]
        await world.assert_whole(LEDGER, packets)


def mark_again_during_the_copy(world: RepairWorld, targets: str) -> None:
    """Mark the ledger for another bookie during its copy, so that the installation cannot complete the task."""

    async def mark() -> None:
        await world.tasks.marking.mark(LEDGER, names("x"))

    for target in targets:
        world.bookies[target].before_add = mark


@pytest.mark.parametrize("is_marked_again", [False, True], ids=["completing", "installing alone"])
@in_virtual_time
async def test_a_reservation_taken_over_by_another_worker_stops_the_installation(is_marked_again: bool) -> None:
    async with a_world("a b t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        if is_marked_again:
            mark_again_during_the_copy(world, "tu")
        running = world.worker(once=False)
        other = Reservation(EntryId(0), 1, BookieId("u"), "1")

        async def take_lock() -> None:
            await world.store.delete(lock_path(ROOT, LEDGER))
            assert await world.tasks.locks.lock(LEDGER, "other") is not None
            await world.reservations.reserve(LEDGER, "other", [other])

        writes: list[str] = []

        async def late(operation: str, path: str) -> Fault | None:
            if operation == "multi" and path == world.ledgers.path(LEDGER) and not writes:
                writes.append(path)
                await take_lock()
            return None

        running.store.fault_hook = late
        running.start()
        await asyncio.sleep(60)
        assert writes  # the write was in progress
        assert world.version(LEDGER) == 0
        assert running.recorder.endings() == [Ending.STOPPED]
        reserved = await world.reservations.read(LEDGER)
        assert reserved is not None
        assert reserved.reservations == (other,)  # the other worker's reservation remains
        await running.stop()
        assert len(packets) == 10


@pytest.mark.parametrize("marked_again", ["", "during the copy", "during the write"])
@in_virtual_time
async def test_a_lock_taken_over_by_apaches_collector_stops_the_installation(marked_again: str) -> None:
    """Apache's workers delete locks of others.

    A collector of Apache ignores reservations, and deletes entries that no ledger names while it has the lock. So
    nothing may be named in that time, and its lock remains.
    """
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        if marked_again == "during the copy":
            mark_again_during_the_copy(world, "t")
        running = world.worker(once=False)
        theirs = MemoryStore(world.cell)
        writes: list[str] = []

        async def late(operation: str, path: str) -> Fault | None:
            if operation == "multi" and path == world.ledgers.path(LEDGER) and not writes:
                writes.append(path)
                if marked_again == "during the write":
                    await world.tasks.marking.mark(LEDGER, names("x"))
                await world.store.delete(lock_path(ROOT, LEDGER))
                await theirs.create(lock_path(ROOT, LEDGER), b"", is_ephemeral=True)
            return None

        running.store.fault_hook = late
        running.start()
        await asyncio.sleep(60)
        assert writes  # the write was in progress
        assert world.version(LEDGER) == 0
        assert running.recorder.endings() == [Ending.STOPPED]
        assert await world.tasks.locks.locked() == {LEDGER}
        await theirs.delete(lock_path(ROOT, LEDGER))
        await until(world.is_clean)
        await world.assert_whole(LEDGER, packets, "t")
        await running.stop()


@in_virtual_time
async def test_reservations_of_a_dead_worker_are_removed_with_the_task() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.reservations.reserve(LEDGER, "dead", [Reservation(EntryId(0), 1, BookieId("t"), "1")])
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert recorder.endings() == [Ending.NOTHING_MISSING]
        assert await world.is_clean()


@in_virtual_time
async def test_a_damaged_reservation_of_a_dead_worker_is_replaced() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.reservations.reserve(LEDGER, "dead", [Reservation(EntryId(0), 1, BookieId("t"), "1")])
        await world.store.set(world.reservations.path(LEDGER), b"{", ANY_VERSION)
        await world.tasks.marking.mark(LEDGER, names("b"))
        assert (await world.heal()).endings() == [Ending.NOTHING_MISSING]
        assert await world.is_clean()
        await world.reservations.reserve(LEDGER, "dead", [Reservation(EntryId(0), 1, BookieId("t"), "1")])
        await world.store.set(world.reservations.path(LEDGER), b"{", ANY_VERSION)
        await world.lose("b")
        await world.heal()
        await world.assert_whole(LEDGER, packets, "t")
        assert await world.is_clean()


@in_virtual_time
async def test_a_failed_repair_leaves_no_reservation() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        world.bookies["t"].add_replies = [Status.UNAUTHORIZED] * 100
        await world.heal()
        assert await world.parked.get(LEDGER) is not None
        assert await world.reserved() == []


@in_virtual_time
async def test_stopping_during_a_copy_leaves_no_reservation() -> None:
    async with a_world("a b t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        running = world.worker(once=False, grace_s=0)

        async def stop() -> None:
            running.worker.stop()
            await asyncio.sleep(20)

        world.bookies["t"].before_add = stop
        assert await running.worker.run() is RunEnd.STOPPED
        assert await world.reserved() == []
        assert await world.tasks.locks.locked() == frozenset()


@in_virtual_time
async def test_a_target_that_does_not_answer_before_the_copy_gets_no_copies() -> None:
    async with a_world("a b t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")
        world.bookies["t"].list_replies = [ListReply(Status.IO_ERROR)] * 100
        await world.heal()
        assert world.bookies["t"].adds == []
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a u")
        await world.assert_whole(LEDGER, packets, "u")


@in_virtual_time
async def test_a_target_that_stops_listing_its_entries_is_not_installed() -> None:
    """It could list its entries a moment ago, so it is not asked for a list before a small copy."""
    async with a_world("a b t u") as world:
        packets = {}
        for ledger_id in (7, 8):
            metadata = make_metadata((0, "a b"), quorum=(2, 2), last=9)
            packets[LedgerId(ledger_id)] = await world.ledger(ledger_id, metadata, 10)
            await world.tasks.marking.mark(LedgerId(ledger_id), names("b"))
        await world.kill("b")
        replies = world.bookies["t"].list_replies

        async def stop_listing() -> None:
            if len(world.bookies["t"].adds) > 1:
                replies.extend([ListReply(Status.IO_ERROR)] * 100)

        world.bookies["t"].before_add = stop_listing
        recorder = await world.heal(ledgers_in_flight=1)
        assert recorder.endings().count(Ending.REPAIRED) == 2
        for ledger_id, copies in packets.items():
            target = (await world.metadata(ledger_id)).last_fragment.members[1]
            await world.assert_whole(ledger_id, copies, target)


@in_virtual_time
async def test_a_collection_that_started_before_a_copy_deletes_nothing() -> None:
    """S16: the pin ends it for the first ledger, and the first add ends it for the second one."""
    async with a_world("a b t") as world:
        packets = {}
        for ledger_id in (7, 8):
            metadata = make_metadata((0, "a b"), quorum=(2, 2), last=9)
            packets[LedgerId(ledger_id)] = await world.ledger(ledger_id, metadata, 10)
            await world.tasks.marking.mark(LedgerId(ledger_id), names("b"))
        await world.kill("b")
        storage = world.bookies.nodes[BookieId("t")].storage
        marks = {ledger_id: storage.mark(ledger_id) for ledger_id in packets}
        await world.heal(ledgers_in_flight=1)
        for ledger_id, copies in packets.items():
            assert not await storage.collect(ledger_id, marks[ledger_id])
            await world.assert_whole(ledger_id, copies, "t")


@in_virtual_time
async def test_a_target_on_other_disks_than_the_reserved_ones_refuses_the_copies() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.lose("b")

        async def swap_disks() -> None:
            await world.add_bookies("t", incarnation="2")

        world.bookies["t"].before_list = swap_disks
        recorder = await world.heal()
        assert Ending.REPAIRED in recorder.endings()
        await world.assert_whole(LEDGER, packets, "t")
        assert world.version(LEDGER) == 1


@in_virtual_time
async def test_a_task_stays_if_the_ledger_changed_after_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absence, "SETTLE_S", 0.0)
    async with a_world("a b c t") as world:
        await with_cookies(world, "a b t", 0)
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.kill("c")
        await world.tasks.marking.mark(LEDGER, names("z"))
        running = world.worker()
        changed: list[str] = []

        async def late(operation: str, path: str) -> Fault | None:
            is_locked = world.cell.stat(lock_path(ROOT, LEDGER)) is not None
            if operation == "multi" and path == lock_path(ROOT, LEDGER) and is_locked and not changed:
                changed.append(path)  # another worker without a lock names a bookie that was just lost
                now = await world.ledgers.read(LEDGER)
                wanted = with_member(now.metadata, 0, 1, BookieId("c"))
                await world.ledgers.write(LEDGER, wanted, now.version)
            return None

        running.store.fault_hook = late
        assert await running.worker.run() is RunEnd.SETTLED
        assert running.recorder.endings() == [Ending.MARKED_AGAIN, Ending.REPAIRED]
        assert "c" not in (await world.metadata(LEDGER)).members()
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_bookie_in_limbo_is_healthy_if_it_lists_every_entry_and_otherwise_not_a_source() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.bookies.nodes[BookieId("a")].storage.set_limbo([LEDGER])
        await world.tasks.marking.mark(LEDGER, names("a"))
        assert (await world.heal()).endings() == [Ending.NOTHING_MISSING]
        await world.kill("b", "c")
        await world.add_bookies("b", incarnation="2")
        await world.bookies.nodes[BookieId("b")].storage.set_limbo([LEDGER])
        await world.tasks.marking.mark(LEDGER, names("b c"))
        await world.heal()
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()
        members = (await world.metadata(LEDGER)).last_fragment.members
        assert members == names("a b t")
        await until(world.is_clean)


async def heal_while(
    world: RepairWorld, act: Callable[[], Awaitable[None]], *, is_before_look: bool = False
) -> list[Ending]:
    """Heal, and run an action before the first deletion of the task, or before the last check."""
    running = world.worker()
    done: list[bool] = []

    async def late(operation: str, path: str) -> Fault | None:
        is_locked = world.cell.stat(lock_path(ROOT, LEDGER)) is not None
        moment = ("sync", task_path(ROOT, LEDGER)) if is_before_look else ("multi", lock_path(ROOT, LEDGER))
        if (operation, path) == moment and is_locked and not done:
            done.append(True)
            await act()
        return None

    running.store.fault_hook = late
    assert await running.worker.run() is RunEnd.SETTLED
    assert done
    return running.recorder.endings()


@in_virtual_time
async def test_a_bookie_marked_again_after_the_verdict_is_not_forgotten_with_the_task() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))
        before = await world.task(LEDGER)

        async def lose_again() -> None:
            await world.lose("b")
            assert await world.task(LEDGER) == before  # the task already names it: the report changes nothing

        assert await heal_while(world, lose_again) == [Ending.MARKED_AGAIN, Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_a_bookie_that_came_back_without_its_disks_after_the_verdict_is_checked_again() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        histories = Incarnations(world.store, ROOT)
        await histories.record(BookieId("b"), "1", 0)
        await world.tasks.marking.mark(LEDGER, names("b"))

        async def come_back_empty() -> None:
            await world.kill("b")
            await histories.record(BookieId("b"), "2", 1)
            await world.add_bookies("b", incarnation="2")

        assert await heal_while(world, come_back_empty) == [Ending.MARKED_AGAIN, Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_bookie_without_a_recorded_incarnation_is_checked_again_after_it_registers_again() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))

        async def come_back_empty() -> None:
            await world.kill("b")
            await world.add_bookies("b")

        endings = await heal_while(world, come_back_empty, is_before_look=True)
        assert endings == [Ending.MARKED_AGAIN, Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_bookie_that_comes_back_empty_right_after_its_answer_is_checked_again() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))
        before = world.bookies["b"]

        async def come_back_empty() -> None:
            before.list_replies = [await before.inner.answer("", ListEntries(LEDGER))]
            await world.kill("b")
            await world.add_bookies("b")

        before.before_list = come_back_empty
        recorder = await world.heal()
        assert recorder.endings() == [Ending.MARKED_AGAIN, Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_mark_of_a_bookie_that_registered_again_at_the_last_moment_stays() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))

        async def come_back_empty_and_marked() -> None:
            await world.kill("b")
            await world.add_bookies("b")
            await world.tasks.marking.mark_many([(LEDGER, names("b"))])

        assert await heal_while(world, come_back_empty_and_marked) == [Ending.MARKED_AGAIN, Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_bookie_that_registers_again_during_the_copy_of_another_is_checked_again() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.kill("c")
        await world.tasks.marking.mark(LEDGER, names("b c"))

        async def come_back_empty() -> None:
            await world.kill("b")
            await world.add_bookies("b")

        world.bookies["t"].before_add = come_back_empty
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@pytest.mark.parametrize("fragment_count", [1, 3])
@in_virtual_time
async def test_a_target_that_registers_with_empty_disks_after_its_list_is_not_installed_yet(
    monkeypatch: pytest.MonkeyPatch, fragment_count: int
) -> None:
    async with a_world("a b t") as world:
        fragments = [(10 * number, "a b" if number % 2 else "b a") for number in range(fragment_count)]
        count = 10 * fragment_count
        packets = await world.ledger(LEDGER, make_metadata(*fragments, quorum=(2, 2), last=count - 1), count)
        await world.lose("b")
        listed, lists = HoldingsReader.missing_on_target, []

        async def then_lose_disks(
            holdings: HoldingsReader, ledger: Versioned, step: CopyPosition, left_out: EntryRuns
        ) -> BookieAnswer | None:
            lists.append(answer := await listed(holdings, ledger, step, left_out))
            if len(lists) == fragment_count:
                await world.kill("t")
                await world.add_bookies("t")
            return answer

        monkeypatch.setattr(HoldingsReader, "missing_on_target", then_lose_disks)
        await world.heal()
        await world.assert_whole(LEDGER, packets, "t")
        assert await world.is_clean()


@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("first_list", ["of another registration", "of other disks", "not whole"])
@in_virtual_time
async def test_a_task_stays_if_an_installation_skipped_a_step(
    monkeypatch: pytest.MonkeyPatch, first_list: str, is_early: bool
) -> None:
    if is_early:
        monkeypatch.setattr(execution, "INSTALL_BYTES", 300)  # as if each fragment had 64 MiB
    monkeypatch.setattr(execution, "FRAGMENTS_AT_ONCE", 1)
    async with a_world("a b t u") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b u"), (10, "a b t"), quorum=(3, 2), last=11), 12)
        await world.lose("b")
        listed, lists = HoldingsReader.missing_on_target, []

        async def changed(
            holdings: HoldingsReader, ledger: Versioned, step: CopyPosition, left_out: EntryRuns
        ) -> BookieAnswer | None:
            lists.append(answer := await listed(holdings, ledger, step, left_out))
            if len(lists) > 1:
                return answer
            if first_list == "not whole":
                return BookieAnswer(step.target, Status.NO_ENTRY, "it lists too few entries")
            await world.unregister(step.target)
            if first_list == "of other disks":
                await world.add_bookies(step.target)
            else:
                await world.register(step.target)
            return answer

        monkeypatch.setattr(HoldingsReader, "missing_on_target", changed)
        await world.heal()
        assert await world.task(LEDGER) is None
        assert "b" not in (await world.metadata(LEDGER)).members()
        if first_list != "of other disks":  # the other disks also lost entries that no mark names
            await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_a_target_that_receives_no_entries_is_pinned_too() -> None:
    """A collector that is deleting the ledger there must not finish after the bookie has become a member."""
    async with a_world("a b c d") as world:
        await world.ledger(7, make_metadata((0, "a b c"), quorum=(2, 2), last=0), 1)
        await world.lose("c")
        storage = world.bookies.nodes[BookieId("d")].storage
        mark = storage.mark(LEDGER)
        recorder = await world.heal()
        assert recorder.endings()[-1] is Ending.REPAIRED
        assert BookieId("d") in (await world.metadata(7)).members()
        assert not await storage.collect(LEDGER, mark)


async def lose_a_member_of_an_empty_ledger(world: RepairWorld) -> None:
    """Create an empty ledger with the members a and b; b is lost."""
    await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=-1), 0)
    await world.lose("b")


@in_virtual_time
async def test_a_member_of_an_empty_ledger_is_replaced_without_a_reservation_or_a_request() -> None:
    """R118: there are no copies, so nothing can be deleted."""
    async with a_world("a b t") as world:
        await lose_a_member_of_an_empty_ledger(world)
        asked: list[str] = []

        async def note() -> None:
            asked.append("t")

        world.bookies["t"].before_list = note
        running = world.worker()
        reserved: list[str] = []

        async def watch(operation: str, path: str) -> Fault | None:
            if operation == "multi" and path.startswith(world.reservations.path(LEDGER)):
                reserved.append(path)
            return None

        running.store.fault_hook = watch
        assert await running.worker.run() is RunEnd.SETTLED
        assert running.recorder.endings() == [Ending.REPAIRED]
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a t")
        assert (asked, reserved) == ([], [])
        assert await world.is_clean()


@in_virtual_time
async def test_a_reservation_for_an_empty_ledger_is_replaced_and_removed_with_its_task() -> None:
    """Earlier releases made reservations for empty ledgers too, and one of their workers may have died."""
    async with a_world("a b t u") as world:
        await lose_a_member_of_an_empty_ledger(world)
        await world.reservations.reserve(LEDGER, "old", [Reservation(EntryId(0), 1, BookieId("u"), "1")])
        assert (await world.heal()).endings() == [Ending.REPAIRED]
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a u")
        assert await world.is_clean()


@in_virtual_time
async def test_an_empty_ledger_is_not_changed_after_its_lock_was_taken_over() -> None:
    """Even without a reservation, a late write is checked against the lock and the version of the metadata."""
    async with a_world("a b t") as world:
        await lose_a_member_of_an_empty_ledger(world)
        running = world.worker(once=False)
        theirs = MemoryStore(world.cell)
        writes: list[str] = []

        async def late(operation: str, path: str) -> Fault | None:
            if operation == "multi" and path == world.ledgers.path(LEDGER) and not writes:
                writes.append(path)
                await theirs.delete(lock_path(ROOT, LEDGER))
                await theirs.create(lock_path(ROOT, LEDGER), b"", is_ephemeral=True)
            return None

        running.store.fault_hook = late
        running.start()
        await until(lambda: _has_ended(running.recorder))
        assert running.recorder.endings() == [Ending.STOPPED]
        assert world.version(LEDGER) == 0
        await theirs.delete(lock_path(ROOT, LEDGER))
        await until(world.is_clean)
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a t")
        await running.stop()


async def _has_ended(recorder: Recorder) -> bool:
    return bool(recorder.results)


async def heal_while_disks_of_t_are_replaced(world: RepairWorld, moment: str) -> Recorder:
    """Heal while other disks are recorded for ``t``, whose registration outlives its disks for a while."""
    histories = Incarnations(world.store, ROOT)
    for name in "tu":
        await histories.record(BookieId(name), "1", 0)
    await world.lose("b")
    running = world.worker()
    replaced: list[str] = []

    async def replace(operation: str, path: str) -> Fault | None:
        is_to_install = operation == "multi" and path == world.ledgers.path(LEDGER)
        is_to_check = operation == "sync" and path == task_path(ROOT, LEDGER)
        if {"install": is_to_install, "check": is_to_check}[moment] and not replaced:
            replaced.append(path)
            await histories.record(BookieId("t"), "2", 1)
        return None

    running.store.fault_hook = replace
    assert await running.worker.run() is RunEnd.SETTLED
    assert replaced
    return running.recorder


@in_virtual_time
async def test_a_target_whose_disks_were_replaced_is_not_installed_even_if_still_registered() -> None:
    """A bookie on new disks searches the metadata once for entries of the old disks, so nothing may be named later."""
    for moment in ("check", "install"):
        async with a_world("a b t u") as world:
            packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
            await world.registrations.unregister(BookieId("u"))  # so t is chosen first

            async def come(world: RepairWorld = world) -> None:
                await world.register("u")

            world.bookies["t"].before_add = come
            recorder = await heal_while_disks_of_t_are_replaced(world, moment)
            assert recorder.endings() == [Ending.REPAIRED], moment
            assert (await world.metadata(LEDGER)).last_fragment.members == names("a u")
            await world.assert_whole(LEDGER, packets, "u")
            assert await world.is_clean()


@in_virtual_time
async def test_a_target_that_returns_on_new_disks_gets_another_copy() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9), 10)
        histories = Incarnations(world.store, ROOT)
        await histories.record(BookieId("t"), "1", 0)
        await world.lose("b")

        async def lose_disks() -> None:
            listing = await world.bookies["t"].inner.answer("1", ListEntries(LEDGER))
            await world.kill("t")
            await histories.record(BookieId("t"), "2", 1)
            await world.add_bookies("t", incarnation="2")
            world.bookies["t"].list_replies = [listing]

        async def before_add() -> None:
            world.bookies["t"].before_list = lose_disks

        world.bookies["t"].before_add = before_add
        assert (await world.heal()).endings() == [Ending.REPAIRED]
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a t")
        await world.assert_whole(LEDGER, packets, "t")
