"""Bounds and deadlines of the ledger client."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReadMode(enum.Enum):
    """All modes return the same verified bytes; they trade load for latency."""

    SEQUENTIAL = "sequential"
    """The next replica only after one has failed or timed out. Least load."""
    SPECULATIVE = "speculative"
    """Also when one has not answered within ``speculative_after_s``; the first valid answer wins."""
    PARALLEL = "parallel"
    """All replicas at once; the first valid answer wins. Least latency, ``Qw`` times the load."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Every wait has a deadline and every queue a bound; these are they."""

    add_timeout_s: float = 10.0
    """One batch to one bookie. Twice Apache's add timeout, because a batch carries up to a thousand entries."""
    read_timeout_s: float = 10.0
    """One read request to one bookie."""
    close_timeout_s: float = 30.0
    """How long ``close`` waits for copies still on their way."""
    pipeline_bytes_max: int = 32 << 20
    """Payload bytes admitted and not yet stored on the full write quorum; ``append`` waits beyond it."""
    pipeline_entries_max: int = 20_000
    """Entries admitted and not yet stored on the full write quorum."""
    batches_in_flight_max: int = 4
    """Batches on their way to one bookie; enough to hide its sync latency, few enough to form large batches."""
    busy_retries_max: int = 50
    """How often one batch is offered to an overloaded bookie before the bookie is replaced."""
    busy_backoff_s: float = 0.05
    """Longest pause before the second offer; each one after it is twice as long, and half of each is random."""
    busy_backoff_max_s: float = 0.25
    """No such pause is longer; with fifty offers a bookie has some nine seconds to catch up."""
    ensemble_change_attempts_max: int = 10
    """Rounds of one ensemble change (conflicts, further failures) before the writer gives up."""
    failed_bookie_quarantine_s: float = 30.0
    """How long a writer does not choose a bookie again after its failure.

    Longer than a dead bookie stays registered, so a change does not choose it again; short enough to leave candidates
    during a rolling restart. If ``Qa`` is out of reach otherwise, ``degraded_retry_s`` applies instead.
    """
    degraded_retry_s: float = 5.0
    """How long a writer with fewer members waits before it looks for a bookie again, and the minimum time before a
    failed bookie is tried again. Doubles from one attempt to the next."""
    degraded_retry_max_s: float = 60.0
    """Longest such wait."""
    read_chunk_entries: int = 512
    """Entries asked for at once by a range read."""
    read_mode: ReadMode = ReadMode.SPECULATIVE
    """The order in which readers ask the replicas of an entry."""
    speculative_after_s: float = 2.0
    """How long one replica may keep a reader waiting before the next one is asked as well. Apache's default."""
    tail_poll_s: float = 1.0
    """How often a reader that tails an open ledger looks at its metadata, and how long each of its polls may wait."""
    recovery_read_entries: int = 256
    """Entries read ahead and stored again at once by a recovery. A tail is as long as the adds its writer had under
    way; requests beyond the end are wasted."""
    recovery_add_timeout_s: float = 30.0
    """How long a recovery waits for all copies of the entries it stores at once; a late member is replaced, or left
    short. Longer than one add may take."""
    recovery_restarts_max: int = 5
    """How often one recovery restarts because the last ensemble changed under it."""
    recovery_store_attempts_max: int = 10
    """How often one change of the metadata is tried while the store does not answer, or others change it too."""
    recovery_store_retry_s: float = 0.2
    """Pause after the store did not answer; with ten attempts it outlasts a leader election of a second or two."""
