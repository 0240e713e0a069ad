"""Keeps a ``Placement`` up to date: with the topology and the drains in the store, and the free space of bookies."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from bookie.client.placement.free_space import FreeSpace
from bookie.client.placement.placement import Placement
from bookie.metadata.bookies.drains import Drains, SeenDrains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.topology import InvalidTopologyError, StoredTopology, TopologyStore, parse_topology
from bookie.metadata.cluster import Cluster
from bookie.metadata.port import MetadataStore
from bookie.model.errors import PermanentError, TransientError
from bookie.model.spread import DEFAULT_PLACEMENT_POLICY, PlacementPolicy
from bookie.runtime.clock import Clock
from bookie.runtime.fault_points import fault_point
from bookie.wire.port import Transport

_log: Final = logging.getLogger(__name__)

_RETRY_S: Final = 5.0
"""Pause after the store did not answer or a node was invalid. The last topology remains in use."""


async def load_placement(
    store: MetadataStore,
    cluster: Cluster,
    file_text: str | None = None,
    policy: PlacementPolicy = DEFAULT_PLACEMENT_POLICY,
) -> Placement:
    """Return a placement with the topology in ``file_text``, or without a file, with the current one in the store.

    Args:
        store: the source of the topology if there is no file.
        cluster: the cluster of the topology.
        file_text: content of a topology file, which is used instead of the topology in the store.
        policy: how ensembles must be spread.

    Raises:
        InvalidTopologyError: the file is invalid; or the node is invalid, and the policy is strict. If the policy is
            not strict, an invalid node, which other software (Pulsar) may have written, is logged, and all bookies
            count as one rack.
        StoreUnavailableError: no answer.
    """
    if file_text is not None:
        return Placement(policy, parse_topology(file_text))
    topologies = TopologyStore(store, cluster)
    try:
        return Placement(policy, (await topologies.read()).topology)
    except InvalidTopologyError as error:
        if policy.is_strict:
            raise
        if topologies.is_news(str(error)):
            _log.warning(
                "topology cannot be read, so copies are placed without regard to racks until it is corrected",
                extra={"error": str(error)},
            )
        return Placement(policy)


def make_placement_feed(
    placement: Placement,
    store: MetadataStore,
    cluster: Cluster,
    transport: Transport,
    clock: Clock,
    *,
    is_from_file: bool = False,
) -> PlacementFeed:
    """Return a feed that keeps a loaded placement up to date; ``run`` it as a task while the placement is in use."""
    return PlacementFeed(
        placement,
        clock,
        topologies=None if is_from_file else TopologyStore(store, cluster),
        free_space=FreeSpace(Registrations(store, cluster), transport, clock),
        drains=Drains(store, cluster.root),
    )


class PlacementFeed:
    """Updates a placement with the topology in the store, the drains, and the free space of the bookies."""

    def __init__(
        self,
        placement: Placement,
        clock: Clock,
        *,
        topologies: TopologyStore | None,
        free_space: FreeSpace | None,
        drains: Drains | None = None,
    ) -> None:
        """Prepare the feed.

        Args:
            placement: the placement to keep up to date.
            clock: for pauses after errors.
            topologies: the watched topology; None if it is from a file and does not change.
            free_space: the weights of the bookies; None to choose all of them equally often.
            drains: the drains, whose bookies are not chosen; None if only their registrations count.
        """
        self._placement = placement
        self._clock = clock
        self._topologies = topologies
        self._free_space = free_space
        self._drains = drains

    async def run(self) -> None:
        """Update the placement until cancelled. A failed read is logged and retried; the last value remains in use."""
        if self._free_space is not None:
            self._placement.free_bytes = self._free_space.known
        async with asyncio.TaskGroup() as group:
            if self._topologies is not None:
                group.create_task(self._follow(self._topologies))
            if self._free_space is not None:
                group.create_task(self._free_space.run())
            if self._drains is not None:
                group.create_task(self._follow_drains(self._drains))

    async def _follow(self, topologies: TopologyStore) -> None:
        seen: StoredTopology | None = None
        while True:
            try:
                if seen is None or fault_point("placement.read_topology_again"):
                    seen = await topologies.read()
                else:
                    seen = await topologies.wait_changed(seen)
            except InvalidTopologyError as error:
                if topologies.is_news(str(error)):
                    _log.warning("topology cannot be read, the last one stays in use", extra={"error": str(error)})
            except (TransientError, PermanentError) as error:
                _log.info("topology cannot be watched, trying again", extra={"error": str(error)})
            else:
                self._install(seen)
                continue
            await self._clock.sleep(_RETRY_S)

    async def _follow_drains(self, drains: Drains) -> None:
        seen: SeenDrains | None = None
        while True:
            try:
                seen = await drains.see() if seen is None else await drains.wait_changed(seen)
            except (TransientError, PermanentError) as error:
                _log.info("drains cannot be read, trying again", extra={"error": str(error)})
                seen = None
                await self._clock.sleep(_RETRY_S)
            else:
                self._placement.draining = seen.bookies

    def _install(self, seen: StoredTopology) -> None:
        if seen.topology != self._placement.topology:
            self._placement.topology = seen.topology
            count = len(seen.topology.locations)
            _log.info("topology changed", extra={"path": seen.path, "bookies": count})
