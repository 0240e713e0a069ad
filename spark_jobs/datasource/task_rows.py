"""Common parts of the audit tasks that read ledgers: an event loop, and the number of a reading."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Final

import pyarrow as pa

from spark_jobs.executor_version import check_version

READING: Final = "reading"
"""Last column of the rows read by an audit: a random number for each reading of a partition.

Spark repeats a read if its rows are lost with an executor, and may run two at the same time (speculation). Each reading
has its own number, so a reader of the table can detect rows that were read at two different times.
"""
READING_DDL: Final = f"{READING} bigint"
_READING_BITS: Final = 63
"""With random numbers of this size, two of a million readings have the same number in one of 10 million scans."""


def one_reading(batches: Generator[pa.RecordBatch], driver_version: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one reading, with its number as the last column.

    Raises:
        OtherVersionError: this executor has another version of the package.
    """
    check_version(driver_version)
    yield from numbered(batches)


def numbered(batches: Generator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one reading, with its number as the last column."""
    reading = secrets.randbits(_READING_BITS)
    try:
        for batch in batches:
            yield batch.append_column(READING, pa.array([reading] * batch.num_rows, pa.int64()))
    finally:
        batches.close()


def in_event_loop(batches: AsyncGenerator[pa.RecordBatch, None]) -> Generator[pa.RecordBatch]:
    """Yield the batches on demand, from an event loop of their own."""
    with asyncio.Runner() as runner:
        try:
            while (batch := runner.run(_next(batches))) is not None:
                yield batch
        finally:
            runner.run(batches.aclose())


async def _next(batches: AsyncGenerator[pa.RecordBatch, None]) -> pa.RecordBatch | None:
    return await anext(batches, None)
