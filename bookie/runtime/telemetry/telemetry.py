"""The telemetry of a process, started and stopped together: a heartbeat, and an HTTP server for its metrics."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from bookie.runtime.clock import Clock
from bookie.runtime.listening import AddressInUseError
from bookie.runtime.tasks import cancel, guarded
from bookie.runtime.telemetry.heartbeat import Heartbeat
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.runtime.telemetry.status_pages import Check, Health
from bookie.runtime.telemetry.status_server import StatusServer
from bookie.runtime.telemetry.status_settings import StatusServerSettings

_log: Final = logging.getLogger(__name__)


@asynccontextmanager
async def observable(
    settings: StatusServerSettings | None,
    metrics: MetricSet,
    ready: Mapping[str, Check],
    clock: Clock,
    on_beat: Callable[[], None] | None = None,
    *,
    is_optional: bool = False,
) -> AsyncIterator[StatusServer | None]:
    """Serve metrics and probes inside the context; without settings only the heartbeat runs.

    Args:
        settings: the address of the server; None: no server.
        metrics: the metrics of this process.
        ready: checks of readiness; the caller may still add some to the mapping before the first request.
        clock: the clock of the heartbeat.
        on_beat: called on the event loop about once a second.
        is_optional: whether to continue without the server, with a warning, if it cannot listen on its address.

    Raises:
        StatusServerError: the settings are inconsistent, or a TLS file cannot be used.
        AddressInUseError: the server cannot listen on its address.
    """
    heartbeat = Heartbeat(clock, on_beat)
    server = None
    if settings is not None:
        try:
            server = StatusServer(settings, metrics, Health({"event loop": heartbeat.problem}, ready))
        except AddressInUseError as error:
            if not is_optional:
                raise
            _log.warning("this process continues without metrics and probes", extra={"reason": str(error)})
    beating = guarded("heartbeat", heartbeat.run())
    try:
        if server is not None:
            server.start()
        yield server
    finally:
        await cancel(beating)
        if server is not None:
            server.stop()
