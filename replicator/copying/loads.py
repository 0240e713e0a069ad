"""The recent load of each bookie as one process sees it: the requests in flight, and the times of reads.

``source_choice`` uses it to choose sources. Like the circuit breakers, it belongs to the process and is neither shared
nor stored. An outdated value costs time but changes no result. Memory is bounded: at most 1,000 bookies are kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock

ASSUMED_S: Final = 0.01
"""The assumed duration of a read from a bookie without recent reads."""
MEASURED_READ_TTL_S: Final = 30.0
"""How long a measured time is used. After that, ``ASSUMED_S`` applies, because the bookie may have become faster."""
_WEIGHT: Final = 0.3
"""The weight of the newest read in the average. A few reads show a change; a single one changes little."""
_BOOKIES_MAX: Final = 1000


@dataclass(slots=True)
class _Seen:
    reads: dict[int, float] = field(default_factory=dict)
    """When each read in flight was sent, the oldest first."""
    adds: int = 0
    read_s: float = 0.0
    """The average duration of the last reads."""
    noted_s: float = float("-inf")

    @property
    def is_idle(self) -> bool:
        return not self.reads and not self.adds


class BookieLoads:
    """The load of each bookie, measured by the requests of all copies of one process."""

    def __init__(self, clock: Clock) -> None:
        """Start without measurements."""
        self._clock = clock
        self._seen: dict[BookieId, _Seen] = {}
        self._numbers = itertools.count()

    def expected_s(self, bookie: BookieId) -> float:
        """Return the estimated seconds until a read that is sent now is answered.

        Requests in flight are assumed to be answered first. If the oldest read in flight is slower than usual, its age
        is used as the duration.
        """
        seen = self._seen.get(bookie)
        if seen is None:
            return ASSUMED_S
        now_s = self._clock.monotonic_s()
        read_s = seen.read_s if now_s - seen.noted_s < MEASURED_READ_TTL_S else ASSUMED_S
        age_s = now_s - next(iter(seen.reads.values())) if seen.reads else 0.0
        return (1 + len(seen.reads) + seen.adds) * max(read_s, age_s)

    @contextmanager
    def read(self, bookie: BookieId) -> Iterator[None]:
        """Count a read while the context lasts, and record its duration, for every outcome."""
        seen, number, sent_s = self._of(bookie), next(self._numbers), self._clock.monotonic_s()
        seen.reads[number] = sent_s
        try:
            yield
        finally:
            del seen.reads[number]
            now_s = self._clock.monotonic_s()
            is_first = now_s - seen.noted_s >= MEASURED_READ_TTL_S
            took_s = now_s - sent_s
            seen.read_s = took_s if is_first else (1 - _WEIGHT) * seen.read_s + _WEIGHT * took_s
            seen.noted_s = now_s

    @contextmanager
    def add(self, bookie: BookieId) -> Iterator[None]:
        """Count an add while the context lasts, because copies to a bookie also slow down its reads."""
        seen = self._of(bookie)
        seen.adds += 1
        try:
            yield
        finally:
            seen.adds -= 1

    def _of(self, bookie: BookieId) -> _Seen:
        if (seen := self._seen.get(bookie)) is None:
            if len(self._seen) >= _BOOKIES_MAX:
                idle = next((each for each, of in self._seen.items() if of.is_idle), None)
                if idle is not None:
                    del self._seen[idle]
            seen = self._seen[bookie] = _Seen()
        return seen
