"""The oracle of the copy limits: all workers together stay within them, and critical copies get their own rate.

While an operator's limits apply, targets receive no more than both rates together allow. A request for a ledger with
one copy left must not wait if the worker's share of the critical rate was sufficient for all such requests before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from replicator.copying.pace import CRITICAL_RANK, CopyPace

if TYPE_CHECKING:
    from tests.simulation.nodes import SimClient
    from tests.simulation.world import SimWorld

WORKERS: Final = 2
APPLIED_S: Final = 10.0
"""How long after a change of the limits each worker has read them, and the others have noticed its copies."""
SPARE_S: Final = 4.0
"""How many seconds of a rate may come in one burst: the unused part, and the bytes in flight at the oracle's start."""
AT_ONCE_S: Final = 0.2
_BEFORE: Final = ("before_add", "before_read")


class Limits:
    """Counts the bytes that all workers of a history send while limits apply."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._sent = 0
        self._largest = 0
        self._paid_s: dict[str, float] = {}
        """When each worker's share of the critical rate is sufficient for its requests so far."""

    def changed(self) -> None:
        """Note that other limits apply from now on."""
        self._sent = 0

    @property
    def are_applied(self) -> bool:
        """Whether the limits have applied so long that every worker must observe them."""
        return self._world.limits is not None and self._world.loop.time() - self._world.limits_changed_s > APPLIED_S

    def sent(self, who: str, size_bytes: int) -> None:
        """Note that a worker sends copies to a target."""
        limits = self._world.limits
        self._largest = max(self._largest, size_bytes)
        if limits is None or not self.are_applied:
            return
        self._sent += size_bytes
        seconds = self._world.loop.time() - self._world.limits_changed_s - APPLIED_S
        rate = limits.bytes_per_second + limits.critical_bytes_per_second
        allowed = rate * (seconds + SPARE_S) + 8 * WORKERS * self._largest
        if self._sent > allowed:
            self._world.truth.fail("PACE", f"{who} copies: {self._sent} bytes in {seconds:.1f} s, {rate} are allowed")

    def watch(self, client: SimClient, pace: CopyPace) -> None:
        """Observe from now on how long the copies of a worker wait."""
        for name in _BEFORE:
            setattr(pace, name, self._timed(client, pace, getattr(pace, name)))

    def _timed(
        self, client: SimClient, pace: Any, before: Callable[[Any, int, int], Awaitable[None]]
    ) -> Callable[[Any, int, int], Awaitable[None]]:
        loop = self._world.loop

        async def timed(bookie: Any, size_bytes: int, rank: int) -> None:
            since_s, limits = loop.time(), self._world.limits
            if rank != CRITICAL_RANK or limits is None:
                await before(bookie, size_bytes, rank)
                return
            cost_s = size_bytes * WORKERS / limits.critical_bytes_per_second
            is_open = pace._is_open.is_set()
            is_judged = is_open and self.are_applied and self._paid_s.get(client.process.name, 0.0) <= since_s
            self._charge(client.process.name, cost_s)
            await before(bookie, size_bytes, rank)
            if not is_open:  # it was counted before it was sent
                self._charge(client.process.name, cost_s)
            waited_s = loop.time() - since_s
            is_held = client.process.held_until_s > since_s
            if is_judged and waited_s > AT_ONCE_S and not is_held and self._world.limits is limits:
                self._world.truth.fail(
                    "PACE", f"{client.process.name} waits {waited_s:.1f} s with a copy of a ledger with one copy left"
                )

        return timed

    def _charge(self, who: str, cost_s: float) -> None:
        self._paid_s[who] = max(self._paid_s.get(who, 0.0), self._world.loop.time()) + cost_s
