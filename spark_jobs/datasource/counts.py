"""Counts of one partition of a scan, as values for the summary row. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from bookie.model.metadata import LedgerState
from spark_jobs.image.carried import Tally

_SINGLE_MAX: Final = 10_000
"""Number of ensembles that are collected before they are counted: counting in bulk is several times faster."""


@dataclass(slots=True)
class ScanCounts:
    """Counts of one partition, filled while it is read. ``listed = ledgers + unreadable + vanished + skipped``."""

    ledgers: int = 0
    """Ledgers with readable metadata, including ``carried``."""
    fragments: int = 0
    unreadable: int = 0
    vanished: int = 0
    """Ledgers deleted between listing and reading, which is normal (S15)."""
    skipped: int = 0
    """Ledgers outside the requested range of ids, which were not read."""
    returned: int = 0
    """Rows returned by the source, including unreadable ones."""
    carried: int = 0
    """Those of ``ledgers`` carried over from an image without being read."""
    carried_problem: str = ""
    """Why some ledgers could not be carried over from the image."""
    parents: list[tuple[str, int, int]] = field(default_factory=list)
    """For each node that was listed: its path, the planned number of children, and the number of listed ledgers."""
    _states: list[int] = field(default_factory=lambda: [0] * (1 + max(state.value for state in LedgerState)))
    _ledgers_by_bookie: Counter[str] = field(default_factory=Counter)
    _fragments_by_bookie: Counter[str] = field(default_factory=Counter)
    _single: list[Sequence[str]] = field(default_factory=list)
    """Ensembles of ledgers with one fragment, not counted yet."""

    def add(self, state: int, ensembles: Sequence[Sequence[str]]) -> None:
        """Count one ledger by the wire value of its state and the ensembles of its fragments."""
        self.ledgers += 1
        self._states[state] += 1
        if len(ensembles) == 1:
            self._single.append(ensembles[0])
            if len(self._single) > _SINGLE_MAX:
                self._count_single()
        else:
            self.fragments += len(ensembles)
            self._ledgers_by_bookie.update(set().union(*ensembles))
            self._fragments_by_bookie.update(chain.from_iterable(map(set, ensembles)))

    def carry(self, closed: Tally) -> None:
        """Count closed ledgers that were carried over without being read."""
        self.ledgers += closed.ledgers
        self.carried += closed.ledgers
        self.fragments += closed.fragments
        self._states[LedgerState.CLOSED.value] += closed.ledgers
        self._ledgers_by_bookie.update(closed.ledgers_by_bookie)
        self._fragments_by_bookie.update(closed.fragments_by_bookie)

    def summary(self) -> Mapping[str, Any]:
        """Return the counts as the value of the column ``summary``."""
        self._count_single()
        return {
            "parents": [{"path": path, "planned": planned, "listed": listed} for path, planned, listed in self.parents],
            "ledgers": self.ledgers,
            "fragments": self.fragments,
            "unreadable": self.unreadable,
            "vanished": self.vanished,
            "skipped": self.skipped,
            "returned": self.returned,
            "carried": self.carried,
            "carried_problem": self.carried_problem,
            "open": self._states[LedgerState.OPEN.value],
            "in_recovery": self._states[LedgerState.IN_RECOVERY.value],
            "closed": self._states[LedgerState.CLOSED.value],
            "bookies": [
                {"bookie_id": bookie, "ledgers": ledgers, "fragments": self._fragments_by_bookie[bookie]}
                for bookie, ledgers in sorted(self._ledgers_by_bookie.items())
            ],
        }

    def _count_single(self) -> None:
        counts = Counter(chain.from_iterable(map(set, self._single)))
        self._ledgers_by_bookie.update(counts)
        self._fragments_by_bookie.update(counts)
        self.fragments += len(self._single)
        self._single.clear()
