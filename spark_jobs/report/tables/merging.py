"""Merge Parquet files with few rows in memory. Files of different releases may have different columns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

_ROWS: Final = 65_536
"""Number of rows in memory at a time, and in a row group."""


def merge(sources: Sequence[Path], target: Path) -> None:
    """Write the rows of ``sources``, in their order, atomically to ``target``. Missing columns become null.

    Raises:
        OSError: a file cannot be read or written.
        pa.ArrowException: a file is not a Parquet file, or two files disagree on the type of a column.
    """
    temporary = target.with_name(f".{target.name}.tmp")
    write_merged(sources, temporary)
    temporary.replace(target)


def write_merged(sources: Sequence[Path], target: Path) -> None:
    """Merge like ``merge``, but into a file without readers, not atomically.

    The file is on the disk before this returns.
    """
    schema = pa.unify_schemas(
        [pq.read_schema(path).remove_metadata() for path in sources], promote_options="permissive"
    )
    with target.open("wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for table in _merged_tables(sources, schema):
                writer.write_table(table)
        file.flush()
        os.fsync(file.fileno())


def _merged_tables(sources: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows in tables of about ``_ROWS``."""
    waiting: list[pa.Table] = []
    count = 0
    for path in sources:
        with pq.ParquetFile(path) as source:
            for batch in source.iter_batches(batch_size=_ROWS):
                waiting.append(_as(pa.Table.from_batches([batch]), schema))
                count += batch.num_rows
                if count >= _ROWS:
                    yield pa.concat_tables(waiting)
                    waiting, count = [], 0
    if count:
        yield pa.concat_tables(waiting)


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
