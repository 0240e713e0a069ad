"""Verify a whole snapshot, and find where its ledgers are.

This is one pass before anything of the snapshot is used. A file that is damaged anywhere, or is of another cluster, is
not used at all (R99). Later readers read the parts listed in the index, and compare each part with its checksum. So
they do not use a file either that was replaced during or after this pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import INSTANCE_ID, LayoutKind, ledger_id_of
from spark_jobs.snapshot.errors import SnapshotError
from spark_jobs.snapshot.files import Source, opened
from spark_jobs.snapshot.format import NodeStat, SnapshotStream

LEAF_BYTES: Final = len("/L0000")
"""The length by which a ledger's path exceeds its parent's (docs/formats.md#ledger-paths)."""
_SHOWN_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """One node with ledgers directly under it, and all nodes below it, as consecutive bytes of the snapshot."""

    parent: str
    offset: int
    """Position in the unpacked snapshot."""
    length: int
    checksum: int
    """Adler-32 of these bytes."""
    ledgers: int
    czxid: int
    """Transaction that created the parent."""
    creates: int
    """Number of ledgers ever created under the parent, until it was written to the snapshot."""
    children_zxid: int
    """Transaction that last created or deleted a child of the parent, until it was written to the snapshot."""
    children: int
    """Number of its children in the snapshot. Children that were deleted while it was written are not in it."""


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """A verified snapshot."""

    file: Path
    is_seekable: bool
    """Whether a part can be read without reading everything before it."""
    bytes_read: int
    """Size of the unpacked snapshot."""
    nodes: int
    parts: tuple[SnapshotPart, ...]
    """The parts, in the order of the file."""

    @property
    def ledgers(self) -> int:
        """Number of ledgers in the snapshot."""
        return sum(part.ledgers for part in self.parts)


@dataclass(slots=True)
class _Open:
    parent: str
    below: bytes
    offset: int
    stat: NodeStat
    ledgers: int = 0
    others: int = 0
    """Number of other children."""


def index_snapshot(file: Path, cluster: Cluster, on_block: Callable[[], None] | None = None) -> SnapshotIndex:
    """Read a whole snapshot, and return where the ledgers of ``cluster`` are.

    Args:
        file: the snapshot, plain or compressed.
        cluster: the live cluster; the snapshot must be of this cluster.
        on_block: called before each block of 1 MiB; an error that it raises stops the pass.

    Raises:
        SnapshotError: the file cannot be read, is not a snapshot, is damaged or cut off, is of another cluster, or the
            cluster has the flat layout.
    """
    check_layout(cluster)
    with opened(file) as source:
        return index_source(source, file, str(file), cluster, on_block)


def index_source(
    source: Source, file: Path, name: str, cluster: Cluster, on_block: Callable[[], None] | None = None
) -> SnapshotIndex:
    """Index bytes that are, or will be, in ``file``, as ``index_snapshot`` does; ``name`` is for messages."""
    stream = SnapshotStream(source, name, on_block)
    stream.begin()
    gathered = _PartCollector(stream, cluster)
    gathered.read()
    stream.finish()
    _check_cluster(name, cluster, gathered.instance_id)
    return SnapshotIndex(file, source.is_seekable, stream.offset, gathered.nodes, tuple(gathered.parts))


def check_layout(cluster: Cluster) -> None:
    """Check that a snapshot of the cluster can be used.

    Raises:
        SnapshotError: it has the flat layout.
    """
    if cluster.kind is LayoutKind.FLAT:
        raise SnapshotError(
            f"the cluster at {cluster.root} has the flat layout, in which a snapshot does not show what was created "
            "since: run the audit without a snapshot"
        )


class _PartCollector:
    def __init__(self, stream: SnapshotStream, cluster: Cluster) -> None:
        self._stream = stream
        self._cluster = cluster
        self.parts: list[SnapshotPart] = []
        self.instance_id: bytes | None = None
        self.nodes = 0

    def read(self) -> None:
        stream = self._stream
        root = f"{self._cluster.root}/".encode()
        instance_path = f"{self._cluster.root}/{INSTANCE_ID}".encode()
        part: _Open | None = None
        prefix, size, nodes = b"", -1, 0
        for path, data in stream.nodes():
            nodes += 1
            if len(path) == size and path.startswith(prefix):
                assert part is not None
                part.ledgers += 1
                continue
            if part is not None:
                if path.startswith(part.below):
                    part.others += b"/" not in path[len(part.below) :]
                    continue
                self._close(part)
                part, size = None, -1
            if not path.startswith(root):
                continue
            if path == instance_path:
                self.instance_id = data
            elif (parent := self._leaf_parent(path)) is not None:
                prefix, size = path + b"/L", len(path) + LEAF_BYTES
                part = _Open(parent, path + b"/", stream.offset, stream.stat())
                stream.begin_part()
        if part is not None:
            self._close(part)
        self.nodes = nodes

    def _close(self, part: _Open) -> None:
        stream = self._stream
        length, checksum, stat = stream.offset - part.offset, stream.end_part(), part.stat
        self.parts.append(
            SnapshotPart(
                part.parent,
                part.offset,
                length,
                checksum,
                part.ledgers,
                stat.czxid,
                stat.creates,
                stat.children_zxid,
                part.ledgers + part.others,
            )
        )

    def _leaf_parent(self, path: bytes) -> str | None:
        if not path[-4:].isdigit():
            return None
        text = path.decode(errors="replace")
        cluster = self._cluster
        return text if ledger_id_of(cluster.kind, cluster.root, f"{text}/L0000") is not None else None


def _check_cluster(name: str, cluster: Cluster, instance_id: bytes | None) -> None:
    if instance_id is None:
        raise SnapshotError(
            f"the snapshot {name} has no cluster at {cluster.root}: it is from another ZooKeeper, or older than the "
            "cluster"
        )
    found = instance_id.decode(errors="replace").strip()
    if found != cluster.instance_id:
        raise SnapshotError(
            f"the snapshot {name} is of another cluster: at {cluster.root} it has the instance id "
            f"{found[:_SHOWN_MAX]!r}, this cluster has {cluster.instance_id!r}"
        )
