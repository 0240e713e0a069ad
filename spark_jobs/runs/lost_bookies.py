"""The lost bookies on which an audit may act: those after their delay. Pure.

Bookies restart, and copying their ledgers in the meantime would be wasted. So a lost bookie is left alone until it has
been down for the delay, counted from when an auditor first saw it down. Unlike Apache's auditor, which acts at once
when two are lost, each bookie has its own delay: otherwise a rolling restart in which two are down together would start
repair.

Source: ``lostBookieRecoveryDelay``, docs/formats.md#auditor-checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bookie.metadata.bookies.first_seen_down import Down
from bookie.model.ids import BookieId
from bookie.model.times import rfc3339
from spark_jobs.report.summary import FindingSums, WaitingBookie


@dataclass(frozen=True, slots=True)
class LostBookies:
    """The lost bookies of one moment. Those without a note are due: they have no cookie, so none will come back."""

    noted: Mapping[BookieId, Down] = field(default_factory=dict)
    delay_s: int = 0
    now_ms: int = 0

    @property
    def waiting(self) -> Mapping[BookieId, int]:
        """Bookies whose delay is not over, with its end in epoch milliseconds."""
        ends = {bookie: down.due_ms(self.delay_s) for bookie, down in self.noted.items()}
        return {bookie: end for bookie, end in ends.items() if end > self.now_ms}

    @property
    def waiting_until(self) -> Mapping[BookieId, str]:
        """As ``waiting``, with times as text."""
        return {bookie: rfc3339(end) for bookie, end in self.waiting.items()}

    @property
    def due(self) -> Mapping[BookieId, Down]:
        """Recorded bookies after their delay."""
        return {bookie: down for bookie, down in self.noted.items() if bookie not in self.waiting}

    def in_report(self, sums: FindingSums) -> tuple[WaitingBookie, ...]:
        """The waiting bookies for the summary, by id."""
        return tuple(
            WaitingBookie(bookie, self.noted[bookie].since_ms, end, sums.by_bookie.get(bookie, (0, 0))[0])
            for bookie, end in sorted(self.waiting.items())
        )
