"""Decide whether a whole rack is lost: its power or its switch failed, and its bookies will return together. Pure.

If every known bookie of a rack disappears within a short time, copying the rack's data would fill the other racks, and
the original copies may be back soon. So it counts as an outage of the rack. Nothing is marked because of its bookies
until ``delay_s`` after the last loss, not even ledgers with one copy left (R72). The return of one bookie ends the
outage; the others are then ordinary lost bookies. An operator may waive the delay (``bkheal recover``); waived losses
are not held back.

The invariant: the rule holds no bookie of the rack longer than ``RACK_OUTAGE_DELAY_S_MAX`` after the last loss. Bookies
without a location in the topology are in no rack. The rule needs a registered bookie in another rack: without one,
nothing shows that the rack is the cause, and the brake decides.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from bookie.metadata.bookies.first_seen_down import Down
from bookie.model.ids import BookieId
from bookie.model.topology import Location, Topology

RACK_OUTAGE_DELAY_S: Final = 3600.0
"""Within an hour, people notice and repair the power or the switch of a rack, or know that they cannot."""
RACK_OUTAGE_DELAY_S_MAX: Final = 7 * 86_400
AT_ONCE_S: Final = 600
"""Longest time between the first and the last loss of a rack. Sessions end within a minute of each other. An auditor
started during the outage records all losses at the same time."""
_BOOKIES_MIN: Final = 2
"""If a rack with a single bookie is lost, this counts as the loss of a bookie."""


@dataclass(frozen=True, slots=True)
class Losses:
    """The lost bookies, and the remaining ones."""

    known: AbstractSet[BookieId]
    """Bookies with a cookie."""
    registered: AbstractSet[BookieId]
    noted: Mapping[BookieId, Down]


@dataclass(frozen=True, slots=True)
class RackOutage:
    """The outage of a lost bookie's rack."""

    rack: Location
    until_ms: int
    """Epoch milliseconds."""


def rack_outages(losses: Losses, topology: Topology, delay_s: float) -> Mapping[BookieId, RackOutage]:
    """Return the bookies held back by an outage of their rack; a ``delay_s`` of 0 switches the rule off."""
    racks: defaultdict[Location, list[BookieId]] = defaultdict(list)
    for bookie in losses.known | losses.registered:
        if (rack := topology.known(bookie)) is not None:
            racks[rack].append(bookie)
    are_left = {rack: not losses.registered.isdisjoint(bookies) for rack, bookies in racks.items()}
    if delay_s <= 0 or not any(are_left.values()):
        return {}
    found: dict[BookieId, RackOutage] = {}
    for rack, bookies in racks.items():
        since_ms = [losses.noted[bookie].since_ms for bookie in bookies if bookie in losses.noted]
        is_gone = not are_left[rack] and len(bookies) >= _BOOKIES_MIN and len(since_ms) == len(bookies)
        if not is_gone or max(since_ms) - min(since_ms) > AT_ONCE_S * 1000:
            continue
        outage = RackOutage(rack, max(since_ms) + int(min(delay_s, RACK_OUTAGE_DELAY_S_MAX) * 1000))
        found |= {bookie: outage for bookie in bookies if not losses.noted[bookie].is_delay_waived}
    return found
