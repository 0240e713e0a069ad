"""Locks and records of runs: the same on the twin, the simulator's store and a real ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from bookie.metadata.bookies.first_seen_down import Down, FirstSeenDown
from bookie.metadata.nodes import create_with_parents
from bookie.metadata.own_state import own_path
from bookie.metadata.port import MetadataStore
from bookie.metadata.runs.notes import KindPause
from bookie.metadata.runs.records import LockHolder, RunLane, RunLockedError, Runs, RunTakenError
from bookie.model.ids import BookieId
from bookie.model.records import encode_record
from bookie.model.run import PAUSE_S_MAX, RunCause, RunKind, RunRecord, RunState
from bookie.runtime.tasks import cancel, guarded
from tests.contract.conftest import Backend

WithDeadline = Callable[[Awaitable[Any]], Awaitable[Any]]
A, B = BookieId("bk1:3181"), BookieId("bk2:3181")


def record(number: int, kind: RunKind = RunKind.BOOKIES, **fields: Any) -> RunRecord:
    state = fields.pop("state", RunState.RUNNING)
    return RunRecord(f"2026112{number}T000000Z-00000{number}", kind, RunCause.COMMAND, "me", "h:1", state, **fields)


@pytest.fixture
def runs(store: MetadataStore, base: str) -> Runs:
    return Runs(store, base)


async def test_one_run_of_a_kind_at_a_time(runs: Runs, backend: Backend, base: str) -> None:
    lease = await runs.acquire(RunLane(RunKind.BOOKIES), "r1", "h:1")
    other = Runs(await backend.open(), base)
    for rival in (runs, other):
        with pytest.raises(RunLockedError, match=r"r1 in h:1; .* `bkheal audit cancel r1`") as busy:
            await rival.acquire(RunLane(RunKind.BOOKIES), "r2", "h:1")
        assert busy.value.holder.run_id == "r1"
    await other.acquire(RunLane(RunKind.REPLICAS), "r3", "h:2")
    assert await other.holder(RunLane(RunKind.BOOKIES)) == LockHolder("r1", "h:1")
    assert lease.is_held
    await lease.release()
    await lease.release()
    taken = await other.acquire(RunLane(RunKind.BOOKIES), "r4", "h:2")
    await lease.release()
    assert taken.is_held
    assert await runs.holder(RunLane(RunKind.BOOKIES)) == LockHolder("r4", "h:2")


async def test_a_dry_run_and_a_run_that_marks_have_locks_of_their_own(
    runs: Runs, backend: Backend, base: str, with_deadline: WithDeadline
) -> None:
    dry = RunLane(RunKind.BOOKIES, is_dry_run=True)
    lease = await runs.acquire(dry, "r1", "h:1")
    other = Runs(await backend.open(), base)
    await other.acquire(RunLane(RunKind.BOOKIES), "r2", "h:2")
    with pytest.raises(RunLockedError, match="a dry run of kind bookies is already under way: r1 in h:1"):
        await other.acquire(dry, "r3", "h:2")
    waiting = guarded("waiting", other.wait_lane_free(dry))
    await lease.release()
    await with_deadline(waiting)
    assert await other.holder(RunLane(RunKind.BOOKIES)) == LockHolder("r2", "h:2")


async def test_a_lock_ends_with_its_session(runs: Runs, backend: Backend, store: MetadataStore, base: str) -> None:
    lease = await runs.acquire(RunLane(RunKind.BOOKIES), "r1", "h:1")
    await backend.expire(store)
    assert not lease.is_held
    other = Runs(await backend.open(), base)
    taken = await other.acquire(RunLane(RunKind.BOOKIES), "r2", "h:2")
    await lease.release()
    assert await other.holder(RunLane(RunKind.BOOKIES)) == LockHolder("r2", "h:2")
    assert taken.is_held


async def test_a_waiting_process_notices_the_end_of_a_lock(
    runs: Runs, backend: Backend, base: str, with_deadline: WithDeadline
) -> None:
    lease = await runs.acquire(RunLane(RunKind.BOOKIES), "r1", "h:1")
    waiting = guarded("waiting", Runs(await backend.open(), base).wait_lane_free(RunLane(RunKind.BOOKIES)))
    await lease.release()
    await with_deadline(waiting)


async def test_records_are_listed_newest_first(runs: Runs) -> None:
    for number in (2, 1, 3):
        await runs.write(record(number))
    assert [found.run_id[:8] for found in await runs.list(2, now_ms=0)] == ["20261123", "20261122"]
    changed = record(2, done=5, total=9, state=RunState.PAUSED)
    await runs.write(changed)
    assert await runs.get(changed.run_id) == changed
    assert await runs.get("nothing") is None
    assert await runs.get("../../ledgers") is None


async def test_a_damaged_record_is_skipped(runs: Runs, store: MetadataStore, base: str) -> None:
    await runs.write(record(1))
    await store.create(f"{own_path('runs', base)}/records/20261129T000000Z-bad000", b"\xff{")
    assert [found.run_id for found in await runs.list(10, now_ms=0)] == [record(1).run_id]
    assert await runs.get("20261129T000000Z-bad000") is None


async def test_runs_without_a_lock_are_marked_abandoned_permanently(runs: Runs, backend: Backend, base: str) -> None:
    alive, dead, over = record(1), record(2), record(3, state=RunState.DONE)
    lease = await runs.acquire(RunLane(RunKind.BOOKIES), alive.run_id, "h:1")
    for each in (alive, dead, over):
        await runs.write(each)
    other = Runs(await backend.open(), base)
    marked = await other.abandon_orphans(77)
    assert [(found.run_id, found.state, found.finished_ms) for found in marked] == [
        (dead.run_id, RunState.ABANDONED, 77)
    ]
    with pytest.raises(RunTakenError):
        await runs.write(replace(dead, state=RunState.DONE))
    assert (await runs.get(dead.run_id) or dead).state is RunState.ABANDONED
    await runs.write(replace(alive, state=RunState.DONE))
    await lease.release()
    assert await other.abandon_orphans(78) == []


async def test_the_end_of_a_run_is_recorded_although_the_previous_write_was_cancelled(runs: Runs) -> None:
    """A run ends during a write of its progress. The write may still reach the store, but its answer is ignored."""
    await runs.write(record(1))
    for turns in range(4):
        writing = asyncio.ensure_future(runs.write(record(1, done=turns + 1)))
        for _ in range(turns):
            await asyncio.sleep(0)
        await cancel(writing)
        await runs.write(record(1, done=turns + 1, total=9))
    over = record(1, state=RunState.DONE)
    await runs.write(over)
    assert await runs.get(over.run_id) == over


async def test_pruning_keeps_the_newest_and_those_under_way(runs: Runs) -> None:
    await runs.write(record(1))
    for number in (2, 3, 4):
        await runs.write(record(number, state=RunState.DONE))
    assert await runs.prune(2, now_ms=0) == 1
    assert [found.run_id[7] for found in await runs.list(10, now_ms=0)] == ["4", "3", "1"]
    assert await runs.prune(2, now_ms=0) == 0


async def test_pruning_keeps_the_last_complete_run_of_each_kind(runs: Runs) -> None:
    done = RunState.DONE
    for run in (
        record(1, RunKind.REPLICAS, state=done),
        record(2, RunKind.REPLICAS, state=done),
        record(3, RunKind.REPLICAS, state=done, is_every_ledger=False),
        record(4, RunKind.REPLICAS, state=done, is_dry_run=True),
        record(5, RunKind.REPLICAS, state=RunState.FAILED),
        record(6, state=done),
        record(7, state=done, exit_code=5),
        record(8, state=done),
    ):
        await runs.write(run)
    assert await runs.prune(1, now_ms=0) == 6
    assert [found.run_id[7] for found in await runs.list(10, now_ms=0)] == ["8", "2"]


async def test_the_last_success_outlives_its_record_and_never_goes_backwards(runs: Runs) -> None:
    assert await runs.last_success_ms() == {}
    await runs.note_success(RunKind.BOOKIES, 500, 1_000)
    await runs.note_success(RunKind.BOOKIES, 400, 1_000)
    await runs.note_success(RunKind.REPLICAS, 700, 1_000)
    await runs.prune(0, now_ms=0)
    assert await runs.last_success_ms() == {RunKind.BOOKIES: 500, RunKind.REPLICAS: 700}


async def test_a_success_with_a_future_time_is_replaced_by_a_later_run(runs: Runs) -> None:
    year_ms = 365 * 86_400_000
    await runs.note_success(RunKind.BOOKIES, year_ms, year_ms)
    await runs.note_success(RunKind.BOOKIES, 500, 1_000)
    assert await runs.last_success_ms() == {RunKind.BOOKIES: 500}


async def test_kinds_are_paused_and_resumed(runs: Runs) -> None:
    await runs.pause_kind(RunKind.REPLICAS, "me", 1_000)
    await runs.pause_kind(RunKind.REPLICAS, "you", 2_000)
    assert await runs.paused_kinds(1_500) == {RunKind.REPLICAS: KindPause("you", 2_000)}
    assert await runs.end_pauses(1_500, 60) == []
    assert await runs.paused_kinds(2_000) == {}
    assert await runs.end_pauses(2_000, 60) == [RunKind.REPLICAS]
    assert await runs.paused_kinds(0) == {}
    await runs.pause_kind(RunKind.REPLICAS, "me", 9_000)
    await runs.resume_kind(RunKind.REPLICAS)
    await runs.resume_kind(RunKind.REPLICAS)
    assert await runs.paused_kinds(0) == {}


@pytest.mark.parametrize("data", [b"me", encode_record(KindPause("me", 10 * PAUSE_S_MAX * 1000))])
async def test_a_pause_without_an_end_or_with_a_wrong_one_gets_one(
    runs: Runs, store: MetadataStore, base: str, data: bytes
) -> None:
    """An earlier release wrote only a name, or a clock was wrong."""
    await create_with_parents(store, f"{own_path('runs', base)}/paused/bookies", data, "/")
    assert RunKind.BOOKIES in await runs.paused_kinds(1_000)
    assert await runs.end_pauses(1_000, 60) == []
    assert await runs.paused_kinds(1_000) == {RunKind.BOOKIES: KindPause("me", 61_000)}


async def test_a_cancel_request_reaches_the_other_process(runs: Runs, backend: Backend, base: str) -> None:
    other = Runs(await backend.open(), base)
    assert await runs.cancel_requested_by("r1") is None
    await other.request_cancel("r1", "me")
    assert await runs.cancel_requested_by("r1") == "me"
    await runs.clear_request("r1")
    await runs.clear_request("r1")
    assert await other.cancel_requested_by("r1") is None


async def test_a_change_of_a_record_wakes_waiting_processes(
    runs: Runs, backend: Backend, base: str, with_deadline: WithDeadline
) -> None:
    first = record(1)
    await runs.write(first)
    waiting = guarded("waiting", Runs(await backend.open(), base).wait_changed(first))
    changed = replace(first, done=1)
    await runs.write(changed)
    assert await with_deadline(waiting) == changed


async def test_lost_bookies_are_recorded_once_and_removed_when_they_return(store: MetadataStore, base: str) -> None:
    down = FirstSeenDown(store, base)
    assert await down.reconcile(frozenset({A}), 100, registered=set()) == {A: Down(100)}
    assert await down.reconcile(frozenset({A, B}), 200, registered=set()) == {A: Down(100), B: Down(200)}
    await down.note_audited(A, 100, 300)
    await down.note_audited(B, 1, 300)
    await down.waive_delay(B, 200)
    assert await FirstSeenDown(store, base).read() == {A: Down(100, 300), B: Down(200, 0, is_delay_waived=True)}
    assert await down.reconcile(frozenset({B}), 400, registered={A}) == {B: Down(200, 0, is_delay_waived=True)}
    await down.note_audited(A, 100, 500)
    assert set(await down.read()) == {B}
    assert Down(1000).due_ms(5) == 6000
    assert Down(1000, is_delay_waived=True).due_ms(5) == 1000


async def test_a_damaged_record_restarts_the_delay(store: MetadataStore, base: str) -> None:
    down = FirstSeenDown(store, base)
    await down.reconcile(frozenset({A}), 100, registered=set())
    path = f"{own_path('first-seen-down', base)}/{A}"
    await store.set(path, b"nonsense", 0)
    assert await down.read() == {}
    assert await down.reconcile(frozenset({A}), 200, registered=set()) == {A: Down(200)}
