"""What makes a process observable, started and stopped together: heartbeat and HTTP server around its metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from bookie.runtime.clock import Clock
from bookie.runtime.tasks import cancel, guarded
from bookie.runtime.telemetry.heartbeat import Heartbeat
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.runtime.telemetry.status_pages import Check, Health
from bookie.runtime.telemetry.status_server import StatusServer, StatusServerSettings


@asynccontextmanager
async def observable(
    settings: StatusServerSettings | None,
    metrics: MetricSet,
    ready: Mapping[str, Check],
    clock: Clock,
    on_beat: Callable[[], None] | None = None,
) -> AsyncIterator[StatusServer | None]:
    """Serve metrics and probes while the context lasts; without settings only the heartbeat runs.

    Args:
        settings: the address that serves them; None: none.
        metrics: of this process.
        ready: checks of readiness; checks may still be added to the mapping before the first request.
        clock: for the heartbeat.
        on_beat: called on the event loop about once a second.

    Raises:
        StatusServerError, AddressInUseError: see ``StatusServer``.
    """
    heartbeat = Heartbeat(clock, on_beat)
    server = None
    if settings is not None:
        server = StatusServer(settings, metrics, Health({"event loop": heartbeat.problem}, ready))
    beating = guarded("heartbeat", heartbeat.run())
    try:
        if server is not None:
            server.start()
        yield server
    finally:
        await cancel(beating)
        if server is not None:
            server.stop()
