"""Limits on copying for a whole cluster, and the workers sharing them.

``/bkheal/copy-limits/<ledgers root>`` contains the operator's limits; without the node there are none.
``/bkheal/copying/<ledgers root>/<worker>`` is an ephemeral node of a worker that copies under limits. Each worker
divides the limits by the number of these nodes. While the node of a dead worker exists, until its session ends, the
others copy more slowly than allowed. The limits are never exceeded.

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from bookie.metadata.nodes import change, create_with_parents, find, put, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.port import (
    Children,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    Stat,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.model.records import decode_record, encode_record


class CopyProfile(enum.Enum):
    """What has priority if copying makes a bookie slow."""

    CLIENT_FIRST = "client-first"
    """Copy more slowly if a bookie takes longer than 50 ms plus 31 ms per MiB for a copy request."""
    BALANCED = "balanced"
    """Copy more slowly if a bookie takes longer than 250 ms plus 31 ms per MiB for a copy request."""
    RECOVERY_FIRST = "recovery-first"
    """Copy as fast as the bookies accept it. The default."""


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Limits of all workers of a cluster together. 0: no limit."""

    bytes_per_second: int = 0
    """Bytes sent to targets. The same number of bytes may be read from sources."""
    requests_per_second: int = 0
    """Reads and adds of copies."""
    bookie_in_bytes_per_second: int = 0
    """Bytes sent to one bookie."""
    bookie_out_bytes_per_second: int = 0
    """Bytes read from one bookie."""
    critical_bytes_per_second: int = 0
    """Bytes of ledgers with a single copy left, allowed beyond the other limits."""
    profile: CopyProfile = CopyProfile.RECOVERY_FIRST
    by: str = ""
    """Operator who made the last change, for display."""
    since_ms: int = 0
    """Time of the last change, epoch milliseconds; 0 if never set."""


@dataclass(frozen=True, slots=True)
class SeenLimits:
    """Limits as read, to wait for a change."""

    limits: CopyLimits | None
    """None: there are none."""
    stat: Stat | None


class CopyLimitsStore:
    """The limits of the cluster at ``ledgers_root``, and its copying workers."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self.path = own_path("copy-limits", ledgers_root)
        """The path of the limits."""
        self._workers = own_path("copying", ledgers_root)

    async def read(self) -> SeenLimits:
        """Return the limits.

        Raises:
            UnreadableRecordError: they are damaged, or set by a newer release; wait for a change of ``stat``.
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self.path)
        if node is None:
            return SeenLimits(None, None)
        return SeenLimits(decode_record(node.data, CopyLimits), node.stat)

    async def stat(self) -> Stat | None:
        """Return the stat of the limits' node, or None if it does not exist.

        Raises:
            StoreUnavailableError: no answer.
        """
        return await self._store.stat(self.path)

    async def set(self, limits: CopyLimits) -> None:
        """Set the limits. The last write wins.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; setting them again is safe.
        """
        await put(self._store, self.path, encode_record(limits))

    async def update(self, decide: Callable[[CopyLimits | None], CopyLimits]) -> CopyLimits:
        """Replace the limits by compare-and-set, so no change of another client is lost; return the new ones.

        Args:
            decide: returns the new limits for the present ones (None: there are none). Called again after a conflict or
                a lost answer, perhaps with the limits that it returned before.

        Raises:
            UnreadableRecordError: the present ones are damaged, or set by a newer release.
            StoreUnavailableError, WriteOutcomeUnknownError: as ``nodes.change``.
        """
        data = await change(
            self._store,
            self.path,
            lambda present: encode_record(decide(None if present is None else decode_record(present, CopyLimits))),
        )
        assert data is not None
        return decode_record(data, CopyLimits)

    async def clear(self) -> None:
        """Remove every limit. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; clearing again is safe.
        """
        await remove(self._store, self.path)

    async def wait_changed(self, seen: Stat | None) -> None:
        """Wait until the limits differ from ``seen``.

        Raises:
            StoreUnavailableError: the session was lost while waiting.
        """
        await self._store.wait_node_changed(self.path, seen)

    async def join(self, name: str) -> None:
        """Count as a copying worker until ``leave``, or until the session ends. Idempotent.

        Args:
            name: unique among all workers, including those of other sessions.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer, or the parents of the node are deleted as fast
                as they are made; joining again is safe.
        """
        try:
            await create_with_parents(self._store, f"{self._workers}/{name}", b"", "/", is_ephemeral=True)
        except NodeExistsError:
            return
        except NoNodeError as error:
            raise StoreUnavailableError(str(error)) from error

    async def leave(self, name: str) -> None:
        """Stop counting as a copying worker. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; leaving again is safe.
        """
        try:
            await self._store.delete(f"{self._workers}/{name}")
        except NoNodeError:
            return
        except WriteOutcomeUnknownError:
            if await self._store.stat(f"{self._workers}/{name}") is not None:
                raise

    async def workers(self) -> Children | None:
        """Return the names of the copying workers, or None if there never was one.

        Raises:
            StoreUnavailableError: no answer.
        """
        try:
            return await self._store.children(self._workers)
        except NoNodeError:
            return None

    async def wait_workers_changed(self, seen: Children) -> None:
        """Wait until a worker joins or leaves after ``seen``.

        Raises:
            StoreUnavailableError: the session was lost while waiting.
        """
        await self._store.wait_children_changed(self._workers, seen)
