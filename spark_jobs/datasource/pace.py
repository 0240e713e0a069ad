"""How fast a task reads from ZooKeeper: its share of what all tasks of a run may read together.

No message passes between tasks. A run divides its rate by the number of tasks that can run at the same time, so their
sum stays below the rate, also while other runs of the session are under way.
"""

from __future__ import annotations

from typing import Final

from bookie.runtime.clock import Clock

CHUNK_MAX: Final = 2_000
"""Nodes of one request: the fewest round trips at a size that decodes in a few milliseconds."""
_CHUNK_MIN: Final = 20
_CHUNK_S: Final = 0.1
"""Of reading at the rate in one request: small requests in a steady stream let other clients' requests pass between."""


class Pace:
    """Admits requests of one task."""

    def __init__(self, clock: Clock, nodes_per_s: float = 0.0) -> None:
        """Only stores.

        Args:
            clock: to wait with.
            nodes_per_s: nodes that the task may read per second; 0: as many as it can.
        """
        self._clock = clock
        self._nodes_per_s = nodes_per_s
        self._free_s = 0.0
        """When the nodes that were admitted until now are read at the rate."""

    @property
    def chunk(self) -> int:
        """Nodes of one request, at most."""
        if not self._nodes_per_s:
            return CHUNK_MAX
        return min(CHUNK_MAX, max(_CHUNK_MIN, int(self._nodes_per_s * _CHUNK_S)))

    async def admit(self, nodes: int) -> None:
        """Wait until a request for ``nodes`` nodes may be sent."""
        if not self._nodes_per_s:
            return
        now_s = self._clock.monotonic_s()
        starts_s = max(now_s, self._free_s)
        self._free_s = starts_s + nodes / self._nodes_per_s
        if starts_s > now_s:
            await self._clock.sleep(starts_s - now_s)


def task_share(nodes_per_s: float, tasks: int, slots_max: int | None) -> float:
    """Return the nodes per second for one task.

    Args:
        nodes_per_s: of all tasks together; 0: no limit, for the task neither.
        tasks: of the job.
        slots_max: tasks that may run at the same time; None: unknown, so all tasks of the job may.
    """
    return nodes_per_s / max(1, tasks if slots_max is None else slots_max)
