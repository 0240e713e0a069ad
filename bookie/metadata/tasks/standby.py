"""Standby workers: ``/bkheal/standby/<ledgers root>``, one ephemeral node for each worker without work.

The nodes are ordered by their sequence numbers. The first ``WATCHING_MAX`` workers watch the list of tasks for all
others. Each other worker waits until its own node is deleted, which is a call to work, or the node before it: then it
may have become one of those that watch. So a change wakes one worker and not all of them, and a call costs one request
for each called worker.

Only the start time of a repair depends on these nodes. A lost node costs its worker two requests, and a worker that is
not called for a while reads the list itself. Nodes end with their sessions.
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

WATCHING_MAX: Final = 3
"""Number of standby workers that watch for all others. One is too few: it may be slow, or unable to reach bookies."""
CALLED_MAX: Final = 100
"""Maximum number of workers called at a time. They take work, so the next call may be smaller."""
_NUMBER_DIGITS: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A worker's place among the standby workers."""

    name: str
    position: int
    """0 for the first."""
    size: int
    own: Stat
    previous: str = ""
    """Name of the node before it; empty for the first."""


class StandbyWorkers:
    """The standby workers of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("standby", ledgers_root)
        self._remaining: set[str] = set()
        """Tokens with a node that may exist although its worker does not use it, because an answer was lost."""

    async def enter(self, token: str) -> str:
        """Create a node after all others, and return its name.

        Args:
            token: unique to this worker; only letters and digits.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; a created node ends with the session.
        """
        if token in self._remaining:  # such a node would take the place of a worker that watches
            for name in await self._nodes_of(token):
                await remove(self._store, f"{self._parent}/{name}")
            self._remaining.discard(token)
        try:
            created = await self._create(f"{self._parent}/{token}-")
        except WriteOutcomeUnknownError:
            self._remaining.add(token)
            mine = await self._nodes_of(token)
            self._remaining.discard(token)
            if not mine:
                raise
            return max(mine, key=_number)
        return created.rpartition("/")[2]

    async def place(self, name: str) -> Place | None:
        """Return a worker's place; None if its node was deleted.

        Raises:
            StoreUnavailableError: no answer.
        """
        names = await self._names()
        stat = await self._store.stat(f"{self._parent}/{name}") if name in names else None
        if stat is None:
            return None
        position = names.index(name)
        previous = names[position - 1] if position else ""
        return Place(name=name, position=position, size=len(names), own=stat, previous=previous)

    async def wait_place_changed(self, place: Place) -> None:
        """Wait until the worker's node, or the one before it, is deleted.

        Raises:
            StoreUnavailableError: no answer, or the session was lost while waiting.
        """
        previous = f"{self._parent}/{place.previous}"
        stat = await self._store.stat(previous)
        if stat is not None:
            own = f"{self._parent}/{place.name}"
            await first_to_end(
                self._store.wait_node_changed(own, place.own), self._store.wait_node_changed(previous, stat)
            )

    async def call(self, count: int, watching_max: int = WATCHING_MAX) -> int:
        """Call up to ``count`` of the last workers, but none of those that watch; return how many were called.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; some may have been called.
        """
        names = (await self._names())[watching_max:]
        called = names[-min(count, CALLED_MAX) :] if names else []
        try:
            await self._store.multi([Delete(f"{self._parent}/{name}") for name in called])
        except MultiFailedError as error:  # another watching worker has called one of them, or one has left
            _log.info("standby workers are called by another process", extra={"error": str(error)})
            return 0
        return len(called)

    async def leave(self, name: str) -> None:
        """Delete a node. Idempotent, and best effort: ``enter`` deletes a remaining node of its worker."""
        try:
            await remove(self._store, f"{self._parent}/{name}")
        except (StoreUnavailableError, WriteOutcomeUnknownError) as error:
            self._remaining.add(name.rpartition("-")[0])
            _log.info("standby node could not be removed yet", extra={"error": str(error)})

    async def _create(self, path: str) -> str:
        try:
            return await self._store.create(path, is_ephemeral=True, is_sequential=True)
        except NoNodeError:
            await ensure_path(self._store, self._parent)
            return await self._store.create(path, is_ephemeral=True, is_sequential=True)

    async def _nodes_of(self, token: str) -> list[str]:
        """Return the nodes of a worker, after every write of this session has ended."""
        await self._store.sync(self._parent)
        return [name for name in await child_names(self._store, self._parent) if name.startswith(f"{token}-")]

    async def _names(self) -> list[str]:
        names = await child_names(self._store, self._parent)
        return sorted((name for name in names if name.isascii() and name[-_NUMBER_DIGITS:].isdigit()), key=_number)


def _number(name: str) -> int:
    return int(name[-_NUMBER_DIGITS:])
