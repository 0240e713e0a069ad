"""Locks and records of runs with lost answers: no node remains, and own and foreign records are not confused."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie.metadata.own_state import own_path
from bookie.metadata.port import ANY_VERSION, StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.runs.notes import ImageRuns
from bookie.metadata.runs.records import RunLane, RunLockedError, Runs
from bookie.metadata.store.memory import Fault, MemoryCell, MemoryStore
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from tests.worlds.virtual_time import in_virtual_time

RECORD = RunRecord("20261121T000000Z-000001", RunKind.BOOKIES, RunCause.COMMAND, "me", "h:1", RunState.RUNNING)


class Faults:
    """Faults of the writes to one path, in order."""

    def __init__(self, part: str, *faults: Fault | None) -> None:
        self._part = part
        self._faults = list(faults)

    async def __call__(self, operation: str, path: str) -> Fault | None:
        await asyncio.sleep(0)
        if self._faults and self._part in path and operation in ("create", "set", "delete"):
            return self._faults.pop(0)
        return None


async def prepared(cell: MemoryCell) -> Runs:
    """Write the records of another process; afterwards, all parents exist."""
    runs = Runs(MemoryStore(cell), "/ledgers")
    await (await runs.acquire(RunLane(RunKind.BOOKIES), "first", "other")).release()
    await runs.write(replace(RECORD, run_id="20261120T000000Z-000000", state=RunState.DONE))
    return runs


@in_virtual_time
async def test_a_lock_whose_answer_was_lost_is_recognized_as_own() -> None:
    cell = MemoryCell()
    other = await prepared(cell)
    runs = Runs(MemoryStore(cell, fault_hook=Faults("locks/", Fault.LOSE_ANSWER)), "/ledgers")
    lease = await runs.acquire(RunLane(RunKind.BOOKIES), "r1", "h:1")
    assert lease.is_held
    with pytest.raises(RunLockedError):
        await other.acquire(RunLane(RunKind.BOOKIES), "r2", "other")
    await lease.release()
    await other.acquire(RunLane(RunKind.BOOKIES), "r2", "other")


@in_virtual_time
async def test_an_orphaned_lock_of_this_session_is_acquired_again() -> None:
    cell = MemoryCell()
    await prepared(cell)
    store = MemoryStore(cell, fault_hook=Faults("locks/", None, Fault.FAIL_BEFORE))
    lease = await (runs := Runs(store, "/ledgers")).acquire(RunLane(RunKind.BOOKIES), "r1", "h:1")
    with pytest.raises(StoreUnavailableError):
        await lease.release()
    with pytest.raises(RunLockedError, match="r1"):
        await runs.acquire(RunLane(RunKind.BOOKIES), "r2", "h:1")
    anew = Runs(store, "/ledgers")  # without the lease, like a process that got no answer when it acquired the lock
    assert (await anew.acquire(RunLane(RunKind.BOOKIES), "r2", "h:1")).is_held
    assert (holder := await anew.holder(RunLane(RunKind.BOOKIES))) is not None
    assert holder.run_id == "r2"


@in_virtual_time
async def test_a_release_whose_answer_was_lost_is_resolved() -> None:
    cell = MemoryCell()
    other = await prepared(cell)
    faults = Faults("locks/", None, Fault.LOSE_ANSWER, Fault.LOSE_ANSWER)
    runs = Runs(MemoryStore(cell, fault_hook=faults), "/ledgers")
    await (await runs.acquire(RunLane(RunKind.BOOKIES), "r1", "h:1")).release()
    await other.acquire(RunLane(RunKind.BOOKIES), "r2", "other")


@in_virtual_time
async def test_records_survive_lost_answers() -> None:
    cell = MemoryCell()
    other = await prepared(cell)
    faults = Faults("records/", Fault.LOSE_ANSWER, Fault.LOSE_ANSWER, Fault.FAIL_BEFORE)
    runs = Runs(MemoryStore(cell, fault_hook=faults), "/ledgers")
    await runs.write(RECORD)
    half = replace(RECORD, done=5, total=10)
    await runs.write(half)
    final = replace(half, state=RunState.DONE)
    with pytest.raises(StoreUnavailableError):
        await runs.write(final)
    assert await other.get(RECORD.run_id) == half
    await runs.write(final)
    await runs.write(final)
    assert await other.get(RECORD.run_id) == final


@in_virtual_time
async def test_the_last_success_survives_lost_answers() -> None:
    cell = MemoryCell()
    faults = Faults("last-success/", Fault.LOSE_ANSWER, Fault.LOSE_ANSWER, *[Fault.FAIL_BEFORE] * 9)
    runs = Runs(MemoryStore(cell, fault_hook=faults), "/ledgers")
    await runs.note_success(RunKind.BOOKIES, 5, 9)
    with pytest.raises((StoreUnavailableError, WriteOutcomeUnknownError)):
        await runs.note_success(RunKind.BOOKIES, 9, 9)
    assert (await runs.last_success_ms())[RunKind.BOOKIES] in (5, 9)


@in_virtual_time
async def test_several_writes_without_an_answer_are_all_recognized_as_own() -> None:
    cell = MemoryCell()
    other = await prepared(cell)
    outage = Outage()
    runs = Runs(MemoryStore(cell, fault_hook=outage), "/ledgers")
    await runs.write(RECORD)
    outage.is_on = True
    for done in (1, 2, 3):  # the first write takes effect, the others find its version
        with pytest.raises(WriteOutcomeUnknownError):
            await runs.write(replace(RECORD, done=done))
    outage.is_on = False
    assert await other.get(RECORD.run_id) == replace(RECORD, done=1)
    await runs.write(replace(RECORD, done=4))
    assert await other.get(RECORD.run_id) == replace(RECORD, done=4)


@in_virtual_time
async def test_a_write_that_could_not_be_verified_is_later_recognized_as_own() -> None:
    """An outage in the middle of a write: its answer is lost, and the check of the node fails as well."""
    cell = MemoryCell()
    other = await prepared(cell)
    outage = Outage()
    runs = Runs(MemoryStore(cell, fault_hook=outage), "/ledgers")
    half, more = replace(RECORD, done=5), replace(RECORD, done=7)
    for before, after in ((RECORD, half), (replace(RECORD, done=6), more)):
        outage.is_on = True
        with pytest.raises(WriteOutcomeUnknownError):
            await runs.write(before)
        outage.is_on = False
        assert await other.get(RECORD.run_id) == before
        await runs.write(after)
        assert await other.get(RECORD.run_id) == after


class Outage:
    """A store that carries out writes without an answer, and fails reads."""

    is_on = False

    async def __call__(self, operation: str, path: str) -> Fault | None:
        await asyncio.sleep(0)
        if not self.is_on:
            return None
        return Fault.LOSE_ANSWER if operation in ("create", "set", "delete") else Fault.FAIL_BEFORE


async def test_the_last_runs_that_wrote_an_image_are_listed() -> None:
    store = MemoryStore(MemoryCell())
    runs = Runs(store, "/ledgers")
    assert await runs.images() == ImageRuns()
    names = [f"run-{number}" for number in range(40)]
    for name in (*names, names[-1]):
        await runs.note_image(name, is_read=False)
    await runs.note_image(names[0], is_read=True)
    assert await runs.images() == ImageRuns(tuple(names[8:]), (names[0],))
    await store.set(f"{own_path('runs', '/ledgers')}/images", b"damage", ANY_VERSION)
    assert await runs.images() == ImageRuns(), "every image is refused"
    await runs.note_image(names[1], is_read=True)
    assert await runs.images() == ImageRuns((), (names[1],))
