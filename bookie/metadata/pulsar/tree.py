"""The topics, subscriptions and schemas in Pulsar's part of the metadata store, read in bulk.

``<root>/managed-ledgers/<tenant>/<namespace>/<domain>/<topic>/<subscription>`` and
``<root>/schemas/<tenant>/<namespace>/<topic>``, with names encoded. Names are listed a part at a time, so memory is
bounded by the topics of one namespace.

Source: docs/formats.md#references-of-pulsar.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.port import MetadataStore

_AT_ONCE: Final = 1_000
_DOMAINS: Final = ("persistent", "non-persistent", "segment")
_DEPTH_MAX: Final = 6


class NodeKind(enum.Enum):
    """What a node is about."""

    MANAGED_LEDGER = enum.auto()
    CURSOR = enum.auto()
    SCHEMA = enum.auto()


@dataclass(frozen=True, slots=True)
class PulsarNode:
    """A node that may refer to ledgers."""

    kind: NodeKind
    name: str
    """Of the managed ledger, or the id of the schema; of a cursor, the name of its managed ledger."""
    data: bytes
    cursor: str | None = None


def managed_ledger_path(root: str, name: str) -> str:
    """Path of a managed ledger; ``root`` is that of the brokers' metadata, without a slash at its end."""
    return f"{root}/managed-ledgers/{name}"


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

    async def nodes(self) -> AsyncGenerator[Sequence[PulsarNode], None]:
        """Yield all nodes, a part at a time. One that is deleted during the read is left out.

        Raises:
            StoreUnavailableError: no answer.
        """
        async for part in self._below("managed-ledgers", _DEPTH_MAX):
            yield await self._read("managed-ledgers", part)
        async for part in self._below("schemas", 3):
            yield await self._read("schemas", [names for names in part if len(names) == 3])

    async def _below(self, top: str, depth: int) -> AsyncGenerator[list[tuple[str, ...]], None]:
        """Names of all nodes below ``top``, by levels within each part."""
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            part, waiting = waiting[-_AT_ONCE:], waiting[:-_AT_ONCE]
            paths = ["/".join((self._root, top, *names)) for names in part]
            listed = await self._store.children_many(paths)
            found = [
                (*names, child)
                for names, children in zip(part, listed, strict=True)
                if children is not None
                for child in sorted(children.names)
            ]
            for start in range(0, len(found), _AT_ONCE):
                yield found[start : start + _AT_ONCE]
            waiting += [names for names in found if len(names) < depth and not _is_cursor(top, names)]

    async def _read(self, top: str, part: Sequence[tuple[str, ...]]) -> list[PulsarNode]:
        placed = [(placed, names) for names in part if (placed := _placed(top, names)) is not None]
        paths = ["/".join((self._root, top, *names)) for _, names in placed]
        found = await self._store.get_many_data(paths) if paths else []
        return [
            PulsarNode(kind, name, data, cursor)
            for ((kind, name, cursor), _), data in zip(placed, found, strict=True)
            if data is not None
        ]


def _is_cursor(top: str, names: tuple[str, ...]) -> bool:
    placed = _placed(top, names)
    return placed is not None and placed[0] is NodeKind.CURSOR


def _placed(top: str, names: tuple[str, ...]) -> tuple[NodeKind, str, str | None] | None:
    """What the node of these names is; None for one above topics."""
    if top == "schemas":
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
