"""Smaller values for constants of the product in histories with small settings, as ledgers of megabytes take too long.

The windows of a copy have the size of a few entries, and so has its memory in some histories. So the effects of these
limits (the cost of an interruption, the bytes in flight) show in ledgers of a few kilobytes.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from replicator import worker
from replicator.copying import copy_run, receiver
from replicator.repair import execution, reservation_holder
from tests.simulation.planting import swap

CHUNK_ENTRIES: Final = 4
PROGRESS_BYTES: Final = 600
KEPT_BYTES_MIN: Final = 300
BUDGET_BYTES: Final = 1500
COPIES_AT_ONCE: Final = execution.FRAGMENTS_AT_ONCE


def window_bytes(entry_bytes_max: int, positions: int) -> int:
    """Return how many bytes may be copied again after one fault.

    These are the bytes copied since the last record, those after a slow chunk, and those in flight.

    ``positions``: the largest number of copied positions.
    """
    chunks = min(COPIES_AT_ONCE, positions) * copy_run.LANES_MAX
    return 2 * PROGRESS_BYTES + KEPT_BYTES_MIN + chunks * CHUNK_ENTRIES * entry_bytes_max


def use_small_windows(stack: ExitStack, *, has_small_budget: bool) -> None:
    """Replace the constants until ``stack`` is closed."""
    swap(stack, copy_run, "BATCH_ENTRIES_MAX", lambda _: CHUNK_ENTRIES)
    swap(stack, reservation_holder, "PROGRESS_BYTES", lambda _: PROGRESS_BYTES)
    swap(stack, receiver, "AHEAD_BYTES_MAX", lambda _: PROGRESS_BYTES)
    swap(stack, reservation_holder, "KEPT_BYTES_MIN", lambda _: KEPT_BYTES_MIN)
    if has_small_budget:
        swap(stack, worker, "IN_FLIGHT_BYTES", lambda _: BUDGET_BYTES)
