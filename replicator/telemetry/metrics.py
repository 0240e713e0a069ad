"""The metrics of a replicator process, and the event sink that updates them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import Counter
from typing_extensions import override

from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import LedgerId
from bookie.runtime.clock import Clock
from bookie.runtime.telemetry.metric_definitions import WAIT_BUCKETS_S, WORK_BUCKETS_S, Definition, MetricType
from bookie.runtime.telemetry.metrics import MetricSet
from replicator.knowledge.evidence import CorruptCopy
from replicator.telemetry.events import Ending, EventSink, QueueState, TaskResult, WorkerLoad

COMPONENT: Final = "replicator"

TASKS_ENDED: Final = "bkheal_replicator_tasks_total"
PARKED: Final = "bkheal_replicator_parked_total"
COPIED_ENTRIES: Final = "bkheal_replicator_copied_entries_total"
COPIED_BYTES: Final = "bkheal_replicator_copied_bytes_total"
PULLED_BYTES: Final = "bkheal_replicator_pulled_bytes_total"
REPAIRED_FRAGMENTS: Final = "bkheal_replicator_repaired_fragments_total"
RECOVERED_LEDGERS: Final = "bkheal_replicator_recovered_ledgers_total"
CORRUPT_COPIES: Final = "bkheal_replicator_corrupt_copies_total"
REPLACED_COPIES: Final = "bkheal_replicator_replaced_copies_total"
MOVED_COPIES: Final = "bkheal_replicator_moved_copies_total"
PLACEMENT_DEBTS: Final = "bkheal_replicator_placement_debts"
TASK_DURATION: Final = "bkheal_replicator_task_duration_seconds"
TIME_TO_FULL: Final = "bkheal_time_to_full_seconds"
LISTED_TASKS: Final = "bkheal_replicator_listed_tasks"
IN_FLIGHT_LEDGERS: Final = "bkheal_replicator_ledgers_in_flight"
IN_FLIGHT_BYTES: Final = "bkheal_replicator_bytes_in_flight"
THROTTLE: Final = "bkheal_replicator_throttle_bytes_per_second"
THROTTLED: Final = "bkheal_replicator_throttled_seconds_total"
UNREACHABLE_BOOKIES: Final = "bkheal_replicator_unreachable_bookies"
LAST_PROGRESS: Final = "bkheal_replicator_last_progress_timestamp_seconds"

ENDINGS: Final = tuple(ending.value for ending in Ending)
REASONS: Final = tuple(reason.value for reason in ParkReason)
STATES: Final = ("eligible", "locked", "backing_off", "given_up", "delayed", "parked", "left")

_COUNTER, _GAUGE, _HISTOGRAM = MetricType.COUNTER, MetricType.GAUGE, MetricType.HISTOGRAM
_BY_ENDING: Final[Mapping[str, tuple[str, ...]]] = {"ending": ENDINGS}

REPLICATOR: Final = (
    Definition(
        TASKS_ENDED,
        _COUNTER,
        "Turns of tasks by ending; busy: another worker has the task, left: a placement mark that this process cannot "
        "judge, moved: copies were moved for such a mark",
        _BY_ENDING,
        watch="failed is more than a tenth of the turns that are not busy",
    ),
    Definition(
        PARKED,
        _COUNTER,
        "Turns that ended in parking, by what the task waits for",
        {"reason": REASONS},
        watch="it increases: some ledger cannot be repaired as the cluster is now",
    ),
    Definition(
        COPIED_ENTRIES,
        _COUNTER,
        "Entries that target bookies acknowledged, counted as they are copied; those of attempts that failed later too",
    ),
    Definition(
        COPIED_BYTES,
        _COUNTER,
        "Bytes of those entries as they are stored (header, digest and payload)",
        watch="the rate is 0 while tasks are eligible",
    ),
    Definition(
        PULLED_BYTES,
        _COUNTER,
        "Of the copied bytes, those that target bookies read from the source bookies by themselves; the rest passed "
        "through this process",
        watch="with --pull, it stays below the copied bytes of bkheal's bookies: they may not reach each other",
    ),
    Definition(REPAIRED_FRAGMENTS, _COUNTER, "Fragments whose bookies in the metadata now all have their copies"),
    Definition(RECOVERED_LEDGERS, _COUNTER, "Ledgers recovered and closed because their writer had ended"),
    Definition(
        CORRUPT_COPIES,
        _COUNTER,
        "Stored copies that did not verify; if there was a good one, it was used, and it replaces the damaged one",
        watch="it increases: a disk returns wrong bytes",
    ),
    Definition(REPLACED_COPIES, _COUNTER, "Damaged copies that were replaced by good ones"),
    Definition(
        MOVED_COPIES, _COUNTER, "Positions that got another bookie because their ensemble broke the placement policy"
    ),
    Definition(TASK_DURATION, _HISTOGRAM, "Time of one turn of a task, by how it ended", _BY_ENDING, WORK_BUCKETS_S),
    Definition(
        TIME_TO_FULL,
        _HISTOGRAM,
        "Time from the last mark of a ledger to the deletion of its task by this process, of tasks that needed repair",
        buckets=WAIT_BUCKETS_S,
        watch="the 95th percentile exceeds how long the cluster may stay with fewer copies",
    ),
    Definition(
        LISTED_TASKS,
        _GAUGE,
        "Tasks of the whole cluster as this process listed them last; each is in one state, so the sum is all tasks; "
        "0 while it does not list them: without a session, while auto-recovery is disabled, or on standby; "
        "left ones are placement marks that this process cannot judge, for example because it has no topology",
        {"state": STATES},
        watch="given_up or parked is not 0; take the maximum over processes, not the sum",
    ),
    Definition(IN_FLIGHT_LEDGERS, _GAUGE, "Ledgers that this process is repairing"),
    Definition(IN_FLIGHT_BYTES, _GAUGE, "Bytes read for copies and not stored yet"),
    Definition(THROTTLE, _GAUGE, "Bound on copied bytes per second of this process; 0 means unlimited"),
    Definition(
        THROTTLED,
        _COUNTER,
        "Time in which copying waited for that bound; its rate is the share of time, 0 to 1",
        watch="the rate is above 0.9 for hours: the bound decides how long data stays with too few copies",
    ),
    Definition(
        UNREACHABLE_BOOKIES,
        _GAUGE,
        "Registered bookies that have not answered this process for a while; it tries them only from time to time",
        watch="it is not 0: the log names the bookies",
    ),
    Definition(
        PLACEMENT_DEBTS,
        _GAUGE,
        "Ledgers with a copy that repair had to put where the placement policy forbids it, as this process last "
        "found them; 0 in a process that does not search",
        watch="it is not 0 for days; take the maximum over processes: `bkheal debts list` shows the ledgers",
    ),
    Definition(
        LAST_PROGRESS,
        _GAUGE,
        "When this process last copied an entry or ended a turn other than as busy or failed; 0: not yet",
        watch="it is old while ledgers are in flight",
    ),
)
"""The metrics of a replicator, in addition to those of every process."""

_NO_PROGRESS: Final = frozenset({Ending.BUSY, Ending.FAILED, Ending.STOPPED})


def replicator_metrics(version: str) -> MetricSet:
    """Return the metrics of one replicator process, all 0."""
    return MetricSet(COMPONENT, version, REPLICATOR)


class ReplicatorMetricsEvents(EventSink):
    """Counts events in metrics; ``sample`` sets the values that no event reports. Use it only on the event loop."""

    def __init__(self, metrics: MetricSet, clock: Clock) -> None:
        self._clock = clock
        self._endings = {
            ending: (
                metrics.counter(TASKS_ENDED, ending=ending.value),
                metrics.histogram(TASK_DURATION, ending=ending.value),
            )
            for ending in Ending
        }
        self._parked = {reason: metrics.counter(PARKED, reason=reason.value) for reason in ParkReason}
        self._fragments = metrics.counter(REPAIRED_FRAGMENTS)
        self._recovered = metrics.counter(RECOVERED_LEDGERS)
        self._corrupt = metrics.counter(CORRUPT_COPIES)
        self._replaced = metrics.counter(REPLACED_COPIES)
        self._moved = metrics.counter(MOVED_COPIES)
        self._debts = metrics.gauge(PLACEMENT_DEBTS)
        self._time_to_full = metrics.histogram(TIME_TO_FULL)
        self._tasks = {state: metrics.gauge(LISTED_TASKS, state=state) for state in STATES}
        self._in_flight = metrics.gauge(IN_FLIGHT_LEDGERS), metrics.gauge(IN_FLIGHT_BYTES)
        self._unreachable = metrics.gauge(UNREACHABLE_BOOKIES)
        self._throttle = metrics.gauge(THROTTLE)
        self._copied_entries, self._copied_bytes, self._pulled_bytes, self._throttled_s = (
            _TotalFollower(metrics.counter(name)) for name in (COPIED_ENTRIES, COPIED_BYTES, PULLED_BYTES, THROTTLED)
        )
        self._progress = metrics.gauge(LAST_PROGRESS)

    @override
    def tasks_listed(self, queue_state: QueueState) -> None:
        counts = queue_state.fields()
        counts["backing_off"] -= queue_state.given_up  # the queue state counts these in ``backing_off`` too
        for state, gauge in self._tasks.items():
            gauge.set(counts[state])

    @override
    def task_ended(self, result: TaskResult) -> None:
        count, seconds = self._endings[result.ending]
        count.inc()
        seconds.observe(result.seconds)
        if result.reason is not None:
            self._parked[result.reason].inc()
        self._fragments.inc(result.fragments)
        if result.is_recovered:
            self._recovered.inc()
        if result.replaced_copies:
            self._replaced.inc(result.replaced_copies)
        if result.moved_copies:
            self._moved.inc(result.moved_copies)
        if result.ending is Ending.REPAIRED and result.marked_ms > 0:
            self._time_to_full.observe(max(0.0, (self._clock.epoch_ms() - result.marked_ms) / 1000))
        if result.ending not in _NO_PROGRESS:
            self._note_progress()

    @override
    def copy_corrupt(self, ledger_id: LedgerId, copy: CorruptCopy) -> None:
        self._corrupt.inc()

    def sample(self, now: WorkerLoad) -> None:
        """Set the metrics that show a worker's load."""
        ledgers, held_bytes = self._in_flight
        ledgers.set(now.ledgers_in_flight)
        held_bytes.set(now.bytes_in_flight)
        self._unreachable.set(now.unreachable_bookies)
        self._debts.set(now.placement_debts)
        self._throttle.set(now.bytes_per_second)
        self._copied_bytes.reach(now.copied_bytes)
        self._pulled_bytes.reach(now.pulled_bytes)
        self._throttled_s.reach(now.throttled_s)
        if self._copied_entries.reach(now.copied_entries):
            self._note_progress()

    def _note_progress(self) -> None:
        self._progress.set(self._clock.epoch_ms() / 1000)


class _TotalFollower:
    """A counter that follows a total which is counted elsewhere."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._reached = 0.0

    def reach(self, total: float) -> bool:
        """Increase the counter to ``total``; return whether it changed."""
        more = total - self._reached
        if more > 0:
            self._counter.inc(more)
            self._reached = total
        return more > 0
