"""Read all ledgers of some metadata nodes as record batches.

Uses only the store port; runs inside an executor.

A fixed number of requests is sent ahead of the decoding, so memory stays bounded. Any failure of the store aborts the
scan with its error. Spark then reads the whole partition again, so no partition is read in part (R20).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Final

import pyarrow as pa

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind, ledger_ids_under, ledger_path
from bookie.metadata.ledgers.tree import LedgerTree
from bookie.metadata.nodes import read_each_permitted
from bookie.metadata.port import AccessDeniedError, MetadataStore
from bookie.model.ids import LedgerId
from bookie.runtime.tasks import cancel, guarded
from spark_jobs.datasource.brief_columns import BriefColumns
from spark_jobs.datasource.columns import LedgerColumns, MetadataColumns
from spark_jobs.datasource.counts import ScanCounts
from spark_jobs.datasource.options import LedgerOptions
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.image.folder import image_folder
from spark_jobs.image.leaves import LEAF_IDS
from spark_jobs.image.part import ImagePart
from spark_jobs.pacing.paced_store import PacedStore

ROWS_MAX: Final = 10_000
"""Largest number of rows in a batch, as by Spark's own default."""
BATCH_BYTES: Final = 8 << 20
"""Bytes of metadata after which a batch ends. The rows of a batch need about eight times as much memory, because each
member of a fragment is a text. With one fragment for each ledger, a batch has 2 MB."""
LISTED_LEDGERS: Final = 10_000
LISTED_NODES: Final = 100
"""Largest numbers of planned ledgers and of nodes that are listed at a time. One node may have as many ledgers."""
_CHUNKS_AHEAD: Final = 2
"""Two chunks keep ZooKeeper busy while a third one is decoded. With about 200 bytes for each ledger, they need about
one megabyte."""
_LEAF_DIGITS: Final = 4
"""Digits in the name of a ledger's node in the hierarchical layouts (docs/formats.md#ledger-paths)."""
_LEAF_ENDS: Final = ("L0000", "L9999")
"""Names of the first and the last possible ledger of a leaf."""
_DENIED: Final = "access denied: the node's ACL does not let this session read it"

Listed = AsyncGenerator[Sequence[LedgerId], None]
"""The ids to read, in chunks."""
_LedgerPaths = Callable[[Cluster, Sequence[LedgerId]], list[str]]
_Chunk = tuple[Sequence[LedgerId], Sequence[bytes | str | None]]
"""The ids, and for each one the bytes of its node; None: the node was deleted; a text: the reason why the node may not
be read."""


async def reread(
    store: PacedStore, cluster: Cluster, ids: Iterable[Sequence[LedgerId]], options: LedgerOptions
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the ledgers with these ids as ``scan`` does. The ids may have any order; the counts have no parents.

    Raises:
        StoreUnavailableError: no answer; all rows read so far must be discarded.
    """
    columns = LedgerColumns(options.live_bookies, is_summarized=options.is_summarized)
    wanted = _given(store, cluster, ids)
    async with aclosing(_batches(store, cluster, wanted, columns, _ledger_paths)) as batches:
        async for batch in batches:
            yield batch


async def scan(
    store: PacedStore, cluster: Cluster, parents: Sequence[LeafParent], options: LedgerOptions
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the ledgers directly under ``parents``, then the summary row if it is requested.

    Raises:
        StoreUnavailableError: no answer; all rows read so far must be discarded.
    """
    columns: MetadataColumns
    image = image_part(options)
    if options.is_brief:
        columns = BriefColumns(options.live_bookies, is_summarized=options.is_summarized)
    else:
        columns = LedgerColumns(options.live_bookies, is_summarized=options.is_summarized, image=image)
    listed = _listed(store, cluster, parents, options, columns.counts, image)
    async with aclosing(read_listed(store, cluster, listed, columns)) as batches:
        async for batch in batches:
            yield batch


def image_part(options: LedgerOptions) -> ImagePart | None:
    """Return the part of an image written by a reading; None: no image is written."""
    if options.image_dir is None:
        return None
    return ImagePart(image_folder(options.image_dir), options.image_from_ms, options.image_unsettled)


def leaf_of(cluster: Cluster, path: str) -> int | None:
    """Return the number of a leaf.

    None: the node holds no ledgers, or all of them (the root of the flat layout), or only some of the ids with this
    number. In the default layout, the last leaf of the short tree and a leaf of the long tree have the same number. One
    record could not describe both.
    """
    if cluster.kind is LayoutKind.FLAT:
        return None
    ends = ledger_ids_under(cluster.kind, cluster.root, path, _LEAF_ENDS)
    return ends[0] // LEAF_IDS if len(ends) == len(_LEAF_ENDS) else None


async def read_listed(
    store: MetadataStore, cluster: Cluster, listed: Listed, columns: MetadataColumns
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read the listed ledgers, and yield them, then the summary row. The ledgers of a chunk must be under one node.

    Raises:
        StoreUnavailableError: no answer; all rows read so far must be discarded.
    """
    async with aclosing(_batches(store, cluster, listed, columns, _paths)) as batches:
        async for batch in batches:
            yield batch


async def _batches(
    store: MetadataStore, cluster: Cluster, listed: Listed, columns: MetadataColumns, paths: _LedgerPaths
) -> AsyncGenerator[pa.RecordBatch, None]:
    size = 0
    async with aclosing(_read_ahead(store, cluster, listed, paths)) as chunks:
        async for ids, found in chunks:
            if len(columns) + len(ids) > ROWS_MAX or (size > BATCH_BYTES and len(columns)):
                yield columns.take_batch()
                size = 0
            _add(columns, ids, found)
            size += sum(len(data) for data in found if data is not None)
    if len(columns):
        yield columns.take_batch()
    if columns.is_summarized and columns.has_image:
        # In a thread, because finishing an image may wait for a store, and this must not block the connection to
        # ZooKeeper.
        yield await asyncio.to_thread(columns.take_summary)
    elif columns.is_summarized:
        yield columns.take_summary()


def _add(columns: MetadataColumns, ids: Sequence[LedgerId], found: Sequence[bytes | str | None]) -> None:
    add = columns.add
    for ledger_id, data in zip(ids, found, strict=True):
        if data is None:
            columns.counts.vanished += 1
        elif isinstance(data, str):
            columns.add_unreadable(ledger_id, data)
        else:
            add(ledger_id, data)


async def _listed(
    store: PacedStore,
    cluster: Cluster,
    parents: Sequence[LeafParent],
    options: LedgerOptions,
    counts: ScanCounts,
    image: ImagePart | None,
) -> AsyncGenerator[Sequence[LedgerId], None]:
    """List the ledgers, count them, and yield the ids to read in chunks."""
    tree = LedgerTree(store, cluster)
    await store.sync(cluster.root)  # this server may lag behind the plan's
    for group in listed_together(parents):
        for parent, ids in zip(group, await tree.ids_under_many([each.path for each in group]), strict=True):
            wanted = [ledger_id for ledger_id in ids if options.is_wanted(ledger_id)]
            counts.parents.append((parent.path, parent.planned, len(ids)))
            counts.skipped += len(ids) - len(wanted)
            if image is not None and parent.stat is not None and (leaf := leaf_of(cluster, parent.path)) is not None:
                image.listed(leaf, parent.stat, len(ids))
            async for some in paced(wanted, store):
                yield some


def listed_together(parents: Sequence[LeafParent]) -> Iterator[Sequence[LeafParent]]:
    """Yield the nodes in groups that are listed by one request: many in a sparse tree, one in a dense tree.

    Each node in a request of its own would cost a round trip, during which a task has nothing to decode.
    """
    start, ledgers = 0, 0
    for number, parent in enumerate(parents):
        if number > start and (ledgers + parent.planned > LISTED_LEDGERS or number - start == LISTED_NODES):
            yield parents[start:number]
            start, ledgers = number, 0
        ledgers += parent.planned
    if parents:
        yield parents[start:]


async def _given(
    store: PacedStore, cluster: Cluster, ids: Iterable[Sequence[LedgerId]]
) -> AsyncGenerator[Sequence[LedgerId], None]:
    await store.sync(cluster.root)  # this server may lag behind what the caller has read
    for some in ids:
        async for chunk in paced(some, store):
            yield chunk


async def paced(ids: Sequence[LedgerId], store: PacedStore) -> AsyncGenerator[Sequence[LedgerId], None]:
    """Yield the ids in chunks as large as the pace allows. The latency is measured while the caller decodes nothing."""
    start = 0
    while start < len(ids):
        await store.measure_if_due()
        chunk = ids[start : start + store.pace.chunk]
        yield chunk
        start += len(chunk)


async def _read_ahead(
    store: MetadataStore, cluster: Cluster, listed: Listed, paths: _LedgerPaths
) -> AsyncGenerator[_Chunk, None]:
    ahead: deque[tuple[Sequence[LedgerId], asyncio.Task[Sequence[bytes | str | None]]]] = deque()
    try:
        async for ids in listed:
            ahead.append((ids, guarded("read ledger metadata", _read(store, paths(cluster, ids)))))
            if len(ahead) > _CHUNKS_AHEAD:
                first, reading = ahead.popleft()
                yield first, await reading
        while ahead:
            first, reading = ahead.popleft()
            yield first, await reading
    finally:
        await listed.aclose()
        for _, reading in ahead:
            await cancel(reading)


async def read_metadata(
    store: MetadataStore, cluster: Cluster, ids: Sequence[LedgerId]
) -> Sequence[bytes | str | None]:
    """Read the current metadata of some ledgers.

    Returns:
        For each ledger the bytes; None: it was deleted; a text: the reason why it may not be read.

    Raises:
        StoreUnavailableError: no answer.
    """
    await store.sync(cluster.root)
    return await _read(store, _ledger_paths(cluster, ids))


async def _read(store: MetadataStore, paths: Sequence[str]) -> Sequence[bytes | str | None]:
    found = await read_each_permitted(store.get_many_data, paths)
    return [_DENIED if isinstance(data, AccessDeniedError) else data for data in found]


def _paths(cluster: Cluster, ids: Sequence[LedgerId]) -> list[str]:
    """Return the paths of ledgers with the same parent. Only the first path is computed in full."""
    first = ledger_path(cluster.kind, cluster.root, ids[0])
    if cluster.kind is LayoutKind.FLAT:
        return _ledger_paths(cluster, ids)
    prefix = first[:-_LEAF_DIGITS]
    return [f"{prefix}{ledger_id % 10_000:04d}" for ledger_id in ids]


def _ledger_paths(cluster: Cluster, ids: Sequence[LedgerId]) -> list[str]:
    return [ledger_path(cluster.kind, cluster.root, ledger_id) for ledger_id in ids]
