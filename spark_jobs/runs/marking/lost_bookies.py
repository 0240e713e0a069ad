"""The lost bookies that an audit may act on. Pure.

Bookies restart, and copying their ledgers during a restart would be wasted. So an audit does not act on a lost bookie
until it is due (``bookie.metadata.bookies.marking_times``). Apache's auditor acts immediately if two bookies are lost.
Here each bookie has its own delay. Otherwise a rolling restart with two bookies down at the same time would start
repair.

A bookie that is not due may be due for its critical ledgers. The mark of such a ledger names the due bookies, and those
members of its critical fragments that are due for critical ledgers. It names no others (R70). The worker follows the
same rule. It replaces a named member. For a member that no task names, it waits until the delay of this member is over
(R39).

Source: ``lostBookieRecoveryDelay``, docs/formats.md#auditor-checks. R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bookie.metadata.bookies.first_seen_down import Down
from bookie.metadata.bookies.marking_times import MarkingPolicy, MarkingTimes
from bookie.model.ids import BookieId
from spark_jobs.report.counts import FindingSums, WaitingBookie
from spark_jobs.runs.marking.held_back import HeldBookies


@dataclass(frozen=True, slots=True)
class LostBookies:
    """The lost bookies at one time. Lost bookies without a record are due: they have no cookie and will not return."""

    noted: Mapping[BookieId, Down] = field(default_factory=dict)
    policy: MarkingPolicy = field(default_factory=MarkingPolicy)
    now_ms: int = 0

    @property
    def waiting(self) -> Mapping[BookieId, MarkingTimes]:
        """Recorded bookies that are not due yet, with their times."""
        times = {bookie: self.policy.times(bookie, down) for bookie, down in self.noted.items()}
        return {bookie: time for bookie, time in times.items() if time.due_ms > self.now_ms}

    @property
    def due(self) -> Mapping[BookieId, Down]:
        """Recorded bookies that are due."""
        waiting = self.waiting
        return {bookie: down for bookie, down in self.noted.items() if bookie not in waiting}

    @property
    def critical_due(self) -> Mapping[BookieId, Down]:
        """Waiting bookies that are due for their critical ledgers."""
        return {bookie: self.noted[bookie] for bookie, time in self.waiting.items() if self._is_critical_due(time)}

    @property
    def held(self) -> HeldBookies:
        """The bookies that a run leaves out of its marks."""
        waiting = self.waiting
        return HeldBookies(
            waiting, frozenset(bookie for bookie, time in waiting.items() if self._is_critical_due(time))
        )

    def waiting_bookies_by_id(self, sums: FindingSums) -> tuple[WaitingBookie, ...]:
        """Return the waiting bookies for the summary, by id."""
        return tuple(
            WaitingBookie(
                bookie,
                self.noted[bookie].since_ms,
                time.due_ms,
                sums.by_bookie.get(bookie, (0, 0))[0],
                time.critical_due_ms,
                time.reason.value,
                time.detail,
            )
            for bookie, time in sorted(self.waiting.items())
        )

    def _is_critical_due(self, time: MarkingTimes) -> bool:
        return time.critical_due_ms <= self.now_ms
