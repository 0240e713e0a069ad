"""When the ledgers of a lost bookie may be marked, and what holds them back until then. Pure.

All rules for a single bookie between its loss and a mark are here. The service, one-shot audits and the comparison
with another auditor use the same rules. The brake concerns the whole cluster and is applied earlier
(``spark_jobs.runs.marking.brake``).

There are two times for each bookie. From ``due_ms`` on, all of its ledgers are marked. A *critical* ledger has an entry
that had several copies and has one left. It does not wait as long, because a second loss would destroy this copy: it is
marked from ``critical_due_ms`` on, which is never later.

The invariant: ``due_ms`` is never before the end of the lost-bookie delay of this bookie (A4), unless an operator
waived the delay. Each rule can only make it later, and each has an end, so nothing is held back forever.

R rules are defined in docs/failure-model.md, A rules in docs/invariants.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.bookies.first_seen_down import Down
from bookie.metadata.bookies.maintenance import MaintenanceWindow
from bookie.metadata.bookies.rack_outage import RackOutage
from bookie.model.ids import BookieId

CRITICAL_DELAY_S: Final = 300.0
"""Longer than most restarts. If ledgers have two copies, every ledger of a lost bookie is critical, so after a shorter
delay the data of a restarting bookie would be copied."""


class HoldReason(enum.Enum):
    """Why the ledgers of a lost bookie are not marked yet."""

    DELAY = "delay"
    """Its lost-bookie delay has not passed."""
    MAINTENANCE = "maintenance"
    """A maintenance window is open."""
    RACK_OUTAGE = "rack_outage"
    """Its whole rack is lost, and may return."""
    FLAPPING = "flapping"
    """It was marked several times, and returned each time."""
    LIMIT = "limit"
    """The run reached its limit of ledgers or bytes. A reason for ledgers only, not for bookies."""


@dataclass(frozen=True, slots=True)
class MarkingTimes:
    """The times of one lost bookie, epoch milliseconds."""

    due_ms: int
    """Its ledgers may be marked from then on."""
    critical_due_ms: int
    """Its critical ledgers may be marked from then on; at most ``due_ms``."""
    reason: HoldReason = HoldReason.DELAY
    """Why its ledgers are held back: the rule that ends last."""
    detail: str = ""
    """Further information for an operator."""

    def no_earlier_than(self, time_ms: int) -> MarkingTimes:
        """Return these times, each moved to ``time_ms`` if it is earlier."""
        return MarkingTimes(max(self.due_ms, time_ms), max(self.critical_due_ms, time_ms), self.reason, self.detail)


@dataclass(frozen=True, slots=True)
class MarkingPolicy:
    """The rules at one moment."""

    delay_s: int = 0
    """The lost-bookie delay of the cluster."""
    critical_delay_s: float = CRITICAL_DELAY_S
    windows: Sequence[MaintenanceWindow] = ()
    """The open maintenance windows."""
    outages: Mapping[BookieId, RackOutage] = field(default_factory=dict)
    """Bookies with a rack outage."""
    flapping_until_ms: Mapping[BookieId, int] = field(default_factory=dict)
    """Flapping bookies, and the time by which each is expected to return."""

    @property
    def held_until_ms(self) -> Mapping[BookieId, int]:
        """When the rules that workers cannot evaluate themselves end, by bookie."""
        ends = dict(self.flapping_until_ms)
        for bookie, outage in self.outages.items():
            ends[bookie] = max(outage.until_ms, ends.get(bookie, 0))
        return ends

    def times(self, bookie: BookieId, down: Down) -> MarkingTimes:
        """Return the times of a lost bookie."""
        rules = tuple(self._rules(bookie, down))
        last = max(rules, key=lambda rule: rule.due_ms)
        critical_due_ms = max(rule.critical_due_ms for rule in rules)
        return MarkingTimes(last.due_ms, min(last.due_ms, critical_due_ms), last.reason, last.detail)

    def _rules(self, bookie: BookieId, down: Down) -> Iterator[MarkingTimes]:
        due_ms = down.delay_end_ms(self.delay_s)
        critical_end_ms = down.since_ms + int(self.critical_delay_s * 1000)
        yield MarkingTimes(due_ms, min(due_ms, critical_end_ms))
        for window in self.windows:
            if bookie in window.bookies:
                critical_due_ms = window.until_ms if window.holds_critical else min(window.until_ms, critical_end_ms)
                detail = f"{window.target}, by {window.by}"
                yield MarkingTimes(window.until_ms, critical_due_ms, HoldReason.MAINTENANCE, detail)
        if (outage := self.outages.get(bookie)) is not None:
            yield MarkingTimes(outage.until_ms, outage.until_ms, HoldReason.RACK_OUTAGE, f"rack {outage.rack}")
        if (until_ms := self.flapping_until_ms.get(bookie)) is not None:
            yield MarkingTimes(until_ms, min(until_ms, critical_end_ms), HoldReason.FLAPPING, "")
