"""Wiring of ``bkheal exporter``: a session, the reading parts, the HTTP server, signals and exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from functools import partial
from typing import Final

from auditor.api.control import ServiceStatus
from auditor.exporter.exporter import DetectionEvents, Exporter
from auditor.exporter.settings import ExporterSettings
from auditor.metrics.cluster_metrics import exporter_metrics
from auditor.service.events import ServiceEvents
from auditor.service.watch.backlog import CountsApart
from bookie.metadata.cluster import Cluster, open_cluster
from bookie.metadata.store.reaching import reached_unless_stopped
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.uri import parse_uri
from bookie.model.errors import BkhealError, PermanentError
from bookie.model.exit_codes import ExitCode
from bookie.runtime.clock import Clock, SystemClock
from bookie.runtime.stop_signals import set_on_stop_signals
from bookie.runtime.telemetry.metrics import SESSION
from bookie.runtime.telemetry.status_pages import Check
from bookie.runtime.telemetry.telemetry import observable
from bookie.runtime.version import installed_version

_log = logging.getLogger(__name__)

_CLOSE_DEADLINE_S: Final = 5.0
"""Deadline for a count under way; the process ends in any case."""


async def run_exporter(settings: ExporterSettings) -> int:
    """Serve until SIGTERM or SIGINT and return the exit code. The store may be unavailable at any time."""
    stop, clock = asyncio.Event(), SystemClock()
    late = _DeferredExporter()
    metrics = exporter_metrics(installed_version(), late.status, clock)
    metrics.watch(SESSION, late.is_connected)
    try:
        async with observable(settings.http, metrics, late.ready(), clock) as http:
            assert http is not None
            _say(f"exporter metrics on {http.url}")
            with set_on_stop_signals(stop):
                await _serve(settings, late, DetectionEvents(metrics), clock, stop)
    except PermanentError as error:
        _log.error("exporter cannot continue", extra={"error": str(error)})
        return ExitCode.CONFIGURATION
    except BkhealError:
        _log.exception("exporter failed")
        return ExitCode.INTERNAL
    return ExitCode.OK


async def _serve(
    settings: ExporterSettings, late: _DeferredExporter, events: ServiceEvents, clock: Clock, stop: asyncio.Event
) -> None:
    opened = await _opened(settings, clock, stop)
    if opened is None:
        return
    store, cluster = opened
    counter = CountsApart(lambda stack: _session(settings, stack), clock, settings.topology_file)
    try:
        late.store = store
        late.exporter = Exporter(settings, installed_version(), store, cluster, counter, clock, events)
        _say("exporter ready")
        await late.exporter.run(stop)
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_DEADLINE_S):
                await counter.close()
        await store.close()


async def _opened(
    settings: ExporterSettings, clock: Clock, stop: asyncio.Event
) -> tuple[ZooKeeperStore, Cluster] | None:
    """Open a session, however long it takes; None if ``stop`` is set first.

    Raises:
        NotAClusterError: there is no cluster at the metadata URI.
    """
    return await reached_unless_stopped(partial(_connect, settings), clock, stop)


async def _connect(settings: ExporterSettings) -> tuple[ZooKeeperStore, Cluster]:
    uri = parse_uri(settings.metadata_uri)
    store = await ZooKeeperStore.connect(uri.hosts, session_timeout_s=settings.session_timeout_s)
    try:
        return store, await open_cluster(store, uri)
    except BaseException:
        await store.close()
        raise


async def _session(settings: ExporterSettings, stack: contextlib.AsyncExitStack) -> tuple[ZooKeeperStore, Cluster]:
    """Open another session for the counter of the backlog, whose loop runs in another thread."""
    store, cluster = await _connect(settings)
    stack.push_async_callback(store.close)
    return store, cluster


class _DeferredExporter:
    """The exporter, set after the store was reached; the HTTP server starts before."""

    def __init__(self) -> None:
        self.store: ZooKeeperStore | None = None
        self.exporter: Exporter | None = None

    def status(self) -> ServiceStatus | None:
        return None if self.exporter is None else self.exporter.status()

    def is_connected(self) -> bool:
        return self.store is not None and self.store.session.is_connected

    def ready(self) -> dict[str, Check]:
        """Return the reasons why this process exports no figures, with the same names as in other processes."""
        return {"store": self._store_problem, "permissions": self._permission_problem, "cluster": self._read_problem}

    def _store_problem(self) -> str:
        return "" if self.is_connected() else "no connected session with ZooKeeper"

    def _permission_problem(self) -> str:
        return "" if self.exporter is None else self.exporter.problem

    def _read_problem(self) -> str:
        return "the cluster was not read lately" if self.status() is None else ""


def _say(line: str) -> None:
    """Print the line that the supervisor of this process waits for."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
