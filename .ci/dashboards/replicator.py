"""What replicators do and what holds them back."""

from __future__ import annotations

from dashboards.model import ALARM, GREEN, NOTE, RED, YELLOW, Board, Panel, Row, percentiles, stat

_OURS = '<>,instance=~"$instance"'
_RATE = "[$__rate_interval]"

_NOW = Row(
    "Now",
    (
        stat(
            "Replicators",
            "Processes that are scraped.",
            f"count(bkheal_replicator_ledgers_in_flight{{{_OURS}}}) or vector(0)",
            base_color=RED,
            steps={1: GREEN},
        ),
        stat("Ledgers in work", "Over all replicators.", f"sum(bkheal_replicator_ledgers_in_flight{{{_OURS}}})"),
        stat(
            "Copy rate",
            "Over all replicators.",
            f"sum(rate(bkheal_replicator_copied_bytes_total{{{_OURS}}}{_RATE}))",
            unit="Bps",
        ),
        stat(
            "Failed turns",
            "Share of the turns of tasks that ended in an error.",
            f'sum(rate(bkheal_replicator_tasks_total{{ending="failed",{_OURS}}}{_RATE}))'
            f' / sum(rate(bkheal_replicator_tasks_total{{ending!="busy",{_OURS}}}{_RATE}))',
            unit="percentunit",
            steps={0.02: YELLOW, 0.1: RED},
        ),
        stat(
            "Given up",
            "Tasks that failed again and again; a replicator tries them only after long pauses.",
            f'max(bkheal_replicator_listed_tasks{{state="given_up",{_OURS}}})',
            steps=NOTE,
        ),
        stat(
            "Damaged copies",
            "Stored copies that did not verify, in a day. A disk returns wrong bytes.",
            f"sum(increase(bkheal_replicator_corrupt_copies_total{{{_OURS}}}[1d]))",
            steps=ALARM,
        ),
    ),
)
_TASKS = Row(
    "Tasks",
    (
        Panel(
            "Tasks of the cluster by state",
            "As a replicator listed them last. Each task is in one state. All are 0 while no replicator looks.",
            {"{{state}}": f"max by (state) (bkheal_replicator_listed_tasks{{{_OURS}}})"},
            is_stacked=True,
        ),
        Panel(
            "Turns by ending",
            "repaired and nothing_missing are done; busy is work of another; failed is tried again.",
            {"{{ending}}": f"sum by (ending) (rate(bkheal_replicator_tasks_total{{{_OURS}}}{_RATE}))"},
            "ops",
            is_stacked=True,
        ),
        Panel(
            "Parked by reason",
            "Turns in an hour that ended in parking.",
            {"{{reason}}": f"sum by (reason) (increase(bkheal_replicator_parked_total{{{_OURS}}}[1h]))"},
            is_stacked=True,
        ),
        Panel(
            "Time of a turn that repaired",
            "From its lock to the deletion of the task.",
            percentiles("bkheal_replicator_task_duration_seconds", matchers=f'ending="repaired",{_OURS}'),
            "s",
        ),
        Panel(
            "Ledgers recovered, fragments repaired",
            "In an hour.",
            {
                "recovered ledgers": f"sum(increase(bkheal_replicator_recovered_ledgers_total{{{_OURS}}}[1h]))",
                "repaired fragments": f"sum(increase(bkheal_replicator_repaired_fragments_total{{{_OURS}}}[1h]))",
            },
        ),
        Panel(
            "From mark to full",
            "From the last mark of a ledger to the end of its repair; percentiles over a day.",
            percentiles("bkheal_time_to_full_seconds", window="1d", matchers=_OURS),
            "s",
        ),
    ),
)
_COPYING = Row(
    "Copying",
    (
        Panel(
            "Copied bytes",
            "By replicator.",
            {"{{instance}}": f"sum by (instance) (rate(bkheal_replicator_copied_bytes_total{{{_OURS}}}{_RATE}))"},
            "Bps",
            is_stacked=True,
        ),
        Panel(
            "Copied entries",
            "By replicator. Many entries and few bytes: small entries, where round trips count.",
            {"{{instance}}": f"sum by (instance) (rate(bkheal_replicator_copied_entries_total{{{_OURS}}}{_RATE}))"},
            "ops",
            is_stacked=True,
        ),
        Panel(
            "Waiting for the copy limit",
            "Share of time. Near 1, the limit decides how long data stays with too few copies.",
            {"{{instance}}": f"max by (instance) (rate(bkheal_replicator_throttled_seconds_total{{{_OURS}}}{_RATE}))"},
            "percentunit",
            steps={0.9: YELLOW},
        ),
        Panel(
            "Copy limit",
            "Of each replicator; 0 means none.",
            {"{{instance}}": f"max by (instance) (bkheal_replicator_throttle_bytes_per_second{{{_OURS}}})"},
            "Bps",
        ),
        Panel(
            "In work",
            "Ledgers, by replicator.",
            {"{{instance}}": f"max by (instance) (bkheal_replicator_ledgers_in_flight{{{_OURS}}})"},
            width=8,
        ),
        Panel(
            "Bytes in work",
            "Read for copies and not stored yet.",
            {"{{instance}}": f"max by (instance) (bkheal_replicator_bytes_in_flight{{{_OURS}}})"},
            "bytes",
            width=8,
        ),
        Panel(
            "Since the last progress",
            "Of replicators that are repairing ledgers.",
            {
                "{{instance}}": (
                    f"time() - max by (instance) (bkheal_replicator_last_progress_timestamp_seconds{{{_OURS}}} > 0)"
                    f" and max by (instance) (bkheal_replicator_ledgers_in_flight{{{_OURS}}}) > 0"
                )
            },
            "s",
            steps={900: RED},
            width=8,
        ),
        Panel(
            "Bookies that do not answer",
            "Registered, and asked only from time to time; by replicator. Its log names them.",
            {"{{instance}}": f"max by (instance) (bkheal_replicator_unreachable_bookies{{{_OURS}}})"},
            steps={1: YELLOW},
        ),
        Panel(
            "Replaced copies",
            "Damaged copies that were replaced by good ones, in a day; by replicator.",
            {"{{instance}}": (f"sum by (instance) (increase(bkheal_replicator_replaced_copies_total{{{_OURS}}}[1d]))")},
        ),
    ),
)

REPLICATOR = Board(
    "replicator",
    "Replicators",
    "Repair: tasks by state, what is copied, and what holds it back.",
    (_NOW, _TASKS, _COPYING),
    ("instance",),
)
