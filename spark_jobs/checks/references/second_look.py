"""Check possible findings again: the possible referrers of a ledger, and the ledger itself.

Runs in a Spark task with its own connection; ``check_again`` is the core, which uses only the store port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from bookie.metadata.access import PLAIN_ACCESS, ZooKeeperAccess
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import ledger_path
from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode
from bookie.metadata.nodes import read_each_permitted
from bookie.metadata.port import AccessDeniedError, MetadataStore, Node
from bookie.metadata.pulsar.decoding import UndecodableNodeError, is_shadow
from bookie.metadata.pulsar.referrers import Referrer, ledger_with_reference, referrers_of, refers, requires
from bookie.metadata.pulsar.tree import Denied, NodeKind, partitioned_topic_path, policies_path, read_contents
from bookie.metadata.uri import parse_uri
from bookie.model.ids import LedgerId
from bookie.model.ownership import OWNER_COLUMNS, Component, Owner, decoded, owner_names, owner_of
from spark_jobs.checks.references.comparison import NODES_MAX, NotJudged, ReferenceVerdict
from spark_jobs.connect import PacedConnection, connected_at_pace
from spark_jobs.pacing.budget import FREE, TaskBudget

SECOND_LOOK_DDL: Final = """
    ledger_id bigint, verdict string, reason string, stored_bytes bigint, path string,
    tenant string, namespace string, topic string, component string, subscription string
"""
"""``path`` is the node that refers to a nonexistent ledger; the owner columns are then those of this node."""
_SCHEMA: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        ("stored_bytes", pa.int64()),
        ("path", pa.string()),
        *((name, pa.string()) for name in OWNER_COLUMNS),
    ]
)
_AT_ONCE: Final = 1_000
"""Number of ledgers whose nodes are in memory at a time. The node of a topic with many ledgers has a few hundred
kilobytes."""

_LONG_MAX: Final = (1 << 63) - 1

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SecondLookSettings:
    """The settings of each task, which are sent to executors."""

    metadata_uri: str
    connect_timeout_s: float
    roots: tuple[str, ...]
    created_before_ms: int
    """Ledgers created after this have no verdict, epoch milliseconds."""
    access: ZooKeeperAccess = PLAIN_ACCESS
    """How executors connect to ZooKeeper."""
    is_unsure: bool = False
    """Whether a node with unknown references belongs to an unknown topic. Then no ledger counts as unreferenced, and no
    node of a topic is read."""
    budget: TaskBudget = FREE
    """The limits on the reads of each task."""


def checking(settings: SecondLookSettings) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the task as a function for ``mapInArrow``; the input rows are those of ``suspects``."""

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with asyncio.Runner() as runner:
            stack = AsyncExitStack()
            try:
                connection: PacedConnection | None = None
                for batch in batches:
                    if connection is None:
                        uri = parse_uri(settings.metadata_uri)
                        opening = connected_at_pace(uri, settings.connect_timeout_s, settings.access, settings.budget)
                        connection = runner.run(stack.enter_async_context(opening))
                    rows = batch.to_pylist()
                    for start in range(0, len(rows), _AT_ONCE):
                        part = rows[start : start + _AT_ONCE]
                        runner.run(connection.store.measure_if_due())
                        seen = runner.run(check_again(connection.store, connection.cluster, settings, part))
                        yield pa.RecordBatch.from_pylist(seen, schema=_SCHEMA)
            finally:
                runner.run(stack.aclose())

    return check


async def check_again(
    store: MetadataStore, cluster: Cluster, settings: SecondLookSettings, rows: Sequence[Row]
) -> Sequence[Row]:
    """Return the rows of ``SECOND_LOOK_DDL``, one for each row of ``suspects``.

    The ledgers are read again after the nodes, so a ledger that Pulsar has just deleted counts neither as lost nor as
    unreferenced. A ledger whose node may not be read has no verdict, and is never lost.

    Raises:
        StoreUnavailableError: no answer.
    """
    paths = [ledger_path(cluster.kind, cluster.root, LedgerId(row["ledger_id"])) for row in rows]
    subjects = [
        _second_look_row(settings, row, data)
        for row, data in zip(rows, await _read_owner_metadata(store, rows, paths), strict=True)
    ]
    named = list(dict.fromkeys(path for each in subjects for path in each.paths))
    contents = dict(zip(named, await read_contents(store, named), strict=True))
    nodes = await read_each_permitted(store.get_many, paths)
    seen = []
    for each, node in zip(subjects, nodes, strict=True):
        created_ms = node.stat.ctime_ms if isinstance(node, Node) else None
        if isinstance(node, AccessDeniedError) and each.row["verdict"] != ReferenceVerdict.LOST.value:
            seen.append(each.seen(ReferenceVerdict.NOT_JUDGED, NotJudged.UNREADABLE))
        elif each.row["verdict"] == ReferenceVerdict.LOST.value:
            verdict, reason, referrer = _judge_references(each, contents, is_there=node is not None)
            seen.append(each.seen(verdict, reason) | _names(referrer))
        else:
            seen.append(each.seen(*_of_ledger(each, contents, created_ms, settings)))
    return seen


@dataclass(frozen=True, slots=True)
class _SecondLookRow:
    """A row with the metadata of its ledger."""

    row: Row
    referrers: Sequence[Referrer] = ()
    owner: Owner | None = None
    stored_bytes: int | None = None
    settled: NotJudged | None = None
    """Why the ledger has no verdict, whether or not a reference to it exists."""

    @property
    def paths(self) -> Iterator[str]:
        """The nodes to read."""
        for referrer in self.referrers:
            yield referrer.path
            if self.row["verdict"] == ReferenceVerdict.LOST.value:
                yield from _shadow_paths(referrer)

    def seen(self, verdict: ReferenceVerdict, reason: NotJudged | None) -> Row:
        """Return the row of this verdict."""
        return dict(zip(OWNER_COLUMNS, owner_names(self.owner), strict=True)) | {
            "ledger_id": self.row["ledger_id"],
            "stored_bytes": self.stored_bytes,
            "verdict": verdict.value,
            "reason": None if reason is None else reason.value,
            "path": None,
        }


async def _read_owner_metadata(
    store: MetadataStore, rows: Sequence[Row], paths: Sequence[str]
) -> Sequence[bytes | AccessDeniedError | None]:
    """Return the metadata of the ledgers whose owners are needed; None for the others, and for deleted ones."""
    wanted = [path for row, path in zip(rows, paths, strict=True) if row["verdict"] != ReferenceVerdict.LOST.value]
    found = dict(zip(wanted, await read_each_permitted(store.get_many_data, wanted) if wanted else (), strict=True))
    return [found.get(path) for path in paths]


def _second_look_row(settings: SecondLookSettings, row: Row, data: bytes | AccessDeniedError | None) -> _SecondLookRow:
    if row["verdict"] == ReferenceVerdict.LOST.value:
        named = (Referrer(by["root"], NodeKind(by["kind"]), by["name"], by["cursor"]) for by in row["by"])
        return _SecondLookRow(row, tuple(named))
    if data is None:
        return _SecondLookRow(row)
    if isinstance(data, AccessDeniedError):
        return _SecondLookRow(row, settled=NotJudged.UNREADABLE)
    try:
        metadata = decode(data)
    except UnreadableMetadataError:
        return _SecondLookRow(row, settled=NotJudged.UNREADABLE)
    owner = owner_of(metadata.custom)
    if owner is None:
        return _SecondLookRow(row, settled=NotJudged.FOREIGN)
    size = None if metadata.length is None else min(max(0, metadata.length) * metadata.write_quorum, _LONG_MAX)
    if not metadata.is_closed:
        return _SecondLookRow(row, (), owner, size, NotJudged.OPEN)
    referrers = [each for root in settings.roots for each in referrers_of(root, owner)]
    if not referrers:
        return _SecondLookRow(row, (), owner, size, NotJudged.UNNAMED)
    if settings.is_unsure:
        return _SecondLookRow(row, (), owner, size, NotJudged.UNDECODABLE)
    return _SecondLookRow(row, referrers, owner, size)


def _judge_references(
    subject: _SecondLookRow, contents: Mapping[str, bytes | Denied | None], *, is_there: bool
) -> tuple[ReferenceVerdict, NotJudged | None, Referrer]:
    """Return whether a node still requires a nonexistent ledger, and the node."""
    ledger_id, referrers = subject.row["ledger_id"], subject.referrers
    unsure: Referrer | None = referrers[-1] if len(referrers) >= NODES_MAX else None
    for referrer in () if is_there else referrers:
        try:
            if not requires(referrer, contents[referrer.path], ledger_id):
                continue
        except UndecodableNodeError:  # the node could be decoded at the first look: the next run reports it
            continue
        is_of_shadow = _is_of_shadow(referrer, contents)
        if is_of_shadow is False:
            return ReferenceVerdict.LOST, None, referrer
        if is_of_shadow is None:
            unsure = referrer
    if unsure is not None and not is_there:
        return ReferenceVerdict.NOT_JUDGED, NotJudged.MAYBE_SHADOW, unsure
    return ReferenceVerdict.CHANGED, None, referrers[0]


def _shadow_paths(referrer: Referrer) -> Sequence[str]:
    """Return the nodes that show whether the topic is a partition of a shadow topic; empty if it is not a partition."""
    topic = partitioned_topic_path(referrer.root, referrer.name) if referrer.kind is NodeKind.MANAGED_LEDGER else None
    return () if topic is None else (topic, policies_path(referrer.root, referrer.name))


def _is_of_shadow(referrer: Referrer, contents: Mapping[str, bytes | Denied | None]) -> bool | None:
    """Return whether the node belongs to a partition of a shadow topic; None: unknown.

    A topic without a node may have one in the configuration store of the brokers, which can be another ZooKeeper.
    """
    paths = _shadow_paths(referrer)
    if not paths:
        return False
    topic, policies = (contents[path] for path in paths)
    if topic is None and isinstance(policies, bytes):
        return False
    try:
        return is_shadow(topic) if isinstance(topic, bytes) else None
    except UndecodableNodeError:
        return None


def _of_ledger(
    subject: _SecondLookRow,
    contents: Mapping[str, bytes | Denied | None],
    created_ms: int | None,
    settings: SecondLookSettings,
) -> tuple[ReferenceVerdict, NotJudged | None]:
    """Return the verdict: unreferenced if the ledger exists, is old enough, and has no reference."""
    if created_ms is None or (subject.settled is None and subject.owner is None):
        return ReferenceVerdict.CHANGED, None
    if subject.settled is not None:
        return ReferenceVerdict.NOT_JUDGED, subject.settled
    if created_ms > settings.created_before_ms:
        return ReferenceVerdict.NOT_JUDGED, NotJudged.YOUNG
    referrers, ledger_id = subject.referrers, subject.row["ledger_id"]
    try:
        if any(refers(referrer, contents[referrer.path], ledger_id) for referrer in referrers):
            return ReferenceVerdict.CHANGED, None
        is_compacted = subject.owner is not None and subject.owner.component is Component.COMPACTED
        if is_compacted and any(_is_in_ledger(referrer, contents[referrer.path]) for referrer in referrers):
            return ReferenceVerdict.NOT_JUDGED, NotJudged.IN_LEDGER
    except UndecodableNodeError:
        return ReferenceVerdict.NOT_JUDGED, NotJudged.UNDECODABLE
    return ReferenceVerdict.UNREFERENCED, None


def _is_in_ledger(referrer: Referrer, data: bytes | Denied | None) -> bool:
    """Return whether the reference of this node is stored in a ledger.

    ``refers`` has already refused an unreadable node.
    """
    return isinstance(data, bytes) and ledger_with_reference(referrer.cursor, data) is not None


def _names(referrer: Referrer) -> Row:
    """Return the columns for the path and the owner of a node."""
    topic = referrer.topic
    named: Row = {"path": referrer.path, "component": referrer.kind.value}
    if topic is None:
        return named
    try:
        subscription = None if referrer.cursor is None else decoded(referrer.cursor)
    except ValueError:
        subscription = None
    return named | {
        "tenant": topic.tenant,
        "namespace": topic.namespace,
        "topic": topic.name,
        "subscription": subscription,
    }
