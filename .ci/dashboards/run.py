"""The checks: when they ran, what they found, how long they take."""

from __future__ import annotations

from dashboards.model import ALARM, BLUE, NOTE, RED, YELLOW, YES_NO, Board, Panel, Row, percentiles, stat

_KIND = 'kind=~"$kind",<>'
_AGE = "time() - (max by (kind)"
_OURS = 'on (instance, job) group_left () max by (instance, job) (bkheal_build_info{component="auditor",<>})'

_NOW = Row(
    "Now",
    (
        stat("Under way", "Runs that are under way.", f"sum(bkheal_audit_running{{{_KIND}}})", steps={1: BLUE}),
        Panel(
            "Progress",
            "Of the present phase; 0 if that is unknown.",
            {"{{kind}}": f"max by (kind) (bkheal_audit_progress_ratio{{{_KIND}}})"},
            "percentunit",
            "gauge",
            8,
            4,
            BLUE,
        ),
        stat(
            "Running for",
            "The longest run that is under way.",
            f"max(bkheal_audit_running_seconds{{{_KIND}}})",
            unit="s",
            steps={1800: YELLOW},
        ),
        stat("Paused", "Paused runs and schedules.", f"sum(bkheal_audit_paused{{{_KIND}}})", steps=NOTE),
        stat(
            "Held by the brake",
            "Whether the last run marked nothing because too many bookies were missing.",
            f"max(bkheal_audit_last_run_held{{{_KIND}}})",
            steps=ALARM,
            words=YES_NO,
        ),
        Panel(
            "Age of the last success",
            "How old what the last complete run knew is. Empty for a check that never succeeded.",
            {"{{kind}}": f"time() - (max by (kind) (bkheal_audit_last_success_timestamp_seconds{{{_KIND}}}) > 0)"},
            "s",
            "bargauge",
            12,
            6,
        ),
        Panel(
            "Period",
            "Longest time between two scheduled runs; 0 means off.",
            {"{{kind}}": f"max by (kind) (bkheal_audit_period_seconds{{{_KIND}}})"},
            "s",
            "bargauge",
            12,
            6,
            BLUE,
        ),
    ),
)
_FOUND = Row(
    "What the last runs found",
    (
        Panel(
            "Findings by severity",
            "Ledgers with findings in the last run of each check.",
            {"{{kind}} {{severity}}": f"max by (kind, severity) (bkheal_audit_last_run_findings{{{_KIND}}}) > 0"},
            is_stacked=True,
        ),
        Panel(
            "Ledgers checked",
            "A drop without deleted ledgers is a run that did not see everything.",
            {"{{kind}}": f"max by (kind) (bkheal_audit_last_run_ledgers{{{_KIND}}})"},
        ),
        Panel(
            "Held back by reason",
            "Ledgers with findings that the last run of each check did not mark yet.",
            {"{{kind}} {{reason}}": f"max by (kind, reason) (bkheal_audit_last_run_held_back{{{_KIND}}}) > 0"},
            is_stacked=True,
        ),
        Panel(
            "Marks withdrawn by reason",
            "Marks that the last run deleted because nothing was left to do: ledgers deleted, or bookies replaced.",
            {"{{kind}} {{reason}}": f"max by (kind, reason) (bkheal_audit_last_run_withdrawn_marks{{{_KIND}}}) > 0"},
            is_stacked=True,
        ),
        Panel(
            "Age of the image",
            "Since when the image of ledger metadata was read that the last run wrote; empty if it wrote none.",
            {"{{kind}}": f"time() - (max by (kind) (bkheal_audit_image_timestamp_seconds{{{_KIND}}}) > 0)"},
            "s",
        ),
    ),
)
_RUNS = Row(
    "Runs",
    (
        Panel(
            "Runs by result",
            "Runs that ended within the last hour at each time.",
            {"{{kind}} {{result}}": f"sum by (kind, result) (increase(bkheal_audit_runs_total{{{_KIND}}}[1h])) > 0"},
            is_stacked=True,
        ),
        Panel(
            "Time of the last complete run",
            "How long it took.",
            {"{{kind}}": f"max by (kind) (bkheal_audit_last_run_duration_seconds{{{_KIND}}})"},
            "s",
        ),
        Panel(
            "Time of runs",
            "Percentiles over a day.",
            percentiles("bkheal_audit_duration_seconds", "kind", window="1d", matchers=_KIND),
            "s",
        ),
        Panel(
            "Start, end and success of the last runs",
            "Seconds ago. Start below end: a run is under way.",
            {
                "{{kind}} started": f"{_AGE} (bkheal_audit_last_start_timestamp_seconds{{{_KIND}}}) > 0)",
                "{{kind}} ended": f"{_AGE} (bkheal_audit_last_completion_timestamp_seconds{{{_KIND}}}) > 0)",
            },
            "s",
        ),
    ),
)
_PROCESS = Row(
    "Auditors",
    (
        Panel(
            "Changes of leadership",
            "In an hour. More than a few mean that sessions with ZooKeeper are lost.",
            {"{{instance}}": "sum by (instance) (increase(bkheal_auditor_leadership_changes_total{<>}[1h]))"},
            steps={6: RED},
            width=8,
        ),
        Panel(
            "Age of the backlog's count",
            "All figures of the backlog are that old.",
            {"age": "time() - max(bkheal_underreplicated_counted_timestamp_seconds{<>})"},
            "s",
            steps={300: RED},
            width=8,
        ),
        Panel(
            "Memory",
            "Resident, without Spark's JVM.",
            {"{{instance}}": f"sum by (instance) (process_resident_memory_bytes * {_OURS})"},
            "bytes",
            width=8,
        ),
    ),
)

RUN = Board(
    "run",
    "Audit runs",
    "Checks of the cluster: what is under way, what the last ones found, and whether they keep to their schedule.",
    (_NOW, _FOUND, _RUNS, _PROCESS),
    ("kind",),
)
