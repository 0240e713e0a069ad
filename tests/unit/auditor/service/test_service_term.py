"""A leader continues its work after any error in its housekeeping. Virtual time."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from auditor.api.control import Backlog, NotLeaderError
from auditor.metrics.service_metrics import consecutive_failures
from auditor.service.runs.spark_runner import UnknownOptionError
from auditor.service.service import RELEASE_DELAY_S, StoreConnection
from auditor.service.watch.backlog import BacklogCounter
from auditor.service.watch.overview import RUNS_READ, RUNS_READ_OF_KIND, Overview, RunHistory
from bookie.metadata.own_state import own_path
from bookie.metadata.port import ANY_VERSION, StoreUnavailableError
from bookie.metadata.runs.records import Runs
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.runtime.tasks import cancel, guarded
from tests.worlds.cluster import ROOT
from tests.worlds.service import LONG_TIMES, ServiceWorld, in_service_world
from tests.worlds.virtual_time import in_virtual_time, when


@in_service_world
async def test_a_record_that_cannot_be_removed_does_not_prevent_the_schedule(world: ServiceWorld) -> None:
    runs = Runs(world.session(), ROOT)
    old = RunRecord("20200101T000000Z-000000", RunKind.BOOKIES, RunCause.HTTP, "me", "x:1", RunState.DONE)
    for record in (old, replace(old, run_id="20200102T000000Z-000000")):
        await runs.write(record)
    stranger = f"{own_path('runs', ROOT)}/records/{old.run_id}/note"
    await world.session().create(stranger)
    auditor = await world.leader(bookies_schedule="1h", runs_kept=1, **LONG_TIMES)
    await asyncio.sleep(2 * 3600)
    assert auditor.runner.requests
    assert await runs.get("20200102T000000Z-000000") is None, "the others are still removed"


@in_service_world
async def test_a_leader_creates_missing_nodes_for_apaches_tools_and_audits_if_the_delay_is_set_again(
    world: ServiceWorld,
) -> None:
    base, root = f"{ROOT}/underreplication", world.store
    for name in ("LAYOUT", "ledgers", "locks"):
        await root.delete(f"{base}/{name}")
    auditor = await world.leader()
    await asyncio.sleep(10)
    assert {"LAYOUT", "ledgers", "locks"} < set((await root.children(base)).names)
    node = await root.get(f"{base}/lostBookieRecoveryDelay")
    assert (node.data, node.stat.version) == (b"0", 0)
    assert not auditor.runner.requests, "a new node requests no audit"
    await world.set_delay(0)
    await when(lambda: bool(auditor.runner.requests))


@in_service_world
async def test_a_leader_keeps_the_delay_that_was_set(world: ServiceWorld) -> None:
    await world.set_delay(600)
    node = await world.store.get(f"{ROOT}/underreplication/lostBookieRecoveryDelay")
    await world.leader()
    await asyncio.sleep(10)
    assert await world.store.get(f"{ROOT}/underreplication/lostBookieRecoveryDelay") == node


@in_service_world
async def test_a_leader_with_an_unknown_layout_of_tasks_keeps_its_schedule(world: ServiceWorld) -> None:
    await world.store.set(f"{ROOT}/underreplication/LAYOUT", b"newer", ANY_VERSION)
    auditor = await world.leader(bookies_schedule="1h", **LONG_TIMES)
    await asyncio.sleep(2 * 3600)
    assert auditor.runner.requests


class SlowCounter(BacklogCounter):
    """A backlog so long that counting it takes a while."""

    def __init__(self, world: ServiceWorld, seconds: float) -> None:
        self.world = world
        self.seconds = seconds
        self.began_s: list[float] = []

    async def count(self) -> Backlog:
        self.began_s.append(self.world.clock.monotonic_s())
        await self.world.clock.sleep(self.seconds)
        return Backlog(1)


@in_virtual_time
async def test_counting_a_huge_backlog_leaves_most_of_the_time_to_other_work() -> None:
    world = await ServiceWorld.create()
    counter = SlowCounter(world, 30)
    overview = Overview(Runs(world.session(), ROOT), counter, world.clock, is_leader=lambda: True, interval_s=15)
    running = guarded("overview", overview.run())
    await asyncio.sleep(4000)
    await cancel(running)
    assert 33 <= len(counter.began_s) <= 34
    counter = SlowCounter(world, 0.1)
    overview = Overview(Runs(world.session(), ROOT), counter, world.clock, is_leader=lambda: True, interval_s=15)
    running = guarded("overview", overview.run())
    await asyncio.sleep(150)
    await cancel(running)
    assert len(counter.began_s) == 10


class FailingCounter(BacklogCounter):
    """A counter whose first counts fail with these errors; later ones succeed."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def count(self) -> Backlog:
        if self.errors:
            raise self.errors.pop(0)
        return Backlog(1)


@in_virtual_time
async def test_the_backlog_is_counted_again_after_a_shortage_of_descriptors() -> None:
    world = await ServiceWorld.create()
    counter = FailingCounter(OSError(errno.EMFILE, "Too many open files"))
    overview = Overview(Runs(world.session(), ROOT), counter, world.clock, is_leader=lambda: True, interval_s=15)
    running = guarded("overview", overview.run())
    await when(lambda: overview.backlog == Backlog(1), 20)
    await cancel(running)


@in_virtual_time
async def test_a_new_reason_why_the_backlog_is_not_counted_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    world = await ServiceWorld.create()
    counter = FailingCounter(*(StoreUnavailableError(reason) for reason in ("refused", "refused", "no answer")))
    overview = Overview(Runs(world.session(), ROOT), counter, world.clock, is_leader=lambda: True, interval_s=15)
    running = guarded("overview", overview.run())
    await when(lambda: overview.backlog == Backlog(1), 60)
    await cancel(running)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [vars(record)["reason"] for record in warnings] == ["refused", "no answer"]


@in_virtual_time
async def test_runs_are_shown_in_time_while_a_huge_backlog_is_counted() -> None:
    world = await ServiceWorld.create()
    runs = Runs(world.session(), ROOT)
    overview = Overview(runs, SlowCounter(world, 300), world.clock, is_leader=lambda: True, interval_s=15)
    running = guarded("overview", overview.run())
    await asyncio.sleep(1)
    await runs.write(RunRecord("20200101T000000Z-000000", RunKind.BOOKIES, RunCause.HTTP, "me", "x:1", RunState.DONE))
    await when(lambda: bool(overview.history.last), 20)
    await cancel(running)


class Records:
    """Write the records of runs that began one second apart."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._written = 0

    async def write(self, kind: RunKind, state: RunState = RunState.DONE, **fields: Any) -> str:
        self._written += 1
        run_id = f"20200101T{self._written // 60:04}{self._written % 60:02}Z-000000"
        await self._runs.write(RunRecord(run_id, kind, RunCause.SCHEDULE, "me", "x:1", state, **fields))
        return run_id


async def seen_by(overview: Overview, run_id: str) -> RunHistory:
    """Return the history of an overview after it has seen a run; the overview ends here."""
    running = guarded("overview", overview.run())
    overview.request_observation()
    await when(lambda: run_id in {record.run_id for record in overview.history.ended}, 20)
    await cancel(running)
    return overview.history


def found(history: RunHistory) -> dict[str, list[Mapping[str, int]]]:
    return {kind.value: [record.findings for record in records] for kind, records in history.results.items()}


@in_virtual_time
async def test_findings_are_kept_until_another_complete_run() -> None:
    world = await ServiceWorld.create()
    runs = Runs(world.session(), ROOT)
    records, counter = Records(runs), SlowCounter(world, 1)
    overview = Overview(runs, counter, world.clock, is_leader=lambda: True, interval_s=15)

    await records.write(RunKind.REPLICAS, findings={"lost": 7})
    for state in (RunState.ABANDONED, RunState.FAILED, RunState.CANCELLED):
        last = await records.write(RunKind.REPLICAS, state)
    newest = await records.write(RunKind.REPLICAS, is_dry_run=True)
    history = await seen_by(overview, newest)
    assert found(history) == {"replicas": [{"lost": 7}]}
    assert history.last[RunKind.REPLICAS].run_id == last

    for fields in ({"is_every_ledger": False}, {"exit_code": 5, "findings": {"lost": 8}}):
        newest = await records.write(RunKind.REPLICAS, **fields)
    assert found(await seen_by(overview, newest)) == {"replicas": [{"lost": 8}, {"lost": 7}]}

    assert found(await seen_by(overview, await records.write(RunKind.REPLICAS))) == {"replicas": [{}]}


@in_virtual_time
async def test_short_runs_do_not_replace_the_results_of_the_last_complete_one() -> None:
    world = await ServiceWorld.create()
    runs = Runs(world.session(), ROOT)
    records, counter = Records(runs), SlowCounter(world, 1)
    overview = Overview(runs, counter, world.clock, is_leader=lambda: True, interval_s=15)
    dry = await records.write(RunKind.BOOKIES, is_dry_run=True)
    sample = await records.write(RunKind.REPLICAS, is_every_ledger=False)
    history = await seen_by(overview, sample)
    assert (history.last, history.last_complete) == ({}, {}), f"{dry} and {sample} do not count as a success"

    complete = await records.write(RunKind.REPLICAS)
    for state in (RunState.ABANDONED, RunState.CANCELLED, RunState.FAILED):
        failed = await records.write(RunKind.REPLICAS, state)
    await records.write(RunKind.REPLICAS, is_dry_run=True)
    newest = await records.write(RunKind.REPLICAS, is_every_ledger=False)
    history = await seen_by(overview, newest)
    assert history.last[RunKind.REPLICAS].run_id == failed
    assert history.last_complete[RunKind.REPLICAS].run_id == complete
    for _ in range(RUNS_READ):
        newest = await records.write(RunKind.BOOKIES)
    assert (await seen_by(overview, newest)).last_complete[RunKind.REPLICAS].run_id == complete


@in_virtual_time
async def test_a_check_within_a_run_of_everything_has_the_results_of_a_separate_run() -> None:
    world = await ServiceWorld.create()
    runs = Runs(world.session(), ROOT)
    records, counter = Records(runs), SlowCounter(world, 1)
    first, later = (Overview(runs, counter, world.clock, is_leader=lambda: True, interval_s=15) for _ in range(2))
    await records.write(RunKind.PLACEMENT, findings={"misplaced": 9})
    newest = await records.write(
        RunKind.EVERYTHING, findings={"misplaced": 5, "critical": 2}, held_back={"limit": 7}, exit_code=0
    )
    history = await seen_by(first, newest)
    assert found(history) == {
        "placement": [{"misplaced": 5}],
        "everything": [{"misplaced": 5, "critical": 2}],
        "bookies": [{"critical": 2}],
    }
    assert [record.held_back for record in history.results[RunKind.BOOKIES]] == [{"limit": 7}]
    assert [record.held_back for record in history.results[RunKind.PLACEMENT]] == [{}]

    partial: dict[str, Any] = {"exit_code": ExitCode.PARTIAL, "verdict": "incomplete"}
    newest = await records.write(RunKind.EVERYTHING, contained_done=(RunKind.BOOKIES,), **partial)
    assert found(await seen_by(first, newest)) == {
        "placement": [{}, {"misplaced": 5}],
        "everything": [{}, {"misplaced": 5, "critical": 2}],
        "bookies": [{}],
    }, "an incomplete check does not clear earlier findings"

    newest = await records.write(RunKind.EVERYTHING, contained_done=(RunKind.PLACEMENT,), **partial)
    assert found(await seen_by(first, newest))["placement"] == [{}]
    await runs.prune(0, world.clock.epoch_ms())
    assert found(await seen_by(later, newest))["placement"] == [{}], "the record of the complete check is kept"


@in_virtual_time
async def test_a_run_with_a_clock_in_the_future_is_not_the_last_of_its_kind() -> None:
    world = await ServiceWorld.create()
    runs = Runs(world.session(), ROOT)
    records, counter = Records(runs), SlowCounter(world, 1)
    overview = Overview(runs, counter, world.clock, is_leader=lambda: True, interval_s=15)
    ahead = RunRecord("20990101T000000Z-000000", RunKind.BOOKIES, RunCause.SCHEDULE, "me", "x:1", RunState.DONE)
    await runs.write(ahead)
    newest = await records.write(RunKind.BOOKIES, findings={"lost": 7})
    history = await seen_by(overview, newest)
    assert history.last[RunKind.BOOKIES].run_id == newest
    assert found(history) == {"bookies": [{"lost": 7}]}
    assert await runs.prune(1, world.clock.epoch_ms()) == 1
    assert await runs.get(ahead.run_id) is None
    assert await runs.get(newest) is not None


@in_virtual_time
async def test_findings_of_a_rare_kind_are_kept_while_another_kind_runs_often() -> None:
    world = await ServiceWorld.create()
    runs = Runs(world.session(), ROOT)
    records, counter = Records(runs), SlowCounter(world, 1)
    leader, new_leader = (Overview(runs, counter, world.clock, is_leader=lambda: True, interval_s=15) for _ in range(2))
    lost = await records.write(RunKind.REPLICAS, findings={"lost": 7})
    await seen_by(leader, lost)
    for _ in range(3):
        for _ in range(RUNS_READ // 2):
            newest = await records.write(RunKind.BOOKIES)
        await seen_by(leader, newest)
    for overview in (leader, new_leader):
        history = await seen_by(overview, newest)
        assert found(history) == {"replicas": [{"lost": 7}], "bookies": [{}]}
        assert history.last[RunKind.REPLICAS].run_id == lost
        assert len(history.ended) == RUNS_READ + 1


@in_virtual_time
async def test_failures_of_a_rare_kind_are_counted_while_another_kind_runs_often() -> None:
    world = await ServiceWorld.create()
    runs = Runs(world.session(), ROOT)
    records, counter = Records(runs), SlowCounter(world, 1)
    leader, new_leader = (Overview(runs, counter, world.clock, is_leader=lambda: True, interval_s=15) for _ in range(2))
    weeks = RUNS_READ_OF_KIND + 2
    for week in range(1, weeks + 1):
        await seen_by(leader, await records.write(RunKind.REPLICAS, exit_code=ExitCode.PARTIAL, verdict="incomplete"))
        for _ in range(2):  # 168 runs, one per hour
            for _ in range(84):
                newest = await records.write(RunKind.BOOKIES)
            history = await seen_by(leader, newest)
        assert consecutive_failures(history.ended) == {"replicas": min(week, RUNS_READ_OF_KIND)}
    history = await seen_by(new_leader, newest)
    assert consecutive_failures(history.ended) == {"replicas": RUNS_READ_OF_KIND}
    assert len(history.ended) == RUNS_READ + RUNS_READ_OF_KIND
    newest = await records.write(RunKind.REPLICAS)
    assert consecutive_failures((await seen_by(new_leader, newest)).ended) == {}


@in_service_world
async def test_no_run_begins_while_the_service_stops(world: ServiceWorld) -> None:
    world.check_s = 60
    auditor = await world.leader()
    await auditor.service.start_run(RunKind.REPLICAS, cause=RunCause.HTTP, owner="me")
    auditor.stopping.set()
    await asyncio.sleep(0.05)
    assert auditor.service.status().running, "the service waits for the run to end"
    with pytest.raises(NotLeaderError):
        await auditor.service.start_run(RunKind.BOOKIES, cause=RunCause.HTTP, owner="me")
    await auditor.stop()
    records = await Runs(world.session(), ROOT).list(9, now_ms=0)
    assert [(record.kind, record.state) for record in records] == [(RunKind.REPLICAS, RunState.ABANDONED)]


@in_service_world
async def test_a_failed_scheduled_run_is_retried_long_before_the_next_one(world: ServiceWorld) -> None:
    world.failures = [StoreUnavailableError("away"), RuntimeError("Java gateway process exited")]
    auditor = await world.leader(bookies_schedule="6h", misfire_grace_s=3600, **LONG_TIMES)
    await asyncio.sleep(1800)
    assert [record.state for record in auditor.counted.ended] == [RunState.FAILED, RunState.FAILED, RunState.DONE]
    await asyncio.sleep(3 * 3600)
    assert len(auditor.counted.ended) == 3
    world.failures = [StoreUnavailableError("away")] * 1000
    await asyncio.sleep(4 * 3600 + 1800)
    assert len(auditor.counted.ended) == 3 + 6, "the attempts become less frequent, and end with the grace time"


@in_service_world
async def test_a_scheduled_run_with_a_configuration_error_is_not_retried_before_it_is_due(
    world: ServiceWorld,
) -> None:
    world.failures = [UnknownOptionError("no such option")] * 9
    auditor = await world.leader(bookies_schedule="24h", misfire_grace_s=3600, **LONG_TIMES)
    await asyncio.sleep(3600)
    assert [record.exit_code for record in auditor.counted.ended] == [78]


@in_virtual_time
async def test_stopping_does_not_wait_for_an_unresponsive_store() -> None:
    world = await ServiceWorld.create()
    auditor = await world.auditor()
    await auditor.stop()
    ended: list[str] = []

    async def silent() -> StoreConnection:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("connecting")
        raise AssertionError

    stop = asyncio.Event()
    serving = guarded("serving", auditor.service.serve(silent, stop))
    await asyncio.sleep(60)
    assert not serving.done()
    stop.set()
    async with asyncio.timeout(0.1):
        await serving
    assert ended == ["connecting"]


@in_service_world
async def test_a_former_leader_releases_its_executors_and_starts_spark_again_when_it_leads(
    world: ServiceWorld,
) -> None:
    auditor = await world.leader()
    await when(lambda: auditor.spark == ["started"])
    auditor.store.expire()
    await asyncio.sleep(RELEASE_DELAY_S + 1)
    assert auditor.spark == ["started", "stopped"]
    auditor.store.resume()
    await when(lambda: auditor.spark == ["started", "stopped", "started"], 60)
    auditor.store.expire()
    auditor.store.resume()
    await when(lambda: len(auditor.spark) == 4, 60)
    await asyncio.sleep(2 * RELEASE_DELAY_S)
    assert auditor.leads
    assert auditor.spark == ["started", "stopped", "started", "started"], "a short outage stops no session"
