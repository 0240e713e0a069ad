"""Several pieces of work at once: which error counts, what becomes of the others, and when each begins."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from bookie.runtime.waiting import all_begun_in_turn, all_or_first_error

Begin = Any


async def _fails() -> None:
    await asyncio.sleep(0)
    raise ValueError("the first error")


@pytest.mark.parametrize("at_once", [all_or_first_error, all_begun_in_turn])
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


@pytest.mark.parametrize("at_once", [all_or_first_error, all_begun_in_turn])
async def test_nothing_to_do_is_done(at_once: Begin) -> None:
    before = asyncio.all_tasks()
    for _ in at_once(iter([])).__await__():
        pytest.fail("it waits")
    assert asyncio.all_tasks() == before


async def test_each_has_begun_before_the_next_is_made() -> None:
    told: list[str] = []

    async def work(number: int) -> None:
        told.append(f"begun {number}")

    def works() -> Iterator[Coroutine[Any, Any, None]]:
        for number in range(3):
            told.append(f"made {number}")
            yield work(number)

    await all_begun_in_turn(works())
    assert told == ["made 0", "begun 0", "made 1", "begun 1", "made 2", "begun 2"]


async def test_those_begun_end_when_making_the_next_fails_or_nobody_waits_any_more() -> None:
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
        await all_begun_in_turn(works())
    assert ended == [0, 1]

    waiting = asyncio.ensure_future(all_begun_in_turn(waits(number) for number in (2, 3)))
    await asyncio.sleep(0)  # one has begun
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == [0, 1, 2]
