"""Reads the rules of ``marking_times`` from the store, for every process that decides about marks."""

from __future__ import annotations

from bookie.metadata.bookies.maintenance import MaintenanceWindows
from bookie.metadata.bookies.marking_times import CRITICAL_DELAY_S, MarkingPolicy
from bookie.metadata.cluster import Cluster
from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks.underreplication import UnderReplication


class MarkingPolicies:
    """The rules of one cluster."""

    def __init__(
        self,
        store: MetadataStore,
        cluster: Cluster,
        tasks: UnderReplication,
        critical_delay_s: float = CRITICAL_DELAY_S,
    ) -> None:
        self._windows = MaintenanceWindows(store, cluster.root)
        self._tasks = tasks
        self._critical_delay_s = critical_delay_s

    async def read(self, now_ms: int, delay_s: int | None = None) -> MarkingPolicy:
        """Return the rules as they are now.

        Args:
            now_ms: the present time, epoch milliseconds.
            delay_s: the lost-bookie delay; None: it is read as well.

        Raises:
            InvalidDelayError: the delay that is stored is not a number of seconds.
            StoreUnavailableError: no answer.
        """
        if delay_s is None:
            delay_s = await self._tasks.switches.lost_bookie_delay_s()
        return MarkingPolicy(delay_s, self._critical_delay_s, await self._windows.open_at(now_ms))
