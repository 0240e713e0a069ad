"""What one task of a scan writes of an image: files of their own, which count only if the driver lists them.

A failure to write is no failure to read: the part has a problem, and the scan goes on.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.image.columns import ImageColumns

LEDGERS_MAX: Final = 250_000
"""Of a file: about 50 MB in memory while it is written."""
ROW_GROUP: Final = 32_768
"""What is read for a bookie is at most one row group of each file more than its rows."""
INDEX: Final = "index"
_MAGIC: Final = b"PAR1"
_TAIL: Final = 8
"""Length of the footer, and the magic bytes."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One file of an image, as it was written."""

    name: str
    rows: int
    bytes: int
    footer_crc32: int
    """Of the end of the file, which names its row groups; pages have checksums of their own."""

    @property
    def is_index(self) -> bool:
        """Whether it belongs to the index."""
        return self.name.startswith(INDEX)


class ImagePart:
    """The part of one reading of one partition. Not shared between threads."""

    def __init__(self, directory: Path) -> None:
        """``directory`` holds the files of all parts; it exists."""
        self._directory = directory
        self._token = secrets.token_hex(8)  # of this reading alone: Spark may read a partition twice
        self._columns = ImageColumns()
        self._files: list[ImageFile] = []
        self._problem = ""

    def add(
        self, ledger_id: int, state: int, ensemble_size: int, write_quorum: int, ack_quorum: int, members: Sequence[str]
    ) -> None:
        """Take one ledger (``ImageColumns.add``)."""
        self._columns.add(ledger_id, state, ensemble_size, write_quorum, ack_quorum, members)
        if len(self._columns) >= LEDGERS_MAX:
            self._write()

    def finish(self) -> Mapping[str, Any]:
        """Write the rest; return the files and, if one could not be written, the problem: a value for the driver."""
        if len(self._columns):
            self._write()
        return {"files": [asdict(file) for file in self._files], "problem": self._problem}

    def _write(self) -> None:
        tables = self._columns.take()
        if self._problem:
            return
        number = len(self._files) // 2
        try:
            for kind, table in (("ledgers", tables.ledgers), (INDEX, tables.index)):
                name = f"{kind}-{self._token}-{number:03d}.parquet"
                self._files.append(write_table(table, self._directory / name))
        except (OSError, pa.ArrowException) as error:
            self._problem = f"cannot write to {self._directory}: {error}"


def write_table(table: pa.Table, path: Path) -> ImageFile:
    """Write a table; it is on the disk when this returns.

    Raises:
        OSError, pa.ArrowException: it cannot be written.
    """
    pq.write_table(
        table, path, row_group_size=ROW_GROUP, compression="zstd", compression_level=1, write_page_checksum=True
    )
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return ImageFile(path.name, table.num_rows, path.stat().st_size, footer_crc32(path))


def footer_crc32(path: Path) -> int:
    """The checksum of the end of a Parquet file.

    Raises:
        OSError: it cannot be read.
        ValueError: it does not end as such a file does.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < _TAIL:
            raise ValueError(f"{path.name} is cut off")
        file.seek(size - _TAIL)
        tail = file.read(_TAIL)
        length = int.from_bytes(tail[:4], "little") + _TAIL
        if tail[4:] != _MAGIC or length > size:
            raise ValueError(f"{path.name} does not end as a Parquet file")
        file.seek(size - length)
        return zlib.crc32(file.read(length))
