"""The part of an image that one task of a scan writes: files of its own, which count only if the driver lists them.

If a file cannot be written, the part records the problem, and the scan continues.
"""

from __future__ import annotations

import json
import secrets
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.image.columns import ImageColumns, ImageTables, tables_of, without_settled
from spark_jobs.image.folder import ImageFolder, Writing
from spark_jobs.image.leaves import LEAF_IDS, LEAVES, LeafRecord, LeafSlice, LeafStat, leaf_table

LEDGERS_MAX: Final = 250_000
"""Largest number of ledgers in a file."""
MEMBERS_MAX: Final = 400_000
"""Number of members of all fragments after which the next file begins. While it is written, so many need some 200 MB
in memory, if all ensembles differ and the names of bookies are long."""
ROW_GROUP: Final = 32_768
"""Number of rows in a row group. To read one bookie, at most one surplus row group is read from each file."""
INDEX: Final = "index"
LEDGERS: Final = "ledgers"
PART: Final = "part"
"""The name of the list of a part's files begins with this."""
_WRITINGS_MAX: Final = 16
"""Number of files that may be on their way to a store, a few megabytes each."""
_ROOM_S: Final = 2.5
"""If there are more such files, a scan waits this long for each of the oldest two. It is less than the time that a
request to ZooKeeper may take."""
_MAGIC: Final = b"PAR1"
_TAIL: Final = 8
"""Size of the last two fields of a Parquet file: the length of the footer, and the magic bytes."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One file of an image, as it was written."""

    name: str
    rows: int
    bytes: int
    footer_crc32: int
    """Checksum of the end of the file, which describes the row groups. Pages have checksums of their own."""

    @property
    def is_index(self) -> bool:
        """Whether it belongs to the index."""
        return self.name.startswith(INDEX)

    @property
    def is_ledgers(self) -> bool:
        """Whether it has the ledgers themselves."""
        return self.name.startswith(LEDGERS)

    @property
    def is_leaves(self) -> bool:
        """Whether it has the leaves of the ledger tree."""
        return self.name.startswith(LEAVES)


class ImagePart:
    """The part of one reading of one partition. Not shared between threads."""

    def __init__(self, folder: ImageFolder, read_from_ms: int = 0, unsettled: Sequence[int] | None = ()) -> None:
        """Prepare.

        Args:
            folder: holds the files of all parts.
            read_from_ms: the reading began at or after this time, epoch milliseconds.
            unsettled: ledgers that count as not settled in any case; None: all ledgers.
        """
        self._folder = folder
        self._unsettled = None if unsettled is None else pa.array(unsettled, pa.int64())
        self._writings: deque[Writing] = deque()
        self._read_from_ms = read_from_ms
        self._token = secrets.token_hex(8)  # unique to this reading: Spark may read a partition twice
        self._columns = ImageColumns()
        self._kept: list[pa.Table] = []
        self._kept_rows = 0
        self._kept_members = 0
        self._leaves: list[LeafRecord] = []
        self._slices: dict[int, list[LeafSlice]] = {}
        self._files: list[ImageFile] = []
        self._number = 0
        self._problem = ""

    def add(
        self,
        ledger_id: int,
        state: int,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        members: Sequence[str],
        *,
        is_live: bool = False,
    ) -> None:
        """Add one ledger (``ImageColumns.add``)."""
        self._columns.add(ledger_id, state, ensemble_size, write_quorum, ack_quorum, members, is_live=is_live)
        if len(self._columns) >= LEDGERS_MAX or self._columns.members >= MEMBERS_MAX:
            self._write(self._columns.take())

    def keep(self, ledgers: pa.Table) -> None:
        """Add rows of another image unchanged."""
        self._kept.append(ledgers)
        self._kept_rows += len(ledgers)
        self._kept_members += len(pc.list_flatten(ledgers["bookies"]))
        if self._kept_rows >= LEDGERS_MAX or self._kept_members >= MEMBERS_MAX:
            self._write_kept()

    def listed(self, leaf: int, stat: LeafStat, listed: int, read_from_ms: int | None = None) -> None:
        """Note a leaf. All of its ledgers must be added or kept before ``finish``.

        Args:
            leaf: its number.
            stat: its stat before its ledgers were listed.
            listed: number of listed ledgers.
            read_from_ms: when the reading of the kept rows began; None: all are read now.
        """
        since_ms = self._read_from_ms if read_from_ms is None else read_from_ms
        self._leaves.append(LeafRecord(leaf, stat, listed, since_ms))

    def finish(self) -> Mapping[str, Any]:
        """Write the rest; return a value for the driver: the files, and the problem if one could not be written."""
        if len(self._columns):
            self._write(self._columns.take())
        if self._kept:
            self._write_kept()
        if self._leaves and not self._problem:
            records = [replace(leaf, slices=tuple(self._slices.get(leaf.leaf, ()))) for leaf in self._leaves]
            self._write_files(((LEAVES, leaf_table(records)),))
        while self._writings and not self._problem:
            self._end_oldest()
        if self._leaves:
            self._write_file_list()
        return {"files": [asdict(file) for file in self._files], "problem": self._problem}

    def _write_file_list(self) -> None:
        """Write a list of the files of this part, so that a later run can use them if this one does not finish."""
        if self._problem:
            return
        document = {"files": [asdict(file) for file in self._files], "read_from_ms": self._read_from_ms}
        text = json.dumps(document | {"crc32": document_crc32(document)})
        try:
            self._folder.start_write(f"{PART}-{self._token}.json", pa.py_buffer(text.encode())).result()
        except OSError as error:
            self._problem = f"cannot write to {self._folder}: {error}"

    def _make_room(self) -> None:
        """Wait briefly if too many files are being written."""
        while len(self._writings) > _WRITINGS_MAX and not self._problem:
            if self._writings[0].is_done_within(_ROOM_S):
                self._end_oldest()
            else:
                self._problem = f"{self._folder} cannot be written as fast as metadata is read"

    def _end_oldest(self) -> None:
        try:
            self._writings.popleft().result()
        except OSError as error:
            self._problem = f"cannot write to {self._folder}: {error}"

    def _write_kept(self) -> None:
        kept, self._kept, self._kept_rows, self._kept_members = self._kept, [], 0, 0
        self._write(tables_of(pa.concat_tables(kept)))

    def _write(self, tables: ImageTables) -> None:
        if self._problem:
            return
        ledgers = without_settled(tables.ledgers, self._unsettled)
        name = self._write_files(((LEDGERS, ledgers), (INDEX, tables.index)))
        for leaf, first, rows in _runs(ledgers["ledger_id"]):
            self._slices.setdefault(leaf, []).append(LeafSlice(name, first, rows))

    def _write_files(self, tables: Sequence[tuple[str, pa.Table]]) -> str:
        """Write tables that belong together; return the name of the first file."""
        names = [f"{kind}-{self._token}-{self._number:03d}.parquet" for kind, _ in tables]
        self._number += 1
        try:
            for name, (_, table) in zip(names, tables, strict=True):
                content = table_content(table)
                self._writings.append(self._folder.start_write(name, content))
                self._files.append(image_file(name, table, content))
        except (OSError, pa.ArrowException) as error:
            self._problem = f"cannot write to {self._folder}: {error}"
        self._make_room()
        return names[0]


def _runs(ids: pa.ChunkedArray) -> Iterator[tuple[int, int, int]]:
    """Yield the leaf, the first row and the number of rows of each sequence of ledgers of one leaf."""
    encoded = pc.run_end_encode(pc.divide(ids.combine_chunks(), LEAF_IDS))
    first = 0
    for leaf, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield leaf, first, end - first
        first = end


def table_content(table: pa.Table) -> pa.Buffer:
    """Return a table as the content of a file."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, row_group_size=ROW_GROUP, compression="zstd", compression_level=1, write_page_checksum=True
    )
    return sink.getvalue()


def image_file(name: str, table: pa.Table, content: pa.Buffer) -> ImageFile:
    """Return the entry of a manifest for a file."""
    return ImageFile(name, table.num_rows, content.size, footer_crc32(pa.BufferReader(content), name))


def document_crc32(document: Mapping[str, Any]) -> int:
    """Return the checksum of a JSON document."""
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())


def footer_crc32(file: pa.NativeFile, name: str) -> int:
    """Return the checksum of the end of a Parquet file.

    Raises:
        OSError: it cannot be read.
        ValueError: it does not end like a Parquet file.
    """
    size = file.size()
    if size < _TAIL:
        raise ValueError(f"{name} is cut off")
    file.seek(size - _TAIL)
    tail = file.read(_TAIL)
    length = int.from_bytes(tail[:4], "little") + _TAIL
    if tail[4:] != _MAGIC or length > size:
        raise ValueError(f"{name} does not end as a Parquet file")
    file.seek(size - length)
    checksum = zlib.crc32(file.read(length))
    file.seek(0)
    return checksum


def opened_parquet(folder: ImageFolder, file: ImageFile, schema: pa.Schema) -> pq.ParquetFile:
    """Open a file of an image; the caller closes it with ``force=True``.

    Raises:
        OSError, pa.ArrowException: it cannot be read.
        ValueError: its size, end, schema or number of rows is not as it was written.
    """
    source = folder.opened(file.name, file.bytes)
    try:
        if footer_crc32(source, file.name) != file.footer_crc32:
            raise ValueError(f"{file.name} has another footer than its manifest records")
        parquet = pq.ParquetFile(source, page_checksum_verification=True)
        if not parquet.schema_arrow.equals(schema) or parquet.metadata.num_rows != file.rows:
            raise ValueError(f"{file.name} does not have the rows in its manifest")
    except (OSError, ValueError, pa.ArrowException):
        source.close()
        raise
    return parquet
