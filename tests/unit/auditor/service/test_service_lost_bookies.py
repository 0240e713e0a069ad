"""From the loss of a bookie to its audit: delay, return, brake, and change of leader.

Whole services on virtual time.
"""

from __future__ import annotations

import asyncio

import pytest

from auditor.api.http.documents import status_document
from auditor.service.leader_term import HOUSEKEEPING_S
from auditor.service.watch.bookie_watch import CHECK_INTERVAL_S, SETTLE_SESSIONS
from auditor.service.watch.changing import REGISTRATION_CHANGE_S_MAX
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.layout import bookie_path, cookie_path, disable_path, lost_bookie_delay_path, tasks_path
from bookie.metadata.nodes import ensure_path, put
from bookie.metadata.port import Create, Delete
from bookie.metadata.runs.pulsar_leader import leader_path
from bookie.metadata.runs.records import RunLane, Runs
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.model.times import CLOCK_SKEW_MS_MAX
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import ROOT
from tests.worlds.service import BOOKIES, LONG_TIMES, SESSION_TIMEOUT_S, ServiceWorld, in_service_world
from tests.worlds.virtual_time import when

A, B, C, D, _ = BOOKIES
DAY_MS = 86_400_000


@in_service_world
async def test_without_a_delay_a_loss_is_audited_at_once(world: ServiceWorld) -> None:
    auditor = await world.leader(**LONG_TIMES)
    lost_s = world.clock.monotonic_s()
    await world.down(A)
    await when(lambda: bool(world.marked))
    assert world.marked_bookies == [{A}]
    assert world.marked[0].at_s - lost_s < world.check_s + 1
    assert auditor.runner.requests[0].cause is RunCause.BOOKIE_LOSS
    await asyncio.sleep(3600)
    assert world.marked_bookies == [{A}]
    assert [entry.audit_due_ms for entry in auditor.service.status().lost] == [0]
    assert [0 <= loss_s < world.check_s + 1 for loss_s in auditor.counted.losses_s] == [True]


@in_service_world
async def test_a_bookie_in_neither_list_while_it_registers_differently_is_not_lost(world: ServiceWorld) -> None:
    """Pulsar's driver deletes one registration before it creates the other one (R85)."""
    auditor = await world.leader()
    for _ in range(5):
        await world.down(A)
        await asyncio.sleep(REGISTRATION_CHANGE_S_MAX / 2)
        assert auditor.service.status().lost == ()
        await world.up(A)
        await asyncio.sleep(20)
    assert auditor.runner.requests == []
    assert auditor.service.status().lost == ()


@in_service_world
async def test_each_bookie_has_its_own_delay_and_its_return_ends_it(world: ServiceWorld) -> None:
    await world.set_delay(300)
    auditor = await world.leader(**LONG_TIMES)
    await world.down(A)
    start_s = world.clock.monotonic_s()
    await asyncio.sleep(100)
    await world.down(B)
    await asyncio.sleep(100)
    await world.up(A)
    await asyncio.sleep(150)
    assert world.marked == []
    await when(lambda: bool(world.marked))
    assert world.marked_bookies == [{B}]
    assert 400 <= world.marked[0].at_s - start_s < 403
    await asyncio.sleep(1000)
    assert world.marked_bookies == [{B}]
    assert len(auditor.runner.requests) == 1


@in_service_world
async def test_restarting_every_bookie_within_the_delay_starts_nothing(world: ServiceWorld) -> None:
    await world.set_delay(60)
    auditor = await world.leader()
    for bookie in BOOKIES:
        await world.down(bookie)
        await asyncio.sleep(50)
        await world.up(bookie)
        await asyncio.sleep(5)
    await asyncio.sleep(300)
    assert auditor.runner.requests == []
    assert auditor.service.status().lost == ()


@in_service_world
async def test_the_delay_continues_across_a_change_of_leader(world: ServiceWorld) -> None:
    await world.set_delay(300)
    first = await world.leader("a")
    second = await world.auditor("b")
    await world.down(A)
    start_s = world.clock.monotonic_s()
    await asyncio.sleep(150)
    await first.kill()
    await when(lambda: second.leads, SESSION_TIMEOUT_S)
    await when(lambda: bool(world.marked))
    assert world.marked_bookies == [{A}]
    assert 300 <= world.marked[0].at_s - start_s < 303


@in_service_world
async def test_a_return_cancels_the_delay_across_a_change_of_leader(world: ServiceWorld) -> None:
    await world.set_delay(300)
    first = await world.leader("a")
    second = await world.auditor("b")
    await world.down(A)
    await asyncio.sleep(150)
    await first.kill()
    await world.up(A)
    await asyncio.sleep(100)
    await world.down(A)
    again_s = world.clock.monotonic_s()
    await when(lambda: bool(world.marked))
    assert 300 <= world.marked[0].at_s - again_s < 303
    assert second.leads


@in_service_world
async def test_a_new_leader_repeats_no_audit_that_was_done(world: ServiceWorld) -> None:
    first = await world.leader("a")
    second = await world.auditor("b")
    await world.down(A)
    await when(lambda: bool(world.marked))
    await asyncio.sleep(5)
    await first.kill()
    await when(lambda: second.leads)
    await asyncio.sleep(600)
    assert second.runner.requests == []
    assert [(lost.bookie_id, lost.audit_due_ms) for lost in second.service.status().lost] == [(A, 0)]


@in_service_world
async def test_the_brake_holds_while_too_many_bookies_are_missing_and_ends_when_they_return(
    world: ServiceWorld,
) -> None:
    auditor = await world.leader()
    for bookie in BOOKIES:
        await world.down(bookie)
    await when(lambda: bool(auditor.service.status().held_because))
    await asyncio.sleep(1000)
    for bookie in BOOKIES:  # they return one by one, as after an outage
        await world.up(bookie)
        await asyncio.sleep(3)
    await asyncio.sleep(1000)
    assert world.marked == []
    assert auditor.service.status().held_because == ""


@in_service_world
async def test_bookies_still_missing_after_the_brake_are_audited(world: ServiceWorld) -> None:
    await world.set_delay(60)
    auditor = await world.leader()
    for bookie in (A, B, C):
        await world.down(bookie)
    await asyncio.sleep(200)
    assert "3 of 5" in auditor.service.status().held_because
    assert auditor.runner.requests == []
    assert world.marked == []
    await world.up(B)
    await when(lambda: bool(world.marked))
    assert world.marked_bookies == [{A, C}]


@pytest.mark.parametrize("is_paused", [False, True], ids=["running", "paused"])
@in_service_world
async def test_a_loss_does_not_wait_for_a_run_of_its_kind(world: ServiceWorld, is_paused: bool) -> None:
    """Neither a long run nor a paused and forgotten one delays the audit of a loss."""
    world.check_s = 5000
    auditor = await world.leader()
    other = await auditor.service.start_run(RunKind.BOOKIES, cause=RunCause.COMMAND, owner="me")
    await asyncio.sleep(50)
    if is_paused:
        await auditor.service.pause_run(other.run_id, owner="me", via="http")
    world.check_s = 1
    await world.down(A)
    await when(lambda: bool(world.marked), 30)
    assert world.marked_bookies == [{A}]
    ended = await auditor.service.run(other.run_id)
    assert ended.state is RunState.CANCELLED
    assert "loss of a bookie" in ended.detail


@pytest.mark.parametrize("is_paused", [False, True], ids=["running", "paused"])
@in_service_world
async def test_a_loss_is_audited_during_a_dry_run_of_its_kind(world: ServiceWorld, is_paused: bool) -> None:
    """A dry run marks nothing, so it does not hold the lock of the reaction and need not end."""
    world.check_s = 5000
    auditor = await world.leader()
    other = await auditor.service.start_run(RunKind.BOOKIES, cause=RunCause.COMMAND, owner="me", is_dry_run=True)
    await asyncio.sleep(50)
    if is_paused:
        await auditor.service.pause_run(other.run_id, owner="me", via="http")
    world.check_s = 1
    await world.down(A)
    await when(lambda: bool(world.marked), 30)
    assert world.marked_bookies == [{A}]
    assert not (await auditor.service.run(other.run_id)).state.is_final


@in_service_world
async def test_a_loss_is_audited_during_a_dry_run_of_another_process(world: ServiceWorld) -> None:
    """``bkheal audit shadow`` and ``bkheal audit run --dry-run`` are such runs."""
    await world.leader()
    runs = Runs(world.session(), ROOT)
    await runs.acquire(RunLane(RunKind.BOOKIES, is_dry_run=True), "r1", "shell/1")
    dry = RunRecord("r1", RunKind.BOOKIES, RunCause.COMMAND, "me", "shell/1", RunState.RUNNING, is_dry_run=True)
    await runs.write(dry)
    await world.down(A)
    await when(lambda: bool(world.marked), 30)
    assert await runs.cancel_requested_by("r1") is None
    await asyncio.sleep(2 * HOUSEKEEPING_S)
    assert await runs.get("r1") == dry, "its lock shows that it is still running"


@in_service_world
async def test_a_loss_requests_a_run_of_another_process_to_end(world: ServiceWorld) -> None:
    await world.leader()
    runs = Runs(world.session(), ROOT)
    lease = await runs.acquire(RunLane(RunKind.BOOKIES), "r1", "cron/1")
    await runs.write(RunRecord("r1", RunKind.BOOKIES, RunCause.COMMAND, "cron", "cron/1", RunState.RUNNING))
    await world.down(A)
    async with asyncio.timeout(60):
        while await runs.cancel_requested_by("r1") is None:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(1)
    assert world.marked == []
    await lease.release()
    await when(lambda: bool(world.marked), 30)


@in_service_world
async def test_a_second_loss_waits_for_the_audit_of_the_first(world: ServiceWorld) -> None:
    world.check_s = 100
    auditor = await world.leader()
    await world.down(A)
    await when(lambda: len(auditor.runner.requests) == 1)
    await asyncio.sleep(50)
    await world.down(B)
    await when(lambda: len(world.marked) == 1)
    assert [run.state for run in await auditor.service.runs()] == [RunState.DONE]


@in_service_world
async def test_a_loss_does_not_wait_for_the_paused_audit_of_another_loss(world: ServiceWorld) -> None:
    world.check_s = 5000
    auditor = await world.leader()
    await world.down(A)
    await when(lambda: len(auditor.runner.requests) == 1)
    reaction = auditor.runner.requests[0].run_id
    await auditor.service.pause_run(reaction, owner="me", via="http")
    world.check_s = 1
    await world.down(B)
    await when(lambda: bool(world.marked), 60)
    assert world.marked_bookies == [{A, B}]
    assert (await auditor.service.run(reaction)).state is RunState.CANCELLED


@in_service_world
async def test_a_loss_never_waits_for_a_run_of_another_kind(world: ServiceWorld) -> None:
    world.check_s = 5000
    auditor = await world.leader()
    slow = await auditor.service.start_run(RunKind.REPLICAS, cause=RunCause.COMMAND, owner="me")
    await asyncio.sleep(10)
    world.check_s = 1
    await world.down(A)
    await when(lambda: bool(world.marked), 30)
    assert (await auditor.service.run(slow.run_id)).state.value == "running"


@in_service_world
async def test_a_failed_audit_is_retried_later(world: ServiceWorld) -> None:
    world.failures = [RuntimeError("no luck"), RuntimeError("none again")]
    auditor = await world.leader()
    await world.down(A)
    await when(lambda: bool(world.marked))
    assert len(auditor.runner.requests) == 3
    starts = [request.run_id for request in auditor.runner.requests]
    assert starts == sorted(starts)
    assert world.marked_bookies == [{A}]


@in_service_world
async def test_while_recovery_is_disabled_a_loss_starts_no_audit(world: ServiceWorld) -> None:
    admin = world.session()
    await ensure_path(admin, disable_path(ROOT))
    auditor = await world.leader()
    await world.down(A)
    await asyncio.sleep(600)
    assert auditor.runner.requests == []
    assert not auditor.service.status().is_recovery_enabled
    await admin.delete(disable_path(ROOT))
    await when(lambda: bool(world.marked), 30)


@in_service_world
async def test_setting_the_same_delay_again_starts_an_immediate_audit(world: ServiceWorld) -> None:
    await world.set_delay(3600)
    auditor = await world.leader()
    await world.down(A)
    await asyncio.sleep(60)
    assert world.marked == []
    await world.set_delay(3600)
    await when(lambda: bool(world.marked), 30)
    assert world.marked_bookies == [{A}]
    await asyncio.sleep(30)
    await world.set_delay(3600)
    await when(lambda: len(auditor.runner.requests) == 2, 30)
    assert auditor.runner.requests[-1].cause is RunCause.COMMAND


@in_service_world
async def test_a_delay_that_cannot_be_read_is_no_request_for_an_audit(
    world: ServiceWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await world.set_delay(3600)
    await world.leader()
    await world.down(A)
    await asyncio.sleep(60)
    await put(world.session(), lost_bookie_delay_path(ROOT), b"soon", ROOT)
    await asyncio.sleep(60)
    await world.set_delay(3600)
    await asyncio.sleep(60)
    assert world.marked == []
    assert [record.message for record in caplog.records].count("the delay for lost bookies cannot be read") == 1
    await world.set_delay(3600)
    await when(lambda: bool(world.marked), 30)


@in_service_world
async def test_a_shorter_delay_counts_from_the_time_of_the_loss(world: ServiceWorld) -> None:
    await world.set_delay(3600)
    await world.leader()
    await world.down(A)
    start_s = world.clock.monotonic_s()
    await asyncio.sleep(60)
    await world.set_delay(100)
    await when(lambda: bool(world.marked))
    assert 100 <= world.marked[0].at_s - start_s < 103


@in_service_world
async def test_a_decommissioned_bookie_is_no_longer_lost(world: ServiceWorld) -> None:
    await world.set_delay(100)
    auditor = await world.leader()
    await world.down(A)
    await asyncio.sleep(10)
    admin = world.session()
    await admin.delete(cookie_path(ROOT, A))
    await FirstSeenDown(admin, ROOT).forget(A)
    await asyncio.sleep(CHECK_INTERVAL_S * 2)
    assert auditor.service.status().lost == ()
    await asyncio.sleep(300)
    assert auditor.runner.requests == []
    assert await FirstSeenDown(admin, ROOT).read() == {}


@pytest.mark.parametrize("delay_s", [0, 100])
@in_service_world
async def test_a_bookie_that_stops_after_its_cookie_was_deleted_is_audited_once(
    world: ServiceWorld, delay_s: int
) -> None:
    await world.set_delay(delay_s)
    auditor = await world.leader(**LONG_TIMES)
    await world.store.delete(cookie_path(ROOT, A))
    await asyncio.sleep(60)
    start_s = world.clock.monotonic_s()
    await world.down(A)
    await asyncio.sleep(REGISTRATION_CHANGE_S_MAX * 2)
    assert [lost.bookie_id for lost in auditor.service.status().lost] == [A]
    await when(lambda: bool(world.marked), delay_s + 60)
    assert delay_s <= world.marked[0].at_s - start_s < delay_s + 3
    await asyncio.sleep(3600)
    assert world.marked_bookies == [{A}]
    assert auditor.service.status().lost == ()
    assert len(auditor.counted.losses_s) == 1
    assert await FirstSeenDown(world.session(), ROOT).read() == {}


@in_service_world
async def test_a_bookie_whose_cookie_is_deleted_during_the_delay_is_audited_once_by_the_next_leader(
    world: ServiceWorld,
) -> None:
    await world.set_delay(100)
    first = await world.leader("a", **LONG_TIMES)
    follower = await world.auditor("b", **LONG_TIMES)
    start_s = world.clock.monotonic_s()
    await world.down(A)
    await asyncio.sleep(10)
    await world.store.delete(cookie_path(ROOT, A))
    await asyncio.sleep(CHECK_INTERVAL_S * 2)
    for auditor in (first, follower):
        assert [lost.bookie_id for lost in auditor.service.status().lost] == [A]
    await first.kill()
    await when(lambda: bool(world.marked))
    assert 100 <= world.marked[0].at_s - start_s < 103
    await asyncio.sleep(3600)
    assert world.marked_bookies == [{A}]
    assert follower.service.status().lost == ()


@in_service_world
async def test_bookies_without_a_cookie_do_not_keep_the_brake_on(world: ServiceWorld) -> None:
    auditor = await world.leader()
    for bookie in (A, B, C):
        await world.store.delete(cookie_path(ROOT, bookie))
    for bookie in (A, B, C):
        await world.down(bookie)
    await when(lambda: frozenset().union(*world.marked_bookies) == {A, B, C})
    assert auditor.service.status().held_because == ""


@in_service_world
async def test_without_any_cookie_the_brake_holds_if_no_bookie_is_registered(world: ServiceWorld) -> None:
    await world.set_delay(100)
    auditor = await world.leader()
    for bookie in BOOKIES:
        await world.store.delete(cookie_path(ROOT, bookie))
    for bookie in BOOKIES:
        await world.down(bookie)
    await asyncio.sleep(600)
    assert "none of 5 known bookies is registered" in auditor.service.status().held_because
    assert auditor.runner.requests == []


@in_service_world
async def test_after_an_outage_of_the_store_bookies_get_time_to_register_again(world: ServiceWorld) -> None:
    auditor = await world.leader()
    auditor.store.suspend()
    await asyncio.sleep(60)
    auditor.store.expire()
    for bookie in (A, B):
        await world.down(bookie)
    auditor.store.resume()
    await when(lambda: auditor.leads)
    await asyncio.sleep(SESSION_TIMEOUT_S)
    for bookie in (A, B):
        await world.up(bookie)
    await asyncio.sleep(300)
    assert auditor.runner.requests == []
    assert D not in {lost.bookie_id for lost in auditor.service.status().lost}


@in_service_world
async def test_an_outage_shorter_than_the_auditors_session_gives_bookies_time_to_register_again(
    world: ServiceWorld,
) -> None:
    auditor = await world.leader()
    auditor.store.suspend()
    await asyncio.sleep(SESSION_TIMEOUT_S * 0.6)
    await world.down(A)
    auditor.store.resume()
    await asyncio.sleep(SESSION_TIMEOUT_S)
    assert auditor.runner.requests == []
    await world.up(A)
    await asyncio.sleep(300)
    assert auditor.runner.requests == []
    await world.down(B)
    await when(lambda: bool(world.marked))


@in_service_world
async def test_a_very_short_disconnection_does_not_delay_the_audit(world: ServiceWorld) -> None:
    auditor = await world.leader()
    auditor.store.suspend()
    await asyncio.sleep(SESSION_TIMEOUT_S * 0.1)
    await world.down(A)
    auditor.store.resume()
    await when(lambda: bool(world.marked), SESSION_TIMEOUT_S)


@in_service_world
async def test_a_lost_bookie_that_was_back_without_a_leader_is_audited_again(world: ServiceWorld) -> None:
    first = await world.leader("a", **LONG_TIMES)
    await world.down(A)
    await when(lambda: bool(world.marked))
    await asyncio.sleep(5)
    await first.stop()
    await world.up(A)
    await asyncio.sleep(60)
    await world.down(A)
    second = await world.leader("b", **LONG_TIMES)
    await when(lambda: len(world.marked) == 2, 60)
    await asyncio.sleep(3600)
    assert world.marked_bookies == [{A}, {A}]
    assert second.counted.losses_s == []


@in_service_world
async def test_a_lost_bookie_that_was_back_while_the_leader_was_not_connected_is_audited_again(
    world: ServiceWorld,
) -> None:
    auditor = await world.leader(**LONG_TIMES)
    await world.down(A)
    await when(lambda: bool(world.marked))
    await asyncio.sleep(60)
    auditor.store.suspend()
    await world.up(A)
    await asyncio.sleep(SESSION_TIMEOUT_S * 0.1)
    await world.down(A)
    auditor.store.resume()
    await when(lambda: len(world.marked) == 2, 60)
    auditor.store.suspend()
    await asyncio.sleep(1)
    auditor.store.resume()
    await asyncio.sleep(3600)
    assert world.marked_bookies == [{A}, {A}]


@in_service_world
async def test_a_lost_bookie_that_was_back_between_two_observations_is_audited_again(world: ServiceWorld) -> None:
    auditor = await world.leader(**LONG_TIMES)
    await world.down(A)
    await when(lambda: bool(world.marked))
    await asyncio.sleep(60)
    path = bookie_path(ROOT, A, is_read_only=False)
    await world.store.multi([Create(path), Delete(path)])  # an observation sees only that something has changed
    await when(lambda: len(world.marked) == 2, 60)
    await world.down(B)
    await when(lambda: len(world.marked) == 3, 60)
    await world.up(B)
    await asyncio.sleep(3600)
    assert world.marked_bookies == [{A}, {A}, {A, B}]
    assert len(auditor.counted.losses_s) == 2


@in_service_world
async def test_a_loss_recorded_in_the_future_by_a_wrong_clock_waits_only_for_the_delay(world: ServiceWorld) -> None:
    await world.set_delay(300)
    await FirstSeenDown(world.session(), ROOT).reconcile(
        frozenset({A}), world.clock.epoch_ms() + 30 * 86_400_000, registered=set()
    )
    await world.down(A)
    await world.leader()
    start_s = world.clock.monotonic_s()
    await when(lambda: bool(world.marked))
    assert world.marked[0].at_s - start_s < 303


@pytest.mark.parametrize("jump_ms", [-30 * DAY_MS, -60_000, DAY_MS])
@in_service_world
async def test_a_clock_jump_after_an_outage_does_not_delay_a_loss(world: ServiceWorld, jump_ms: int) -> None:
    world.clock = clock = VirtualClock()
    auditor = await world.leader()
    auditor.store.suspend()
    await asyncio.sleep(SESSION_TIMEOUT_S * 0.6)
    await world.down(A)
    auditor.store.resume()
    resumed_s = clock.monotonic_s()
    await asyncio.sleep(1)
    clock.skew_ms += jump_ms
    await when(lambda: bool(world.marked), 3600)
    # The loss was recorded before the jump. A time as far in the future as clocks may differ is waited for.
    latest_s = CLOCK_SKEW_MS_MAX / 1000 + 5
    assert SETTLE_SESSIONS * SESSION_TIMEOUT_S <= world.marked[0].at_s - resumed_s < latest_s


@pytest.mark.parametrize("jump_ms", [-30 * DAY_MS, DAY_MS])
@in_service_world
async def test_a_clock_jump_after_a_failed_audit_does_not_delay_a_loss(world: ServiceWorld, jump_ms: int) -> None:
    world.clock = clock = VirtualClock()
    world.failures = [RuntimeError("no luck")]
    auditor = await world.leader()
    await world.down(A)
    await when(lambda: len(auditor.runner.requests) == 1)
    failed_s = clock.monotonic_s()
    await asyncio.sleep(1)
    clock.skew_ms += jump_ms
    await when(lambda: bool(world.marked), 3600)
    assert 25 < world.marked[0].at_s - failed_s < 60


@in_service_world
async def test_a_clock_that_jumps_back_during_a_delay_restarts_it_at_most(world: ServiceWorld) -> None:
    world.clock = clock = VirtualClock()
    await world.set_delay(300)
    await world.leader()
    await world.down(A)
    await asyncio.sleep(100)
    clock.skew_ms -= DAY_MS
    jumped_s = clock.monotonic_s()
    await when(lambda: bool(world.marked), 3600)
    assert 200 <= world.marked[0].at_s - jumped_s < 330


@in_service_world
async def test_while_pulsars_auditor_leads_ours_reports_it_as_leader_and_starts_nothing(world: ServiceWorld) -> None:
    """An auditor with Pulsar's driver has no vote node (R87)."""
    pulsars = world.session()
    await ensure_path(pulsars, tasks_path(ROOT))
    await pulsars.create(leader_path(ROOT), b'"pulsar-1:3181"', is_ephemeral=True)
    auditor = await world.auditor()
    await world.down(A)
    await when(lambda: auditor.service.status().leader == "pulsar-1:3181")
    await asyncio.sleep(600)
    status = auditor.service.status()
    assert (status.is_leader, status_document(status)["leader"]) == (False, "pulsar-1:3181")
    assert auditor.runner.requests == []
    await pulsars.close()
    await when(lambda: auditor.leads)
    await when(lambda: bool(auditor.runner.requests))
