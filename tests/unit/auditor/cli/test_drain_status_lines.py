"""``bkheal drain status``: the next step that it recommends."""

from __future__ import annotations

from typing import Any

from auditor.cli.drains.status import status_lines


def text(*states: str, **fields: Any) -> str:
    """Return the lines for the bookies ``bk0``, ``bk1`` and so on in these states."""
    bookies = [
        {"bookie_id": f"bk{number}", "since": "2026-11-20T10:15:00Z", "by": "me", "state": state}
        for number, state in enumerate(states)
    ]
    document: dict[str, Any] = {
        "bookies": bookies,
        "ledgers_left": 0,
        "bytes_left": 0,
        "moving": 0,
        "unmarked": 0,
        "accepted_ledgers": 0,
        "parked": {},
        "examples": [],
        "open_ledgers": 0,
        "open_topics": [],
        "unreadable_ledgers": 0,
        "ledgers_read": 7,
        "recovery_enabled": True,
        "eta_seconds": None,
    }
    return "\n".join(status_lines(document | fields))


def test_empty_bookies_should_be_stopped_and_decommissioned() -> None:
    assert text("read_only", "lost").endswith("Stop them, then `bkheal decommission bk0 bk1`")
    assert text("lost").endswith("Next: `bkheal decommission bk0`")


def test_a_bookie_that_is_writable_or_whose_ledgers_are_unreadable_should_not_be_stopped() -> None:
    writable = text("read_only", "writable")
    assert "the next ledger may, because bk1 is writable" in writable
    unreadable = text("read_only", unreadable_ledgers=1)
    assert "none of the 7 ledgers that can be read names it" in unreadable
    assert "decommission" not in writable + unreadable


def test_unmarked_ledgers_are_shown_with_the_command_for_the_state_of_their_bookie() -> None:
    mixed = text("lost", "read_only", "writable", ledgers_left=3, unmarked=3)
    assert "3 not marked: `bkheal recover bk0` and `bkheal drain start bk1 bk2` mark them" in mixed
    assert "`bkheal recover bk0` marks them" in text("lost", ledgers_left=3, unmarked=3)


def test_disabled_recovery_is_reported() -> None:
    assert "recovery is DISABLED" in text("read_only", ledgers_left=1, recovery_enabled=False)
    assert "DISABLED" not in text("read_only", ledgers_left=1)
