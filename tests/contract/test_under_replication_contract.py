"""Under-replication tasks: marking, locking, completing and the switches, on the twin and on ZooKeeper."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import bookie_path, lock_path, task_directory, task_path, tasks_path
from bookie.metadata.nodes import create_with_parents
from bookie.metadata.port import ANY_VERSION, Check, MetadataStore, MultiFailedError
from bookie.metadata.runs.check_times import CheckKind, CheckTimes
from bookie.metadata.tasks.format import UnreadableTaskError
from bookie.metadata.tasks.locks import SeenNode, Task
from bookie.metadata.tasks.switches import AlreadyDisabledError, AlreadyEnabledError, InvalidDelayError
from bookie.metadata.tasks.underreplication import IncompatibleTasksError, UnderReplication, UnreadableTask
from bookie.model.ids import LEDGER_ID_MAX, BookieId, LedgerId
from tests.worlds.clocks import EPOCH_MS, ManualClock

A, B, C = BookieId("a:3181"), BookieId("b:3181"), BookieId("c:3181")
LEDGER = LedgerId(12_345)
NOW_MS = EPOCH_MS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def tasks(store: MetadataStore, cluster: Cluster, clock: ManualClock) -> UnderReplication:
    made = UnderReplication(store, cluster, clock)
    await made.initialize()
    return made


@pytest.fixture
async def others(backend: Any, cluster: Cluster, clock: ManualClock) -> UnderReplication:
    """The same tasks in another session."""
    return UnderReplication(await backend.open(), cluster, clock)


async def test_initialize_creates_apaches_nodes_and_may_be_repeated(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    await tasks.initialize()
    base = f"{cluster.root}/underreplication"
    assert set((await store.children(base)).names) == {"LAYOUT", "ledgers", "locks"}
    assert (await store.get(f"{base}/LAYOUT")).data == b'type: "BASIC"\nversion: 1\n'
    await store.set(f"{base}/LAYOUT", b'type: "BASIC"\nversion: 2\n', ANY_VERSION)
    with pytest.raises(IncompatibleTasksError, match="LAYOUT"):
        await tasks.initialize()


async def test_mark_writes_apaches_format(store: MetadataStore, cluster: Cluster, tasks: UnderReplication) -> None:
    await tasks.marking.mark(LEDGER, [A, B, A])
    node = await store.get(f"{cluster.root}/underreplication/ledgers/0000/0000/0000/3039/urL0000012345")
    assert node.data == b'replica: "a:3181"\nreplica: "b:3181"\nctime: 1700000000000\n'
    await tasks.marking.mark(LedgerId(0), [])
    assert (await store.get(task_path(cluster.root, 0))).data == b"ctime: 1700000000000\n"
    assert await tasks.read(LEDGER) == Task(LEDGER, (A, B), NOW_MS, 0)
    assert await tasks.read(LedgerId(99)) is None


async def test_marking_again_adds_new_bookies_and_otherwise_changes_nothing(
    tasks: UnderReplication, clock: ManualClock
) -> None:
    await tasks.marking.mark(LEDGER, [A])
    clock.now_s += 1
    await tasks.marking.mark(LEDGER, [A])
    assert await tasks.read(LEDGER) == Task(LEDGER, (A,), NOW_MS, 0)
    await tasks.marking.mark(LEDGER, [C, A, B])
    assert await tasks.read(LEDGER) == Task(LEDGER, (A, C, B), NOW_MS + 1000, 1)


@pytest.mark.parametrize("is_read_only", [False, True], ids=["writable", "read-only"])
async def test_a_mark_of_a_bookie_registered_since_the_last_one_changes_the_task_once(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication, clock: ManualClock, is_read_only: bool
) -> None:
    registration = bookie_path(cluster.root, A, is_read_only=is_read_only)
    await create_with_parents(store, registration, b"", cluster.root, is_ephemeral=True)
    odd = (A, BookieId(".."), BookieId("a/b"), BookieId(""))  # metadata may contain names that are no bookie's
    await tasks.marking.mark(LEDGER, odd)
    for version in (0, 1, 2):
        assert not await tasks.marking.mark(LEDGER, odd)
        assert await tasks.marking.mark_many([(LEDGER, odd)]) == 0
        assert await tasks.read(LEDGER) == Task(LEDGER, odd, NOW_MS, version)
        await store.delete(registration)
        assert not await tasks.marking.mark(LEDGER, odd)  # an unregistered bookie cannot have other disks
        await store.create(registration, b"", is_ephemeral=True)
        clock.now_s += 1
        if version == 0:
            assert await tasks.marking.mark(LEDGER, odd)
        else:
            assert await tasks.marking.mark_many([(LEDGER, odd)]) == 1


async def test_a_mark_of_a_reregistered_draining_bookie_changes_nothing(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    await tasks.marking.mark(LEDGER, [A])
    registration = bookie_path(cluster.root, A, is_read_only=True)
    await create_with_parents(store, registration, b"", cluster.root, is_ephemeral=True)
    await Drains(store, cluster.root).start(Drain(A, "operator"))
    assert await tasks.marking.mark_many([(LEDGER, [A])]) == 0
    assert await tasks.read(LEDGER) == Task(LEDGER, (A,), NOW_MS, 0)


async def test_concurrent_marks_lose_nothing(tasks: UnderReplication, others: UnderReplication) -> None:
    bookies = [BookieId(f"bk{i}:3181") for i in range(4)]
    await asyncio.gather(*(which.marking.mark(LEDGER, [bookie]) for which in (tasks, others) for bookie in bookies[:2]))
    await asyncio.gather(
        *(which.marking.mark_many([(LEDGER, [bookie])]) for which in (tasks, others) for bookie in bookies[2:])
    )
    task = await tasks.read(LEDGER)
    assert task is not None
    assert set(task.missing) == set(bookies)
    assert len(task.missing) == 4


async def test_bookies_added_concurrently_to_a_task_are_all_in_it(
    tasks: UnderReplication, others: UnderReplication
) -> None:
    await tasks.marking.mark(LEDGER, [A])
    await asyncio.gather(tasks.marking.mark(LEDGER, [B]), others.marking.mark(LEDGER, [C]))
    task = await tasks.read(LEDGER)
    assert task is not None
    assert sorted(task.missing) == [A, B, C]


async def test_mark_many_counts_what_it_created_or_changed(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication, clock: ManualClock
) -> None:
    ids = [LedgerId(i * 3) for i in range(1200)] + [LedgerId(1 << 40), LedgerId(LEDGER_ID_MAX)]
    await tasks.marking.mark(ids[0], [A])
    await tasks.marking.mark(ids[1], [B])
    await store.create(task_path(cluster.root, ids[2]).rpartition("/")[0])
    clock.now_s += 1
    findings = [(LedgerId(ledger_id), [A]) for ledger_id in ids]
    assert await tasks.marking.mark_many(findings) == len(ids) - 1
    assert await tasks.marking.mark_many(findings) == 0
    listed = await tasks.list()
    assert [task.ledger_id for task in listed] == ids
    assert listed[0] == Task(ids[0], (A,), NOW_MS, 0)
    assert listed[1] == Task(ids[1], (B, A), NOW_MS + 1000, 1)
    assert {task.missing for task in listed[2:]} == {(A,)}


async def test_mark_many_merges_findings_of_one_ledger(tasks: UnderReplication) -> None:
    assert await tasks.marking.mark_many([(LEDGER, [A]), (LedgerId(1), [C]), (LEDGER, [B, A])]) == 2
    assert await tasks.read(LEDGER) == Task(LEDGER, (A, B), NOW_MS, 0)
    assert await tasks.marking.mark_many([]) == 0


async def test_mark_many_recreates_directories_removed_with_their_last_task(tasks: UnderReplication) -> None:
    ids = [LedgerId(1), LedgerId(1 << 17), LedgerId(1 << 33)]
    for _ in range(2):
        assert await tasks.marking.mark_many([(ledger_id, [A]) for ledger_id in ids]) == len(ids)
        for ledger_id in ids:
            held = await tasks.locks.lock(ledger_id, "host")
            assert held is not None
            assert await tasks.locks.complete(held)
    assert await tasks.marking.mark_many([(ledger_id, [B]) for ledger_id in ids]) == len(ids)
    assert [task.missing for task in await tasks.list()] == [(B,)] * len(ids)


async def test_mark_many_uses_existing_empty_directories(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    await tasks.marking.mark(LedgerId(7), [A])
    for number in range(5):
        await store.create(task_path(cluster.root, number).rpartition("/")[0])
    ids = [LedgerId(number) for number in range(5)]
    assert await tasks.marking.mark_many([(ledger_id, [A]) for ledger_id in ids]) == 5
    assert [task.ledger_id for task in await tasks.list()] == [*ids, LedgerId(7)]


async def test_mark_many_still_creates_tasks_after_a_call_that_changed_nothing(tasks: UnderReplication) -> None:
    old, new = [LedgerId(i) for i in range(4)], [LedgerId(i) for i in range(100, 104)]
    assert await tasks.marking.mark_many([(ledger_id, [A]) for ledger_id in old]) == 4
    assert await tasks.marking.mark_many([(ledger_id, [A]) for ledger_id in old]) == 0
    assert await tasks.marking.mark_many([(ledger_id, [A]) for ledger_id in new]) == 4
    assert await tasks.marking.mark_many([(ledger_id, [B]) for ledger_id in (*old, *new)]) == 8
    assert {task.missing for task in await tasks.list()} == {(A, B)}


async def test_concurrent_calls_of_mark_many_lose_nothing(tasks: UnderReplication, others: UnderReplication) -> None:
    ids = [LedgerId(i) for i in range(700)]
    await asyncio.gather(
        tasks.marking.mark_many([(ledger_id, [A]) for ledger_id in ids]),
        others.marking.mark_many([(ledger_id, [B]) for ledger_id in reversed(ids)]),
    )
    listed = await tasks.list()
    assert [task.ledger_id for task in listed] == ids
    assert {frozenset(task.missing) for task in listed} == {frozenset({A, B})}


async def test_marking_during_completion_loses_no_mark(tasks: UnderReplication, others: UnderReplication) -> None:
    """Completing prunes the parent nodes during the marking."""

    async def repair() -> None:
        for _ in range(10):
            for task in await tasks.list():
                held = await tasks.locks.lock(task.ledger_id, "host")
                if held is not None:
                    await tasks.locks.complete(held)

    ids = [LedgerId(i) for i in range(50)]
    await others.marking.mark_many([(ledger_id, [A]) for ledger_id in ids])
    repairing = asyncio.create_task(repair())
    await others.marking.mark_many([(ledger_id, [B]) for ledger_id in ids])
    await repairing
    await others.marking.mark_many([(ledger_id, [C]) for ledger_id in ids])
    listed = {task.ledger_id: task for task in await tasks.list()}
    assert set(listed) == set(ids)
    assert all(C in task.missing for task in listed.values())


async def test_many_tasks_are_read_at_once_and_unchanged(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    marked, absent, damaged = LedgerId(5), LedgerId(6), LedgerId(7)
    await tasks.marking.mark_many([(marked, [A]), (damaged, [B])])
    await store.set(task_path(cluster.root, damaged), b"damage", ANY_VERSION)
    first, second, third = await tasks.read_many([marked, absent, damaged])
    assert (first, second) == (await tasks.read(marked), None)
    assert isinstance(third, UnreadableTask)
    assert third.ledger_id == damaged


async def test_a_task_that_stays_unreadable_is_logged_once(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication, caplog: pytest.LogCaptureFixture
) -> None:
    await tasks.marking.mark_many([(LEDGER, [A])])
    for data, count in ((b"damage", 1), (b"damage", 1), (b"other damage", 2)):
        await store.set(task_path(cluster.root, LEDGER), data, ANY_VERSION)
        assert await tasks.list() == []
        assert [record.message for record in caplog.records] == ["task cannot be read"] * count


async def test_a_task_that_may_not_be_read_is_unreadable_and_prevents_nothing_for_other_ledgers(
    backend: Any, cluster: Cluster, tasks: UnderReplication
) -> None:
    others = [LedgerId(1), LedgerId(2)]
    await tasks.marking.mark_many((ledger_id, [A]) for ledger_id in (*others, LEDGER))
    backend.deny(task_path(cluster.root, LEDGER))
    assert [task.ledger_id for task in await tasks.list()] == others
    for found in (await tasks.list_all(), (await tasks.page(None, 10)).tasks, await tasks.read_many([*others, LEDGER])):
        assert [task.ledger_id for task in found if isinstance(task, UnreadableTask)] == [LEDGER]
        assert [task.ledger_id for task in found if isinstance(task, Task)] == others
    assert await tasks.marking.mark_many((ledger_id, [B]) for ledger_id in (*others, LEDGER, LedgerId(3))) == 3
    assert [task.missing for task in await tasks.list()] == [(A, B), (A, B), (B,)]


async def test_task_that_cannot_be_read_is_a_finding_and_stays(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    await tasks.marking.mark_many([(LEDGER, [A]), (LedgerId(1), [A])])
    await store.set(task_path(cluster.root, LEDGER), b"\xff rubbish", ANY_VERSION)
    assert [task.ledger_id for task in await tasks.list()] == [1]
    [unreadable] = [task for task in await tasks.list_all() if task.ledger_id == LEDGER]
    assert isinstance(unreadable, UnreadableTask)
    assert unreadable.ledger_id == LEDGER
    with pytest.raises(UnreadableTaskError):
        await tasks.read(LEDGER)
    with pytest.raises(UnreadableTaskError):
        await tasks.marking.mark(LEDGER, [B])
    with pytest.raises(UnreadableTaskError):
        await tasks.locks.lock(LEDGER, "host")
    assert await tasks.locks.locked() == frozenset()
    assert await tasks.marking.mark_many([(LEDGER, [B]), (LedgerId(1), [B])]) == 1
    assert (await store.get(task_path(cluster.root, LEDGER))).data == b"\xff rubbish"


async def test_the_lock_is_apaches_and_excludes_every_other_process(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication, others: UnderReplication
) -> None:
    await tasks.marking.mark(LEDGER, [A])
    held = await tasks.locks.lock(LEDGER, "worker.example")
    assert held is not None
    assert held.task == Task(LEDGER, (A,), NOW_MS, 0)
    node = await store.get(f"{cluster.root}/underreplication/locks/urL0000012345")
    assert node.data == b'bookieId: "worker.example"\n'
    assert node.stat.ephemeral_owner == held.lock.session_id == store.session.session_id
    assert await tasks.locks.locked() == await others.locks.locked() == {LEDGER}
    assert await others.locks.lock(LEDGER, "other") is None
    assert await tasks.locks.lock(LEDGER, "same process") is None
    await tasks.locks.release(held.lock)
    await tasks.locks.release(held.lock)
    assert await others.locks.locked() == frozenset()
    assert await others.locks.lock(LEDGER, "other") is not None


async def test_concurrent_lock_attempts_have_one_winner(tasks: UnderReplication, others: UnderReplication) -> None:
    await tasks.marking.mark(LEDGER, [A])
    outcomes = await asyncio.gather(*(which.locks.lock(LEDGER, "host") for which in (tasks, others) * 5))
    assert sum(outcome is not None for outcome in outcomes) == 1


async def test_ledger_without_a_task_is_not_locked(tasks: UnderReplication) -> None:
    assert await tasks.locks.lock(LEDGER, "host") is None
    assert await tasks.locks.locked() == frozenset()
    await tasks.marking.mark(LEDGER, [A])
    assert await tasks.locks.lock(LEDGER, "host") is not None


async def test_a_completed_task_is_removed_with_its_lock_and_parents(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    neighbour = LedgerId(LEDGER + (1 << 16))
    await tasks.marking.mark_many([(LEDGER, [A]), (neighbour, [A])])
    for ledger_id in (LEDGER, neighbour):
        assert await tasks.read(ledger_id) is not None
        held = await tasks.locks.lock(ledger_id, "host")
        assert held is not None
        assert await tasks.locks.complete(held)
        assert await tasks.read(ledger_id) is None
        assert await tasks.locks.locked() == frozenset()
        assert not await tasks.locks.complete(held)
    assert (await store.children(tasks_path(cluster.root))).names == ()
    assert await tasks.list() == []


async def test_task_marked_again_under_the_lock_stays(tasks: UnderReplication, others: UnderReplication) -> None:
    await tasks.marking.mark(LEDGER, [A])
    held = await tasks.locks.lock(LEDGER, "host")
    assert held is not None
    await others.marking.mark(LEDGER, [B])
    assert not await tasks.locks.complete(held)
    assert await tasks.read(LEDGER) == Task(LEDGER, (A, B), NOW_MS, 1)
    assert await tasks.locks.locked() == frozenset()


async def test_mark_that_adds_nothing_does_not_stop_the_holder(
    tasks: UnderReplication, others: UnderReplication
) -> None:
    await tasks.marking.mark(LEDGER, [A])
    held = await tasks.locks.lock(LEDGER, "host")
    assert held is not None
    await others.marking.mark(LEDGER, [A])
    assert await tasks.locks.complete(held)


async def test_a_task_is_kept_if_another_node_that_its_completion_depends_on_has_changed(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    path = f"{cluster.root}/something"
    await store.create(path)
    for version, is_done in ((1, False), (0, True)):
        await tasks.marking.mark(LEDGER, [A])
        held = await tasks.locks.lock(LEDGER, "host")
        assert held is not None
        assert await tasks.locks.complete(held, [Check(cluster.root), Check(path, version)]) is is_done
        assert (await tasks.read(LEDGER) is None) is is_done
        assert await tasks.locks.locked() == frozenset()
    await tasks.marking.mark(LEDGER, [A])
    held = await tasks.locks.lock(LEDGER, "host")
    assert held is not None
    await store.delete(path)
    assert not await tasks.locks.complete(held, [Check(path)])
    assert await tasks.read(LEDGER) is not None


async def test_a_task_is_kept_if_that_other_node_was_recreated_at_the_same_version(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    path = f"{cluster.root}/something"
    await store.create(path)
    first = await store.get(path)
    await store.delete(path)
    await store.create(path)
    now = await store.get(path)
    assert now.stat.version == first.stat.version
    for czxid, is_done in ((first.stat.czxid, False), (None, False), (now.stat.czxid, True)):
        await tasks.marking.mark(LEDGER, [A])
        held = await tasks.locks.lock(LEDGER, "host")
        assert held is not None
        assert await tasks.locks.complete(held, [Check(path)], seen=[SeenNode(path, czxid)]) is is_done
        assert (await tasks.read(LEDGER) is None) is is_done
        assert await tasks.locks.locked() == frozenset()


async def test_a_task_recreated_at_the_same_version_is_kept(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication, others: UnderReplication
) -> None:
    await tasks.marking.mark(LEDGER, [A])
    held = await tasks.locks.lock(LEDGER, "host")
    assert held is not None
    await store.delete(task_path(cluster.root, LEDGER))
    await others.marking.mark(LEDGER, [B])
    assert not await tasks.locks.complete(held)
    assert await tasks.read(LEDGER) == Task(LEDGER, (B,), NOW_MS, 0)


async def test_a_task_deleted_by_another_process_is_complete(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    await tasks.marking.mark(LEDGER, [A])
    held = await tasks.locks.lock(LEDGER, "host")
    assert held is not None
    await store.delete(task_path(cluster.root, LEDGER))
    assert await tasks.locks.complete(held)
    assert await tasks.locks.locked() == frozenset()


async def test_a_task_is_completed_although_its_directory_contains_a_foreign_node(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    await tasks.marking.mark(LEDGER, [A])
    foreign = f"{task_directory(cluster.root, LEDGER)}/foreign"
    await store.create(foreign)
    held = await tasks.locks.lock(LEDGER, "host")
    assert held is not None
    assert await tasks.locks.complete(held)
    assert await tasks.read(LEDGER) is None
    assert await tasks.locks.locked() == frozenset()
    assert await store.stat(foreign) is not None


async def test_lock_taken_over_by_another_session_is_neither_used_nor_released(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication, others: UnderReplication
) -> None:
    """Apache deletes locks without a check of their version, so a lock of the same name may have another owner."""
    await tasks.marking.mark(LEDGER, [A])
    held = await tasks.locks.lock(LEDGER, "host")
    assert held is not None
    await store.delete(lock_path(cluster.root, LEDGER))
    theirs = await others.locks.lock(LEDGER, "other")
    assert theirs is not None
    assert not await tasks.locks.complete(held)
    await tasks.locks.release(held.lock)
    assert (await tasks.locks.locked()) == {LEDGER}
    assert await tasks.read(LEDGER) is not None
    assert await others.locks.complete(theirs)


async def test_lock_ends_with_its_session(
    store: MetadataStore, backend: Any, tasks: UnderReplication, others: UnderReplication
) -> None:
    await tasks.marking.mark(LEDGER, [A])
    held = await tasks.locks.lock(LEDGER, "host")
    assert held is not None
    await backend.expire(store)
    theirs = await others.locks.lock(LEDGER, "other")
    assert theirs is not None
    assert not await tasks.locks.complete(held)
    await tasks.locks.release(held.lock)
    assert await others.locks.locked() == {LEDGER}
    await others.locks.release(theirs.lock)
    again = await tasks.locks.lock(LEDGER, "host")
    assert again is not None
    assert again.lock.session_id != held.lock.session_id
    assert await tasks.locks.complete(again)


async def test_the_completing_transaction_requires_the_lock(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    await tasks.marking.mark(LEDGER, [A])
    with pytest.raises(MultiFailedError):
        await store.multi([Check(lock_path(cluster.root, LEDGER), 0)])


async def test_every_process_reads_the_same_recovery_switch(
    tasks: UnderReplication, others: UnderReplication, store: MetadataStore, cluster: Cluster, with_deadline: Any
) -> None:
    assert not await tasks.switches.is_disabled()
    await with_deadline(tasks.switches.wait_enabled())
    with pytest.raises(AlreadyEnabledError):
        await tasks.switches.enable()
    await tasks.switches.disable()
    assert await others.switches.is_disabled()
    assert await store.stat(f"{cluster.root}/underreplication/disable") is not None
    with pytest.raises(AlreadyDisabledError):
        await others.switches.disable()
    waiting = asyncio.create_task(others.switches.wait_enabled())
    await store.sync(cluster.root)
    assert not waiting.done()
    await tasks.switches.enable()
    await with_deadline(waiting)


async def test_the_delay_is_stored_as_plain_text(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    path = f"{cluster.root}/underreplication/lostBookieRecoveryDelay"
    assert await tasks.switches.lost_bookie_delay_s() == 0
    await tasks.switches.set_lost_bookie_delay_s(600)
    assert (await store.get(path)).data == b"600"
    await tasks.switches.set_lost_bookie_delay_s(600)
    assert (await store.get(path)).stat.version == 1  # Apache's auditor audits when the same value is written again
    assert await tasks.switches.lost_bookie_delay_s() == 600
    with pytest.raises(InvalidDelayError, match="-1"):
        await tasks.switches.set_lost_bookie_delay_s(-1)
    await store.set(path, b"soon", ANY_VERSION)
    with pytest.raises(InvalidDelayError, match="soon"):
        await tasks.switches.lost_bookie_delay_s()


async def test_initializing_the_delay_creates_the_node_and_changes_no_existing_one(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    path = f"{cluster.root}/underreplication/lostBookieRecoveryDelay"
    for data in (b"0", b"600", b"soon"):
        await tasks.switches.initialize_lost_bookie_delay()
        node = await store.get(path)
        await tasks.switches.initialize_lost_bookie_delay()
        assert await store.get(path) == node
        await store.set(path, data, ANY_VERSION)
    assert (await store.get(path)).data == b"soon"
    await store.delete(path)
    await tasks.switches.initialize_lost_bookie_delay()
    assert (await store.get(path)).data == b"0"


async def test_check_times_are_kept_per_kind(store: MetadataStore, cluster: Cluster) -> None:
    times = CheckTimes(store, cluster)
    for offset, kind in enumerate(CheckKind):
        assert await times.read(kind) == -1
        for _ in range(2):
            await times.write(kind, NOW_MS + offset)
    assert [await times.read(kind) for kind in CheckKind] == [NOW_MS, NOW_MS + 1, NOW_MS + 2]
    node = await store.get(f"{cluster.root}/underreplication/checkallledgersctime")
    assert node.data.hex() == "0880d095ffbc31"


async def test_the_first_task_of_an_empty_tree_changes_its_top_node(
    tasks: UnderReplication, others: UnderReplication
) -> None:
    for ledger_id in (LEDGER, LedgerId(LEDGER + 1)):
        top = await tasks.top()
        assert top is not None
        waiting = asyncio.create_task(tasks.wait_top_changed(top))
        await others.marking.mark(ledger_id, [A])
        await asyncio.wait_for(waiting, 30)
        held = await tasks.locks.lock(ledger_id, "me")
        assert held is not None
        assert await tasks.locks.complete(held)


async def test_without_a_task_tree_there_is_no_top_node(
    store: MetadataStore, cluster: Cluster, clock: ManualClock
) -> None:
    assert await UnderReplication(store, cluster, clock).top() is None


async def test_tasks_are_read_part_by_part_in_the_order_of_their_ledgers(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    ids = [LedgerId(number) for number in (0, 1, 65_535, 65_536, 1 << 33, LEDGER_ID_MAX)]
    await tasks.marking.mark_many([(ledger_id, [A]) for ledger_id in ids])
    await store.delete(task_path(cluster.root, ids[2]))  # the directory of the task stays
    assert await tasks.places(len(ids) + 1) == ids
    assert await tasks.places(2) == ids[:2]
    for step in (1, 2, 4, 100):
        for left_out in (frozenset[LedgerId](), frozenset({ids[1], ids[3], ids[5]})):
            walked: list[LedgerId] = []
            after: LedgerId | None = None
            while True:
                part = await tasks.page(after, step, left_out)
                assert len(part.tasks) <= step
                walked += [task.ledger_id for task in part.tasks]
                if (after := part.next_after) is None:
                    break
            assert walked == [each for each in (*ids[:2], *ids[3:]) if each not in left_out]


async def test_a_directory_whose_number_is_no_ledger_id_is_left_out(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    await tasks.marking.mark(LEDGER, [A])
    await create_with_parents(store, task_path(cluster.root, LEDGER_ID_MAX + 1), b"", cluster.root)
    assert await tasks.places(10) == await tasks.ids() == [LEDGER]
    part = await tasks.page(None, 10)
    assert ([task.ledger_id for task in part.tasks], part.next_after) == ([LEDGER], None)
