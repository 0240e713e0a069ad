"""Check copies outside of the metadata again: read the metadata of their ledgers after the bookies listed them.

Runs in a Spark task with its own connection; ``check_again`` is the core, which uses only the store port.
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
from bookie.metadata.layout import ledger_path, lock_path, parents_of, task_path
from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode
from bookie.metadata.nodes import read_each_permitted
from bookie.metadata.port import AccessDeniedError, MetadataStore, Node
from bookie.metadata.tasks.reservations import Reservations
from bookie.metadata.uri import parse_uri
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.ownership import OWNER_COLUMNS, owner_names, owner_of
from spark_jobs.checks.inventory.verdict import Copy, Deleted, Grace, Present, judged
from spark_jobs.connect import PacedConnection, connected_at_pace
from spark_jobs.pacing.budget import FREE, TaskBudget

SEEN_DDL: Final = """
    ledger_id bigint, verdict string, reason string, bookies array<string>, state string, write_quorum int,
    ack_quorum int, tenant string, namespace string, topic string, component string, subscription string
"""
"""One row per ledger and verdict, with the bookies of the copies with this verdict."""
_SCHEMA: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        ("bookies", pa.list_(pa.string())),
        ("state", pa.string()),
        ("write_quorum", pa.int32()),
        ("ack_quorum", pa.int32()),
        *((name, pa.string()) for name in OWNER_COLUMNS),
    ]
)
_AT_ONCE: Final = 1_000
"""Number of ledgers read at a time."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class InventoryLookSettings:
    """The settings of each task, which are sent to executors."""

    metadata_uri: str
    connect_timeout_s: float
    grace: Grace
    access: ZooKeeperAccess = PLAIN_ACCESS
    """How executors connect to ZooKeeper."""
    budget: TaskBudget = FREE
    """The limits on the reads of each task."""


def checking(settings: InventoryLookSettings) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the task as a function for ``mapInArrow``; the input rows are those of ``comparison.suspects``."""

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with asyncio.Runner() as runner:
            stack = AsyncExitStack()
            try:
                connection: PacedConnection | None = None
                for batch in batches:
                    if connection is None:
                        uri = parse_uri(settings.metadata_uri)
                        timeout_s, budget = settings.connect_timeout_s, settings.budget
                        opening = connected_at_pace(uri, timeout_s, settings.access, budget, measures_itself=True)
                        connection = runner.run(stack.enter_async_context(opening))
                    rows = batch.to_pylist()
                    for start in range(0, len(rows), _AT_ONCE):
                        part = rows[start : start + _AT_ONCE]
                        seen = runner.run(check_again(connection.store, connection.cluster, part, settings.grace))
                        yield pa.RecordBatch.from_pylist(seen, schema=_SCHEMA)
            finally:
                runner.run(stack.aclose())

    return check


async def check_again(store: MetadataStore, cluster: Cluster, rows: Sequence[Row], grace: Grace) -> list[Row]:
    """Return the rows of ``SEEN_DDL``.

    The signs of a repair are read before the ledger: if a repair ends between the two reads, the metadata contains the
    result of the repair.

    Raises:
        StoreUnavailableError: no answer.
    """
    await store.sync(cluster.root)
    ids = [LedgerId(row["ledger_id"]) for row in rows]
    repairs = await _ledgers_in_repair(store, cluster, ids)
    nodes = await _nodes(store, [ledger_path(cluster.kind, cluster.root, ledger_id) for ledger_id in ids])
    absent = [ledger_id for ledger_id, node in zip(ids, nodes, strict=True) if node is None]
    quiet = dict(zip(absent, await _last_parent_change_zxids(store, cluster, absent), strict=True))
    seen: list[Row] = []
    for row, ledger_id, node in zip(rows, ids, nodes, strict=True):
        metadata = None
        ledger: Present | Deleted
        if node is None:
            ledger = Deleted(quiet[ledger_id])
        elif isinstance(node, Node):
            metadata = _decoded(node.data)
            ledger = Present(metadata, node.stat.mtime_ms, ledger_id in repairs)
        else:
            ledger = Present(None, 0, is_in_repair=False)
        copies = [
            Copy(BookieId(each["bookie_id"]), each["first_entry_id"], each["last_entry_id"]) for each in row["copies"]
        ]
        for verdict, reason, found in judged(ledger, copies, grace):
            seen.append(
                _of_ledger(metadata)
                | {
                    "ledger_id": ledger_id,
                    "verdict": verdict.value,
                    "reason": None if reason is None else reason.value,
                    "bookies": [copy.bookie for copy in found],
                }
            )
    return seen


class _Denied:
    """A node without permission to read."""


_DENIED: Final = _Denied()


async def _nodes(store: MetadataStore, paths: Sequence[str]) -> Sequence[Node | _Denied | None]:
    if not paths:
        return ()
    found = await read_each_permitted(store.get_many, paths)
    return [_DENIED if isinstance(node, AccessDeniedError) else node for node in found]


async def _ledgers_in_repair(store: MetadataStore, cluster: Cluster, ids: Sequence[LedgerId]) -> set[LedgerId]:
    """Return the ledgers with a mark, a lock or a reservation. A node that may not be read counts as well."""
    reservations = Reservations(store, cluster.root)
    paths = [
        path
        for ledger_id in ids
        for path in (
            task_path(cluster.root, ledger_id),
            lock_path(cluster.root, ledger_id),
            reservations.path(ledger_id),
        )
    ]
    nodes = await _nodes(store, paths)
    return {ids[place // 3] for place, node in enumerate(nodes) if node is not None}


async def _last_parent_change_zxids(store: MetadataStore, cluster: Cluster, ids: Sequence[LedgerId]) -> list[int]:
    """Return, per nonexistent ledger, the last transaction that created or deleted nodes under its nearest parent."""
    above = [parents_of(ledger_path(cluster.kind, cluster.root, ledger_id), cluster.root) for ledger_id in ids]
    paths = list(dict.fromkeys(path for parents in above for path in (*parents, cluster.root)))
    known = dict(zip(paths, await _nodes(store, paths), strict=True))
    return [_nearest([known[path] for path in (*parents, cluster.root)]) for parents in above]


def _nearest(upwards: Sequence[Node | _Denied | None]) -> int:
    """Return the last transaction that changed the children of the first existing node."""
    nearest = next((node for node in upwards if node is not None), None)
    return nearest.stat.children_zxid if isinstance(nearest, Node) else _NEVER


_NEVER: Final = (1 << 63) - 1
"""A transaction id later than any real one."""


def _decoded(data: bytes) -> LedgerMetadata | None:
    try:
        return decode(data)
    except UnreadableMetadataError:
        return None


def _of_ledger(metadata: LedgerMetadata | None) -> Row:
    if metadata is None:
        return {}
    return dict(zip(OWNER_COLUMNS, owner_names(owner_of(metadata.custom)), strict=True)) | {
        "state": metadata.state.name,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
    }
