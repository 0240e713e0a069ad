"""The leaves of the ledger tree in an image: the time of each reading, and the signs of creations and deletions since.

A *leaf* is a metadata node with ledgers directly under it, up to 10,000 in the hierarchical layouts. Its number is the
id of any of its ledgers without the last four digits. Pure, except for files named by a caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

LEAVES: Final = "leaves"
"""How the names of these files begin."""
LEAF_IDS: Final = 10_000
"""Ids of a leaf: four digits (docs/formats.md#ledger-paths)."""
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
"""A row for each leaf and place of its ledgers; ``file`` is null for a leaf without any."""


@dataclass(frozen=True, slots=True)
class LeafStat:
    """ZooKeeper's stat of a leaf: a creation or deletion of a child changes it, a change of its data does not."""

    czxid: int
    """Transaction that created the node."""
    children_zxid: int
    """Transaction that last created or deleted a child."""
    children_version: int
    """Creations and deletions of children together."""
    children: int

    @property
    def creates(self) -> int:
        """The number of children ever created."""
        return creates_of(self.children_version, self.children)


def creates_of(children_version: int, children: int) -> int:
    """Return the number of children of a node ever created, from ZooKeeper's counts."""
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
    """From before its ledgers were listed."""
    listed: int
    """Number of listed ledgers. Those without a row were unreadable, or deleted before they were read."""
    read_from_ms: int
    """All of its rows were read after this, epoch milliseconds."""
    slices: tuple[LeafSlice, ...] = ()

    @property
    def rows(self) -> int:
        """Ledgers in the image."""
        return sum(piece.rows for piece in self.slices)

    @property
    def absent(self) -> int:
        """Number of listed ledgers missing in the image."""
        return self.listed - self.rows

    def is_same(self, stat: LeafStat) -> bool:
        """Whether a leaf with this stat has exactly the ledgers recorded in the image."""
        return self.stat == stat and self.rows == self.listed == stat.children

    def may_serve(self, stat: LeafStat) -> bool:
        """Whether a list of the leaf's children can show what is new in it."""
        was = self.stat
        return (
            (was.czxid, self.absent >= 0) == (stat.czxid, True)
            and was.children_zxid <= stat.children_zxid
            and was.creates <= stat.creates
        )

    def are_all_new(self, new: int, creates: int) -> bool:
        """Whether each creation since is a ledger that the image lacks.

        If not, a ledger may have been deleted and created again with the same id, and the image may be wrong about it.

        Args:
            new: ledgers in the list that the image lacks.
            creates: children ever created, at the moment of the list.
        """
        return new == creates - self.stat.creates + self.absent


def leaf_table(records: Iterable[LeafRecord]) -> pa.Table:
    """Return the content of a file."""
    rows = [row for record in records for row in _rows(record)]
    columns = list(zip(*rows, strict=True)) or [()] * len(LEAVES_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, LEAVES_SCHEMA, strict=True)]
    return pa.table(arrays, schema=LEAVES_SCHEMA)


def leaf_records(table: pa.Table) -> Iterator[LeafRecord]:
    """Return the records of ``leaf_table``.

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


def newest_of_each(records: Iterable[LeafRecord]) -> Mapping[int, LeafRecord]:
    """Return the records by number of the leaf; of several for one leaf, the one read last."""
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
