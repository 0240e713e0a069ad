"""``/metrics`` during a one-shot run: its kind, its time and its progress, but nothing about the cluster.

A query takes the maximum over several processes, so a one-shot run exports only its own kind; the service exports the
leader and the backlog.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from auditor.metrics.definitions import COMPONENT, PROGRESS, RUNNING, RUNNING_SECONDS, STATE
from bookie.model.run import RunKind
from bookie.runtime.clock import Clock
from bookie.runtime.telemetry.metrics import SESSION, MetricSet
from bookie.runtime.telemetry.status_pages import Health
from bookie.runtime.telemetry.status_server import StatusServer
from bookie.runtime.telemetry.status_settings import StatusServerSettings
from spark_jobs.runs.port import Phase, ProgressEvent

_SHOWN: Final = tuple(item for item in STATE if item.name in (RUNNING, RUNNING_SECONDS, PROGRESS))


class OneShotMetrics(Collector):
    """Receives the progress and exports it. Thread-safe."""

    def __init__(self, kind: RunKind, version: str, clock: Clock) -> None:
        self._kind = kind
        self._clock = clock
        self._began_s: float | None = clock.monotonic_s()
        self._ratio = 0.0
        self.metrics = MetricSet(COMPONENT, version, ())
        self.metrics.registry.register(self)

    def on_progress(self, event: ProgressEvent) -> None:
        """Record that a phase began or advanced. From the first one on, there is a session.

        A run that waits for another one is not under way; it begins after the wait.
        """
        self.metrics.gauge(SESSION).set(1)
        if event.phase is Phase.WAIT:
            self._began_s = None
        elif self._began_s is None:
            self._began_s = self._clock.monotonic_s()
        self._ratio = min(1.0, event.done / event.total) if event.total else 0.0

    def describe(self) -> Iterable[Metric]:
        """Return every metric without samples."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Return the progress of the run."""
        began_s = self._began_s
        values = {
            RUNNING: float(began_s is not None),
            RUNNING_SECONDS: 0.0 if began_s is None else self._clock.monotonic_s() - began_s,
            PROGRESS: self._ratio,
        }
        for definition in _SHOWN:
            family = GaugeMetricFamily(definition.name, definition.help, labels=("kind",))
            family.add_metric((self._kind.value,), values[definition.name])
            yield family


@contextlib.contextmanager
def served(metrics: OneShotMetrics, settings: StatusServerSettings | None) -> Iterator[int | None]:
    """Serve ``metrics`` and probes during a run; yields the port, None without settings.

    Raises:
        AddressInUseError: the address is in use.
        StatusServerError: the settings or TLS files cannot be used.
    """
    if settings is None:
        yield None
        return
    server = StatusServer(settings, metrics.metrics, Health())
    server.start()
    try:
        yield server.port
    finally:
        server.stop()
