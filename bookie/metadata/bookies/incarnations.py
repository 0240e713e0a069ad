"""Storage incarnations of each bookie id: ``/bkheal/incarnations/<ledgers root>/<bookieId>``.

The path names the cluster, because two clusters of one ZooKeeper may use the same bookie id for different disks.

A bookie returning with empty disks is a different witness under the same name; only this history shows it. The history
is permanent: entries are appended by compare-and-set and never removed, and a damaged history is an error, never a
fresh start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from bookie.metadata.nodes import change, child_names, find
from bookie.metadata.own_state import own_path
from bookie.metadata.port import Check, MetadataStore, Node
from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_KNOWN_MAX: Final = 1000
"""Histories with a cached newest incarnation: each repair looks at those of its bookies."""


class UnreadableHistoryError(PermanentError):
    """The history of a bookie's incarnations is damaged."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One set of disks under a bookie id."""

    uuid: str
    since_ms: int
    """When it was recorded, epoch milliseconds."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The last recorded disks of a bookie id."""

    uuid: str
    """Empty if the history is damaged: it matches no disks."""
    check: Check
    """Valid until other disks are recorded.

    A bookie records new disks before it searches for entries that its earlier disks may have held. So a write that
    names the bookie under this condition is either seen by that search, or refused.
    """


class Incarnations:
    """The histories of all bookies of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("incarnations", ledgers_root)

    async def known(self) -> frozenset[BookieId]:
        """Return every bookie with a history.

        Raises:
            StoreUnavailableError: no answer.
        """
        return frozenset(map(BookieId, await child_names(self._store, self._parent)))

    async def read(self, bookie: BookieId) -> tuple[Incarnation, ...]:
        """Return the incarnations of a bookie, oldest first; empty for a bookie without a history.

        Raises:
            UnreadableHistoryError: it is damaged.
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self.path(bookie))
        return () if node is None else _decode(self.path(bookie), node.data)

    async def latest(self, bookies: Sequence[BookieId]) -> dict[BookieId, Latest]:
        """Return the newest incarnation of each bookie with a history, as this session's server sees it.

        Raises:
            StoreUnavailableError: no answer.
        """
        nodes = await self._store.get_many([self.path(bookie) for bookie in bookies])
        found = {bookie: self.latest_in(bookie, node) for bookie, node in zip(bookies, nodes, strict=True)}
        return {bookie: latest for bookie, latest in found.items() if latest is not None}

    def latest_in(self, bookie: BookieId, node: Node | None) -> Latest | None:
        """Return the newest incarnation in a node read at ``path``; None if there was no node."""
        path = self.path(bookie)
        return None if node is None else Latest(_newest(path, node.data), Check(path, node.stat.version))

    async def record(self, bookie: BookieId, uuid: str, since_ms: int) -> tuple[Incarnation, ...]:
        """Append an incarnation, unless it is the newest one already. Durable on return; returns the whole history.

        Raises:
            UnreadableHistoryError: the history is damaged.
            WriteOutcomeUnknownError: the answer was lost, and the history cannot be read; calling again is safe.
            StoreUnavailableError: no answer; nothing was changed.
        """
        path = self.path(bookie)

        def with_incarnation(data: bytes | None) -> bytes | None:
            history = () if data is None else _decode(path, data)
            if history and history[-1].uuid == uuid:
                return None
            return _encode((*history, Incarnation(uuid, since_ms)))

        recorded = await change(self._store, path, with_incarnation)
        assert recorded is not None
        return _decode(path, recorded)

    def path(self, bookie: BookieId) -> str:
        """Return the path of a bookie's history."""
        return f"{self._parent}/{bookie}"


@lru_cache(_KNOWN_MAX)
def _newest(path: str, data: bytes) -> str:
    try:
        return next((item.uuid for item in reversed(_decode(path, data))), "")
    except UnreadableHistoryError:
        return ""


def _encode(history: tuple[Incarnation, ...]) -> bytes:
    """A list of records, each with its own format number."""
    return b"[" + b",".join(map(encode_record, history)) + b"]"


def _decode(path: str, data: bytes) -> tuple[Incarnation, ...]:
    try:
        return tuple(
            decode_record(bytes(item), Incarnation) for item in msgspec.json.decode(data, type=list[msgspec.Raw])
        )
    except (ValueError, RecursionError, UnreadableRecordError) as error:
        raise UnreadableHistoryError(
            f"the history of incarnations at {path} is damaged: repair it by hand, it records the disks "
            "of each incarnation"
        ) from error
