"""Bookies: requests, disks, what they hold."""

from __future__ import annotations

from dashboards.model import ALARM, GREEN, NOTE, RED, YELLOW, Board, Panel, Row, percentiles, stat

_OURS = '<>,instance=~"$instance"'
_RATE = "[$__rate_interval]"
_ODD = "unauthorized|too_many_requests|wrong_incarnation|io_error|corrupt|limbo|bad_request|shutting_down"


def _by_instance(metric: str) -> dict[str, str]:
    return {"{{instance}}": f"max by (instance) ({metric}{{{_OURS}}})"}


def _rate(metric: str) -> dict[str, str]:
    return {"{{instance}}": f"sum by (instance) (rate({metric}{{{_OURS}}}{_RATE}))"}


_NOW = Row(
    "Now",
    (
        stat(
            "Registered",
            "Bookies that clients can find.",
            f"sum(bkheal_bookie_registered{{{_OURS}}})",
            base_color=RED,
            steps={1: GREEN},
        ),
        stat(
            "Not writable",
            "Bookies that are read-only or not registered.",
            f"count(bkheal_bookie_writable{{{_OURS}}} == 0) or vector(0)",
            steps=NOTE,
        ),
        stat(
            "I/O errors",
            "Requests in an hour that a disk failed.",
            f'sum(increase(bkheal_bookie_requests_total{{status="io_error",{_OURS}}}[1h]))',
            steps=ALARM,
        ),
        stat(
            "Damaged entries",
            "Requests in an hour that met an entry that does not verify.",
            f'sum(increase(bkheal_bookie_requests_total{{status="corrupt",{_OURS}}}[1h]))',
            steps=ALARM,
        ),
        stat(
            "Limbo",
            "Ledgers of which earlier disks may have held more; repair copies it again.",
            f"sum(bkheal_bookie_limbo_ledgers{{{_OURS}}})",
            steps=NOTE,
        ),
        stat(
            "Least free disk",
            "Free share of the fullest disk.",
            f"min(bkheal_bookie_disk_free_bytes{{{_OURS}}} / bkheal_bookie_disk_total_bytes{{{_OURS}}})",
            unit="percentunit",
            base_color=RED,
            steps={0.1: YELLOW, 0.25: GREEN},
        ),
    ),
)
_REQUESTS = Row(
    "Requests",
    (
        Panel(
            "Requests by operation",
            "Over the chosen bookies.",
            {"{{operation}}": f"sum by (operation) (rate(bkheal_bookie_requests_total{{{_OURS}}}{_RATE}))"},
            "reqps",
            is_stacked=True,
        ),
        Panel(
            "Unusual answers",
            "By status. fenced, no_entry and the like belong to the protocol and are left out.",
            {
                "{{status}}": (
                    f'sum by (status) (rate(bkheal_bookie_requests_total{{status=~"{_ODD}",{_OURS}}}{_RATE})) > 0'
                )
            },
            "reqps",
            is_stacked=True,
        ),
        Panel(
            "Time of an add",
            "What writers wait for.",
            percentiles("bkheal_bookie_request_duration_seconds", "instance", matchers=f'operation="add",{_OURS}'),
            "s",
            steps={1: RED},
        ),
        Panel(
            "Time of a read",
            "Of read, not of long polls.",
            percentiles("bkheal_bookie_request_duration_seconds", "instance", matchers=f'operation="read",{_OURS}'),
            "s",
        ),
        Panel(
            "Time of a journal sync",
            "One group commit: write and sync. It is under every add.",
            percentiles("bkheal_bookie_journal_sync_duration_seconds", "instance", matchers=_OURS),
            "s",
        ),
        Panel("Bytes added", "By bookie.", _rate("bkheal_bookie_added_bytes_total"), "Bps", is_stacked=True),
        Panel("Entries added", "By bookie.", _rate("bkheal_bookie_added_entries_total"), "ops", is_stacked=True),
        Panel("Bytes read", "By bookie.", _rate("bkheal_bookie_read_bytes_total"), "Bps", is_stacked=True),
    ),
)
_DISKS = Row(
    "Disks and ledgers",
    (
        Panel(
            "Free share",
            "A bookie becomes read-only if too little is left.",
            {
                "{{instance}} {{disk}}": (
                    f"min by (instance, disk) (bkheal_bookie_disk_free_bytes{{{_OURS}}}"
                    f" / bkheal_bookie_disk_total_bytes{{{_OURS}}})"
                )
            },
            "percentunit",
        ),
        Panel(
            "Free in a day, as it has been going",
            "Six hours carried forward. Below 0: full by then.",
            {
                "{{instance}} {{disk}}": (
                    f"min by (instance, disk) (predict_linear(bkheal_bookie_disk_free_bytes{{{_OURS}}}[6h], 86400))"
                )
            },
            "bytes",
        ),
        Panel("Ledgers", "That each bookie knows.", _by_instance("bkheal_bookie_ledgers"), width=8),
        Panel(
            "Limbo by bookie",
            "Should shrink while replicators run.",
            _by_instance("bkheal_bookie_limbo_ledgers"),
            is_stacked=True,
            width=8,
        ),
        Panel(
            "Collected",
            "Ledgers in an hour whose entries are no longer needed there.",
            {"{{instance}}": f"sum by (instance) (increase(bkheal_bookie_collected_ledgers_total{{{_OURS}}}[1h]))"},
            width=8,
        ),
        Panel(
            "Registered and writable",
            "2: writable, 1: read-only, 0: not registered.",
            {
                "{{instance}}": (
                    f"max by (instance) (bkheal_bookie_registered{{{_OURS}}} + bkheal_bookie_writable{{{_OURS}}})"
                )
            },
            kind="state-timeline",
            width=24,
            base_color=RED,
            steps={1: YELLOW, 2: GREEN},
            words={0: "not registered", 1: "read-only", 2: "writable"},
        ),
    ),
)

BOOKIE = Board(
    "bookie",
    "Bookies",
    "Requests, times and disks of bookies.",
    (_NOW, _REQUESTS, _DISKS),
    ("instance",),
)
