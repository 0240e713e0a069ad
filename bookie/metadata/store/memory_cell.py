"""The server side of the in-memory twin: one tree of nodes with ZooKeeper's rules, without any waiting.

Every method acts at once and in full, or raises one of the port's errors and changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.port import (
    ANY_VERSION,
    AccessDeniedError,
    BadVersionError,
    Check,
    Children,
    Create,
    Delete,
    EphemeralParentError,
    MultiFailedError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SetData,
    Stat,
)
from bookie.model.errors import ConflictError, PermanentError
from bookie.runtime.signal import Signal

_SEQUENCE_LIMIT: Final = 1 << 31
"""The counter is a signed 32-bit number; later names have a minus sign, as in ZooKeeper."""


@dataclass(slots=True)
class _MemoryNode:
    data: bytes
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int = 0
    version: int = 0
    created_count: int = 0
    """Children ever created. Used in names of sequential nodes, and with deletions in the listing's version."""
    children: set[str] = field(default_factory=set)
    children_zxid: int = 0

    def stat(self) -> Stat:
        children_count = len(self.children)
        return Stat(
            self.version,
            self.czxid,
            self.mzxid,
            self.ctime_ms,
            self.mtime_ms,
            children_count,
            2 * self.created_count - children_count,
            self.ephemeral_owner,
            self.children_zxid,
        )


class MemoryCell:
    """A metadata store for any number of ``MemoryStore`` sessions."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._now_ms = now_ms
        self._zxid = 0
        self._session_ids = 0
        self._nodes = {"/": _MemoryNode(b"", 0, 0, 0, 0)}
        self._signals: defaultdict[str, Signal] = defaultdict(Signal)
        self._denied: set[str] = set()

    def open_session(self) -> int:
        """Begin a session and return its id."""
        self._session_ids += 1
        return self._session_ids

    def close_session(self, session_id: int) -> None:
        """End a session and delete its ephemeral nodes."""
        for path in [path for path, node in self._nodes.items() if node.ephemeral_owner == session_id]:
            self._begin()
            self._remove(path)

    def signal(self, path: str) -> Signal:
        """Return a signal that fires when the node or its list of children changes."""
        return self._signals[path]

    def deny(self, path: str) -> None:
        """Forbid every client to read or change ``path`` and to create or delete its children, like an empty ACL."""
        self._denied.add(path)

    def allow(self, path: str) -> None:
        """Undo ``deny``."""
        self._denied.discard(path)

    def skip_sequence(self, path: str, count: int) -> None:
        """Act as if ``count`` more children of ``path`` had been created and deleted, to reach a counter's end."""
        self._nodes[path].created_count += count

    def get(self, path: str) -> Node:
        """Return the data and the stat of a node."""
        node = self._find(path, "read")
        return Node(node.data, node.stat())

    def stat(self, path: str) -> Stat | None:
        """Return the stat of a node, None if it does not exist."""
        return self._find(path, "look for").stat() if path in self._nodes else None

    def children(self, path: str) -> Children:
        """Return the names of the children."""
        node = self._find(path, "list")
        stat = node.stat()
        return Children(tuple(node.children), stat.children_version, stat.czxid)

    def create(self, session_id: int, path: str, data: bytes, *, is_ephemeral: bool, is_sequential: bool) -> str:
        """Create a node."""
        parent = self._nodes.get(_parent(path))
        if parent is None:
            raise NoNodeError(f"create {path}: no such node as its parent")
        self._check_allowed(_parent(path), f"create {path}")
        if is_sequential:
            path += _suffix(parent.created_count)
        if path in self._nodes:
            raise NodeExistsError(f"create {path}: it exists already")
        if parent.ephemeral_owner:
            raise EphemeralParentError(f"create {path}: its parent is ephemeral and cannot have children")
        now_ms = self._begin()
        owner = session_id if is_ephemeral else 0
        self._nodes[path] = _MemoryNode(data, self._zxid, self._zxid, now_ms, now_ms, owner, children_zxid=self._zxid)
        parent.children.add(path.rpartition("/")[2])
        parent.created_count += 1
        parent.children_zxid = self._zxid
        self._changed(path, _parent(path))
        return path

    def set(self, path: str, data: bytes, version: int) -> Stat:
        """Replace the data of a node."""
        node = self._find(path, "change")
        _check_version(path, node, version)
        node.mtime_ms = self._begin()
        node.mzxid = self._zxid
        node.version += 1
        node.data = data
        self._changed(path)
        return node.stat()

    def delete(self, path: str, version: int) -> None:
        """Delete a node."""
        node = self._nodes.get(path)
        if node is None:
            raise NoNodeError(f"delete {path}: no such node")
        self._check_allowed(_parent(path), f"delete {path}")
        _check_version(path, node, version)
        if node.children:
            raise NotEmptyError(f"delete {path}: it has children")
        self._begin()
        self._remove(path)

    def multi(self, session_id: int, operations: Sequence[Operation]) -> None:
        """Apply all operations or none."""
        saved: dict[str, _MemoryNode | None] = {}
        zxid = self._zxid
        for index, operation in enumerate(operations):
            for path in (operation.path, _parent(operation.path)):
                if path not in saved:
                    saved[path] = _copy(self._nodes.get(path))
            try:
                self._apply(session_id, operation)
            except (ConflictError, PermanentError) as error:
                self._restore(saved, zxid)
                raise MultiFailedError(index, error) from error
            self._zxid = zxid  # the whole multi is one transaction
        self._zxid = zxid + 1

    def _apply(self, session_id: int, operation: Operation) -> None:
        match operation:
            case Create(path, data, is_ephemeral):
                self.create(session_id, path, data, is_ephemeral=is_ephemeral, is_sequential=False)
            case SetData(path, data, version):
                self.set(path, data, version)
            case Delete(path, version):
                self.delete(path, version)
            case Check(path, version):
                _check_version(path, self._find(path, "check"), version)

    def _restore(self, saved: dict[str, _MemoryNode | None], zxid: int) -> None:
        self._zxid = zxid
        for path, node in saved.items():
            if node is None:
                self._nodes.pop(path, None)
            else:
                self._nodes[path] = node

    def _find(self, path: str, verb: str) -> _MemoryNode:
        node = self._nodes.get(path)
        if node is None:
            raise NoNodeError(f"{verb} {path}: no such node")
        self._check_allowed(path, f"{verb} {path}")
        return node

    def _check_allowed(self, path: str, what: str) -> None:
        if path in self._denied:
            raise AccessDeniedError(f"{what}: its ACL does not allow this to the session's identity")

    def _begin(self) -> int:
        self._zxid += 1
        return self._now_ms()

    def _remove(self, path: str) -> None:
        del self._nodes[path]
        parent = self._nodes[_parent(path)]
        parent.children.discard(path.rpartition("/")[2])
        parent.children_zxid = self._zxid
        self._changed(path, _parent(path))

    def _changed(self, *paths: str) -> None:
        for path in paths:
            signal = self._signals.get(path)
            if signal is not None:
                del self._signals[path]
                signal.fire()


def _copy(node: _MemoryNode | None) -> _MemoryNode | None:
    if node is None:
        return None
    copy = _MemoryNode(node.data, node.czxid, node.mzxid, node.ctime_ms, node.mtime_ms, node.ephemeral_owner)
    copy.version, copy.created_count, copy.children = node.version, node.created_count, set(node.children)
    copy.children_zxid = node.children_zxid
    return copy


def _check_version(path: str, node: _MemoryNode, version: int) -> None:
    if version not in (ANY_VERSION, node.version):
        raise BadVersionError(f"{path}: it has version {node.version}, not {version}")


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _suffix(count: int) -> str:
    number = (count + _SEQUENCE_LIMIT) % (2 * _SEQUENCE_LIMIT) - _SEQUENCE_LIMIT
    return f"{number:010d}"
