"""gRPC's health service with a bound on watches.

A watch is a stream that lasts as long as its client wants, needs no token, and counts among the concurrent calls of a
server. A client with health checks has one for each channel.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]  # absent from the stubs
from typing_extensions import override

WATCHES_MAX: Final = 256
"""Maximum number of watches, in addition to a server's concurrent calls, so that watches do not displace requests."""


class BoundedHealth(health.HealthServicer):  # type: ignore[misc]  # as above
    """The health service of one server: one watch more than ``WATCHES_MAX`` is refused as RESOURCE_EXHAUSTED."""

    def __init__(self) -> None:
        super().__init__()
        self._watches = 0

    @override
    async def Watch(self, request: Any, context: Any) -> None:  # (gRPC's name)
        """Send the state and each of its changes."""
        if self._watches >= WATCHES_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHES_MAX} watches are open: use Check")
        self._watches += 1
        try:
            await super().Watch(request, context)
        finally:
            self._watches -= 1
