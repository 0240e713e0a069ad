"""The end of background tasks."""

from __future__ import annotations

import asyncio

import pytest

from bookie.model.errors import FatalError, InvariantError
from bookie.runtime.tasks import cancel_all, guarded
from tests.worlds.virtual_time import in_virtual_time


async def slow_to_end(ended: list[int], number: int) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(1)
        ended.append(number)


@in_virtual_time
async def test_every_task_has_ended_after_all_were_cancelled() -> None:
    ended: list[int] = []
    tasks = [guarded("a task", slow_to_end(ended, number)) for number in range(3)]
    await asyncio.sleep(0)
    await cancel_all(tasks)
    assert ended == [0, 1, 2]


@in_virtual_time
async def test_a_caller_that_is_cancelled_meanwhile_leaves_no_task_uncancelled() -> None:
    ended: list[int] = []
    tasks = [guarded("a task", slow_to_end(ended, number)) for number in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await cancel_all(tasks)
    await asyncio.sleep(2)
    assert ended == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "is_traced"),
    [(FatalError("disk full"), False), (InvariantError("a defect"), True), (ValueError("a defect"), True)],
)
@in_virtual_time
async def test_only_the_failure_of_a_task_by_a_defect_is_logged_with_a_traceback(
    error: Exception, is_traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise error

    await asyncio.wait([guarded("a task", fail())])
    await asyncio.sleep(0)
    [record] = caplog.records
    assert (record.getMessage(), vars(record)["error"]) == ("task failed", str(error))
    assert bool(record.exc_info) is is_traced
