"""The metric names of Apache's replication worker, for existing Grafana dashboards. Off by default.

The values are as close to Apache's as possible: summaries have ``_sum`` and ``_count`` but no quantiles, times are in
milliseconds, and reads for a copy are counted after it was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from bookie.model.ids import LedgerId
from replicator.knowledge.evidence import CorruptCopy
from replicator.telemetry.events import Ending, EventSink, QueueState, TaskResult, WorkerLoad

_PREFIX: Final = "replication_worker_"
_FORM: Final = "Apache-compatible form of"

REREPLICATE: Final = f"{_PREFIX}rereplicate"
LEDGERS: Final = f"{_PREFIX}NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED"
ENTRIES: Final = (f"{_PREFIX}NUM_ENTRIES_READ", f"{_PREFIX}NUM_ENTRIES_WRITTEN")
BYTES: Final = (f"{_PREFIX}NUM_BYTES_READ", f"{_PREFIX}NUM_BYTES_WRITTEN")

APACHE: Final = {
    REREPLICATE: f"{_FORM} bkheal_replicator_task_duration_seconds, in milliseconds, without the turns that were busy",
    LEDGERS: f"{_FORM} the turns in which a fragment was repaired",
    **dict.fromkeys(ENTRIES, f"{_FORM} bkheal_replicator_copied_entries_total"),
    **dict.fromkeys(BYTES, f"{_FORM} bkheal_replicator_copied_bytes_total, with entries as the count"),
}
"""The names and help texts of the metrics."""

_IGNORED: Final = frozenset({Ending.BUSY, Ending.STOPPED, Ending.IN_GRACE})


class ApacheEvents(Collector, EventSink):
    """Counts events, and collects them under Apache's names."""

    def __init__(self) -> None:
        self._turns = {True: (0, 0.0), False: (0, 0.0)}
        """The count of turns and their total milliseconds, by success."""
        self._ledgers = 0
        self._load = WorkerLoad()

    @override
    def tasks_listed(self, queue_state: QueueState) -> None:
        pass

    @override
    def task_ended(self, result: TaskResult) -> None:
        self._ledgers += result.fragments > 0
        if result.ending not in _IGNORED:
            is_success = result.ending not in (Ending.FAILED, Ending.PARKED)
            count, total_ms = self._turns[is_success]
            self._turns[is_success] = (count + 1, total_ms + result.seconds * 1000)

    @override
    def copy_corrupt(self, ledger_id: LedgerId, copy: CorruptCopy) -> None:
        pass

    def sample(self, now: WorkerLoad) -> None:
        """Store the current load of a worker."""
        self._load = now

    def describe(self) -> Iterable[Metric]:
        """Return every metric without samples."""
        return [Metric(name, text, "unknown") for name, text in APACHE.items()]

    def collect(self) -> Iterator[Metric]:
        """Return the metrics under the names of Apache's exporter."""
        turns = Metric(REREPLICATE, APACHE[REREPLICATE], "summary")
        for is_success, (count, total_ms) in self._turns.items():
            _add(turns, {"success": str(is_success).lower()}, count, total_ms)
        yield turns
        load = self._load
        for name, value in ((LEDGERS, self._ledgers), *((name, load.copied_entries) for name in ENTRIES)):
            metric = Metric(name, APACHE[name], "unknown")  # Apache's counters do not end in _total
            metric.add_sample(name, {}, value)
            yield metric
        for name in BYTES:
            metric = Metric(name, APACHE[name], "summary")
            _add(metric, {"success": "true"}, load.copied_entries, load.copied_bytes)
            yield metric


def _add(metric: Metric, labels: dict[str, str], count: float, total: float) -> None:
    metric.add_sample(f"{metric.name}_count", labels, count)
    metric.add_sample(f"{metric.name}_sum", labels, total)
