"""``bk_references``: one row per reference of Pulsar to a ledger, straight from the nodes of topics and schemas.

    spark.read.format("bk_references").option("metadata_uri", "zk://zk1:2181/ledgers").option("pulsar_roots", "").load()

A node that cannot be decoded has a row with an ``error``, and no other. The rows are read when an action runs: they are
not a snapshot. Memory of a task is bounded by the names in one namespace.
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
from bookie.metadata.pulsar.decoding import UndecodableNodeError
from bookie.metadata.pulsar.referrers import Referrer, ledger_with_reference, references_of
from bookie.metadata.pulsar.tree import DENIED, PulsarNode, PulsarTree
from bookie.metadata.uri import MetadataUri
from spark_jobs import settings
from spark_jobs.connect import connected
from spark_jobs.datasource.options import CONNECT_TIMEOUT_S, seconds, source_access, source_uri
from spark_jobs.datasource.partitions import LeafParent, balance, partition_count
from spark_jobs.reference_rows import REFERENCE_DDL, REFERENCE_SCHEMA, ReferenceRow

NAME: Final = "bk_references"
PULSAR_ROOTS: Final = "pulsar_roots"
"""Option: paths of brokers' metadata, separated by commas; an empty one is the root of ZooKeeper."""
TOPICS_PER_SHARE: Final = 50_000
"""A namespace with more topics is read by several tasks."""
_ROWS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class ReferenceOptions:
    """Options of ``bk_references``."""

    uri: MetadataUri
    access: ZooKeeperAccess
    roots: tuple[str, ...]
    connect_timeout_s: float


@dataclass(frozen=True, slots=True)
class TopicShare:
    """Some of the topics below a node."""

    root: str
    parent: str
    share: int
    shares: int


@dataclass(frozen=True)
class ReferencePartition(InputPartition):
    """What one task reads."""

    shares: tuple[TopicShare, ...]


class ReferenceSource(DataSource):
    """What Pulsar refers to. Options: ``metadata_uri``, ``zookeeper_access``, ``pulsar_roots``, ``connect_timeout_s``.

    The roots are in the same ZooKeeper.
    """

    @classmethod
    def name(cls) -> str:
        """Format name."""
        return NAME

    def schema(self) -> str:
        """Columns."""
        return REFERENCE_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader; a schema given by the caller must be the source's own."""
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
    )


class ReferenceReader(DataSourceReader):
    """Plans and reads one scan."""

    def __init__(self, options: ReferenceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Groups of topics, with about as many in each."""
        planned = asyncio.run(_planned(self._options))
        parents = [LeafParent(str(number), size) for number, (_, size) in enumerate(planned)]
        count = partition_count(parents, os.cpu_count() or 1)
        groups = balance(parents, count) if parents else []
        return [ReferencePartition(tuple(planned[int(each.path)][0] for each in group)) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition with a connection of its own.

        Raises:
            StoreUnavailableError: no answer; the task fails and Spark repeats it.
        """
        # Spark reads one partition of its own making if there is none, without any topic.
        shares = partition.shares if isinstance(partition, ReferencePartition) else ()
        with asyncio.Runner() as runner:
            batches = _read(self._options, shares)
            try:
                while (batch := runner.run(anext(batches, None))) is not None:
                    yield batch
            finally:
                runner.run(batches.aclose())


async def _planned(options: ReferenceOptions) -> list[tuple[TopicShare, int]]:
    planned = []
    async with connected(options.uri, options.connect_timeout_s, options.access) as connection:
        for root in options.roots:
            await connection.store.sync(f"{root}/managed-ledgers")
            for parent in await PulsarTree(connection.store, root).parents():
                shares = 1 + parent.planned // TOPICS_PER_SHARE
                planned += [
                    (TopicShare(root, parent.path, share, shares), parent.planned // shares) for share in range(shares)
                ]
    return planned


async def _read(options: ReferenceOptions, shares: Sequence[TopicShare]) -> AsyncGenerator[pa.RecordBatch, None]:
    rows: list[Mapping[str, object]] = []
    async with connected(options.uri, options.connect_timeout_s, options.access) as connection:
        for each in shares:
            tree = PulsarTree(connection.store, each.root)
            async with aclosing(tree.nodes(each.parent, each.share, each.shares)) as parts:
                async for nodes in parts:
                    for node in nodes:
                        rows += reference_rows(each.root, node)
                    while len(rows) >= _ROWS_MAX:
                        yield _batch(rows[:_ROWS_MAX])
                        rows = rows[_ROWS_MAX:]
    if rows:
        yield _batch(rows)


def _batch(rows: Sequence[Mapping[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=REFERENCE_SCHEMA)


def reference_rows(root: str, node: PulsarNode) -> list[Mapping[str, object]]:
    """The rows of one node; absent columns are null."""
    referrer = Referrer(root, node.kind, node.name, node.cursor)
    topic = referrer.topic
    common: dict[str, object] = {
        "root": root,
        "kind": node.kind.value,
        "name": node.name,
        "cursor": node.cursor,
        "topic": None if topic is None else topic.name,
    }
    if node.is_denied:
        return [common | {"row": ReferenceRow.UNDECODABLE.value, "error": DENIED.value}]
    try:
        found = references_of(node.kind, node.data)
        in_ledger = ledger_with_reference(node.cursor, node.data)
    except UndecodableNodeError as error:
        return [common | {"row": ReferenceRow.UNDECODABLE.value, "error": str(error)}]
    rows: list[Mapping[str, object]] = [
        common
        | {
            "row": ReferenceRow.REFERENCE.value,
            "ledger_id": each.ledger_id,
            "copy": each.copy.value,
            "is_empty": each.is_empty,
        }
        for each in found
    ]
    if in_ledger is not None:
        rows.append(common | {"row": ReferenceRow.IN_LEDGER.value, "ledger_id": in_ledger})
    return rows
