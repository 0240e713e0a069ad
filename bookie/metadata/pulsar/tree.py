"""The topics, subscriptions and schemas in Pulsar's part of the metadata store, read in bulk.

``<root>/managed-ledgers/<tenant>/<namespace>/<domain>/<topic>/<subscription>`` and
``<root>/schemas/<tenant>/<namespace>/<topic>``, with names encoded. Names are listed a part at a time, so memory is
bounded by the topics of one namespace.

The nodes above topics are the units of work. The nodes below each are read separately, in shares if there are many.

Source: docs/formats.md#references-of-pulsar.
"""

from __future__ import annotations

import asyncio
import enum
import re
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from bookie.metadata.nodes import read_each_permitted
from bookie.metadata.port import AccessDeniedError, Children, MetadataStore, NoNodeError
from bookie.runtime.tasks import cancel, guarded

_AT_ONCE: Final = 1_000
_PARTS_AHEAD: Final = 1
"""Number of parts read ahead during decoding. A node of a large topic has a few hundred kilobytes."""
_DOMAINS: Final = ("persistent", "non-persistent", "segment")
_PARTITION: Final = re.compile(r"(.+)-partition-[0-9]+")
_DEPTH_MAX: Final = 6
_PARENT_DEPTH_MAX: Final = 4
"""Depth of a domain below ``managed-ledgers``, in a name of version 1."""
_SCHEMAS: Final = "schemas"
_SCHEMA_PARENT_DEPTH: Final = 2


class NodeKind(enum.Enum):
    """Kind of object described by a node."""

    MANAGED_LEDGER = "managed-ledger"
    CURSOR = "cursor"
    SCHEMA = "schema"


@dataclass(frozen=True, slots=True)
class PulsarNode:
    """A node that may refer to ledgers."""

    kind: NodeKind
    name: str
    """Name of the managed ledger (also for a cursor), or id of the schema."""
    data: bytes
    cursor: str | None = None
    is_denied: bool = False
    """The node's ACL does not let this session read it; its content is unknown, and ``data`` is empty."""


@dataclass(frozen=True, slots=True)
class TopicParent:
    """A node directly above topics or schemas."""

    path: str
    """Below the root: ``managed-ledgers/t/n/persistent``."""
    planned: int
    """Number of its children when it was listed."""


def managed_ledger_path(root: str, name: str) -> str:
    """Path of a managed ledger; ``root`` is the root of the brokers' metadata, without a slash at its end."""
    return f"{root}/managed-ledgers/{name}"


def partitioned_topic_path(root: str, name: str) -> str | None:
    """Path of the partitioned topic of a managed ledger; None if its name is not that of a partition."""
    partition = _PARTITION.fullmatch(name)
    return None if partition is None else f"{root}/admin/partitioned-topics/{partition[1]}"


def policies_path(root: str, name: str) -> str:
    """Path of the policies of a managed ledger's namespace: they are in the same store as the partitioned topics."""
    return f"{root}/admin/policies/{name.rsplit('/', 2)[0]}"


def schema_path(root: str, schema_id: str) -> str:
    """Path of a schema."""
    return f"{root}/schemas/{schema_id}"


class PulsarTree:
    """Reads the nodes below one root."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._root = root

    async def exists(self) -> bool:
        """Return whether Pulsar has managed ledgers here."""
        return await self._store.stat(f"{self._root}/managed-ledgers") is not None

    async def parents(self) -> Sequence[TopicParent]:
        """Return the nodes directly above topics and schemas.

        Raises:
            StoreUnavailableError: no answer.
        """
        found: list[tuple[str, ...]] = []
        for top, depth in (("managed-ledgers", _PARENT_DEPTH_MAX), (_SCHEMAS, _SCHEMA_PARENT_DEPTH)):
            level: list[tuple[str, ...]] = [(top,)]
            for _ in range(depth):
                if not level:
                    break
                listed = await self._store.children_many(["/".join((self._root, *names)) for names in level])
                level = [
                    (*names, child)
                    for names, children in zip(level, listed, strict=True)
                    if children is not None
                    for child in sorted(children.names)
                ]
                found += [names for names in level if _is_parent(names)]
                level = [names for names in level if not _is_parent(names)]
        nodes = await self._store.get_many(["/".join((self._root, *names)) for names in found]) if found else []
        return [
            TopicParent("/".join(names), node.stat.children_count)
            for names, node in zip(found, nodes, strict=True)
            if node is not None
        ]

    async def nodes(self, parent: str, share: int = 0, shares: int = 1) -> AsyncGenerator[Sequence[PulsarNode], None]:
        """Yield the nodes below one of ``parents``, a part at a time. Nodes deleted during the read are left out.

        Args:
            parent: its path.
            share: index of the share of topics to read; a topic's share depends only on its name.
            shares: number of shares.

        Raises:
            StoreUnavailableError: no answer.
            AccessDeniedError: a node above topics may not be read, so its topics are unknown.
        """
        top, *names = parent.split("/")
        ahead: deque[asyncio.Task[list[PulsarNode]]] = deque()
        try:
            async with aclosing(self._below(top, tuple(names), share, shares)) as parts:
                async for part in parts:
                    ahead.append(guarded("read nodes of Pulsar", self._read(top, part)))
                    if len(ahead) > _PARTS_AHEAD:
                        yield await ahead.popleft()
            while ahead:
                yield await ahead.popleft()
        finally:
            for reading in ahead:
                await cancel(reading)

    async def _below(
        self, top: str, start: tuple[str, ...], share: int, shares: int
    ) -> AsyncGenerator[list[tuple[str, ...]], None]:
        """Names of all nodes below ``start``, by levels within each part."""
        waiting: list[tuple[str, ...]] = [start]
        depth = _SCHEMA_PARENT_DEPTH + 1 if top == _SCHEMAS else _DEPTH_MAX
        while waiting:
            part, waiting = waiting[-_AT_ONCE:], waiting[:-_AT_ONCE]
            listed = await self._children(top, part)
            found = [
                (*names, child)
                for names, children in zip(part, listed, strict=True)
                if children is not None
                for child in sorted(children.names)
                if len(names) > len(start) or zlib.crc32(child.encode()) % shares == share
            ]
            for at in range(0, len(found), _AT_ONCE):
                yield found[at : at + _AT_ONCE]
            waiting += [names for names in found if len(names) < depth and not _is_cursor(top, names)]

    async def _children(self, top: str, part: Sequence[tuple[str, ...]]) -> Sequence[Children | None]:
        """Return the children of nodes. An unreadable topic has none: it is itself reported as denied."""
        paths = ["/".join((self._root, top, *names)) for names in part]
        try:
            return await self._store.children_many(paths)
        except AccessDeniedError:
            return [
                await self._children_or_none(path, is_topic=_placed(top, names) is not None)
                for path, names in zip(paths, part, strict=True)
            ]

    async def _children_or_none(self, path: str, *, is_topic: bool) -> Children | None:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return None
        except AccessDeniedError:
            if is_topic:
                return None
            raise

    async def _read(self, top: str, part: Sequence[tuple[str, ...]]) -> list[PulsarNode]:
        placed = [(placed, names) for names in part if (placed := _placed(top, names)) is not None]
        paths = ["/".join((self._root, top, *names)) for _, names in placed]
        found = await read_contents(self._store, paths)
        return [
            PulsarNode(kind, name, b"" if data is DENIED else data, cursor, is_denied=data is DENIED)
            for ((kind, name, cursor), _), data in zip(placed, found, strict=True)
            if data is not None
        ]


class Denied(enum.Enum):
    """Stands for the content of a node that this session may not read."""

    DENIED = "the node's ACL does not let this session read it"


DENIED: Final = Denied.DENIED


async def read_contents(store: MetadataStore, paths: Sequence[str]) -> Sequence[bytes | Denied | None]:
    """Return the content of each node; ``DENIED`` if its ACL forbids this session to read it, None if it is missing.

    Raises:
        StoreUnavailableError: no answer.
    """
    if not paths:
        return ()
    found = await read_each_permitted(store.get_many_data, paths)
    return [DENIED if isinstance(data, AccessDeniedError) else data for data in found]


def _is_parent(names: tuple[str, ...]) -> bool:
    top, *below = names
    if top == _SCHEMAS:
        return len(below) == _SCHEMA_PARENT_DEPTH
    return len(below) in (3, 4) and below[-1] in _DOMAINS


def _is_cursor(top: str, names: tuple[str, ...]) -> bool:
    placed = _placed(top, names)
    return placed is not None and placed[0] is NodeKind.CURSOR


def _placed(top: str, names: tuple[str, ...]) -> tuple[NodeKind, str, str | None] | None:
    """Return the kind, name and cursor of the node with these names; None for a node above topics."""
    if top == _SCHEMAS:
        return NodeKind.SCHEMA, "/".join(names), None
    for domain_at in (2, 3):
        if len(names) > domain_at and names[domain_at] in _DOMAINS:
            depth = domain_at + 2 + (names[domain_at] == "segment")
            if len(names) == depth:
                return NodeKind.MANAGED_LEDGER, "/".join(names), None
            if len(names) == depth + 1:
                return NodeKind.CURSOR, "/".join(names[:depth]), names[-1]
            return None
    return None
