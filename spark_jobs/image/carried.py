"""The rows of an image that a later reading carries over, leaf by leaf. Runs inside an executor.

Only rows that need no second look are carried over: the ledger was closed, and its bookies were live then and are live
now. No rows of a damaged file are used; its leaves are read from ZooKeeper.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.image.columns import LEDGERS_SCHEMA
from spark_jobs.image.folder import ImageFolder, map_concurrently
from spark_jobs.image.leaves import LEAF_IDS, LEAVES_SCHEMA, LeafRecord, LeafSlice, leaf_records
from spark_jobs.image.manifest import ImageError, Manifest
from spark_jobs.image.part import ImageFile, opened_parquet

_GROUPS_KEPT: Final = 4
"""Number of row groups in memory: the slices of a leaf are in two or three files, and the next leaf follows in the same
files."""
_FILES_KEPT: Final = 8
"""Number of open files. A file of a store is held in memory, a few megabytes."""


class ImageRows:
    """The rows of one generation, by leaf. Not shared between threads."""

    def __init__(self, files: Mapping[str, ImageFile], folders: Mapping[str, ImageFolder]) -> None:
        """Prepare.

        Args:
            files: the files of the image, by name.
            folders: the folder of each file, by name of the file.
        """
        self._files = files
        self._folders = folders
        self._parquet: OrderedDict[str, pq.ParquetFile] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._failed: dict[str, str] = {}

    def __enter__(self) -> ImageRows:
        """Return this object; its files are closed at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        for parquet in self._parquet.values():
            parquet.close(force=True)

    def of(self, record: LeafRecord) -> pa.Table:
        """Return the ledgers of a leaf.

        Raises:
            ImageError: a file is missing or damaged, or has other rows than the manifest lists.
        """
        parts = [part for piece in record.slices for part in self._read_slice(piece)]
        table = pa.concat_tables([LEDGERS_SCHEMA.empty_table(), *parts])
        _check(table, record)
        return table

    def _read_slice(self, piece: LeafSlice) -> list[pa.Table]:
        if piece.file in self._failed:  # otherwise each leaf would wait for an unresponsive store
            raise ImageError(self._failed[piece.file])
        try:
            return self._slice(piece)
        except (OSError, ValueError, KeyError, IndexError, pa.ArrowException) as error:
            self._failed[piece.file] = f"it is damaged or cannot be read: {error}"
            raise ImageError(self._failed[piece.file]) from error

    def _slice(self, piece: LeafSlice) -> list[pa.Table]:
        parquet = self._opened(piece.file)
        found, start, end = [], 0, piece.first + piece.rows
        for number in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(number).num_rows
            first, last = max(piece.first, start), min(end, start + rows)
            if first < last:
                found.append(self._group(piece.file, number).slice(first - start, last - first))
            start += rows
        return found

    def _opened(self, name: str) -> pq.ParquetFile:
        if name not in self._parquet:
            self._parquet[name] = opened_parquet(self._folders[name], self._files[name], LEDGERS_SCHEMA)
            if len(self._parquet) > _FILES_KEPT:
                self._parquet.popitem(last=False)[1].close(force=True)
        self._parquet.move_to_end(name)
        return self._parquet[name]

    def _group(self, name: str, number: int) -> pa.Table:
        key = (name, number)
        if key not in self._groups:
            self._groups[key] = self._opened(name).read_row_group(number, use_threads=False)
            if len(self._groups) > _GROUPS_KEPT:
                self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        return self._groups[key]


def leaves_of(folder: ImageFolder, manifest: Manifest) -> list[LeafRecord]:
    """Return the leaves of an image.

    Raises:
        ImageError: a file is missing, damaged, or not such a file.
    """
    names = {file.name for file in manifest.files}
    records = (
        record for some in map_concurrently(lambda file: _leaves(folder, file), manifest.leaves) for record in some
    )
    return [record for record in records if all(piece.file in names for piece in record.slices)]


def _leaves(folder: ImageFolder, file: ImageFile) -> list[LeafRecord]:
    try:
        parquet = opened_parquet(folder, file, LEAVES_SCHEMA)
        try:
            return list(leaf_records(parquet.read(use_threads=False)))
        finally:
            parquet.close(force=True)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise ImageError(f"{file.name} cannot be read: {error}") from error


class Divided(NamedTuple):
    """The rows of a leaf, divided into those to carry over and those to read again."""

    carried: pa.Table
    again: frozenset[int]
    """Ids of ledgers that need a second look."""


def divided(rows: pa.Table, live: AbstractSet[str]) -> Divided:
    """Divide rows into those to carry over and those to read again.

    Args:
        rows: the rows of an image.
        live: the registered bookies that are not draining.
    """
    is_live = pc.is_in(pc.list_flatten(rows["bookies"]), value_set=pa.array(sorted(live), pa.string()))
    elsewhere = pc.list_parent_indices(rows["bookies"]).filter(pc.invert(is_live)).unique()
    numbers = pa.array(range(len(rows)), elsewhere.type)
    is_carried = pc.and_(
        pc.and_(rows["settled"], pc.equal(rows["state"], "CLOSED")), pc.invert(_is_in(numbers, elsewhere))
    )
    return Divided(rows.filter(is_carried), frozenset(rows["ledger_id"].filter(pc.invert(is_carried)).to_pylist()))


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of settled ledgers, which are all closed."""

    ledgers: int
    fragments: int
    ledgers_by_bookie: Mapping[str, int]
    fragments_by_bookie: Mapping[str, int]


def tally(rows: pa.Table) -> Tally:
    """Count settled rows."""
    if not len(rows):
        return Tally(0, 0, {}, {})
    lists, names = rows["bookies"], pc.list_flatten(rows["bookies"])
    fragments = pc.sum(pc.divide(pc.list_value_length(lists), rows["ensemble_size"])).as_py()
    by_fragment = _counted(names)
    if fragments == len(rows):  # nearly always true
        return Tally(len(rows), fragments, by_fragment, by_fragment)
    known = names.unique()
    parents = pc.list_parent_indices(lists).cast(pa.int64())
    keys = pc.add(pc.multiply(parents, len(known)), pc.index_in(names, known).cast(pa.int64())).unique()
    codes = pc.subtract(keys, pc.multiply(pc.divide(keys, len(known)), len(known)))
    return Tally(len(rows), fragments, _counted(known.take(codes)), by_fragment)


def without(rows: pa.Table, ids: AbstractSet[int]) -> pa.Table:
    """Return the rows of all ledgers except these."""
    return rows.filter(pc.invert(_is_in(rows["ledger_id"], pa.array(sorted(ids), pa.int64())))) if ids else rows


def _counted(names: pa.Array | pa.ChunkedArray) -> dict[str, int]:
    counts = names.value_counts()
    return dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))


def _is_in(values: pa.Array | pa.ChunkedArray, some: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pc.is_in(values, value_set=some.combine_chunks() if isinstance(some, pa.ChunkedArray) else some)


def _check(rows: pa.Table, record: LeafRecord) -> None:
    ids = rows["ledger_id"]
    if len(rows) != record.rows or any(column.null_count for column in rows.columns):
        raise ImageError("it does not have the rows in its manifest")
    if not len(rows):
        return
    ends, sizes = pc.min_max(ids).as_py(), pc.min_max(rows["ensemble_size"]).as_py()
    is_of_leaf = record.leaf == ends["min"] // LEAF_IDS == ends["max"] // LEAF_IDS
    lengths = pc.list_value_length(rows["bookies"])
    if not is_of_leaf or len(ids.unique()) != len(rows) or sizes["min"] < 1 or pc.min(lengths).as_py() < 1:
        raise ImageError("it has invalid rows")
