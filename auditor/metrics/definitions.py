"""The definitions of an auditor's metrics about itself and its cluster, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bookie.metadata.bookies.marking_times import HoldReason
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.run import Ended, RunKind
from bookie.model.severity import Severity
from bookie.runtime.telemetry.metric_definitions import RUN_BUCKETS_S, WAIT_BUCKETS_S, Definition, MetricType

COMPONENT: Final = "auditor"

LEADER: Final = "bkheal_auditor_leader"
OTHER_AUDITOR_LEADS: Final = "bkheal_auditor_other_leads"
LEADERSHIP_CHANGES: Final = "bkheal_auditor_leadership_changes_total"
MARKED_LEDGERS: Final = "bkheal_underreplicated_ledgers"
MARKED_BYTES: Final = "bkheal_underreplicated_bytes"
MARKED_AGE: Final = "bkheal_underreplicated_oldest_age_seconds"
LOCKED: Final = "bkheal_underreplicated_locked_ledgers"
COUNTED: Final = "bkheal_underreplicated_counted_timestamp_seconds"
PARKED: Final = "bkheal_parked_ledgers"
REPAIRABLE_LEDGERS: Final = "bkheal_repairable_ledgers"
REPAIRABLE_BYTES: Final = "bkheal_repairable_bytes"
BOOKIE_LEDGERS: Final = "bkheal_underreplicated_bookie_ledgers"
RACK_LEDGERS: Final = "bkheal_underreplicated_rack_ledgers"
RECOVERY_ENABLED: Final = "bkheal_recovery_enabled"
LOST_BOOKIE_DELAY: Final = "bkheal_lost_bookie_delay_seconds"
BOOKIES: Final = "bkheal_bookies"
BRAKE_HELD: Final = "bkheal_brake_held"
REFUSED: Final = "bkheal_auditor_refused"
RUNNING: Final = "bkheal_audit_running"
RUNNING_SECONDS: Final = "bkheal_audit_running_seconds"
PROGRESS: Final = "bkheal_audit_progress_ratio"
PERIOD: Final = "bkheal_audit_period_seconds"
PAUSED: Final = "bkheal_audit_paused"
PAUSE_ENDS: Final = "bkheal_audit_pause_ends_timestamp_seconds"
RUNS: Final = "bkheal_audit_runs_total"
DURATION: Final = "bkheal_audit_duration_seconds"
LAST_START: Final = "bkheal_audit_last_start_timestamp_seconds"
LAST_COMPLETION: Final = "bkheal_audit_last_completion_timestamp_seconds"
LAST_SUCCESS: Final = "bkheal_audit_last_success_timestamp_seconds"
LAST_DURATION: Final = "bkheal_audit_last_run_duration_seconds"
LAST_LEDGERS: Final = "bkheal_audit_last_run_ledgers"
LAST_FINDINGS: Final = "bkheal_audit_last_run_findings"
FAILED_IN_A_ROW: Final = "bkheal_audit_failed_runs_in_a_row"
LAST_HELD: Final = "bkheal_audit_last_run_held"
LAST_HELD_BACK: Final = "bkheal_audit_last_run_held_back"
LAST_WITHDRAWN: Final = "bkheal_audit_last_run_withdrawn_marks"
LAST_IMAGE_MARKS: Final = "bkheal_audit_last_run_image_marks"
IMAGE_READ: Final = "bkheal_audit_image_timestamp_seconds"
IMAGE_LEDGERS: Final = "bkheal_audit_image_ledgers"
IMAGE_BYTES: Final = "bkheal_audit_image_bytes"
LAST_NAMESPACES: Final = "bkheal_audit_last_run_namespace_findings"
HELD_BACK_BOOKIES: Final = "bkheal_held_back_bookies"
WINDOWS: Final = "bkheal_maintenance_windows"
WINDOWS_END: Final = "bkheal_maintenance_ends_timestamp_seconds"
WINDOWS_NEXT_END: Final = "bkheal_maintenance_next_end_timestamp_seconds"
TIME_TO_DETECT: Final = "bkheal_time_to_detect_seconds"

HEALTHY: Final = "healthy"
UNREADABLE: Final = "unreadable"
KINDS: Final = tuple(kind.value for kind in RunKind)
SEVERITIES: Final = tuple(severity.label for severity in Severity)
RESULTS: Final = ("clean", "findings", "held", "partial", "failed", "cancelled")
HOLD_REASONS: Final = tuple(reason.value for reason in HoldReason)
BOOKIE_HOLD_REASONS: Final = tuple(reason.value for reason in HoldReason if reason is not HoldReason.LIMIT)
ENDED_REASONS: Final = tuple(reason.value for reason in Ended)
BOOKIE_STATES: Final = ("writable", "read_only", "lost")

_COUNTER, _GAUGE, _HISTOGRAM = MetricType.COUNTER, MetricType.GAUGE, MetricType.HISTOGRAM

Labels = Mapping[str, tuple[str, ...]]
_BY_KIND: Final[Labels] = {"kind": KINDS}
_BOOKIES_KIND_LABELS: Final[Labels] = {"kind": (RunKind.BOOKIES.value,)}
_BY_SEVERITY: Final[Labels] = {"severity": (*SEVERITIES, HEALTHY, UNREADABLE)}
_REPAIRABLE: Final[Labels] = {
    "severity": tuple(severity for severity in SEVERITIES if severity not in ("lost", "no_live_copy"))
}
_NO_LABELS: Final[Labels] = {}


def _state(name: str, text: str, labels: Labels = _NO_LABELS, watch: str = "", *, of_leader: bool = True) -> Definition:
    return Definition(name, _GAUGE, text, labels, watch=watch, is_leader_only=of_leader)


def _named(name: str, text: str, label: str, watch: str = "") -> Definition:
    """Define a metric with a label whose values are known only when they are counted; the count bounds them."""
    return Definition(name, _GAUGE, text, {label: ()}, watch=watch, is_leader_only=True, is_free=True)


DETECTION: Final = Definition(
    TIME_TO_DETECT,
    _HISTOGRAM,
    "Time from a bookie first seen down to its ledgers being marked; contains the lost-bookie delay",
    buckets=WAIT_BUCKETS_S,
    watch="the mean of a day exceeds the lost-bookie delay by more than an audit takes",
)
"""The detection time, counted by a leading auditor and by an exporter."""

EVENTS: Final = (
    Definition(
        LEADERSHIP_CHANGES,
        _COUNTER,
        "Times that this process became the leader or ceased to be it",
        watch="it increases several times an hour",
    ),
    Definition(
        RUNS,
        _COUNTER,
        "Ended audit runs of this process, by result; dry runs are not counted; cancelled are also those that ended "
        "because their auditor was stopped",
        {"kind": KINDS, "result": RESULTS},
        watch="failed or partial increase, or held increases",
    ),
    Definition(DURATION, _HISTOGRAM, "Time of those runs", _BY_KIND, RUN_BUCKETS_S),
    DETECTION,
)
"""Events in one process, counted since its start."""

BACKLOG: Final = (
    _state(
        MARKED_LEDGERS,
        "Ledgers marked for repair now, each counted once at its worst severity; healthy ones, which include deleted "
        "ledgers, wait for a worker to delete the task, unreadable ones have metadata that cannot be read",
        _BY_SEVERITY,
        "lost or no_live_copy is not 0; any of the rest does not shrink",
    ),
    _state(
        MARKED_BYTES,
        "Bytes that their repair has to copy, estimated from the length of the ledgers; 0 if unknown",
        _BY_SEVERITY,
        "divided by the copy rate it exceeds the time that you accept",
    ),
    _state(
        MARKED_AGE,
        "Age of the oldest mark; 0 if there is none or its time is unknown",
        _BY_SEVERITY,
        "it exceeds the time in which repair should be done",
    ),
    _state(LOCKED, "Marked ledgers that a worker has locked", watch="it is 0 while ledgers are marked and not parked"),
    _state(
        COUNTED,
        "When the backlog was counted; absent with the other figures of the backlog until it was counted once",
        watch="it is minutes old: the figures of the backlog are, too",
    ),
    _state(
        PARKED,
        "Marked ledgers that cannot be repaired as the cluster is now, by what they wait for",
        {"reason": tuple(reason.value for reason in ParkReason)},
        "it is not 0: a person has to bring a bookie back, add one, or accept a loss",
    ),
    _state(
        REPAIRABLE_LEDGERS,
        "Those of the marked ledgers that workers can repair as the cluster is now: not parked, and with a live copy "
        "of each entry; whether workers act on misplaced ones depends on their settings",
        _REPAIRABLE,
        "all but misplaced ones are more than 0, and no worker copies",
    ),
    _state(
        REPAIRABLE_BYTES,
        "Bytes that the repair of those has to copy, estimated from the length of the ledgers; 0 if unknown",
        _REPAIRABLE,
        "divided by the copy rate it exceeds the time that you accept",
    ),
    _named(
        BOOKIE_LEDGERS,
        "Marked ledgers with a copy on this bookie, which is not registered or is being drained; of at most 50 bookies "
        "with the most, the others together as other",
        "bookie",
    ),
    _named(
        RACK_LEDGERS,
        "Marked ledgers with a copy in this rack on such a bookie; of at most 50 racks, the others together as other; "
        "unknown for bookies outside the topology",
        "rack",
        "one rack has nearly all: the rack has failed, not single bookies",
    ),
)
"""The current backlog; exported after it has been counted."""

STATE: Final = (
    _state(
        LEADER,
        "Whether this process leads the auditors (1) or not (0)",
        watch="the sum over all auditors is not 1 for minutes",
        of_leader=False,
    ),
    _state(
        OTHER_AUDITOR_LEADS,
        "Whether another candidate, of bkheal or of Apache, leads as this process read it in ZooKeeper (1); 0 if none "
        "does, if this process leads, or without a session",
        of_leader=False,
    ),
    _state(
        REFUSED,
        "1 if ZooKeeper denies this process a permission that an auditor needs: see /readyz and the log",
        watch="it is 1: this auditor cannot lead, or can do nothing about lost bookies",
        of_leader=False,
    ),
    _state(
        PERIOD,
        "Longest time between two scheduled runs; 0 means that the schedule is off",
        _BY_KIND,
        of_leader=False,
    ),
    _state(
        RECOVERY_ENABLED,
        "Whether auto-recovery is enabled for the cluster (1) or switched off by an operator (0)",
        watch="it is 0 for longer than a maintenance takes",
    ),
    _state(LOST_BOOKIE_DELAY, "How long a bookie may be missing before its ledgers are audited and marked"),
    _state(
        BOOKIES,
        "Bookies by state; lost ones are known to the cluster and not registered",
        {"state": BOOKIE_STATES},
        "lost is not 0, or writable is less than the largest ensemble",
    ),
    _state(
        BRAKE_HELD,
        "Whether so many bookies are missing that nothing is marked until they return or an operator raises the limit "
        "(1)",
        watch="it is 1",
    ),
    _state(
        HELD_BACK_BOOKIES,
        "Lost bookies whose ledgers are not marked yet, by what they wait for",
        {"reason": BOOKIE_HOLD_REASONS},
        "it is not 0 for longer than the delay, the window or the rule takes",
    ),
    _state(WINDOWS, "Maintenance windows that are open", watch="it is not 0 although no maintenance is in progress"),
    _state(WINDOWS_END, "When the last of them ends automatically; 0: none is open"),
    _state(
        WINDOWS_NEXT_END,
        "When the windows of a missing bookie end, for the bookie whose windows end first; 0: no missing bookie is in "
        "one",
        watch="it is soon: replicators then copy the ledgers of the bookie",
    ),
    _state(
        RUNNING,
        "Whether a run is under way (1). A dry run is shown only if no other run of its kind is under way",
        _BY_KIND,
    ),
    _state(
        RUNNING_SECONDS,
        "Seconds since it started; 0 if none is running",
        _BY_KIND,
        "it is several times the usual duration",
    ),
    _state(
        PROGRESS,
        "Completed share of its current phase, 0 to 1; 0 if unknown",
        _BY_KIND,
        "it does not change for half an hour while a run is under way",
    ),
    _state(PAUSED, "Whether the run, or the schedule of this kind, is paused (1)", _BY_KIND, "it is 1 for a day"),
    _state(PAUSE_ENDS, "When the pause of the run or of the schedule ends automatically; 0: there is none", _BY_KIND),
    _state(
        LAST_START,
        "When the newest run began; 0 means never. Dry runs and runs of a range or a sample are not counted, here and "
        "in the other metrics of the last run",
        _BY_KIND,
    ),
    _state(LAST_COMPLETION, "End of the last run, with any result; 0 means never", _BY_KIND),
    _state(
        LAST_SUCCESS,
        "Start of the last run that checked every ledger and came to a complete end, over all leaders and restarts; "
        "0 means never",
        _BY_KIND,
        "it is older than two and a half periods, or 0 for a period",
    ),
    _state(
        FAILED_IN_A_ROW,
        "The newest runs that failed or could not check every ledger, without another one between them; of all "
        "processes; dry runs, cancelled runs, and runs that ended because their auditor was stopped are not counted",
        _BY_KIND,
        "it is 2",
    ),
    _state(LAST_DURATION, "Time that the last complete run took", _BY_KIND),
    _state(LAST_LEDGERS, "Ledgers that the last run checked", _BY_KIND, "it drops although no client deleted ledgers"),
    _state(
        LAST_FINDINGS,
        "Ledgers with findings in the last complete run, by severity; or in a newer incomplete one, if it found more. "
        "A check within a run of everything counts for its own kind as well",
        {"kind": KINDS, "severity": SEVERITIES},
        "lost or no_live_copy is not 0",
    ),
    _state(
        LAST_HELD_BACK,
        "As bkheal_audit_last_run_findings, those that the run did not mark yet, by reason",
        {"kind": KINDS, "reason": HOLD_REASONS},
        "it is not 0 for longer than the delay, the window or the rule takes",
    ),
    _state(
        LAST_WITHDRAWN,
        "Marks that the last run withdrew, because the ledger was deleted or the bookies were replaced, by that reason",
        {"kind": KINDS, "reason": ENDED_REASONS},
        "it is not 0 run after run: no worker takes the marks of deleted ledgers",
    ),
    _state(
        LAST_IMAGE_MARKS,
        "Ledgers of lost bookies that the last run marked by the image of ledger metadata, before it read all ledgers",
        _BOOKIES_KIND_LABELS,
    ),
    _state(
        IMAGE_READ,
        "When the reading of the image began that the last run of bookies or of everything wrote, seconds since the "
        "epoch; 0: it wrote none",
        _BOOKIES_KIND_LABELS,
        "it is 0: the next reaction to a lost bookie may read all ledgers before its first mark",
    ),
    _state(IMAGE_LEDGERS, "Ledgers in the image that the last run wrote", _BOOKIES_KIND_LABELS),
    _state(IMAGE_BYTES, "Size of the image that the last run wrote", _BOOKIES_KIND_LABELS),
    Definition(
        LAST_NAMESPACES,
        _GAUGE,
        "As bkheal_audit_last_run_findings, by severity and namespace of Pulsar; of the worst namespaces, as many "
        "as namespaces_in_metrics allows, at most 50 for each run, the others together as other; absent by default",
        {"kind": (), "severity": (), "namespace": ()},
        watch="a namespace has lost or no_live_copy",
        is_leader_only=True,
        is_free=True,
    ),
    _state(LAST_HELD, "Whether the last run was held by the brake and marked nothing (1)", _BY_KIND, "it is 1"),
)
"""The service, its runs and its cluster at the last observation."""

AUDITOR: Final = (*STATE, *BACKLOG, *EVENTS)
"""The metrics of an auditor, in addition to those of every process."""

LAST_RUN: Final = frozenset(
    {
        LAST_START,
        LAST_COMPLETION,
        LAST_SUCCESS,
        LAST_DURATION,
        LAST_LEDGERS,
        LAST_FINDINGS,
        LAST_HELD,
        LAST_HELD_BACK,
        LAST_WITHDRAWN,
        LAST_IMAGE_MARKS,
        IMAGE_READ,
        IMAGE_LEDGERS,
        IMAGE_BYTES,
    }
)
"""The metrics about a single run, which a run outside the service exports. They do not include those by namespace,
because a Pushgateway would keep the series of a namespace that has no findings any more."""
