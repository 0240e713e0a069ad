"""The metadata store port: a small tree of versioned nodes with sessions, in this project's terms.

Semantics are ZooKeeper's: linearizable writes, possibly stale reads (``sync`` first if that matters), ephemeral nodes
that end with the session, versions that restart at 0 when a node is created again. The adapter over kazoo and the
in-memory twin pass one contract suite, which asserts every error named here.

Paths are absolute, without a trailing slash. In addition to the errors that are listed for it, every method raises
``RequestRefusedError`` for a malformed path, and each write raises ``AccessDeniedError`` if the node (or, for a create
or delete, its parent) does not allow it.

A request made while the connection is interrupted waits for a new connection, within the store's deadline. A request
is never sent in another session: it fails once its own session is lost.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError, TransientError

ANY_VERSION: Final = -1
NODE_DATA_MAX: Final = 1_000_000
"""Largest node data, and largest ``multi`` in total, in bytes. A server closes the connection if a request exceeds its
``jute.maxbuffer``, by default 1 MiB."""
OPERATION_OVERHEAD: Final = 64
"""Bytes counted for each operation of a ``multi``, plus its path and data. A create with a long ACL counts more."""
MULTI_OPS_MAX: Final = 500
"""Largest number of operations in one ``multi``; keeps a request of ledger creates far below ``jute.maxbuffer``."""


class NoNodeError(ConflictError):
    """The node (or, for a create, its parent) does not exist."""


class NodeExistsError(ConflictError):
    """The node to create exists already."""


class BadVersionError(ConflictError):
    """The node's version is not the expected one."""


class NotEmptyError(ConflictError):
    """The node to delete has children."""


class EphemeralParentError(PermanentError):
    """The parent of the node to create is ephemeral and cannot have children."""


class AccessDeniedError(PermanentError):
    """The session's identity may not do this to the node."""


class RequestRefusedError(PermanentError):
    """The store refused the request for a reason without its own error: a malformed path, a quota."""


class NodeTooLargeError(PermanentError):
    """The data or the request is too large (``NODE_DATA_MAX``); refused before it was sent."""


class StoreUnavailableError(TransientError):
    """No answer from the store, and nothing was changed: a read failed, or a write was certainly not sent."""


class WriteOutcomeUnknownError(OutcomeUnknownError):
    """A write was sent and its answer lost. Read the node before any further step."""


class MultiFailedError(ConflictError):
    """A ``multi`` was refused as a whole; ``index`` names the operation at fault and ``cause`` is its error."""

    def __init__(self, index: int, cause: ConflictError | PermanentError) -> None:
        is_clear = isinstance(cause, AccessDeniedError)  # for an operator, who needs only the path and the reason
        super().__init__(str(cause) if is_clear else f"operation {index} of the multi failed: {cause}")
        self.index = index
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Stat:
    """The store's record of a node. Transaction ids order all changes of one ensemble."""

    version: int
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    children_count: int
    children_version: int
    ephemeral_owner: int
    """Session owning the node, 0 for a persistent node."""
    children_zxid: int = 0
    """Transaction that last created or deleted a child; a change of a child's data does not count."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node's data and stat, read together. Data may contain secrets, so it is not printed."""

    data: bytes = field(repr=False)
    stat: Stat


@dataclass(frozen=True, slots=True)
class Children:
    """Names of a node's children (in no order) and the version of that listing."""

    names: tuple[str, ...]
    version: int
    czxid: int
    """The transaction that created the node. A recreated node counts its versions from 0 again."""

    @property
    def stamp(self) -> tuple[int, int]:
        """A value that differs after each change of the children, also if the node was deleted and created again."""
        return self.czxid, self.version


@dataclass(frozen=True, slots=True)
class Create:
    """Part of a ``multi``: create ``path``. Never sequential."""

    path: str
    data: bytes = field(default=b"", repr=False)
    is_ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Part of a ``multi``: replace the data if the version matches."""

    path: str
    data: bytes = field(repr=False)
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Part of a ``multi``: delete if the version matches."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Part of a ``multi``: fail the whole ``multi`` unless the node exists with this version."""

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | Check


class SessionState(enum.Enum):
    """What the client may assume about its session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """Not connected; the session may still live. Start no new work that needs it."""
    LOST = "lost"
    """The session has ended, and its locks, registration and leadership with it (S14)."""


@dataclass(frozen=True, slots=True)
class Session:
    """State of the client's session at one moment. ``epoch`` counts sessions: it grows each time a new one begins."""

    state: SessionState
    epoch: int
    session_id: int
    timeout_s: float = math.inf
    """Timeout granted by the server, perhaps less than requested; infinite if it is not known."""

    @property
    def is_connected(self) -> bool:
        """Whether work that needs the session may start."""
        return self.state is SessionState.CONNECTED

    def is_alive(self, session_id: int) -> bool:
        """Whether this is the session ``session_id``, and has not ended.

        A session that has ended keeps its id until the next one begins, but a request made before that is sent in the
        next one.
        """
        return self.session_id == session_id and self.state is not SessionState.LOST


class MetadataStore(Protocol):
    """A tree of znodes with sessions, versions, transactions and watches.

    Every operation has the store's own deadline; none retries a write.
    """

    async def get(self, path: str) -> Node:
        """Read a node.

        Raises:
            NoNodeError: it does not exist.
            StoreUnavailableError: no answer.
            AccessDeniedError: not allowed.
        """
        ...

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Read many nodes in few requests; None for each missing node.

        Not one point in time, but in the order of ``paths``: a repeated path is read again.

        Raises:
            StoreUnavailableError: no answer.
            AccessDeniedError: not allowed to read one of them.
        """
        ...

    async def get_many_data(self, paths: Sequence[str]) -> list[bytes | None]:
        """As ``get_many``, but read only the data, at the lowest cost: for scans over all ledgers.

        Raises:
            StoreUnavailableError: no answer.
            AccessDeniedError: not allowed to read one of them.
        """
        ...

    async def stat(self, path: str) -> Stat | None:
        """Stat of a node, or None if it does not exist.

        Raises:
            StoreUnavailableError: no answer.
            AccessDeniedError: not allowed (ZooKeeper servers before 3.8.4 and 3.9.2 allow it to every client).
        """
        ...

    async def children(self, path: str) -> Children:
        """Names of a node's children.

        Raises:
            NoNodeError: it does not exist.
            StoreUnavailableError: no answer.
            AccessDeniedError: not allowed.
        """
        ...

    async def children_many(self, paths: Sequence[str]) -> list[Children | None]:
        """Children of many nodes, None for each missing node. ``version`` and ``czxid`` may be -1 (unknown) here.

        Raises:
            StoreUnavailableError: no answer.
            AccessDeniedError: not allowed to read one of them.
        """
        ...

    async def create(
        self, path: str, data: bytes = b"", *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        """Create a node and return its path (with the ten-digit suffix the store chose, if sequential).

        Raises:
            NodeExistsError: it exists.
            NoNodeError: its parent does not exist.
            EphemeralParentError: its parent is ephemeral.
            NodeTooLargeError: too much data.
            WriteOutcomeUnknownError: sent, answer lost.
            StoreUnavailableError: not sent.
        """
        ...

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        """Replace a node's data if its version is ``version`` (or ``ANY_VERSION``).

        Raises:
            NoNodeError: it does not exist.
            BadVersionError: another version.
            NodeTooLargeError: too much data.
            WriteOutcomeUnknownError: sent, answer lost.
            StoreUnavailableError: not sent.
        """
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node if its version matches.

        Raises:
            NoNodeError: it does not exist.
            BadVersionError: another version.
            NotEmptyError: it has children.
            WriteOutcomeUnknownError: sent, answer lost.
            StoreUnavailableError: not sent.
        """
        ...

    async def multi(self, operations: Sequence[Operation]) -> None:
        """Do all operations or none.

        Raises:
            MultiFailedError: one of them was refused; nothing was changed.
            NodeTooLargeError: more than ``MULTI_OPS_MAX`` operations, or more than ``NODE_DATA_MAX`` bytes of data,
                paths and ``OPERATION_OVERHEAD`` in all.
            WriteOutcomeUnknownError: sent, answer lost.
            StoreUnavailableError: not sent.
        """
        ...

    async def sync(self, path: str) -> None:
        """Make the next read of this session at least as new as every write completed before this call.

        Raises:
            StoreUnavailableError: no answer.
        """
        ...

    async def get_many_current(self, paths: Sequence[str]) -> list[Node | None]:
        """As ``get_many`` right after ``sync``: the result is no older than this call.

        Args:
            paths: at least one.

        Raises:
            StoreUnavailableError: no answer.
            AccessDeniedError: not allowed to read one of them.
        """
        await self.sync(paths[0])
        return await self.get_many(paths)

    async def wait_children_changed(self, path: str, seen: Children) -> None:
        """Return once the listing differs from ``seen``, or the node was deleted, also if it was created again.

        Never misses a change.

        Raises:
            StoreUnavailableError: the session was lost while waiting.
        """
        ...

    async def wait_node_changed(self, path: str, seen: Stat | None) -> None:
        """Return once the node is created, changed or deleted relative to ``seen`` (None: it did not exist).

        Raises:
            StoreUnavailableError: the session was lost while waiting.
        """
        ...

    @property
    def session(self) -> Session:
        """The session as this client knows it now."""
        ...

    async def wait_session_changed(self, seen: Session) -> Session:
        """Return the session once it differs from ``seen``. Several transitions may be reported as one."""
        ...

    async def close(self) -> None:
        """End the session (its ephemeral nodes vanish at once) and free everything. Idempotent."""
        ...
