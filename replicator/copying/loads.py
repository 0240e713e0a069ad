"""The recent load of each bookie as seen by one process: its requests under way, and the times of its reads.

``source_choice`` uses this to choose sources. Like circuits, it belongs to the process and is neither shared nor
stored. An outdated value costs time and changes no result. Memory is bounded: at most 1,000 bookies are kept.
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
"""Assumed seconds of a read from a bookie without recent reads."""
RECENT_S: Final = 30.0
"""Validity of a measured time. Afterwards the bookie is tried again: it may have become faster."""
_WEIGHT: Final = 0.3
"""Weight of the newest read in the average: a few reads show a change, and a single one does not decide."""
_BOOKIES_MAX: Final = 1000


@dataclass(slots=True)
class _Seen:
    reads: dict[int, float] = field(default_factory=dict)
    """Time of sending of each read under way, the oldest first."""
    adds: int = 0
    read_s: float = 0.0
    """Average of the last reads."""
    noted_s: float = float("-inf")

    @property
    def is_idle(self) -> bool:
        return not self.reads and not self.adds


class BookieLoads:
    """The load of each bookie, from all requests of one process's copies."""

    def __init__(self, clock: Clock) -> None:
        """Start with nothing known."""
        self._clock = clock
        self._seen: dict[BookieId, _Seen] = {}
        self._numbers = itertools.count()

    def expected_s(self, bookie: BookieId) -> float:
        """Estimated seconds until the answer to a read sent now.

        Requests under way are answered first. A read already slower than usual counts with its age.
        """
        seen = self._seen.get(bookie)
        if seen is None:
            return ASSUMED_S
        now_s = self._clock.monotonic_s()
        read_s = seen.read_s if now_s - seen.noted_s < RECENT_S else ASSUMED_S
        age_s = now_s - next(iter(seen.reads.values())) if seen.reads else 0.0
        return (1 + len(seen.reads) + seen.adds) * max(read_s, age_s)

    @contextmanager
    def read(self, bookie: BookieId) -> Iterator[None]:
        """Count a read while the context lasts, and record its duration, whatever its outcome."""
        seen, number, sent_s = self._of(bookie), next(self._numbers), self._clock.monotonic_s()
        seen.reads[number] = sent_s
        try:
            yield
        finally:
            del seen.reads[number]
            now_s = self._clock.monotonic_s()
            is_first = now_s - seen.noted_s >= RECENT_S
            took_s = now_s - sent_s
            seen.read_s = took_s if is_first else (1 - _WEIGHT) * seen.read_s + _WEIGHT * took_s
            seen.noted_s = now_s

    @contextmanager
    def add(self, bookie: BookieId) -> Iterator[None]:
        """Count an add while the context lasts: copies to a bookie also slow down its readers."""
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
