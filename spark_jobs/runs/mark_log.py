"""The marks of a run as rows of the table ``tasks``, written during marking. A row group bounds the memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from bookie.model.ids import BookieId, LedgerId

_ROWS: Final = 65_536
"""Number of rows in a row group."""
SCHEMA: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("marked_at", pa.timestamp("ms", tz="UTC")),
        ("ledger_id", pa.int64()),
        ("missing", pa.list_(pa.string())),
    ]
)


class MarkLog:
    """The marks of one run. Belongs to the run's thread."""

    def __init__(self, path: Path, run_id: str) -> None:
        """Prepare. ``finish`` creates the file ``path``; nothing is written before the first mark."""
        self._path = path
        self._hidden = path.with_name(f".{path.name}.tmp")
        self._run_id = run_id
        self._writer: pq.ParquetWriter | None = None
        self._ledgers: list[int] = []
        self._missing: list[tuple[str, ...]] = []
        self._times: list[int] = []

    def add(self, marks: Iterable[tuple[LedgerId, tuple[BookieId, ...]]], now_ms: int) -> None:
        """Add marks confirmed by the metadata store.

        Args:
            marks: ledgers, with the bookies named in their tasks.
            now_ms: when they were confirmed, epoch milliseconds.

        Raises:
            OSError, pa.ArrowException: the marks cannot be written.
        """
        for ledger_id, missing in marks:
            self._ledgers.append(ledger_id)
            self._missing.append(missing)
            self._times.append(now_ms)
        if len(self._ledgers) >= _ROWS:
            self._write()

    def finish(self) -> None:
        """Write the rest and sync the complete file to the disk. Without a mark, there is no file.

        Raises:
            OSError, pa.ArrowException: the file cannot be written.
        """
        if self._ledgers:
            self._write()
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        with self._hidden.open("rb+") as file:
            os.fsync(file.fileno())
        self._hidden.replace(self._path)

    def discard(self) -> None:
        """Remove the written part of the file.

        Raises:
            OSError, pa.ArrowException: the file still exists.
        """
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        finally:
            self._hidden.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._hidden, SCHEMA, compression="zstd")
        count = len(self._ledgers)
        columns = [
            pa.array([self._run_id] * count, pa.string()),
            pa.array(self._times, SCHEMA.field("marked_at").type),
            pa.array(self._ledgers, pa.int64()),
            pa.array(self._missing, SCHEMA.field("missing").type),
        ]
        self._writer.write_table(pa.table(columns, schema=SCHEMA))
        self._ledgers, self._missing, self._times = [], [], []
