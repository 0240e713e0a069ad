"""Texts about held-back and withdrawn marks, for the page and for the terminal. Pure.

A report may come from another release, so an unknown reason is shown unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bookie.metadata.bookies.marking_times import HoldReason
from bookie.model.run import Ended
from spark_jobs.report.counts import WaitingBookie
from spark_jobs.report.summary import RunSummary

_WORDS: Final = {
    HoldReason.DELAY.value: "within the lost-bookie delay",
    HoldReason.MAINTENANCE.value: "maintenance window",
    HoldReason.RACK_OUTAGE.value: "outage of its whole rack",
    HoldReason.FLAPPING.value: "it was marked and returned several times",
    HoldReason.LIMIT.value: "limit of the run",
}
_ENDED_WORDS: Final = {
    Ended.LEDGER_DELETED.value: "the ledger was deleted",
    Ended.REPLACED.value: "the bookies were replaced",
}


def reason_words(reason: str) -> str:
    """Return the text for a reason why ledgers are held back."""
    return _WORDS.get(reason, reason)


def why_waiting(bookie: WaitingBookie) -> str:
    """Return why few or no ledgers of a missing bookie are marked."""
    return f"{reason_words(bookie.reason)}{f' ({bookie.detail})' if bookie.detail else ''}"


def held_ledgers(summary: RunSummary) -> Iterator[tuple[str, int]]:
    """Yield the reasons for ledgers not marked yet, with the numbers of ledgers, the most common first."""
    for reason, count in sorted(summary.published.held_back.items(), key=lambda each: (-each[1], each[0])):
        yield reason_words(reason), count


def withdrawn_marks(summary: RunSummary) -> Iterator[tuple[str, int]]:
    """Yield the reasons for withdrawn marks, with the numbers of marks, the most common first."""
    for reason, count in sorted(summary.published.withdrawn.items(), key=lambda each: (-each[1], each[0])):
        yield _ENDED_WORDS.get(reason, reason), count
