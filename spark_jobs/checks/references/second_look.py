"""What would be reported is looked at again: the nodes that may refer to a ledger, and the ledger itself.

Runs in a Spark task, with a connection of its own; ``look_again`` is its core on the store port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from bookie.metadata.access import PLAIN_ACCESS, ZooKeeperAccess
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import ledger_path
from bookie.metadata.port import MetadataStore
from bookie.metadata.pulsar.decoding import UndecodableNodeError
from bookie.metadata.pulsar.referrers import Referrer, ledger_with_reference, referrers_of, refers
from bookie.metadata.pulsar.tree import Denied, NodeKind, read_contents
from bookie.metadata.uri import parse_uri
from bookie.model.ids import LedgerId
from bookie.model.ownership import OWNER_COLUMNS, Component, Owner, Topic, decoded
from spark_jobs.checks.references.comparison import NotJudged, Verdict
from spark_jobs.connect import Connection, connected

SECOND_LOOK_DDL: Final = """
    ledger_id bigint, verdict string, reason string, stored_bytes bigint, path string,
    tenant string, namespace string, topic string, component string, subscription string
"""
"""``path`` is the node of a reference to a ledger that does not exist, and the owner then is that of the node."""
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
"""Ledgers whose nodes are in memory at a time. The node of a topic with many ledgers has some hundred kilobytes."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LookSettings:
    """What each task needs to know. Sent to executors."""

    metadata_uri: str
    connect_timeout_s: float
    roots: tuple[str, ...]
    created_before_ms: int
    """Younger ledgers have no verdict."""
    access: ZooKeeperAccess = PLAIN_ACCESS
    """How executors reach ZooKeeper."""


def looking(settings: LookSettings) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task as a function for ``mapInArrow``; its rows are those of ``compared`` that would be reported."""

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with asyncio.Runner() as runner:
            stack = AsyncExitStack()
            try:
                connection: Connection | None = None
                for batch in batches:
                    if connection is None:
                        uri = parse_uri(settings.metadata_uri)
                        opening = connected(uri, settings.connect_timeout_s, settings.access)
                        connection = runner.run(stack.enter_async_context(opening))
                    rows = batch.to_pylist()
                    for start in range(0, len(rows), _AT_ONCE):
                        part = rows[start : start + _AT_ONCE]
                        seen = runner.run(look_again(connection.store, connection.cluster, settings, part))
                        yield pa.RecordBatch.from_pylist(seen, schema=_SCHEMA)
            finally:
                runner.run(stack.aclose())

    return look


async def look_again(
    store: MetadataStore, cluster: Cluster, settings: LookSettings, rows: Sequence[Row]
) -> Sequence[Row]:
    """Return the rows of ``SECOND_LOOK_DDL``, one for each row of ``compared``.

    The ledgers are read after the nodes, so that a ledger that Pulsar has just deleted is not taken for lost.

    Raises:
        StoreUnavailableError: no answer.
    """
    referrers = [_referrers(settings.roots, row) for row in rows]
    paths = list(dict.fromkeys(referrer.path for each in referrers for referrer in each))
    contents = dict(zip(paths, await read_contents(store, paths), strict=True))
    ids = [LedgerId(row["ledger_id"]) for row in rows]
    nodes = await store.get_many([ledger_path(cluster.kind, cluster.root, ledger_id) for ledger_id in ids])
    seen = []
    for row, node, each in zip(rows, nodes, referrers, strict=True):
        created_ms = None if node is None else node.stat.ctime_ms
        if row["verdict"] == Verdict.LOST.value:
            (referrer,) = each
            verdict = _of_reference(referrer, contents[referrer.path], row["ledger_id"], is_there=node is not None)
            seen.append(_seen(row, verdict, None) | _names(referrer))
        else:
            verdict, reason = _of_ledger(row, each, contents, created_ms, settings.created_before_ms)
            seen.append(_seen(row, verdict, reason))
    return seen


def _referrers(roots: Sequence[str], row: Row) -> Sequence[Referrer]:
    if row["verdict"] == Verdict.LOST.value:
        by = row["by"]
        return (Referrer(by["root"], NodeKind(by["kind"]), by["name"], by["cursor"]),)
    owner = Owner(
        Component(row["component"]), Topic(row["tenant"], row["namespace"], row["topic"]), row["subscription"]
    )
    return [each for root in roots for each in referrers_of(root, owner)]


def _of_reference(referrer: Referrer, data: bytes | Denied | None, ledger_id: int, *, is_there: bool) -> Verdict:
    """Whether the reference still names a ledger that does not exist."""
    try:
        return Verdict.LOST if refers(referrer, data, ledger_id) and not is_there else Verdict.CHANGED
    except UndecodableNodeError:  # it was decoded a moment ago: the next run reports the node
        return Verdict.CHANGED


def _of_ledger(
    row: Row,
    referrers: Sequence[Referrer],
    contents: dict[str, bytes | Denied | None],
    created_ms: int | None,
    created_before_ms: int,
) -> tuple[Verdict, NotJudged | None]:
    """Whether the ledger is there, old enough, and nothing refers to it."""
    if created_ms is None:
        return Verdict.CHANGED, None
    if created_ms > created_before_ms:
        return Verdict.NOT_JUDGED, NotJudged.YOUNG
    if not referrers:
        return Verdict.NOT_JUDGED, NotJudged.UNNAMED
    try:
        if any(refers(referrer, contents[referrer.path], row["ledger_id"]) for referrer in referrers):
            return Verdict.CHANGED, None
        if row["component"] == Component.COMPACTED.value and any(
            _is_in_ledger(referrer, contents[referrer.path]) for referrer in referrers
        ):
            return Verdict.NOT_JUDGED, NotJudged.IN_LEDGER
    except UndecodableNodeError:
        return Verdict.NOT_JUDGED, NotJudged.UNDECODABLE
    return Verdict.UNREFERENCED, None


def _is_in_ledger(referrer: Referrer, data: bytes | Denied | None) -> bool:
    """Whether a ledger contains what this node would refer to. ``refers`` has refused a node that may not be read."""
    return isinstance(data, bytes) and ledger_with_reference(referrer.cursor, data) is not None


def _seen(row: Row, verdict: Verdict, reason: NotJudged | None) -> Row:
    kept = {name: row[name] for name in ("ledger_id", "stored_bytes", *OWNER_COLUMNS)}
    return kept | {"verdict": verdict.value, "reason": None if reason is None else reason.value, "path": None}


def _names(referrer: Referrer) -> Row:
    """The owner of a node."""
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
