"""Names of audit runs."""

from __future__ import annotations

import random
from datetime import UTC, datetime


def new_run_id(started_ms: int, rng: random.Random) -> str:
    """Sorts by time; the suffix tells apart runs of one second."""
    started = datetime.fromtimestamp(started_ms / 1000, UTC)
    return f"{started:%Y%m%dT%H%M%SZ}-{rng.randrange(1 << 24):06x}"
