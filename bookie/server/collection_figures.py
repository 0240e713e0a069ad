"""The metrics of garbage collections."""

from __future__ import annotations

from bookie.runtime.telemetry.metrics import MetricSet
from bookie.server import metrics as names
from bookie.server.upkeep.collector import CollectorReport


def record_collection(metrics: MetricSet, report: CollectorReport) -> None:
    """Add a collection that has ended to the metrics."""
    metrics.counter(names.COLLECTED).inc(report.collected)
    metrics.gauge(names.COLLECTION_HELD).set(report.held)
    metrics.gauge(names.COLLECTION_FINISHED).set(report.ended_ms / 1000)
    if report.stopped:
        metrics.counter(names.COLLECTION_STOPPED).inc()
    if report.compacted is not None:
        metrics.counter(names.COLLECTION_FREED).inc(report.compacted.freed_bytes)
        metrics.counter(names.COLLECTION_COPIED).inc(report.compacted.copied_bytes)
