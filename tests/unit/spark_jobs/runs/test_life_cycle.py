"""The recorded states of a run: a failed start leaves no lock, every end is recorded, and a pause ends once."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bookie.metadata.own_state import own_path
from bookie.metadata.port import StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.runs.records import Runs, lane_of
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from spark_jobs.one_shot.run import exit_code_of
from spark_jobs.runs.gate import RunGate, Stop
from spark_jobs.runs.life_cycle import REPORT_INTERVAL_S, RunLifeCycle, RunOutcome, outcome_of, outcome_of_error
from spark_jobs.runs.port import Phase, ProgressEvent
from tests.worlds import report as world
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import ROOT, formatted

RECORD = RunRecord(
    "20270115-000000-abcd",
    RunKind.BOOKIES,
    RunCause.COMMAND,
    "alice",
    "host:1",
    RunState.RUNNING,
    is_dry_run=False,
    started_ms=1,
)
DONE = RunOutcome(RunState.DONE, ExitCode.OK, verdict="clean", is_success=True)


class Unsteady(Runs):
    """Records whose next ``refused`` writes get no answer."""

    refused = 0

    async def write(self, record: RunRecord) -> None:
        if self.refused:
            self.refused -= 1
            raise StoreUnavailableError("no answer")
        await super().write(record)


@pytest.fixture
async def runs() -> Unsteady:
    store = MemoryStore(MemoryCell())
    await formatted(store)
    return Unsteady(store, ROOT)


async def test_a_run_that_could_not_be_recorded_leaves_no_lock(runs: Unsteady) -> None:
    runs.refused = 1
    life = RunLifeCycle(runs, RECORD, RunGate(), ManualClock(turns=1))
    with pytest.raises(StoreUnavailableError):
        await life.begin()
    async with asyncio.timeout(5):
        await runs.wait_lane_free(lane_of(RECORD))
    await RunLifeCycle(runs, RECORD, RunGate(), ManualClock(turns=1)).begin()


@pytest.mark.parametrize("error", [StoreUnavailableError("no connection"), WriteOutcomeUnknownError("no answer")])
def test_a_run_ended_by_an_unreachable_store_has_the_exit_code_for_a_retry(error: BkhealError) -> None:
    codes = (exit_code_of(error), outcome_of_error(error, None).exit_code)
    assert codes == (ExitCode.STORE_UNREACHABLE, ExitCode.STORE_UNREACHABLE)


async def test_the_end_is_recorded_if_the_store_answers_while_the_lock_is_held(runs: Unsteady) -> None:
    life = RunLifeCycle(runs, RECORD, RunGate(), ManualClock(turns=1))
    await life.begin()
    runs.refused = 60
    await life.end(DONE)
    record = await runs.get(RECORD.run_id)
    assert record is not None
    assert (record.state, record.verdict) == (RunState.DONE, "clean")
    assert await runs.holder(lane_of(RECORD)) is None


async def test_the_end_is_recorded_even_if_its_success_cannot_be() -> None:
    store = MemoryStore(MemoryCell())
    await formatted(store)
    runs = Runs(store, ROOT)
    await runs.note_success(RunKind.BOOKIES, 1, 1)
    denied = f"{own_path('runs', ROOT)}/last-success/{RunKind.BOOKIES.value}"
    store.cell.deny(denied)
    life = RunLifeCycle(runs, replace(RECORD, started_ms=2), RunGate(), ManualClock(turns=1))
    await life.begin()
    await life.end(replace(DONE, also_done=(RunKind.PLACEMENT,)))
    record = await runs.get(RECORD.run_id)
    assert record is not None
    assert (record.state, record.verdict) == (RunState.DONE, "clean")
    store.cell.allow(denied)
    assert await runs.last_success_ms() == {RunKind.BOOKIES: 1, RunKind.PLACEMENT: 2}


async def test_a_request_to_cancel_a_run_is_deleted_at_its_end(runs: Unsteady) -> None:
    life = RunLifeCycle(runs, RECORD, RunGate(), ManualClock(turns=1))
    await life.begin()
    await runs.request_cancel(RECORD.run_id, "alice")
    await life.end(DONE)
    assert await runs.cancel_requested_by(RECORD.run_id) is None


async def test_a_pause_that_was_ended_early_does_not_end_again(runs: Unsteady) -> None:
    clock, gate = ManualClock(turns=1), RunGate()
    life = RunLifeCycle(runs, RECORD, gate, clock)
    await life.begin()
    await life.pause("alice", 5 * REPORT_INTERVAL_S)
    await life.resume("resumed by alice")
    pause_end_s = clock.now_s + 5 * REPORT_INTERVAL_S
    following = asyncio.create_task(life.follow())
    for _ in range(500):
        await asyncio.sleep(0)
    assert clock.now_s > pause_end_s
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    assert (life.record.state, life.record.detail) == (RunState.RUNNING, "resumed by alice")
    assert not gate.is_paused


async def test_a_run_can_be_cancelled_although_its_record_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    following = await _followed("records")
    following.life.note(ProgressEvent(Phase.SCAN, 1, 2))
    await following.some_turns()
    assert [record.levelname for record in caplog.records] == ["ERROR"], "it is logged once"
    await following.runs.request_cancel(RECORD.run_id, "alice")
    await following.end()
    assert following.life.gate.stopped == Stop("cancelled by alice", RunState.CANCELLED)


async def test_a_request_to_cancel_a_run_is_found_once_it_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    following = await _followed("requests")
    following.life.note(ProgressEvent(Phase.SCAN, 1, 2))
    await following.some_turns()
    assert [record.levelname for record in caplog.records] == ["ERROR"], "it is logged once"
    record = await following.runs.get(RECORD.run_id)
    assert record is not None
    assert (record.done, record.total) == (1, 2)
    following.allow()
    await following.end()
    assert following.life.gate.stopped == Stop("cancelled by alice", RunState.CANCELLED)


@dataclass
class _Followed:
    """A run with a node that the store refuses, and the task that follows it."""

    store: MemoryStore
    runs: Runs
    life: RunLifeCycle
    clock: ManualClock
    denied: str
    task: asyncio.Task[None]

    async def some_turns(self) -> None:
        end_s = self.clock.now_s + 5 * REPORT_INTERVAL_S
        for _ in range(500):
            await asyncio.sleep(0)
        assert self.clock.now_s > end_s
        assert not self.task.done()

    def allow(self) -> None:
        self.store.cell.allow(self.denied)

    async def end(self) -> None:
        async with asyncio.timeout(5):
            await self.task


async def _followed(part: str) -> _Followed:
    store = MemoryStore(MemoryCell())
    await formatted(store)
    runs, clock = Runs(store, ROOT), ManualClock(turns=1)
    life = RunLifeCycle(runs, RECORD, RunGate(), clock)
    await life.begin()
    if part == "requests":
        await runs.request_cancel(RECORD.run_id, "alice")
    denied = f"{own_path('runs', ROOT)}/{part}/{RECORD.run_id}"
    store.cell.deny(denied)
    return _Followed(store, runs, life, clock, denied, asyncio.create_task(life.follow()))


def test_the_record_of_a_replicas_check_counts_only_the_ledgers_that_it_checked() -> None:
    sampled = replace(world.REPLICAS, replicas=replace(world.ASKED, ledgers=18, sample=0.05))
    whole, some = (outcome_of(summary, Path("summary.json")) for summary in (world.REPLICAS, sampled))
    assert (whole.ledgers, whole.is_every_ledger) == (1284, True)
    assert (some.ledgers, some.is_every_ledger) == (18, False)
