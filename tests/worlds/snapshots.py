"""Snapshots in ZooKeeper's exact format, for the tests of the snapshot reader."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from bookie.metadata.cluster import Cluster, encode_layout
from bookie.metadata.layout import ledger_path
from bookie.metadata.nodes import parent_of

END = b"\x00\x00\x00\x01/"
DIGEST = struct.pack(">qiq", 77, 2, -5)
LAST_ZXID = struct.pack(">q", 78)
CHILDREN_ZXID = 12
"""The last creation or deletion of a child, unless the test sets another one."""
SNAPPY_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


@dataclass
class Znode:
    """A node of a snapshot."""

    data: bytes | None = b""
    czxid: int = 1
    creates: int = 0
    children: dict[str, Znode] = field(default_factory=dict)
    children_zxid: int = CHILDREN_ZXID


def tree_of(cluster: Cluster, ledgers: Mapping[int, bytes], others: Mapping[str, bytes] | None = None) -> Znode:
    """Return the nodes of a cluster with these ledgers, in this order, and some others by their path."""
    root = Znode()
    texts = {f"{cluster.root}/LAYOUT": encode_layout(cluster.kind)}
    paths = {ledger_path(cluster.kind, cluster.root, ledger_id): data for ledger_id, data in ledgers.items()}
    identity = {f"{cluster.root}/INSTANCEID": cluster.instance_id.encode()}
    for path, data in (texts | paths | dict(others or {}) | identity).items():
        put(root, path, data)
    return root


def put(root: Znode, path: str, data: bytes | None) -> Znode:
    """Create a node and its parents."""
    node = root
    for name in path[1:].split("/"):
        if name not in node.children:
            node.creates += 1
            node.children[name] = Znode()
        node = node.children[name]
    node.data = data
    return node


def node_at(root: Znode, path: str) -> Znode:
    """Return the existing node at ``path``."""
    node = root
    for name in path[1:].split("/"):
        node = node.children[name]
    return node


def delete(root: Znode, path: str) -> None:
    """Delete a node."""
    del node_at(root, parent_of(path)).children[path.rpartition("/")[2]]


def listed(root: Znode, path: str = "") -> list[tuple[bytes, bytes]]:
    """Return the path and data of each node, in the order of a snapshot."""
    found = [(path.encode(), root.data or b"")]
    for name, child in root.children.items():
        found += listed(child, f"{path}/{name}")
    return found


def written(
    root: Znode,
    *,
    sessions: Sequence[tuple[int, int]] = ((5, 60_000),),
    acls: Mapping[int, Sequence[tuple[int, str, str]] | None] | None = None,
    trailers: Sequence[bytes] = (),
    header: bytes = b"ZKSN\x00\x00\x00\x02" + b"\xff" * 8,
) -> bytes:
    """Return the bytes of a snapshot."""
    body = header + struct.pack(">i", len(sessions)) + b"".join(struct.pack(">qi", *session) for session in sessions)
    acls = {1: [(31, "world", "anyone")]} if acls is None else acls
    body += struct.pack(">i", len(acls))
    for number, entries in acls.items():
        body += struct.pack(">qi", number, -1 if entries is None else len(entries))
        body += b"".join(struct.pack(">i", perms) + _text(scheme) + _text(who) for perms, scheme, who in entries or ())
    body += _nodes(root, "") + END
    for part in (b"", *trailers):
        body += part
        body += struct.pack(">q", zlib.adler32(body)) + END
    return body


def snappy(data: bytes, block: int = 100) -> bytes:
    """Return the data as compressed by Java's stream."""
    codec = pa.Codec("snappy")
    blocks = [bytes(codec.compress(data[at : at + block], asbytes=True)) for at in range(0, len(data), block)]
    return SNAPPY_HEADER + b"".join(struct.pack(">i", len(each)) + each for each in blocks)


def _nodes(node: Znode, path: str) -> bytes:
    data = struct.pack(">i", -1) if node.data is None else struct.pack(">i", len(node.data)) + node.data
    stat = struct.pack(">qqqqiiiqq", node.czxid, 9, 10, 11, 3, node.creates, 0, 0, node.children_zxid)
    own = _text(path) + data + struct.pack(">q", 1) + stat
    return own + b"".join(_nodes(child, f"{path}/{name}") for name, child in node.children.items())


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">i", len(encoded)) + encoded
