"""Bounds and deadlines of the ledger client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Every wait has a deadline and every queue a bound; these are they."""

    add_timeout_s: float = 10.0
    """One batch to one bookie. Twice Apache's add timeout, because a batch carries up to a thousand entries."""
    read_timeout_s: float = 10.0
    """One read request to one bookie."""
    close_timeout_s: float = 30.0
    """How long ``close`` waits for copies that are still on their way."""
    pipeline_bytes_max: int = 32 << 20
    """Payload bytes admitted and not yet stored on the full write quorum; ``append`` waits beyond it."""
    pipeline_entries_max: int = 20_000
    """Entries admitted and not yet stored on the full write quorum."""
    batches_in_flight_max: int = 4
    """Batches on their way to one bookie; enough to hide its sync latency, few enough to form large batches."""
    busy_retries_max: int = 50
    """How often one batch is offered again to a bookie that says it is overloaded."""
    busy_backoff_s: float = 0.05
    ensemble_change_attempts_max: int = 10
    """Rounds of one ensemble change (conflicts, further failures) before the writer gives up."""
    failed_bookie_quarantine_s: float = 30.0
    """How long a writer does not choose a bookie that failed it. Longer than a dead bookie stays registered, so that a
    change does not go round in circles; short enough that a rolling restart leaves somebody to choose."""
    read_chunk_entries: int = 512
    """Entries asked for at once by a range read."""
