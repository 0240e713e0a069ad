"""Is the data safe, and does the service work?"""

from __future__ import annotations

from dashboards.model import ALARM, GREEN, NOTE, RED, YELLOW, YES_NO, Board, Panel, Row, percentiles, stat

_WORST = 'severity=~"lost|no_live_copy",<>'
_BY_SEVERITY = "max by (cluster, namespace, severity)"
_RATE = "[$__rate_interval]"
_LACKING = 'severity!~"healthy|misplaced|drain|metadata_only",<>'

_NOW = Row(
    "Now",
    (
        stat(
            "Lost or without live copy",
            "Ledgers with entries that no running bookie holds. Anything but 0 means that reads fail.",
            f"sum(max by (cluster, namespace, severity) (bkheal_underreplicated_ledgers{{{_WORST}}}))",
            steps=ALARM,
        ),
        stat(
            "Ledgers with too few copies",
            "Marked ledgers that lack copies, without planned moves.",
            f"sum(max by (cluster, namespace, severity) (bkheal_underreplicated_ledgers{{{_LACKING}}}))",
            steps=NOTE,
        ),
        stat(
            "Parked",
            "Ledgers that cannot be repaired as the cluster is now.",
            "sum(max by (cluster, namespace, reason) (bkheal_parked_ledgers{<>}))",
            steps=NOTE,
        ),
        stat(
            "Bookies lost",
            "Bookies that belong to the cluster and are not registered.",
            'sum(max by (cluster, namespace) (bkheal_bookies{state="lost",<>}))',
            steps=ALARM,
        ),
        stat(
            "Bookies writable",
            "Bookies that take new data.",
            'sum(max by (cluster, namespace) (bkheal_bookies{state="writable",<>}))',
            base_color=RED,
            steps={1: YELLOW, 3: GREEN},
        ),
        stat(
            "Alerts firing",
            "Alerts of bkheal, see docs/operations.md.",
            'count(ALERTS{alertname=~"Bkheal.*",alertstate="firing",<>}) or vector(0)',
            steps=NOTE,
        ),
        stat(
            "Auditor leads",
            "Auditors that lead; one for each cluster.",
            "sum(max by (cluster, namespace, pod, instance) (bkheal_auditor_leader{<>}))",
            base_color=RED,
            steps={1: GREEN},
        ),
        stat(
            "Recovery enabled",
            "The switch of the whole cluster. While it is off, nothing is marked or copied.",
            "min(max by (cluster, namespace) (bkheal_recovery_enabled{<>}))",
            base_color=RED,
            steps={1: GREEN},
            words=YES_NO,
        ),
        stat(
            "Brake held",
            "So many bookies are missing that nothing is marked until they return or an operator raises the limit.",
            "max(bkheal_brake_held{<>})",
            steps=ALARM,
            words=YES_NO,
        ),
        stat(
            "Oldest mark",
            "How long the ledger that waits longest has waited for repair.",
            'max(bkheal_underreplicated_oldest_age_seconds{severity!="healthy",<>})',
            unit="s",
            steps={3600: YELLOW, 21600: RED},
        ),
        stat(
            "Repair done in",
            "Bytes that can be copied now, divided by the present rate; empty while nothing is copied.",
            'sum(max by (cluster, namespace, severity) (bkheal_repairable_bytes{severity!="misplaced",<>}))'
            " / (sum(max by (cluster, namespace, pod, instance) ("
            "rate(bkheal_replicator_copied_bytes_total{<>}[$__rate_interval]))) > 0)",
            unit="s",
            steps={14400: YELLOW, 86400: RED},
        ),
        stat(
            "Last good bookies check",
            "Age of the last complete check of missing bookies.",
            'time() - (max(bkheal_audit_last_success_timestamp_seconds{kind="bookies",<>}) > 0)',
            unit="s",
            steps={129600: YELLOW, 216000: RED},
        ),
    ),
)
_BACKLOG = Row(
    "Backlog",
    (
        Panel(
            "Marked ledgers by severity",
            "Each ledger counts once, at its worst severity. Healthy ones wait for a worker to delete the task.",
            {"{{severity}}": f"sum by (severity) ({_BY_SEVERITY} (bkheal_underreplicated_ledgers{{<>}}))"},
            is_stacked=True,
        ),
        Panel(
            "Bytes to copy by severity",
            "Estimated from the length of the ledgers.",
            {"{{severity}}": f"sum by (severity) ({_BY_SEVERITY} (bkheal_underreplicated_bytes{{<>}}))"},
            "bytes",
            is_stacked=True,
        ),
        Panel(
            "Ledgers that can be repaired now",
            "Marked, not parked, and with a live copy of each entry. Not every worker acts on misplaced ones.",
            {"{{severity}}": f"sum by (severity) ({_BY_SEVERITY} (bkheal_repairable_ledgers{{<>}}))"},
            is_stacked=True,
        ),
        Panel(
            "Parked ledgers by reason",
            "What they wait for. no_candidate_bookie: add a bookie. no_live_copy: bring one back.",
            {"{{reason}}": "sum by (reason) (max by (cluster, namespace, reason) (bkheal_parked_ledgers{<>}))"},
            is_stacked=True,
        ),
        Panel(
            "Oldest mark by severity",
            "A line that rises for hours is a ledger whose repair does not come about.",
            {"{{severity}}": "max by (severity) (bkheal_underreplicated_oldest_age_seconds{<>})"},
            "s",
        ),
    ),
)
_HELD_BACK = Row(
    "Held back",
    (
        stat(
            "Maintenance windows",
            "Windows that are open. The marks of their bookies wait until they end.",
            "sum(max by (cluster, namespace) (bkheal_maintenance_windows{<>}))",
            steps=NOTE,
        ),
        stat(
            "Last window ends in",
            "Then the ledgers of bookies that are still missing are marked. Empty: no window is open.",
            "(max(bkheal_maintenance_ends_timestamp_seconds{<>}) > 0) - time()",
            unit="s",
            base_color=YELLOW,
            steps={1800: GREEN},
        ),
        stat(
            "Lost-bookie delay",
            "How long a bookie may be missing before its ledgers are marked.",
            "max(bkheal_lost_bookie_delay_seconds{<>})",
            unit="s",
        ),
        Panel(
            "Lost bookies whose ledgers are not marked yet",
            "Their ledgers are not marked yet, by what they wait for.",
            {"{{reason}}": "sum by (reason) (max by (cluster, namespace, reason) (bkheal_held_back_bookies{<>}))"},
            is_stacked=True,
        ),
        Panel(
            "Ledgers that the last bookies check held back",
            "They have findings, and nothing was marked yet, by reason.",
            {
                "{{reason}}": (
                    "sum by (reason) (max by (cluster, namespace, reason) "
                    '(bkheal_audit_last_run_held_back{kind="bookies",<>}))'
                )
            },
            is_stacked=True,
        ),
    ),
)
_WHERE = Row(
    "Redundancy by bookie and rack",
    (
        Panel(
            "Ledgers by bookie",
            "Marked ledgers with a copy on a bookie that is not registered or is being drained. The 50 largest.",
            {
                "{{bookie}}": (
                    "sum by (bookie) ("
                    "max by (cluster, namespace, bookie) (bkheal_underreplicated_bookie_ledgers{<>})) > 0"
                )
            },
            kind="bargauge",
            height=10,
            steps=NOTE,
        ),
        Panel(
            "Ledgers by rack",
            "The same by rack. If one rack has nearly all of them, the rack has failed. unknown: not in the topology.",
            {
                "{{rack}}": (
                    "sum by (rack) (max by (cluster, namespace, rack) (bkheal_underreplicated_rack_ledgers{<>})) > 0"
                )
            },
            kind="bargauge",
            height=10,
            steps=NOTE,
        ),
        Panel(
            "Ledgers by bookie over time",
            "Falls for a bookie while its ledgers get copies elsewhere; reaches 0 before it can be taken out.",
            {"{{bookie}}": "max by (bookie) (bkheal_underreplicated_bookie_ledgers{<>}) > 0"},
        ),
        Panel(
            "Ledgers by rack over time",
            "A rack that rises while no bookie of it is lost is being drained.",
            {"{{rack}}": "max by (rack) (bkheal_underreplicated_rack_ledgers{<>}) > 0"},
        ),
    ),
)
_REPAIR = Row(
    "Repair",
    (
        Panel(
            "Copied",
            "Bytes per second that target bookies acknowledged, over all replicators.",
            {"copied": "sum(rate(bkheal_replicator_copied_bytes_total{<>}[$__rate_interval]))"},
            "Bps",
        ),
        Panel(
            "Turns of tasks by ending",
            "Busy turns, in which another worker had the task, are left out.",
            {"{{ending}}": f'sum by (ending) (rate(bkheal_replicator_tasks_total{{ending!="busy",<>}}{_RATE}))'},
            "ops",
            is_stacked=True,
        ),
        Panel(
            "From loss to mark",
            "From a bookie first seen down to its ledgers marked, mean of a day; contains the lost-bookie delay.",
            {
                "mean": "sum(rate(bkheal_time_to_detect_seconds_sum{<>}[1d]))"
                " / sum(rate(bkheal_time_to_detect_seconds_count{<>}[1d]))",
                "lost-bookie delay": "max(bkheal_lost_bookie_delay_seconds{<>})",
            },
            "s",
        ),
        Panel(
            "From mark to full",
            "From the last mark of a ledger to the end of its repair.",
            percentiles("bkheal_time_to_full_seconds", window="1d"),
            "s",
        ),
    ),
)
_CLUSTER = Row(
    "Cluster",
    (
        Panel(
            "Bookies by state",
            "As the leading auditor sees them.",
            {"{{state}}": "sum by (state) (max by (cluster, namespace, state) (bkheal_bookies{<>}))"},
            is_stacked=True,
            width=8,
        ),
        Panel(
            "Who leads",
            "Each auditor; colored while it leads.",
            {"{{instance}}": "max by (instance) (bkheal_auditor_leader{<>})"},
            kind="state-timeline",
            base_color="transparent",
            steps={1: GREEN},
            words={0: "follows", 1: "leads"},
            width=8,
        ),
        Panel(
            "Sessions with ZooKeeper",
            "Each process; red while it has none.",
            {"{{instance}}": "min by (instance) (bkheal_zookeeper_session_connected{<>})"},
            kind="state-timeline",
            base_color=RED,
            steps={1: GREEN},
            words={0: "lost", 1: "connected"},
            width=8,
        ),
        Panel(
            "Processes by version",
            "Two versions side by side are an upgrade under way.",
            {"": "count by (component, version) (bkheal_build_info{<>})"},
            kind="table",
            width=24,
            height=6,
        ),
    ),
)

OVERVIEW = Board(
    "overview",
    "Overview",
    "Whether the data is safe, and whether auditors and replicators do their work.",
    (_NOW, _BACKLOG, _HELD_BACK, _WHERE, _REPAIR, _CLUSTER),
)
