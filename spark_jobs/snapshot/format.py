"""The format of ZooKeeper's snapshots, read as a stream: header, sessions, ACLs, the tree of nodes, checksums.

A server writes a snapshot while it serves clients, so the snapshot is not the state at one time: each node has the
content that it had at some time during the writing. The tree is followed by a checksum (Adler-32 of everything before
it). Releases since 3.6 add a digest, and those since 3.9 the last transaction, each with a checksum of its own. All
numbers are big-endian. A text or a buffer begins with its length; -1 means that there is none. Memory is bounded by one
block and the largest node.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from spark_jobs.snapshot.errors import SnapshotError
from spark_jobs.snapshot.files import Source

_MAGIC: Final = b"ZKSN"
_LOG_MAGIC: Final = b"ZKLG"
_VERSION: Final = 2
_BLOCK: Final = 1 << 20
_BYTES_MAX: Final = 1 << 27
"""Largest size of a text or buffer: 128 times what ZooKeeper accepts by default. The bound protects memory from a
damaged length."""
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_VERSION_AND_ID: Final = struct.Struct(">iq")
_SESSION: Final = struct.Struct(">qi")
_STAT: Final = struct.Struct(">qqqqiiiqq")
_ACL_AND_STAT: Final = _LONG.size + _STAT.size
_END_OF_TREE: Final = b"\x00\x00\x00\x01/"
_TRAILER_SIZE: Final = _LONG.size + len(_END_OF_TREE)
_DIGEST: Final = struct.calcsize(">qiq")
_LAST_ZXID: Final = _LONG.size
_TRAILERS: Final[Mapping[int, tuple[int, ...]]] = {
    0: (),
    _DIGEST + _TRAILER_SIZE: (_DIGEST,),
    _LAST_ZXID + _TRAILER_SIZE: (_LAST_ZXID,),
    _DIGEST + _LAST_ZXID + 2 * _TRAILER_SIZE: (_DIGEST, _LAST_ZXID),
}
"""What may follow the checksum of the tree: the sizes of the parts, by the total length. A checksum follows each
part."""


@dataclass(frozen=True, slots=True)
class NodeStat:
    """The part of a node's stat that readers need."""

    czxid: int
    """Transaction that created the node."""
    creates: int
    """Number of children ever created under it."""
    children_zxid: int
    """Transaction that last created or deleted a child."""


class SnapshotStream:
    """One pass over a snapshot, or over a range of one. Not shared between threads."""

    def __init__(self, source: Source, name: str, on_block: Callable[[], None] | None = None) -> None:
        """Prepare; ``on_block`` is called before each block of 1 MiB is read."""
        self._source = source
        self._name = name
        self._on_block = on_block
        self._buffer = b""
        self._start = 0
        """Position in the snapshot at which the buffer begins."""
        self._at = 0
        """Position in the buffer of the next byte to read."""
        self._checksum, self._checksum_at = 1, 0
        """Checksum of everything before a position in the buffer, and this position."""
        self._part, self._part_at = 1, 0
        self._stat_at = 0

    @property
    def offset(self) -> int:
        """Position of the next read; while ``nodes`` is paused at a node, the position of that node."""
        return self._start + self._at

    def begin(self) -> None:
        """Read everything before the tree.

        Raises:
            SnapshotError: it is not a snapshot, or damaged.
        """
        magic = self._take(len(_MAGIC))
        if magic == _LOG_MAGIC:
            raise SnapshotError(f"the file {self._name} is a transaction log of ZooKeeper, not a snapshot")
        if magic != _MAGIC:
            raise SnapshotError(f"the file {self._name} is not a snapshot of ZooKeeper")
        version, _ = _VERSION_AND_ID.unpack(self._take(_VERSION_AND_ID.size))
        if version != _VERSION:
            raise SnapshotError(f"the snapshot {self._name} has version {version}; version {_VERSION} is supported")
        for _ in range(self._count("sessions")):
            self._take(_SESSION.size)
        for _ in range(self._count("ACLs")):
            self._take(_LONG.size)
            for _ in range(self._count("entries of an ACL")):
                self._take(_INT.size)
                self._take(self._count("bytes of a scheme"))
                self._take(self._count("bytes of an identity"))

    def nodes(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield path and data of each node up to the end of the tree, in depth-first order. The root's path is empty.

        Raises:
            SnapshotError: the snapshot ends early, or a length is impossible.
        """
        unpack = _INT.unpack_from
        while True:
            buffer, at = self._buffer, self._at
            try:
                (path_size,) = unpack(buffer, at)
                if not 0 <= path_size <= _BYTES_MAX:
                    raise self._impossible(path_size)
                path_end = at + 4 + path_size
                (data_size,) = unpack(buffer, path_end)
            except struct.error:
                if buffer[at : at + 5] == _END_OF_TREE:
                    return
                self._fill(len(buffer) - at + 1)
                continue
            if path_size == 1 and buffer[at + 4] == 47:
                return
            if not -1 <= data_size <= _BYTES_MAX:
                raise self._impossible(data_size)
            data_end = path_end + 4 + (data_size if data_size > 0 else 0)
            end = data_end + _ACL_AND_STAT
            if end > len(buffer):
                self._fill(end - at)
                continue
            self._stat_at = data_end + _LONG.size
            yield buffer[at + 4 : path_end], buffer[path_end + 4 : data_end]
            self._at = end

    def stat(self) -> NodeStat:
        """Return the stat of the node at which ``nodes`` is paused."""
        czxid, _, _, _, _, creates, _, _, children_zxid = _STAT.unpack_from(self._buffer, self._stat_at)
        return NodeStat(czxid, creates, children_zxid)

    def finish(self) -> None:
        """Read everything after the tree, and check all checksums.

        Raises:
            SnapshotError: a checksum does not fit, or the file lacks the end mark of a snapshot.
        """
        if self._take(len(_END_OF_TREE)) != _END_OF_TREE:
            raise self._damaged("its tree has no end")
        self._check_trailer()
        rest = self._rest(max(_TRAILERS) + 1)
        parts = _TRAILERS.get(rest)
        if parts is None:
            raise self._damaged("it lacks the end mark of a snapshot")
        for size in parts:
            self._take(size)
            self._check_trailer()

    def begin_part(self) -> None:
        """Begin the checksum of a part at ``offset``."""
        self._part, self._part_at = 1, self._at

    def end_part(self) -> int:
        """Return the checksum of the bytes since ``begin_part``."""
        return zlib.adler32(memoryview(self._buffer)[self._part_at : self._at], self._part)

    def skip_to(self, offset: int) -> None:
        """Continue at ``offset``, which must not be before the current one. Skipped bytes are not in the checksum."""
        if offset <= self._start + len(self._buffer):
            self._at = offset - self._start
        else:
            self._source.skip_to(offset)
            self._buffer, self._start, self._at = b"", offset, 0
            self._checksum_at = 0

    def _check_trailer(self) -> None:
        checksum = zlib.adler32(memoryview(self._buffer)[self._checksum_at : self._at], self._checksum)
        (written,) = _LONG.unpack(self._take(_LONG.size))
        if written != checksum or self._take(len(_END_OF_TREE)) != _END_OF_TREE:
            raise self._damaged("its checksum is wrong")

    def _count(self, what: str) -> int:
        count: int
        (count,) = _INT.unpack(self._take(_INT.size))
        if not -1 <= count <= _BYTES_MAX:
            raise self._damaged(f"it has {count} {what}")
        return max(count, 0)

    def _take(self, size: int) -> bytes:
        while len(self._buffer) - self._at < size:
            self._fill(size)
        taken = self._buffer[self._at : self._at + size]
        self._at += size
        return taken

    def _rest(self, limit: int) -> int:
        """Return how many bytes are left, at most ``limit``."""
        while len(self._buffer) - self._at < limit and self._more(limit):
            pass
        return min(limit, len(self._buffer) - self._at)

    def _fill(self, size: int) -> None:
        """Read at least one more block, to get ``size`` bytes from the current position into the buffer."""
        if not self._more(size):
            raise self._damaged(f"it ends after {self._start + len(self._buffer)} bytes, in the middle")

    def _more(self, size: int) -> bool:
        if self._on_block is not None:
            self._on_block()
        block = self._source.read(max(_BLOCK, size - (len(self._buffer) - self._at)))
        if not block:
            return False
        seen = memoryview(self._buffer)
        self._checksum = zlib.adler32(seen[self._checksum_at : self._at], self._checksum)
        self._part = zlib.adler32(seen[self._part_at : self._at], self._part)
        self._buffer, self._start = self._buffer[self._at :] + block, self._start + self._at
        self._at = self._checksum_at = self._part_at = 0
        return True

    def _impossible(self, size: int) -> SnapshotError:
        return self._damaged(f"it has a length of {size} at byte {self.offset}")

    def _damaged(self, why: str) -> SnapshotError:
        return SnapshotError(f"the snapshot {self._name} is damaged or cut off: {why}")
