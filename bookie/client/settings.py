"""Bounds and deadlines of the ledger client."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReadMode(enum.Enum):
    """How readers ask the replicas of an entry: a choice between load and latency. The verified bytes are the same."""

    SEQUENTIAL = "sequential"
    """Ask the next replica only after one has failed or timed out. Least load."""
    SPECULATIVE = "speculative"
    """Ask the next one also if a replica does not answer within ``speculative_after_s``; use the first valid answer."""
    PARALLEL = "parallel"
    """Ask all replicas at once; use the first valid answer. Least latency, ``Qw`` times the load."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The deadlines of all waits, and the bounds of all queues."""

    add_timeout_s: float = 10.0
    """Timeout of one batch to one bookie. Twice Apache's add timeout, because a batch has up to a thousand entries."""
    read_timeout_s: float = 10.0
    """Timeout of one read request to one bookie."""
    close_timeout_s: float = 30.0
    """Time for which ``close`` waits for outstanding copies."""
    pipeline_bytes_max: int = 32 << 20
    """Payload bytes admitted and not yet acknowledged, or not yet stored on the full write quorum; ``append`` waits
    beyond it."""
    pipeline_entries_max: int = 20_000
    """Entries admitted and not yet acknowledged, or not yet stored on the full write quorum; ``append`` waits beyond
    it."""
    batches_in_flight_max: int = 4
    """Batches in flight to one bookie: enough to hide its sync latency, few enough to form large batches."""
    busy_retries_max: int = 50
    """Maximum number of times that one batch is sent to an overloaded bookie before the bookie is replaced."""
    busy_backoff_s: float = 0.05
    """Longest pause before the second attempt. Each later pause is twice as long, and half of each is random."""
    busy_backoff_max_s: float = 0.25
    """Upper bound of these pauses. With fifty attempts a bookie has about nine seconds to catch up."""
    ensemble_change_attempts_max: int = 10
    """Maximum number of rounds of one ensemble change (conflicts, further failures) before the writer fails."""
    failed_bookie_quarantine_s: float = 30.0
    """Time after a bookie's failure for which a writer does not choose it again.

    Longer than a dead bookie stays registered, so a change does not choose it again; short enough to leave candidates
    during a rolling restart. If ``Qa`` cannot be reached otherwise, ``degraded_retry_s`` applies instead.
    """
    degraded_retry_s: float = 5.0
    """Time after which a writer with fewer members looks for a bookie again, and minimum time before it tries a failed
    bookie again. The former doubles from one attempt to the next."""
    degraded_retry_max_s: float = 60.0
    """Upper bound of this time."""
    read_chunk_entries: int = 512
    """Number of entries that a range read requests at once."""
    read_mode: ReadMode = ReadMode.SPECULATIVE
    """How readers ask the replicas of an entry."""
    speculative_after_s: float = 2.0
    """Time for which a reader waits for one replica before it also asks the next one. Apache's default."""
    tail_poll_s: float = 1.0
    """Interval at which a reader that tails an open ledger reads its metadata, and longest wait of each poll."""
    recovery_read_entries: int = 256
    """Number of entries that a recovery reads ahead and stores again at once. A tail is as long as the adds that its
    writer had under way; requests beyond the end are wasted."""
    recovery_add_timeout_s: float = 30.0
    """Time for which a recovery waits for all copies of the entries that it stores at once. After that, a member is
    replaced or left incomplete. Longer than the timeout of one add."""
    recovery_restarts_max: int = 5
    """Maximum number of attempts of one recovery while the last ensemble keeps changing."""
    recovery_store_attempts_max: int = 10
    """Maximum number of attempts of one metadata change, if the store does not answer or another client interferes."""
    recovery_store_retry_s: float = 0.2
    """Pause after the store did not answer. Ten attempts outlast a leader election of a second or two."""
