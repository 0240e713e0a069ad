"""``bk_ledgers``: one row per ledger, straight from its metadata node.

    spark.read.format("bk_ledgers").option("metadata_uri", "zk://zk1:2181/ledgers").load()

Each ``load()`` plans again, and its rows are read when an action runs: they are not a snapshot. A ledger deleted during
the scan has no row; one with unreadable metadata has a row with an ``error``. Filters are not pushed down; give a range
as ``first_ledger`` and ``last_ledger``.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind, ledger_id_of
from bookie.metadata.ledgers.tree import LedgerTree
from bookie.metadata.port import Stat
from spark_jobs.connect import Connection, PacedConnection, connected_at_pace
from spark_jobs.datasource.ledger_schema import ledger_ddl
from spark_jobs.datasource.options import LedgerOptions, ledger_options
from spark_jobs.datasource.partitions import LeafParent, balance, partition_count
from spark_jobs.datasource.scan import scan
from spark_jobs.executor_version import check_version
from spark_jobs.image.leaves import LeafStat

NAME: Final = "bk_ledgers"
READING: Final = "reading"
"""Last column if a summary is asked for: a number of the one time that the partition was read.

Spark repeats a read whose rows it lost with an executor, and may run two at the same time (speculation). The rows of
each have a number of their own, so that a reader of the table can see that they are of two moments.
"""
READING_DDL: Final = f"{READING} bigint"
_READING_BITS: Final = 63
"""Chosen at random: two of a million readings have the same number in one of 10 million scans."""
_LEDGERS_PER_LEAF: Final = 10_000
"""Four digits: what one node of the hierarchical layouts can hold (docs/formats.md#ledger-paths)."""


@dataclass(frozen=True)
class LedgerPartition(InputPartition):
    """Nodes that one task reads."""

    parents: tuple[LeafParent, ...]


class LedgerSource(DataSource):
    """The ledgers of a cluster as a data source. Options: ``spark_jobs.datasource.options``."""

    @classmethod
    def name(cls) -> str:
        """Format name."""
        return NAME

    def schema(self) -> str:
        """Columns, with ``summary`` last if it is asked for."""
        options = ledger_options(self.options)
        columns = ledger_ddl(is_summarized=options.is_summarized, is_brief=options.is_brief)
        return columns + (f", {READING_DDL}" if options.is_summarized else "")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader; a schema given by the caller must be the source's own."""
        return LedgerReader(ledger_options(self.options))


class LedgerReader(DataSourceReader):
    """Plans and reads one scan. No ``pushFilters``, see ``options``."""

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Groups of metadata nodes with about equally many ledgers."""
        parents = self._options.plan
        if parents is None:
            parents = asyncio.run(_list_parents(self._options))
        count = self._options.num_partitions or partition_count(parents, os.cpu_count() or 1)
        return [LedgerPartition(group) for group in balance(parents, count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition with a connection of its own.

        Raises:
            StoreUnavailableError: no answer; the task fails and Spark repeats it.
            OtherVersionError: this executor has another version of the package.
        """
        check_version(self._options.driver_version)
        # Spark reads one partition of its own making if there is none, in an empty cluster.
        batches = read_parents(self._options, partition.parents if isinstance(partition, LedgerPartition) else ())
        return numbered(batches) if self._options.is_summarized else batches


def numbered(batches: Generator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of one reading, with its number as their last column."""
    reading = secrets.randbits(_READING_BITS)
    try:
        for batch in batches:
            yield batch.append_column(READING, pa.array([reading] * batch.num_rows, pa.int64()))
    finally:
        batches.close()


def read_parents(options: LedgerOptions, parents: Sequence[LeafParent]) -> Generator[pa.RecordBatch]:
    """Read the ledgers under ``parents`` with a connection of its own, batch by batch as they are asked for.

    Raises:
        StoreUnavailableError: no answer; nothing of what was read may be used.
    """
    with asyncio.Runner() as runner:
        batches = _read(options, parents)
        try:
            while (batch := runner.run(_next(batches))) is not None:
                yield batch
        finally:
            runner.run(batches.aclose())


async def leaf_parents(connection: Connection | PacedConnection) -> tuple[LeafParent, ...]:
    """List the nodes that hold ledgers, with the number of ledgers in each."""
    tree = LedgerTree(connection.store, connection.cluster)
    if connection.cluster.kind is LayoutKind.FLAT:
        return tuple(LeafParent(path, count) for path, count in await tree.leaf_parents())
    nodes = await tree.leaf_nodes()
    return tuple(LeafParent(path, stat.children_count, leaf_stat(stat)) for path, stat in nodes if stat.children_count)


def leaf_stat(stat: Stat) -> LeafStat:
    """What an image has of the stat of a node."""
    return LeafStat(stat.czxid, stat.children_zxid, stat.children_version, stat.children_count)


async def _list_parents(options: LedgerOptions) -> tuple[LeafParent, ...]:
    opening = connected_at_pace(
        options.uri, options.connect_timeout_s, options.access, options.budget, looks_itself=True
    )
    async with opening as connection:
        parents = await leaf_parents(connection)
    return tuple(parent for parent in parents if _may_hold(connection.cluster, options, parent))


def _may_hold(cluster: Cluster, options: LedgerOptions, parent: LeafParent) -> bool:
    first = ledger_id_of(cluster.kind, cluster.root, f"{parent.path}/L0000")
    if first is None:  # a flat root, which holds every id
        return True
    return first <= options.last_ledger and options.first_ledger < first + _LEDGERS_PER_LEAF


async def _read(options: LedgerOptions, parents: Sequence[LeafParent]) -> AsyncGenerator[pa.RecordBatch, None]:
    async with (
        connected_at_pace(options.uri, options.connect_timeout_s, options.access, options.budget) as connection,
        aclosing(scan(connection.store, connection.cluster, parents, options)) as batches,
    ):
        async for batch in batches:
            yield batch


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)
