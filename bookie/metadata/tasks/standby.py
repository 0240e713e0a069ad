"""Idle workers: ``/bkheal/standby/<ledgers root>``, one ephemeral node for each.

The nodes form a line, in the order of their sequence numbers. The first ``LOOKOUTS`` in line watch the list of tasks
for all others. Each other worker waits for the deletion of its own node, a call to work, or of the node in front of it,
which may make it a lookout. So a change wakes one worker and not all of them, and a call costs one request for each
called worker.

Only the start time of a repair depends on these nodes. A lost node costs its worker two requests, and a worker reads
the list itself after a while without a call. Nodes end with their sessions.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from bookie.metadata.nodes import child_names, ensure_path, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.port import (
    Delete,
    MetadataStore,
    MultiFailedError,
    NoNodeError,
    Stat,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.runtime.waiting import first_to_end

_log = logging.getLogger(__name__)

LOOKOUTS: Final = 3
"""Workers watching for all others. More than one, because one may be slow, or unable to reach some bookies."""
CALLED_MAX: Final = 100
"""Workers called at a time. They take work, so the next call may be smaller."""
_NUMBER_DIGITS: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A worker's place in line."""

    name: str
    position: int
    """0 for the first in line."""
    size: int
    own: Stat
    in_front: str = ""
    """Name of the node before it; empty for the first in line."""


class StandbyWorkers:
    """The line of idle workers of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("standby", ledgers_root)

    async def enter(self, token: str) -> str:
        """Enter the line at its end, and return the name of the new node.

        Args:
            token: unique to this worker, and plain: letters and digits.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; a created node ends with the session.
        """
        path = f"{self._parent}/{token}-"
        try:
            created = await self._create(path)
        except WriteOutcomeUnknownError:
            await self._store.sync(self._parent)
            mine = [name for name in await child_names(self._store, self._parent) if name.startswith(f"{token}-")]
            if not mine:
                raise
            return max(mine, key=_number)
        return created.rpartition("/")[2]

    async def place(self, name: str) -> Place | None:
        """Return a worker's place in line; None if its node was deleted.

        Raises:
            StoreUnavailableError: no answer.
        """
        names = await self._names()
        stat = await self._store.stat(f"{self._parent}/{name}") if name in names else None
        if stat is None:
            return None
        position = names.index(name)
        in_front = names[position - 1] if position else ""
        return Place(name=name, position=position, size=len(names), own=stat, in_front=in_front)

    async def wait_moved(self, place: Place) -> None:
        """Wait until the worker's node, or the one in front of it, is deleted.

        Raises:
            StoreUnavailableError: no answer, or the session was lost while waiting.
        """
        in_front = f"{self._parent}/{place.in_front}"
        stat = await self._store.stat(in_front)
        if stat is not None:
            own = f"{self._parent}/{place.name}"
            await first_to_end(
                self._store.wait_node_changed(own, place.own), self._store.wait_node_changed(in_front, stat)
            )

    async def call(self, count: int, lookouts: int = LOOKOUTS) -> int:
        """Call up to ``count`` workers from the end of the line, but no lookout; return the number of called workers.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; some may have been called.
        """
        names = (await self._names())[lookouts:]
        called = names[-min(count, CALLED_MAX) :] if names else []
        try:
            await self._store.multi([Delete(f"{self._parent}/{name}") for name in called])
        except MultiFailedError as error:  # another lookout called them, or one has left
            _log.info("idle workers are called by another process", extra={"error": str(error)})
            return 0
        return len(called)

    async def leave(self, name: str) -> None:
        """Leave the line. Idempotent, and best effort: a remaining node costs the next worker one look."""
        try:
            await remove(self._store, f"{self._parent}/{name}")
        except (StoreUnavailableError, WriteOutcomeUnknownError) as error:
            _log.info("place in line stays for now", extra={"error": str(error)})

    async def _create(self, path: str) -> str:
        try:
            return await self._store.create(path, is_ephemeral=True, is_sequential=True)
        except NoNodeError:
            await ensure_path(self._store, self._parent)
            return await self._store.create(path, is_ephemeral=True, is_sequential=True)

    async def _names(self) -> list[str]:
        names = await child_names(self._store, self._parent)
        return sorted((name for name in names if name.isascii() and name[-_NUMBER_DIGITS:].isdigit()), key=_number)


def _number(name: str) -> int:
    return int(name[-_NUMBER_DIGITS:])
