"""Bounded retries with growing, random delays.

Only a ``TransientError`` is retried: only this family guarantees that nothing was changed and that the same request may
succeed. A conflict needs a new decision, and after an unknown outcome the state must be read first.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from bookie.model.errors import TransientError
from bookie.runtime.clock import Clock

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """The number of attempts and the pauses between them.

    The defaults wait for about 12 seconds in all. This is longer than the usual timeout of a ZooKeeper session (10 s),
    enough to notice a lost session.
    """

    first_s: float = 0.1
    """Longest wait before the second attempt, in seconds."""
    max_s: float = 5.0
    """Longest wait, in seconds."""
    factor: float = 2.0
    """Ratio of each wait to the previous one."""
    jitter: float = 0.5
    """Random share of each wait, 0 to 1, to spread the retries of clients after a common failure."""
    attempts: int = 9
    """Number of attempts, including the first."""

    def __post_init__(self) -> None:
        assert 0 <= self.first_s <= self.max_s, f"waits {self.first_s} to {self.max_s}"
        assert self.factor >= 1, f"factor {self.factor}"
        assert 0 <= self.jitter <= 1, f"jitter {self.jitter}"
        assert self.attempts >= 1, f"attempts {self.attempts}"

    def delays(self, rng: random.Random) -> Iterator[float]:
        """Yield the waits between the attempts, in seconds: one fewer than ``attempts``."""
        longest = self.first_s
        for _ in range(self.attempts - 1):
            yield longest * (1 - self.jitter * rng.random())
            longest = min(longest * self.factor, self.max_s)


class GrowingPause:
    """The pauses between unlimited retries: longer each time, up to a bound."""

    def __init__(self, first_s: float, max_s: float) -> None:
        """Begin with ``first_s`` seconds; each pause is twice the previous one, but at most ``max_s``."""
        assert 0 < first_s <= max_s, f"waits {first_s} to {max_s}"
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s

    def next_pause_s(self) -> float:
        """Return the pause after one more failure, in seconds."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._max_s)
        return pause_s

    def reset(self) -> None:
        """Begin again with the first pause, after a success."""
        self._next_s = self._first_s


async def retry_transient(
    operation: Callable[[], Awaitable[T]], backoff: Backoff, clock: Clock, rng: random.Random
) -> T:
    """Run ``operation`` until it succeeds, at most ``backoff.attempts`` times, and return its result.

    ``operation`` must have its own deadline; this function adds none.

    Raises:
        TransientError: the error of the last attempt.
        Exception: any other error of ``operation``, immediately.
    """
    for delay_s in backoff.delays(rng):
        try:
            return await operation()
        except TransientError as error:
            _log.debug("attempt failed", extra={"error": str(error), "next_in_s": round(delay_s, 3)})
        await clock.sleep(delay_s)
    return await operation()
