"""Snapshot files as streams of bytes: plain, or compressed as ZooKeeper does it (gzip, Snappy).

The first bytes of the file, not its name, determine the compression. Memory is bounded by one block.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol, cast

import pyarrow as pa

from bookie.runtime.human import counted
from spark_jobs.snapshot.errors import SnapshotError

_GZIP: Final = b"\x1f\x8b"
_SNAPPY: Final = b"\x82SNAPPY\x00"
_SNAPPY_HEADER: Final = struct.Struct(">8sii")
_ZSTANDARD: Final = b"\x28\xb5\x2f\xfd"
_BLOCK: Final = 1 << 20
_SNAPPY_BLOCK_MAX: Final = 1 << 26
"""Far above the usual 32 KiB. The bound protects memory from a damaged length."""
_INT: Final = struct.Struct(">i")
_VARINT_BYTES_MAX: Final = 5


class Source(Protocol):
    """The unpacked bytes of a snapshot. Every method raises SnapshotError if the file cannot be read or unpacked."""

    @property
    def is_seekable(self) -> bool:
        """Whether bytes can be skipped without reading them."""
        ...

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; the result is empty only at the end."""
        ...

    def skip_to(self, offset: int) -> None:
        """Continue with the byte at ``offset``, which must not be before the current position."""
        ...


@contextmanager
def opened(file: Path) -> Iterator[Source]:
    """Open a snapshot for reading.

    Raises:
        SnapshotError: it cannot be opened, is empty, or has an unsupported compression.
    """
    try:
        stream = file.open("rb")
    except OSError as error:
        raise SnapshotError(f"the snapshot {file} cannot be opened: {error.strerror}") from error
    with stream:
        yield source_of(stream, f"the snapshot {file}", is_seekable=True)


def source_of(stream: Readable, name: str, *, is_seekable: bool) -> Source:
    """Return the unpacked bytes of a snapshot, from its beginning.

    Args:
        stream: the bytes of the snapshot; it raises SnapshotError or OSError if they cannot be read.
        name: name of the snapshot in messages.
        is_seekable: whether ``stream`` is a file.

    Raises:
        SnapshotError: it cannot be read, is empty, or has an unsupported compression.
    """
    start = _read(stream, len(_SNAPPY), name)
    if not start:
        raise SnapshotError(f"{name} is empty")
    whole = _Rewound(start, stream)
    if start.startswith(_ZSTANDARD):
        raise SnapshotError(f"{name} is compressed with Zstandard: unpack it, or use gzip")
    if start.startswith(_GZIP):
        return _Packed(name, gzip.GzipFile(fileobj=cast("BinaryIO", whole), mode="rb"))
    if start == _SNAPPY:
        return _Packed(name, _SnappyBlockStream(whole))
    if is_seekable:
        return _Plain(name, cast("BinaryIO", stream))
    return _Packed(name, whole)


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return ``size`` bytes, and fewer only at the end."""
        ...


def _read(stream: Readable, size: int, name: str) -> bytes:
    try:
        return stream.read(size)
    except OSError as error:
        raise SnapshotError(f"{name} cannot be read: {error.strerror}") from error


class _Rewound:
    """A stream whose first bytes were already read."""

    def __init__(self, start: bytes, stream: Readable) -> None:
        self._start = start
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        block, self._start = self._start[:size], self._start[size:]
        return block + self._stream.read(size - len(block)) if len(block) < size else block


class _Plain:
    is_seekable = True

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._name = name
        self._stream = stream
        stream.seek(0)

    def read(self, size: int) -> bytes:
        return _read(self._stream, size, self._name)

    def skip_to(self, offset: int) -> None:
        self._stream.seek(offset)


class _Packed:
    is_seekable = False

    def __init__(self, name: str, stream: Readable) -> None:
        self._name = name
        self._stream = stream
        self._offset = 0

    def read(self, size: int) -> bytes:
        try:
            block = self._stream.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise SnapshotError(f"{self._name} cannot be unpacked: {error}") from error
        self._offset += len(block)
        return block

    def skip_to(self, offset: int) -> None:
        while self._offset < offset and self.read(min(_BLOCK, offset - self._offset)):
            pass


class _SnappyBlockStream:
    """The stream of blocks that Java's ``SnappyOutputStream`` writes: a header, then lengths and Snappy blocks."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._codec = pa.Codec("snappy")
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        while not self._rest:
            head = self._stream.read(_INT.size)
            if not head:
                return b""
            if len(head) < _INT.size:
                raise EOFError("it ends within the length of a block")
            if head == _SNAPPY[: _INT.size]:  # the header of the stream, or of another one that was appended
                self._exactly(_SNAPPY_HEADER.size - _INT.size)
                continue
            (length,) = _INT.unpack(head)
            if not 0 < length <= _SNAPPY_BLOCK_MAX:
                raise EOFError(f"it has a block of {length} bytes")
            self._rest = self._unpacked(self._exactly(length))
        block, self._rest = self._rest[:size], self._rest[size:]
        return block

    def _exactly(self, size: int) -> bytes:
        found = self._stream.read(size)
        if len(found) < size:
            raise EOFError(f"it ends {counted(size - len(found), 'byte')} before the end of a block")
        return found

    def _unpacked(self, block: bytes) -> bytes:
        try:
            return bytes(self._codec.decompress(block, _unpacked_size(block), asbytes=True))
        except pa.ArrowException as error:
            raise EOFError(f"it has a damaged block: {error}") from error


def _unpacked_size(block: bytes) -> int:
    size = 0
    for number, byte in enumerate(block[:_VARINT_BYTES_MAX]):
        size |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            break
    if not 0 < size <= _SNAPPY_BLOCK_MAX:
        raise EOFError(f"it has a block of {size} bytes")
    return size
