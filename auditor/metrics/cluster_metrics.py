"""The metrics of an exporter: the state of a cluster under the names that a leading auditor uses.

The invariant: all figures were read recently. The alert rules take the maximum over all processes that export the
cluster, so a stale figure of one process would hide the true one of another. Metrics about an auditor itself (whether
it leads, its schedules) are omitted, because an exporter neither takes part in the election nor audits.
The detection times are an exception: they are counted from the start of the process, as by a leader
(``loss_observer``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from auditor.api.control import ServiceStatus
from auditor.metrics.definitions import BACKLOG, DETECTION, STATE
from auditor.metrics.service_metrics import families, state_values
from bookie.runtime.clock import Clock
from bookie.runtime.telemetry.metric_definitions import Definition
from bookie.runtime.telemetry.metrics import MetricSet

COMPONENT: Final = "exporter"

CLUSTER: Final = tuple(definition for definition in (*STATE, *BACKLOG) if definition.is_leader_only)
"""The metrics that a leading auditor exports about its cluster."""

ReadStatus = Callable[[], ServiceStatus | None]
"""Returns the recently read state of the cluster; None: there is none. Called in other threads, so it only reads
attributes."""


def exporter_metrics(version: str, read: ReadStatus, clock: Clock) -> MetricSet:
    """Return the metrics of an exporter process."""
    metrics = MetricSet(COMPONENT, version, (DETECTION,))
    metrics.registry.register(_ClusterCollector(read, clock))
    return metrics


def exportable_metrics(status: ServiceStatus) -> Sequence[Definition]:
    """Return the metrics that may be exported: without the backlog until it has been counted."""
    left_out = () if status.backlog.counted_ms else BACKLOG
    return [definition for definition in CLUSTER if definition not in left_out]


class _ClusterCollector(Collector):
    def __init__(self, read: ReadStatus, clock: Clock) -> None:
        self._read = read
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        return families(CLUSTER, {})

    def collect(self) -> Iterable[Metric]:
        status = self._read()
        return (
            () if status is None else families(exportable_metrics(status), state_values(status, self._clock.epoch_ms()))
        )
