"""Processes that the store's ACLs refuse: each logs it, retries less and less often, and continues when permitted."""

from __future__ import annotations

import asyncio

import pytest

from auditor.metrics import definitions as auditor_names
from auditor.metrics.service_metrics import state_values
from bookie.metadata.layout import available_path, cookie_path, task_path
from bookie.metadata.nodes import ensure_path, parent_of, put
from bookie.metadata.own_state import own_path
from bookie.metadata.port import AccessDeniedError
from bookie.metadata.runs.election import election_path
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.retry import GrowingPause
from replicator.telemetry.events import Ending
from replicator.worker import RunEnd
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import a_world
from tests.worlds.service import ServiceWorld
from tests.worlds.virtual_time import in_virtual_time, until, when

HOUR_S = 3600.0
LINES_MAX = 70
"""In an hour: one per minute, and a few more at the beginning."""


def lines_with(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def no_traceback(caplog: pytest.LogCaptureFixture) -> bool:
    return not any(record.exc_info for record in caplog.records)


def test_a_growing_pause_doubles_up_to_its_limit_and_can_be_reset() -> None:
    pause = GrowingPause(1.0, 5.0)
    assert [pause.next_pause_s() for _ in range(5)] == [1, 2, 4, 5, 5]
    pause.reset()
    assert pause.next_pause_s() == 1


@in_virtual_time
async def test_a_worker_without_access_to_the_list_of_bookies_waits_and_repairs_once_it_has_access(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("c")
        world.cell.deny(available_path(world.cluster.root, is_read_only=False))
        running = world.worker(once=False).start()
        await asyncio.sleep(HOUR_S)
        assert running.run is not None
        assert not running.run.done()
        refused = lines_with(caplog, "store refused")
        assert 2 <= refused <= 2 * LINES_MAX  # for the tasks and for the watch of bookies
        assert no_traceback(caplog)
        assert "the tasks: " in running.worker.problem
        assert "the list of bookies: " in running.worker.problem
        world.cell.allow(available_path(world.cluster.root, is_read_only=False))

        async def is_clean() -> bool:
            return await world.is_clean()

        await until(is_clean)
        assert running.worker.problem == ""
        assert await running.stop() is RunEnd.STOPPED
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_a_stopping_worker_without_access_to_the_list_of_bookies_does_not_retry_all_the_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=99), 100)
        await world.lose("c")
        world.bookies.transport.faults(
            BookieId("t")
        ).delay_s = 60.0  # a copy continues until the end of the grace period
        running = world.worker(once=False, grace_s=20.0)

        async def wait(operation: str, path: str) -> None:
            await asyncio.sleep(0.01)

        running.store.fault_hook = wait
        async with world.running(running):
            await when(lambda: running.worker.load().ledgers_in_flight == 1)
            await world.register("b", is_read_only=True)
            world.cell.deny(available_path(world.cluster.root, is_read_only=False))
            await asyncio.sleep(5.0)
            running.worker.stop()
        assert 2 <= lines_with(caplog, "store refused") <= 10


@in_virtual_time
async def test_no_lock_remains_if_a_record_of_the_ledger_cannot_be_read_under_it() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("c")
        path = world.reservations.path(LEDGER)
        await put(world.store, path, b"")
        world.cell.deny(path)
        running = world.worker(once=False)
        async with world.running(running):
            await asyncio.sleep(HOUR_S)
            assert set(running.recorder.endings()) == {Ending.FAILED}
            assert not await world.tasks.locks.locked()
            world.cell.allow(path)
            await until(world.is_clean)
        await world.assert_whole(LEDGER, packets, "t")


@pytest.mark.parametrize("what", ["metadata", "task"])
@in_virtual_time
async def test_a_ledger_that_a_worker_may_not_read_delays_no_other_one_and_is_tried_less_and_less_often(
    what: str,
) -> None:
    other = LedgerId(8)
    async with a_world("a b c t") as world:
        metadata = make_metadata((0, "a b c"), quorum=(3, 2), last=9)
        packets = {number: await world.ledger(number, metadata, 10) for number in (LEDGER, other)}
        await world.lose("c")
        await world.tasks.marking.mark(other, names("c"))
        path = world.ledgers.path(other) if what == "metadata" else task_path(ROOT, other)
        world.cell.deny(path)
        await world.reservations.reserve(other, "token", [])  # by a worker that may read it
        running = world.worker(once=False)
        async with world.running(running):
            await asyncio.sleep(HOUR_S)
            await world.assert_whole(LEDGER, packets[LEDGER], "t")
            assert await world.task(LEDGER) is None
            assert len(running.recorder.results) <= 30
            assert not await world.tasks.locks.locked()
            assert await world.reserved() == [str(other)]
            world.cell.allow(path)
            await until(world.is_clean)
        await world.assert_whole(other, packets[other], "t")


@pytest.mark.parametrize("is_disabled", [False, True])
def test_an_idle_worker_reports_a_refusal_until_it_ends(is_disabled: bool) -> None:
    """Both waits report it: the wait for tasks, and the wait until recovery is enabled."""

    @in_virtual_time
    async def story() -> None:
        async with a_world("a b c t") as world:
            running = world.worker(once=False).start()
            await asyncio.sleep(10)
            assert running.worker.problem == ""
            await world.kill("t")
            world.cell.deny(available_path(world.cluster.root, is_read_only=False))  # before the first read
            await asyncio.sleep(HOUR_S)
            assert "the list of bookies: " in running.worker.problem
            if is_disabled:
                await world.tasks.switches.disable()
            world.cell.allow(available_path(world.cluster.root, is_read_only=False))

            async def is_well() -> bool:
                return running.worker.problem == ""

            await until(is_well, 130)
            assert await running.stop() is RunEnd.STOPPED

    story()


@in_virtual_time
async def test_a_run_with_once_ends_with_the_refusal_of_the_store() -> None:
    async with a_world("a b c t") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("c"))
        world.cell.deny(available_path(world.cluster.root, is_read_only=False))
        with pytest.raises(AccessDeniedError):
            await world.worker(once=True).worker.run()


@pytest.mark.parametrize("what", ["votes", "cookies", "first-seen-down"])
@in_virtual_time
async def test_a_refused_auditor_reports_the_reason_and_retries_less_and_less_often(
    caplog: pytest.LogCaptureFixture, what: str
) -> None:
    world = await ServiceWorld.create()
    path = {
        "votes": election_path(ROOT),
        "cookies": parent_of(cookie_path(ROOT, BookieId("x"))),
        "first-seen-down": own_path("first-seen-down", ROOT),
    }[what]
    await ensure_path(world.session(), path)
    world.cell.deny(path)
    auditor = await world.auditor()
    await asyncio.sleep(HOUR_S)
    status = auditor.service.status()
    (problem,) = status.problems
    assert path in problem
    assert state_values(status, 0)[auditor_names.REFUSED,] == 1
    warned = [record for record in caplog.records if "trying again" in record.getMessage()]
    assert 2 <= len(warned) <= LINES_MAX
    assert no_traceback(caplog)
    world.cell.allow(path)

    async def is_well() -> bool:
        return auditor.leads and not auditor.service.status().problems

    await until(is_well)
    assert state_values(auditor.service.status(), 0)[auditor_names.REFUSED,] == 0
    await world.close()
