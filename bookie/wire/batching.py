"""Entries cut into batches of a size accepted by every bookie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bookie.wire.port import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX


def batches(packets: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Cut entries into batches of at most ``BATCH_ENTRIES_MAX``, closed once they hold ``BATCH_BYTES_MAX``."""
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
