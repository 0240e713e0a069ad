"""A deadline that counts only the running time of the process."""

from __future__ import annotations

import asyncio

import pytest

from bookie.runtime.waiting import STEPS, within_running_time
from tests.worlds.virtual_time import VirtualTimeLoop, in_virtual_time


async def result_of(answer: asyncio.Future[str]) -> str:
    return await answer


@in_virtual_time
async def test_work_that_does_not_end_is_cancelled_at_the_deadline() -> None:
    loop = asyncio.get_running_loop()
    begun_s, answer = loop.time(), loop.create_future()
    with pytest.raises(TimeoutError):
        await within_running_time(60, result_of(answer))
    assert loop.time() - begun_s == pytest.approx(60)
    await asyncio.sleep(0)
    assert answer.cancelled()


@in_virtual_time
async def test_the_result_or_error_of_the_work_is_passed_on() -> None:
    async def failing() -> None:
        await asyncio.sleep(1)
        raise LookupError

    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    loop.call_later(59, answer.set_result, "done")
    assert await within_running_time(60, result_of(answer)) == "done"
    with pytest.raises(LookupError):
        await within_running_time(60, failing())


@in_virtual_time
async def test_a_pause_of_the_process_counts_as_one_step() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    answer = loop.create_future()
    waiting = asyncio.create_task(within_running_time(60, result_of(answer)))
    for _ in range(STEPS - 2):
        await asyncio.sleep(0.5)
        loop.pass_time(600)  # every timer has expired when the process continues
    await asyncio.sleep(0.5)
    assert not waiting.done()
    answer.set_result("late")
    assert await waiting == "late"


@in_virtual_time
async def test_a_caller_that_is_cancelled_cancels_the_work() -> None:
    answer = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(within_running_time(60, result_of(answer)))
    await asyncio.sleep(7)
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(0)
    assert answer.cancelled()
