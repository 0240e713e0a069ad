"""Find the ledgers that may be on lost bookies in the index of an image, those with the fewest copies first.

Only the row groups of these bookies are read. Everything is read before anything is returned, so a damaged image yields
no ledger at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from spark_jobs.image.columns import INDEX_SCHEMA
from spark_jobs.image.folder import ImageFolder, map_concurrently
from spark_jobs.image.manifest import ImageError, Manifest
from spark_jobs.image.part import ImageFile, opened_parquet

_CRITICAL_COPIES: Final = 1
"""Number of copies of a critical ledger."""


@dataclass(frozen=True, slots=True)
class Suspects:
    """The ledgers to read."""

    ids: pa.ChunkedArray | pa.Array
    """The ids, those with the fewest copies first, then ascending."""
    row_groups_read: int = 0
    row_groups: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def batches(self, first: int, more: int) -> Iterator[list[LedgerId]]:
        """Yield the ids in batches: ``first`` ids in the first batch, ``more`` in each of the others."""
        start, size = 0, first
        while start < len(self.ids):
            yield self.ids.slice(start, size).to_pylist()
            start, size = start + size, more


def suspects(
    folder: ImageFolder, manifest: Manifest, lost: AbstractSet[str], due: AbstractSet[str], critical: AbstractSet[str]
) -> Suspects:
    """Read the ledgers on a bookie of ``due``, and those on a bookie of ``critical`` with one copy left.

    The number of a ledger's remaining copies is at least its write quorum minus its lost bookies: the index counts a
    bookie once even if a fragment names it twice. So the ledgers with one copy left are among those for which this
    difference is 1 or 0.

    Args:
        folder: the folder of the image.
        manifest: the manifest of the image.
        lost: every lost bookie, because each one reduces the number of copies.
        due: bookies whose ledgers may be marked.
        critical: bookies whose ledgers may be marked if they are critical.

    Raises:
        ImageError: a file of the index is missing, damaged, or not such a file.
    """
    read = total = 0
    tables = [INDEX_SCHEMA.empty_table()]
    names = sorted(lost)
    for table, groups, of_file in map_concurrently(lambda file: _rows(folder, file, names), manifest.index):
        tables.append(table)
        read, total = read + groups, total + of_file
    rows = pa.concat_tables(tables)
    _check(rows)
    named = rows["bookie_id"]
    flagged = pa.table(
        {
            "ledger_id": rows["ledger_id"],
            "write_quorum": rows["write_quorum"],
            "is_due": _is_in(named, due),
            "is_critical": _is_in(named, critical),
        }
    )
    ledgers = flagged.group_by("ledger_id").aggregate(
        [("write_quorum", "min"), ("write_quorum", "count"), ("is_due", "any"), ("is_critical", "any")]
    )
    copies = pc.max_element_wise(pc.subtract(ledgers["write_quorum_min"], ledgers["write_quorum_count"]), 0)
    is_endangered = pc.less_equal(copies, _CRITICAL_COPIES)
    is_wanted = pc.or_(ledgers["is_due_any"], pc.and_(ledgers["is_critical_any"], is_endangered))
    wanted = pa.table({"copies": copies, "ledger_id": ledgers["ledger_id"]}).filter(is_wanted)
    ordered = wanted.sort_by([("copies", "ascending"), ("ledger_id", "ascending")])
    return Suspects(ordered["ledger_id"], read, total)


def _rows(folder: ImageFolder, file: ImageFile, lost: list[str]) -> tuple[pa.Table, int, int]:
    """Return the rows of some bookies, the number of row groups that were read, and that of all in the file."""
    try:
        parquet = opened_parquet(folder, file, INDEX_SCHEMA)
        try:
            count = parquet.num_row_groups
            columns = (parquet.metadata.row_group(number).column(0) for number in range(count))
            groups = [number for number, column in enumerate(columns) if _may_hold(column, lost)]
            table = parquet.read_row_groups(groups, use_threads=False)
            return table.filter(_is_in(table["bookie_id"], set(lost))), len(groups), count
        finally:
            parquet.close(force=True)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise ImageError(f"{file.name} cannot be read: {error}") from error


def _may_hold(column: Any, bookies: list[str]) -> bool:
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return any(statistics.min <= bookie <= statistics.max for bookie in bookies)


def _is_in(column: pa.ChunkedArray, bookies: AbstractSet[str]) -> pa.ChunkedArray:
    return pc.is_in(column, value_set=pa.array(sorted(bookies), pa.string()))


def _check(rows: pa.Table) -> None:
    for name, least, most in (("ledger_id", 0, LEDGER_ID_MAX), ("write_quorum", 0, 2**31 - 1)):
        found = pc.min_max(rows[name]).as_py()
        if len(rows) and not (rows[name].null_count == 0 and least <= found["min"] <= found["max"] <= most):
            raise ImageError(f"a value of {name} is out of range")
