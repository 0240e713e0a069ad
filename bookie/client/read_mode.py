"""In what order a reader asks the replicas of an entry."""

from __future__ import annotations

import enum


class ReadMode(enum.Enum):
    """All modes return the same verified bytes; they trade load for latency."""

    SEQUENTIAL = "sequential"
    """The next replica only after one has failed or timed out. Least load."""
    SPECULATIVE = "speculative"
    """Also when one has not answered within ``speculative_after_s``; the first valid answer wins."""
    PARALLEL = "parallel"
    """All replicas at once; the first valid answer wins. Least latency, ``Qw`` times the load."""
