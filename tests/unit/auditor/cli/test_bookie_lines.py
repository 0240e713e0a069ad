"""The output of ``bkheal bookie status`` for a running bookie."""

from __future__ import annotations

from typing import Any

from auditor.cli.bookie.lines import status_lines, stopped_lines


def test_uptime_is_shown_in_readable_units() -> None:
    queues = dict.fromkeys(
        ("add_bytes", "journal_bytes", "write_cache_bytes", "unsent_bytes", "reads_running", "reads_waiting"), 0
    )
    scrub: dict[str, Any] = {"phase": "waiting", "position": "", "begun_at": None, "unrepaired": []}
    document: dict[str, Any] = {
        "bookie_id": "bk1:3181",
        "incarnation": "i",
        "version": "v",
        "uptime_s": 30 * 86_400 + 2 * 3_600,
        "ledgers": 0,
        "read_only": False,
        "read_only_reasons": [],
        "read_only_asked_by": "",
        "read_only_asked_at": None,
        "queues": {**queues, "is_flushing": False},
        "disks": [],
        "scrub": {
            **scrub,
            **dict.fromkeys(("entries", "bytes", "damaged_count", "replaced_count", "unrepaired_count"), 0),
        },
        "collection": {"running": False, "finished_at": None},
    }
    assert "30 d 2 h" in status_lines(document)[0]


def test_the_sizes_of_a_stopped_bookie_have_units() -> None:
    numbers = ("journal_sequence", "journal_records", "ledgers", "entry_logs", "entry_log_bytes")
    document: dict[str, Any] = {
        **dict.fromkeys(numbers, 2048),
        "bookie_id": "bk1:3181",
        "incarnation": "i",
        "limbo_pending": True,
        "dead_bytes": 1024,
        "ledger_disk_bytes": 4 << 30,
        "ledger_disk_free_bytes": 3 << 30,
    }
    shown = "\n".join(stopped_lines(document))
    assert all(text in shown for text in ("2.0 KiB", "1.0 KiB", "3.0 GiB of 4.0 GiB", "limbo"))
