"""Which tasks a worker may start beside the turns in flight."""

from __future__ import annotations

import random
from collections.abc import Iterable

from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import LedgerId
from replicator.queue.ordering import FAILING_MIN, Candidate, Order
from replicator.queue.parking import Circumstances
from replicator.queue.places import FAILING_SHARE, LARGE_IN_FLIGHT_MAX, TurnPlaces
from replicator.queue.task_queue import Turn

NOWHERE = Circumstances(0, 0, Bookies(frozenset(), frozenset()))


async def started(places: int, waiting: Iterable[Candidate], ended: Iterable[int] = ()) -> list[int]:
    """Start turns until no task may start, and return their ledgers; ``ended`` names one that ends in between."""
    order = await Order.of(list(waiting), random.Random(1))
    limits, ledgers, ending = TurnPlaces(order, places), list[int](), iter(ended)
    while True:
        passed_over = limits.kinds_to_pass_over()
        if passed_over is None:
            over = next(ending, None)
            if over is None:
                return ledgers
            limits.free(LedgerId(over))
            continue
        one = order.take(passed_over)
        limits.take(
            Turn(ledger_id=one.ledger_id, circumstances=NOWHERE, rank=one.rank, is_large=one.is_large, kind=one.kind)
        )
        ledgers.append(one.ledger_id)


def task(ledger_id: int, rank: int = 2, *, is_large: bool = False, is_failing: bool = False) -> Candidate:
    return Candidate(
        ledger_id=LedgerId(ledger_id),
        rank=rank,
        ctime_ms=ledger_id * 60_000,
        is_large=is_large,
        failures=FAILING_MIN if is_failing else 0,
    )


async def test_turns_start_in_the_order_of_the_tasks_until_no_place_is_free() -> None:
    assert await started(3, map(task, range(5))) == [0, 1, 2]
    assert await started(3, map(task, range(5)), ended=[1]) == [0, 1, 2, 3]


async def test_a_task_more_urgent_than_all_turns_needs_no_free_place() -> None:
    limits = TurnPlaces(await Order.of([task(9, rank=1)], random.Random(1)), 2)
    for ledger_id in (1, 2):
        limits.take(Turn(ledger_id=LedgerId(ledger_id), circumstances=NOWHERE, rank=2))
    assert limits.kinds_to_pass_over() == ()


async def test_small_ledgers_pass_large_ones_that_wait_for_a_place() -> None:
    large = [task(number, is_large=True) for number in range(LARGE_IN_FLIGHT_MAX + 2)]
    small = [task(number) for number in range(100, 103)]
    expected = [*range(LARGE_IN_FLIGHT_MAX), 100, 101, 102]
    assert await started(LARGE_IN_FLIGHT_MAX + 10, [*large, *small]) == expected


async def test_failing_ledgers_use_a_part_of_the_places_and_take_turns_with_others() -> None:
    failing = [task(number, rank=1, is_failing=True) for number in range(10)]
    others = [task(number) for number in range(100, 110)]
    ledgers = await started(2 * FAILING_SHARE, [*failing, *others])
    assert ledgers == [0, 100, 1, 101, 102, 103, 104, 105]


async def test_a_failing_ledger_starts_if_no_other_task_waits() -> None:
    failing = [task(number, is_failing=True) for number in range(3)]
    assert await started(2 * FAILING_SHARE, failing) == [0, 1]
