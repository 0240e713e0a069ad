"""From when the ledgers of a lost bookie may be marked, and what holds them back until then. Pure.

Everything between a loss and a mark that concerns a single bookie is decided here, for the service, for one-shot audits
and for the comparison with another auditor alike. The brake, which concerns the whole cluster, comes before
(``spark_jobs.runs.brake``).

There are two times for each bookie. From ``due_ms`` on, all of its ledgers are marked. A *critical* ledger, one with an
entry that has one copy left of several, does not wait so long: a second loss would take its last copy. It is marked
from ``critical_due_ms`` on, which is never later.

The invariant: ``due_ms`` is never before the end of the lost-bookie delay of this bookie (A4), except if an operator
waived the delay. Each rule can only make it later, and each has an end, so nothing is held back forever.

R rules are defined in docs/failure-model.md, A rules in docs/invariants.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.bookies.first_seen_down import Down
from bookie.metadata.bookies.maintenance import Window
from bookie.metadata.bookies.rack_outage import RackOutage
from bookie.model.ids import BookieId

CRITICAL_DELAY_S: Final = 300.0
"""Longer than most restarts. If ledgers have two copies, every ledger of a lost bookie is critical, so a shorter delay
would copy a bookie that restarts."""


class HoldReason(enum.Enum):
    """Why the ledgers of a lost bookie are not marked yet."""

    DELAY = "delay"
    """Its lost-bookie delay is not over."""
    MAINTENANCE = "maintenance"
    """A maintenance window is open."""
    RACK_OUTAGE = "rack_outage"
    """Its whole rack is gone, and may return."""
    FLAPPING = "flapping"
    """It was marked several times, and returned each time."""
    LIMIT = "limit"
    """The run marked as many ledgers, or bytes, as it may. Of ledgers only, not of bookies."""


@dataclass(frozen=True, slots=True)
class MarkingTimes:
    """The times of one lost bookie, epoch milliseconds."""

    due_ms: int
    """Its ledgers may be marked from then on."""
    critical_due_ms: int
    """Its critical ledgers may be marked from then on; at most ``due_ms``."""
    reason: HoldReason = HoldReason.DELAY
    """The rule that ends last."""
    detail: str = ""
    """What an operator should know besides."""

    def no_earlier_than(self, time_ms: int) -> MarkingTimes:
        """The same, and nothing is due before ``time_ms``."""
        return MarkingTimes(max(self.due_ms, time_ms), max(self.critical_due_ms, time_ms), self.reason, self.detail)


@dataclass(frozen=True, slots=True)
class MarkingPolicy:
    """The rules of one moment."""

    delay_s: int = 0
    """The lost-bookie delay of the cluster."""
    critical_delay_s: float = CRITICAL_DELAY_S
    windows: Sequence[Window] = ()
    """The maintenance windows that are open."""
    outages: Mapping[BookieId, RackOutage] = field(default_factory=dict)
    """Bookies whose whole rack is gone."""
    flapping_until_ms: Mapping[BookieId, int] = field(default_factory=dict)
    """Bookies that return again and again, and until when they are expected to do so."""

    @property
    def held_until_ms(self) -> Mapping[BookieId, int]:
        """The ends of the rules that workers cannot see by themselves."""
        ends = dict(self.flapping_until_ms)
        for bookie, outage in self.outages.items():
            ends[bookie] = max(outage.until_ms, ends.get(bookie, 0))
        return ends

    def times(self, bookie: BookieId, down: Down) -> MarkingTimes:
        """Return the times of a bookie that is down."""
        rules = tuple(self._rules(bookie, down))
        last = max(rules, key=lambda rule: rule.due_ms)
        critical_due_ms = max(rule.critical_due_ms for rule in rules)
        return MarkingTimes(last.due_ms, min(last.due_ms, critical_due_ms), last.reason, last.detail)

    def _rules(self, bookie: BookieId, down: Down) -> Iterator[MarkingTimes]:
        due_ms = down.delay_end_ms(self.delay_s)
        yield MarkingTimes(due_ms, min(due_ms, down.since_ms + int(self.critical_delay_s * 1000)))
        for window in self.windows:
            if bookie in window.bookies:
                critical_due_ms = window.until_ms if window.holds_critical else down.since_ms
                detail = f"{window.target}, by {window.by}"
                yield MarkingTimes(window.until_ms, critical_due_ms, HoldReason.MAINTENANCE, detail)
        if (outage := self.outages.get(bookie)) is not None:
            yield MarkingTimes(outage.until_ms, outage.until_ms, HoldReason.RACK_OUTAGE, f"rack {outage.rack}")
        if (until_ms := self.flapping_until_ms.get(bookie)) is not None:
            critical_due_ms = min(until_ms, down.since_ms + int(self.critical_delay_s * 1000))
            yield MarkingTimes(until_ms, critical_due_ms, HoldReason.FLAPPING, "")
