"""Read ledgers again by their ids, inside a Spark task with a connection of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import pyarrow as pa

from bookie.model.ids import LedgerId
from spark_jobs.connect import connected_at_pace
from spark_jobs.datasource.options import LedgerOptions
from spark_jobs.datasource.scan import reread
from spark_jobs.datasource.task_rows import in_event_loop, one_reading


@dataclass(frozen=True, slots=True)
class RereadTasks:
    """The function that Spark calls with batches of ids; it yields rows of ``bk_ledgers``.

    Raises:
        StoreUnavailableError: no answer; all rows read so far must be discarded.
        OtherVersionError: this executor has another version of the package.
    """

    options: LedgerOptions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one Spark task. Without ids, it opens no connection. The last column is the number of the reading."""
        return one_reading(self._read(batches), self.options.driver_version)

    def _read(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        ids = (_sorted(batch) for batch in batches if batch.num_rows)
        first = next(ids, None)
        if first is None:
            return
        yield from in_event_loop(_rows(self.options, _chain(first, ids)))


def _sorted(batch: pa.RecordBatch) -> Sequence[LedgerId]:
    return sorted(map(LedgerId, batch.column(0).to_pylist()))


def _chain(first: Sequence[LedgerId], others: Iterator[Sequence[LedgerId]]) -> Iterator[Sequence[LedgerId]]:
    yield first
    yield from others


async def _rows(options: LedgerOptions, ids: Iterator[Sequence[LedgerId]]) -> AsyncGenerator[pa.RecordBatch, None]:
    async with (
        connected_at_pace(options.uri, options.connect_timeout_s, options.access, options.budget) as connection,
        aclosing(reread(connection.store, connection.cluster, ids, options)) as batches,
    ):
        async for batch in batches:
            yield batch
