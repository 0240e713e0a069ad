from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.errors import ConflictError, FatalError, OutcomeUnknownError, PermanentError, TransientError
from bookie.runtime.retry import Backoff, retry_transient
from tests.worlds.clocks import ManualClock


def failing(times: int, error: Exception) -> Callable[[], Awaitable[int]]:
    """Return an operation that fails ``times`` times and then returns the number of the attempt."""
    attempt = 0

    async def operation() -> int:
        nonlocal attempt
        attempt += 1
        if attempt <= times:
            raise error
        return attempt

    return operation


EVEN = Backoff(first_s=1, max_s=4, factor=2, jitter=0, attempts=5)


async def test_the_first_success_is_returned_without_waiting() -> None:
    clock = ManualClock(turns=0)
    assert await retry_transient(failing(0, TransientError()), EVEN, clock, random.Random(1)) == 1
    assert clock.now_s == 0


async def test_waits_grow_up_to_the_longest() -> None:
    clock = ManualClock(turns=0)
    assert await retry_transient(failing(4, TransientError()), EVEN, clock, random.Random(1)) == 5
    assert clock.now_s == 1 + 2 + 4 + 4


async def test_the_last_attempts_error_is_raised_when_attempts_run_out() -> None:
    clock = ManualClock(turns=0)
    with pytest.raises(TransientError, match="still down"):
        await retry_transient(failing(5, TransientError("still down")), EVEN, clock, random.Random(1))
    assert clock.now_s == 1 + 2 + 4 + 4, "there is no wait after the last attempt"


@pytest.mark.parametrize("family", [ConflictError, PermanentError, OutcomeUnknownError, FatalError, OSError])
async def test_other_errors_are_raised_at_once(family: type[Exception]) -> None:
    clock = ManualClock(turns=0)
    with pytest.raises(family):
        await retry_transient(failing(1, family("x")), EVEN, clock, random.Random(1))
    assert clock.now_s == 0


async def test_one_attempt_means_no_retry() -> None:
    with pytest.raises(TransientError):
        await retry_transient(failing(1, TransientError()), Backoff(attempts=1), ManualClock(turns=0), random.Random(1))


@given(
    seed=st.integers(),
    first_s=st.just(0.0) | st.floats(1e-6, 10),
    more_s=st.floats(0, 100),
    factor=st.floats(1, 10),
    jitter=st.floats(0, 1),
    attempts=st.integers(1, 40),
)
def test_waits_stay_in_bounds_and_there_is_one_between_each_two_attempts(
    seed: int, first_s: float, more_s: float, factor: float, jitter: float, attempts: int
) -> None:
    backoff = Backoff(first_s, first_s + more_s, factor, jitter, attempts)
    delays = list(backoff.delays(random.Random(seed)))
    assert len(delays) == attempts - 1
    for index, delay in enumerate(delays):
        longest = min(first_s * factor**index, backoff.max_s)
        assert longest * (1 - jitter) * 0.999999 <= delay <= longest * 1.000001


def test_two_clients_that_failed_together_do_not_retry_together() -> None:
    assert list(Backoff().delays(random.Random(1))) != list(Backoff().delays(random.Random(2)))
    assert list(Backoff().delays(random.Random(1))) == list(Backoff().delays(random.Random(1)))
