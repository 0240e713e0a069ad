"""Runs of a service: busy, pause, cancel, loss of the session, schedules, end of the process. Virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from auditor.api.control import NotLeaderError, RunBusyError, RunEndedError, UnknownRunError, why_no_next_run
from auditor.metrics.service_metrics import consecutive_failures
from auditor.operating.client import RefusedError
from auditor.service.leader_term import HOUSEKEEPING_S
from auditor.service.runs.manager import RunManager, RunRequest
from auditor.service.service import AuditorService
from bookie.metadata.bookies.topology import TopologyStore
from bookie.metadata.own_state import own_path
from bookie.metadata.port import ANY_VERSION, StoreUnavailableError
from bookie.metadata.runs.election import Leadership
from bookie.metadata.runs.records import RunLane, Runs
from bookie.metadata.store.memory import MemoryCell, MemoryStore
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.model.run import PAUSE_S, RunCause, RunKind, RunRecord, RunState
from bookie.runtime.tasks import guarded
from spark_jobs.runs.gate import RunGate
from spark_jobs.runs.life_cycle import RunOutcome
from spark_jobs.runs.port import ProgressEvent, RunStoppedError
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import ROOT
from tests.worlds.service import BOOKIES, LONG_TIMES, SESSION_TIMEOUT_S, ServiceWorld, in_service_world
from tests.worlds.virtual_time import in_virtual_time, when


async def start(service: AuditorService, kind: RunKind = RunKind.BOOKIES) -> RunRecord:
    return await service.start_run(kind, cause=RunCause.HTTP, owner="me")


async def start_soon(service: AuditorService) -> RunRecord:
    """Start a run as soon as the previous one has released its lock."""
    while True:
        try:
            return await start(service)
        except RunBusyError:
            await asyncio.sleep(1)


async def ended(service: AuditorService, run_id: str) -> RunRecord:
    record = await service.run(run_id)
    while not record.state.is_final:
        record = await service.wait_changed(run_id, record)
    return record


@in_service_world
async def test_placement_is_judged_by_a_topology_in_the_store_or_a_file(world: ServiceWorld, tmp_path: Path) -> None:
    service = (await world.leader()).service
    topologies = TopologyStore(world.store, world.cluster)
    assert "without a topology" in await service.refusal_reason(RunKind.PLACEMENT)
    await topologies.write("{}")
    assert await service.refusal_reason(RunKind.PLACEMENT)
    await topologies.write('{"bk1": "/r1"}')
    assert not await service.refusal_reason(RunKind.PLACEMENT)
    await world.store.set(topologies.own_path, b"damaged", ANY_VERSION)
    assert not await service.refusal_reason(RunKind.PLACEMENT), "the run reports the damage"
    file = tmp_path / "topology.json"
    file.write_text("{}")
    other = (await world.auditor("b", topology_file=file)).service
    await when(lambda: other.status().is_store_connected)
    assert await other.refusal_reason(RunKind.PLACEMENT)


@in_service_world
async def test_a_placement_run_requested_without_a_topology_is_refused(world: ServiceWorld) -> None:
    auditor = await world.leader()
    with pytest.raises(RefusedError, match="without a topology"):
        await start(auditor.service, RunKind.PLACEMENT)
    assert not await auditor.service.runs()
    await auditor.service.start_run(RunKind.PLACEMENT, cause=RunCause.SCHEDULE, owner="a")
    other = await world.auditor("b")
    await when(lambda: other.service.status().is_store_connected)
    with pytest.raises(NotLeaderError):
        await start(other.service, RunKind.PLACEMENT)
    await TopologyStore(world.store, world.cluster).write('{"bk1": "/r1"}')
    with pytest.raises(RunBusyError):
        await start(auditor.service, RunKind.PLACEMENT)


@in_service_world
async def test_a_references_run_requested_without_managed_ledgers_is_refused(world: ServiceWorld) -> None:
    auditor = await world.leader()
    with pytest.raises(RefusedError, match="no managed ledgers"):
        await start(auditor.service, RunKind.REFERENCES)
    assert not await auditor.service.runs()
    await auditor.service.start_run(RunKind.REFERENCES, cause=RunCause.SCHEDULE, owner="a")


@in_service_world
async def test_references_can_be_compared_once_the_brokers_have_managed_ledgers(world: ServiceWorld) -> None:
    service = (await world.leader()).service
    assert "no managed ledgers" in await service.refusal_reason(RunKind.REFERENCES)
    await world.store.create("/managed-ledgers", b"")
    assert not await service.refusal_reason(RunKind.REFERENCES)
    assert not await service.refusal_reason(RunKind.BOOKIES)


@in_service_world
async def test_a_run_is_recorded_from_its_start_to_its_end(world: ServiceWorld) -> None:
    world.check_s = 20
    auditor = await world.leader()
    record = await start(auditor.service)
    stored = Runs(world.session(), ROOT)
    assert await stored.get(record.run_id) == record
    assert (record.state, record.cause, record.owner, record.process) == (
        RunState.RUNNING,
        RunCause.HTTP,
        "me",
        "a:1",
    )
    await asyncio.sleep(10)
    half_way = await stored.get(record.run_id)
    assert half_way is not None
    assert half_way.phase == "reading ledger metadata"
    assert 50 <= half_way.done <= 100
    assert half_way.total == 200
    assert half_way.eta_ms is not None
    assert abs(half_way.eta_ms - (record.started_ms + 20_000)) < 1_000
    final = await ended(auditor.service, record.run_id)
    assert (final.state, final.verdict, final.exit_code, final.ledgers) == (RunState.DONE, "clean", 0, 10)
    await when(lambda: not auditor.service.status().running)
    assert await stored.get(record.run_id) == final
    await when(lambda: RunKind.BOOKIES in auditor.service.status().last_success_ms)
    assert auditor.service.status().last_success_ms == {RunKind.BOOKIES: record.started_ms}
    assert auditor.service.status().last[RunKind.BOOKIES] == final
    assert auditor.counted.ended == [final]


@in_service_world
async def test_a_second_run_of_a_kind_is_refused_and_one_of_another_kind_is_not(world: ServiceWorld) -> None:
    auditor = await world.leader()
    first = await start(auditor.service)
    with pytest.raises(RunBusyError, match=first.run_id) as busy:
        await start(auditor.service)
    assert busy.value.run_id == first.run_id
    dry = await auditor.service.start_run(RunKind.BOOKIES, cause=RunCause.HTTP, owner="me", is_dry_run=True)
    with pytest.raises(RunBusyError, match=dry.run_id):
        await auditor.service.start_run(RunKind.BOOKIES, cause=RunCause.HTTP, owner="me", is_dry_run=True)
    await start(auditor.service, RunKind.REPLICAS)
    assert {record.kind for record in auditor.service.status().running} == {RunKind.BOOKIES, RunKind.REPLICAS}
    await ended(auditor.service, first.run_id)
    await when(lambda: not auditor.service.status().running)
    await start(auditor.service)


@in_service_world
async def test_two_starts_at_the_same_time_make_one_run(world: ServiceWorld) -> None:
    auditor = await world.leader()
    results = await asyncio.gather(start(auditor.service), start(auditor.service), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["RunBusyError", "RunRecord"]


@in_service_world
async def test_a_one_shot_run_of_another_process_makes_the_service_busy(world: ServiceWorld) -> None:
    auditor = await world.leader()
    lease = await Runs(world.session(), ROOT).acquire(RunLane(RunKind.BOOKIES), "one-shot", "cron:7")
    with pytest.raises(RunBusyError, match=r"one-shot in cron:7"):
        await start(auditor.service)
    await lease.release()
    await start(auditor.service)


@in_service_world
async def test_a_loss_during_a_one_shot_run_is_audited_after_it(world: ServiceWorld) -> None:
    auditor = await world.leader()
    lease = await Runs(world.session(), ROOT).acquire(RunLane(RunKind.BOOKIES), "one-shot", "cron:7")
    await world.down(BOOKIES[0])
    await asyncio.sleep(127)
    assert world.marked == []
    await lease.release()
    await when(lambda: bool(world.marked), 5)
    assert auditor.runner.requests[0].cause is RunCause.BOOKIE_LOSS


@in_service_world
async def test_a_follower_starts_nothing_and_names_the_leader(world: ServiceWorld) -> None:
    await world.leader("a")
    follower = await world.auditor("b")
    await when(lambda: follower.service.status().leader == "a:8080")
    with pytest.raises(NotLeaderError, match="a:8080"):
        await start(follower.service)


@in_service_world
async def test_a_follower_shows_runs_of_the_leader(world: ServiceWorld) -> None:
    leader = await world.leader("a")
    follower = await world.auditor("b", backlog_interval_s=1)
    await when(lambda: follower.service.status().is_store_connected)
    record = await start(leader.service)
    final = await ended(follower.service, record.run_id)
    assert final.state is RunState.DONE
    assert [found.run_id for found in await follower.service.runs()] == [record.run_id]
    with pytest.raises(UnknownRunError):
        await follower.service.run("20990101T000000Z-000000")


@in_service_world
async def test_a_paused_run_waits_and_continues(world: ServiceWorld) -> None:
    world.check_s = 10
    auditor = await world.leader()
    record = await start(auditor.service)
    await asyncio.sleep(3)
    assert (await auditor.service.pause_run(record.run_id, owner="me", via="http")).state is RunState.PAUSED
    await asyncio.sleep(500)
    paused = await auditor.service.run(record.run_id)
    assert paused.state is RunState.PAUSED
    assert await Runs(world.session(), ROOT).get(record.run_id) == paused
    assert (await auditor.service.resume_run(record.run_id, owner="me", via="http")).state is RunState.RUNNING
    final = await ended(auditor.service, record.run_id)
    assert final.state is RunState.DONE
    assert final.finished_ms - final.started_ms >= 500_000
    with pytest.raises(RunEndedError):
        await auditor.service.pause_run(record.run_id, owner="me", via="http")


@in_service_world
async def test_a_cancelled_run_ends_and_frees_its_kind(world: ServiceWorld) -> None:
    world.check_s = 1000
    auditor = await world.leader()
    record = await start(auditor.service)
    await asyncio.sleep(5)
    await auditor.service.pause_run(record.run_id, owner="me", via="http")
    await auditor.service.cancel_run(record.run_id, owner="you", via="http")
    final = await ended(auditor.service, record.run_id)
    assert (final.state, final.detail, final.exit_code) == (RunState.CANCELLED, "cancelled by you", 7)
    await when(lambda: not auditor.service.status().running)
    with pytest.raises(RunEndedError, match="cancelled"):
        await auditor.service.cancel_run(record.run_id, owner="you", via="http")
    assert auditor.service.status().last_success_ms == {}
    await start(auditor.service)


@in_service_world
async def test_a_run_follows_a_request_written_to_the_store(world: ServiceWorld) -> None:
    world.check_s = 1000
    auditor = await world.leader()
    record = await start(auditor.service)
    await Runs(world.session(), ROOT).request_cancel(record.run_id, "somebody else")
    final = await ended(auditor.service, record.run_id)
    assert (final.state, final.detail) == (RunState.CANCELLED, "cancelled by somebody else")


@in_service_world
async def test_a_failed_run_records_the_reason_and_the_service_continues(world: ServiceWorld) -> None:
    world.failures = [RuntimeError("executor lost")]
    auditor = await world.leader()
    final = await ended(auditor.service, (await start(auditor.service)).run_id)
    assert (final.state, final.detail, final.exit_code) == (RunState.FAILED, "RuntimeError: executor lost", 70)
    await when(lambda: not auditor.service.status().running)
    assert (await ended(auditor.service, (await start(auditor.service)).run_id)).state is RunState.DONE


@in_service_world
async def test_the_loss_of_the_session_ends_runs_before_they_publish(world: ServiceWorld) -> None:
    world.check_s = 60
    auditor = await world.leader()
    await world.down(BOOKIES[0])
    await when(lambda: bool(auditor.runner.requests))
    auditor.store.expire()
    assert not auditor.leads
    await asyncio.sleep(120)
    assert world.marked == []
    auditor.store.resume()
    await when(lambda: auditor.leads)
    runs = await auditor.service.runs()
    assert {record.state for record in runs if record.state.is_final} == {RunState.ABANDONED}
    await when(lambda: bool(world.marked))


@in_service_world
async def test_a_connection_lost_for_too_long_ends_the_leadership_before_the_session_expires(
    world: ServiceWorld,
) -> None:
    world.check_s = 60
    auditor = await world.leader()
    record = await start(auditor.service)
    auditor.store.suspend()
    await asyncio.sleep(SESSION_TIMEOUT_S * 0.5)
    assert auditor.service.status().is_leader
    await asyncio.sleep(SESSION_TIMEOUT_S * 0.3)
    assert not auditor.service.status().is_leader
    await asyncio.sleep(120)
    auditor.store.resume()
    await when(lambda: auditor.leads)
    assert (await ended(auditor.service, record.run_id)).state is RunState.ABANDONED
    assert (await ended(auditor.service, (await start_soon(auditor.service)).run_id)).state is RunState.DONE
    assert auditor.counted.leaderships == [True, False, True]


@in_service_world
async def test_runs_of_a_killed_leader_are_marked_abandoned_by_the_next(world: ServiceWorld) -> None:
    world.check_s = 10_000
    first = await world.leader("a")
    second = await world.auditor("b")
    record = await start(first.service)
    await first.kill()
    await when(lambda: second.leads)
    final = await ended(second.service, record.run_id)
    assert final.state is RunState.ABANDONED
    assert "a:1" in final.detail or "stopped" in final.detail


@in_service_world
async def test_a_schedule_continues_across_restarts_without_skipped_or_repeated_runs(world: ServiceWorld) -> None:
    first = await world.leader("a", bookies_schedule="1h", **LONG_TIMES)
    began_s = world.clock.monotonic_s()
    await when(lambda: len(first.counted.ended) == 1, 30)
    assert first.runner.requests[0].cause is RunCause.SCHEDULE
    await asyncio.sleep(1800)
    await first.stop()
    await asyncio.sleep(600)
    second = await world.leader("b", bookies_schedule="1h", **LONG_TIMES)
    await when(lambda: len(second.counted.ended) == 1, 3600)
    assert 3600 <= world.clock.monotonic_s() - began_s <= 3610
    await second.stop()
    await asyncio.sleep(20_000)
    third = await world.leader("c", bookies_schedule="1h", **LONG_TIMES)
    await when(lambda: len(third.counted.ended) == 1, 30)
    assert third.service.status().period_s == {RunKind.BOOKIES: 3600.0}


@in_service_world
async def test_a_schedule_follows_a_jump_of_the_clock(world: ServiceWorld, caplog: pytest.LogCaptureFixture) -> None:
    clock, auditor = world.clock, await world.leader(bookies_schedule="2h", **LONG_TIMES)
    assert isinstance(clock, VirtualClock)
    ended = auditor.counted.ended
    await when(lambda: len(ended) == 1, 30)
    for hours in (3, -30 * 24):
        await asyncio.sleep(600)
        assert len(ended) == 1
        ended.clear()
        clock.skew_ms += hours * 3_600_000
        await when(lambda: len(ended) == 1, 2 * HOUSEKEEPING_S)
    clock.skew_ms += 30_000
    await asyncio.sleep(6600)
    assert len(ended) == 1
    await when(lambda: len(ended) == 2, 1200)
    assert [record.message for record in caplog.records].count("the date has changed, runs are scheduled again") == 2


@in_service_world
async def test_a_pause_ends_by_itself_and_another_pause_extends_it(world: ServiceWorld) -> None:
    world.check_s = 100
    auditor = await world.leader(**LONG_TIMES)
    run = await start(auditor.service)
    paused = await auditor.service.pause_run(run.run_id, owner="me", via="http")
    assert paused.pause_ends_ms == world.clock.epoch_ms() + PAUSE_S * 1000
    assert (await Runs(world.session(), ROOT).get(run.run_id)) == paused
    await asyncio.sleep(PAUSE_S - 100)
    await auditor.service.pause_run(run.run_id, owner="me", via="http")
    await asyncio.sleep(PAUSE_S - 100)
    assert (await auditor.service.run(run.run_id)).state is RunState.PAUSED
    await asyncio.sleep(150)
    continuing = await auditor.service.run(run.run_id)
    assert (continuing.state, continuing.pause_ends_ms) == (RunState.RUNNING, 0)
    assert continuing.detail.startswith("continues automatically")
    await asyncio.sleep(150)
    assert (await auditor.service.run(run.run_id)).state is RunState.DONE


@in_service_world
async def test_the_length_of_a_pause_is_an_option(world: ServiceWorld) -> None:
    world.check_s = 100
    auditor = await world.leader(pause_s=60)
    run = await start(auditor.service)
    await auditor.service.pause_run(run.run_id, owner="me", via="http")
    await auditor.service.pause_kind(RunKind.REPLICAS, owner="me", via="http")
    await asyncio.sleep(50)
    assert (await auditor.service.run(run.run_id)).state is RunState.PAUSED
    await asyncio.sleep(15)
    assert (await auditor.service.run(run.run_id)).state is RunState.RUNNING
    await when(lambda: not auditor.service.status().paused_kinds, 20)


@in_service_world
async def test_a_schedule_that_is_due_during_another_run_fires_once_after_it(world: ServiceWorld) -> None:
    """The run is not skipped for a whole period, which is a week for a weekly check."""
    auditor = await world.leader(bookies_schedule="1h", **LONG_TIMES)
    await when(lambda: len(auditor.counted.ended) == 1, 30)
    await asyncio.sleep(3000)
    world.check_s = 1200
    await auditor.service.start_run(RunKind.BOOKIES, cause=RunCause.COMMAND, owner="me")
    await asyncio.sleep(5)
    world.check_s = 1
    await when(lambda: len(auditor.counted.ended) == 3, 1500)
    assert [run.cause for run in await auditor.service.runs()][:2] == [RunCause.SCHEDULE, RunCause.COMMAND]
    await asyncio.sleep(1500)
    assert len(auditor.counted.ended) == 3


@in_service_world
async def test_a_schedule_does_not_wait_for_a_dry_run(world: ServiceWorld) -> None:
    auditor = await world.leader(bookies_schedule="1h", **LONG_TIMES)
    await when(lambda: len(auditor.counted.ended) == 1, 30)
    world.check_s = 50_000
    await auditor.service.start_run(RunKind.BOOKIES, cause=RunCause.COMMAND, owner="me", is_dry_run=True)
    await asyncio.sleep(5)
    world.check_s = 1
    await when(lambda: len(auditor.counted.ended) == 2, 3700)
    assert auditor.counted.ended[1].cause is RunCause.SCHEDULE


@in_service_world
async def test_a_follower_has_the_schedules_without_their_times(world: ServiceWorld) -> None:
    leader = await world.leader("a", bookies_schedule=" 1h ", placement_schedule="17 2 * * 0")
    follower = await world.auditor("b", bookies_schedule="1h", placement_schedule="17 2 * * 0")
    await when(lambda: follower.service.status().leader != "", 30)
    own, others = leader.service.status(), follower.service.status()
    assert own.schedules == others.schedules == {RunKind.BOOKIES: "1h", RunKind.PLACEMENT: "17 2 * * 0"}
    assert why_no_next_run(others, RunKind.PLACEMENT) == "17 2 * * 0 on the leader, next time unknown here"
    assert why_no_next_run(others, RunKind.REPLICAS) == "not scheduled"


@in_service_world
async def test_a_paused_kind_is_not_scheduled_but_can_be_started(world: ServiceWorld) -> None:
    auditor = await world.leader(bookies_schedule="1h", **LONG_TIMES)
    await when(lambda: len(auditor.counted.ended) == 1, 30)
    await auditor.service.pause_kind(RunKind.BOOKIES, owner="me", via="http")
    for _ in range(3):  # each pause extends the previous one; two runs become due
        await asyncio.sleep(PAUSE_S - 100)
        pause = await auditor.service.pause_kind(RunKind.BOOKIES, owner="me", via="http")
        assert (pause.owner, pause.until_ms) == ("me", world.clock.epoch_ms() + PAUSE_S * 1000)
    await asyncio.sleep(1)
    assert len(auditor.counted.ended) == 1
    assert auditor.service.status().paused_kinds == {RunKind.BOOKIES: pause}
    await start(auditor.service)
    await when(lambda: len(auditor.counted.ended) == 2)
    await auditor.service.resume_kind(RunKind.BOOKIES, owner="me", via="http")
    await when(lambda: len(auditor.counted.ended) == 3, 20)
    assert auditor.counted.ended[2].cause is RunCause.SCHEDULE
    await asyncio.sleep(100)
    assert len(auditor.counted.ended) == 3, "only one run follows, although several became due"


@in_service_world
async def test_the_pause_of_a_kind_ends_by_itself_and_its_due_run_starts(world: ServiceWorld) -> None:
    auditor = await world.leader(bookies_schedule="2h", **LONG_TIMES)
    await when(lambda: len(auditor.counted.ended) == 1, 30)
    await asyncio.sleep(2 * 3600 - 100)
    await auditor.service.pause_kind(RunKind.BOOKIES, owner="me", via="http")
    await asyncio.sleep(PAUSE_S - 100)
    assert len(auditor.counted.ended) == 1
    await when(lambda: len(auditor.counted.ended) == 2, 200)
    assert auditor.service.status().paused_kinds == {}


@in_service_world
async def test_a_schedule_that_is_paused_while_its_due_run_waits_for_another_run_waits_for_both(
    world: ServiceWorld,
) -> None:
    auditor = await world.leader(bookies_schedule="1h", **LONG_TIMES)
    await when(lambda: len(auditor.counted.ended) == 1, 30)
    await asyncio.sleep(3000)
    world.check_s = 1200
    await auditor.service.start_run(RunKind.BOOKIES, cause=RunCause.COMMAND, owner="me")
    await asyncio.sleep(1000)  # the scheduled run is due
    world.check_s = 1
    await auditor.service.pause_kind(RunKind.BOOKIES, owner="me", via="http")
    await when(lambda: len(auditor.counted.ended) == 2, 300)
    await asyncio.sleep(300)
    assert len(auditor.counted.ended) == 2
    await auditor.service.resume_kind(RunKind.BOOKIES, owner="me", via="http")
    await when(lambda: len(auditor.counted.ended) == 3, 60)
    assert auditor.counted.ended[2].cause is RunCause.SCHEDULE


@in_service_world
async def test_a_failed_scheduled_run_is_not_repeated_while_its_schedule_is_paused(world: ServiceWorld) -> None:
    world.failures = [StoreUnavailableError("away")] * 9
    auditor = await world.leader(bookies_schedule="1h", **LONG_TIMES)
    await when(lambda: len(auditor.counted.ended) == 1, 30)
    await auditor.service.pause_kind(RunKind.BOOKIES, owner="me", via="http")
    await asyncio.sleep(1000)
    assert len(auditor.counted.ended) == 1
    await auditor.service.resume_kind(RunKind.BOOKIES, owner="me", via="http")
    await when(lambda: len(auditor.counted.ended) == 2, 60)


@in_service_world
async def test_a_run_of_everything_includes_its_checks_and_waits_for_their_pauses(world: ServiceWorld) -> None:
    auditor = await world.leader(bookies_schedule="off", everything_schedule="1h", **LONG_TIMES)
    await when(lambda: len(auditor.counted.ended) == 1, 30)
    status = auditor.service.status()
    assert status.last_success_ms.keys() == {RunKind.EVERYTHING, RunKind.BOOKIES, RunKind.PLACEMENT}
    assert set(status.last_success_ms.values()) == {auditor.counted.ended[0].started_ms}
    assert status.period_s == dict.fromkeys((RunKind.EVERYTHING, RunKind.BOOKIES, RunKind.PLACEMENT), 3600)
    await asyncio.sleep(3600 - 100)
    await auditor.service.pause_kind(RunKind.PLACEMENT, owner="me", via="http")
    await asyncio.sleep(200)
    assert len(auditor.counted.ended) == 1
    await auditor.service.resume_kind(RunKind.PLACEMENT, owner="me", via="http")
    await when(lambda: len(auditor.counted.ended) == 2, 60)


@in_service_world
async def test_a_loss_is_audited_during_a_run_of_everything(world: ServiceWorld) -> None:
    world.check_s = 300
    auditor = await world.leader(bookies_schedule="off")
    record = await auditor.service.start_run(RunKind.EVERYTHING, cause=RunCause.HTTP, owner="me")
    await world.down(BOOKIES[0])
    await when(lambda: any(run.kind is RunKind.BOOKIES for run in auditor.service.status().running), 120)
    await when(lambda: bool(world.marked), 400)
    ended = await auditor.service.run(record.run_id)
    assert ended.state in (RunState.RUNNING, RunState.DONE), "a reaction does not cancel a run over all ledgers"


@in_service_world
async def test_a_loss_is_audited_while_its_kind_is_paused(world: ServiceWorld) -> None:
    auditor = await world.leader(bookies_schedule="1h")
    await when(lambda: len(auditor.counted.ended) == 1, 30)
    await auditor.service.pause_kind(RunKind.BOOKIES, owner="me", via="http")
    await asyncio.sleep(10)
    await world.down(BOOKIES[0])
    await when(lambda: bool(world.marked), 30)
    assert RunKind.BOOKIES in auditor.service.status().paused_kinds


@in_service_world
async def test_the_store_may_be_unreachable_at_the_start(world: ServiceWorld) -> None:
    auditor = await world.auditor()
    auditor.connect_failures = [StoreUnavailableError("no answer")] * 30
    await asyncio.sleep(10)
    status = auditor.service.status()
    assert not status.is_store_connected
    assert not status.is_leader
    with pytest.raises(StoreUnavailableError, match="keeps trying"):
        await start(auditor.service)
    await when(lambda: auditor.leads)


@in_service_world
async def test_a_stopped_service_ends_its_runs_and_another_one_leads_at_once(world: ServiceWorld) -> None:
    world.check_s = 10_000
    first = await world.leader("a")
    second = await world.auditor("b")
    record = await start(first.service)
    await asyncio.sleep(5)
    await first.stop()
    assert first.task.exception() is None
    await when(lambda: second.leads, 1)
    final = await second.service.run(record.run_id)
    assert (final.state, final.detail) == (RunState.ABANDONED, "the auditor is stopping")
    assert await Runs(world.session(), ROOT).holder(RunLane(RunKind.BOOKIES)) is None


@pytest.mark.parametrize("fault", ["", "Spark has ended or hangs"], ids=["rollout", "hung Spark"])
@in_service_world
async def test_only_runs_that_end_because_of_a_fault_of_their_auditor_count_as_failed(
    world: ServiceWorld, fault: str
) -> None:
    world.check_s = 10_000
    for name in "ab":
        auditor = await world.leader(name)
        await start_soon(auditor.service)
        await asyncio.sleep(5)
        auditor.fault = fault
        await auditor.stop()
    last = await world.leader("c")
    await when(lambda: len(last.service.status().ended) == 2, 60)
    assert consecutive_failures(last.service.status().ended) == ({"bookies": 2} if fault else {})


@in_service_world
async def test_a_run_that_passes_no_gate_during_a_rollout_has_the_end_of_a_stopped_run(world: ServiceWorld) -> None:
    async def blocked(request: RunRequest, gate: RunGate, progress: Callable[[ProgressEvent], None]) -> RunOutcome:
        await world.clock.sleep(10_000)
        return RunOutcome(RunState.DONE, 0)

    auditor = await world.leader()
    auditor.runner.run = blocked  # type: ignore[method-assign]
    record = await start(auditor.service)
    await asyncio.sleep(5)
    await auditor.stop()
    runs = Runs(world.session(), ROOT)
    final = await runs.get(record.run_id)
    assert final is not None
    assert (final.state, final.detail, final.was_stopped) == (RunState.ABANDONED, "the auditor is stopping", True)
    assert await runs.holder(RunLane(RunKind.BOOKIES)) is None


@in_service_world
async def test_old_records_are_removed(world: ServiceWorld) -> None:
    auditor = await world.leader(runs_kept=2)
    for _ in range(5):
        await ended(auditor.service, (await start(auditor.service)).run_id)
        await when(lambda: not auditor.service.status().running)
    await asyncio.sleep(120)
    assert len(await auditor.service.runs()) == 2
    assert await Runs(world.session(), ROOT).kept(200) == 2, "runs outside the service keep as many"


@in_service_world
async def test_waiters_are_woken_when_the_run_ends(world: ServiceWorld) -> None:
    auditor = await world.leader()
    record = await start(auditor.service)
    waiting = guarded("waiting", ended(auditor.service, record.run_id))
    async with asyncio.timeout(10):
        assert (await waiting).state is RunState.DONE


class ElectionView:
    """An election that can be lost without a notification."""

    def __init__(self) -> None:
        self.state = Leadership(True, 1, "a")

    def is_leader(self, term: int | None = None) -> bool:
        return self.state.is_leader and term in (None, self.state.term)


class Standing:
    """A check with an hour of work whose gate is called only by the test."""

    def __init__(self) -> None:
        self.gate: RunGate | None = None

    async def run(self, request: RunRequest, gate: RunGate, progress: Callable[[ProgressEvent], None]) -> RunOutcome:
        self.gate = gate
        await asyncio.sleep(3600)
        return RunOutcome(RunState.DONE, 0, "", "clean", is_success=True)


async def standing() -> tuple[MemoryStore, ElectionView, RunGate, RunManager]:
    store, leads, check = MemoryStore(MemoryCell()), ElectionView(), Standing()
    runs = Runs(store, ROOT)
    manager = RunManager(runs, leads, check, process="a:1", clock=VirtualClock(), rng=random.Random(1))
    await manager.start(RunKind.BOOKIES, cause=RunCause.HTTP, owner="me", options={})
    await asyncio.sleep(1)
    assert check.gate is not None
    check.gate.pass_through()
    return store, leads, check.gate, manager


@in_virtual_time
async def test_the_gate_detects_that_the_term_is_over() -> None:
    _, leads, gate, _ = await standing()
    leads.state = Leadership(True, 2, "a")  # lost and won again while this run was paused
    with pytest.raises(RunStoppedError, match="no longer the leader"):
        gate.pass_through()


@in_virtual_time
async def test_the_gate_detects_that_the_session_is_over() -> None:
    store, _, gate, _ = await standing()
    store.expire()
    with pytest.raises(RunStoppedError, match="session"):
        gate.pass_through()


@in_virtual_time
async def test_a_run_that_was_marked_abandoned_stops() -> None:
    store, _, gate, manager = await standing()
    (record,) = manager.running
    await store.delete(f"{own_path('runs', ROOT)}/locks/bookies")
    await Runs(store, ROOT).abandon_orphans(1)
    await manager.pause(record.run_id, "me", "http")
    with pytest.raises(RunStoppedError, match="changed by another process"):
        gate.pass_through()


@in_service_world
async def test_requests_of_operators_are_recorded_from_every_interface(world: ServiceWorld) -> None:
    world.check_s = 60
    service = (await world.leader()).service
    run = await service.start_run(
        RunKind.REPLICAS, cause=RunCause.GRPC, owner="ann", is_dry_run=True, options={"sample": 0.5}
    )
    with pytest.raises(RunBusyError):
        await service.start_run(RunKind.REPLICAS, cause=RunCause.HTTP, owner="ben", is_dry_run=True)
    await service.pause_run(run.run_id, owner="ben", via="http")
    await service.resume_run(run.run_id, owner="ben", via="spark ui")
    await service.cancel_run(run.run_id, owner="ann", via="grpc")
    await service.pause_kind(RunKind.REPLICAS, owner="ann", via="grpc")
    await service.resume_kind(RunKind.REPLICAS, owner="ann", via="grpc")
    await service.resume_kind(RunKind.REPLICAS, owner="ann", via="grpc")  # it is no longer paused
    await service.start_run(RunKind.BOOKIES, cause=RunCause.SCHEDULE, owner="a/1")
    newest = await ChangeRecords(world.session(), ROOT, world.clock).newest(10)
    assert [(each.by, each.via, each.action) for each in reversed(newest)] == [
        ("ann", "grpc", "run start"),
        ("ben", "http", "run pause"),
        ("ben", "spark ui", "run resume"),
        ("ann", "grpc", "run cancel"),
        ("ann", "grpc", "schedule pause"),
        ("ann", "grpc", "schedule resume"),
    ]
    assert newest[-1].detail == f"{run.run_id} replicas dry run sample=0.5"


@in_virtual_time
async def test_a_run_that_cannot_be_recorded_does_not_begin() -> None:
    store = MemoryStore(MemoryCell())

    async def no_answer(owner: str, via: str, action: str, detail: str) -> None:
        raise StoreUnavailableError("no answer")

    manager = RunManager(
        Runs(store, ROOT),
        ElectionView(),
        Standing(),
        process="a:1",
        clock=VirtualClock(),
        rng=random.Random(1),
        note=no_answer,
    )
    with pytest.raises(StoreUnavailableError):
        await manager.start(RunKind.BOOKIES, cause=RunCause.HTTP, owner="me", options={})
    assert await Runs(store, ROOT).list(10, now_ms=0) == []
    await manager.start(RunKind.BOOKIES, cause=RunCause.BOOKIE_LOSS, owner="bk1", options={})
