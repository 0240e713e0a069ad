"""Limit the new marks of one run, the worst first; the next run continues (R73).

A run that marks a million ledgers at once fills the tree of tasks and commits the workers to all of them. With a limit,
a run marks the ledgers with the fewest copies first, and holds back the rest.

The invariant: existing marks do not count against the limits. So each run marks more than the previous one, even if no
worker has repaired anything. The order of severity is kept: after the first ledger beyond the limits, no other new
ledger is marked. The first new ledger is always admitted, whatever its size. A run with held-back ledgers does not
count as the audit of a loss, so the service starts another one.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from bookie.model.ids import LedgerId
from spark_jobs.options.marking import RunLimits
from spark_jobs.runs.marking.publish import BATCH, Marking

DueLedger = tuple[Marking, int]
"""A marking that may be published, and the estimated bytes to copy for its repair."""


class ExistingMarks(Protocol):
    """The existing marks."""

    def are_marked(self, batch: Sequence[Marking]) -> Sequence[bool]:
        """Return for each marking whether its ledger is marked with all of its bookies."""
        ...


class MarkLimiter:
    """The limits of one run, over all of its chunks and all of its readings of the same metadata.

    A ledger counts from the time when it is marked, or may have been marked (``count``). So if a reading ended early
    and is repeated (``one_reading``), the run marks as many ledgers as it may, and no more.
    """

    def __init__(self, limits: RunLimits, marks: ExistingMarks, batch_size: int = BATCH) -> None:
        self._limits = limits
        self._marks = marks
        self._batch_size = batch_size
        self._is_exhausted = False
        self._ledgers = 0
        self._bytes = 0
        self._held = 0
        self._uncounted: dict[LedgerId, int] = {}
        """The sizes of the ledgers that were admitted and not counted yet: at most one batch of ``publish``."""
        self.first_held: LedgerId | None = None
        """The first ledger that the last call of ``admitted`` held back. All new ledgers after it were held back as
        well."""

    def admitted(self, due: Iterable[DueLedger]) -> Iterator[Marking]:
        """Yield the markings that the limits admit and those that already exist, in their order.

        Raises:
            StoreUnavailableError: the existing marks cannot be read.
        """
        self.first_held = None
        self._held = 0  # an earlier call may have ended with an error
        self._give_back_uncounted()
        if self._limits == RunLimits():
            yield from (marking for marking, _ in due)
            return
        remaining = iter(due)
        while batch := tuple(islice(remaining, self._batch_size)):
            are_marked = self._marks.are_marked([marking for marking, _ in batch])
            for (marking, size), is_marked in zip(batch, are_marked, strict=True):
                if is_marked:
                    yield marking
                elif self._admits(size):
                    self._uncounted[marking[0]] = size
                    yield marking
                else:
                    self._held += 1
                    self.first_held = marking[0] if self.first_held is None else self.first_held

    def count(self, batch: Sequence[Marking]) -> None:
        """Count admitted ledgers that are marked, or may be. Those that are not counted may be admitted again."""
        for ledger_id, _ in batch:
            self._uncounted.pop(ledger_id, None)

    def take_held_back_count(self) -> int:
        """Return the number of ledgers that a limit held back since the last call."""
        held, self._held = self._held, 0
        return held

    def _give_back_uncounted(self) -> None:
        if self._uncounted:
            self._ledgers -= len(self._uncounted)
            self._bytes -= sum(self._uncounted.values())
            self._is_exhausted = False
            self._uncounted.clear()

    def _admits(self, size: int) -> bool:
        marks_max, bytes_max = self._limits.marks_max, self._limits.bytes_max
        is_too_many = marks_max is not None and self._ledgers >= marks_max
        is_too_much = bytes_max is not None and self._ledgers > 0 and self._bytes + size > bytes_max
        if self._is_exhausted or is_too_many or is_too_much:
            self._is_exhausted = True
            return False
        self._ledgers += 1
        self._bytes += size
        return True
