"""Order the marks of a check that proceeds in chunks, if the run has limits (R73). Pure.

Such a check finds the worst ledgers of the cluster only at its end. So a run with limits waits with its new marks until
then, and marks the worst of all chunks. Ledgers with one copy left do not wait, because nothing that can be repaired is
more urgent: each chunk marks its own. Without limits, every chunk is marked at once.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from bookie.model.ids import LedgerId
from bookie.model.severity import Severity
from spark_jobs.runs.marking.held_back import LedgerWithFindings
from spark_jobs.runs.marking.limits import DueLedger
from spark_jobs.runs.marking.publish import Marking

WAITING_MAX: Final = 100_000
"""Largest number of ledgers that wait, and twice as many while they are added: about 100 MB. If there are more, those
that are the least urgent are left to the next run."""

Place = tuple[int, LedgerId]
"""The place of a ledger in the order of marking: the rank of its worst severity, then its id."""


class WaitingLedgers:
    """The ledgers that wait for the end of the run."""

    def __init__(self, count_max: int = WAITING_MAX) -> None:
        self._count_max = count_max
        self._ledgers: dict[LedgerId, LedgerWithFindings] = {}
        self._marked: set[LedgerId] = set()
        """The ledgers that did not wait for the end of the run; at most ``count_max``."""
        self._first_left: Place | None = None
        """The first ledger in the order of marking for which there was no room."""
        self.left = 0
        """Number of ledgers for which there was no room. They come after all others."""

    def __len__(self) -> int:
        return len(self._ledgers)

    def add(self, ledgers: Iterable[LedgerWithFindings]) -> None:
        """Add ledgers of a chunk. A ledger that already waits is replaced, because its chunk was read again."""
        for ledger in ledgers:
            if self._first_left is not None and place_of(ledger) >= self._first_left:
                self.left += 1
                continue
            self._ledgers[ledger.ledger_id] = ledger
            if len(self._ledgers) >= 2 * self._count_max:
                self._leave_last()

    def is_urgent(self, ledger: LedgerWithFindings) -> bool:
        """Return whether a ledger is marked with its chunk: it has one copy left."""
        return ledger.severity_rank == Severity.CRITICAL and len(self._marked) < self._count_max

    def note_marked(self, batch: Sequence[Marking]) -> None:
        """Let ledgers wait no longer, because they are marked, or may be."""
        for ledger_id, _ in batch:
            if self._ledgers.pop(ledger_id, None) is not None:
                self._marked.add(ledger_id)

    @property
    def marked(self) -> AbstractSet[LedgerId]:
        """The ledgers that waited and were marked."""
        return self._marked

    def in_order(self) -> Iterator[DueLedger]:
        """Yield the waiting ledgers, the worst first."""
        self._leave_last()
        for ledger in sorted(self._ledgers.values(), key=place_of):
            yield (ledger.ledger_id, ledger.missing), ledger.bytes_estimate

    def first_not_marked(self, first_held: LedgerId | None) -> Place | None:
        """Return the place of the first ledger that was not marked; None: all were.

        Args:
            first_held: the first ledger of ``in_order`` that a limit held back; None: none was.
        """
        return self._first_left if first_held is None else place_of(self._ledgers[first_held])

    def _leave_last(self) -> None:
        in_order = sorted(self._ledgers.values(), key=place_of)
        for ledger in in_order[self._count_max :]:
            del self._ledgers[ledger.ledger_id]
            self.left += 1
        if len(in_order) > self._count_max:
            self._first_left = place_of(in_order[self._count_max])


def place_of(ledger: LedgerWithFindings) -> Place:
    """Return the place of a ledger in the order of marking."""
    return ledger.severity_rank, ledger.ledger_id
