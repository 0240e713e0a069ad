"""The metrics of an auditor: counters of events, and gauges rendered from the last ``ServiceStatus``.

The status contains the results of the last runs. They come from the run records in ZooKeeper, so they survive a restart
and a change of leader. Only the leader has some of the metrics. The other processes omit these, so a sum or a maximum
over all auditors is correct. ``show`` and the events are called on the event loop; rendering is safe in any thread.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from auditor.api.control import Backlog, LostBookie, ServiceStatus, SeverityBacklog
from auditor.metrics import definitions as names
from auditor.metrics.apache import ApacheNames
from auditor.metrics.definitions import BACKLOG, COMPONENT, EVENTS, STATE
from bookie.metadata.bookies.marking_times import HoldReason
from bookie.metadata.runs.notes import KindPause
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunKind, RunRecord, RunState
from bookie.runtime.clock import Clock
from bookie.runtime.telemetry.metric_definitions import Definition
from bookie.runtime.telemetry.metrics import SESSION, MetricSet

Key = tuple[str, ...]
"""The name of a metric, and the values of its labels in their order."""

_FAILED: Final = frozenset({"failed", "partial"})
_UNSUCCESSFUL: Final = frozenset({"failed", "cancelled"})


class AuditorMetrics:
    """The metrics of a service process."""

    def __init__(self, version: str, clock: Clock, *, has_apache_names: bool = False) -> None:
        """Begin with every counter at 0 and without gauges, which exist after ``show``.

        Args:
            version: of the program.
            clock: for ages.
            has_apache_names: also export the names that Grafana boards for Apache's auditor query (``compat_metrics``).
        """
        self.metrics = MetricSet(COMPONENT, version, EVENTS)
        self.registry = self.metrics.registry
        self._is_leader = False
        self._state = _StateCollector(clock)
        self.registry.register(self._state)
        self._apache = ApacheNames() if has_apache_names else None
        if self._apache is not None:
            self.registry.register(self._apache)

    def show(self, status: ServiceStatus) -> None:
        """Export ``status`` from now on. Must be called before each scrape, or every few seconds."""
        self.leads(status.is_leader)
        self.metrics.gauge(SESSION).set(status.is_store_connected)
        self._state.status = status
        if self._apache is not None:
            self._apache.status = status

    def leads(self, is_leader: bool) -> None:
        """Record whether this process leads; a change is counted."""
        if is_leader != self._is_leader:
            self._is_leader = is_leader
            self.metrics.counter(names.LEADERSHIP_CHANGES).inc()

    def run_ended(self, record: RunRecord) -> None:
        """Count a completed run of this process. Dry runs are not counted."""
        if record.is_dry_run:
            return
        result, kind = result_of(record), record.kind.value
        self.metrics.counter(names.RUNS, kind=kind, result=result).inc()
        self.metrics.histogram(names.DURATION, kind=kind).observe(duration_s(record))
        if self._apache is not None:
            self._apache.run_ended(record, is_success=result not in _UNSUCCESSFUL)

    def detected(self, seconds: float) -> None:
        """Record that the ledgers of a lost bookie are marked, ``seconds`` after it was first seen down."""
        observe_detection(self.metrics, seconds)


def observe_detection(metrics: MetricSet, seconds: float) -> None:
    """Add a detection time to the histogram of auditors and exporters; 0 if it is negative after a jump of a clock."""
    metrics.histogram(names.TIME_TO_DETECT).observe(max(0.0, seconds))


def result_of(record: RunRecord) -> str:
    """Return the result of a completed run as a value of the label ``result``."""
    if record.was_stopped:
        return "cancelled"
    if record.state is not RunState.DONE:
        return "failed"
    if record.exit_code == ExitCode.HELD or record.verdict == "held":
        return "held"
    if record.exit_code == ExitCode.PARTIAL or record.verdict == "incomplete":
        return "partial"
    return "findings" if any(record.findings.values()) else "clean"


def consecutive_failures(ended: Iterable[RunRecord]) -> Mapping[str, int]:
    """Count by kind the newest consecutive runs that failed or were partial; kinds with 0 are omitted. Pure.

    Args:
        ended: completed runs, the newest first. Dry runs, and runs that were stopped, are skipped.
    """
    counts: Counter[str] = Counter()
    decided: set[str] = set()
    for record in ended:
        kind, result = record.kind.value, result_of(record)
        if record.is_dry_run or result == "cancelled" or kind in decided:
            continue
        if result in _FAILED:
            counts[kind] += 1
        else:
            decided.add(kind)
    return counts


def state_values(status: ServiceStatus, now_ms: int) -> dict[Key, float]:
    """Return the values of ``STATE`` and ``BACKLOG``; a value that it omits is 0."""
    values: dict[Key, float] = {
        (names.LEADER,): status.is_leader,
        (names.OTHER_AUDITOR_LEADS,): is_other_auditor_leading(status),
        (names.REFUSED,): bool(status.problems),
        (names.RECOVERY_ENABLED,): status.is_recovery_enabled,
        (names.LOST_BOOKIE_DELAY,): status.lost_bookie_delay_s,
        (names.BRAKE_HELD,): bool(status.held_because),
        (names.BOOKIES, "writable"): len(status.writable),
        (names.BOOKIES, "read_only"): len(status.read_only),
        (names.BOOKIES, "lost"): len(status.lost),
        (names.WINDOWS,): len(status.windows),
        (names.WINDOWS_END,): max((window.until_ms for window in status.windows), default=0) / 1000,
    }
    held = [lost for lost in status.lost if _is_held_back(lost, now_ms)]
    held_back = Counter(lost.hold_reason for lost in held)
    in_maintenance_until_ms = [lost.audit_due_ms for lost in held if lost.hold_reason == HoldReason.MAINTENANCE.value]
    values[names.WINDOWS_NEXT_END,] = min(in_maintenance_until_ms, default=0) / 1000
    values |= {(names.HELD_BACK_BOOKIES, reason): count for reason, count in held_back.items()}
    values |= _backlog_values(status.backlog, now_ms)
    values |= {(names.PERIOD, kind.value): seconds for kind, seconds in status.period_s.items()}
    for kind, pause in _paused_schedules(status).items():
        values |= {(names.PAUSED, kind.value): 1, (names.PAUSE_ENDS, kind.value): pause.until_ms / 1000}
    for last in sorted(status.last.values(), key=lambda record: record.started_ms):  # the newest image is exported
        values |= last_run_values(last)
    values |= {(names.LAST_DURATION, kind.value): duration_s(run) for kind, run in status.last_complete.items()}
    for kind, records in status.results.items():
        values |= result_values(kind, records)
    values |= {(names.LAST_SUCCESS, kind.value): ms / 1000 for kind, ms in status.last_success_ms.items()}
    values |= {(names.FAILED_IN_A_ROW, kind): count for kind, count in consecutive_failures(status.ended).items()}
    for record in _shown_runs(status.running):
        values |= _running_values(record, now_ms)
    return values


def _shown_runs(running: Iterable[RunRecord]) -> Iterable[RunRecord]:
    """Return the run of each kind that the metrics show: a dry run only if no run with marks is under way."""
    by_kind: dict[RunKind, RunRecord] = {}
    for record in sorted(running, key=lambda record: record.is_dry_run):
        by_kind.setdefault(record.kind, record)
    return by_kind.values()


def _paused_schedules(status: ServiceStatus) -> Mapping[RunKind, KindPause]:
    """Return the pauses by kind. A schedule also waits for the pauses of the checks that it contains.

    A check without a schedule of its own uses the schedule of the kind that contains it, with the pause of that kind.
    """
    paused = dict(status.paused_kinds)
    for kind in status.schedules:
        pauses = [status.paused_kinds[each] for each in (kind, *kind.contained) if each in status.paused_kinds]
        if not kind.contained or not pauses:
            continue
        last = max(pauses, key=lambda pause: pause.until_ms or math.inf)
        paused[kind] = last
        paused |= {each: last for each in kind.contained if each not in status.schedules}
    return paused


def _is_held_back(lost: LostBookie, now_ms: int) -> bool:
    return bool(lost.hold_reason) and lost.audit_due_ms > now_ms


def is_other_auditor_leading(status: ServiceStatus) -> bool:
    """Return whether another candidate leads. Data that was read in an ended session does not count."""
    return bool(status.leader) and not status.is_leader and status.is_store_connected


def last_run_values(record: RunRecord) -> dict[Key, float]:
    """Return the values of a completed run, except its results, and the time and duration of the last success."""
    kind = record.kind.value
    return {
        (names.LAST_START, kind): record.started_ms / 1000,
        (names.LAST_COMPLETION, kind): record.finished_ms / 1000,
        (names.LAST_LEDGERS, kind): record.ledgers,
        (names.LAST_HELD, kind): result_of(record) == "held",
        **{(names.LAST_WITHDRAWN, kind, reason): count for reason, count in record.withdrawn.items()},
        **_image_values(record),
    }


def result_values(kind: RunKind, records: Iterable[RunRecord]) -> dict[Key, float]:
    """Return the findings of the runs with the results of a kind; if they differ, the highest values."""
    values: dict[Key, float] = {}
    for record in records:
        found: dict[Key, float] = {
            **{(names.LAST_HELD_BACK, kind.value, reason): count for reason, count in record.held_back.items()},
            **{(names.LAST_FINDINGS, kind.value, _severity(name)): count for name, count in record.findings.items()},
            **{
                (names.LAST_NAMESPACES, kind.value, _severity(name), namespace): count
                for name, namespaces in record.namespaces.items()
                for namespace, count in namespaces.items()
            },
        }
        values |= {key: max(count, values.get(key, 0)) for key, count in found.items()}
    return values


def _image_values(record: RunRecord) -> dict[Key, float]:
    if RunKind.BOOKIES not in (record.kind, *record.kind.contained):
        return {}
    image, kind = record.image, RunKind.BOOKIES.value
    return {
        (names.LAST_IMAGE_MARKS, kind): image.get("marked", 0),
        (names.IMAGE_READ, kind): image.get("written_from_ms", 0) / 1000,
        (names.IMAGE_LEDGERS, kind): image.get("written_ledgers", 0),
        (names.IMAGE_BYTES, kind): image.get("written_bytes", 0),
    }


def families(definitions: Iterable[Definition], values: Mapping[Key, float]) -> Iterator[GaugeMetricFamily]:
    """Yield gauges with every combination of their labels, 0 if ``values`` has none; free labels only with values."""
    for definition in definitions:
        family = GaugeMetricFamily(definition.name, definition.help, labels=tuple(definition.labels))
        if definition.is_free:
            for (name, *known), value in values.items():
                if name == definition.name:
                    family.add_metric(known, value)
            yield family
            continue
        for labels in definition.combinations():
            key = tuple(labels.values())
            family.add_metric(key, values.get((definition.name, *key), 0))
        yield family


def _backlog_values(backlog: Backlog, now_ms: int) -> dict[Key, float]:
    parts = {severity.label: part for severity, part in backlog.severities.items()}
    parts |= {names.HEALTHY: backlog.healthy, names.UNREADABLE: SeverityBacklog(backlog.unreadable)}
    values: dict[Key, float] = {(names.LOCKED,): backlog.locked, (names.COUNTED,): backlog.counted_ms / 1000}
    for name, part in parts.items():
        values[names.MARKED_LEDGERS, name] = part.ledgers
        values[names.MARKED_BYTES, name] = part.bytes_estimate
        values[names.MARKED_AGE, name] = max(0, now_ms - part.oldest_ms) / 1000 if part.oldest_ms > 0 else 0
    for severity, part in backlog.repairable.items():
        values[names.REPAIRABLE_LEDGERS, severity.label] = part.ledgers
        values[names.REPAIRABLE_BYTES, severity.label] = part.bytes_estimate
    values |= {(names.BOOKIE_LEDGERS, bookie): count for bookie, count in backlog.by_bookie.items()}
    values |= {(names.RACK_LEDGERS, rack): count for rack, count in backlog.by_rack.items()}
    return values | {(names.PARKED, reason.value): count for reason, count in backlog.parked.items()}


def _running_values(record: RunRecord, now_ms: int) -> dict[Key, float]:
    kind = record.kind.value
    values: dict[Key, float] = {(names.RUNNING, kind): 1}
    if record.started_ms:
        if not record.is_dry_run:
            values[names.LAST_START, kind] = record.started_ms / 1000
        values[names.RUNNING_SECONDS, kind] = max(0, now_ms - record.started_ms) / 1000
    if record.total > 0:
        values[names.PROGRESS, kind] = min(1.0, record.done / record.total)
    if record.state is RunState.PAUSED:
        values |= {(names.PAUSED, kind): 1, (names.PAUSE_ENDS, kind): record.pause_ends_ms / 1000}
    return values


def duration_s(record: RunRecord) -> float:
    """Return the duration of a completed run; 0 if its start is unknown."""
    return max(0, record.finished_ms - record.started_ms) / 1000 if record.started_ms else 0.0


def _severity(name: str) -> str:
    return name.lower().replace(" ", "_")


class _StateCollector(Collector):
    """Renders the last status; before the first one it renders nothing."""

    def __init__(self, clock: Clock) -> None:
        self.status: ServiceStatus | None = None
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        return families((*STATE, *BACKLOG), {})

    def collect(self) -> Iterable[Metric]:
        status = self.status
        if status is None:
            return ()
        return families(shown(status), state_values(status, self._clock.epoch_ms()))


def shown(status: ServiceStatus) -> Sequence[Definition]:
    """Return the metrics that this process may export.

    A process that does not lead omits those of a leader, and every process the backlog until it has been counted.
    """
    definitions = (*STATE, *BACKLOG) if status.backlog.counted_ms else STATE
    return [definition for definition in definitions if status.is_leader or not definition.is_leader_only]
