"""Our figures under the names that Grafana boards for Apache's auditor query. Off unless ``compat_metrics`` is set.

Boards read two of Apache's summaries as if they were gauges: the number and the size of the marked ledgers. Here every
sample of these summaries (quantiles, ``_sum`` and ``_count``) is the current figure. The summaries of times have the
last run in their quantiles, and all runs of this process in ``_sum`` and ``_count``, in milliseconds like Apache's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from auditor.api.control import ServiceStatus
from bookie.model.run import RunKind, RunRecord
from bookie.model.severity import Severity

_NOW: Final = "Apache-compatible form of"
_QUANTILES: Final = ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0")
_DURATION_METRICS: Final = {
    RunKind.BOOKIES: "auditor_AUDIT_BOOKIES_TIME",
    RunKind.PLACEMENT: "auditor_PLACEMENT_POLICY_CHECK_TIME",
    RunKind.REPLICAS: "auditor_REPLICAS_CHECK_TIME",
}
_SEVERITIES_BY_METRIC: Final = {
    "auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY": (Severity.LOST, Severity.NO_LIVE_COPY),
    "auditor_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY": (Severity.CRITICAL, Severity.BELOW_ACK_QUORUM),
    "auditor_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY": (Severity.BELOW_WRITE_QUORUM,),
}

APACHE: Final = {
    "auditor_NUM_UNDER_REPLICATED_LEDGERS": f"{_NOW} bkheal_underreplicated_ledgers, over all severities",
    "auditor_UNDER_REPLICATED_LEDGERS_TOTAL_SIZE": f"{_NOW} bkheal_underreplicated_bytes, over all severities",
    **dict.fromkeys(_DURATION_METRICS.values(), f"{_NOW} bkheal_audit_duration_seconds, in milliseconds"),
    "auditor_NUM_LEDGERS_CHECKED": f"{_NOW} the sum of checked ledgers over all runs of this process",
    "auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY": f"{_NOW} misplaced ledgers in the last placement run",
    **dict.fromkeys(_SEVERITIES_BY_METRIC, f"{_NOW} findings of the last replicas run"),
}
"""Names and help texts."""


class ApacheNames(Collector):
    """Renders the last status and the ended runs."""

    def __init__(self) -> None:
        self.status: ServiceStatus | None = None
        self._checked = 0
        self._runs: dict[tuple[RunKind, bool], tuple[int, int, int]] = {}
        """Count, sum and last duration in milliseconds."""

    def run_ended(self, record: RunRecord, *, is_success: bool) -> None:
        """Count a run."""
        count, total_ms, _ = self._runs.get((record.kind, is_success), (0, 0, 0))
        took_ms = max(0, record.finished_ms - record.started_ms)
        self._runs[record.kind, is_success] = (count + 1, total_ms + took_ms, took_ms)
        self._checked += record.ledgers

    def describe(self) -> Iterable[Metric]:
        """Return every metric without samples."""
        return [Metric(name, text, "unknown") for name, text in APACHE.items()]

    def collect(self) -> Iterator[Metric]:
        """Return the metrics under the names of Apache's exporter.

        Before the first status, and in a process that does not lead, it returns none about the cluster.
        """
        checked = "auditor_NUM_LEDGERS_CHECKED"
        yield _plain(checked, self._checked)
        for kind, name in _DURATION_METRICS.items():
            metric = Metric(name, APACHE[name], "summary")
            for is_success in (True, False):
                count, total_ms, last_ms = self._runs.get((kind, is_success), (0, 0, 0))
                _add_summary(metric, is_success, last_ms, count, total_ms)
            yield metric
        status = self.status
        if status is not None and status.is_leader:
            yield from _cluster_metrics(status)


def _cluster_metrics(status: ServiceStatus) -> Iterator[Metric]:
    backlog = status.backlog
    if backlog.counted_ms:
        size = sum(part.bytes_estimate for part in (*backlog.severities.values(), backlog.healthy))
        for name, value in (
            ("auditor_NUM_UNDER_REPLICATED_LEDGERS", backlog.ledgers),
            ("auditor_UNDER_REPLICATED_LEDGERS_TOTAL_SIZE", size),
        ):
            metric = Metric(name, APACHE[name], "summary")
            _add_summary(metric, True, value, value, value)
            _add_summary(metric, False, 0, 0, 0)
            yield metric
    yield _plain(
        "auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
        _found(status.results.get(RunKind.PLACEMENT, ()), (Severity.MISPLACED,)),
    )
    for name, severities in _SEVERITIES_BY_METRIC.items():
        yield _plain(name, _found(status.results.get(RunKind.REPLICAS, ()), severities))


def _found(records: Iterable[RunRecord], severities: Iterable[Severity]) -> int:
    """Return the highest number of the runs with the results of a kind."""
    wanted = {severity.label for severity in severities}
    found = (sum(count for name, count in record.findings.items() if name.lower() in wanted) for record in records)
    return max(found, default=0)


def _plain(name: str, value: float) -> Metric:
    """Return a metric without a type, because the names of Apache's counters do not end in ``_total``."""
    metric = Metric(name, APACHE[name], "unknown")
    metric.add_sample(name, {}, value)
    return metric


def _add_summary(metric: Metric, is_success: bool, quantile: float, count: float, total: float) -> None:
    labels = {"success": str(is_success).lower()}
    for at in _QUANTILES:
        metric.add_sample(metric.name, {**labels, "quantile": at}, quantile)
    metric.add_sample(f"{metric.name}_count", labels, count)
    metric.add_sample(f"{metric.name}_sum", labels, total)
