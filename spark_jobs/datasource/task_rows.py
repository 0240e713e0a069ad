"""What the tasks of an audit that read ledgers have in common: an event loop, and a number of their reading."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Final

import pyarrow as pa

from spark_jobs.executor_version import check_version

READING: Final = "reading"
"""Last column of what an audit reads: a number of the one time that the partition was read.

Spark repeats a read whose rows it lost with an executor, and may run two at the same time (speculation). The rows of
each have a number of their own, so that a reader of the table can see that they are of two moments.
"""
READING_DDL: Final = f"{READING} bigint"
_READING_BITS: Final = 63
"""Chosen at random: two of a million readings have the same number in one of 10 million scans."""


def one_reading(batches: Generator[pa.RecordBatch], driver_version: str) -> Iterator[pa.RecordBatch]:
    """The batches of one reading, with its number as their last column.

    Raises:
        OtherVersionError: this executor has another version of the package.
    """
    check_version(driver_version)
    reading = secrets.randbits(_READING_BITS)
    try:
        for batch in batches:
            yield batch.append_column(READING, pa.array([reading] * batch.num_rows, pa.int64()))
    finally:
        batches.close()


def in_event_loop(batches: AsyncGenerator[pa.RecordBatch, None]) -> Generator[pa.RecordBatch]:
    """Batch by batch as they are asked for, in an event loop of their own."""
    with asyncio.Runner() as runner:
        try:
            while (batch := runner.run(_next(batches))) is not None:
                yield batch
        finally:
            runner.run(batches.aclose())


async def _next(batches: AsyncGenerator[pa.RecordBatch, None]) -> pa.RecordBatch | None:
    return await anext(batches, None)
