"""Several tasks at once: which error is raised, what happens to the other tasks, and when each one begins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from bookie.runtime.waiting import all_or_first_error, all_started_in_order, in_bounded_thread, results_as_completed
from tests.deadlines import STATE_S

Begin = Any


async def _fails() -> None:
    await asyncio.sleep(0)
    raise ValueError("the first error")


@pytest.mark.parametrize("at_once", [all_or_first_error, all_started_in_order])
async def test_the_first_error_is_raised_alone_and_ends_the_others(at_once: Begin) -> None:
    ended: list[str] = []

    async def waits(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    with pytest.raises(ValueError, match="the first error"):
        await at_once(iter([waits("one"), _fails(), waits("other")]))
    assert ended == ["one", "other"]


@pytest.mark.parametrize("at_once", [all_or_first_error, all_started_in_order])
async def test_an_empty_list_of_work_ends_at_once(at_once: Begin) -> None:
    before = asyncio.all_tasks()
    for _ in at_once(iter([])).__await__():
        pytest.fail("the call did not return at once")
    assert asyncio.all_tasks() == before


async def test_each_task_has_begun_before_the_next_is_created() -> None:
    reported: list[str] = []

    async def work(number: int) -> None:
        reported.append(f"begun {number}")

    def works() -> Iterator[Coroutine[Any, Any, None]]:
        for number in range(3):
            reported.append(f"made {number}")
            yield work(number)

    await all_started_in_order(works())
    assert reported == ["made 0", "begun 0", "made 1", "begun 1", "made 2", "begun 2"]


async def test_begun_tasks_end_if_creating_the_next_fails_or_the_caller_is_cancelled() -> None:
    ended: list[int] = []

    async def waits(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    def works() -> Iterator[Coroutine[Any, Any, None]]:
        yield waits(0)
        yield waits(1)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        await all_started_in_order(works())
    assert ended == [0, 1]

    waiting = asyncio.ensure_future(all_started_in_order(waits(number) for number in (2, 3)))
    await asyncio.sleep(0)  # the first one has begun
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == [0, 1, 2]


async def test_results_are_yielded_when_ready_and_concurrency_is_bounded() -> None:
    under_way = most = 0

    async def work(turns: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(turns):
            await asyncio.sleep(0)
        under_way -= 1
        return turns

    turns = [50, 10, 5, 70, 1, 1, 1]
    results = [each async for each in results_as_completed((work(each) for each in turns), 3)]
    assert sorted(results) == sorted(turns)
    assert results.index(5) < results.index(10) < results.index(50)
    assert most == 3
    nothing: Iterator[Coroutine[Any, Any, int]] = iter([])
    assert [each async for each in results_as_completed(nothing, 3)] == []


async def test_work_continues_up_to_a_bound_while_a_result_is_used() -> None:
    begun: list[int] = []

    def works() -> Iterator[Coroutine[Any, Any, int]]:
        for number in range(20):
            begun.append(number)
            yield asyncio.sleep(0, number)

    async with aclosing(results_as_completed(works(), 2)) as results:
        async for _ in results:
            for _ in range(100):
                await asyncio.sleep(0)
            assert 2 < len(begun) <= 1 + 2 * 2 + 1
            break


async def test_an_error_is_raised_after_earlier_results_and_ends_the_other_work() -> None:
    ended: list[str] = []

    async def waits(name: str) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
        return name

    async def quick() -> str:
        return "quick"

    async def fails() -> str:
        await asyncio.sleep(0)
        raise ValueError("the first error")

    results = results_as_completed(iter([quick(), waits("one"), fails(), waits("other")]), 4)
    assert await anext(results) == "quick"
    with pytest.raises(ValueError, match="the first error"):
        await anext(results)
    assert ended == ["one", "other"]


async def test_a_caller_that_stops_ends_the_running_work() -> None:
    ended: list[str] = []

    async def waits() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("one")
        return ""

    async def quick() -> str:
        return "quick"

    before = asyncio.all_tasks()
    async with aclosing(results_as_completed(iter([quick(), waits(), waits()]), 2)) as results:
        async for result in results:
            assert result == "quick"
            break
    assert ended
    assert asyncio.all_tasks() == before


async def test_a_thread_keeps_its_slot_until_it_ends_even_if_its_caller_has_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, go_on, places = threading.Semaphore(0), threading.Event(), asyncio.Semaphore(2)

    def work() -> None:
        begun.release()
        go_on.wait(STATE_S)
        raise ValueError("nobody reads this error")

    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await in_bounded_thread(places, work)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await in_bounded_thread(places, lambda: pytest.fail("the call had no place"))
    go_on.set()
    async with asyncio.timeout(STATE_S):
        assert await in_bounded_thread(places, lambda: "done") == "done"
        await places.acquire()
        await places.acquire()
    assert begun.acquire(timeout=0)
    assert begun.acquire(timeout=0)
    assert not begun.acquire(timeout=0)
    assert not caplog.records


async def test_an_error_in_a_thread_is_raised_and_its_slot_is_freed() -> None:
    def work() -> None:
        raise ValueError("of the thread")

    places = asyncio.Semaphore(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="of the thread"):
            await in_bounded_thread(places, work)
