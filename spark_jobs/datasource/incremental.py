"""Read what changed since an image was written, and carry over its other rows. Runs inside an executor.

For each leaf, there are three cases:

- *the same list*: no child was created or deleted since then. Only ledgers that need a second look are read.
- *another list*: the children are listed, and those missing in the image are read as well. If fewer ledgers are new
  than were created, a ledger may have been deleted and created again with the same id: then the whole leaf is read.
- *no usable rows*: if rows are missing or damaged, or if it is time to read them again, the whole leaf is read.

A ledger needs a second look unless it was closed, and its bookies were live then and are live now. Carried-over ledgers
are only counted: no finding and no mark is based on an image (R108).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.core.broadcast import Broadcast

from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers.tree import LedgerTree
from bookie.model.ids import LedgerId
from spark_jobs.connect import connected_at_pace
from spark_jobs.datasource.columns import LedgerColumns
from spark_jobs.datasource.counts import ScanCounts
from spark_jobs.datasource.options import LedgerOptions
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.datasource.scan import image_part, leaf_of, paced, read_listed
from spark_jobs.datasource.task_rows import in_event_loop, one_reading
from spark_jobs.image.carried import ImageRows, divided, tally, without
from spark_jobs.image.folder import ImageFolder
from spark_jobs.image.leaves import LeafRecord, LeafSlice, LeafStat
from spark_jobs.image.manifest import ImageError
from spark_jobs.image.part import ImageFile, ImagePart
from spark_jobs.pacing.paced_store import PacedStore


@dataclass(frozen=True, slots=True)
class LeafWork:
    """One leaf, and what the image has of it."""

    parent: LeafParent
    record: LeafRecord | None
    """Its record in the image; None: read the whole leaf."""


def work_text(works: Sequence[LeafWork]) -> str:
    """Return the work of a group as text."""
    return json.dumps([(_parent_values(work.parent), _record_values(work.record)) for work in works])


def work_of(text: str) -> tuple[LeafWork, ...]:
    """Return the work in a text from ``work_text``."""
    return tuple(
        LeafWork(_parent(*parent), None if record is None else _record(*record)) for parent, record in json.loads(text)
    )


def _parent_values(parent: LeafParent) -> Sequence[object]:
    return parent.path, parent.planned, None if parent.stat is None else _stat_values(parent.stat)


def _record_values(record: LeafRecord | None) -> Sequence[object] | None:
    if record is None:
        return None
    slices = [(piece.file, piece.first, piece.rows) for piece in record.slices]
    return record.leaf, _stat_values(record.stat), record.listed, record.read_from_ms, slices


def _stat_values(stat: LeafStat) -> Sequence[int]:
    return stat.czxid, stat.children_zxid, stat.children_version, stat.children


def _parent(path: str, planned: int, stat: Sequence[int] | None) -> LeafParent:
    return LeafParent(path, planned, None if stat is None else LeafStat(*stat))


def _record(
    leaf: int, stat: Sequence[int], listed: int, read_from_ms: int, slices: Sequence[tuple[str, int, int]]
) -> LeafRecord:
    return LeafRecord(leaf, LeafStat(*stat), listed, read_from_ms, tuple(LeafSlice(*piece) for piece in slices))


@dataclass(frozen=True, slots=True)
class ImageSource:
    """The files of an image."""

    files: Mapping[str, ImageFile]
    folders: Mapping[str, ImageFolder]

    def rows(self) -> ImageRows:
        """Open the image."""
        return ImageRows(self.files, self.folders)


@dataclass(frozen=True, slots=True)
class IncrementalTasks:
    """The function that Spark calls with indexes into ``groups``; it yields rows of ``bk_ledgers``.

    Raises:
        StoreUnavailableError: no answer; all rows read so far must be discarded.
        OtherVersionError: this executor has another version of the package.
    """

    options: LedgerOptions
    source: ImageSource
    groups: Broadcast[Sequence[str]]
    """Groups of leaves, each as text (``work_text``); a task decodes only its own groups."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one Spark task. The last column is the number of the reading."""
        return one_reading(self._read(batches), self.options.driver_version)

    def _read(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from in_event_loop(_rows(self.options, self.source, work_of(self.groups.value[number])))


async def incremental(
    store: PacedStore,
    cluster: Cluster,
    group: Sequence[LeafWork],
    source: ImageSource,
    options: LedgerOptions,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the ledgers of some leaves with a member that is not live, then the summary row.

    Raises:
        StoreUnavailableError: no answer; all rows read so far must be discarded.
    """
    image = image_part(options)
    columns = LedgerColumns(options.live_bookies, is_summarized=True, image=image)
    with source.rows() as rows:
        reading = _Reading(store, cluster, rows, options.live_bookies or frozenset(), columns.counts, image)
        async with aclosing(read_listed(store, cluster, reading.wanted(group), columns)) as batches:
            async for batch in batches:
                yield batch


class _Reading:
    """Selects the ledgers of some leaves to read, and carries over the rest."""

    def __init__(
        self,
        store: PacedStore,
        cluster: Cluster,
        rows: ImageRows,
        live: frozenset[str],
        counts: ScanCounts,
        image: ImagePart | None,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._tree = LedgerTree(store, cluster)
        self._rows = rows
        self._live = live
        self._counts = counts
        self._image = image

    async def wanted(self, group: Sequence[LeafWork]) -> AsyncGenerator[Sequence[LedgerId], None]:
        """Yield the ids to read, in chunks of one leaf each."""
        await self._store.sync(self._cluster.root)  # this server may lag behind the plan's
        for work in group:
            async for some in paced(await self._of(work), self._store):
                yield some

    async def _of(self, work: LeafWork) -> Sequence[LedgerId]:
        parent, record = work.parent, work.record
        # In a thread, because a store may be slow and must not block the connection to ZooKeeper.
        rows = None if record is None else await asyncio.to_thread(self._read_image_rows, record)
        if record is None or rows is None or parent.stat is None:
            (ids,) = await self._tree.ids_under_many([parent.path])
            return self._whole(parent, ids)
        carried, again = divided(rows, self._live)
        if record.is_same(parent.stat):
            self._carry_over_leaf(parent, parent.stat, record, carried, listed=len(rows))
            return sorted(map(LedgerId, again))
        ids, creates = await self._tree.listing(parent.path)
        known = frozenset(rows["ledger_id"].to_pylist())
        new = [ledger_id for ledger_id in ids if ledger_id not in known]
        if not record.are_all_new(len(new), creates):
            return self._whole(parent, ids)
        there = frozenset(ids)
        self._carry_over_leaf(parent, parent.stat, record, without(carried, known - there), listed=len(ids))
        return sorted([*new, *map(LedgerId, again & there)])

    def _read_image_rows(self, record: LeafRecord) -> pa.Table | None:
        try:
            return self._rows.of(record)
        except ImageError as error:
            self._counts.carried_problem = str(error)
            return None

    def _whole(self, parent: LeafParent, ids: Sequence[LedgerId]) -> Sequence[LedgerId]:
        self._counts.parents.append((parent.path, parent.planned, len(ids)))
        if parent.stat is not None:
            self._listed(parent.path, parent.stat, len(ids))
        return ids

    def _carry_over_leaf(
        self, parent: LeafParent, stat: LeafStat, record: LeafRecord, carried: pa.Table, *, listed: int
    ) -> None:
        self._counts.parents.append((parent.path, parent.planned, listed))
        self._counts.carry(tally(carried))
        self._listed(parent.path, stat, listed, record.read_from_ms)
        if self._image is not None and len(carried):
            self._image.keep(carried)

    def _listed(self, path: str, stat: LeafStat, listed: int, read_from_ms: int | None = None) -> None:
        leaf = leaf_of(self._cluster, path)
        if self._image is not None and leaf is not None:
            self._image.listed(leaf, stat, listed, read_from_ms)


async def _rows(
    options: LedgerOptions, source: ImageSource, group: Sequence[LeafWork]
) -> AsyncGenerator[pa.RecordBatch, None]:
    async with (
        connected_at_pace(options.uri, options.connect_timeout_s, options.access, options.budget) as connection,
        aclosing(incremental(connection.store, connection.cluster, group, source, options)) as batches,
    ):
        async for batch in batches:
            yield batch
