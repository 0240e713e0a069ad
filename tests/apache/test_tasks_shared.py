"""Under-replication tasks, locks, switches and votes, between Apache's own code and ours: each sees the other's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from bookie.embedded.apache import ApacheCluster
from bookie.metadata.cluster import Cluster, open_cluster
from bookie.metadata.layout import lock_path, task_path, tasks_path
from bookie.metadata.runs.check_times import CheckKind, CheckTimes
from bookie.metadata.runs.election import Election, current_auditor
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.tasks.format import decode_lock, decode_task, encode_task
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import Ended
from bookie.runtime.clock import SystemClock
from spark_jobs.runs.marking.withdrawal import Withdrawal
from tests.apache.driver import JavaDriver, JavaError
from tests.apache.waiting import until
from tests.apache.worlds import QUICK, ApacheWorld
from tests.sessions import LONG_SESSION_S

pytestmark = [pytest.mark.apache, pytest.mark.usefixtures("no_tasks")]

A, B = BookieId("bk1:3181"), BookieId("bk-2.example:3181")


@pytest.fixture
async def tasks(apache_store: ZooKeeperStore, apache_metadata: Cluster) -> UnderReplication:
    ours = UnderReplication(apache_store, apache_metadata, SystemClock())
    await ours.initialize()
    return ours


@pytest.fixture
async def other(java: JavaDriver) -> AsyncIterator[str]:
    """A client of Apache whose locks are released at the end of the test."""
    await java.new_client("worker")
    yield "worker"
    await java.drop_client("worker")


async def test_apache_lists_our_marks_and_we_list_apaches(
    java: JavaDriver, tasks: UnderReplication, apache_store: ZooKeeperStore, apache_metadata: Cluster
) -> None:
    await tasks.marking.mark_many([(LedgerId(70), [A]), (LedgerId(1 << 40), [B, A]), (LedgerId(71), [])])
    await java.call("mark", ledger=70, missing=[B, A])
    await java.call("mark", ledger=9, missing=[A, B])
    theirs = {task["ledger"]: task for task in (await java.call("tasks"))["tasks"]}
    ours = {task.ledger_id: task for task in await tasks.list()}
    assert {key: (list(task.missing), task.ctime_ms) for key, task in ours.items()} == {
        key: (task["missing"], task["ctime"]) for key, task in theirs.items()
    }
    assert {key: task.missing for key, task in ours.items()} == {70: (A, B), 1 << 40: (B, A), 71: (), 9: (A, B)}
    for ledger_id in ours:
        data = (await apache_store.get(task_path(apache_metadata.root, ledger_id))).data
        assert encode_task(decode_task(data)) == data
    for ledger_id in ours:
        held = await tasks.locks.lock(ledger_id, "here")
        assert held is not None
        assert await tasks.locks.complete(held)
    assert (await java.call("tasks"))["tasks"] == []


async def test_our_lock_keeps_apache_from_a_ledger(java: JavaDriver, tasks: UnderReplication, other: str) -> None:
    await tasks.marking.mark(LedgerId(5), [A])
    held = await tasks.locks.lock(LedgerId(5), "our-host")
    assert held is not None
    assert await java.call("lock_owner", ledger=5, client=other) == {"locked": True, "owner": "our-host"}
    assert (await java.call("poll_task", client=other))["ledger"] == -1
    with pytest.raises(JavaError):
        await java.call("lock", ledger=5, client=other)
    await tasks.locks.release(held.lock)
    await until(
        lambda: java.call("poll_task", client=other),
        lambda answer: answer["ledger"] == 5,
        "Apache's worker locks the task",
    )
    assert await tasks.locks.lock(LedgerId(5), "our-host") is None
    await java.call("complete", ledger=5, client=other)
    assert await tasks.list() == []
    assert await tasks.locks.locked() == frozenset()


async def test_apaches_lock_keeps_us_from_a_ledger_until_its_session_ends(
    java: JavaDriver, tasks: UnderReplication, other: str, apache_store: ZooKeeperStore, apache_metadata: Cluster
) -> None:
    await java.call("mark", ledger=6, missing=[A])
    assert (await java.call("poll_task", client=other))["ledger"] == 6
    assert await tasks.locks.locked() == {6}
    assert await tasks.locks.lock(LedgerId(6), "our-host") is None
    owner = decode_lock((await apache_store.get(lock_path(apache_metadata.root, 6))).data)
    assert owner == (await java.call("lock_owner", ledger=6))["owner"]
    await java.drop_client(other)
    held = await tasks.locks.lock(LedgerId(6), "our-host")
    assert held is not None
    assert await tasks.locks.complete(held)


async def test_we_withdraw_apaches_marks_of_deleted_ledgers_except_those_its_worker_has_locked(
    java: JavaDriver, tasks: UnderReplication, other: str, apache_store: ZooKeeperStore, apache_metadata: Cluster
) -> None:
    async def staying() -> frozenset[BookieId]:
        return frozenset()

    gone = {LedgerId(1 << 41), LedgerId((1 << 41) + 1)}
    for ledger_id in gone:
        await java.call("mark", ledger=ledger_id, missing=[A])
    taken = LedgerId((await java.call("poll_task", client=other))["ledger"])
    withdrawal = Withdrawal(apache_store, apache_metadata, tasks, staying)
    assert (await withdrawal.step(None, 10)).withdrawn == {Ended.LEDGER_DELETED: 1}
    assert [task["ledger"] for task in (await java.call("tasks"))["tasks"]] == [taken]
    await java.call("complete", ledger=taken, client=other)
    (withdrawn,) = gone - {taken}
    await java.call("mark", ledger=withdrawn, missing=[B])
    assert [(task.ledger_id, task.missing) for task in await tasks.list()] == [(withdrawn, (B,))]
    assert (await withdrawal.step(None, 10)).withdrawn == {Ended.LEDGER_DELETED: 1}
    assert (await java.call("tasks"))["tasks"] == []


@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_mark_added_during_a_repair_is_kept_after_it(
    java: JavaDriver, tasks: UnderReplication, other: str, is_ours: bool
) -> None:
    """Test both repairers, each with both programs that mark again during the repair."""
    await tasks.marking.mark(LedgerId(8), [A])
    if is_ours:
        held = await tasks.locks.lock(LedgerId(8), "our-host")
        assert held is not None
        await java.call("mark", ledger=8, missing=[B])
        assert not await tasks.locks.complete(held)
    else:
        assert (await java.call("poll_task", client=other))["ledger"] == 8
        await tasks.marking.mark(LedgerId(8), [B])
        await java.call("complete", ledger=8, client=other)
    task = await tasks.read(LedgerId(8))
    assert task is not None
    assert task.missing == (A, B)
    again = await tasks.locks.lock(LedgerId(8), "our-host")
    assert again is not None
    assert await tasks.locks.complete(again)


async def test_completed_tasks_leave_no_folders_behind(
    java: JavaDriver, tasks: UnderReplication, other: str, apache_store: ZooKeeperStore, apache_metadata: Cluster
) -> None:
    await tasks.marking.mark(LedgerId(1), [A])
    assert (await java.call("poll_task", client=other))["ledger"] == 1
    await java.call("complete", ledger=1, client=other)
    await java.call("mark", ledger=1, missing=[A])
    held = await tasks.locks.lock(LedgerId(1), "our-host")
    assert held is not None
    assert await tasks.locks.complete(held)
    assert (await apache_store.children(tasks_path(apache_metadata.root))).names == ()


async def test_switches_and_check_times_are_shared_with_apache(
    java: JavaDriver, tasks: UnderReplication, apache_store: ZooKeeperStore, apache_metadata: Cluster
) -> None:
    await tasks.switches.disable()
    assert (await java.call("recovery_state"))["on"] is False
    await java.call("switch_recovery", on=True)
    assert not await tasks.switches.is_disabled()
    await java.call("switch_recovery", on=False)
    waiting = asyncio.ensure_future(tasks.switches.wait_enabled())
    assert await tasks.switches.is_disabled()
    await java.call("switch_recovery", on=True)
    await waiting
    await tasks.switches.set_lost_bookie_delay_s(37)
    assert (await java.call("delay"))["seconds"] == 37
    await java.call("delay", seconds=0)
    assert await tasks.switches.lost_bookie_delay_s() == 0
    times = CheckTimes(apache_store, apache_metadata)
    names = [f"{name}_ctime" for name in ("check_all_ledgers", "placement_policy_check", "replicas_check")]
    for number, kind in enumerate(CheckKind):
        await times.write(kind, 1_700_000_000_000 + number)
    state = await java.call("recovery_state")
    assert [state[name] for name in names] == [1_700_000_000_000 + number for number in range(3)]
    await java.call("set_check_times", **{name: 1_800_000_000_000 + number for number, name in enumerate(names)})
    assert [await times.read(kind) for kind in CheckKind] == [1_800_000_000_000 + number for number in range(3)]


@asynccontextmanager
async def standing(store: ZooKeeperStore, root: str, name: str) -> AsyncIterator[Election]:
    election = Election(store, root, name, SystemClock(), session_timeout_s=LONG_SESSION_S)
    running = asyncio.create_task(election.run())
    try:
        yield election
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await election.resign()


async def test_apaches_shell_names_our_auditor_and_lists_our_tasks(
    java: JavaDriver,
    tasks: UnderReplication,
    apache_cluster: ApacheCluster,
    apache_store: ZooKeeperStore,
    apache_metadata: Cluster,
) -> None:
    await tasks.marking.mark(LedgerId(4711), [A])
    await tasks.switches.disable()
    async with standing(apache_store, apache_metadata.root, "auditor-7.example") as election:
        await until(lambda: asyncio.sleep(0, election.is_leader()), bool, "our auditor leads")
        assert (await java.call("auditor"))["auditor"] == "auditor-7.example"
        assert "auditor-7.example" in await apache_cluster.shell("whoisauditor")
    listed = await apache_cluster.shell("listunderreplicated", "-printmissingreplica")
    assert "4711" in listed
    assert A in listed
    await apache_cluster.shell("autorecovery", "-enable")
    assert not await tasks.switches.is_disabled()
    held = await tasks.locks.lock(LedgerId(4711), "our-host")
    assert held is not None
    assert await tasks.locks.complete(held)


async def test_we_can_read_what_apaches_auditor_writes(lent: ApacheWorld) -> None:
    """A bookie stops, and Apache's auditor marks. No worker can repair, as every other bookie has a copy already."""
    cluster, java = lent.cluster, lent.java
    handle = await java.create(4, 4, 4)
    await handle.write(20)
    await handle.close()
    store = await ZooKeeperStore.connect(cluster.zookeeper.connect_string, session_timeout_s=LONG_SESSION_S)
    try:
        ours = await shared_tasks(store, cluster)
        recovery = await cluster.start_auto_recovery(QUICK)
        root = "/ledgers"
        auditor = await until(lambda: current_auditor(store, root), bool, "Apache's auditor is elected")
        assert auditor == recovery.address
        assert (await store.get(f"{root}/underreplication/LAYOUT")).data == b'type: "BASIC"\nversion: 1\n'
        assert await ours.switches.lost_bookie_delay_s() == 0
        lost = cluster.bookies[0]
        await lost.stop()
        found = await until(ours.list, bool, "Apache's auditor marks the ledger")
        assert [(task.ledger_id, task.missing) for task in found] == [(handle.ledger_id, (lost.bookie_id,))]
        data = (await store.get(task_path(root, handle.ledger_id))).data
        assert encode_task(decode_task(data)) == data
        assert found[0].ctime_ms > 0

        # Our auditor is the second candidate: it takes over when the first one ends.
        async with standing(store, root, "ours") as election:
            await until(
                lambda: asyncio.sleep(0, election.state.leader),
                lambda name: name == auditor,
                "our auditor has read the leader's vote",
            )
            assert not election.is_leader()
            await lent.kill9(recovery)
            await until(lambda: asyncio.sleep(0, election.is_leader()), bool, "our auditor leads")
        await lost.start()
        await recovery.start()
        await until(ours.list, lambda left: not left, "Apache's worker finds nothing missing any more")
    finally:
        await store.close()


async def shared_tasks(store: ZooKeeperStore, cluster: ApacheCluster) -> UnderReplication:
    return UnderReplication(store, await open_cluster(store, cluster.metadata_uri), SystemClock())
