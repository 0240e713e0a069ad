"""Decide when a task may send its next request for nodes, and how many nodes it may ask for.

The limits hold over any period, except for requests in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from bookie.runtime.clock import Clock
from spark_jobs.pacing.budget import FREE, TaskBudget
from spark_jobs.pacing.feedback import CHUNKS_IN_FLIGHT, FIRST_MEASUREMENTS, NODES_PER_REQUEST_MIN, Feedback

CHUNK_MAX: Final = 2_000
"""Largest number of nodes in one request. There are few round trips, and an answer decodes in a few milliseconds."""
_CHUNK_S: Final = 0.1
"""A request has at most the nodes of this time at the rate. Between such small requests, the server can serve other
clients."""
NODE_BYTES: Final = 256
"""Size of an average node. If nodes are larger, a request has fewer of them."""
_NEWEST: Final = 0.5
"""Weight of the newest request in the average size of nodes."""

Probe = Callable[[], Awaitable[object]]
"""A function that reads one small node."""


@dataclass(slots=True)
class AdmittedRead:
    """A request that was admitted."""

    size: int = 0
    """Size of the answer in bytes, which the caller sets."""


class Pace:
    """Admits requests of one task."""

    def __init__(self, clock: Clock, budget: TaskBudget = FREE, in_flight: int = CHUNKS_IN_FLIGHT) -> None:
        """Only store the arguments.

        Args:
            clock: for waits and measurements.
            budget: the limits of the task if no other run is reading.
            in_flight: number of requests that the caller sends at a time.
        """
        self._clock = clock
        self._whole = budget
        self._feedback = Feedback(budget.latency_factor) if budget.latency_factor else None
        self._in_flight = in_flight
        self._is_measuring = False
        self.divide(budget.readers)
        self._turn = asyncio.Lock()
        self._node_bytes = float(NODE_BYTES)
        self._free_s = 0.0
        """Time at which all nodes admitted so far would be read, at the rate."""
        self._bytes_free_s = 0.0
        """Time at which all bytes received so far would be read, at the rate."""
        self._look_s: float | None = None
        """Time of the next measurement; None: nothing was measured yet."""

    def divide(self, readers: int) -> None:
        """Use the limits divided by ``readers`` from now on."""
        self._budget = self._whole.divided(readers)
        if self._feedback is not None:
            self._feedback.least_nodes_per_s = self._budget.least_nodes_per_s

    @property
    def is_free(self) -> bool:
        """Whether there is no limit."""
        return self._whole.is_free

    @property
    def chunk(self) -> int:
        """Largest number of nodes in one request."""
        weight = max(1.0, self._node_bytes / NODE_BYTES)
        most = [float(CHUNK_MAX)]
        if self._budget.nodes_per_s:
            most.append(self._budget.nodes_per_s * _CHUNK_S)
        if self._budget.bytes_per_s:
            most.append(self._budget.bytes_per_s / self._node_bytes * _CHUNK_S)
        if self._feedback is not None:
            most.append(self._feedback.window / self._in_flight / weight)
        return int(max(1.0, NODES_PER_REQUEST_MIN / weight, min(most)))

    @asynccontextmanager
    async def reading(self, nodes: int, *, is_list: bool = False) -> AsyncIterator[AdmittedRead]:
        """Wait until a request for ``nodes`` nodes may be sent; the body sends it and sets the size of its answer.

        Args:
            nodes: number of nodes to read, or to list the children of.
            is_list: whether the request lists children. The answer then does not count for the average size of nodes.
        """
        if self.is_free:
            yield AdmittedRead()
            return
        async with self._turn:
            await self._admitted(nodes)
        request = AdmittedRead()
        yield request
        if not is_list:
            self._node_bytes += (max(1.0, request.size / max(1, nodes)) - self._node_bytes) * _NEWEST
        if self._budget.bytes_per_s:
            now_s = self._clock.monotonic_s()
            self._bytes_free_s = max(self._bytes_free_s, now_s) + request.size / self._budget.bytes_per_s

    async def measure_if_due(self, probe: Probe, every_s: float | None = None) -> bool:
        """Measure the latency if it is due. Call it where nothing is decoded until it returns.

        Args:
            probe: reads one small node, without a pace.
            every_s: longest interval between two reads of the node, which holds even if the latency does not matter;
                None: no such interval.

        Returns:
            Whether the node was read.
        """
        if self.is_free or (self._feedback is None and every_s is None) or self._is_measuring:
            return False
        if self._look_s is not None and self._clock.monotonic_s() < self._look_s:
            return False
        self._is_measuring = True
        try:
            after_s = await self._measured(self._feedback, probe)
        finally:
            self._is_measuring = False
        self._look_s = self._clock.monotonic_s() + min(after_s, after_s if every_s is None else every_s)
        return True

    async def _measured(self, feedback: Feedback | None, probe: Probe) -> float:
        """Measure, and return when to measure again."""
        if feedback is None:
            await probe()
            return float("inf")
        if self._look_s is None:
            for _ in range(FIRST_MEASUREMENTS):
                feedback.begin(await self._seconds(probe))
        else:
            feedback.seen(await self._seconds(probe))
        return feedback.next_measurement_s

    async def _seconds(self, probe: Probe) -> float:
        started_s = self._clock.monotonic_s()
        await probe()
        return self._clock.monotonic_s() - started_s

    async def _admitted(self, nodes: int) -> None:
        now_s = self._clock.monotonic_s()
        starts_s = max(now_s, self._free_s, self._bytes_free_s)
        rates = (self._budget.nodes_per_s, 0.0 if self._feedback is None else self._feedback.nodes_per_s)
        rate = min((each for each in rates if each), default=0.0)
        if rate:
            self._free_s = starts_s + nodes / rate
        if starts_s > now_s:
            await self._clock.sleep(starts_s - now_s)
