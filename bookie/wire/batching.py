"""The division of entries into batches of a size that every bookie accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bookie.wire.port import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX


def batches(packets: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield batches of at most ``BATCH_ENTRIES_MAX`` entries; each ends as soon as it has ``BATCH_BYTES_MAX`` bytes."""
    batch: list[bytes] = []
    size = 0
    for packet in packets:
        batch.append(packet)
        size += len(packet)
        if size >= BATCH_BYTES_MAX or len(batch) == BATCH_ENTRIES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
