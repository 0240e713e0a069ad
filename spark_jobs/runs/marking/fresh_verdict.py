"""The verdict on one ledger by its current metadata. Pure.

It equals the verdict of the check of all ledgers on the same metadata (``checks.bookie_check``): both follow
``bookie.model.severity.fragment_health``, and a property test compares them.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.severity import Severity, health_of
from spark_jobs.runs.marking.held_back import LedgerWithFindings


@dataclass(frozen=True, slots=True)
class FreshVerdict:
    """A ledger with at least one bookie that is not live."""

    severity: Severity
    """The severity of its worst fragment."""
    ledger: LedgerWithFindings


def fresh_verdict(ledger_id: LedgerId, metadata: LedgerMetadata, live: AbstractSet[BookieId]) -> FreshVerdict | None:
    """Judge a ledger; None: all of its bookies are live.

    Args:
        ledger_id: its id.
        metadata: the metadata just read.
        live: the registered bookies, listed after the metadata was read (R2).
    """
    if metadata.members() <= live:
        return None
    worst: Severity | None = None
    missing: set[BookieId] = set()
    critical: set[BookieId] = set()
    for number, fragment in enumerate(metadata.fragments):
        if all(member in live for member in fragment.members):
            continue
        health = health_of(metadata, number, live)
        assert health.severity is not None  # a position is missing
        lost = {fragment.members[position] for position in health.missing_positions}
        missing |= lost
        if health.severity is Severity.CRITICAL:
            critical |= lost
        worst = health.severity if worst is None else min(worst, health.severity)
    assert worst is not None
    return FreshVerdict(worst, LedgerWithFindings(ledger_id, tuple(sorted(missing)), tuple(sorted(critical))))
