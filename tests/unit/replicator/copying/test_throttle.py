"""The limits on copying: bytes per second on a clock that only sleeping advances, and bytes in memory."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.copying.throttle import BURST_S, ByteBudget, HeldBytes, Throttle
from tests.worlds.clocks import ManualClock

MIB = 1 << 20


async def test_an_unlimited_throttle_never_waits() -> None:
    clock = ManualClock(100.0, turns=1)
    throttle = Throttle(clock)
    for _ in range(100):
        await throttle.take(MIB)
    assert clock.now_s == 100.0


async def test_the_rate_is_kept_over_a_long_copy() -> None:
    clock = ManualClock(100.0, turns=1)
    throttle = Throttle(clock, 10 * MIB)
    for _ in range(100):
        await throttle.take(MIB)
    assert clock.now_s - 100.0 == pytest.approx(10.0, abs=0.5)


async def test_a_request_larger_than_the_bucket_delays_the_next_one() -> None:
    clock = ManualClock(100.0, turns=1)
    throttle = Throttle(clock, MIB)
    await throttle.take(5 * MIB)
    assert clock.now_s == 100.0
    await throttle.take(1)
    assert clock.now_s - 100.0 == pytest.approx(5.0 - BURST_S)


async def test_unused_time_is_not_accumulated() -> None:
    clock = ManualClock(100.0, turns=1)
    throttle = Throttle(clock, MIB)
    await clock.sleep(3600)
    for _ in range(10):
        await throttle.take(MIB)
    assert clock.now_s - 3700.0 == pytest.approx(9.0 - BURST_S)


async def test_a_new_rate_applies_to_waiters_at_once() -> None:
    clock = ManualClock(100.0, turns=1)
    throttle = Throttle(clock, 1)
    await throttle.take(MIB)
    waiting = asyncio.create_task(throttle.take(1))
    await asyncio.sleep(0)
    throttle.set_rate(0)
    await waiting
    assert clock.now_s < 102.0
    assert throttle.bytes_per_second == 0


@pytest.mark.parametrize("rate", [0, 100 * MIB])
async def test_all_waiters_under_a_low_rate_continue_soon_after_it_is_raised(rate: int) -> None:
    clock = ManualClock(100.0, turns=1)
    throttle = Throttle(clock, 1)
    await throttle.take(MIB)  # a debt of twelve days
    waiting = [asyncio.create_task(throttle.take(1024)) for _ in range(20)]
    for _ in range(50):
        await asyncio.sleep(0)
    raised_s = clock.now_s
    assert raised_s > 110.0
    assert not any(task.done() for task in waiting)
    throttle.set_rate(rate)
    await asyncio.gather(*waiting)
    assert clock.now_s <= raised_s + 1.0


async def test_a_rate_set_after_an_unlimited_time_starts_without_the_old_debt() -> None:
    clock = ManualClock(100.0, turns=1)
    throttle = Throttle(clock, 1)
    await throttle.take(MIB)
    waiting = asyncio.create_task(throttle.take(MIB))
    await asyncio.sleep(0)
    throttle.set_rate(0)
    await waiting
    throttle.set_rate(1)
    begun_s = clock.now_s
    await throttle.take(1)
    assert clock.now_s == begun_s


async def test_a_lower_rate_applies_at_once() -> None:
    clock = ManualClock(100.0, turns=1)
    throttle = Throttle(clock, 100 * MIB)
    await throttle.take(MIB)
    throttle.set_rate(MIB)
    begun_s = clock.now_s
    for _ in range(11):
        await throttle.take(MIB)
    assert clock.now_s - begun_s == pytest.approx(10.0, abs=0.5)


async def test_a_waiter_that_is_cancelled_takes_nothing() -> None:
    clock = ManualClock(100.0, turns=1)
    throttle = Throttle(clock, MIB)
    await throttle.take(MIB)
    waiting = asyncio.create_task(throttle.take(100 * MIB))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    before_s = clock.now_s
    await throttle.take(1)
    await throttle.take(1)
    assert clock.now_s - before_s < 1.5


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="0 \\(unlimited\\) or more"):
        Throttle(ManualClock(100.0, turns=1), -1)


@given(
    rate=st.integers(MIB // 4, 10 * MIB),
    requests=st.lists(st.tuples(st.integers(1, 2 * MIB), st.floats(0, 3)), min_size=1, max_size=40),
)
def test_no_interval_exceeds_the_rate(rate: int, requests: list[tuple[int, float]]) -> None:
    async def run() -> list[tuple[float, int]]:
        clock = ManualClock(100.0, turns=1)
        throttle = Throttle(clock, rate)
        passed = []
        for size, pause_s in requests:
            await clock.sleep(pause_s)
            await throttle.take(size)
            passed.append((clock.now_s, size))
        return passed

    passed = asyncio.run(run())
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            # The last request may exceed the limit, because it passes as soon as the bucket has no debt.
            size = sum(each for _, each in passed[first:last])
            span_s = passed[last][0] - passed[first][0]
            assert size <= rate * (span_s + BURST_S) + passed[first][1] + 1


async def test_a_budget_admits_in_order_and_never_more_than_its_limit() -> None:
    budget = ByteBudget(10)
    held: list[int] = []
    order: list[int] = []

    async def use(number: int, size: int) -> None:
        async with budget.hold(size):
            order.append(number)
            held.append(budget.held_bytes)
            for _ in range(3):
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number, size in enumerate([6, 6, 3, 4, 10, 1]):
            group.create_task(use(number, size))
    assert order == [0, 1, 2, 3, 4, 5]
    assert max(held) <= 10
    assert budget.held_bytes == 0


async def test_a_request_above_the_whole_budget_is_admitted_alone() -> None:
    budget = ByteBudget(10)
    async with budget.hold(1000):
        assert budget.held_bytes == 10
    assert budget.held_bytes == 0


async def test_a_budget_waiter_that_is_cancelled_holds_nothing() -> None:
    budget = ByteBudget(10)
    async with budget.hold(10):
        waiting = asyncio.create_task(budget.hold(5).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with budget.hold(10):
        assert budget.held_bytes == 10


async def test_the_smallest_rank_is_admitted_first_and_each_fourth_time_the_oldest() -> None:
    ranks, expected = [2, 3, 1, 2, 1], [1, 1, 2, 3, 2]
    clock = ManualClock(100.0, turns=1)
    throttle, budget = Throttle(clock, MIB), ByteBudget(10)
    await throttle.take(MIB)
    passed: list[tuple[str, int]] = []

    async def send(rank: int) -> None:
        await throttle.take(MIB, rank)
        passed.append(("rate", rank))

    async def hold(rank: int) -> None:
        async with budget.hold(10, rank):
            passed.append(("memory", rank))

    async with budget.hold(10), asyncio.TaskGroup() as group:
        group.create_task(throttle.take(MIB))  # the task whose turn it is keeps its turn
        for rank in ranks:
            group.create_task(send(rank))
        waiting = [asyncio.create_task(hold(rank)) for rank in [0, *ranks]]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert [rank for what, rank in passed if what == "rate"] == expected
    assert [rank for what, rank in passed if what == "memory"] == [0, *expected]


async def test_a_waiter_cancelled_when_its_turn_comes_passes_it_on() -> None:
    budget = ByteBudget(10)
    whole, *holds = (budget.hold(size) for size in (10, 5, 5, 5))
    await whole.__aenter__()
    behind: list[asyncio.Task[HeldBytes]] = []

    async def queue_others_and_release() -> None:
        behind.extend(asyncio.create_task(hold.__aenter__()) for hold in holds[1:])
        await asyncio.sleep(0)
        await whole.__aexit__(None, None, None)

    freeing = asyncio.create_task(queue_others_and_release())
    await holds[0].__aenter__()  # returns in the same step in which it passes the turn to the next one
    behind[0].cancel()
    await asyncio.wait([freeing, *behind])
    assert [task.cancelled() for task in behind] == [True, False]
    assert budget.held_bytes == 10
    for hold in (holds[0], holds[2]):
        await hold.__aexit__(None, None, None)


async def test_a_correction_is_charged_to_later_callers() -> None:
    clock = ManualClock(100.0, turns=1)
    throttle = Throttle(clock, MIB)
    await throttle.take(1)
    throttle.charge(2 * MIB)
    started_s = clock.monotonic_s()
    await throttle.take(1)
    assert clock.monotonic_s() - started_s >= 1.5
