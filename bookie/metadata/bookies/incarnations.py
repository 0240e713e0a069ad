"""Storage incarnations of each bookie id: ``/bkheal/incarnations/<ledgers root>/<bookieId>``.

The path names the cluster, because two clusters of one ZooKeeper may use the same bookie id for different disks.

A bookie that returns with empty disks has the same id and none of its entries; only this history shows it. The history
is permanent: entries are appended by compare-and-set and never removed. A damaged history is an error and never counts
as an empty one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from bookie.metadata.nodes import change_node, child_names, find, reread
from bookie.metadata.own_state import own_path
from bookie.metadata.port import (
    Check,
    MetadataStore,
    MultiFailedError,
    Node,
    Operation,
    SetData,
    WriteOutcomeUnknownError,
)
from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_KNOWN_MAX: Final = 1000
"""Maximum number of histories whose newest incarnation is cached: each repair reads the histories of its bookies."""


class UnreadableHistoryError(PermanentError):
    """The history of a bookie's incarnations is damaged."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One set of disks under a bookie id."""

    uuid: str
    since_ms: int
    """When it was recorded, epoch milliseconds."""


@dataclass(frozen=True, slots=True)
class IncarnationHistory:
    """The incarnations of a bookie, oldest first, and the node in which they were found; None if there was none."""

    incarnations: tuple[Incarnation, ...] = ()
    node: Node | None = None

    @property
    def version(self) -> int | None:
        """Version of the node."""
        return None if self.node is None else self.node.stat.version


class OtherDisksError(PermanentError):
    """After the history was read, other disks were recorded or ``confirm`` was called. Nothing was changed."""


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
        return (await self.history(bookie)).incarnations

    async def history(self, bookie: BookieId) -> IncarnationHistory:
        """As ``read``, with the version.

        Raises:
            UnreadableHistoryError: it is damaged.
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self.path(bookie))
        return IncarnationHistory() if node is None else IncarnationHistory(_decode(self.path(bookie), node.data), node)

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
        return None if node is None else Latest(_newest_incarnation(path, node.data), Check(path, node.stat.version))

    async def record(self, bookie: BookieId, uuid: str, since_ms: int, after: IncarnationHistory | None = None) -> None:
        """Append an incarnation, unless it is the newest one already. Durable on return.

        Args:
            bookie: its id.
            uuid: the incarnation.
            since_ms: now, epoch milliseconds.
            after: record the disks only if the history is still this one; None: in any case.

        Raises:
            OtherDisksError: the history is not ``after`` any more, or ``confirm`` was called since.
            UnreadableHistoryError: the history is damaged.
            WriteOutcomeUnknownError: the answer was lost, and the history cannot be read; calling again is safe.
            StoreUnavailableError: no answer; nothing was changed.
        """
        path = self.path(bookie)

        def with_incarnation(node: Node | None) -> bytes | None:
            history = () if node is None else _decode(path, node.data)
            if history and history[-1].uuid == uuid:
                return None
            if after is not None and after.version != (None if node is None else node.stat.version):
                raise OtherDisksError(f"other disks of bookie {bookie} have just been recorded")
            return _encode((*history, Incarnation(uuid, since_ms)))

        await change_node(self._store, path, with_incarnation)

    async def confirm(self, bookie: BookieId, history: IncarnationHistory, operations: Sequence[Operation]) -> None:
        """Carry out ``operations`` if the history is still ``history``, and give its node a new version.

        A concurrent ``record`` of other disks with this history as its ``after`` is then refused.

        Raises:
            OtherDisksError: other disks were recorded since ``history`` was read.
            MultiFailedError: one of ``operations`` was refused; nothing was changed, and its index counts from 1.
            WriteOutcomeUnknownError: the answer was lost, and it is not known whether they were carried out.
            StoreUnavailableError: no answer; nothing was changed.
        """
        assert history.node is not None, "the disks are recorded"
        unchanged = SetData(self.path(bookie), history.node.data, history.node.stat.version)
        try:
            await self._store.multi([unchanged, *operations])
        except MultiFailedError as error:
            if error.index == 0:
                raise OtherDisksError(f"other disks of bookie {bookie} have just been recorded") from error
            raise
        except WriteOutcomeUnknownError:
            node = await reread(self._store, unchanged.path)
            if node is None or node.data != unchanged.data or node.stat.version == unchanged.version:
                raise

    def path(self, bookie: BookieId) -> str:
        """Return the path of a bookie's history."""
        return f"{self._parent}/{bookie}"


@lru_cache(_KNOWN_MAX)
def _newest_incarnation(path: str, data: bytes) -> str:
    try:
        return next((item.uuid for item in reversed(_decode(path, data))), "")
    except UnreadableHistoryError:
        return ""


def _encode(history: tuple[Incarnation, ...]) -> bytes:
    """Return a list of records, each with its own format number."""
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
