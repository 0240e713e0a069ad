"""Find the ledgers that may be on lost bookies in the index of an image, those with the fewest copies first.

Only the row groups of these bookies are read, and of each file only the ids are kept. Everything is read before
anything is returned, so a damaged image yields no ledger at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
_FLAGGED_SCHEMA: Final = pa.schema(
    [("ledger_id", pa.int64()), ("write_quorum", pa.int32()), ("is_due", pa.bool_()), ("is_critical", pa.bool_())]
)
_WANTED_SCHEMA: Final = pa.schema([("copies", pa.int32()), ("ledger_id", pa.int64())])


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
    names = sorted(lost)
    read = total = 0
    tables = [_WANTED_SCHEMA.empty_table()]
    for table, groups, of_file in map_concurrently(
        lambda file: _wanted(folder, file, names, due, critical), manifest.index
    ):
        tables.append(table)
        read, total = read + groups, total + of_file
    ordered = pa.concat_tables(tables).sort_by([("copies", "ascending"), ("ledger_id", "ascending")])
    return Suspects(ordered["ledger_id"], read, total)


def _wanted(
    folder: ImageFolder, file: ImageFile, lost: list[str], due: AbstractSet[str], critical: AbstractSet[str]
) -> tuple[pa.Table, int, int]:
    """Return the ledgers to read that a file names, the number of row groups read, and that of all in the file.

    All rows of a ledger are in one file, so nothing else of the file stays in memory: a loss of many bookies may
    concern most ledgers.
    """
    try:
        parquet = opened_parquet(folder, file, INDEX_SCHEMA)
        try:
            count = parquet.num_row_groups
            columns = (parquet.metadata.row_group(number).column(0) for number in range(count))
            groups = [number for number, column in enumerate(columns) if _may_hold(column, lost)]
            parts = [
                _flagged(parquet.read_row_group(number, use_threads=False), lost, due, critical) for number in groups
            ]
        finally:
            parquet.close(force=True)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise ImageError(f"{file.name} cannot be read: {error}") from error
    flagged = pa.concat_tables([_FLAGGED_SCHEMA.empty_table(), *parts])
    ledgers = flagged.group_by("ledger_id", use_threads=False).aggregate(
        [("write_quorum", "min"), ("write_quorum", "count"), ("is_due", "any"), ("is_critical", "any")]
    )
    copies = pc.max_element_wise(pc.subtract(ledgers["write_quorum_min"], ledgers["write_quorum_count"]), 0)
    is_endangered = pc.less_equal(copies, _CRITICAL_COPIES)
    is_wanted = pc.or_(ledgers["is_due_any"], pc.and_(ledgers["is_critical_any"], is_endangered))
    wanted = pa.table([copies.cast(pa.int32()), ledgers["ledger_id"]], schema=_WANTED_SCHEMA)
    return wanted.filter(is_wanted), len(groups), count


def _flagged(rows: pa.Table, lost: Iterable[str], due: AbstractSet[str], critical: AbstractSet[str]) -> pa.Table:
    """Return the rows of lost bookies, with flags in place of the names.

    Raises:
        ImageError: a value is out of range.
    """
    rows = rows.filter(_is_in(rows["bookie_id"], lost))
    _check(rows)
    named = rows["bookie_id"]
    columns = [rows["ledger_id"], rows["write_quorum"], _is_in(named, due), _is_in(named, critical)]
    return pa.table(columns, schema=_FLAGGED_SCHEMA)


def _may_hold(column: Any, bookies: list[str]) -> bool:
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return any(statistics.min <= bookie <= statistics.max for bookie in bookies)


def _is_in(column: pa.ChunkedArray, bookies: Iterable[str]) -> pa.ChunkedArray:
    return pc.is_in(column, value_set=pa.array(sorted(bookies), pa.string()))


def _check(rows: pa.Table) -> None:
    for name, least, most in (("ledger_id", 0, LEDGER_ID_MAX), ("write_quorum", 0, 2**31 - 1)):
        found = pc.min_max(rows[name]).as_py()
        if len(rows) and not (rows[name].null_count == 0 and least <= found["min"] <= found["max"] <= most):
            raise ImageError(f"a value of {name} is out of range")
