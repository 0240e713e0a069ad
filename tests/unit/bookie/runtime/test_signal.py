"""Requests to repeat some work."""

from __future__ import annotations

import asyncio

from bookie.runtime.signal import Requests


async def test_a_request_made_during_the_work_is_not_missed() -> None:
    requests = Requests()
    before = requests.count
    requests.add()
    await asyncio.wait_for(requests.since(before), 10)


async def test_a_request_ends_the_wait_of_everyone_who_has_seen_the_earlier_ones() -> None:
    requests = Requests()
    requests.add()
    waiting = [asyncio.create_task(requests.since(requests.count)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    requests.add()
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
