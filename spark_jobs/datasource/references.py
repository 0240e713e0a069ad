"""``bk_references``: one row per Pulsar node with references to ledgers, read from the nodes of topics and schemas.

    spark.read.format("bk_references").option("metadata_uri", "zk://zk1:2181/ledgers").option("pulsar_roots", "").load()

An undecodable node has a row with an ``error`` (``spark_jobs.reference_rows``). The rows are read when an
action runs: they are not a snapshot. The memory of a task is bounded by the names in one namespace.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bookie.metadata.access import ZooKeeperAccess
from bookie.metadata.pulsar.decoding import LedgerReference, UndecodableNodeError
from bookie.metadata.pulsar.referrers import Referrer, ledger_with_reference, references_of
from bookie.metadata.pulsar.tree import DENIED, NodeKind, PulsarNode, PulsarTree
from bookie.metadata.uri import MetadataUri
from spark_jobs import settings
from spark_jobs.connect import connected_at_pace
from spark_jobs.datasource.options import (
    CONNECT_TIMEOUT_S,
    number,
    seconds,
    source_access,
    source_budget,
    source_uri,
)
from spark_jobs.datasource.partitions import LeafParent, balance, partition_count
from spark_jobs.datasource.task_rows import READING_DDL, in_event_loop, numbered
from spark_jobs.pacing.budget import FREE, TaskBudget
from spark_jobs.pacing.paced_store import PacedStore
from spark_jobs.reference_rows import LEDGERS, REFERENCE_DDL, REFERENCE_SCHEMA, ledgers_column

NAME: Final = "bk_references"
PARTITIONS_MAX: Final = "partitions_max"
SLOTS_MAX: Final = "slots_max"
PULSAR_ROOTS: Final = "pulsar_roots"
"""Option: paths of the brokers' metadata, separated by commas; an empty path is the root of ZooKeeper."""
TOPICS_PER_SHARE: Final = 50_000
"""A namespace with more topics than this is read by several tasks."""
_ROWS_MAX: Final = 10_000
"""Largest number of nodes in a batch, and of references without those of the last node."""
_KINDS: Final = {kind: kind.value for kind in NodeKind}
_NO_NAMES: Final = (None, None, None)
_Node = tuple[object, ...]
"""The values of the columns except ``ledgers``."""


@dataclass(frozen=True, slots=True)
class ReferenceOptions:
    """Options of ``bk_references``."""

    uri: MetadataUri
    access: ZooKeeperAccess
    roots: tuple[str, ...]
    connect_timeout_s: float
    partitions_max: int | None = None
    slots_max: int | None = None
    """Largest number of tasks that run at the same time; None: unknown, so all of them may."""
    budget: TaskBudget = FREE
    """The limits on the reads of all tasks together."""


@dataclass(frozen=True, slots=True)
class TopicShare:
    """Some of the topics under a node."""

    root: str
    parent: str
    share: int
    shares: int


@dataclass(frozen=True)
class ReferencePartition(InputPartition):
    """The topics that one task reads."""

    shares: tuple[TopicShare, ...]
    budget: TaskBudget


class ReferenceSource(DataSource):
    """Pulsar's references to ledgers. Options: ``metadata_uri``, ``zookeeper_access``, ``pulsar_roots``,
    ``connect_timeout_s``, ``partitions_max``, ``slots_max``, ``budget``.

    The roots must be in the same ZooKeeper as the ledgers.
    """

    @classmethod
    def name(cls) -> str:
        """Format name."""
        return NAME

    def schema(self) -> str:
        """Columns."""
        return f"{REFERENCE_DDL}, {READING_DDL}"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader. If the caller gives a schema, it must equal the source's."""
        return ReferenceReader(reference_options(self.options))


def reference_options(options: Mapping[str, str]) -> ReferenceOptions:
    """Check the options of ``bk_references``.

    Raises:
        InvalidOptionError: one is missing, or cannot be used.
        InvalidUriError: the metadata URI cannot be used.
    """
    return ReferenceOptions(
        source_uri(options),
        source_access(options),
        tuple(dict.fromkeys(root.strip().rstrip("/") for root in options.get(PULSAR_ROOTS, "").split(","))),
        seconds(options, CONNECT_TIMEOUT_S, settings.CONNECT_TIMEOUT_S),
        number(options, PARTITIONS_MAX, 0, 1) or None,
        number(options, SLOTS_MAX, 0, 1) or None,
        source_budget(options),
    )


class ReferenceReader(DataSourceReader):
    """Plans and reads one scan."""

    def __init__(self, options: ReferenceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return groups with about equally many topics."""
        planned = asyncio.run(_plan_shares(self._options))
        parents = [LeafParent(str(number), size) for number, (_, size) in enumerate(planned)]
        count = partition_count(parents, os.cpu_count() or 1)
        count = min(count, self._options.partitions_max or count)
        groups = balance(parents, count) if parents else []
        budget = self._options.budget.divided(min(len(groups), self._options.slots_max or len(groups)))
        return [ReferencePartition(tuple(planned[int(each.path)][0] for each in group), budget) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition with a connection of its own. The last column is the number of the reading.

        Raises:
            StoreUnavailableError: no answer; the task fails, and Spark repeats it.
        """
        # Without topics there is no partition. Spark then passes a partition of its own.
        part = partition if isinstance(partition, ReferencePartition) else ReferencePartition((), FREE)
        return numbered(in_event_loop(_read(self._options, part)))


async def _plan_shares(options: ReferenceOptions) -> list[tuple[TopicShare, int]]:
    planned = []
    opening = connected_at_pace(
        options.uri, options.connect_timeout_s, options.access, options.budget, measures_itself=True
    )
    async with opening as connection:
        for root in options.roots:
            await connection.store.sync(f"{root}/managed-ledgers")
            for parent in await PulsarTree(connection.store, root).parents():
                shares = 1 + parent.planned // TOPICS_PER_SHARE
                planned += [
                    (TopicShare(root, parent.path, share, shares), parent.planned // shares) for share in range(shares)
                ]
    return planned


async def _read(options: ReferenceOptions, part: ReferencePartition) -> AsyncGenerator[pa.RecordBatch, None]:
    async with (
        connected_at_pace(options.uri, options.connect_timeout_s, options.access, part.budget) as connection,
        aclosing(reference_batches(connection.store, part.shares)) as batches,
    ):
        async for batch in batches:
            yield batch


async def reference_batches(store: PacedStore, shares: Sequence[TopicShare]) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the nodes of topics, subscriptions and schemas that refer to ledgers or cannot be decoded.

    Raises:
        StoreUnavailableError: no answer; all rows read so far must be discarded.
    """
    rows = _Rows()
    for each in shares:
        async with aclosing(PulsarTree(store, each.root).nodes(each.parent, each.share, each.shares)) as parts:
            await store.measure_if_due()
            async for nodes in parts:
                for node in nodes:
                    rows.add(each.root, node)
                    if rows.is_full:
                        yield rows.take()
                await store.measure_if_due()
    yield rows.take()


class _Rows:
    """Collects the rows of nodes."""

    def __init__(self) -> None:
        self._nodes: list[_Node] = []
        self._ledgers: list[Sequence[LedgerReference]] = []
        self._references = 0

    @property
    def is_full(self) -> bool:
        return max(len(self._nodes), self._references) >= _ROWS_MAX

    def add(self, root: str, node: PulsarNode) -> None:
        """Add a node. A node without references becomes no row."""
        error: str | None = DENIED.value
        found: Sequence[LedgerReference] = ()
        in_ledger = None
        if not node.is_denied:
            try:
                found = references_of(node.kind, node.data)
                in_ledger = ledger_with_reference(node.cursor, node.data)
                error = None
            except UndecodableNodeError as refused:
                found, error = (), str(refused)
        names: tuple[str | None, ...] = _NO_NAMES
        if error is not None or in_ledger is not None:
            topic = Referrer(root, node.kind, node.name, node.cursor).topic
            names = _NO_NAMES if topic is None else (topic.tenant, topic.namespace, topic.name)
        elif not found:
            return
        self._nodes.append((root, _KINDS[node.kind], node.name, node.cursor, in_ledger, error, *names))
        self._ledgers.append(found)
        self._references += len(found)

    def take(self) -> pa.RecordBatch:
        """Return the rows added since the last call, possibly none, as one batch."""
        columns: list[Sequence[object]] = list(zip(*self._nodes, strict=True)) or [()] * (len(REFERENCE_SCHEMA) - 1)
        fields = [field for field in REFERENCE_SCHEMA if field.name != LEDGERS]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
        arrays.insert(REFERENCE_SCHEMA.get_field_index(LEDGERS), ledgers_column(self._ledgers))
        self._nodes, self._ledgers, self._references = [], [], 0
        return pa.RecordBatch.from_arrays(arrays, schema=REFERENCE_SCHEMA)
