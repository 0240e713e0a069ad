"""Read the rules of ``marking_times`` from the store, for every process that decides about marks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookie.metadata.bookies.maintenance import MaintenanceWindows
from bookie.metadata.bookies.marking_times import CRITICAL_DELAY_S, MarkingPolicy
from bookie.metadata.bookies.rack_outage import RACK_OUTAGE_DELAY_S, Losses, RackOutage, rack_outages
from bookie.metadata.bookies.returned import FLAPPING_DELAY_S, ReturnedBookies, is_flapping
from bookie.metadata.bookies.topology import InvalidTopologyError, TopologyStore, parse_topology, topology_text
from bookie.metadata.cluster import Cluster
from bookie.metadata.port import AccessDeniedError, MetadataStore
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId
from bookie.model.topology import Topology

_log = logging.getLogger(__name__)

_LOSSES_MIN: Final = 2
"""With fewer lost bookies no rack is lost, and the topology is not read."""


@dataclass(frozen=True, slots=True)
class MarkingRules:
    """The rules set by options of an auditor."""

    critical_delay_s: float = CRITICAL_DELAY_S
    rack_outage_delay_s: float = RACK_OUTAGE_DELAY_S
    flapping_delay_s: float = FLAPPING_DELAY_S
    topology_file: Path | None = None
    """None: the topology is in the store."""


class MarkingPolicies:
    """The rules of one cluster."""

    def __init__(
        self, store: MetadataStore, cluster: Cluster, tasks: UnderReplication, rules: MarkingRules | None = None
    ) -> None:
        self._returned = ReturnedBookies(store, cluster.root)
        self._windows = MaintenanceWindows(store, cluster.root)
        self._topologies = TopologyStore(store, cluster)
        self._tasks = tasks
        self._rules = rules or MarkingRules()
        self._logged = ""
        """Why the topology could not be read the last time; empty if it could."""

    async def read(self, now_ms: int, losses: Losses, delay_s: int | None = None) -> MarkingPolicy:
        """Return the current rules.

        Args:
            now_ms: the present time, epoch milliseconds.
            losses: the lost bookies.
            delay_s: the lost-bookie delay; None to read it as well.

        Raises:
            InvalidDelayError: the stored delay is not a number of seconds.
            StoreUnavailableError: no answer.
        """
        if delay_s is None:
            delay_s = await self._tasks.switches.lost_bookie_delay_s()
        windows = await self._windows.open_at(now_ms)
        outages, flapping_until_ms = await self._outages(losses), await self._flapping_until_ms(losses)
        return MarkingPolicy(delay_s, self._rules.critical_delay_s, windows, outages, flapping_until_ms)

    async def _flapping_until_ms(self, losses: Losses) -> Mapping[BookieId, int]:
        """Return the time by which each flapping bookie is expected to return, unless an operator waived its delay."""
        if self._rules.flapping_delay_s <= 0 or not losses.noted:
            return {}
        ended = await self._returned.of(losses.noted.keys())
        return {
            bookie: down.since_ms + int(self._rules.flapping_delay_s * 1000)
            for bookie, down in losses.noted.items()
            if not down.is_delay_waived and is_flapping(ended.get(bookie, ()), down.since_ms)
        }

    async def _outages(self, losses: Losses) -> Mapping[BookieId, RackOutage]:
        if self._rules.rack_outage_delay_s <= 0 or len(losses.noted) < _LOSSES_MIN:
            return {}
        return rack_outages(losses, await self._topology(), self._rules.rack_outage_delay_s)

    async def _topology(self) -> Topology:
        """Return the topology; one that cannot or may not be read has no racks, so the rack rule holds nothing back."""
        try:
            if (text := topology_text(self._rules.topology_file)) is not None:
                found = parse_topology(text)
            else:
                found = (await self._topologies.read()).topology
        except (InvalidTopologyError, AccessDeniedError) as error:
            if str(error) != self._logged:
                _log.warning("topology cannot be read, no outage of a rack is recognized", extra={"error": str(error)})
            self._logged = str(error)
            return Topology()
        self._logged = ""
        return found
