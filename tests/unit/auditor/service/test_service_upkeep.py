"""Work apart from requests: lost sessions are replaced, long work is shared and continues, and all of it is ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from auditor.api.problems import OverloadedError
from auditor.api.upkeep_port import StillWorkingError, WorkCancelledError
from auditor.operating.client import Actor, ClusterClient, Document
from auditor.operating.dead_letters import DROP, decide
from auditor.safety.dead_letters import DeadLetterOutcome, DeadLetterResult
from auditor.service.upkeep import KEPT_S, LONG_WORKS_MAX, CachedRepairProgress, SharedLongWork, ThreadedUpkeep
from auditor.service.watch.progress import make_repair_watch
from bookie.metadata.layout import lock_path
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.memory import Fault, MemoryStore
from bookie.model.ids import LedgerId
from tests.deadlines import PROGRAM_S
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster


class Sessions:
    """Open sessions with a cluster in memory, and count them."""

    def __init__(self) -> None:
        self.cluster = CommandCluster()
        self.cluster.clock = ManualClock()
        self.opened = 0
        self.threads: set[int] = set()

    async def open(self, stack: AsyncExitStack) -> ClusterClient:
        if not self.opened:
            await self.cluster.fill()
        self.opened += 1
        self.threads.add(threading.get_ident())
        client: ClusterClient = await stack.enter_async_context(self.cluster.connected(""))
        return client


async def test_work_runs_on_another_thread_with_one_session() -> None:
    sessions = Sessions()
    upkeep = ThreadedUpkeep(sessions.open, ManualClock())
    try:
        for _ in range(2):
            assert await upkeep.run(lambda client: client.parked.ids()) == {7, 8}
        assert (await upkeep.progress())["backlog"]["ledgers"] == 3
        assert (sessions.opened, threading.get_ident() in sessions.threads) == (1, False)
    finally:
        await upkeep.close()
    with pytest.raises(StoreUnavailableError):
        await upkeep.run(lambda client: client.parked.ids())
    assert "upkeep" not in {thread.name for thread in threading.enumerate()}


async def test_a_failed_session_is_replaced_on_the_next_request() -> None:
    sessions = Sessions()
    upkeep = ThreadedUpkeep(sessions.open, ManualClock())

    async def fails(client: ClusterClient) -> None:
        raise StoreUnavailableError("no answer")

    try:
        with pytest.raises(StoreUnavailableError):
            await upkeep.run(fails)
        assert await upkeep.run(lambda client: client.parked.ids()) == {7, 8}
        assert sessions.opened == 2
    finally:
        await upkeep.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_lock_whose_release_got_no_answer_does_not_remain(is_cancelled: bool) -> None:
    sessions, answers = Sessions(), asyncio.Event()
    upkeep = ThreadedUpkeep(sessions.open, ManualClock())

    async def drop(client: ClusterClient) -> list[DeadLetterResult]:
        return await decide(client, Actor("an operator", "test"), DROP, [LedgerId(7)], "no reason")

    async def drop_without_answers(client: ClusterClient) -> list[DeadLetterResult]:
        async def fail(operation: str, path: str) -> Fault | None:
            if (operation, path) != ("multi", lock_path(ROOT, LedgerId(7))):
                return Fault.FAIL_BEFORE if answers.is_set() else None
            answers.set()
            return None

        assert isinstance(client.store, MemoryStore)
        client.store.fault_hook = fail
        results = await drop(client)
        if is_cancelled:
            raise asyncio.CancelledError
        return results

    try:
        if is_cancelled:
            with pytest.raises(asyncio.CancelledError):
                await upkeep.run(drop_without_answers)
        else:
            assert [each.outcome for each in await upkeep.run(drop_without_answers)] == [DeadLetterOutcome.UNKNOWN]
        assert [each.outcome for each in await upkeep.run(drop)] == [DeadLetterOutcome.DROPPED]
    finally:
        await upkeep.close()


async def test_work_starts_after_a_shortage_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sessions = Sessions()
    upkeep = ThreadedUpkeep(sessions.open, ManualClock())
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            await upkeep.run(lambda client: client.parked.ids())
    try:
        async with asyncio.timeout(PROGRAM_S):
            assert await upkeep.run(lambda client: client.parked.ids()) == {7, 8}
    finally:
        await upkeep.close()


async def test_long_work_continues_and_its_result_goes_to_the_next_request() -> None:
    clock, gate = ManualClock(), asyncio.Event()
    begun: list[int] = []
    long = SharedLongWork(clock, patience_s=0.01)

    async def work() -> Document:
        begun.append(1)
        await gate.wait()
        return {"answer": len(begun)}

    for _ in range(2):
        with pytest.raises(StillWorkingError):
            await long.result("key", work)
    gate.set()
    assert await long.result("key", work) == {"answer": 1}
    assert await long.result("key", work) == {"answer": 2}, "a later request gets the current state"


async def test_a_result_that_is_not_fetched_expires() -> None:
    clock, gate = ManualClock(), asyncio.Event()
    long = SharedLongWork(clock, patience_s=0.01)
    answers: Any = iter(range(9))

    async def work() -> Document:
        await gate.wait()
        return {"answer": next(answers)}

    with pytest.raises(StillWorkingError):
        await long.result("key", work)
    gate.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    clock.now_s += KEPT_S + 1
    assert await long.result("key", work) == {"answer": 1}


async def test_a_kept_result_is_returned_only_if_the_circumstances_are_unchanged() -> None:
    long, gate = SharedLongWork(ManualClock(), patience_s=0.01), asyncio.Event()
    registered = {"a", "b"}
    answers: Any = iter(range(9))

    async def work() -> Document:
        await gate.wait()
        return {"answer": next(answers)}

    async def circumstances() -> Hashable:
        return frozenset(registered)

    async def kept() -> None:
        gate.clear()
        with pytest.raises(StillWorkingError):
            await long.result("key", work, circumstances)
        gate.set()
        for _ in range(9):
            await asyncio.sleep(0)

    await kept()
    assert await long.result("key", work, circumstances) == {"answer": 0}
    await kept()
    registered.discard("b")
    assert await long.result("key", work, circumstances) == {"answer": 2}


async def test_cancelled_work_ends_and_its_results_are_dropped() -> None:
    long, gate = SharedLongWork(ManualClock(), patience_s=PROGRAM_S), asyncio.Event()
    ended: list[str] = []

    async def work() -> Document:
        try:
            await gate.wait()
        finally:
            ended.append("drain")
        return {}

    waiting = asyncio.create_task(long.result(("drain", "a"), work))
    other = asyncio.create_task(long.result(("drain", "b"), work))
    for _ in range(3):
        await asyncio.sleep(0)
    await long.cancel_matching(lambda key: key == ("drain", "a"))
    with pytest.raises(WorkCancelledError):
        await waiting
    assert ended == ["drain"]
    gate.set()
    assert await other == {}


async def test_work_may_cancel_other_work_of_its_loop() -> None:
    sessions = Sessions()
    upkeep, loop, is_begun = ThreadedUpkeep(sessions.open, ManualClock()), asyncio.get_running_loop(), asyncio.Event()

    async def endless(client: ClusterClient) -> Document:
        loop.call_soon_threadsafe(is_begun.set)
        await asyncio.Event().wait()
        return {}

    try:
        waiting = asyncio.create_task(upkeep.run_long("endless", endless))
        await is_begun.wait()
        await upkeep.run(lambda client: upkeep.cancel_matching(lambda key: key == "endless"))
        with pytest.raises(WorkCancelledError):
            await waiting
    finally:
        await upkeep.close()


async def test_too_much_long_work_is_refused() -> None:
    long = SharedLongWork(ManualClock(), patience_s=0.001)

    async def work() -> Document:
        await asyncio.Event().wait()
        return {}

    for number in range(LONG_WORKS_MAX):
        with pytest.raises(StillWorkingError):
            await long.result(number, work)
    with pytest.raises(OverloadedError):
        await long.result("one more", work)
    await long.close()


async def test_the_repair_progress_is_not_read_for_each_request() -> None:
    sessions, clock = Sessions(), ManualClock()
    sessions.cluster.clock = clock
    await sessions.cluster.fill()
    async with sessions.cluster.connected("") as client:
        progress = CachedRepairProgress(make_repair_watch(client), clock)
        first = await progress.observe()
        assert await progress.observe() is first
        clock.now_s += 10
        second = await progress.observe()
        assert (second is first, second[1].measured_s) == (False, 10.0)
