"""``bk_ledgers``: one row per ledger, read from its metadata node.

    spark.read.format("bk_ledgers").option("metadata_uri", "zk://zk1:2181/ledgers").load()

Each ``load()`` plans again, and its rows are read when an action runs: they are not a snapshot. A ledger deleted during
the scan has no row; one with unreadable metadata has a row with an ``error``. Filters are not pushed down; give a range
as ``first_ledger`` and ``last_ledger``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.core.broadcast import Broadcast
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind, ledger_id_of
from bookie.metadata.ledgers.tree import LedgerTree
from bookie.metadata.port import Stat
from spark_jobs.connect import Connection, PacedConnection, connected_at_pace
from spark_jobs.datasource.ledger_schema import ledger_ddl
from spark_jobs.datasource.options import LedgerOptions, ledger_options
from spark_jobs.datasource.partitions import LeafParent, balance, parents_of, partition_count
from spark_jobs.datasource.scan import scan
from spark_jobs.datasource.task_rows import in_event_loop, one_reading
from spark_jobs.image.leaves import LeafStat

NAME: Final = "bk_ledgers"
_LEDGERS_PER_LEAF: Final = 10_000
"""Largest number of ledgers under one node in the hierarchical layouts: four digits (docs/formats.md#ledger-paths)."""


@dataclass(frozen=True)
class LedgerPartition(InputPartition):
    """The nodes that one task reads."""

    parents: tuple[LeafParent, ...]


class LedgerSource(DataSource):
    """The ledgers of a cluster as a data source. Options: ``spark_jobs.datasource.options``."""

    @classmethod
    def name(cls) -> str:
        """Format name."""
        return NAME

    def schema(self) -> str:
        """Return the columns. Wrong options are refused here, before any read."""
        ledger_options(self.options)
        return ledger_ddl(is_summarized=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader. If the caller gives a schema, it must equal the source's."""
        return LedgerReader(ledger_options(self.options))


class LedgerReader(DataSourceReader):
    """Plans and reads one scan. There is no ``pushFilters``; ``options`` has the reason."""

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return groups of metadata nodes with about equally many ledgers."""
        parents = asyncio.run(_list_parents(self._options))
        count = self._options.num_partitions or partition_count(parents, os.cpu_count() or 1)
        return [LedgerPartition(group) for group in balance(parents, count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition with a connection of its own.

        Raises:
            StoreUnavailableError: no answer; the task fails, and Spark repeats it.
        """
        # An empty cluster has no partition. Spark then passes a partition of its own.
        parents = partition.parents if isinstance(partition, LedgerPartition) else ()
        return in_event_loop(_read(self._options, parents))


@dataclass(frozen=True, slots=True)
class LedgerTasks:
    """The function that Spark calls with indexes into ``groups``; it yields rows of ``bk_ledgers``.

    Audits use it instead of the data source, for which Spark starts three more pairs of Python processes, one after the
    other.

    Raises:
        StoreUnavailableError: no answer; all rows read so far must be discarded.
        OtherVersionError: this executor has another version of the package.
    """

    options: LedgerOptions
    groups: Broadcast[Sequence[str]]
    """Groups of nodes, each as text (``parents_text``); a task decodes only its own groups."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one Spark task. The last column is the number of the reading."""
        return one_reading(self._read(batches), self.options.driver_version)

    def _read(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from in_event_loop(_read(self.options, parents_of(self.groups.value[number])))


async def leaf_parents(connection: Connection | PacedConnection) -> tuple[LeafParent, ...]:
    """List the nodes that hold ledgers, and the number of ledgers in each."""
    tree = LedgerTree(connection.store, connection.cluster)
    if connection.cluster.kind is LayoutKind.FLAT:
        return tuple(LeafParent(path, count) for path, count in await tree.leaf_parents())
    nodes = await tree.leaf_nodes()
    return tuple(LeafParent(path, stat.children_count, leaf_stat(stat)) for path, stat in nodes if stat.children_count)


def leaf_stat(stat: Stat) -> LeafStat:
    """Return the part of a node's stat that an image stores."""
    return LeafStat(stat.czxid, stat.children_zxid, stat.children_version, stat.children_count)


async def _list_parents(options: LedgerOptions) -> tuple[LeafParent, ...]:
    opening = connected_at_pace(
        options.uri, options.connect_timeout_s, options.access, options.budget, measures_itself=True
    )
    async with opening as connection:
        parents = await leaf_parents(connection)
    return tuple(parent for parent in parents if _may_hold(connection.cluster, options, parent))


def _may_hold(cluster: Cluster, options: LedgerOptions, parent: LeafParent) -> bool:
    first = ledger_id_of(cluster.kind, cluster.root, f"{parent.path}/L0000")
    if first is None:  # the root of the flat layout holds every id
        return True
    return first <= options.last_ledger and options.first_ledger < first + _LEDGERS_PER_LEAF


async def _read(options: LedgerOptions, parents: Sequence[LeafParent]) -> AsyncGenerator[pa.RecordBatch, None]:
    async with (
        connected_at_pace(options.uri, options.connect_timeout_s, options.access, options.budget) as connection,
        aclosing(scan(connection.store, connection.cluster, parents, options)) as batches,
    ):
        async for batch in batches:
            yield batch
