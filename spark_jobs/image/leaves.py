"""The leaves of the ledger tree in an image: the time of each reading, and the signs of later creations and deletions.

A *leaf* is a metadata node with ledgers directly under it, up to 10,000 in the hierarchical layouts. Its number is the
id of any of its ledgers without the last four digits. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

LEAVES: Final = "leaves"
"""The names of these files begin with this."""
LEAF_IDS: Final = 10_000
"""Number of ids of a leaf: four digits (docs/formats.md#ledger-paths)."""
LEAVES_SCHEMA: Final = pa.schema(
    [
        ("leaf", pa.int64()),
        ("czxid", pa.int64()),
        ("children_zxid", pa.int64()),
        ("children_version", pa.int64()),
        ("children", pa.int64()),
        ("listed", pa.int64()),
        ("read_from_ms", pa.int64()),
        ("file", pa.string()),
        ("first", pa.int64()),
        ("rows", pa.int64()),
    ]
)
"""One row for each leaf and slice of a file with its ledgers; ``file`` is null for a leaf without ledgers in the
image."""


@dataclass(frozen=True, slots=True)
class LeafStat:
    """ZooKeeper's stat of a leaf: a creation or deletion of a child changes it, a change of its data does not."""

    czxid: int
    """Transaction that created the node."""
    children_zxid: int
    """Transaction that last created or deleted a child."""
    children_version: int
    """Number of creations and deletions of children, added up."""
    children: int

    @property
    def creates(self) -> int:
        """The number of children ever created."""
        return creates_of(self.children_version, self.children)


def creates_of(children_version: int, children: int) -> int:
    """Return the number of children ever created under a node, from ZooKeeper's counts."""
    return (children_version + children) // 2


@dataclass(frozen=True, slots=True)
class LeafSlice:
    """Consecutive rows of a file."""

    file: str
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class LeafRecord:
    """The record of one leaf in an image."""

    leaf: int
    stat: LeafStat
    """The stat of the leaf before its ledgers were listed."""
    listed: int
    """Number of listed ledgers. Those without a row were unreadable, or deleted before they were read."""
    read_from_ms: int
    """All of its rows were read after this, epoch milliseconds."""
    slices: tuple[LeafSlice, ...] = ()

    @property
    def rows(self) -> int:
        """Number of ledgers in the image."""
        return sum(piece.rows for piece in self.slices)

    @property
    def absent(self) -> int:
        """Number of listed ledgers that the image lacks."""
        return self.listed - self.rows

    def is_same(self, stat: LeafStat) -> bool:
        """Return whether a leaf with this stat has exactly the ledgers that the image has."""
        return self.stat == stat and self.rows == self.listed == stat.children

    def may_serve(self, stat: LeafStat) -> bool:
        """Return whether a list of the leaf's children shows which of its ledgers are new."""
        was = self.stat
        later = (stat.children_zxid - was.children_zxid, stat.children_version - was.children_version)
        # Each creation and deletion changes both numbers. Otherwise ZooKeeper was set back, and has another history.
        is_continued = later == (0, 0) or min(later) > 0
        return (was.czxid, self.absent >= 0) == (stat.czxid, True) and is_continued and was.creates <= stat.creates

    def are_all_new(self, new: int, creates: int) -> bool:
        """Return whether every ledger created since then is one that the image lacks.

        If not, a ledger may have been deleted and created again with the same id, and the image may be wrong about it.

        Args:
            new: number of ledgers in the list that the image lacks.
            creates: number of children ever created, at the time of the list.
        """
        return new == creates - self.stat.creates + self.absent


def leaf_table(records: Iterable[LeafRecord]) -> pa.Table:
    """Return the content of a file of leaves."""
    rows = [row for record in records for row in _rows(record)]
    columns = list(zip(*rows, strict=True)) or [()] * len(LEAVES_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, LEAVES_SCHEMA, strict=True)]
    return pa.table(arrays, schema=LEAVES_SCHEMA)


def leaf_records(table: pa.Table) -> Iterator[LeafRecord]:
    """Return the records in a table made by ``leaf_table``.

    Raises:
        ValueError: a value is missing or impossible.
    """
    found: dict[tuple[int, ...], list[LeafSlice]] = {}
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        *numbers, file, first, count = row
        if any(number is None or number < 0 for number in (*numbers, first, count)):
            raise ValueError("a value of a leaf is missing or negative")
        slices = found.setdefault(tuple(numbers), [])
        if file is not None:
            slices.append(LeafSlice(file, first, count))
    for (leaf, czxid, zxid, version, children, listed, read_from_ms), slices in found.items():
        yield LeafRecord(leaf, LeafStat(czxid, zxid, version, children), listed, read_from_ms, tuple(slices))


def newest_record_per_leaf(records: Iterable[LeafRecord]) -> Mapping[int, LeafRecord]:
    """Return the records by number of the leaf; if there are several for one leaf, the one that was read last."""
    found: dict[int, LeafRecord] = {}
    for record in records:
        known = found.get(record.leaf)
        if known is None or record.read_from_ms > known.read_from_ms:
            found[record.leaf] = record
    return found


def _rows(record: LeafRecord) -> Iterator[tuple[int | str | None, ...]]:
    stat = record.stat
    values = (
        record.leaf,
        stat.czxid,
        stat.children_zxid,
        stat.children_version,
        stat.children,
        record.listed,
        record.read_from_ms,
    )
    for piece in record.slices:
        yield (*values, piece.file, piece.first, piece.rows)
    if not record.slices:
        yield (*values, None, 0, 0)
